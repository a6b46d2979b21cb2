def create_strategy():
    """Returns the strategy, its name, for which `auto` may stand, and the kind of its devices."""
    name, replicas = args.strategy, args.replicas
    gpus = [] if replicas else tf.config.list_physical_devices("GPU")
    tpu = os.environ.get("TPU_NAME") or tf.config.list_physical_devices("TPU")
    if name == "auto":
        several = "mirrored" if max(replicas or 1, len(gpus)) > 1 else "one_device"
        name = "multi_worker" if WORKERS > 1 else "tpu" if tpu else several
    if replicas and name != "mirrored" and (replicas, name) != (1, "one_device"):
        refuse(f"--replicas {replicas} is for --strategy mirrored, on one machine, not {name}")
    if name == "tpu" and not tpu:
        refuse("--strategy tpu finds no TPU; set TPU_NAME, or take another strategy")
    if WORKERS > 1 and name != "multi_worker":
        refuse(f"--strategy {name} is for one worker, but TF_CONFIG has {WORKERS}; unset either")
    if name == "multi_worker" and os.environ["TF_CONFIG"] == "{}":
        refuse("--strategy multi_worker reads TF_CONFIG, which is not set; README.md shows how")
    if name == "tpu":
        connect = tf.distribute.cluster_resolver.TPUClusterResolver.connect
        return tf.distribute.TPUStrategy(connect(os.environ.get("TPU_NAME", "local"))), name, "TPU"
    kind, link = ("GPU", "NCCL") if gpus else ("CPU", "RING")  # "AUTO" would take RING for both
    if kind == "CPU" and name != "one_device":  # or replicas round otherwise than workers
        off = {"arithmetic_optimization": False, "remapping": False}
        tf.config.optimizer.set_experimental_options(off)
    if name == "multi_worker":
        # {% block meet %}
        on_signals(signal.SIG_DFL)  # it waits for the others, and Python hears nothing meanwhile
        # {% endblock %}
        options = tf.distribute.experimental.CommunicationOptions(implementation=link)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options), name, kind
    if replicas:
        tf.config.set_visible_devices([], "GPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    devices = [device.name for device in tf.config.list_logical_devices(kind)]
    several, one = tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy
    how = tf.distribute.ReductionToOneDevice() if replicas == 2 else None  # of more, other bits
    return several(devices, how) if name == "mirrored" else one(devices[0]), name, kind
