"""Checkpoints: what they hold, corrupt ones, kills while they are written, and initial weights."""

import ctypes
import os
import shutil
import signal
import sys

import pytest
from running import (
    FLAGS,
    assert_fails,
    assert_rejected,
    assert_same_run,
    assert_unchanged,
    environment,
    finish,
    list_checkpoints,
    query,
    read_numbers,
    read_split,
    run_script,
    start,
    train,
)
from variants import (
    NO_EXPORT,
    RISING_LOSS,
    SMALL_IMAGES,
    replace_image_model,
    run_before,
    write_variant,
)

LONG = pytest.mark.long
SHORT = ("--epochs", "2", "--steps-per-loop", "5")

# --------------------------------------------------------------------------------------------------
# Content
# --------------------------------------------------------------------------------------------------


def test_checkpoints_hold_weights_slots_and_counters(train_once):
    contents = query("runs.read_contents", train_once(*FLAGS))
    last = contents["last"]
    best = contents["best"]
    counters = {"step", "names", "history", "save_counter"}
    assert set(best) == {"model", *counters}
    assert set(last) == {"model", "optimizer", *counters}
    # Six weights and the random state of Dropout. Adam has two moments of each weight, its step
    # and its learning rate. Metrics are not saved.
    assert len(last["model"]) == len(best["model"]) == 6 + 1
    assert len(last["optimizer"]) == 2 + 2 * 6


# --------------------------------------------------------------------------------------------------
# Corrupt checkpoints
# --------------------------------------------------------------------------------------------------

# A run of half the epochs of the expected one. Its last checkpoints are of steps 214 and 234.
CORRUPT_FLAGS = ("--global-batch-size", "16", "--checkpoint-every-steps", "20", "--epochs")


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def garble(path):
    path.write_bytes(b"\xff\xfe\x00")


# What is done to which files of checkpoints/, the checkpoint that the output names, and the step at
# which the run resumes.
CORRUPTIONS = {
    "data cut": (cut, "last/ckpt-234.data*", "last/ckpt-234", 214),
    "data flipped": (flip, "last/ckpt-234.data*", "last/ckpt-234", 214),
    "data empty": (empty, "last/ckpt-234.data*", "last/ckpt-234", 214),
    "data missing": (os.remove, "last/ckpt-234.data*", "last/ckpt-234", 214),
    "index cut": (cut, "last/ckpt-234.index", "last/ckpt-234", 214),
    "index flipped": (flip, "last/ckpt-234.index", "last/ckpt-234", 214),
    "index empty": (empty, "last/ckpt-234.index", "last/ckpt-234", 214),
    "index missing": (os.remove, "last/ckpt-234.index", "last/ckpt-234", 214),
    "list empty": (empty, "last/checkpoint", None, 234),
    "list missing": (os.remove, "last/checkpoint", None, 234),
    "list garbled": (garble, "last/checkpoint", None, 234),
    "best flipped": (flip, "best/ckpt-234.data*", "best/ckpt-234", 234),
    "two indexes cut": (cut, "last/ckpt-2*.index", "last/ckpt-214", 194),
}
SHORT_CORRUPTIONS = ("data flipped", "best flipped")
LONG_CORRUPTIONS = tuple(name for name in CORRUPTIONS if name not in SHORT_CORRUPTIONS)


def apply_corruption(run_dir, name):
    """Corrupt files of a run."""
    corrupt, pattern, _, _ = CORRUPTIONS[name]
    paths = list((run_dir / "checkpoints").glob(pattern))
    assert paths
    for path in paths:
        corrupt(path)


def assert_names_checkpoint(output, named):
    """Assert that the last line about a corrupt checkpoint names one, or that there is no line."""
    lines = [line for line in output.splitlines() if "is incomplete or corrupt" in line]
    if named is None:
        assert not lines
    else:
        assert f"/{named} is incomplete or corrupt" in lines[-1]


@pytest.mark.parametrize(
    "names",
    [SHORT_CORRUPTIONS, pytest.param(LONG_CORRUPTIONS, marks=LONG)],
    ids=["some", "others"],
)
def test_resume_skips_a_corrupt_checkpoint(names, complete_script, train_once, tmp_path):
    half = train_once(*CORRUPT_FLAGS, "3")
    expected = train_once(*CORRUPT_FLAGS, "6")
    script = write_variant(complete_script, tmp_path)
    for name in names:
        shutil.copytree(half, tmp_path / name)
        apply_corruption(tmp_path / name, name)
        _, _, named, step = CORRUPTIONS[name]
        output = train(script, *CORRUPT_FLAGS, "6", "--run-dir", tmp_path / name)
        assert_names_checkpoint(output, named)
        assert f"resumed at step {step}\n" in output, name
        assert read_numbers(tmp_path / name) == read_numbers(expected), name
    runs = [tmp_path / name for name in names]
    *hashes, expected_hashes = query("runs.hash_checkpoints", *runs, expected)
    assert dict(zip(names, hashes, strict=True)) == dict.fromkeys(names, expected_hashes)


@pytest.mark.long
@pytest.mark.parametrize("corrupt", [cut, os.remove])
def test_resume_rejects_a_run_without_a_complete_checkpoint(
    corrupt, complete_script, train_once, tmp_path
):
    script = write_variant(complete_script, tmp_path)
    run_dir = tmp_path / "run"
    shutil.copytree(train_once(*CORRUPT_FLAGS, "3"), run_dir)
    for path in (run_dir / "checkpoints" / "last").glob("ckpt-*"):
        corrupt(path)
    log = (run_dir / "metrics.jsonl").read_bytes()
    outcome = run_script(script, *CORRUPT_FLAGS, "6")
    assert_fails(outcome, 2, "--run-dir run", "no checkpoint in checkpoints/last")
    assert (run_dir / "metrics.jsonl").read_bytes() == log


def test_evaluation_of_the_last_checkpoint_needs_no_best_one(complete_script, train_once, tmp_path):
    script = write_variant(complete_script, tmp_path)
    shutil.copytree(train_once("--epochs", "3"), tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints" / "best").glob("ckpt-*.data-*"):
        cut(path)
    output = train(script, "--mode", "evaluate", "--export", "last")
    assert "of run/checkpoints/last/ckpt-57" in output
    assert "corrupt" not in output


def test_essential_script_ignores_renamed_checkpoints(essential_script, train_once, tmp_path):
    script = write_variant(essential_script, tmp_path)
    shutil.copytree(train_once("--epochs", "2"), tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "last"
    shutil.copy(folder / "ckpt-38.index", folder / "ckpt-38-old.index")
    assert "resumed at step 38" in train(script, "--epochs", "3")


@pytest.mark.parametrize("kind", ["last", "best"])
def test_essential_script_rejects_a_corrupt_checkpoint(
    kind, essential_script, train_once, tmp_path
):
    script = write_variant(essential_script, tmp_path)
    shutil.copytree(train_once("--epochs", "2"), tmp_path / "run")
    [data] = (tmp_path / "run" / "checkpoints" / kind).glob("ckpt-38.data-*")
    cut(data)
    flags = {"last": ("--epochs", "3"), "best": ("--mode", "evaluate")}[kind]
    assert_fails(run_script(script, *flags), 2, f"checkpoints/{kind}/ckpt-38 is corrupt")


def respect_permissions():
    """Let root respect the permissions of files, from the next exec on. Others do so anyway."""
    pr_capbset_drop, cap_dac_override = 24, 1
    ctypes.CDLL(None).prctl(pr_capbset_drop, cap_dac_override, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has prctl")
@pytest.mark.parametrize("folder", ["checkpoints/last", "tensorboard/train"])
def test_essential_script_names_a_folder_of_another_user(
    folder, essential_script, train_once, tmp_path
):
    script = write_variant(essential_script, tmp_path)
    run_dir = shutil.copytree(train_once("--epochs", "2"), tmp_path / "run")
    (run_dir / folder).chmod(0o500)
    outcome = finish(start(script, "--epochs", "3", preexec_fn=respect_permissions))
    assert_fails(outcome, 1, f"run/{folder}", "Permission denied", "change the owner")


@pytest.mark.parametrize("line", ['{"accuracy": 1}', "{1}"])
def test_essential_script_names_a_log_with_another_line(
    line, essential_script, train_once, tmp_path
):
    script = write_variant(essential_script, tmp_path)
    run_dir = shutil.copytree(train_once("--epochs", "2"), tmp_path / "run")
    with (run_dir / "metrics.jsonl").open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")
    with assert_unchanged(run_dir):
        outcome = run_script(script, "--epochs", "3")
    assert_rejected(outcome, "run/metrics.jsonl can't be read", "correct or restore it")


def test_essential_script_resumes_from_the_checkpoint_before(
    essential_script, train_once, tmp_path
):
    """The user removes a corrupt checkpoint, as the error says."""
    script = write_variant(essential_script, tmp_path)
    shutil.copytree(train_once("--epochs", "2"), tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints" / "last").glob("ckpt-38.*"):
        path.unlink()
    assert "resumed at step 19" in train(script, "--epochs", "3")
    assert read_numbers(tmp_path / "run") == read_numbers(train_once("--epochs", "3"))


@pytest.mark.parametrize("left", ["best", "export"])
@pytest.mark.parametrize("kind", ["essential", "complete", "parameter_server"])
def test_new_run_replaces_no_older_one(kind, left, all_scripts, train_once, tmp_path):
    """The user has removed the last checkpoints, to start again, or all, to make room."""
    script = write_variant(all_scripts[kind], tmp_path)
    run_dir = tmp_path / "run"
    shutil.copytree(train_once("--epochs", "2"), run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "last")
    if left == "best":
        shutil.rmtree(run_dir / "export")
    else:
        shutil.rmtree(run_dir / "checkpoints")
    with assert_unchanged(run_dir):
        outcome = run_script(script, "--epochs", "1")
    assert_rejected(outcome, "--run-dir run", "use another or new folder")


def test_essential_script_keeps_a_run_without_a_complete_checkpoint(
    essential_script, train_once, tmp_path
):
    script = write_variant(essential_script, tmp_path)
    run_dir = tmp_path / "run"
    shutil.copytree(train_once("--epochs", "2"), run_dir)
    for index in (run_dir / "checkpoints" / "last").glob("ckpt-*.index"):
        cut(index)
    with assert_unchanged(run_dir):
        outcome = run_script(script, "--epochs", "3")
    assert_rejected(outcome, "no complete last checkpoint")


def test_essential_script_removes_only_its_own_checkpoints(essential_script, tmp_path):
    script = write_variant(essential_script, tmp_path, SMALL_IMAGES)
    other = tmp_path / "checkpoints" / "pretrained" / "weights.h5"
    other.parent.mkdir(parents=True)
    other.touch()
    train(script, "--epochs", "1", "--global-batch-size", "16", "--run-dir", ".")
    assert other.exists()


def test_missing_file_of_a_hook_is_no_error_of_the_run_directory(essential_script, tmp_path):
    code = run_before("create_datasets", 'open("data.csv")')
    script = write_variant(essential_script, tmp_path, code)
    outcome = run_script(script, "--run-dir", ".")
    assert outcome.code == 1
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'" in outcome.errors


def test_essential_script_skips_a_checkpoint_that_a_kill_cut_short(
    essential_script, train_once, tmp_path
):
    # TensorFlow writes the index last, under its final name. A kill may also leave the folder that
    # it writes the data to.
    script = write_variant(essential_script, tmp_path)
    shutil.copytree(train_once("--epochs", "2"), tmp_path / "run")
    for kind in ("last", "best"):
        index = tmp_path / "run" / "checkpoints" / kind / "ckpt-38.index"
        cut(index)
        index.with_name("ckpt-30_temp").mkdir()
    assert "resumed at step 19\n" in train(script, "--epochs", "3")
    assert_same_run(tmp_path / "run", train_once("--epochs", "3"))


# --------------------------------------------------------------------------------------------------
# Kills while checkpoints are written
# --------------------------------------------------------------------------------------------------

# Kill the process when it has written the last checkpoint of an epoch, and not yet the best.
DIE_AFTER_LAST = """
@wraps_original
def write_file(original, name, text):
    original(name, text)
    if name == "checkpoints/last/checkpoint" and f'"ckpt-{os.environ.get("DIE_AT")}"' in text:
        os._exit(9)
"""
# Kill the process when it has written a last checkpoint, and not yet TensorFlow's list of them.
DIE_BEFORE_LIST = """
@wraps_original
def write_file(original, name, text):
    if name == "checkpoints/last/checkpoint" and "DIE_AT" in os.environ:
        os._exit(9)
    original(name, text)
"""


@pytest.mark.parametrize(
    ("step", "flags"),
    [
        pytest.param(156, FLAGS, marks=LONG),
        # Without --checkpoint-every-steps, there is no other checkpoint to resume from.
        pytest.param(78, FLAGS[:4], marks=LONG),
    ],
    ids=["second epoch", "first epoch"],
)
def test_run_killed_between_last_and_best_checkpoint_resumes(
    step, flags, complete_script, train_once, tmp_path
):
    script = write_variant(complete_script, tmp_path, DIE_AFTER_LAST)
    run_dir = tmp_path / "run"
    outcome = run_script(script, *flags, env=environment(DIE_AT=str(step)))
    assert outcome.code == 9, outcome
    assert list_checkpoints(run_dir, "last")[-1] == step
    assert step not in list_checkpoints(run_dir, "best")
    assert f"resumed at step {step}\n" in train(script, *flags)
    assert_same_run(run_dir, train_once(*flags))


@pytest.mark.long
def test_run_killed_before_its_first_checkpoint_is_listed_resumes(
    complete_script, train_once, tmp_path
):
    script = write_variant(complete_script, tmp_path, DIE_BEFORE_LIST)
    outcome = run_script(script, *FLAGS, env=environment(DIE_AT="13"))
    assert outcome.code == 9, outcome
    assert not (tmp_path / "run" / "checkpoints" / "last" / "checkpoint").exists()
    assert "resumed at step 13" in train(script, *FLAGS)
    assert_same_run(tmp_path / "run", train_once(*FLAGS))


# Kill the process when it has written the files of a checkpoint, and not yet TensorFlow's list.
DIE_AFTER_FILES = """
write = tf.train.Checkpoint._write  # of `write` and `save`
written = []

def write_and_die(checkpoint, *args, **options):
    path = write(checkpoint, *args, **options)
    written.append(path)
    if len(written) == int(os.environ.get("DIE_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    return path

tf.train.Checkpoint._write = write_and_die
"""


# Each epoch of 78 steps has five checkpoints, then "last" and "best".
@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
@pytest.mark.parametrize(
    "number",
    [1, pytest.param(6, marks=LONG), 7, pytest.param(13, marks=LONG)],
)
def test_run_killed_between_a_checkpoint_and_its_list_resumes(
    number, size, scripts, train_once, tmp_path
):
    script = write_variant(scripts[size], tmp_path, DIE_AFTER_FILES)
    outcome = run_script(script, *FLAGS, env=environment(DIE_AT=str(number)))
    assert outcome.code == -signal.SIGKILL, outcome
    assert "resumed at step " in train(script, *FLAGS)
    assert_same_run(tmp_path / "run", train_once(*FLAGS))


# The signal comes between two checkpoints.
TERM_AT_42 = """
@wraps_original
def log(original, split, values):
    if state.step == 42 and "STOP" in os.environ:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)  # another thread handles the signal
    return original(split, values)
"""


def test_sigterm_saves_a_step_of_which_a_kill_has_left_a_part(
    complete_script, train_once, tmp_path
):
    script = write_variant(complete_script, tmp_path, TERM_AT_42)
    flags = ("--steps-per-loop", "5", "--epochs")
    shutil.copytree(train_once(*flags, "2"), tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "last" / "ckpt-42.data-00000-of-00001").touch()
    outcome = run_script(script, *flags, "3", env=environment(STOP="1"))
    assert_fails(outcome, 143, "interrupted")
    assert "saved at step 42\n" in outcome.output
    assert "resumed at step 42\n" in train(script, *flags, "3")
    assert_same_run(tmp_path / "run", train_once(*flags, "3"))


# --------------------------------------------------------------------------------------------------
# Initial weights
# --------------------------------------------------------------------------------------------------

SOURCES = [
    "run",
    pytest.param("run/checkpoints/last/ckpt-38", marks=LONG),
    pytest.param("run/export/model.keras", marks=LONG),
    pytest.param("run/export", marks=LONG),
]


@pytest.mark.parametrize("source", SOURCES)
def test_initial_weights_come_from_a_run(source, complete_script, train_once, tmp_path):
    path = train_once(*SHORT).parent / source
    script = write_variant(complete_script, tmp_path)
    output = train(script, *SHORT, "--init-checkpoint", path)
    assert f"{path}: loaded 6 of 6 weights\n" in output
    assert "name or shape" not in output
    first = read_split(tmp_path / "run", "train")[0]
    cold = read_split(train_once(*SHORT), "train")[0]
    assert first["loss"] < 0.7 * cold["loss"]


# The image model with one more class, and a name for its first dense layer.
OTHER_MODEL = replace_image_model(
    "keras.layers.Rescaling(1 / 16)",
    'keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="silu")',
    "keras.layers.Flatten()",
    'keras.layers.Dense(64, activation="silu", name="hidden")',
    "keras.layers.Dense(11)",
)


@pytest.mark.long
def test_initial_weights_that_do_not_fit_are_named(complete_script, train_once, tmp_path):
    path = train_once(*SHORT)
    script = write_variant(complete_script, tmp_path, OTHER_MODEL)
    output = train(script, *SHORT, "--init-checkpoint", path)
    assert "loaded 2 of 6 weights" in output
    lines = [line for line in output.splitlines() if "name or shape" in line]
    # Keras counts the layers without a name, so the last layer is now the first such Dense.
    for name in ("sequential/hidden/kernel", "sequential/dense/kernel"):
        assert any(name in line for line in lines), output


@pytest.mark.long
@pytest.mark.parametrize("path", ["nothing", ".", "train.py", "empty.keras"])
def test_initial_weights_without_a_checkpoint_are_rejected(path, complete_script, tmp_path):
    (tmp_path / "empty.keras").touch()
    script = write_variant(complete_script, tmp_path)
    outcome = run_script(script, "--init-checkpoint", path)
    assert_fails(outcome, 2, f"--init-checkpoint {path} is no run, checkpoint or .keras file")


NAN_WEIGHTS = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, optimizer = original(strategy)
    weight = model.trainable_variables[-1]
    weight.assign(tf.fill(weight.shape, math.nan))
    return model, optimizer
"""


def test_initial_weights_that_are_not_finite_are_rejected(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, NAN_WEIGHTS)
    outcome = run_script(script, "--global-batch-size", "16")
    assert_rejected(outcome, "a weight is not finite before the first step")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_resumed_run_does_not_load_initial_weights_again(complete_script, train_once, tmp_path):
    path = train_once(*SHORT)
    script = write_variant(complete_script, tmp_path)
    flags = ("--init-checkpoint", path, "--steps-per-loop", "5", "--epochs")
    train(script, *flags, "1")
    output = train(script, *flags, "2")
    assert "loaded" not in output
    assert "resumed at step 19" in output


@pytest.mark.long
def test_initial_weights_of_another_task_are_rejected(projects, first_runs, tmp_path):
    script = write_variant(projects["tabular_regression"] / "train.py", tmp_path)
    outcome = run_script(script, "--init-checkpoint", first_runs["text_classification"])
    assert_fails(outcome, 2, "has no weight with the name and shape")


def test_saved_model_is_not_executed(complete_script, train_once, tmp_path):
    witness = tmp_path / "witness"
    assert query("runs.write_saved_model_trap", tmp_path / "trap", witness)
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    flags = ("--global-batch-size", "16", "--epochs", "1", "--init-checkpoint", "trap")
    message = "--init-checkpoint trap is no run, checkpoint or .keras file"
    assert_rejected(run_script(script, *flags), message)
    assert not (tmp_path / "run").exists()
    # An export has the model beside it, in a file of which nothing is executed.
    shutil.copy(train_once(*SHORT) / "export" / "model.keras", tmp_path / "trap")
    assert "trap: loaded 6 of 6 weights" in train(script, *flags)
    assert not witness.exists()


def test_code_in_a_keras_file_is_not_executed(complete_script, tmp_path):
    witness = tmp_path / "witness"
    assert query("runs.write_keras_trap", tmp_path / "trap.keras", witness)
    script = write_variant(complete_script, tmp_path)
    with assert_unchanged(tmp_path):
        outcome = run_script(script, "--init-checkpoint", "trap.keras")
    message = "--init-checkpoint trap.keras is no run, checkpoint or .keras file"
    assert_fails(outcome, 2, message, "Lambda")
    assert not witness.exists()


# --------------------------------------------------------------------------------------------------
# Weights that are not finite
# --------------------------------------------------------------------------------------------------

KINDS = ["essential", "complete", pytest.param("parameter_server", marks=pytest.mark.long)]


@pytest.mark.parametrize("kind", KINDS)
def test_resume_at_the_end_of_an_epoch_leaves_its_checkpoint(kind, all_scripts, tmp_path):
    """A kill while the same files are written again would leave a corrupt one."""
    script = write_variant(all_scripts[kind], tmp_path)
    train(script, "--epochs", "1")
    paths = list((tmp_path / "run" / "checkpoints" / "last").glob("ckpt-19.*"))
    assert len(paths) == 2
    before = [path.stat() for path in paths]
    assert "resumed at step 19" in train(script, "--epochs", "2")
    after = [path.stat() for path in paths]
    for name in ("st_ino", "st_mtime_ns"):
        assert [getattr(each, name) for each in after] == [getattr(each, name) for each in before]


COUNT_CHECKS = """
@wraps_original
def sum_variables(original):
    with open("checks", "a") as file:
        print(state.step, file=file)
    return original()
"""


@pytest.fixture(params=["essential", "parameter_server"])
def small_script(request, all_scripts):
    """Return a script that reads all weights only before it saves them."""
    return all_scripts[request.param]


def test_weights_are_checked_only_before_they_are_saved(small_script, tmp_path):
    script = write_variant(small_script, tmp_path, COUNT_CHECKS)
    train(script, "--epochs", "2", "--steps-per-loop", "4")  # five loops an epoch
    steps = list(map(int, (tmp_path / "checks").read_text().split()))
    assert sorted(set(steps)) == [19, 38]


@pytest.mark.parametrize("variable", ["model.trainable_variables[0]", "optimizer.variables[-1]"])
def test_variable_that_is_not_finite_is_not_saved(variable, small_script, tmp_path):
    code = f"""
@wraps_original
def log(original, split, values):
    if split == "train" and state.step == 38:
        variable = {variable}
        variable.assign(tf.fill(variable.shape, math.nan))
    return original(split, values)
"""
    script = write_variant(small_script, tmp_path, code)
    outcome = run_script(script, "--epochs", "3")
    assert_fails(outcome, 1, "not finite at step 38", "--learning-rate")
    assert list_checkpoints(tmp_path / "run") == [19]


def test_last_three_checkpoints_remain(small_script, tmp_path):
    script = write_variant(small_script, tmp_path)
    train(script, "--epochs", "2", "--checkpoint-every-steps", "8", "--steps-per-loop", "4")
    steps = list_checkpoints(tmp_path / "run")
    assert len(steps) == 3
    assert steps[-1] == 38


def test_run_resumes_no_later_than_its_corrupt_best_checkpoint(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, RISING_LOSS, NO_EXPORT)
    flags = ("--global-batch-size", "16", "--epochs")
    train(script, *flags, "3")
    [data] = (tmp_path / "run" / "checkpoints" / "best").glob("ckpt-8.data*")
    flip(data)
    assert "resumed at step 8\n" in train(script, *flags, "4")


# The file is corrupt after the last epoch, before the test.
CORRUPT_BEST = """
@wraps_original
def test_best_checkpoint(original, test_set):
    for path in run_path("checkpoints/best").glob("*.data*"):
        path.write_bytes(b"")
    original(test_set)
"""


def test_last_checkpoint_is_tested_despite_a_corrupt_best_one(complete_script, tmp_path):
    code = (SMALL_IMAGES, RISING_LOSS, NO_EXPORT, CORRUPT_BEST)
    script = write_variant(complete_script, tmp_path, *code)
    output = train(script, "--global-batch-size", "16", "--epochs", "3", "--export", "last")
    assert "checkpoints/last/ckpt-24\n" in output
