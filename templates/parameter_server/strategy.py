def create_strategy(cluster):
    """Returns the strategy, its coordinator, and the strategy's name. Without a cluster, steps are
    taken here, one after the other, by the same functions."""
    if not cluster:
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        return tf.distribute.OneDeviceStrategy(f"{kind}:0"), None, "one_device"
    on_signals(signal.SIG_DFL)  # it waits for all tasks, and Python hears nothing meanwhile
    tf.get_logger().addFilter(tell_loss)
    tf.config.set_visible_devices([], "GPU")  # which are the workers'
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    if strategy.num_replicas_in_sync > 1:
        refuse("a worker has several GPUs; start one for each, with its CUDA_VISIBLE_DEVICES")
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy), "parameter_server"


def tell_loss(record):
    """Has the coordinator's reports of a lost worker, of many lines, be one line."""
    if str(record.msg).startswith("Worker %s failed"):
        index = record.args[0].rpartition(":")[2]  # of /job:worker/replica:0/task:1
        say(f"worker {index} is lost; its steps go to others, and it may come back")
    return False
