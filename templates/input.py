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
