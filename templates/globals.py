# {% set is_synchronous = cookiecutter.__size != "parameter_server" %}
# {% set is_complete = cookiecutter.__size == "complete" %}
strategy: tf.distribute.Strategy
model: keras.Model  # or a tuple of models, with a tuple of as many optimizers
optimizer: keras.optimizers.Optimizer
loss_object: keras.losses.Loss
train_metrics: list  # contains keras.metrics.Metric objects
validation_metrics: list
test_metrics: list
# {% if is_complete %}
gradient_norm: keras.metrics.Mean  # with --clip-norm: before clipping
# {% endif %}

# {% if is_complete %}
# The examples of all replicas in a micro-batch: --global-batch-size / --accumulation-steps.
# `compute_loss` divides by this number, because gradients are summed over replicas.
# {% elif is_synchronous %}
# Gradients are summed over replicas, so `compute_loss` divides by all replicas' examples of a step.
# This is config.global_batch_size, or less with --accumulation-steps of the complete script.
# {% else %}
# The examples of a step, by which `compute_loss` divides.
# {% endif %}
GLOBAL_BATCH_SIZE: int

adapted: dict = {}  # what the hook `adapt` returned


def flag(default, text, **options):
    """Return a field of `Config` that is a flag, with options of ArgumentParser.add_argument.

    A number is positive, unless its `type` says otherwise.
    """
    if type(default) in (int, float):
        options.setdefault("type", bounded(type(default)))
    options |= {"help": f"{text} [%(default)s]", "default": default}
    return dataclasses.field(default=default, metadata=options)


def bounded(kind, above=0, below=2_147_483_648):
    """Return a function that parses the number of a flag, and checks its bounds.

    Steps, positions and seeds are int32.
    """

    def number(text):
        value = kind(text)
        if not above < value < below:
            raise argparse.ArgumentTypeError(f"{text} must be above {above} and below {below}")
        return value

    return number


# {% if is_complete %}
def two_steps(text):
    """Return the two steps of a text such as "100,120"."""
    with contextlib.suppress(ValueError):  # from `int`, or if there are not two steps
        first, last = map(int, text.split(","))
        if 0 < first <= last:
            return first, last
    raise argparse.ArgumentTypeError(f"{text!r} is not 0 < FIRST <= LAST; use 100,120 for example")


# {% endif %}
@dataclasses.dataclass
class Config:
    """The settings of a run. A field with a help text is a flag: --run-dir is `run_dir`."""

    # {% filter indent(4, true) %}
    # {% include "tasks/" ~ cookiecutter.task ~ "/defaults.py" %}
    # {% endfilter %}
    # {% if is_complete %}
    mode: str = flag(
        "train",
        "train, test a checkpoint, or validate the newest one repeatedly",
        choices="train evaluate continuous_evaluate".split(),
    )
    # {% else %}
    mode: str = flag("train", "train, or test the best checkpoint", choices=["train", "evaluate"])
    # {% endif %}
    run_dir: str = flag("run", "folder of the run's outputs, from which it resumes")
    # {% if is_synchronous %}
    strategy: str = flag("auto", "auto, one_device, mirrored, multi_worker or tpu")
    replicas: int | None = flag(None, "logical CPU devices to train on", type=bounded(int, 0, 101))
    # {% endif %}
    steps_per_loop: int = flag(100, "largest number of steps between log lines")
    checkpoint_every_steps: int = flag(1000, "steps between checkpoints within an epoch")
    seed: int = flag(0, "seed of initial weights, data order and dropout", type=bounded(int, -1))
    # {% if is_synchronous %}
    deterministic: bool = flag(False, "bit-identical results on GPUs, slower", action="store_true")
    # {% endif %}
    # {% if is_synchronous %}
    jit_compile: bool = flag(
        False, "compile gradients with XLA; try it on GPUs", action=argparse.BooleanOptionalAction
    )
    # {% endif %}
    # {% if is_complete %}
    precision: str = flag(
        "float32", "dtype policy", choices="float32 mixed_bfloat16 mixed_float16".split()
    )
    accumulation_steps: int = flag(1, "micro-batches of a step, for gradient accumulation")
    clip_norm: float | None = flag(
        None, "largest norm of the global batch's gradients", type=bounded(float)
    )
    ema_momentum: float | None = flag(
        None, "evaluate and export an EMA of the weights", type=bounded(float, below=1)
    )
    patience: int | None = flag(
        None, "stop after this many epochs without a lower score", type=bounded(int)
    )
    recover_from_nan: int = flag(
        0, "largest number of loops to repeat after a non-finite loss", type=bounded(int, above=-1)
    )
    export: str = flag("best", "checkpoint to test and export", choices=["best", "last"])
    init_checkpoint: str | None = flag(
        None, "run, checkpoint or .keras file with initial weights", metavar="PATH"
    )
    timeout: float | None = flag(
        None,
        "seconds to wait for workers (600 by default) or a checkpoint (no limit)",
        type=bounded(float),
    )
    profile: tuple = flag(
        (0, 0), "steps to profile, rounded to loops", type=two_steps, metavar="FIRST,LAST"
    )
    # {% endif %}

    # {% if is_synchronous %}
    # At startup, `replicas` becomes the number of all replicas, and `strategy` is no longer "auto".

    # {% endif %}
    # Not flags, set at startup:
    # {% if is_synchronous %}
    worker_index: int = 0  # the chief is worker 0; only the chief writes files
    device_kind: str = "CPU"  # or "GPU" or "TPU"
    # {% endif %}
    workers: int = 1
    # {% if not is_synchronous %}
    servers: int = 0  # 0 without a cluster
    # {% endif %}
    train_data: str = ""  # the number of training examples, and their checksum
    steps_per_epoch: int = 1
    last_step: int = 1  # the steps of the whole run, for a schedule say; early stopping lowers it


config = Config()
