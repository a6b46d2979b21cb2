# Held by the thread that ends the process, and while a loop is added to the snapshot and the log.
ending_lock = threading.Lock()


def listen_for_signals():
    """End the process on SIGINT or SIGTERM at any moment.

    Python calls a handler when the loop in the graph returns, which may take minutes. A thread
    reads the byte that Python writes at once.
    """
    reader, wakeup = socket.socketpair()  # a pipe would not work on Windows
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.detach())
    on_signals(lambda *_: None)
    if os.name == "posix":
        # Otherwise, a signal to a forked process, such as one of a hook's multiprocessing.Pool,
        # would wake this process's thread, and the forked process would ignore it. One that sets a
        # handler of its own still wakes it.
        os.register_at_fork(after_in_child=on_signals)
    threading.Thread(target=wait_for_signal, args=[reader], daemon=True).start()


def wait_for_signal(reader):
    while reader.recv(1)[0] not in ENDING_SIGNALS:
        pass  # another signal, which a hook handles
    end_process(RunInterrupted("interrupted; start the same command again to resume"))


def save_snapshot():
    """Save the last snapshot if it isn't saved. Don't wait for training, which may be stuck."""
    snapshot = state.snapshot
    if config.worker_index > 0 or not snapshot:
        return
    # A checkpoint of this step may be under way. It lacks the validation, which a resume repeats.
    wait_for_write()
    if snapshot["step"] > state.saved_step:
        writer.submit(write_checkpoints, snapshot).result()
    if state.saved_step:
        print_status(f"saved at step {state.saved_step}")


def end_process(error):
    """Report why the run ends, and exit. This never returns.

    If the run was interrupted or a worker failed, first save the last snapshot. After another
    error, only finish the checkpoint that is being written.
    """
    ending_lock.acquire()  # never released: another thread waits here until the exit
    code = 1
    try:
        error = explain_error(error)
        if isinstance(error, RunInterrupted):
            try:
                save_snapshot()
            except Exception as save_error:  # from the file system or TensorFlow
                error = explain_error(save_error)
        code = getattr(error, "exit_code", code)
        writer.shutdown()  # waits for the checkpoint that is being written
        report_error(error)  # fails if nobody reads it, or on a full disk
        if config.workers > 1:
            time.sleep(1)  # other workers may still need this one for the last sum
        # The main thread may raise errors while its files disappear.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        shutil.rmtree(state.scratch, ignore_errors=True)
    finally:
        os._exit(code)  # Python's own shutdown would wait for the other workers
