"""What Adam as one operation brings: the step of train.py on a constant batch with the script's
Adam, and with Keras's, in turn, in one process.

    python benchmarks/adam.py [--rounds 30] [--replicas 1]

README.md, beside this file, says how to read the answer.
"""

import argparse
import os
import statistics
import tempfile
import time

from cookiecutter.main import cookiecutter
from side_by_side import TEMPLATE, create_loop, describe_machine, load

SECONDS = 0.2  # about those of a measurement
KINDS = ("the script's", "Keras's")


def put_dense(script):
    """Gives a script a network of 2.5 million weights, bound by the update at its batch of 64."""
    create, layers = script.create_model_and_optimizer, script.keras.layers

    def create_dense(strategy):
        _, optimizer = create(strategy)
        with strategy.scope():
            hidden = [layers.Dense(1100, activation="relu") for _ in range(3)]
            every = [script.keras.Input([8, 8, 1]), layers.Flatten(), *hidden, layers.Dense(10)]
            return script.keras.Sequential(every), optimizer

    script.create_model_and_optimizer = create_dense


def measure(loop, steps):
    """Returns microseconds a step: by the clock, and of the process on all cores."""
    clock, process = time.perf_counter(), time.process_time()
    loop(steps)
    spent = time.perf_counter() - clock, time.process_time() - process
    return [1e6 * seconds / steps for seconds in spent]


def compare(project, strategy, network, rounds):
    """Measures both kinds in turn, and prints medians, the median of the ratio within a round, and
    the range of its middle half."""
    loops = {}
    for kind in KINDS:
        script = load(project)  # one for each: its globals are the model and the optimizer
        script.strategy = strategy
        if network == "dense":
            put_dense(script)
        loops[kind] = create_loop(script, own_adam=kind == KINDS[0])
        loops[kind](10)  # traces
    weights = script.model.count_params()
    steps = max(2, round(SECONDS * 1e6 / measure(loops[kind], 10)[0]))
    measured = []
    for number in range(rounds):
        order = KINDS if number % 2 else KINDS[::-1]
        measured.append({kind: measure(loops[kind], steps) for kind in order})
    print(f"{network}, {weights:,} weights, {strategy.num_replicas_in_sync} replica(s)")
    for position, name in enumerate(("clock", "processor")):
        ours, theirs = ([x[kind][position] for x in measured] for kind in KINDS)
        ratios = [keras / own for own, keras in zip(ours, theirs, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        times = f"{statistics.median(ours):.0f} µs a step, Keras's {statistics.median(theirs):.0f}"
        print(f"  by the {name:9}  {times}: {median:.2f} times as fast ({low:.2f}–{high:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--replicas", type=int, default=1)
    args = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        options = {"no_input": True, "default_config": True, "accept_hooks": False}
        project = cookiecutter(str(TEMPLATE), output_dir=folder, **options)
        script = load(project)
        script.args = script.parse_arguments(["--replicas", str(args.replicas)])
        strategy, *_ = script.create_strategy()
        for network in ("digits", "dense"):
            compare(project, strategy, network, args.rounds)


if __name__ == "__main__":
    main()
