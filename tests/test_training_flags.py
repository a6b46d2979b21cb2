"""Flags beside the update: patience, continuous evaluation, profiles, XLA, and all pairs of flags.

    FLAGS_PAIRS=all python3 -m uv run pytest tests/test_training_flags.py -k pairs

tries all pairs of flags for each task, instead of all pairs of flags and two tasks.
"""

import itertools
import os
import random
import shutil
import time

import numpy as np
import pytest
from rendering import TASKS
from running import (
    FLAGS,
    assert_fails,
    assert_rejected,
    assert_same_run,
    drop_random_states,
    environment,
    finish,
    fork,
    join_numbers,
    kill,
    list_checkpoints,
    query,
    read_numbers,
    read_split,
    run_script,
    tf_config,
    train,
    wait_until,
)
from variants import RISING_LOSS, SMALL_DATA, SMALL_IMAGES, insert_layer, write_variant

LONG = pytest.mark.long
SHORT = ("--epochs", "2", "--steps-per-loop", "5")

# --------------------------------------------------------------------------------------------------
# Early stopping
# --------------------------------------------------------------------------------------------------

# A rate at which the validation loss soon rises.
PATIENT = ("--epochs", "30", "--learning-rate", "0.05", "--patience", "2")


def test_patience_stops_after_epochs_without_improvement(train_once):
    lines = read_split(train_once(*PATIENT), "validation")
    losses = [line["loss"] for line in lines]
    assert 3 <= len(losses) < 30
    assert int(np.argmin(losses)) == len(losses) - 3


def test_run_that_patience_stopped_continues_with_more(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, RISING_LOSS)
    flags = ("--global-batch-size", "16", "--epochs", "9", "--patience")
    train(script, *flags, "1")
    assert "resumed at step 16\n" in train(script, *flags, "2")


def test_patience_survives_resume(complete_script, train_once, tmp_path):
    expected = train_once(*PATIENT)
    validations = read_split(expected, "validation")
    epochs = len(validations)
    script = write_variant(complete_script, tmp_path)
    run_dir = tmp_path / "run"
    process = fork(script, *PATIENT)
    wait_until(lambda: len(read_split(run_dir, "validation")) >= epochs - 1, process)
    kill(process)
    output = train(script, *PATIENT)
    assert "resumed at step " in output
    assert f"stopped at step {validations[-1]['step']} by `end_epoch` or --patience" in output
    assert_same_run(run_dir, expected)
    assert "is finished" in train(script, *PATIENT)
    [line] = read_split(expected, "test")  # the best epoch, which isn't the last
    assert f"test loss {line['loss']:.4f} " in train(script, "--mode", "evaluate")


# --------------------------------------------------------------------------------------------------
# --export
# --------------------------------------------------------------------------------------------------


def find_tested_checkpoint(output):
    """Return the result and the checkpoint of an output's test line."""
    [line] = [line for line in output.splitlines() if line.startswith("test loss")]
    result, _, path = line.partition("  of run/checkpoints/")
    return result, path


EXPORTED = (*FLAGS[:2], "--epochs", "3", "--ema-momentum", "0.9")


@pytest.mark.long
def test_last_checkpoint_is_tested_and_exported(complete_script, tmp_path):
    # The first epoch is the best one.
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, RISING_LOSS)
    best_result, best_path = find_tested_checkpoint(train(script, *EXPORTED))
    # The run is finished, but not with this export.
    output = train(script, *EXPORTED, "--export", "last")
    last_result, last_path = find_tested_checkpoint(output)
    assert (best_path, last_path) == ("best/ckpt-8", "last/ckpt-24")
    assert best_result != last_result
    output = train(script, *EXPORTED, "--mode", "evaluate", "--export", "last")
    assert find_tested_checkpoint(output) == (last_result, last_path)
    assert_exported_ema(tmp_path / "run")


def assert_exported_ema(run_dir):
    """Assert that a run has exported the EMA of the weights in its last checkpoint."""
    contents = query("runs.read_contents", run_dir)
    weights = drop_random_states(contents["last"]["model"])
    averages = contents["last"]["optimizer"][2 : 2 + len(weights)]
    [exported] = contents["exports"]
    assert drop_random_states(exported) == averages != weights


# --------------------------------------------------------------------------------------------------
# Continuous evaluation
# --------------------------------------------------------------------------------------------------

CONTINUOUS = ("--mode", "continuous_evaluate")
EVALUATOR = {
    "flag": (CONTINUOUS, {}),
    "task": ((), tf_config({"worker": ["localhost:1", "localhost:2"]}, "evaluator", 0)),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", EVALUATOR)
def test_evaluator_follows_a_run(kind, complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    flags, variables = EVALUATOR[kind]
    # Saved only at the ends of epochs, whose validation the run's log has, too.
    run_flags = ("--epochs", "250", "--ema-momentum", "0.9", "--checkpoint-every-steps", "9999")
    evaluator = fork(script, *run_flags, *flags, env=environment(**variables))
    train(script, *run_flags)
    outcome = finish(evaluator, timeout=60)
    assert (outcome.code, outcome.errors) == (0, "")
    lines = read_numbers(tmp_path / "run" / "evaluator")
    assert len(lines) >= 2
    assert lines[-1]["step"] == 250 * 19
    expected = join_numbers(read_numbers(tmp_path / "run"))
    for key, value in join_numbers(lines).items():
        assert value == pytest.approx(expected[key], rel=1e-6), key


# Removes the newest checkpoint when it is about to be read, as the run does for newer ones.
REMOVED_MEANWHILE = """
@wraps_original
def read_checkpoint(original, path):
    for file in Path(path).parent.glob("ckpt-38.*"):
        file.unlink()
    return original(path)
"""


@pytest.mark.long
def test_evaluator_skips_a_checkpoint_that_is_removed_meanwhile(
    complete_script, train_once, tmp_path
):
    shutil.copytree(train_once(*SHORT), tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]))  # Without a test line, the run is under way.
    script = write_variant(complete_script, tmp_path, REMOVED_MEANWHILE)
    train(script, *CONTINUOUS, "--timeout", "3")
    steps = [line["step"] for line in read_numbers(tmp_path / "run" / "evaluator")]
    assert steps == [19]


def test_evaluator_waits_no_longer_than_timeout(complete_script, tmp_path):
    began = time.monotonic()
    script = write_variant(complete_script, tmp_path)
    output = train(script, *CONTINUOUS, "--timeout", "2")
    assert "no new checkpoint in run for 2 seconds" in output
    assert time.monotonic() - began < 60
    assert list(tmp_path.iterdir()) == [script]


# --------------------------------------------------------------------------------------------------
# Profiles and XLA
# --------------------------------------------------------------------------------------------------


def assert_has_profile(run_dir):
    [profile] = run_dir.glob("tensorboard/train/plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 10_000


def test_profile_changes_no_number(train_once):
    run_dir = train_once(*SHORT, "--profile", "18,23")  # the loops end at 19 and 23
    assert_has_profile(run_dir)
    assert read_numbers(run_dir) == read_numbers(train_once(*SHORT))


@pytest.mark.long
def test_profile_ends_with_the_run(train_once):
    assert_has_profile(train_once(*PATIENT, "--profile", "20,570"))  # Patience ends it earlier.


CALLS_PYTHON = """
@wraps_original
def compute_gradients(original, batch):
    tf.numpy_function(lambda: None, [], [])
    return original(batch)
"""


@pytest.mark.long
def test_model_that_xla_cannot_compile_is_rejected(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, CALLS_PYTHON)
    assert_fails(run_script(script, "--jit-compile"), 2, "--jit-compile", "PyFunc")
    assert list_checkpoints(tmp_path / "run") == []


@pytest.mark.long
@pytest.mark.parametrize(
    "flags",
    [
        "--accumulation-steps 2 --replicas 2",
        "--jit-compile --replicas 2",
        "--accumulation-steps 2",
    ],
)
def test_flags_that_hide_the_batch_from_normalization_are_rejected(
    flags, complete_script, tmp_path
):
    layer = insert_layer("keras.layers.BatchNormalization()", after="Flatten")
    script = write_variant(complete_script, tmp_path, layer)
    outcome = run_script(script, *FLAGS, *flags.split())
    flag = flags.split()[0]
    line = assert_fails(outcome, 2, "BatchNormalization", "'batch_normalization'")
    assert line.startswith(f"train.py: error: {flag}")
    assert not (tmp_path / "run").exists()


SUMS_OVER_REPLICAS = """
@wraps_original
def compute_loss(original, labels, predictions, sample_weight):
    context = tf.distribute.get_replica_context()
    mean = context.all_reduce("MEAN", tf.reduce_mean(predictions))
    return original(labels, predictions - mean, sample_weight)
"""


@pytest.mark.long
@pytest.mark.parametrize("flags", ["--accumulation-steps 2", "--jit-compile"])
def test_flags_that_forbid_sums_over_replicas_are_rejected(flags, complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SUMS_OVER_REPLICAS)
    outcome = run_script(script, *FLAGS, "--replicas", "2", *flags.split())
    assert_fails(outcome, 2, "sums over replicas", flags.split()[0])


# --------------------------------------------------------------------------------------------------
# A schedule of the hook's own
# --------------------------------------------------------------------------------------------------

OWN_SCHEDULE = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, _ = original(strategy)
    with strategy.scope():
        return model, Adam(keras.optimizers.schedules.ExponentialDecay(0.004, 19, 0.5))
"""


@pytest.mark.parametrize("flags", ["--schedule cosine", "--warmup-steps 5"])
def test_schedule_of_the_hook_is_not_replaced(flags, complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, OWN_SCHEDULE)
    outcome = run_script(script, *FLAGS, *flags.split())
    assert_rejected(outcome, flags, "the optimizer's own schedule", "--schedule constant")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_schedule_of_the_hook_is_not_replaced_by_that_of_the_example(render, tmp_path):
    """The text example has a schedule by default."""
    project = render(tmp_path, task="text_classification", script="essential")
    script = write_variant(project / "train.py", tmp_path, OWN_SCHEDULE)
    outcome = run_script(script)
    assert_rejected(outcome, "schedule linear of Config", "the optimizer's own schedule")


def test_schedule_of_the_hook_is_used(complete_script, tmp_path):
    train(write_variant(complete_script, tmp_path, OWN_SCHEDULE), *SHORT)
    rates = {line["step"]: line["learning_rate"] for line in read_split(tmp_path / "run", "train")}
    assert (rates[19], rates[38]) == pytest.approx((0.002, 0.001))


# --------------------------------------------------------------------------------------------------
# All pairs of flags
# --------------------------------------------------------------------------------------------------

# Not every pair is useful, but each runs to its end.
CHOICES = [
    ["", "--precision mixed_bfloat16", "--precision mixed_float16"],
    ["", "--jit-compile"],
    ["", "--accumulation-steps 2"],
    ["", "--clip-norm 1"],
    ["", "--ema-momentum 0.9"],
    ["--schedule constant", "--schedule cosine", "--schedule linear"],
    ["", "--warmup-steps 3"],
    ["", "--patience 1"],
    ["", "--recover-from-nan 1"],
    ["", "--deterministic"],
    ["", "--profile 2,3"],
    ["", "--init-checkpoint FIRST"],
    ["", "--replicas 2"],
    ["", "--checkpoint-every-steps 2"],
]


def list_pairs(row):
    """Return the pairs of choices in a row, each choice with its position."""
    return {frozenset(pair) for pair in itertools.combinations(enumerate(row), 2)}


def list_all_pairs(choices):
    """Return the pairs of choices that rows can have."""
    positions = itertools.combinations(range(len(choices)), 2)
    return {
        frozenset([(i, one), (j, other)])
        for i, j in positions
        for one, other in itertools.product(choices[i], choices[j])
    }


def cover_pairs(choices):
    """Return rows, of one choice each, that have every pair of choices."""
    draw = random.Random(0)
    missing = list_all_pairs(choices)
    rows = []
    while missing:
        drawn = [[draw.choice(options) for options in choices] for _ in range(500)]
        best = max(drawn, key=lambda row: len(missing & list_pairs(row)))
        missing -= list_pairs(best)
        rows.append(best)
    return rows


def list_rows():
    """Return rows of a task and flags. The text task takes long to compile."""
    if os.environ.get("FLAGS_PAIRS") == "all":
        return [[task, *row] for task in TASKS for row in cover_pairs(CHOICES)]
    tasks = [task for task in TASKS if task != "text_classification"]
    return cover_pairs([tasks, *CHOICES])


@pytest.mark.long
@pytest.mark.parametrize("row", list_rows(), ids=lambda row: " ".join(filter(None, row)))
def test_all_pairs_of_flags_train(row, projects, first_runs, tmp_path):
    task, *choices = row
    flags = " ".join(choices).replace("FIRST", str(first_runs[task])).split()
    script = write_variant(projects[task] / "train.py", tmp_path, SMALL_DATA[task])
    train(script, "--epochs", "2", "--steps-per-loop", "2", *flags)
    assert read_numbers(tmp_path / "run")[-1]["split"] == "test"
