@dataclasses.dataclass
class State:
    """What changes during the run. Checkpoints contain `step` and `history`."""

    step: int = 0
    history: list = dataclasses.field(default_factory=list)  # the log lines of all validations
    # {% if cookiecutter.__schedule and cookiecutter.__size != "parameter_server" %}
    step_in_graph: tf.Variable | None = None  # `step`, which loops count up; see Schedule
    # {% endif %}


state = State()
