def set_up_process():
    """Install the handlers of signals, and make GPUs deterministic if asked for."""
    # {% if cookiecutter.__size == "complete" %}
    state.scratch = tempfile.mkdtemp(prefix="train-")
    tempfile.tempdir = state.scratch  # AutoGraph leaves files there
    listen_for_signals()
    # {% else %}
    exit_on_signals()
    # {% endif %}
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()


def print_start(checkpoint):
    devices = f"{config.replicas} × {config.device_kind}"
    line = f"{config.strategy} on {devices}, {config.steps_per_epoch} steps per epoch"
    print_status(f"{line}, resumed at step {state.step}" if checkpoint else line)
