# {% if cookiecutter.__size == "complete" %}
def set_up_process():
    """Install the handlers of signals, and create a folder for temporary files."""
    # AutoGraph leaves files in this folder.
    tempfile.tempdir = state.scratch = tempfile.mkdtemp(prefix="train-")
    listen_for_signals()


# {% endif %}
def print_start():
    resumed = f", resumed at step {state.step}" if state.step else ""
    print_status(
        f"{config.strategy} on {config.replicas} × {config.device_kind}, "
        f"{config.steps_per_epoch} steps per epoch{resumed}"
    )
