"""Each flag does what it says by a plain reference, on any replicas, and over a restart."""

import itertools
import json
import math
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
from conftest import (
    FEW_OF,
    NO_DROPOUT,
    TASKS,
    ask_child,
    assert_same_run,
    edit,
    environment,
    finish,
    flags_of,
    fork,
    read_numbers,
    train,
)

# Two epochs of 19 steps, a line of the log each 4 or 5.
SHORT = ("--epochs", "2", "--steps-per-loop", "5")

# By name: flags, and how equal they leave replicas. Each flag is in one of them.
TOGETHER = {
    "float32": ("--accumulation-steps 4 --clip-norm 0.3 --ema-momentum 0.9", 1e-5),
    "compiled": ("--jit-compile --schedule cosine --warmup-steps 7", 1e-5),
    "bfloat16": ("--precision mixed_bfloat16 --schedule linear", 1e-2),
    "float16": ("--precision mixed_float16 --clip-norm 0.3 --accumulation-steps 2", 1e-2),
}


def join(lines):
    """Return the numbers of a log, by split, step and name."""
    return {
        (line["split"], line["step"], name): value
        for line in lines
        for name, value in line.items()
        if name not in ("split", "step")
    }


@pytest.mark.parametrize("name", TOGETHER)
def test_replicas_agree(name, train_once):
    flags, tolerance = TOGETHER[name]
    runs = [
        train_once(*SHORT, *flags.split(), *flags_of(replicas), edits=(NO_DROPOUT,))
        for replicas in (1, 2, 4)
    ]
    one, *others = (join(read_numbers(run)) for run in runs)
    # Rounding may turn a prediction or two of 270 around.
    off = {"accuracy": 2 / 270} if tolerance > 1e-5 else {}
    for other in others:
        assert other.keys() == one.keys()
        for key, value in one.items():
            assert other[key] == pytest.approx(value, rel=tolerance, abs=off.get(key[2], 0)), key


@pytest.mark.parametrize("name", TOGETHER)
def test_resume_is_exact(name, script, train_once, tmp_path):
    flags = (*SHORT, *TOGETHER[name][0].split(), "--checkpoint-every-steps", "4")
    process = fork(edit(script, tmp_path), *flags)
    checkpoints = tmp_path / "run" / "checkpoints" / "last"
    while len(list(checkpoints.glob("ckpt-*.index"))) < 2:  # the second may be cut short
        assert process.poll() is None, finish(process)
        time.sleep(0.002)
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    assert "resumed at step" in train(edit(script, tmp_path), *flags)
    assert_same_run(tmp_path / "run", train_once(*flags))


# --------------------------------------------------------------------------------------------------
# Plain references
# --------------------------------------------------------------------------------------------------


def test_accumulation_equals_the_whole_batch(train_once):
    # With a regularization loss, which counts once however many parts there are.
    edits = (
        NO_DROPOUT,
        ('Dense(64, activation="silu"', 'Dense(64, "silu", kernel_regularizer="l2"'),
    )
    whole = train_once(*SHORT, edits=edits)
    parts = train_once(*SHORT, "--accumulation-steps", "4", "--replicas", "2", edits=edits)
    one, other = join(read_numbers(whole)), join(read_numbers(parts))
    assert other == pytest.approx(one, rel=1e-5, abs=0)
    assert one["train", 19, "loss"] > one["validation", 19, "loss"] + 0.5  # It is regularized.


# Two steps an epoch, of plain gradient descent: from the weights, one can tell the gradients.
TWO_STEPS = (
    NO_DROPOUT,
    ("[1257, 1527]", "[128, 1527]"),
    ("Adam(LEARNING_RATE)", "keras.optimizers.SGD(LEARNING_RATE)"),
)
EACH_STEP = ("--epochs", "1", "--checkpoint-every-steps", "1", "--learning-rate")


def read_weights(run_dir, step, which="last", averages=False):
    """Return the weights in a checkpoint, or their averages, by path."""
    values = ask_child("values", run_dir / "checkpoints" / which / f"ckpt-{step}")
    names = [name for name in values["names"] if name.endswith(("/kernel", "/bias"))]
    assert len(names) == len(values["model"]) == 6  # Without dropout, it has no other variables.
    weights = values["model"]
    if averages:  # Of an optimizer: its steps, its learning rate, and these.
        weights = values["optimizer"][2:]
        assert len(weights) == 6
    return {name: np.array(x) for name, x in zip(names, weights, strict=True)}


def read_first_weights(train_once, *flags):
    """Return the weights that a run begins with: at this rate, no step changes them."""
    return read_weights(train_once(*EACH_STEP, "1e-30", *flags, edits=TWO_STEPS), 1)


@pytest.mark.parametrize("replicas", [1, 4])
def test_clipping_is_that_of_numpy(replicas, train_once):
    free = train_once(*EACH_STEP, "0.1", edits=TWO_STEPS)
    flags = (*EACH_STEP, "0.1", "--clip-norm", "0.1", *flags_of(replicas))
    clipped = train_once(*flags, edits=TWO_STEPS)
    before, after = read_first_weights(train_once), read_weights(free, 1)
    gradients = {path: (before[path] - after[path]) / 0.1 for path in before}
    norm = math.sqrt(sum(np.sum(gradient**2) for gradient in gradients.values()))
    assert norm > 0.12  # so there is something to clip
    for path, weight in read_weights(clipped, 1).items():
        expected = before[path] - 0.1 * gradients[path] * 0.1 / norm
        assert weight == pytest.approx(expected, rel=1e-4, abs=1e-6), path
    assert read_numbers(clipped)[0]["gradient_norm"] == pytest.approx(norm, rel=1e-4)


def test_averages_follow_their_formula(train_once):
    flags = (*EACH_STEP, "0.1", "--ema-momentum", "0.75", "--replicas", "2")
    run = train_once(*flags, edits=TWO_STEPS)
    weights = [read_weights(run, step) for step in (1, 2)]
    averages = read_weights(run, 2, averages=True)
    best = read_weights(run, 2, which="best")
    raw = read_weights(train_once(*EACH_STEP, "0.1", "--replicas", "2", edits=TWO_STEPS), 2)
    for path, average in averages.items():
        expected = (
            0.75 * weights[0][path] + 0.25 * weights[1][path]
        )  # The first is its own average.
        assert average == pytest.approx(expected, rel=1e-5, abs=1e-7), path
        assert (best[path] == average).all()
        assert (weights[1][path] == raw[path]).all()  # Training goes on with the raw ones.
        assert (average != raw[path]).any()


def test_averages_are_evaluated_and_exported(train_once):
    run = train_once(*SHORT, "--ema-momentum", "0.9", edits=(NO_DROPOUT,))
    raw = train_once(*SHORT, edits=(NO_DROPOUT,))
    lines, raw_lines = join(read_numbers(run)), join(read_numbers(raw))
    for (split, step, name), value in lines.items():
        assert (value == raw_lines[split, step, name]) == (split == "train" or name == "epoch")
    [exports] = ask_child("evaluations", run)
    for name in ("model.keras", "SavedModel"):
        assert exports[name]["test"]["loss"] == pytest.approx(lines["test", 38, "loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("schedule", "warmup"), [("constant", 10), ("linear", 10), ("cosine", 0), ("cosine", 10)]
)
def test_schedules_follow_their_formulas(schedule, warmup, train_once):
    flags = ("--epochs", "2", "--steps-per-loop", "1", "--learning-rate", "0.004")
    run = train_once(*flags, "--schedule", schedule, "--warmup-steps", warmup)
    rates = [line["learning_rate"] for line in read_numbers(run) if line["split"] == "train"]
    steps = np.arange(1, 39)
    progress = np.clip((steps - warmup) / (38 - warmup), 0, 1)
    shares = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + np.cos(np.pi * progress)) / 2}
    rising = steps / max(1, warmup)
    expected = 0.004 * np.where(steps < warmup, rising, shares[schedule])
    assert rates == pytest.approx(expected, rel=1e-5, abs=1e-9)


SCALE = "        scaled_loss = optimizer.scale_loss(loss)"
# In the fourth step, the loss of the last replica overflows: the counter is of the steps since the
# scale changed.
OVERFLOW = """        context = tf.distribute.get_replica_context()
        last = context.replica_id_in_sync_group == context.num_replicas_in_sync - 1
        fourth = (optimizer.step_counter == 3) & (optimizer.dynamic_scale == 2.0**15)
        scaled_loss = optimizer.scale_loss(loss)
        scaled_loss *= tf.where(last & fourth, math.inf, 1.0)"""


def test_overflow_is_skipped_on_all_replicas(train_once):
    scales, losses = [], []
    for replicas in (1, 2, 4):
        run = train_once(
            *("--epochs", "1", "--steps-per-loop", "1", "--precision", "mixed_float16"),
            *flags_of(replicas),
            edits=(NO_DROPOUT, (SCALE, OVERFLOW)),
        )
        values = ask_child("values", run / "checkpoints" / "last" / "ckpt-19")
        # Of LossScaleOptimizer, after two of no use: the steps since a change, and the scale.
        scales.append(values["optimizer"][2:4])
        losses.append([line["loss"] for line in read_numbers(run)])
    for each, other_losses in zip(scales, losses, strict=True):
        assert each == [19 - 4, 2**15 / 2]  # Halved once, in the step that was left out.
        assert other_losses == pytest.approx(losses[0], rel=1e-2)


# --------------------------------------------------------------------------------------------------
# Patience
# --------------------------------------------------------------------------------------------------

# A rate at which the validation loss soon rises.
PATIENT = ("--epochs", "30", "--learning-rate", "0.05", "--patience", "2")


def test_patience_ends_a_run_and_survives_resume(script, train_once, tmp_path):
    run = train_once(*PATIENT)
    losses = [line["loss"] for line in read_numbers(run) if line["split"] == "validation"]
    assert 3 <= len(losses) < 30
    assert int(np.argmin(losses)) == len(losses) - 3

    script = edit(script, tmp_path)
    process = fork(script, *PATIENT)
    log = tmp_path / "run" / "metrics.jsonl"
    while not log.exists() or log.read_text().count('"validation"') < len(losses) - 1:
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    finish(process)
    output = train(script, *PATIENT)
    assert f"no lower validation loss than epoch {len(losses) - 2}'s" in output
    assert_same_run(tmp_path / "run", run)
    assert "is finished" in train(script, *PATIENT)
    tested = read_numbers(run)[-1]["loss"]  # of the best epoch, which isn't the last
    assert f"test loss {tested:.4f} " in train(script, "--mode", "evaluate")


# --------------------------------------------------------------------------------------------------
# First weights
# --------------------------------------------------------------------------------------------------


SOURCES = ["run", "run/checkpoints/last/ckpt-38", "run/export/model.keras", "run/export"]


@pytest.mark.parametrize("source", SOURCES)
def test_first_weights_come_from_a_checkpoint(source, script, train_once, tmp_path):
    path = train_once(*SHORT).parent / source
    output = train(edit(script, tmp_path), *SHORT, "--init-checkpoint", path)
    assert f"{path}: loaded 6 of 6 weights\n" in output
    assert output.count("  loaded: sequential/") == 6
    first = read_numbers(tmp_path / "run")[0]
    assert first["loss"] < 0.7 * read_numbers(train_once(*SHORT))[0]["loss"]


def test_weights_that_do_not_fit_are_named(script, train_once, tmp_path):
    path = train_once(*SHORT)
    eleven = ('Dense(10, dtype="float32"),  #', 'Dense(11, dtype="float32"),  #')
    named = ('Dense(64, activation="silu"', 'Dense(64, name="n", activation="silu"')
    output = train(edit(script, tmp_path, eleven, named), *SHORT, "--init-checkpoint", path)
    assert "loaded 2 of 6 weights" in output
    assert "  loaded: sequential/conv2d/kernel\n" in output
    assert "left new, for its name or shape: sequential/n/kernel" in output
    # Keras counts the layers without a name: the last one is now the first such Dense.
    assert "left new, for its name or shape: sequential/dense/kernel" in output


@pytest.mark.parametrize("path", ["nothing", ".", "train.py", "empty.keras"])
def test_what_has_no_weights_is_refused(path, script, tmp_path):
    (tmp_path / "empty.keras").touch()
    code, output, errors = finish(fork(edit(script, tmp_path), "--init-checkpoint", path))
    assert code == 2
    [line] = errors.splitlines()
    assert f"--init-checkpoint {path} is no run, checkpoint or .keras file" in line


def test_first_weights_are_not_loaded_again(script, train_once, tmp_path):
    path = train_once(*SHORT)
    script = edit(script, tmp_path)
    flags = ("--init-checkpoint", path, "--steps-per-loop", "5", "--epochs")
    train(script, *flags, "1")
    output = train(script, *flags, "2")
    assert "loaded" not in output
    assert "resumed at step 19" in output


# --------------------------------------------------------------------------------------------------
# Continuous evaluation
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["flag", "task"])
def test_evaluator_follows_a_run(by, script, tmp_path):
    script = edit(script, tmp_path)
    flags, env = ("--mode", "continuous_evaluate"), environment()
    if by == "task":
        task = {"type": "evaluator", "index": 0}
        cluster = {"worker": ["localhost:1", "localhost:2"]}
        flags, env = (), environment(TF_CONFIG=json.dumps({"cluster": cluster, "task": task}))
    # Saved at the ends of epochs alone, of which the run's log has the validation too.
    run_flags = ("--epochs", "250", "--ema-momentum", "0.9", "--checkpoint-every-steps", "9999")
    evaluator = fork(script, *run_flags, *flags, env=env)
    train(script, *run_flags)
    code, output, errors = finish(evaluator, timeout=60)
    assert (code, errors) == (0, "")
    lines = read_numbers(tmp_path / "run" / "evaluator")
    assert len(lines) >= 2
    assert lines[-1]["step"] == 250 * 19
    of_run = join(read_numbers(tmp_path / "run"))
    for line in lines:
        for name, value in line.items():
            if name not in ("split", "step"):
                assert value == pytest.approx(of_run["validation", line["step"], name], rel=1e-6)


def test_evaluator_passes_over_what_is_removed_meanwhile(script, train_once, tmp_path):
    shutil.copytree(train_once(*SHORT), tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # It is under way.
    old = "        if step > seen:\n"
    removed = '            [os.remove(x) for x in path.parent.glob("ckpt-38.*")]\n'
    flags = ("--mode", "continuous_evaluate", "--timeout", "3")
    train(edit(script, tmp_path, (old, old + removed)), *flags)
    assert [x["step"] for x in read_numbers(tmp_path / "run" / "evaluator")] == [19]


def test_evaluator_waits_no_longer_than_timeout(script, tmp_path):
    began = time.monotonic()
    flags = ("--mode", "continuous_evaluate", "--timeout", "2")
    output = train(edit(script, tmp_path), *flags)
    assert "no new checkpoint in run for 2 seconds" in output
    assert time.monotonic() - began < 60
    assert {path.name for path in tmp_path.iterdir()} == {"train.py"}


# --------------------------------------------------------------------------------------------------
# Profile, XLA
# --------------------------------------------------------------------------------------------------


def test_profile_is_of_the_steps_named(train_once):
    run = train_once(*SHORT, "--profile", "18,23")  # of loops that end at 19 and 23
    [profile] = run.glob("tensorboard/train/plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 10_000
    assert read_numbers(run) == read_numbers(train_once(*SHORT))


def test_profile_ends_with_the_run(train_once):
    run = train_once(*PATIENT, "--profile", "20,570")  # Patience ends it before.
    [profile] = run.glob("tensorboard/train/plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 10_000


def test_model_that_xla_cannot_compile_is_named(script, tmp_path):
    old = "        predictions = model(features, training=True)\n"
    unsupported = "        tf.numpy_function(lambda: None, [], [])\n"
    process = fork(edit(script, tmp_path, (old, old + unsupported)), "--jit-compile")
    code, _, errors = finish(process)
    assert code == 2
    [line] = errors.splitlines()
    assert "--jit-compile" in line
    assert "PyFunc" in line
    assert not list((tmp_path / "run").rglob("ckpt-*"))


# --------------------------------------------------------------------------------------------------
# All together
# --------------------------------------------------------------------------------------------------

# What a user may choose. Not everything goes well together, but nothing ends in a traceback.
CHOICES = [
    [(), ("--precision", "mixed_bfloat16"), ("--precision", "mixed_float16")],
    [(), ("--jit-compile",)],
    [(), ("--accumulation-steps", "2")],
    [(), ("--clip-norm", "1")],
    [(), ("--ema-momentum", "0.9")],
    [("--schedule", "constant"), ("--schedule", "cosine"), ("--schedule", "linear")],
    [(), ("--warmup-steps", "3")],
    [(), ("--patience", "1")],
    [(), ("--recover-from-nan", "1")],
    [(), ("--deterministic",)],
    [(), ("--profile", "2,3")],
    [(), ("--init-checkpoint", "first")],
    [(), ("--replicas", "2")],
    [(), ("--checkpoint-every-steps", "2")],
]


def pair_up(choices):
    """Return rows of one choice each that hold every pair of choices."""
    draw = random.Random(0)
    pairs = {
        frozenset(pair)
        for (i, a), (j, b) in itertools.combinations(enumerate(choices), 2)
        for pair in itertools.product([(i, x) for x in a], [(j, x) for x in b])
    }
    rows = []
    while pairs:
        drawn = [[draw.choice(options) for options in choices] for _ in range(500)]
        rows.append(max(drawn, key=lambda row: len(pairs & set(pairs_of(row)))))
        pairs -= set(pairs_of(rows[-1]))
    return rows


def pairs_of(row):
    return map(frozenset, itertools.combinations(enumerate(row), 2))


# All pairs of flags, and of two tasks, which compile in seconds; with FLAGS_PAIRS=all, all pairs of
# flags for each task.
if os.environ.get("FLAGS_PAIRS") == "all":
    ROWS = [((task,), *row) for task in TASKS for row in pair_up(CHOICES)]
else:
    ROWS = pair_up([[(task,) for task in TASKS if task != "text_classification"], *CHOICES])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(sum(row, ())))
def test_all_pairs_of_flags(row, projects, first_runs, tmp_path):
    [task], *flags = row
    flags = [first_runs[task] if flag == "first" else flag for flag in sum(flags, ())]
    script = edit(projects[task] / "train.py", tmp_path, FEW_OF[task])
    train(script, "--epochs", "2", "--steps-per-loop", "2", *flags)
    assert read_numbers(tmp_path / "run")[-1]["split"] == "test"
