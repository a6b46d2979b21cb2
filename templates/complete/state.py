@dataclasses.dataclass
class State:
    """What changes during the run."""

    step: int = 0
    history: list = dataclasses.field(default_factory=list)  # the log lines of all validations
    step_in_graph: tf.Variable | None = None  # `step`, which loops count up; see Schedule
    recoveries: int = 0  # see --recover-from-nan
    skipped: int = 0  # steps whose batches were left out by recoveries
    micro_batch: tuple = (0, 1)  # index of the one being traced, number of them
    snapshot: dict = dataclasses.field(default_factory=dict)  # in host memory; see take_snapshot
    saved_step: int = 0  # step of the newest checkpoint that was written or restored
    pending_write: concurrent.futures.Future | None = None  # a checkpoint
    is_profiling: bool = False
    scratch: str = ""  # a folder that is removed with the process


state = State()
