@dataclasses.dataclass
class State:
    """Where the run is."""

    step: int = 0
    best_loss: float = math.inf  # of all validations
    best_step: int = 0  # of the validation with this loss
    recoveries: int = 0  # see --recover-from-nan
    skipped: int = 0  # steps whose batches were left out by recoveries
    micro_batch: tuple = (0, 1)  # the part of a batch that a step computes, and the parts
    snapshot: dict | None = None  # after the last loop, in host memory
    pending_write: concurrent.futures.Future | None = None  # of a checkpoint
    is_profiling: bool = False
    scratch: str = ""  # a folder that is removed with the process


state = State()
