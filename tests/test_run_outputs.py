"""What a run prints and writes: progress, log, checkpoints, TensorBoard, export, configuration."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import (
    environment,
    find_flags,
    finish,
    read_metrics,
    read_numbers,
    read_split,
    run_python,
    start,
    train,
)
from variants import replace_image_model, write_variant

LONG = pytest.mark.long
NUMBERS = {"loss", "accuracy"}

# --------------------------------------------------------------------------------------------------
# A run with the defaults
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["complete", pytest.param("essential", marks=LONG)])
def size(request):
    return request.param


@pytest.fixture(scope="module")
def default_run(size, once, scripts, tmp_path_factory):
    """Return the folder of a script that ran with the defaults, and its output."""

    def run_alone(size):
        script = write_variant(scripts[size], tmp_path_factory.mktemp("alone"))
        return str(script.parent), train(script, begin=start)

    folder, output = once(run_alone, size)
    return Path(folder), output


def test_default_run_learns(default_run):
    folder, output = default_run
    line = read_numbers(folder / "run")[-1]
    assert line["split"] == "test"
    assert line["accuracy"] >= 0.97
    assert f"test loss {line['loss']:.4f} accuracy {line['accuracy']:.4f}" in output


def test_output_to_a_file_has_plain_lines(default_run):
    _, output = default_run
    for character in ("\x1b", "\r", "█"):
        assert character not in output
    lines = output.splitlines()
    epochs = [line.split()[1] for line in lines if line.startswith("epoch ")]
    assert epochs == [f"{epoch}/30" for epoch in range(1, 31)]
    assert lines[0].startswith("one_device on 1 × CPU, 19 steps ")


def find_best_steps(run_dir):
    """Return the steps at which the validation loss was lower than ever before."""
    steps = []
    lowest = float("inf")
    for line in read_split(run_dir, "validation"):
        if line["loss"] < lowest:
            lowest = line["loss"]
            steps.append(line["step"])
    return steps


def list_expected_checkpoints(run_dir, size):
    """Return the files of checkpoints/ after a run with the defaults."""
    kept = 1 if size == "complete" else 3
    best_steps = find_best_steps(run_dir)[-kept:]
    files = {"checkpoints"}
    for kind, steps in {"last": [532, 551, 570], "best": best_steps}.items():
        folder = f"checkpoints/{kind}"
        files |= {folder, f"{folder}/checkpoint"}
        for step in steps:
            files |= {f"{folder}/ckpt-{step}.index", f"{folder}/ckpt-{step}.data-00000-of-00001"}
    return files


EXPORT_FILES = {
    "export",
    "export/model.keras",
    "export/saved_model.pb",
    "export/fingerprint.pb",
    "export/assets",
    "export/variables",
    "export/variables/variables.index",
    "export/variables/variables.data-00000-of-00001",
}
RUN_FILES = {"adapted.json", "config.json", "metrics.jsonl", "train.py"}
EVENT_FOLDERS = [f"tensorboard/{split}" for split in ("test", "train", "validation")]


def test_run_directory_has_the_documented_files(size, default_run):
    folder, _ = default_run
    run_dir = folder / "run"
    assert {path.name for path in folder.iterdir()} == {"train.py", "run"}
    found = {path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*")}
    events = {path for path in found if ".tfevents." in path}
    assert sorted(path.rpartition("/")[0] for path in events) == EVENT_FOLDERS
    expected = {*RUN_FILES, "tensorboard", *EVENT_FOLDERS}
    expected |= EXPORT_FILES | list_expected_checkpoints(run_dir, size)
    assert found - events == expected
    assert (run_dir / "train.py").read_bytes() == (folder / "train.py").read_bytes()


def test_config_has_every_flag(default_run):
    folder, _ = default_run
    config = json.loads((folder / "run" / "config.json").read_text(encoding="utf-8"))
    flags = find_flags(folder / "train.py")
    assert len(flags) > 10
    assert {flag.lstrip("-").replace("-", "_") for flag in flags} <= set(config)
    assert config["epochs"] == 30


def test_config_has_strategy_versions_and_commit(default_run):
    folder, _ = default_run
    config = json.loads((folder / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["strategy"] == "one_device"
    assert config["replicas"] == 1
    assert config["git_commit"] is None
    assert config["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"tensorflow", "keras"} <= set(config["versions"])


def test_log_has_a_line_per_loop_and_validation(default_run):
    lines = read_metrics(default_run[0] / "run")
    found = [(line["split"], line["epoch"], line["step"]) for line in lines]
    expected = []
    for epoch in range(1, 31):
        expected += [("train", epoch, 19 * epoch), ("validation", epoch, 19 * epoch)]
    assert found == [*expected, ("test", 30, 570)]


def test_log_lines_have_the_documented_keys(size, default_run):
    train_numbers = NUMBERS | {"learning_rate", "examples_per_second"}
    if size == "complete":
        train_numbers |= {"input_wait"}
    for line in read_metrics(default_run[0] / "run"):
        is_train = line["split"] == "train"
        assert set(line) == {"step", "epoch", "split"} | (train_numbers if is_train else NUMBERS)
        assert list(line)[:4] == ["step", "epoch", "split", "loss"]
        if is_train:
            assert line["learning_rate"] == pytest.approx(2e-3)
            assert 1 < line["examples_per_second"] < 1e7
            assert 0 <= line.get("input_wait", 0) <= 1


# --------------------------------------------------------------------------------------------------
# Terminals
# --------------------------------------------------------------------------------------------------


def read_terminal(terminal):
    """Return what is written to a terminal until its other end is closed."""
    output = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # On Linux this is how the end is reported.
            return output.decode("utf-8")
        if not piece:
            return output.decode("utf-8")
        output += piece


def train_in_terminal(script, columns, *flags):
    """Train in a terminal of some width. Return the texts that were shown, one by one."""
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, script.name, *flags],
        cwd=script.parent,
        env=environment(TERM="xterm", COLUMNS=str(columns)),
        stdout=other_end,
        stderr=subprocess.PIPE,
    )
    os.close(other_end)
    output = read_terminal(terminal)
    os.close(terminal)
    assert finish(process).code == 0
    return output.split("\r\x1b[K")


@pytest.mark.parametrize(
    ("size", "columns"),
    [
        ("essential", 60),
        pytest.param("essential", 200, marks=LONG),
        pytest.param("complete", 60, marks=LONG),
        pytest.param("complete", 80, marks=LONG),
    ],
)
def test_terminal_shows_a_progress_bar(size, columns, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path)
    texts = train_in_terminal(script, columns, "--epochs", "2", "--steps-per-loop", "5")
    bars = [text for text in texts if "█" in text or "░" in text]
    # After 4, 9, 14, 19, … of 38 steps. Each bar is erased before the next text.
    assert [bar.count("█") for bar in bars] == [1, 2, 3, 5, 6, 7, 8, 10]
    for bar in bars:
        assert re.search(r" \d:\d\d:\d\d left\s*$", bar), bar
    epochs = [text for text in texts if text.startswith("epoch")]
    assert_epoch_lines(epochs)
    assert_fit(bars, columns)
    assert_fit(epochs, columns)
    assert_have_metrics(epochs, columns)


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
def test_long_lines_are_cut_in_a_narrow_terminal(size, task_scripts, tmp_path):
    """With its metric of a long name, the line of a validation has more than 60 characters."""
    script = write_variant(task_scripts["tabular_regression"][size], tmp_path)
    texts = train_in_terminal(script, 60, "--epochs", "2")
    epochs = [text for text in texts if text.startswith("epoch")]
    assert_epoch_lines(epochs)
    assert_fit(epochs, 60)


def test_lines_of_a_file_are_not_cut(task_scripts, tmp_path):
    """Some programs export COLUMNS."""
    script = write_variant(task_scripts["tabular_regression"]["essential"], tmp_path)
    output = train(script, "--epochs", "1", env=environment(COLUMNS="60"))
    assert re.search(r"validation loss .* train loss .* mean_absolute_error \S+\.\d{4}\n", output)


def assert_epoch_lines(texts):
    """Assert that a terminal kept a line for each of two epochs."""
    assert [text.partition(" *")[0] for text in texts] == ["epoch   1/2", "epoch   2/2"]
    for text in texts:
        assert "validation loss" in text
        assert text.endswith("\r\n")


def assert_have_metrics(epochs, columns):
    """Assert that the lines of the epochs have metrics, if there is room."""
    for epoch in epochs:
        assert columns < 80 or "accuracy" in epoch


def assert_fit(texts, columns):
    """Assert that each text is one line of a terminal."""
    for text in texts:
        line = text.rstrip()
        assert "\n" not in line
        assert len(line) < columns


# --------------------------------------------------------------------------------------------------
# Other surroundings
# --------------------------------------------------------------------------------------------------


def test_import_does_nothing(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    assert run_python("import train; assert train.create_datasets", tmp_path) == ""
    assert list(tmp_path.iterdir()) == [script]


# Loops of 6 or 7 of 19 steps.
UNEVEN_LOOPS = ["--epochs", "3", "--steps-per-loop", "7", "--checkpoint-every-steps", "10"]


def test_main_trains_in_a_notebook_and_traces_each_step_once(complete_script, tmp_path):
    write_variant(complete_script, tmp_path)
    output = run_python(
        f"""import train
train.main({UNEVEN_LOOPS})
print("traced", train.run_steps.experimental_get_tracing_count())""",
        tmp_path,
    )
    assert output.splitlines()[-1] == "traced 3"  # training, validation and test
    steps = [line["step"] for line in read_split(tmp_path / "run", "train")]
    assert steps == [6, 12, 19, 25, 31, 38, 44, 50, 57]


def git(folder, *arguments):
    """Run git in a folder, as some author. Return its output."""
    finished = subprocess.run(
        [
            *("git", "-c", "user.name=x", "-c", "user.email=x@localhost"),
            *("-c", "commit.gpgsign=false", *arguments),
        ],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout.strip()


def assert_learned(run_dir):
    lines = read_split(run_dir, "train")
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_config_has_the_commit_and_flags_of_a_compiled_run(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    git(tmp_path, "init")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "--message", "x")
    train(script, "--jit-compile", "--epochs", "2", "--replicas", "2")
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["git_commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert config["jit_compile"] is True
    assert config["strategy"] == "mirrored"
    assert config["replicas"] == 2
    assert_learned(tmp_path / "run")


def test_deterministic_run_learns(train_once):
    assert_learned(train_once("--deterministic", "--epochs", "2"))


# --------------------------------------------------------------------------------------------------
# Waiting for data
# --------------------------------------------------------------------------------------------------

LARGE_BATCHES = ("--epochs", "2", "--global-batch-size", "128")
SLOW_INPUT = """
@wraps_original
def preprocess(original, batch, seeds, training):
    if training:
        tf.numpy_function(lambda: time.sleep(0.3), [], [])
    return original(batch, seeds, training)
"""
SLOW_MODEL = replace_image_model(
    "keras.layers.Flatten()",
    'keras.layers.Dense(60_000, activation="silu")',
    "keras.layers.Dense(10)",
)


def read_train_values(run_dir, name):
    """Return a value of the training lines after the first, most of which is tracing."""
    lines = [line for line in read_metrics(run_dir) if line["split"] == "train"]
    assert len(lines) > 1
    return [line[name] for line in lines[1:]]


def test_input_wait_is_large_for_slow_data(train_once):
    run_dir = train_once(*LARGE_BATCHES, code=(SLOW_INPUT,))
    assert min(read_train_values(run_dir, "input_wait")) > 0.5


@pytest.mark.long
def test_input_wait_is_small_for_a_slow_model(train_once):
    run_dir = train_once(*LARGE_BATCHES, code=(SLOW_MODEL,))
    assert max(read_train_values(run_dir, "input_wait")) < 0.3
    [speed] = read_train_values(run_dir, "examples_per_second")
    assert speed < 128 / 0.01  # A step takes at least 10 ms.
