"""The hooks `score` and `end_epoch`: what selects the best checkpoint, and what an epoch ends with.

Each hook here keeps no state of its own: it computes all from the history, which a resumed run
has too. So a run that is killed ends bit-identical.
"""

import itertools
import json

import numpy as np
import pytest
from rendering import SIZES
from running import (
    WORKERS,
    assert_fails,
    assert_same_run,
    assert_succeeded,
    finish_all,
    query,
    read_split,
    run_script,
    start_workers,
    train,
)
from variants import (
    PLATEAU,
    SMALL_IMAGES,
    TEACHER,
    kill_after_log,
    lose_loop,
    write_variant,
)

LONG = pytest.mark.long
FLAGS = ("--global-batch-size", "16", "--epochs", "9", "--checkpoint-every-steps", "3")

# Both sizes, killed within an epoch, after a validation and right before one.
KILLS = {
    "training": kill_after_log(29),
    "validation": kill_after_log(24, split="validation"),
    "end of an epoch": kill_after_log(32),
}


def find_halved_rates(validations, rate=2e-3):
    """Return the learning rate of each epoch, by hand."""
    rates = []
    record = -1.0
    for line in validations:
        rates.append(rate)
        if line["accuracy"] > record:
            record = line["accuracy"]
        else:
            rate /= 2
    return rates


def read_rates(run_dir):
    """Return the learning rate of each epoch, of the log."""
    rates = {}
    for line in read_split(run_dir, "train"):
        rates[line["epoch"]] = line["learning_rate"]
    return list(rates.values())


# A hook may read what the epoch has saved. The export that is tried at startup isn't kept.
READS_CHECKPOINTS = """
def end_epoch(history):
    for kind in ("best", "last"):
        assert Path(config.run_dir, "checkpoints", kind, f"ckpt-{state.step}.index").exists()
    folder = Path(getattr(state, "scratch", config.run_dir))
    assert not list(folder.rglob("saved_model.pb"))
    return True
"""


@pytest.mark.parametrize("size", SIZES)
def test_epoch_ends_after_it_is_saved(size, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, READS_CHECKPOINTS)
    train(script, *FLAGS)
    assert len(read_split(tmp_path / "run", "validation")) == 1


# The chief writes slowly, so that another worker would call the hook before the files exist.
WRITES_SLOWLY = """
write = tf.train.Checkpoint.write

def write_slowly(*args, **kwargs):
    time.sleep(2)
    return write(*args, **kwargs)

tf.train.Checkpoint.write = write_slowly
"""


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_epoch_ends_on_each_worker_after_it_is_saved(size, scripts, tmp_path):
    code = (SMALL_IMAGES, READS_CHECKPOINTS, WRITES_SLOWLY)
    script = write_variant(scripts[size], tmp_path, *code)
    workers = start_workers(script, WORKERS, *FLAGS)
    assert_succeeded(finish_all(workers))


@pytest.fixture
def plateau_run(train_once):
    """Return the folder of an undisturbed run with the hooks of PLATEAU."""
    return train_once(*FLAGS, code=(SMALL_IMAGES, PLATEAU))


def test_rate_is_halved_on_a_plateau_and_the_run_stopped(plateau_run):
    validations = read_split(plateau_run, "validation")
    assert [line["epoch"] for line in validations] == [1, 2, 3, 4, 5, 6]
    rates = read_rates(plateau_run)
    assert rates == pytest.approx(find_halved_rates(validations))
    assert len(set(rates)) > 1


def test_history_has_the_validation_lines(plateau_run):
    calls = (plateau_run.parent / "calls.txt").read_text(encoding="utf-8")
    histories = [json.loads(call) for call in calls.splitlines()]
    validations = read_split(plateau_run, "validation")
    assert histories == [validations[:number] for number in range(1, 7)]


NO_SCORE = """
def score(validation):
    return math.nan if validation["loss"] < 1 else validation["loss"]
"""


@pytest.mark.parametrize("size", SIZES)
def test_score_that_is_not_a_number_ends_the_run(size, scripts, tmp_path):
    # Otherwise no later score would be lower.
    script = write_variant(scripts[size], tmp_path, NO_SCORE)
    outcome = run_script(script, "--epochs", "3")
    assert_fails(outcome, 1, "not finite", "step 38")
    steps = [line["step"] for line in read_split(tmp_path / "run", "validation")]
    assert steps == [19]


@pytest.mark.parametrize("size", SIZES)
def test_first_of_equal_scores_selects_the_best_checkpoint(size, scripts, tmp_path):
    code = "def score(validation):\n    return 1\n"
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, code)
    train(script, *FLAGS[:2], "--epochs", "3")
    best = query("runs.read_contents", tmp_path / "run")["best"]
    assert best["step"] == [read_split(tmp_path / "run", "validation")[0]["step"]]


# Each epoch is the best one.
PREDICTS_WITH_EMA = """
def score(validation):
    return -validation.get("step", state.step)


def end_epoch(history):
    swap_ema_weights()
    np.save("kernel.npy", model.trainable_variables[0].numpy())
    swap_ema_weights()
    return False
"""


def test_epoch_ends_with_the_ema_if_the_hook_asks_for_it(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, PREDICTS_WITH_EMA)
    train(script, *FLAGS[:2], "--epochs", "2", "--ema-momentum", "0.9")
    best = query("runs.read_contents", tmp_path / "run")["best"]
    assert best["model"][0] == np.load(tmp_path / "kernel.npy").tolist()


def test_lowest_score_selects_the_best_checkpoint(train_once):
    code = """
def score(validation):
    return -validation["loss"]
"""
    run_dir = train_once(*FLAGS[:2], "--epochs", "4", code=(SMALL_IMAGES, code))
    assert query("runs.read_contents", run_dir)["best"]["step"] == [8]  # the loss falls
    assert "ckpt-8" in (run_dir.parent / "output").read_text(encoding="utf-8")


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
@pytest.mark.parametrize(
    "point",
    [
        "validation",
        pytest.param("training", marks=LONG),
        pytest.param("end of an epoch", marks=LONG),
    ],
)
def test_killed_run_with_epoch_hooks_is_bit_identical(size, point, scripts, plateau_run, tmp_path):
    code = (SMALL_IMAGES, PLATEAU)
    killed = write_variant(scripts[size], tmp_path, *code, KILLS[point])
    assert run_script(killed, *FLAGS).code == -9
    script = write_variant(scripts[size], tmp_path, *code)
    output = train(script, *FLAGS)
    assert "resumed at step " in output
    assert_same_run(tmp_path / "run", plateau_run)


HALVES_EACH_EPOCH = """
def end_epoch(history):
    optimizer.learning_rate = config.learning_rate * 0.5 ** len(history)
"""


def test_recovery_keeps_what_end_epoch_has_changed(complete_script, tmp_path):
    code = (SMALL_IMAGES, HALVES_EACH_EPOCH, lose_loop("state.step == 32"))
    script = write_variant(complete_script, tmp_path, *code)
    assert "recovery 1 of 1" in train(script, *FLAGS, "--recover-from-nan", "1")
    assert read_rates(tmp_path / "run") == pytest.approx([2e-3 * 0.5**n for n in range(9)])


@LONG
def test_workers_stop_at_the_same_epoch(essential_script, tmp_path):
    code = (SMALL_IMAGES, PLATEAU)
    script = write_variant(essential_script, tmp_path, *code)
    assert_succeeded(finish_all(start_workers(script, WORKERS, *FLAGS)))
    assert len(read_split(tmp_path / "run", "validation")) == 6


# --------------------------------------------------------------------------------------------------
# The training data of a run
# --------------------------------------------------------------------------------------------------

# As many examples, and one other label.
OTHER_LABEL = """
@wraps_original
def create_datasets(original):
    train, *others = original()
    replace = lambda index, example: (example[0], tf.where(index == 5, 0, example[1]))
    return train.enumerate().map(replace), *others
"""


@pytest.mark.parametrize(
    ("size", "mode"),
    [*itertools.product(SIZES, ["train", "evaluate"]), ("complete", "continuous_evaluate")],
)
def test_changed_training_data_are_rejected(size, mode, scripts, tmp_path):
    flags = ("--epochs", "1", "--global-batch-size", "16")
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES)
    train(script, *flags)
    changed = write_variant(scripts[size], tmp_path, SMALL_IMAGES, OTHER_LABEL)
    outcome = run_script(changed, *flags, "--mode", mode)
    text = "was started with train_data 128 examples, checksum "
    assert_fails(outcome, 2, text, ", not 128 examples, checksum ")
    waiting = "waiting for checkpoints of run\n"
    assert outcome.output == (waiting if mode == "continuous_evaluate" else "")


# --------------------------------------------------------------------------------------------------
# Models without an optimizer
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_killed_run_with_a_frozen_teacher_is_bit_identical(size, scripts, train_once, tmp_path):
    flags = ("--global-batch-size", "16", "--epochs", "4")
    code = (SMALL_IMAGES, TEACHER)
    killed = write_variant(scripts[size], tmp_path, *code, kill_after_log(24))
    assert run_script(killed, *flags).code == -9
    script = write_variant(scripts[size], tmp_path, *code)
    output = train(script, *flags)
    assert "resumed" in output
    expected = train_once(*flags, code=code)
    assert_same_run(tmp_path / "run", expected)


@LONG
@pytest.mark.parametrize(
    "flags",
    [
        "--ema-momentum 0.9 --schedule cosine --warmup-steps 2",
        "--replicas 2 --precision mixed_float16 --accumulation-steps 2 --clip-norm 1",
    ],
)
def test_flags_accept_a_model_without_an_optimizer(flags, complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, TEACHER)
    train(script, "--epochs", "2", "--global-batch-size", "16", *flags.split())


TWO_OPTIMIZERS = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    first, its_optimizer = original(strategy)
    with strategy.scope():
        other = keras.Sequential([keras.Input([10]), keras.layers.Dense(1)])
        slower = keras.optimizers.SGD(0.01)
    return (first, other), (its_optimizer, slower)

def compute_gradients(batch):
    images, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        logits = model[0](images, training=True)
        loss = tf.nn.compute_average_loss(
            loss_object(labels, logits), global_batch_size=GLOBAL_BATCH_SIZE
        )
    return loss, tape.gradient(loss, model[0].trainable_variables)

def train_step(batch):
    loss, gradients = compute_gradients(batch)
    update(optimizer[0], gradients, model[0].trainable_variables)
    return tf.stack([loss * config.global_batch_size, tf.reduce_sum(batch[-1])])

@wraps_original
def evaluation_step(original, batch, metrics):
    logits = model[0](batch[0], training=False)
    losses = compute_losses(batch[1], logits) * batch[2]
    return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(batch[2])])
"""


@pytest.mark.parametrize("size", SIZES)
def test_log_has_the_rate_of_each_optimizer(size, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, TWO_OPTIMIZERS)
    output = train(script, "--epochs", "1", "--global-batch-size", "16")
    line = read_split(tmp_path / "run", "train")[-1]
    assert (line["learning_rate"], line["learning_rate_2"]) == pytest.approx((0.002, 0.01))
    assert "learning_rate" not in output
