# {% include "training.py" %}


def wait_for_first_checkpoint():
    """Wait until the run of the evaluator has a checkpoint, and so all files that it reads."""
    exit_on_signals()
    print_status(f"waiting for checkpoints of {config.run_dir}")
    while not list_checkpoints("last"):
        time.sleep(1)


def evaluate_continuously(validation_set):
    """Validate the newest checkpoint, and newer ones, until the run is finished."""
    while True:
        is_finished = is_run_finished()
        with contextlib.suppress(FileNotFoundError):  # the chief has removed a checkpoint meanwhile
            path = find_checkpoint("last")
            if path and path.name != f"ckpt-{state.step}":
                restore_run(path)
                validated = validate(*validation_set)
                print_status(f"step {state.step}  validation {format_metrics(validated)}")
            elif is_finished:
                return
        time.sleep(1)


def evaluate(checkpoint, validation_set, test_set):
    """Test the best checkpoint, or validate the newest repeatedly, without writing to the run."""
    if config.mode == "continuous_evaluate":
        evaluate_continuously(validation_set)
    else:
        test_checkpoint(checkpoint, test_set)
