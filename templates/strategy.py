def check_batch(replicas):
    """Refuses a batch that can't be shared out equally, with the nearest that can."""
    batch, parts = GLOBAL_BATCH_SIZE, replicas * ACCUMULATION_STEPS
    below, counts = batch // parts * parts, [n for n in range(1, batch + 1) if batch % n == 0]
    sharers = f"{replicas} replica{'s' * (replicas > 1)}"
    sharers += f" in {ACCUMULATION_STEPS} parts each" * (ACCUMULATION_STEPS > 1)
    if batch % parts:
        refuse(
            f"--global-batch-size {batch} can't be shared equally by {sharers}; "
            f"{f'{below} or ' * (below > 0)}{below + parts} can. A run that has begun keeps its "
            f"batch, which {', '.join(map(str, counts))} replicas can share"
        )


def choose_strategy():
    """Returns the name of the strategy, for which `auto` may stand."""
    name, replicas = args.strategy, args.replicas
    gpus = tf.config.list_physical_devices("GPU")
    if name == "auto" and WORKERS > 1:
        name = "multi_worker"
    elif name == "auto" and (os.environ.get("TPU_NAME") or tf.config.list_physical_devices("TPU")):
        name = "tpu"
    elif name == "auto":
        name = "mirrored" if (replicas or len(gpus)) > 1 else "one_device"

    if WORKERS > 1 and name != "multi_worker":
        refuse(f"--strategy {name} is for one worker, but TF_CONFIG has {WORKERS}; unset either")
    if name == "multi_worker" and os.environ.get("TF_CONFIG", "") in ("", "{}"):
        refuse("--strategy multi_worker reads TF_CONFIG, which is not set; README.md shows how")
    if replicas and name in ("multi_worker", "tpu"):
        refuse(f"--replicas shares out one machine's CPU; with --strategy {name}, leave it out")
    if name == "one_device" and (replicas or 1) > 1:
        refuse(f"--strategy one_device has one replica, not {replicas}; mirrored has more")
    return name


def create_strategy(name):
    gpus, replicas = tf.config.list_physical_devices("GPU"), args.replicas
    if replicas:
        gpus = []
        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        shares = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(cpu, shares)
    if not gpus:
        # They merge sums over losses with sums over replicas, where these are in one process, and
        # fuse operations: then replicas round otherwise than workers. On GPUs they stay.
        off = {"arithmetic_optimization": False, "remapping": False}
        tf.config.optimizer.set_experimental_options(off)
    if name == "multi_worker":
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in handlers:  # should a peer be lost just now: TensorFlow would wait, deaf
            signal.signal(number, signal.SIG_DFL)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        return strategy
    if name == "tpu":
        try:
            tpu = os.environ.get("TPU_NAME", "local")
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu)
        except Exception as error:  # of a dozen kinds, which all mean that there is none
            reason = str(error).partition("\n")[0]
            refuse(f"--strategy tpu finds no TPU ({reason}); set TPU_NAME, or take another")
        return tf.distribute.TPUStrategy(resolver)
    if name == "mirrored":
        kind, count = ("GPU", len(gpus)) if gpus else ("CPU", replicas or 1)
        return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(count)])
    return tf.distribute.OneDeviceStrategy("GPU:0" if gpus else "CPU:0")


def device_type():
    """Returns CPU, GPU or TPU."""
    return tf.DeviceSpec.from_string(strategy.extended.worker_devices[0]).device_type
