@dataclasses.dataclass
class State:
    """Where the run is. Checkpoints contain the step and the best loss."""

    step: int = 0
    best_loss: float = math.inf  # of all validations


state = State()
