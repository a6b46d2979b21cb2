"""Measure which parts of `train.py` take the seconds of an epoch: steps, log or checkpoints.

    python benchmarks/epoch_parts.py [--jobs NAME ...] [--epochs 8] [--seconds 2]

Each job of side_by_side.py trains with the default flags on one device, in a process of its own.
Print the medians over the epochs, in milliseconds. The first epoch traces and isn't counted.

- one call: all steps of an epoch in one call of the graph, after the run
- loops: the steps as the run takes them, up to 100 for each call
- validation of one batch, checkpoints, log: metrics.jsonl and TensorBoard's curves
- rest: between these parts; in the complete script, also the wait for a checkpoint at the end of an
  epoch, which another thread writes
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

from contender import load_script
from jobs import JOBS, find_job, set_up_job
from side_by_side import SIZES, render

# The functions of each part. None calls another, and a script may lack one.
PARTS = {
    "loops": ["train"],
    "validation": ["validate"],
    "checkpoints": ["save", "take_snapshot"],
    "log": ["log"],
}
MILLISECONDS = 1000


def measure(project, job, steps, epochs):
    """Print as JSON the seconds of each epoch's parts, and of an epoch's steps in one call."""
    script = load_script(project, "train.py")
    set_up_job(job, script, steps)
    seconds = dict.fromkeys(PARTS, 0.0)
    seconds_by_epoch = []
    iterators = []
    for part, names in PARTS.items():
        for name in names:
            if hasattr(script, name):
                setattr(script, name, add_seconds(getattr(script, name), seconds, part))
    train = script.train
    epoch_start = time.perf_counter()

    def train_and_note_epoch(iterator, loop_steps):
        nonlocal epoch_start
        if script.state.step % steps == 0:
            now = time.perf_counter()
            seconds_by_epoch.append({"epoch": now - epoch_start, **seconds})
            seconds.update(dict.fromkeys(PARTS, 0.0))
            epoch_start = now
            iterators[:] = [iterator]
        return train(iterator, loop_steps)

    script.train = train_and_note_epoch
    with tempfile.TemporaryDirectory() as folder:
        script.main(["--run-dir", folder, "--epochs", str(epochs + 2)])
    step = getattr(script, "count_train_step", script.distributed_train_step)
    one_call = []
    for _ in range(epochs + 1):
        started_at = time.perf_counter()
        script.run_steps(step, iterators[0], script.tf.constant(steps))
        one_call.append(time.perf_counter() - started_at)
    # The first of `epochs` is the start of the run, the second has the traces.
    print(json.dumps({"epochs": seconds_by_epoch[2:], "one call": one_call[1:]}))


def add_seconds(function, seconds, part):
    """Return the function. It also adds the seconds of its calls to a part of an epoch."""

    def call(*args, **options):
        started_at = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            seconds[part] += time.perf_counter() - started_at

    return call


def print_line(name, steps, result):
    """Print the medians of the parts as a line of the table."""
    epochs = result["epochs"]
    rests = [epoch["epoch"] - sum(epoch[part] for part in PARTS) for epoch in epochs]
    columns = [
        [epoch["epoch"] for epoch in epochs],
        result["one call"],
        *[[epoch[part] for epoch in epochs] for part in PARTS],
        rests,
    ]
    cells = [f"{statistics.median(column) * MILLISECONDS:.0f}" for column in columns]
    print(f"| {name} | {steps} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2, help="approximate length of an epoch")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(**json.loads(args.measure))
        return
    columns = ["", "steps", "epoch", "one call", *PARTS, "rest"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.jobs:
            for size in SIZES:
                job = find_job(name)
                steps = round(job.steps_per_second * args.seconds)
                settings = {
                    "project": render(job.task, size, folder),
                    "job": name,
                    "steps": steps,
                    "epochs": args.epochs,
                }
                command = [sys.executable, __file__, "--measure", json.dumps(settings)]
                finished = subprocess.run(command, check=True, capture_output=True, text=True)
                result = json.loads(finished.stdout.splitlines()[-1])
                print_line(f"{name}, {size}", steps, result)


if __name__ == "__main__":
    main()
