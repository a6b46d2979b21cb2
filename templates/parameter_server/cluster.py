START_SECONDS = 3600  # the longest wait of workers and servers for the chief to start
FINISHED_SECONDS = 120  # the same in the directory of a finished run
POLL_SECONDS = 0.3
# Before the coordinator raises an error, it waits for running calls, and then clears the error. A
# second call that comes meanwhile would raise None.
coordinator_lock = threading.Lock()


def read_tf_config():
    """Return TF_CONFIG's cluster as {job: addresses}, and the job and the index of this task.

    Without TF_CONFIG, the cluster is empty and this process is the chief. It is empty for an
    evaluator, too, which is no part of the cluster.
    """
    if os.getenv("TF_CONFIG") in (None, "", "{}"):  # TensorFlow can't read an empty string
        return {}, "chief", 0
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        spec = resolver.cluster_spec()
        job = resolver.task_type
        index = resolver.task_id
        cluster = spec.as_dict()
        cluster.pop("evaluator", None)
        if job == "evaluator":
            return {}, job, index
        check_cluster(cluster)
        spec.task_address(job, index)
    except Exception as error:
        # TensorFlow raises AttributeError, KeyError, RecursionError, TypeError or ValueError for a
        # TF_CONFIG that is no JSON, or has other keys or types.
        raise WrongInput(
            f"TF_CONFIG: {error}; use a value such as "
            '{"cluster": {"chief": ["a:22"], "worker": ["b:22", "c:22"], "ps": ["d:22"]}, '
            '"task": {"type": "worker", "index": 0}}'
        ) from error
    return cluster, job, index


def check_cluster(cluster):
    """Raise ValueError if a job is missing or unknown, or an address has no host or port."""
    has_all_jobs = cluster.keys() == {"chief", "ps", "worker"} and all(cluster.values())
    if not has_all_jobs or len(cluster["chief"]) > 1:
        raise ValueError(f"{cluster} is not one chief, one or more ps and one or more workers")
    for addresses in cluster.values():
        for address in addresses:
            parts = urlsplit(f"//{address}")
            if not parts.hostname or not parts.port:
                raise ValueError(f"{address!r} is not host:port")


# {% include ["tasks/" ~ cookiecutter.task ~ "/import_operations.py", "parameter_server/import_operations.py"] %}


def serve(cluster, job, index):
    """Run TensorFlow's server, which computes steps (worker) or holds variables (ps).

    Raise RunFinished when the chief has finished, and RunInterrupted if it is lost.
    """
    # On NFS, a task that looked for the folder too early can't see it for half a minute, unless the
    # task creates it, too.
    os.makedirs(run_path(), exist_ok=True)
    finished_file = run_path(f"finished-{job}-{index}")  # written at the end by `dismiss`
    finished_file.unlink(missing_ok=True)
    if job == "ps":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # it would take the memory of a worker's GPU
        # A server ends after the chief, which may still save what the server holds.
        on_signals(lambda *received: signals.append(received))
    else:
        on_signals(start_grace_period)
    import_operations()
    try:
        _server = tf.distribute.Server(cluster, job, index)  # serves while it is referenced
    except tf.errors.OpError as error:
        raise WrongInput(
            f"TF_CONFIG: {job} {index} can't listen at {cluster[job][index]} ({error.message}); "
            "use a free port"
        ) from None  # with a cause, it would count as a server's failure
    print_status(f"{job} {index} serves at {cluster[job][index]}")
    chief = cluster["chief"][0]
    if not is_finished_by_chief(chief, finished_file):
        raise RunInterrupted(
            f"the chief at {chief} has ended, or has another --run-dir; start all tasks again"
        )
    finished_file.unlink(missing_ok=True)
    raise RunFinished(f"{job} {index}")


def is_finished_by_chief(address, finished_file):
    """Wait until the chief has finished or is lost. Return whether the run is finished."""
    chief = urlsplit(f"//{address}")
    was_finished = is_run_finished()
    patience = FINISHED_SECONDS if was_finished else START_SECONDS
    last_contact = time.monotonic()
    is_old_export = False
    while not finished_file.exists():
        try:
            socket.create_connection((chief.hostname, chief.port), 5).close()
            patience = GRACE_SECONDS
            last_contact = time.monotonic()
            is_old_export = was_finished  # a chief that continues the run removes it late
        except OSError as error:
            if signals:  # the chief may still save what a server holds
                patience = GRACE_SECONDS
            # Refused: the process has ended. Otherwise, the network may be slow.
            has_ended = isinstance(error, ConnectionRefusedError) and patience == GRACE_SECONDS
            if has_ended or time.monotonic() > last_contact + patience:
                break
        time.sleep(POLL_SECONDS)
    return finished_file.exists() or (is_run_finished() and not is_old_export)


def is_run_finished():
    """Return whether there is an export, which is written last. A run that resumes removes it."""
    return run_path("export").exists()


def watch_connections():
    """Make Linux close connections to machines that are silent for GRACE_SECONDS. Never return.

    TensorFlow sets no limit, so steps would wait for the 15 minutes of Linux's own limit.
    """
    while True:  # there may be new connections
        for path in Path("/proc/self/fd").glob("*"):
            with contextlib.suppress(OSError):  # closed meanwhile, or not of TCP
                if path.is_socket():
                    limit_silence(int(path.name))
        time.sleep(1)


def limit_silence(descriptor):
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GRACE_SECONDS)


def dismiss_tasks():
    """Tell workers and servers that the run is finished. Tasks that are lost don't answer."""
    pool = concurrent.futures.ThreadPoolExecutor(config.workers + config.servers)
    answers = [pool.submit(dismiss, "worker", index) for index in range(config.workers)]
    answers += [pool.submit(dismiss, "ps", index) for index in range(config.servers)]
    concurrent.futures.wait(answers, GRACE_SECONDS / 4)


def dismiss(job, index):
    """Have a task write its file, which may be on its own disk."""
    with tf.device(f"/job:{job}/task:{index}/device:CPU:0"):
        path = str(run_path(f"finished-{job}-{index}"))
        tf.io.write_file(path, "")
        tf.io.read_file(path).numpy()  # TensorFlow returns before a task has written


def is_task_failure(error):
    """Return a match if the error means that a task failed, or the chief's port is in use."""
    # The coordinator's ClosureInputError, and the WrongInput of `restore`, wrap another error.
    error = getattr(error, "original_exception", error.__cause__ or error)
    # `repr` begins with the type. A server that has restarted within a moment is an unknown device.
    # The last pattern: another process, maybe of an earlier start, uses the chief's port.
    failures = (
        "(?i)^(Aborted|Cancelled|DeadlineExceeded|Unavailable)Error|unknown device|relevant tensor"
        "|^UnknownError.*could not start grpc server"
    )
    return re.search(failures, f"{error!r}{error}")


def schedule(distributed_step, arguments):
    """Give a call to the next free worker. Without a cluster, make it here."""
    if not coordinator:
        return distributed_step(*arguments)
    with coordinator_lock:
        return coordinator.schedule(distributed_step, arguments)


def fetch_result(result):
    """Return what a call returns, [n] float64, when a worker has finished it."""
    if not coordinator:
        return result.numpy()
    while True:
        try:
            return result.fetch()
        except tf.errors.OpError:  # its worker is lost; another one repeats the call
            with coordinator_lock:
                coordinator.done()  # raises other errors
            time.sleep(POLL_SECONDS)
