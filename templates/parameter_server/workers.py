GRACE = 20  # seconds, from SIGTERM on, for the chief to save what servers and workers hold
ONE_AT_A_TIME = threading.Lock()  # two calls of the coordinator would race for the error they raise


def read_tf_config():
    """Returns TF_CONFIG's cluster, and the job and index that this task has in it. Without any, all
    happens in this process, which is the chief."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        if config == {}:
            return {}, "chief", 0
        cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
        for each in ("chief", "worker", "ps"):
            if not cluster.get(each):
                raise ValueError(f"the cluster has no {each}")
        if (job, index) == ("evaluator", 0):  # which is no part of it
            return {}, job, index
        tf.train.ClusterSpec(cluster).task_address(job, index)
        if extra := set(cluster) - {"chief", "worker", "ps", "evaluator"}:
            raise ValueError(f"there are jobs besides chief, worker and ps: {', '.join(extra)}")
        if len(cluster["chief"]) > 1:
            raise ValueError("there is one chief, not several")
        for address in (x for each in cluster.values() for x in each):
            host, _, port = address.rpartition(":")
            if not (host and 0 < int(port) < 65536):
                raise ValueError(f"{address} is not host:port")
        return {x: cluster[x] for x in ("chief", "ps", "worker")}, job, index
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        like = '{"cluster": {"chief": ["a:22"], "worker": ["b:22", "c:22"], "ps": ["d:22"]}, '
        like += '"task": {"type": "worker", "index": 0}}'
        refuse(f"TF_CONFIG: {type(error).__name__} {error}; it should be like {like}")


def serve(cluster, job, index):
    """Runs TensorFlow's server, which computes (a worker) or holds weights (ps) as the chief says.
    It ends with the chief: with 0, if that has finished, as its last word says; else with 143."""
    last_word, told, started = run_dir / f"finished-{job}-{index}", [], time.monotonic()
    last_word.unlink(missing_ok=True)
    if job == "ps":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # or it would take the memory of a worker's GPU
    # {% if cookiecutter.task == "text_classification" %}
    import tensorflow_text  # noqa: F401, has the operations of `preprocess`, which run here

    # {% endif %}
    try:
        server = tf.distribute.Server(cluster, job, index, "grpc")
    except tf.errors.OpError as error:
        refuse(f"{job} {index} can't listen at {cluster[job][index]} ({error.message})")
    # On SIGTERM it goes with the chief, which may still need it to save, or GRACE seconds later.
    on_signals(lambda *_: told.append(time.monotonic()))
    print(f"{job} {index} serves at {cluster[job][index]}", flush=True)
    (host, _, port), seen = cluster["chief"][0].rpartition(":"), None
    while not last_word.exists():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            seen = time.monotonic()
        except OSError as error:  # refused: its machine is there. Else the network may be slow
            lost = told or isinstance(error, ConnectionRefusedError)
            lost = lost or time.monotonic() - (seen or started) > GRACE
            if seen and lost and not last_word.exists():
                print(f"{job} {index}: the chief is gone", flush=True)
                os._exit(143)
        waited = time.monotonic() - (told[0] if told else started)
        if told and (not seen or waited > GRACE) or not seen and waited > 3600:
            os._exit(143)
        time.sleep(0.3)
    last_word.unlink(missing_ok=True)
    del server
    os._exit(0)


def watch_connections():
    """Has Linux end a connection whose other machine is silent for GRACE seconds, as at a cut link:
    TensorFlow sets no limit, and steps would wait for the 15 minutes that Linux takes by itself."""
    limits = (("KEEPIDLE", 5), ("KEEPINTVL", 5), ("USER_TIMEOUT", 1000 * GRACE))
    while True:  # for those that are new
        for path in filter(Path.is_socket, Path("/proc/self/fd").glob("*")):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as each:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in limits:
                    each.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)
        time.sleep(1)


def dismiss(cluster):
    """Tells workers and servers that the run is finished. What was lost is not waited for."""

    def tell(job, index):
        with tf.device(f"/job:{job}/task:{index}/device:CPU:0"):
            tf.io.write_file(f"{run_dir}/finished-{job}-{index}", "")

    tasks = [(job, index) for job in ("worker", "ps") for index in range(len(cluster.get(job, [])))]
    threads = [threading.Thread(target=tell, args=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + GRACE / 4
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))


def schedule(function, *arguments):
    with ONE_AT_A_TIME:
        return coordinator.schedule(function, arguments) if coordinator else function(*arguments)


def wait_for(result):
    """Returns a step's numbers, [n] float64, once some worker has done it."""
    while coordinator:
        try:
            return result.fetch()
        except tf.errors.OpError:  # its worker was lost with the result: another does it again
            with ONE_AT_A_TIME:
                coordinator.done()  # raises what is not a worker's loss
            time.sleep(0.1)
    return result.numpy()


def pack(tensors):
    """Returns tensors as one, [n] float64: from a worker, each would take a call of its own."""
    return tf.concat([tf.reshape(tf.cast(x, tf.float64), [-1]) for x in tensors], axis=0)
