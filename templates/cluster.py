def read_tf_config():
    # {% if cookiecutter.__size == "complete" %}
    """Return the addresses of all workers, the chief's first, or [] without a cluster.

    Set `config.workers` and `config.worker_index`. For an evaluator, which is no
    worker, set `config.mode` and return []. Raise WrongInput for a wrong TF_CONFIG.
    """
    # {% else %}
    """Set the number of workers and this worker's index. Raise WrongInput for a wrong TF_CONFIG."""
    # {% endif %}
    if os.getenv("TF_CONFIG") in (None, "", "{}"):
        os.environ["TF_CONFIG"] = "{}"  # TensorFlow can't read an empty string
        # {% if cookiecutter.__size == "complete" %}
        return []
        # {% else %}
        return
        # {% endif %}
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        # {% if cookiecutter.__size == "complete" %}
        if resolver.task_type == "evaluator":  # a process beside the cluster
            config.mode = "continuous_evaluate"
            return []
        # {% endif %}
        cluster = resolver.cluster_spec()
        jobs = cluster.as_dict()
        # {% if cookiecutter.__size == "complete" %}
        jobs.pop("evaluator", None)
        # {% endif %}
        addresses = jobs.pop("chief", []) + jobs.pop("worker", [])
        if jobs:
            raise ValueError(f"{', '.join(jobs)} is not chief or worker")
        config.worker_index = addresses.index(
            cluster.task_address(resolver.task_type, resolver.task_id)
        )
        config.workers = len(addresses)
    except Exception as error:
        # TensorFlow raises AttributeError, KeyError, RecursionError, TypeError or ValueError for a
        # TF_CONFIG that is no JSON, or has other keys or types.
        raise WrongInput(
            f"TF_CONFIG: {error}; use a value such as "
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
        ) from error
    # {% if cookiecutter.__size == "complete" %}
    return addresses
    # {% endif %}


def sum_over_workers(numbers):
    """Return the sum of the int64 numbers of all workers, once each worker has called this."""
    if config.workers == 1:
        return numbers
    copies = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(numbers, "int64")
    )
    # Each of a worker's replicas has added the same numbers.
    return strategy.reduce("SUM", copies, axis=None).numpy() * config.workers // config.replicas
