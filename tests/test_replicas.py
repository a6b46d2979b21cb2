"""Results don't depend on the number of replicas, workers or steps per loop.

Replicas agree up to float rounding; N workers and N replicas in one process are bit-identical.
"""

import itertools
import json
import os
import time

import numpy as np
import pytest
from running import (
    FLAGS,
    FLAGS_TOGETHER,
    WORKERS,
    assert_close,
    assert_same_checkpoints,
    assert_succeeded,
    finish,
    finish_all,
    flags_of,
    query,
    read_numbers,
    read_split,
    start_workers,
)
from variants import insert_layer, replace_image_model, write_variant

LONG = pytest.mark.long
SHORT = ("--epochs", "2", "--steps-per-loop", "5")
NORMALIZED = insert_layer("keras.layers.BatchNormalization()", after="Flatten")
NESTED = insert_layer(
    "keras.Sequential("
    "[keras.layers.Dense(512, use_bias=False), keras.layers.BatchNormalization()])",
    after="Flatten",
)
ACTIVITY_REGULARIZED = replace_image_model(
    "keras.layers.Rescaling(1 / 16)",
    "keras.layers.Flatten()",
    "keras.layers.BatchNormalization()",
    'keras.layers.Dense(16, use_bias=False, activity_regularizer="l2")',
    "keras.layers.BatchNormalization()",
    "keras.layers.Dense(10)",
)

# The loss is linear in the weights of the last layer, so their gradients don't need these weights.
# Nothing but the order of the operations makes a step read them before it updates them.
LINEAR_LOSS = """
def compute_losses(labels, predictions):
    return predictions[:, 0] * tf.cast(2 * (labels % 2) - 1, tf.float32)


def train_step(batch):
    for _ in range(3):
        loss, gradients = compute_gradients(batch)
        update(optimizer, gradients, model.trainable_variables)
    return loss * config.global_batch_size, tf.reduce_sum(batch[-1])
"""

# The relative tolerance to which flags leave replicas equal.
TOLERANCES = {"float32": 1e-5, "compiled": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}

# --------------------------------------------------------------------------------------------------
# Replicas
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "replicas",
    [
        2,
        pytest.param(4, marks=LONG),
        pytest.param(8, marks=LONG),
    ],
)
def test_replicas_agree_with_dropout(replicas, train_once):
    flags = ("--epochs", "8")
    one = train_once(*flags)
    several = train_once(*flags, *flags_of(replicas))
    assert json.loads((several / "config.json").read_text())["replicas"] == replicas
    lines = read_numbers(one)
    assert len(lines) == 8 + 8 + 1  # An epoch has fewer steps than a loop.
    assert lines[0]["loss"] > 1.5 * lines[-3]["loss"]  # Replicas that differ would diverge.
    assert_close(read_numbers(several), lines, rel=1e-5)


def test_step_reads_weights_before_it_updates_them(train_once):
    flags = ("--epochs", "2", "--steps-per-loop", "1")
    one = train_once(*flags, code=(LINEAR_LOSS,))
    two = train_once(*flags, *flags_of(2), code=(LINEAR_LOSS,))
    assert_close(read_numbers(two), read_numbers(one), rel=1e-5, flips=1)


@pytest.mark.long
@pytest.mark.parametrize("name", FLAGS_TOGETHER)
def test_replicas_agree_with_flags(name, train_once):
    tolerance = TOLERANCES[name]
    flags = (*SHORT, *FLAGS_TOGETHER[name].split())
    one, two, four = (
        read_numbers(train_once(*flags, *flags_of(replicas))) for replicas in (1, 2, 4)
    )
    flips = 2 if tolerance > 1e-5 else 0
    assert_close(two, one, rel=tolerance, flips=flips)
    assert_close(four, one, rel=tolerance, flips=flips)


@pytest.mark.long
@pytest.mark.parametrize("name", FLAGS_TOGETHER)
def test_two_workers_with_flags_are_bit_identical_to_two_replicas(
    name, complete_script, train_once, tmp_path
):
    flags = (*SHORT, *FLAGS_TOGETHER[name].split())
    workers = start_workers(write_variant(complete_script, tmp_path), WORKERS, *flags)
    assert_succeeded(finish_all(workers))
    expected = train_once(*flags, *flags_of(2))
    assert read_numbers(tmp_path / "run") == read_numbers(expected)
    assert_same_checkpoints(tmp_path / "run", expected)


# Layers that draw for each example. Their results are continuous, so rounding changes them little.
RANDOM_LAYERS = replace_image_model(
    "keras.layers.Rescaling(1 / 16)",
    "keras.layers.RandomFlip()",
    "keras.layers.RandomTranslation(0.2, 0.2)",
    "keras.layers.GaussianNoise(0.1)",
    'keras.layers.Conv2D(16, 3, activation="silu")',
    "keras.layers.SpatialDropout2D(0.2)",
    "keras.layers.GaussianDropout(0.2)",
    "keras.layers.Flatten()",
    'keras.layers.Dense(16, activation="silu")',
    "keras.layers.AlphaDropout(0.1)",
    "keras.layers.Dense(10)",
)


@pytest.mark.long
def test_parts_replicas_and_workers_agree_with_random_layers(complete_script, train_once, tmp_path):
    code = (RANDOM_LAYERS,)
    one = read_numbers(train_once(*SHORT, code=code))
    assert_close(
        read_numbers(train_once(*SHORT, "--accumulation-steps", "2", code=code)),
        one,
        rel=1e-4,
        flips=1,
    )
    two = train_once(*SHORT, *flags_of(2), code=code)
    assert_close(read_numbers(two), one, rel=1e-4, flips=1)
    workers = start_workers(write_variant(complete_script, tmp_path, *code), WORKERS, *SHORT)
    assert_succeeded(finish_all(workers))
    assert read_numbers(tmp_path / "run") == read_numbers(two)
    assert_same_checkpoints(tmp_path / "run", two)


@pytest.mark.long
@pytest.mark.parametrize("layers", [NORMALIZED, NESTED], ids=["flat", "nested"])
def test_any_batch_normalization_sees_the_global_batch(layers, train_once):
    flags = ("--epochs", "2")
    one = train_once(*flags, code=(layers,))
    two = train_once(*flags, *flags_of(2), code=(layers,))
    assert_close(read_numbers(two), read_numbers(one), rel=1e-4, flips=1)
    line = "BatchNormalization layers synchronized over replicas: 1\n"
    assert line not in (one.parent / "output").read_text()
    assert line in (two.parent / "output").read_text()


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=LONG)])
def test_losses_of_layers_are_those_of_the_replica(replicas, train_once):
    """The threads of the replicas take turns within the model, at each BatchNormalization."""
    flags = ("--epochs", "2")
    one = train_once(*flags, code=(ACTIVITY_REGULARIZED,))
    several = train_once(*flags, *flags_of(replicas), code=(ACTIVITY_REGULARIZED,))
    assert_close(read_numbers(several), read_numbers(one), rel=1e-4, flips=1)


@pytest.mark.long
def test_frozen_batch_normalization_allows_all_flags(train_once):
    words = "--epochs 1 --accumulation-steps 2 --jit-compile --replicas 2"
    frozen = insert_layer("keras.layers.BatchNormalization(trainable=False)", after="Flatten")
    run_dir = train_once(*words.split(), code=(frozen,))
    assert "synchronized" not in (run_dir.parent / "output").read_text()


# --------------------------------------------------------------------------------------------------
# Workers
# --------------------------------------------------------------------------------------------------


def watch_scratch(scratch, process):
    """Return the temporary folders that workers create, and the run's files that appear there."""
    folders = set()
    written = set()
    while process.poll() is None:
        folders.update(scratch.glob("train-*"))
        # Unlike glob, os.walk tolerates folders that are removed meanwhile.
        for _, _, names in os.walk(scratch):
            written.update(x for x in names if x.startswith(("metrics", "config", "ckpt-")))
        time.sleep(0.05)
    return folders, written


def list_files(run_dir):
    """Return the files of a run, without the time and process in TensorBoard's names."""
    paths = [str(path.relative_to(run_dir)) for path in run_dir.rglob("*")]
    return sorted(path.partition(".tfevents.")[0] for path in paths)


@pytest.mark.parametrize(
    "tasks",
    [WORKERS, pytest.param((("chief", 0), ("worker", 0)), marks=LONG)],
    ids=["workers", "chief-and-worker"],
)
def test_two_workers_are_bit_identical_to_two_replicas(
    tasks, complete_script, train_once, tmp_path
):
    workers = start_workers(write_variant(complete_script, tmp_path), tasks, *FLAGS)
    scratch = tmp_path / "scratch"
    folders, written = watch_scratch(scratch, workers[0])
    chief, worker = outcomes = [finish(process) for process in workers]
    assert_succeeded(outcomes)
    assert "multi_worker on 2 × CPU" in chief.output
    assert worker.output == ""

    # The other worker writes no files of the run, and both remove their temporary folders.
    expected = train_once(*FLAGS, "--replicas", "2")
    assert list_files(tmp_path / "run") == list_files(expected)
    assert (len(folders), written, list(scratch.iterdir())) == (
        2,
        set(),
        [],
    )
    assert read_numbers(tmp_path / "run") == read_numbers(expected)
    assert_same_checkpoints(tmp_path / "run", expected)


@pytest.mark.long
def test_four_workers_are_bit_identical_to_four_replicas(complete_script, train_once, tmp_path):
    """From three on, the order in which sums are rounded matters."""
    tasks = [("worker", index) for index in range(4)]
    workers = start_workers(write_variant(complete_script, tmp_path), tasks, *FLAGS)
    assert_succeeded(finish_all(workers))
    expected = train_once(*FLAGS, "--replicas", "4")
    assert read_numbers(tmp_path / "run") == read_numbers(expected)
    assert_same_checkpoints(tmp_path / "run", expected)


# A hook creates a tensor once, so all replicas of a process share it.
SHARED_TENSORS = """
def create_loss_objects(strategy):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return {"loss": loss, "scale": tf.constant(0.7)}


def compute_losses(labels, predictions):
    return loss_object["loss"](labels, loss_object["scale"] * predictions / 3.3)
"""


# TensorFlow fuses a convolution and its bias, if both have the same control edges. A convolution
# that reads its batch from another logical device has one more.
FIRST_CONVOLUTION = replace_image_model(
    'keras.layers.Conv2D(16, 3, padding="same", activation="relu")',
    'keras.layers.Conv2D(1, 3, padding="same")',
    "keras.layers.Flatten()",
    "keras.layers.Dense(10)",
)
FIRST_CONVOLUTION += """

def preprocess(batch, seeds, training):
    images, labels = batch
    return tf.cast(images, tf.float32) / 16, labels
"""
# As a discriminator of a CycleGAN, whose real images are the labels.
CONVOLUTION_OF_LABELS = (
    FIRST_CONVOLUTION
    + """

def preprocess(batch, seeds, training):
    images, labels = batch
    return labels, tf.cast(images, tf.float32) / 16

@wraps_original
def compute_gradients(original, batch):
    labels, images, sample_weight = batch
    return original((images, labels, sample_weight))

@wraps_original
def evaluation_step(original, batch, metrics):
    labels, images, sample_weight = batch
    return original((images, labels, sample_weight), metrics)

def create_serving_function(models, example):
    return tf.function(models[0], [tf.TensorSpec([None, 8, 8, 1])])
"""
)
WITH_DIFFERENT_GRAPHS = {
    "shared tensors": SHARED_TENSORS,
    "first convolution": FIRST_CONVOLUTION,
    "convolution of labels": CONVOLUTION_OF_LABELS,
}


@pytest.mark.parametrize(
    "size",
    ["essential", pytest.param("complete", marks=LONG)],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param("shared tensors", marks=LONG), "first convolution", "convolution of labels"],
)
def test_two_workers_compute_as_two_replicas_do(name, size, scripts, train_once, tmp_path):
    code = WITH_DIFFERENT_GRAPHS[name]
    script = write_variant(scripts[size], tmp_path, code)
    workers = start_workers(script, WORKERS, *FLAGS)
    assert_succeeded(finish_all(workers))
    expected = train_once(*FLAGS, "--replicas", "2", code=(code,))
    assert_same_checkpoints(tmp_path / "run", expected)


# Uses the input of accelerators: a DistributedIterator, which copies ahead to each device.
ACCELERATOR_INPUT = """
@wraps_original
def create_strategy(original):
    strategy = original()
    config.device_kind = "GPU"
    return strategy
"""


@pytest.mark.long
def test_input_of_accelerators_gives_the_same_batches(train_once):
    flags = (*FLAGS, "--replicas", "2")
    run_dir = train_once(*flags, code=(ACCELERATOR_INPUT,))
    expected = train_once(*flags)
    assert read_numbers(run_dir) == read_numbers(expected)
    assert_same_checkpoints(run_dir, expected)


# --------------------------------------------------------------------------------------------------
# Loops
# --------------------------------------------------------------------------------------------------

EVERY_STEP = (*FLAGS, "--steps-per-loop", "1")


def assert_lines_are_means(loops, steps):
    """Assert that each line of a log is the mean of the lines of single steps in its loop."""
    values = {line["step"]: line for line in steps}
    ends = [0, *(line["step"] for line in loops)]
    for (first, last), line in zip(itertools.pairwise(ends), loops, strict=True):
        for name in ("loss", "accuracy"):
            steps_of_loop = range(first + 1, last + 1)
            mean = np.mean([values[step][name] for step in steps_of_loop])
            assert line[name] == pytest.approx(mean, rel=1e-5, abs=1e-7), (last, name)


@pytest.mark.parametrize(
    ("flags", "loops"),
    [
        ((*FLAGS, "--steps-per-loop", "7"), 12),
        # A loop doesn't go past a checkpoint: one of up to 50 steps has 13.
        ((*FLAGS, "--steps-per-loop", "50"), 6),
        # 100 steps per loop, and a checkpoint per epoch.
        (FLAGS[:4], 1),
    ],
    ids=["7", "50", "100"],
)
def test_steps_per_loop_change_no_bit(flags, loops, train_once):
    expected = train_once(*EVERY_STEP)
    run_dir = train_once(*flags)
    lines = read_split(run_dir, "train")
    assert len(lines) == 4 * loops
    lengths = np.diff([0, *(line["step"] for line in lines)])
    assert max(lengths) - min(lengths) <= 1
    assert_lines_are_means(lines, read_split(expected, "train"))
    for split in ("validation", "test"):
        assert read_split(run_dir, split) == read_split(expected, split)
    assert_same_checkpoints(run_dir, expected)


def test_run_of_single_steps_logs_each_step(train_once):
    lines = read_split(train_once(*EVERY_STEP), "train")
    assert [line["step"] for line in lines] == list(range(1, 4 * 78 + 1))


# --------------------------------------------------------------------------------------------------
# Random numbers
# --------------------------------------------------------------------------------------------------


def test_checkpoint_has_the_random_state_of_dropout(train_once):
    run_dir = train_once(*FLAGS, "--replicas", "2")
    content = query("runs.read_contents", run_dir)["last"]
    assert any("seed_generator_state" in name for name in content["names"][0])
