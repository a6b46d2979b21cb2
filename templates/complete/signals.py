scratch: str = ""  # a folder that goes with the process
ending = threading.Lock()  # of the thread that ends the process; others stop here


def listen_for_signals():
    """Ends the process on SIGTERM or Ctrl-C, at any moment. Python calls a signal's handler when
    the loop in the graph returns, which may take minutes: so a thread reads the byte that Python
    writes as the signal comes (signal.set_wakeup_fd)."""
    reader, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    on_signals(lambda *_: None)

    def listen():
        os.read(reader, 1)
        ending.acquire()
        interrupt()

    threading.Thread(target=listen, daemon=True).start()


def on_signals(handler):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def interrupt():
    """Ends with exit code 143. The chief has a copy of where the last loop ended, and writes it
    first: what came after is done again, and comes out the same. So nobody waits for a step, which
    a lost worker may never finish."""
    try:
        if WORKER == 0 and snapshot and int(snapshot["step"]) not in [0, *list_checkpoints("last")]:
            writer.submit(write_checkpoint, snapshot).result()
            say(f"stopped, and saved at step {snapshot['step']}; the same command goes on")
    except Exception as error:
        leave(explain(error))
    leave(143)


def leave(code):
    """Ends the process, once the checkpoint that is being written is whole. Not as Python ends by
    itself, for then TensorFlow waits for the other workers."""
    if writing:
        concurrent.futures.wait([writing])
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
        size = sum(x.numpy().nbytes for x in tf.nest.flatten(snapshot))
        line = f"stopped: the disk of {folder} is full: it has {shutil.disk_usage(folder).free:,} "
        line += f"bytes left, and a checkpoint takes {size:,}. The last whole one is kept; make "
        line += "room, and the same command goes on"
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
    else:
        traceback.print_exception(error)
        return 1
    print(f"train.py: {line}", file=sys.stderr)
    return code
