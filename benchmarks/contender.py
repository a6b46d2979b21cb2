"""One contender of side_by_side.py: a process that trains endlessly.

    python benchmarks/contender.py SETTINGS

SETTINGS are the arguments of `contend` as JSON. Before each epoch the process writes a line of
JSON, the mark, and waits for a line on its standard input.
"""

import gc
import importlib
import json
import os
import re
import resource
import sys
import time

import peers
from jobs import set_up_job

ENDLESS = "100000"  # epochs
FAR_STEP = 1_000_000
KIB_PER_MIB = 2**10
MESSAGE_LENGTH = 100

REPLICA_FLAGS = {
    "one": ["--replicas", "1"],
    "replicas": ["--replicas", "2"],
    "workers": [],  # TF_CONFIG has them
    "gpu": [],
    "gpu_bfloat16": [],
}


def contend(project, job, steps, place, kind, arguments, run_dir):
    """Train endlessly. Write a mark before each epoch, and if training fails."""
    mark = create_mark()
    try:
        script = load_script(project, kind)
        flags = ["--run-dir", run_dir, *REPLICA_FLAGS[place]]
        if place == "gpu_bfloat16":
            set_precision(script, flags)
        set_up_job(job, script, steps)
        if kind in SCRIPT_KINDS:
            SCRIPT_KINDS[kind](script, flags, mark, *arguments)
        else:
            strategy = create_strategy(script, place)  # first: it configures TensorFlow's devices
            peers.set_up_globals(script, strategy)
            peers.PEERS[kind](script, strategy, steps, mark, *arguments)
    except Exception as error:
        # Any error of TensorFlow, Keras or Orbit: not all peers can run all jobs.
        mark(fails=summarize_error(error))
        os._exit(1)


def create_mark():
    """Return a function that writes a mark and waits. Other output of this process is discarded."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def mark(**values):
        usage = resource.getrusage(resource.RUSAGE_SELF)
        common = {
            "processor": time.process_time(),
            "peak": usage.ru_maxrss / KIB_PER_MIB,  # Linux counts KiB
        }
        lines.write(json.dumps(common | values) + "\n")
        lines.flush()
        sys.stdin.readline()

    return mark


def load_script(project, kind):
    """Return the project's train.py as a module.

    It makes its own imports faster by a setting of Python's garbage collector. The peers import
    TensorFlow and run with Python's default.
    """
    default = gc.get_threshold()
    if kind not in SCRIPT_KINDS:
        importlib.import_module("tensorflow")
    sys.path.insert(0, project)
    script = importlib.import_module("train")
    if kind not in SCRIPT_KINDS:
        gc.set_threshold(*default)
    return script


def set_precision(script, flags):
    """Have all contenders compute in bfloat16.

    The essential script has no flag for it: its users set the policy in a hook, as here.
    """
    create_original = script.create_model_and_optimizer

    def create_model_and_optimizer(strategy):
        script.keras.config.set_dtype_policy("mixed_bfloat16")
        return create_original(strategy)

    script.create_model_and_optimizer = create_model_and_optimizer
    if hasattr(script.Config, "precision"):
        flags += ["--precision", "mixed_bfloat16"]


def create_strategy(script, place):
    """Return the strategy with which fit is fastest: none on one device.

    On two replicas, MirroredStrategy's default reduction is a collective, with which fit fails if
    steps_per_execution is above 1.
    """
    distribute = script.tf.distribute
    config = script.tf.config
    if place in ("one", "gpu", "gpu_bfloat16"):
        return distribute.get_strategy()
    if place == "workers":
        return distribute.MultiWorkerMirroredStrategy()
    cpu, *_ = config.list_physical_devices("CPU")
    parts = [config.LogicalDeviceConfiguration()] * 2
    config.set_logical_device_configuration(cpu, parts)
    return distribute.MirroredStrategy(["CPU:0", "CPU:1"], distribute.ReductionToOneDevice())


def summarize_error(error):
    """Return the reason of an error. TensorFlow writes the stack of the graph before it."""
    preamble = re.compile(r"$|File |Graph execution error|Detected at|\d+ root error")
    lines = [line.strip() for line in str(error).splitlines()]
    reasons = [line for line in lines if not preamble.match(line)]
    reason = reasons[0] if reasons else ""
    reason = re.sub(r"^\(0\) [A-Z_]+: +| \(defined @ .*?\)", "", reason)
    return f"{type(error).__name__}: {reason}"[:MESSAGE_LENGTH]


# --------------------------------------------------------------------------------------------------
# What train.py does
# --------------------------------------------------------------------------------------------------


def run_script(script, flags, mark, *more_flags):
    """Run `main` endlessly, with all that a run does between its steps."""
    train = script.train

    def mark_and_train(iterator, steps):
        if script.state.step % script.config.steps_per_epoch == 0:
            mark()
        return train(iterator, steps)

    script.train = mark_and_train
    script.main([*flags, "--epochs", ENDLESS, *more_flags])


def run_silently(script, flags, mark):
    """Run `main` without checkpoints, log and TensorBoard."""

    def skip(*_, **__):
        """Do nothing."""

    def return_line(split, values):
        """Return what `log` returns."""
        return {"step": script.state.step, "epoch": 0, "split": split, **values}

    script.save = skip
    script.log = return_line
    run_script(script, flags, mark)


def draw_alike(script, flags, mark):
    """Run `main`, but let all replicas draw the same random numbers, as Keras does."""

    def skip():
        """Do nothing."""

    script.share_random_numbers = skip
    run_script(script, flags, mark)


def run_short_job(script, flags, mark):
    """Write a mark after three epochs, a test and an export."""
    script.main([*flags, "--epochs", "3"])
    mark()


def take_first_step(script, flags, mark):
    """Write a mark after the first step."""
    train = script.train

    def train_and_mark(iterator, steps):
        values = train(iterator, steps)
        mark()
        return values

    script.train = train_and_mark
    script.main([*flags, "--epochs", ENDLESS, "--steps-per-loop", "1"])


def validate_endlessly(script, flags, mark):
    """Validate on the training examples."""
    validate = script.validate
    datasets = keep_datasets(script)

    def validate_train_split(iterator, steps):
        iterator, steps = script.create_input(*datasets["train"], training=False)
        while True:
            mark()
            validate(iterator, steps)

    script.validate = validate_train_split
    script.main([*flags, "--epochs", ENDLESS])


def resume_late(script, flags, mark):
    """Report the seconds from a resume at a late step to the end of the next, already traced."""
    train = script.train
    datasets = keep_datasets(script)

    def train_late(iterator, steps):
        train(iterator, 1)  # traces the step
        started_at = time.perf_counter()
        iterator, _ = script.create_input(*datasets["train"], training=True, first_step=FAR_STEP)
        train(iterator, 1)
        mark(seconds=time.perf_counter() - started_at)

    script.train = train_late
    script.main([*flags, "--epochs", ENDLESS])


def keep_datasets(script):
    """Return a dict that `main` fills with the loaded examples of each split and their number."""
    load_datasets = script.load_datasets
    datasets = {}

    def load_and_keep():
        datasets.update(load_datasets())
        return datasets

    script.load_datasets = load_and_keep
    return datasets


SCRIPT_KINDS = {
    "train.py": run_script,
    "silent": run_silently,
    "same numbers": draw_alike,
    "short job": run_short_job,
    "first step": take_first_step,
    "validation": validate_endlessly,
    "resume": resume_late,
}


if __name__ == "__main__":
    contend(**json.loads(sys.argv[1]))
