def find_device_kind():
    """Return the kind of device to train on. With --replicas, these are logical CPU devices."""
    if config.replicas:
        return "CPU"
    if os.getenv("TPU_NAME") or tf.config.list_physical_devices("TPU"):
        return "TPU"
    # {% if cookiecutter.__size == "complete" %}
    if tf.config.list_physical_devices("GPU"):
        return "GPU"
    if Path("/dev/nvidiactl").exists() and os.getenv("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        print("TensorFlow finds no GPU despite an NVIDIA driver; TF_CPP_MIN_LOG_LEVEL=0 shows why")
    return "CPU"
    # {% else %}
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    # {% endif %}


def choose_strategy():
    """Return the name of the strategy.

    Raise WrongInput if TF_CONFIG, --replicas or the devices don't allow it.
    """
    devices = config.replicas or len(tf.config.list_physical_devices(config.device_kind))
    allowed = ["mirrored"]  # the first name is the default
    if config.workers > 1:
        allowed = ["multi_worker"]
    elif config.device_kind == "TPU":
        allowed = ["tpu"]
    elif devices == 1:
        allowed = ["one_device", "mirrored"]
    elif not config.replicas:
        allowed = ["mirrored", "one_device"]
    name = allowed[0] if config.strategy == "auto" else config.strategy
    if name not in allowed:
        raise WrongInput(
            f"--strategy {name} doesn't fit TF_CONFIG or the devices; use {' or '.join(allowed)}"
        )
    return name


def create_strategy():
    """Read TF_CONFIG and return the strategy. Set the fields of `config` that depend on it."""
    # {% if cookiecutter.__size == "complete" %}
    addresses = read_tf_config()
    if config.mode == "continuous_evaluate" and config.workers > 1:
        raise WrongInput("--mode continuous_evaluate is for one worker; unset TF_CONFIG")
    # {% else %}
    read_tf_config()
    # {% endif %}
    if config.workers > 1 and config.replicas:
        raise WrongInput(f"--replicas {config.replicas} is for one worker; unset TF_CONFIG")
    config.device_kind = find_device_kind()
    name = choose_strategy()
    # With the dependency optimization, a step could update a weight before it reads it. It removes
    # control edges that a path through another operation implies, such as the IdentityN of all
    # gradients in the sum over replicas. Then it removes that IdentityN, too.
    # The arithmetic optimization would join sums of two tensors in one AddN; see section 1.
    disabled = ["dependency_optimization", "arithmetic_optimization"]
    if config.device_kind == "CPU" and name != "one_device":
        # Otherwise, replicas in one process would not be bit-identical to workers. For example,
        # tensors that a hook creates once, such as weights of classes, are folded differently.
        disabled += ["constant_folding", "remapping"]
    tf.config.optimizer.set_experimental_options(dict.fromkeys(disabled, False))
    if name == "multi_worker":
        # {% if cookiecutter.__size == "complete" %}
        wait_for_workers(addresses)
        # {% endif %}
        created = create_multi_worker_strategy()
    elif name == "tpu":
        created = tf.distribute.TPUStrategy(
            tf.distribute.cluster_resolver.TPUClusterResolver.connect(
                os.getenv("TPU_NAME", "local")
            )
        )
    else:
        created = create_local_strategy(name)
    config.strategy = name
    config.replicas = created.num_replicas_in_sync
    return created


def create_multi_worker_strategy():
    # TensorFlow now waits for the other workers. No Python code runs meanwhile, not even in another
    # thread. Ctrl-C ends the process. SIGTERM has no effect: TensorFlow catches it.
    on_signals()
    is_gpu = config.device_kind == "GPU"
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            # TensorFlow's "AUTO" would be RING on GPUs too.
            implementation="NCCL" if is_gpu else "RING",
            # Without packs of 32 MiB, the sum over workers would wait for the last gradient. On
            # CPUs, rounding would depend on them.
            bytes_per_pack=2**25 if is_gpu else 0,
        )
    )


def create_local_strategy(name):
    """Return a strategy for the devices of this machine."""
    if config.replicas:
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * config.replicas,
        )
    devices = [device.name for device in tf.config.list_logical_devices(config.device_kind)]
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    # {% if cookiecutter.__size == "complete" %}
    # Here, `config.replicas` is still the flag: two GPUs use the default. The sum of two numbers is
    # bit-identical in any order, and one device computes it faster. The default keeps the order
    # that workers use.
    reduce = tf.distribute.ReductionToOneDevice() if config.replicas == 2 else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduce)
    # {% else %}
    return tf.distribute.MirroredStrategy(devices)
    # {% endif %}


def check_batch_size():
    """Raise WrongInput if the replicas can't share the global batch equally."""
    # {% if cookiecutter.__size == "complete" %}
    divisor = config.replicas * config.accumulation_steps
    if config.global_batch_size % divisor:
        raise WrongInput(
            f"--global-batch-size {config.global_batch_size} is not divisible by "
            f"{config.replicas} replicas times --accumulation-steps {config.accumulation_steps}; "
            f"use a multiple of {divisor}"
        )
    # {% else %}
    if config.global_batch_size % config.replicas:
        raise WrongInput(
            f"--global-batch-size {config.global_batch_size} is not divisible by "
            f"{config.replicas} replicas; use a multiple of {config.replicas}"
        )
    # {% endif %}
