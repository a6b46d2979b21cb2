scratch: str = ""  # a folder that goes with the process
ending = threading.Lock()  # of the thread that ends the process; others stop here


def listen_for_signals():
    """Ends the process on SIGTERM or Ctrl-C, at any moment: a thread reads the byte that announces
    one. Python calls a handler when the loop in the graph returns, which may take minutes."""
    reader, wakeup = socket.socketpair()  # not a pipe, for Windows
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.detach())
    on_signals(lambda *_: None)
    threading.Thread(target=interrupt, args=[reader], daemon=True).start()


def on_signals(handler):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def interrupt(reader=None):
    """Ends with exit code 143, given a reader once a byte comes. The chief first writes its copy of
    where the last loop ended: so nobody waits for a step that a lost worker may never finish."""
    if reader:
        reader.recv(1)
        ending.acquire()
    try:
        last = snapshot  # meanwhile training may go on, and make another
        if WORKER == 0 and last and int(last["step"]) not in [0, *list_checkpoints("last")]:
            writer.submit(write_checkpoint, last).result()
            say(f"stopped, and saved at step {last['step']}; the same command goes on")
    except Exception as error:
        leave(explain(error))
    leave(143)


def leave(code):
    """Ends the process, once the checkpoint that is being written is whole. Not as Python ends by
    itself, for then TensorFlow waits for the other workers."""
    concurrent.futures.wait([writing] if writing else [])
    time.sleep(WORKERS > 1)  # others may still ask this one for its part of the last sum
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the main thread may miss what goes now
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(code)


def explain(error):
    """Says what an exception means: in one line, or as it is. Returns the exit code."""
    text, code = str(error), 1
    lost = isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)
    if "No space left on device" in text:
        folder = run_dir.resolve() if run_dir.exists() else Path(scratch)
        line = f"stopped: the disk of {folder} is full; make room, and the same command goes on"
    elif args.jit_compile and "XLA" in text:
        operations = sorted(set(re.findall(r"(\w+) \(No registered", text))) or ["this step"]
        line, code = f"error: --jit-compile: XLA can't compile {', '.join(operations)}", 2
    elif WORKERS > 1 and (lost or "coordination" in text.lower()):
        # The error names it among others, as /job:worker/task:1 or /job:worker/replica:0/task:1.
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        tasks = re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", text)
        names = {f"{job} {index}" for job, index in tasks} - {f"{task['type']} {task['index']}"}
        names = " and ".join(sorted(names)) or "another worker"
        line, code = f"stopped: {names} is lost; start all workers again", 143
    elif "Could not start gRPC server" in text or "port for local server" in text:
        line, code = "error: TF_CONFIG: TensorFlow can't listen at this worker's address", 2
    elif run_dir in Path(f"{getattr(error, 'filename', 0)}/x").parents[:-1]:  # a file of it
        line, code = f"error: --run-dir {run_dir}: {error}; name another folder", 2
    else:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    print(f"train.py: {line}", file=sys.stderr)
    return code
