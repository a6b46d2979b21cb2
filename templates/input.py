def load_datasets():
    """Return (examples, size) by split. Set `config.train_data`, `steps_per_epoch` and `last_step`.

    Raise WrongInput if a split is empty, if its examples have different shapes, or if a batch is
    larger than the training split.
    # {% if cookiecutter.__size == "complete" %}
    Also raise it if a flag names a later step than the last one, or if workers differ.
    # {% endif %}
    """
    # {% if cookiecutter.__size == "complete" %}
    datasets = list(create_datasets())
    loaded = {}
    for split in "train validation test".split():
        # Without `pop`, all splits would be in memory twice.
        loaded[split] = load_into_memory(datasets.pop(0), split)
    # {% else %}
    loaded = {
        split: load_into_memory(dataset, split)
        for split, dataset in zip("train validation test".split(), create_datasets(), strict=True)
    }
    # {% endif %}
    examples, size = loaded["train"]
    if config.global_batch_size > size:
        raise WrongInput(
            f"--global-batch-size {config.global_batch_size} is above the {size} training "
            f"examples; use at most {size}"
        )
    # {% if cookiecutter.__size == "complete" %}
    config.train_data = describe_examples(examples, size)
    # {% else %}
    hashes = map(tf.fingerprint, tf.nest.flatten(examples))  # [examples, 8] each
    config.train_data = f"{size} examples, checksum {zlib.crc32(np.array([*hashes]))}"
    # {% endif %}
    config.steps_per_epoch = size // config.global_batch_size
    config.last_step = config.epochs * config.steps_per_epoch
    # {% if cookiecutter.__size == "complete" %}
    check_steps()
    if config.workers > 1:
        check_workers(loaded)
    # {% endif %}
    return loaded


# {% if cookiecutter.__size == "complete" %}
# {% include "input_options.py" %}


# {% include "complete/load_into_memory.py" %}
# {% else %}
def load_into_memory(dataset, split):
    """Return all examples of a dataset, stacked in variables, and their number.

    With all examples in memory, the order of an epoch is computed, and not drawn from a buffer. So
    a run resumes at any step at once. They are variables: each iterator would copy tensors.
    """
    size = int(dataset.cardinality())
    if not 0 < size < 2e9:  # positions in an epoch are int32
        raise WrongInput(
            f"create_datasets: {split} has cardinality {size}, not 1 to 2e9; if infinite (-1), "
            "remove `repeat`; if unknown (-2), use assert_cardinality"
        )
    try:
        with tf.device("CPU:0"):
            # With one `batch(size)`, small examples would need 14 times their size.
            examples = dataset.batch(512).rebatch(size).get_single_element()
            return tf.nest.map_structure(tf.Variable, examples), size
    except (ValueError, tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
        if "Traceback" in f"{error}":  # an exception of the user's own Python code
            raise
        raise WrongInput(
            f"create_datasets: the examples of {split} can't be stacked; if their shapes differ, "
            f"pad them, or return places, such as file names, and read in `fetch`: {error}"
        ) from error


# {% endif %}
