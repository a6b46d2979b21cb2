def create_strategy():
    """Read TF_CONFIG and return the strategy. A worker or server serves here until the run ends."""
    # This optimization would join sums of two tensors in one AddN; see section 1.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    cluster, job, index = read_tf_config()
    if job == "evaluator":
        config.mode = "continuous_evaluate"
        wait_for_first_checkpoint()
    if not cluster:
        return tf.distribute.get_strategy()
    config.workers = len(cluster["worker"])
    config.servers = len(cluster["ps"])
    threading.Thread(target=watch_connections, daemon=True).start()
    if job != "chief":
        serve(cluster, job, index)
    return create_parameter_server_strategy(cluster)


def create_parameter_server_strategy(cluster):
    global coordinator
    # TensorFlow now waits for all tasks, and no Python handler would be called.
    on_signals()
    tf.get_logger().addFilter(report_lost_worker)
    tf.config.set_visible_devices([], "GPU")  # GPUs are for workers
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster))
    created = tf.distribute.ParameterServerStrategy(resolver)
    if created.num_replicas_in_sync > 1:
        raise WrongInput(
            "a worker has several GPUs; start a worker for each, with CUDA_VISIBLE_DEVICES"
        )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(created)
    return created


def report_lost_worker(record):
    """Replace TensorFlow's report of a lost worker, which has many lines, and drop other logs."""
    if str(record.msg).startswith("Worker %s failed"):
        index = record.args[0].removeprefix("/job:worker/replica:0/task:")
        print_status(f"worker {index} failed; the next free worker repeats its steps")
    return False


def print_start():
    resumed = f", resumed at step {state.step}" if state.step else ""
    cluster = f"parameter_server on {config.workers} × worker, {config.servers} × ps"
    tasks = cluster if coordinator else "one process"
    print_status(f"{tasks}, {config.steps_per_epoch} steps per epoch{resumed}")


def check_tasks():
    """Raise WrongInput if a server, which writes a part of each checkpoint, has another folder.

    Raise AbortedError if a worker was replaced while the chief waited for other tasks: it would
    fail at each call. Workers need no shared folder.
    """
    for device in tf.config.list_logical_devices("CPU"):  # one per task
        with tf.device(device.name):
            found = tf.io.matching_files(str(run_path("adapted.json"))).numpy()
        if "job:ps" in device.name and not found.size:
            raise WrongInput(
                f"--run-dir {config.run_dir} is not shared by {device.name}; use a shared folder"
            )
