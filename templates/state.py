@dataclasses.dataclass
class State:
    """Where the run is. Checkpoints contain it."""

    step: int = 0
    history: list = dataclasses.field(default_factory=list)  # the log lines of all validations


state = State()
