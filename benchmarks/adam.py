"""What Adam as one operation brings: the step of train.py on a constant batch with the script's
Adam, and with Keras's, in turn, in one process.

    python benchmarks/adam.py [--rounds 30] [--replicas 1]

README.md, beside this file, says how to read the answer.
"""

import argparse
import importlib.util
import os
import statistics
import tempfile
import time
from pathlib import Path

from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).resolve().parents[1]
SECONDS = 0.2  # about those of a measurement


def load(project):
    """Returns train.py as a module of its own: its globals are a model, its optimizer, …"""
    spec = importlib.util.spec_from_file_location("train", project / "train.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def create_dense(script):
    """Returns a network of 2.7 million weights for the digits: bound by the update, at batch 64."""
    layers = script.keras.layers
    hidden = [layers.Dense(1100, activation="relu") for _ in range(3)]
    return script.keras.Sequential(
        [script.keras.Input([8, 8, 1]), layers.Flatten(), *hidden, layers.Dense(10)]
    )


def create_loop(project, strategy, network, optimizer):
    """Returns a function that runs some steps in one graph, on one constant batch."""
    script = load(project)
    tf, keras = script.tf, script.keras
    script.strategy, replicas = strategy, strategy.num_replicas_in_sync
    with strategy.scope():
        if network == "dense":
            script.model = create_dense(script)
        else:
            script.model, _ = script.create_model_and_optimizer(strategy)
        kind = script.Adam if optimizer == "script" else keras.optimizers.Adam
        script.optimizer = kind(1e-3)
        script.optimizer.build(script.model.trainable_variables)
    script.loss_object = script.create_loss_objects(strategy)
    script.train_metrics, *_ = script.create_metrics(strategy)
    size = script.GLOBAL_BATCH_SIZE // replicas
    examples = next(iter(script.create_datasets()[0].batch(size)))
    features, labels = script.preprocess(examples, tf.zeros([size, 2], tf.int32), training=True)
    share = features, labels, tf.ones([size])
    batch = strategy.experimental_distribute_values_from_function(lambda _: share)

    @tf.function
    def run_steps(steps):
        sums = tf.zeros([2])
        for _ in tf.range(steps):
            sums += script.distributed_train_step(batch)
        return sums

    return lambda steps: run_steps(tf.constant(steps)).numpy()


def measure(loop, steps):
    """Returns microseconds a step: by the clock, and of the process on all cores."""
    clock, process = time.perf_counter(), time.process_time()
    loop(steps)
    spent = time.perf_counter() - clock, time.process_time() - process
    return [1e6 * seconds / steps for seconds in spent]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--replicas", type=int, default=1)
    args = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with tempfile.TemporaryDirectory() as folder:
        options = {"no_input": True, "default_config": True, "accept_hooks": False}
        project = Path(cookiecutter(str(TEMPLATE), output_dir=folder, **options))
        script = load(project)
        script.args = script.parse_arguments(["--replicas", str(args.replicas)])
        strategy, *_ = script.create_strategy()
        for network in ("digits", "dense"):
            kinds = ("script", "Keras")
            loops = {kind: create_loop(project, strategy, network, kind) for kind in kinds}
            for loop in loops.values():
                loop(10)  # traces
            steps = max(2, round(SECONDS * 1e6 / measure(loops["Keras"], 10)[0]))
            rounds = []
            for number in range(args.rounds):
                order = kinds if number % 2 else kinds[::-1]
                rounds.append({kind: measure(loops[kind], steps) for kind in order})
            report(network, args.replicas, rounds)


def report(network, replicas, rounds):
    """Prints the times and their ratios, medians over the rounds, with the middle half's range."""
    for position, name in enumerate(("clock", "processor")):
        ours, theirs = ([x[kind][position] for x in rounds] for kind in ("script", "Keras"))
        ratios = [keras / own for own, keras in zip(ours, theirs, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        times = f"{statistics.median(ours):.0f} µs a step, Keras's {statistics.median(theirs):.0f}"
        print(
            f"{network}, {replicas} replica(s), by the {name}: {times}: {median:.2f} times as fast "
            f"({low:.2f}–{high:.2f}), by the fastest rounds {min(theirs) / min(ours):.2f}"
        )


if __name__ == "__main__":
    main()
