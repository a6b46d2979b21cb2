def read_tf_config():
    """Returns the index of this worker and the addresses of all, from TF_CONFIG. The chief is 0."""
    try:
        os.environ["TF_CONFIG"] = os.environ.get("TF_CONFIG") or "{}"  # TensorFlow can't read ""
        if (config := json.loads(os.environ["TF_CONFIG"])) == {}:
            return 0, ["localhost"]
        cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
        # {% block evaluator %}
        # {% endblock %}
        address = tf.train.ClusterSpec(cluster).task_address(job, int(str(index)))  # not True, 1.0
        if set(cluster) - {"chief", "worker"} or not 0 < int(address.rpartition(":")[2]) < 65536:
            raise ValueError(f"chief, worker, ports < 65536, not {', '.join(cluster)}, {address}")
        chiefs = cluster.get("chief", [])
        return index + len(chiefs) * (job == "worker"), chiefs + cluster.get("worker", [])
    except Exception as error:  # of half a dozen kinds
        like = '{"cluster": {"worker": ["a:22", "b:22"]}, "task": {"type": "worker", "index": 0}}'
        refuse(f"TF_CONFIG: {type(error).__name__} {error}; it should be like {like}")


def sum_over_workers(numbers):
    """Returns the sum of all workers' int64 numbers, once all have called it."""
    if WORKERS == 1:
        return numbers
    numbers, spread = np.int64(numbers), strategy.experimental_distribute_values_from_function
    total = strategy.reduce("SUM", spread(lambda _: tf.constant(numbers)), axis=None).numpy()
    return total // (strategy.num_replicas_in_sync // WORKERS)  # each replica has given them
