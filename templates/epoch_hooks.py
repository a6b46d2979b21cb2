def score(validation):
    """Return the number, lower is better, that selects checkpoints/best.

    `validation` has the loss and the metrics of a validation by name. This is also called with log
    lines, which have "step", "epoch" and "split", too.
    """
    # TODO(you): another measure, such as -validation["accuracy"].
    return validation["loss"]


def end_epoch(history):
    """Return whether to stop the run.

    # {% if cookiecutter.__size == "parameter_server" %}
    The chief calls this after an epoch is saved.
    # {% else %}
    Each worker calls this after an epoch is saved.
    # {% endif %}

    `history` has the log lines of all validations, the newest last: {"step": …, "epoch": …,
    "split": "validation", "loss": …, <metrics>…}. A resumed run may call this again for the last of
    them, so what changes here must depend on `history` only. Change only variables of models and
    optimizers: a graph keeps the Python values of its trace, and checkpoints lack other variables.
    # {% if cookiecutter.__size == "parameter_server" %}
    To predict, call the model: with a cluster, `model.predict` raises an error.
    # {% else %}
    To predict, call the model: `model.predict` divides its batch among replicas and workers.
    With --ema-momentum (complete script), `history` is of the EMA, and the model has the weights of
    the last step: call `swap_ema_weights()` before predicting, and again afterwards.
    # {% endif %}
    """
    # {% if cookiecutter.__size == "parameter_server" %}
    # TODO(you): stop early, write samples, or set a constant `optimizer.learning_rate`.
    # {% else %}
    # TODO(you): stop early, write samples if config.worker_index == 0, or set a constant
    # `optimizer.learning_rate`.
    # {% endif %}
    return False
