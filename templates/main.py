def main(argv=None):
    """Train, test and export a model, or only evaluate one. `run` handles what this raises."""
    global config, state, strategy

    # 1. Read the flags and find the devices.
    # The graphs of an earlier call contain its model.
    assert not config.train_data, "a process can have one run; reload the module to call main again"
    config = parse_flags(argv)
    state = State()
    strategy = create_strategy()
    # {% if cookiecutter.__size == "complete" %}
    set_up_process()
    run_on_chief(check_run_dir)
    # {% else %}
    exit_on_signals()
    # {% endif %}
    # {% if cookiecutter.__size != "parameter_server" %}
    check_batch_size()
    # {% endif %}

    # 2. Load the data.
    datasets = load_datasets()

    # 3. Read the run directory.
    checkpoint = find_run()
    # {% if cookiecutter.__size == "complete" %}
    load_adapted(checkpoint)
    # {% else %}
    load_adapted(datasets["train"], checkpoint)
    # {% endif %}

    # 4. Create the model and all that belongs to it, and restore the checkpoint.
    # {% if cookiecutter.__size == "complete" %}
    create_training_state(datasets, checkpoint)
    # {% else %}
    create_training_state()
    # {% endif %}
    validation_set = create_input(*datasets["validation"])
    test_set = create_input(*datasets["test"])
    if config.mode != "train":
        # {% if cookiecutter.__size == "essential" %}
        test_checkpoint(checkpoint, test_set)
        # {% else %}
        evaluate(checkpoint, validation_set, test_set)
        # {% endif %}
        return
    restore_run(checkpoint)
    # {% if cookiecutter.__size == "complete" %}
    run_on_chief(initialize_run_dir)
    # {% else %}
    initialize_run_dir()
    # {% endif %}
    print_start()

    # 5. Train.
    # {% if cookiecutter.__size == "complete" %}
    iterator, _ = create_input(
        *datasets["train"], training=True, first_step=state.step + state.skipped
    )
    # {% else %}
    iterator, _ = create_input(*datasets["train"], training=True, first_step=state.step)
    # {% endif %}
    train_epochs(iterator, validation_set)

    # {% if cookiecutter.__size == "complete" %}
    # 6. Test the checkpoint to export.
    # {% else %}
    # 6. Test the best checkpoint.
    # {% endif %}
    test_best_checkpoint(test_set)

    # 7. Export it.
    export_model(datasets)
