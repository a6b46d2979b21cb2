"""Proofs about train.py with the hooks as they are now; run them after each edit of a hook:

    uv run pytest

Every run is a process of its own, because strategies of different sizes in one process break
each other's collectives. Runs are cut to a few batches, so that these tests take minutes.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SPEEDS = ("examples_per_second", "input_wait")

# What a child process runs: train.py on the first 10 batches of each split. "still" switches off
# the random layers, whose numbers differ from replica to replica.
START = """
import sys
project, still, *arguments = sys.argv[1:]
sys.path.insert(0, project)
import train  # before keras: it silences TensorFlow's start
import keras
if still == "still":
    for name in ("AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D",
                 "SpatialDropout2D", "SpatialDropout3D"):
        getattr(keras.layers, name).call = lambda self, inputs, training=False: inputs
whole = train.create_datasets
train.create_datasets = lambda: [split.take(10 * train.GLOBAL_BATCH_SIZE) for split in whole()]
"""
MAIN = START + "sys.exit(train.main(arguments))"

# Checks each hook by itself, and prints what it breaks.
CHECK_HOOKS = (
    START
    + """
import tensorflow as tf
broken = []
def check(kept, hook, promise):
    if not kept:
        broken.append(hook + ": " + promise)

splits = train.create_datasets()
check(len(splits) == 3, "create_datasets", "gives a train, a validation and a test split")
check(len({str(s.element_spec) for s in splits}) == 1, "create_datasets", "all splits are alike")
batch, seeds = next(iter(splits[0].batch(4))), tf.reshape(tf.range(8), [4, 2])
first, second = train.preprocess(batch, seeds, True), train.preprocess(batch, seeds, True)
for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second)):
    check(a.shape[0] == 4, "preprocess", f"keeps the batch dimension, here 4, not {a.shape}")
    check(bool(tf.reduce_all(a == b)), "preprocess", "gives the same for the same seeds")

strategy = tf.distribute.get_strategy()
train.GLOBAL_BATCH_SIZE = 4
train.model, train.optimizer = train.create_model_and_optimizer(strategy)
train.loss_object = train.create_loss_objects(strategy)
features, labels, weight = keras.utils.unpack_x_y_sample_weight(first)
loss, predictions, gradients = train.compute_gradients(features, labels, weight)
losses = train.loss_object(labels, predictions)
check(losses.shape == [4], "create_loss_objects", f"one loss an example, [4], not {losses.shape}")
check(loss.shape == [], "compute_loss", f"one number, not {loss.shape}")
for variable, gradient in zip(train.model.trainable_variables, gradients):
    check(gradient is not None, "create_model_and_optimizer", f"{variable.path} gets a gradient")
for metrics in train.create_metrics(strategy):
    names = [metric.name for metric in metrics]
    check(len(set(names)) == len(names), "create_metrics", f"names differ: {names}")
print("\\n".join(broken))
"""
)

# Computes the loss of the whole test split at once, from what the run exported.
PLAIN_LOSS = (
    START
    + """
import tensorflow as tf
test_split = train.create_datasets()[2]
size = int(test_split.cardinality())
seeds = tf.zeros([size, 2], tf.int32)
batch = train.preprocess(next(iter(test_split.batch(size))), seeds, False)
features, labels, weight = keras.utils.unpack_x_y_sample_weight(batch)
predictions = keras.saving.load_model(arguments[0])(features, training=False)
losses = train.create_loss_objects(tf.distribute.get_strategy())(labels, predictions)
weight = tf.ones([size]) if weight is None else weight
print(float(tf.reduce_sum(losses * weight) / tf.reduce_sum(weight)))
"""
)


def start(program, *arguments, still=False, env=None):
    mode = "still" if still else "whole"
    command = [sys.executable, "-c", program, str(PROJECT), mode, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env={**os.environ, **(env or {})}, cwd=PROJECT, **pipes)


def finish(process):
    output = process.communicate()[0]
    assert process.returncode == 0, f"train.py ended with exit code {process.returncode}:\n{output}"
    return output


def flags(run_dir):
    return "--run-dir", run_dir, "--epochs", 2, "--steps-per-loop", 3, "--checkpoint-every-steps", 4


def read_log(run_dir):
    """Returns the lines of the log, less the speeds, which are never the same twice."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in line if key not in SPEEDS} for line in lines]


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def two_replicas(tmp_path_factory):
    """The folder of an undisturbed run on two replicas."""
    run_dir = tmp_path_factory.mktemp("two") / "run"
    finish(start(MAIN, *flags(run_dir), "--replicas", 2))
    return run_dir


def test_hooks_keep_their_contract():
    broken = finish(start(CHECK_HOOKS)).strip()
    assert not broken, f"hooks of train.py break what their docstrings promise:\n{broken}"


def test_numbers_do_not_depend_on_the_replicas(tmp_path):
    logs = []
    for replicas in (1, 2):
        run_dir = tmp_path / str(replicas)
        finish(start(MAIN, *flags(run_dir), "--replicas", replicas, still=True))
        logs.append(read_log(run_dir))
    for one, two in zip(*logs, strict=True):
        where = f"{one.pop('split')} split, step {one['step']}"
        for name, value in one.items():
            assert value == pytest.approx(two[name], rel=1e-4), (
                f"{where}: {name} is {value} on 1 replica and {two[name]} on 2. Look for a loss "
                "that is reduced already (create_loss_objects), a mean in place of "
                "compute_average_loss (compute_loss), BatchNormalization without "
                "synchronized=True (create_model_and_optimizer), a metric made outside the scope "
                "(create_metrics), or randomness that seeds don't decide (preprocess)"
            )


def test_evaluation_counts_every_example_once(two_replicas):
    plain = float(finish(start(PLAIN_LOSS, two_replicas / "export" / "model.keras")).split()[-1])
    logged = read_log(two_replicas)[-1]["loss"]
    assert logged == pytest.approx(plain, rel=1e-5), (
        f"the test loss is {logged} in batches, and {plain} of the whole split at once. Look for "
        "an output that depends on the other examples of a batch (preprocess, the model)"
    )


def test_killed_run_resumes_to_the_same_bits(two_replicas, tmp_path):
    run_dir = tmp_path / "run"
    process = start(MAIN, *flags(run_dir), "--replicas", 2)
    while process.poll() is None and not (run_dir / "checkpoints/last/checkpoint").exists():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    finish(start(MAIN, *flags(run_dir), "--replicas", 2))
    assert read_log(run_dir) == read_log(two_replicas), (
        "a run that was killed and started again logged other numbers than an undisturbed one. "
        "Look for randomness that --seed doesn't decide (create_datasets, preprocess)"
    )


def test_two_workers_equal_two_replicas(two_replicas, tmp_path):
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    workers = []
    for index in (0, 1):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        env = {"TF_CONFIG": json.dumps(task)}
        workers.append(start(MAIN, *flags(tmp_path / "run"), env=env))
    for worker in workers:
        finish(worker)
    assert read_log(tmp_path / "run") == read_log(two_replicas), (
        "two workers logged other numbers than two replicas in one process. Look for data whose "
        "order differs from process to process (create_datasets), or randomness (preprocess)"
    )
