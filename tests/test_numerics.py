"""Losses, gradients and updates equal NumPy's, on any number of replicas."""

import math

import numpy as np
import pytest
from rendering import TASKS
from running import (
    assert_close,
    flags_of,
    join_numbers,
    query,
    read_numbers,
    read_split,
    train,
)
from variants import (
    NO_DROPOUT,
    NO_EXPORT,
    REGULARIZED,
    SAME_SPLITS,
    SMALL_DATA,
    WEIGHTED,
    lose_loop,
    replace_image_model,
    take_examples,
    use_optimizer,
    write_copies,
    write_variant,
)

LONG = pytest.mark.long
SHORT = ("--epochs", "2", "--steps-per-loop", "5")
KERAS_ADAM = use_optimizer("keras.optimizers.Adam(learning_rate)")

# --------------------------------------------------------------------------------------------------
# Embeddings
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--replicas 2",
        pytest.param("--replicas 2 --accumulation-steps 2", marks=LONG),
        pytest.param("--replicas 2 --clip-norm 1e9", marks=LONG),
    ],
)
def test_gradients_of_an_embedding_are_summed(flags, complete_script):
    errors = query("updates.compare_embedding_updates", complete_script, *flags.split())
    assert len(errors) == 9
    assert max(errors.values()) < 1e-4, errors


# --------------------------------------------------------------------------------------------------
# Adam
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "replicas", "arguments"),
    [
        ("tabular_regression", 1, {"weight_decay": 0.1}),
        ("tabular_regression", 1, {"epsilon": 1e-3}),
        pytest.param("image_classification", 1, {}, marks=LONG),
        pytest.param("image_classification", 2, {"weight_decay": 0.1}, marks=LONG),
        # The text task excludes biases and normalization from weight decay.
        pytest.param("text_classification", 2, {}, marks=LONG),
    ],
)
def test_adam_equals_numpy(task, replicas, arguments, projects):
    script = projects[task] / "train.py"
    errors = query("updates.compare_adam", script, arguments, *flags_of(replicas))
    assert errors["script"] < 1e-5
    assert errors["Keras"] < 3e-5


@pytest.mark.parametrize(
    ("dtype", "amsgrad"),
    [
        ("bfloat16", False),
        pytest.param("float64", False, marks=LONG),
        ("float32", True),
    ],
)
def test_adam_falls_back_to_the_one_of_keras(dtype, amsgrad, essential_script):
    ours, theirs = query("updates.run_fallback", essential_script, dtype, amsgrad)
    assert ours == theirs
    # In bfloat16, Keras's Adam rounds beta_2 to 1 and changes nothing.
    assert max(ours) < 0.5 or dtype == "bfloat16"


def test_adam_accumulates_as_the_one_of_keras(essential_script):
    options = {"gradient_accumulation_steps": 2}
    ours, theirs = query("updates.run_both_adams", essential_script, "float32", options)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert max(ours) < 0.6  # five updates


@pytest.mark.parametrize("replicas", [1, 2])
def test_adam_computes_powers_once_per_update(replicas, essential_script):
    flags = flags_of(replicas)
    powers = query("updates.count_powers", essential_script, 20, *flags)
    assert powers == 2 * replicas


@pytest.mark.long
def test_optimizers_of_script_and_keras_resume_each_other(essential_script, tmp_path):
    flags = ("--global-batch-size", "16", "--epochs")
    [ours] = write_copies(essential_script, [tmp_path / "ours"])
    [theirs] = write_copies(essential_script, [tmp_path / "theirs"], KERAS_ADAM)
    train(ours, *flags, "3")
    expected = read_split(tmp_path / "ours" / "run", "validation")
    for first, second in ((ours, theirs), (theirs, ours)):
        run_dir = tmp_path / f"begun-by-{first.parent.name}"
        train(first, *flags, "1", "--run-dir", run_dir)
        train(second, *flags, "2", "--run-dir", run_dir)
        train(first, *flags, "3", "--run-dir", run_dir)
        assert_close(
            read_split(run_dir, "validation"),
            expected,
            rel=1e-4,
            flips=1,
        )


# --------------------------------------------------------------------------------------------------
# Losses
# --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_regularization_counts_once_on_any_replicas(train_once):
    flags = ("--epochs", "2")
    code = (NO_DROPOUT, REGULARIZED)
    one = read_numbers(train_once(*flags, code=code))
    two = read_numbers(train_once(*flags, "--replicas", "2", code=code))
    assert_close(two, one, rel=1e-5)
    plain = read_numbers(train_once(*flags, code=(NO_DROPOUT,)))
    # 0.01 times the sum of squares of Glorot's weights, of 512 × 64 and 64 × 10: 1.3 at the start.
    assert 0.2 < one[0]["loss"] - plain[0]["loss"] < 2


ACTIVE = replace_image_model(
    "keras.layers.Rescaling(1 / 16)",
    "keras.layers.Flatten()",
    'keras.layers.Dense(64, kernel_regularizer="l2", activity_regularizer="l2")',
    'keras.layers.Dense(10, dtype="float32")',
)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", pytest.param("mixed_float16", marks=LONG)])
def test_regularization_in_mixed_precision(precision, train_once):
    expected = read_numbers(train_once(*SHORT, code=(ACTIVE,)))
    mixed = read_numbers(train_once(*SHORT, "--precision", precision, code=(ACTIVE,)))
    for line, other in zip(mixed, expected, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_weighted_losses_of_all_splits_have_one_scale(replicas, train_once):
    code = (SAME_SPLITS, WEIGHTED, NO_DROPOUT)
    flags = ("--global-batch-size", "16", "--epochs", "1", "--learning-rate", "1e-9")
    run_dir = train_once(*flags, *flags_of(replicas), code=code)
    loss, accuracy = query("runs.evaluate_training_split", run_dir)
    lines = read_numbers(run_dir)
    assert [line["split"] for line in lines] == ["train", "validation", "test"]
    for line in lines:
        assert line["loss"] == pytest.approx(loss, rel=1e-5)
        assert line["accuracy"] == pytest.approx(accuracy, rel=1e-5)


# --------------------------------------------------------------------------------------------------
# Accumulation, clipping, EMA
# --------------------------------------------------------------------------------------------------


def test_accumulation_equals_the_whole_batch(train_once):
    # The regularization loss counts once, however many parts a batch has.
    code = (REGULARIZED,)
    whole = read_numbers(train_once(*SHORT, code=code))
    flags = ("--accumulation-steps", "4", "--replicas", "2")
    assert_close(
        read_numbers(train_once(*SHORT, *flags, code=code)),
        whole,
        rel=1e-5,
    )


@pytest.mark.long
def test_compiled_parts_draw_the_numbers_of_the_whole_batch(train_once):
    flags = (*SHORT, "--jit-compile")
    assert_close(
        read_numbers(train_once(*flags, "--accumulation-steps", "2")),
        read_numbers(train_once(*flags)),
        rel=1e-4,
        flips=1,
    )


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_accumulation_and_a_large_norm_change_no_result(task, projects, tmp_path):
    script = write_variant(
        projects[task] / "train.py",
        tmp_path,
        SMALL_DATA[task],
        NO_DROPOUT,
        NO_EXPORT,
    )
    variants = {
        "plain": (),
        "parts": ("--accumulation-steps", "2"),
        "norm": ("--clip-norm", "1e9", "--steps-per-loop", "3"),
    }
    logs = {}
    for name, flags in variants.items():
        train(script, "--epochs", "1", "--run-dir", name, *flags)
        lines = read_numbers(tmp_path / name)
        logs[name] = [line for line in lines if line["split"] != "train"]
    assert [line["split"] for line in logs["plain"]] == ["validation", "test"]
    assert_close(logs["parts"], logs["plain"], rel=2e-5, flips=1)
    assert_close(logs["norm"], logs["plain"], rel=2e-5, flips=1)


# Two steps per epoch of plain gradient descent: the weights show the gradients.
TWO_STEPS = (
    NO_DROPOUT,
    take_examples(train=128),
    use_optimizer("keras.optimizers.SGD(learning_rate)"),
)
EACH_STEP = ("--epochs", "1", "--checkpoint-every-steps", "1", "--learning-rate")
LARGE_LOSS = (
    take_examples(train=128),
    "def compute_losses(labels, predictions):\n    return 1e5 * loss_object(labels, predictions)\n",
)


def read_checkpoint(run_dir, step, kind="last"):
    """Return the weights in a checkpoint, by path, and the optimizer's variables."""
    path = run_dir / "checkpoints" / kind / f"ckpt-{step}"
    content = query("runs.read_checkpoint", path)
    names = content["names"][0]
    assert len(names) == len(content["model"]) == 6  # Without dropout, it has only weights.
    weights = [np.array(values) for values in content["model"]]
    return dict(zip(names, weights, strict=True)), content.get("optimizer")


def read_weights(run_dir, step, kind="last"):
    weights, _ = read_checkpoint(run_dir, step, kind)
    return weights


def read_averages(run_dir, step):
    """Return the EMA of the weights in a checkpoint, by path."""
    weights, variables = read_checkpoint(run_dir, step)
    averages = variables[2:]  # after the optimizer's step and learning rate
    assert len(averages) == 6
    return {
        name: np.array(values)
        for name, values in zip(
            weights,
            averages,
            strict=True,
        )
    }


@pytest.mark.parametrize(
    "replicas",
    [pytest.param(1, marks=LONG), 4],
)
def test_clipping_equals_numpy(replicas, train_once):
    # At a rate of 1e-30, no step changes the initial weights.
    before = read_weights(train_once(*EACH_STEP, "1e-30", code=TWO_STEPS), 1)
    after = read_weights(train_once(*EACH_STEP, "0.1", code=TWO_STEPS), 1)
    flags = (*EACH_STEP, "0.1", "--clip-norm", "0.1", *flags_of(replicas))
    clipped = train_once(*flags, code=TWO_STEPS)
    gradients = {path: (before[path] - after[path]) / 0.1 for path in before}
    norm = compute_distance(before, after) / 0.1
    assert norm > 0.12  # more than the limit
    for path, weight in read_weights(clipped, 1).items():
        expected = before[path] - 0.1 * gradients[path] * 0.1 / norm
        assert weight == pytest.approx(expected, rel=1e-4, abs=1e-6), path
    assert read_numbers(clipped)[0]["gradient_norm"] == pytest.approx(
        norm,
        rel=1e-4,
    )


def test_clipping_in_float16_uses_the_norm_without_the_loss_scale(train_once):
    before = read_weights(train_once(*EACH_STEP, "1e-30", code=TWO_STEPS), 1)
    after = read_weights(train_once(*EACH_STEP, "0.1", code=TWO_STEPS), 1)
    flags = (*EACH_STEP, "0.1", "--clip-norm", "0.1", "--precision", "mixed_float16")
    clipped = train_once(*flags, code=TWO_STEPS)
    norm = compute_distance(before, after) / 0.1
    first, *_ = read_numbers(clipped)
    assert first["gradient_norm"] == pytest.approx(norm, rel=0.02)
    moved = compute_distance(before, read_weights(clipped, 1))
    assert moved == pytest.approx(0.1 * 0.1, rel=0.02)


def compute_distance(weights, others):
    squares = [np.sum((weights[path] - others[path]) ** 2) for path in weights]
    return math.sqrt(sum(squares))


@pytest.mark.long
def test_update_that_overflows_changes_nothing(train_once):
    """Float16 overflows in each step, so the EMA equals the initial weights."""
    flags = ("--precision", "mixed_float16", "--epochs", "1", "--clip-norm", "1")
    plain = read_numbers(train_once(*flags, code=LARGE_LOSS))
    averaged = read_numbers(train_once(*flags, "--ema-momentum", "0.9", code=LARGE_LOSS))
    assert averaged == plain
    assert plain[0]["gradient_norm"] == 0  # the mean of no steps
    loss_of_zeros = 1e5 * math.log(10)
    assert plain[1]["loss"] != pytest.approx(loss_of_zeros, rel=1e-6)


def test_ema_follows_its_formula(train_once):
    flags = (*EACH_STEP, "0.1", "--replicas", "2")
    run_dir = train_once(*flags, "--ema-momentum", "0.75", code=TWO_STEPS)
    first = read_weights(run_dir, 1)
    second = read_weights(run_dir, 2)
    best = read_weights(run_dir, 2, kind="best")
    raw = read_weights(train_once(*flags, code=TWO_STEPS), 2)
    for path, average in read_averages(run_dir, 2).items():
        # The first average is the first weight.
        expected = 0.75 * first[path] + 0.25 * second[path]
        assert average == pytest.approx(expected, rel=1e-5, abs=1e-7), path
        assert (best[path] == average).all()
        assert (second[path] == raw[path]).all()  # Training continues with the weights.
        assert (average != raw[path]).any()


@pytest.mark.long
def test_ema_is_evaluated_and_exported(train_once):
    run_dir = train_once(*SHORT, "--ema-momentum", "0.9", code=(NO_DROPOUT,))
    numbers = join_numbers(read_numbers(run_dir))
    raw = join_numbers(read_numbers(train_once(*SHORT, code=(NO_DROPOUT,))))
    for (split, step, name), value in numbers.items():
        is_same = split == "train" or name == "epoch"
        assert (value == raw[split, step, name]) == is_same
    [exports] = query("runs.evaluate_exports", run_dir)
    loss = pytest.approx(numbers["test", 38, "loss"], rel=1e-4)
    assert exports["model.keras"]["test"]["loss"] == loss
    assert exports["SavedModel"]["test"]["loss"] == loss


@pytest.mark.long
def test_ema_of_the_hook_is_that_of_the_flag(train_once):
    adam = "keras.optimizers.Adam(config.learning_rate, {})"
    hook = use_optimizer(adam.format("use_ema=True, ema_momentum=0.9"))
    by_hook = train_once(*SHORT, code=(hook,))
    by_flag = train_once(*SHORT, "--ema-momentum", "0.9", code=(use_optimizer(adam.format("")),))
    assert read_numbers(by_hook) == read_numbers(by_flag)


# --------------------------------------------------------------------------------------------------
# Learning rates
# --------------------------------------------------------------------------------------------------


def compute_rates(schedule, warmup, steps, rate):
    """Return the learning rate of each step, from step 1 on."""
    step = np.arange(1, steps + 1)
    progress = np.clip(
        (step - warmup) / (steps - warmup),
        0,
        1,
    )
    shares = {
        "constant": np.ones(steps),
        "linear": 1 - progress,
        "cosine": (1 + np.cos(np.pi * progress)) / 2,
    }
    rising = step / max(1, warmup)
    return rate * np.where(step < warmup, rising, shares[schedule])


@pytest.mark.parametrize(
    ("schedule", "warmup"),
    [
        pytest.param("constant", 10, marks=LONG),
        pytest.param("linear", 10, marks=LONG),
        pytest.param("cosine", 0, marks=LONG),
        ("cosine", 10),
    ],
)
def test_schedules_follow_their_formulas(schedule, warmup, train_once):
    flags = ("--epochs", "2", "--steps-per-loop", "1", "--learning-rate", "0.004")
    run_dir = train_once(*flags, "--schedule", schedule, "--warmup-steps", warmup)
    rates = [line["learning_rate"] for line in read_split(run_dir, "train")]
    expected = compute_rates(schedule, warmup, 38, 0.004)
    assert rates == pytest.approx(expected, rel=1e-5, abs=1e-9)


# As for the critic of a Wasserstein GAN.
THREE_UPDATES_A_STEP = """
@wraps_original
def update(original, optimizer, gradients, variables):
    for _ in range(3):
        original(optimizer, gradients, variables)
"""


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=LONG)])
def test_schedule_counts_the_steps_of_the_run(replicas, train_once):
    run_dir = train_once(
        *("--epochs", "2"),
        *("--steps-per-loop", "1"),
        *("--schedule", "linear"),
        *("--warmup-steps", "10"),
        *flags_of(replicas),
        code=(THREE_UPDATES_A_STEP,),
    )
    rates = [line["learning_rate"] for line in read_split(run_dir, "train")]
    expected = compute_rates("linear", 10, 38, 0.002)
    assert rates == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_schedule_repeats_the_steps_of_a_lost_loop(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, lose_loop("state.step == 9"), NO_EXPORT)
    train(
        script,
        *("--epochs", "2"),
        *("--steps-per-loop", "5"),
        *("--schedule", "linear"),
        *("--recover-from-nan", "1"),
    )
    lines = read_split(tmp_path / "run", "train")
    rates = [line["learning_rate"] for line in lines]
    ends = [line["step"] - 1 for line in lines]
    expected = compute_rates("linear", 0, 38, 0.002)[ends]
    assert rates == pytest.approx(expected, rel=1e-4, abs=1e-9)


@pytest.mark.long
def test_schedule_of_the_essential_script_counts_the_steps_of_the_run(render, tmp_path):
    project = render(tmp_path, task="text_classification", script="essential")
    code = (SMALL_DATA["text_classification"], THREE_UPDATES_A_STEP)
    script = write_variant(project / "train.py", tmp_path, *code)
    train(
        script,
        *("--epochs", "1"),
        *("--steps-per-loop", "1"),
        *("--learning-rate", "0.001"),
    )
    lines = read_split(tmp_path / "run", "train")
    rates = [line["learning_rate"] for line in lines]
    steps = len(rates)
    expected = compute_rates("linear", steps // 10, steps, 0.001)
    assert rates == pytest.approx(expected, rel=1e-5, abs=1e-9)


# --------------------------------------------------------------------------------------------------
# Half precision
# --------------------------------------------------------------------------------------------------


def test_overflow_on_one_replica_is_seen_by_all(complete_script):
    flags = ("--replicas", "2", "--precision", "mixed_float16")
    answer = query("updates.run_overflow", complete_script, *flags)
    weights = []
    for values, scales in answer["steps"]:
        for first, second in [*values, scales]:
            assert str(first) == str(second)
        assert "nan" not in str(values)
        assert "inf" not in str(values)
        weights.append(str(values[:4]))
    assert weights[0] == weights[1] != weights[2]  # The second step changes no weight.
    scales = [scales for _, scales in answer["steps"]]
    assert scales == [
        [1024] * 2,
        [512] * 2,
        [512] * 2,
    ]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_gradients_are_summed_over_replicas_once(precision, complete_script):
    flags = ("--replicas", "2", "--precision", precision)
    answer = query("updates.run_overflow", complete_script, *flags)
    # In half precision, one number more: whether there was an overflow.
    more = 1 if precision == "mixed_float16" else 0
    assert answer["summed"] == answer["weights"] + more


# In the fourth step, the last replica's gradients overflow. The optimizer's counter has the steps
# since the scale has changed.
OVERFLOW = """
@wraps_original
def compute_gradients(original, batch):
    loss, gradients = original(batch)
    context = tf.distribute.get_replica_context()
    is_last = context.replica_id_in_sync_group == context.num_replicas_in_sync - 1
    is_fourth = (optimizer.step_counter == 3) & (optimizer.dynamic_scale == 2.0**15)
    factor = tf.where(is_last & is_fourth, math.inf, 1.0)
    return loss, [gradient * factor for gradient in gradients]
"""


@pytest.mark.long
def test_overflow_skips_one_step_on_any_replicas(train_once):
    flags = ("--epochs", "1", "--steps-per-loop", "1", "--precision", "mixed_float16")
    losses = []
    for replicas in (1, 2, 4):
        run_dir = train_once(
            *flags,
            *flags_of(replicas),
            code=(NO_DROPOUT, OVERFLOW),
        )
        _, variables = read_checkpoint(run_dir, 19)
        # LossScaleOptimizer's steps since the last change of its scale, and the scale.
        assert variables[2:4] == [19 - 4, 2**15 / 2]
        losses.append([line["loss"] for line in read_numbers(run_dir)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert losses[2] == pytest.approx(losses[0], rel=1e-2)


# --------------------------------------------------------------------------------------------------
# XLA
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "size", "flags"),
    [
        pytest.param("image_classification", "essential", "", marks=LONG),
        pytest.param("text_classification", "essential", "", marks=LONG),
        pytest.param("tabular_regression", "essential", "", marks=LONG),
        ("image_classification", "complete", "--clip-norm 1 --ema-momentum 0.9"),
        pytest.param("tabular_regression", "complete", "--accumulation-steps 2", marks=LONG),
    ],
)
def test_steps_are_compiled_whole(task, size, flags, render, tmp_path):
    """A TPU needs that XLA compiles each step: all shapes known, and no calls of the host.

    XLA is used for a CPU here. It draws other random numbers for Dropout.
    """
    script = render(tmp_path, task=task, script=size) / "train.py"
    flags = ("--run-dir", tmp_path / "run", *flags.split())
    answers = query("updates.compile_steps", script, *flags)
    assert set(answers) == {"train_step", "validation_step", "test_step"}
    for step, answer in answers.items():
        assert answer["dynamic"] == [], step
        for operation in answer["operations"]:
            assert not any(word in operation for word in ("PyFunc", "Print", "Summ")), step
        tolerance = 1e-5
        if step == "train_step" or task == "text_classification":
            tolerance = 0.05
        assert answer["compiled"] == pytest.approx(answer["plain"], rel=tolerance), step
