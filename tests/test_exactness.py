"""One truth at any scale: what a run computes doesn't depend on what shares the work."""

import json
import os
import time

import numpy as np
import pytest
from conftest import (
    FLAGS,
    NO_DROPOUT,
    ask_child,
    edit,
    finish,
    flags_of,
    read_numbers,
    start_workers,
)


def assert_close(lines, expected, tolerance):
    """Assert that two logs have the same lines, their numbers equal to a relative tolerance."""
    assert len(lines) == len(expected) > 0
    for line, other in zip(lines, expected, strict=True):
        assert line == pytest.approx(other, rel=tolerance, abs=0)


def drop_texts(lines):
    """Return lines with the split as part of the keys: what is left are numbers."""
    return [
        {f"{line['split']} {key}": value for key, value in line.items() if key != "split"}
        for line in lines
    ]


# --------------------------------------------------------------------------------------------------
# Replicas
# --------------------------------------------------------------------------------------------------


def train_without_dropout(train_once, replicas):
    return train_once("--epochs", "8", *flags_of(replicas), edits=(NO_DROPOUT,))


@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_share_one_truth(replicas, train_once):
    runs = [train_without_dropout(train_once, count) for count in (1, replicas)]
    assert json.loads((runs[1] / "config.json").read_text())["replicas"] == replicas
    one, several = (drop_texts(read_numbers(run)) for run in runs)
    assert len(one) == 8 + 8 + 1  # An epoch has fewer steps than a loop.
    assert one[0]["train loss"] > 1.5 * one[-3]["train loss"]  # It learns, so it could diverge.
    assert_close(several, one, 1e-5)


# --------------------------------------------------------------------------------------------------
# Workers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tasks",
    [[("worker", 0), ("worker", 1)], [("chief", 0), ("worker", 0)]],
    ids=["workers", "chief-and-worker"],
)
def test_workers_equal_replicas_to_the_bit(tasks, script, train_once, tmp_path):
    workers = start_workers(edit(script, tmp_path), tasks, *FLAGS)
    scratch = tmp_path / "scratch"
    folders, written = set(), set()
    while workers[0].poll() is None:
        folders.update(scratch.glob("train-*"))
        for _, _, names in os.walk(scratch):  # unlike glob, it passes over what has just gone
            written.update(x for x in names if x.startswith(("metrics", "config", "ckpt-")))
        time.sleep(0.05)
    (_, chief_output, _), (_, worker_output, _) = ends = [finish(worker) for worker in workers]
    assert [(code, errors) for code, _, errors in ends] == [(0, ""), (0, "")]
    assert "multi_worker on 2 × CPU" in chief_output
    assert worker_output == ""

    # The chief's files are those of any run. Both had a folder for temporaries, of which nothing
    # is left, and the other worker wrote no files of a run into its own.
    expected = train_once(*FLAGS, "--replicas", "2")
    run = tmp_path / "run"
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "run", "scratch"}
    assert list_files(run) == list_files(expected)
    assert len(folders) == 2
    assert written == set()
    assert list(scratch.iterdir()) == []

    assert read_numbers(run) == read_numbers(expected)
    assert len(read_numbers(run)) == 4 * 6 + 4 + 1
    tensors, expected_tensors = ask_child("tensors", run, expected)
    assert tensors == expected_tensors
    names = ask_child("values", run / "checkpoints" / "last" / "ckpt-312")["names"]
    assert any("seed_generator_state" in name for name in names)


@pytest.mark.long
def test_four_workers_equal_four_replicas_to_the_bit(script, train_once, tmp_path):
    """The order in which sums are rounded counts from three on."""
    tasks = [("worker", index) for index in range(4)]
    ends = [finish(worker) for worker in start_workers(edit(script, tmp_path), tasks, *FLAGS)]
    assert [(code, errors) for code, _, errors in ends] == [(0, "")] * 4
    expected = train_once(*FLAGS, "--replicas", "4")
    assert read_numbers(tmp_path / "run") == read_numbers(expected)
    tensors, expected_tensors = ask_child("tensors", tmp_path / "run", expected)
    assert tensors == expected_tensors


# Takes the way of accelerators: a DistributedIterator, which copies ahead to each device.
LIKE_ACCELERATORS = (
    "    strategy, strategy_name, DEVICE = create_strategy()\n",
    '    strategy, strategy_name, DEVICE = *create_strategy()[:2], "GPU"\n',
)


@pytest.mark.parametrize("replicas", [1, 2])
def test_accelerators_get_the_same_batches(replicas, train_once):
    run = train_once(*FLAGS, *flags_of(replicas), edits=(LIKE_ACCELERATORS,))
    expected = train_once(*FLAGS, *flags_of(replicas))
    assert read_numbers(run) == read_numbers(expected)
    tensors, expected_tensors = ask_child("tensors", run, expected)
    assert tensors == expected_tensors


def list_files(run_dir):
    """Return the files of a run, without the time and process in the names of TensorBoard's."""
    return sorted(
        str(path.relative_to(run_dir)).partition(".tfevents.")[0] for path in run_dir.rglob("*")
    )


# --------------------------------------------------------------------------------------------------
# Evaluation
# --------------------------------------------------------------------------------------------------

SPLITS = "    return [tf.data.Dataset.from_tensor_slices((images[i], labels[i])) for i in splits]\n"


def split_sizes(*sizes):
    """Return an edit: data sets of these sizes."""
    old, new = " for i in splits]", f".take(n) for i, n in zip(splits, {sizes})]"
    return SPLITS, SPLITS.replace(old, new)


WEIGHTED = (
    "    return tf.cast(images, tf.float32), labels\n",
    "    # From 0 to 4.5: some examples don't count at all.\n"
    "    return tf.cast(images, tf.float32), labels, tf.cast(labels, tf.float32) / 2\n",
)

# Batch size, replicas, edits. 270 examples are evaluated in batches that 4 replicas share: 1000 has
# one replica with real examples only, one with some and two with none. With 3 and 65 examples of
# 64 a batch, three have none.
EVALUATED = {
    "7-by-1": (7, 1, ()),
    "1000-by-4": (1000, 4, ()),
    "sizes-by-1": (64, 1, (split_sizes(200, 3, 65),)),
    "sizes-by-4": (64, 4, (split_sizes(200, 65, 3),)),
    "weighted-by-1": (64, 1, (NO_DROPOUT, WEIGHTED)),
    "weighted-by-2": (64, 2, (NO_DROPOUT, WEIGHTED)),
}


@pytest.fixture
def evaluated(train_once):
    """Return a function that trains one of EVALUATED, or with eight epochs and without dropout."""

    def train_by_name(name):
        if name not in EVALUATED:
            return train_without_dropout(train_once, int(name[-1]))
        batch_size, replicas, edits = EVALUATED[name]
        flags = ("--epochs", "1", "--global-batch-size", str(batch_size), *flags_of(replicas))
        return train_once(*flags, edits=edits)

    return train_by_name


@pytest.mark.parametrize("name", ["64-by-1", "64-by-2", "64-by-4", *EVALUATED])
def test_evaluation_counts_every_example_once(name, evaluated):
    run = evaluated(name)
    [exports] = ask_child("evaluations", run)  # by NumPy
    sizes = {"sizes-by-1": [3, 65], "sizes-by-4": [65, 3]}.get(name, [270, 270])
    assert [exports["SavedModel"][x]["examples"] for x in ("validation", "test")] == sizes
    lines = read_numbers(run)
    logged = {
        # The export is of the epoch with the lowest loss.
        "validation": min(
            (line for line in lines if line["split"] == "validation"), key=lambda x: x["loss"]
        ),
        "test": lines[-1],
    }
    assert lines[-1]["split"] == "test"
    for export, splits in exports.items():
        for split, expected in splits.items():
            for key in ("loss", "accuracy"):
                value = pytest.approx(expected[key], rel=1e-6, abs=1e-6)
                assert logged[split][key] == value, f"{split} {key} of {export}"


def test_sample_weights_hold_for_any_replicas(evaluated):
    one, two = (drop_texts(read_numbers(evaluated(f"weighted-by-{n}"))) for n in (1, 2))
    assert_close(two, one, 1e-5)
    unweighted = drop_texts(read_numbers(evaluated("64-by-1")))
    # The weights' mean is 2.25, but a loss is the mean by weight, in training as in evaluation.
    assert one[0]["train loss"] != pytest.approx(unweighted[0]["train loss"], rel=1e-3)
    assert one[0]["train loss"] == pytest.approx(unweighted[0]["train loss"], rel=0.3)


# --------------------------------------------------------------------------------------------------
# Regularization losses
# --------------------------------------------------------------------------------------------------

REGULARIZED = ('Dense(10, dtype="float32"),  #', 'Dense(10, kernel_regularizer="l2"),  #')


def test_regularization_counts_once_for_any_replicas(train_once):
    edits = (NO_DROPOUT, REGULARIZED)
    runs = [train_once("--epochs", "2", *flags_of(count), edits=edits) for count in (1, 2)]
    one, two = (drop_texts(read_numbers(run)) for run in runs)
    assert_close(two, one, 1e-5)
    # 0.01 times the sum of squares of 5120 weights of variance 2 / (512 + 10): 0.196.
    plain = drop_texts(read_numbers(train_without_dropout(train_once, 1)))
    assert one[0]["train loss"] - plain[0]["train loss"] == pytest.approx(0.2, abs=0.1)


# --------------------------------------------------------------------------------------------------
# Loops
# --------------------------------------------------------------------------------------------------


def test_steps_per_loop_changes_no_bit(train_once):
    without = FLAGS[: FLAGS.index("--checkpoint-every-steps")]
    runs = [train_once(*FLAGS, "--steps-per-loop", count) for count in ("1", "7", "50")]
    runs.append(train_once(*without))  # 100 steps a loop, and a checkpoint an epoch
    trained = [[x for x in read_numbers(run) if x["split"] == "train"] for run in runs]
    # No loop goes over a checkpoint: those of 50 steps have 13.
    assert [len(lines) for lines in trained] == [4 * loops for loops in (78, 12, 6, 1)]
    evaluated = [[x for x in read_numbers(run) if x["split"] != "train"] for run in runs]
    assert len(evaluated[0]) == 4 + 1
    tensors = ask_child("tensors", *runs)
    for other in range(1, 4):
        assert evaluated[other] == evaluated[0]
        assert tensors[other] == tensors[0]
        # A line is the mean over its loop, and the loops of an epoch are of nearly equal length.
        ends = [0, *(line["step"] for line in trained[other])]
        lengths = np.diff(ends)
        assert max(lengths) - min(lengths) <= 1
        for begin, end, line in zip(ends, ends[1:], trained[other], strict=False):
            steps = trained[0][begin:end]
            assert [x["step"] for x in steps] == list(range(begin + 1, end + 1))
            for name in ("loss", "accuracy"):
                mean = np.mean([x[name] for x in steps])
                assert line[name] == pytest.approx(mean, rel=1e-6, abs=1e-7), (end, name)


# --------------------------------------------------------------------------------------------------
# Order of the data
# --------------------------------------------------------------------------------------------------

EXAMPLES, BATCH_SIZE, STEPS = 203, 20, 10  # as in child.py


@pytest.fixture(scope="module")
def batches(script):
    """Return the batches that 1, 2 and 4 replicas see."""
    return {count: ask_child("batches", script, count) for count in (1, 2, 4)}


def test_replicas_see_the_same_batches(batches):
    assert batches[1]["steps an evaluation"] == STEPS + 1
    assert len(batches[1]["seed 0"]) == 32
    assert all(len(numbers) == BATCH_SIZE for numbers, _ in batches[1]["seed 0"])
    assert batches[2] == batches[1]
    assert batches[4] == batches[1]


def test_order_is_a_function_of_the_position(batches):
    assert batches[1]["seed 0 from 7"] == batches[1]["seed 0"][7:15]
    assert batches[1]["seed 0 from 23"] == batches[1]["seed 0"][23:32]


def test_an_epoch_has_an_example_at_most_once(batches):
    epochs = []
    for epoch in range(3):
        steps = batches[1]["seed 0"][epoch * STEPS : (epoch + 1) * STEPS]
        epochs.append([number for numbers, _ in steps for number in numbers])
        assert len(set(epochs[-1])) == STEPS * BATCH_SIZE
        assert set(epochs[-1]) <= set(range(EXAMPLES))
    # Each is a shuffle of its own: few examples come at the place of another epoch or of the file.
    for order, other in [
        (epochs[0], epochs[1]),
        (epochs[0], epochs[2]),
        (epochs[1], epochs[2]),
        (epochs[0], range(EXAMPLES)),
    ]:
        assert sum(a == b for a, b in zip(order, other, strict=False)) < 10


def test_seeds_are_one_for_each_example(batches):
    seeds = [tuple(seed) for _, seeds in batches[1]["seed 0"] for seed in seeds]
    others = [tuple(seed) for _, seeds in batches[1]["seed 1"] for seed in seeds]
    assert len(set(seeds) | set(others)) == 2 * 32 * BATCH_SIZE


def test_another_seed_is_another_order(batches):
    numbers, others = ([batch[0] for batch in batches[1][f"seed {n}"]] for n in (0, 1))
    numbers, others = sum(numbers, []), sum(others, [])
    same = sum(a == b for a, b in zip(numbers, others, strict=True))
    assert same < 32


def test_evaluation_reads_the_split_in_order(batches):
    numbers, weights = zip(*batches[4]["evaluation"], strict=True)
    numbers, weights = sum(numbers, []), sum(weights, [])
    assert len(numbers) == 2 * 11 * BATCH_SIZE
    counted = [number for number, weight in zip(numbers, weights, strict=True) if weight]
    assert counted == 2 * list(range(EXAMPLES))
    assert set(weights) == {0.0, 1.0}


def test_evaluation_draws_the_same_numbers_each_time(batches):
    # After a restart it would have others than in the run that went on.
    seeds = batches[1]["seeds of evaluation"]
    assert seeds[: len(seeds) // 2] == seeds[len(seeds) // 2 :]
    assert batches[4]["seeds of evaluation"] == seeds
