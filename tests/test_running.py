"""What a run shows and leaves behind, on its own and with each of its flags."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import edit, environment, finish, read_metrics, read_numbers, start, train

NUMBERS = {"loss", "accuracy"}
TRAIN_NUMBERS = NUMBERS | {"learning_rate", "examples_per_second", "input_wait"}


def ask_python(script, code):
    """Run a program in the script's folder, as in a notebook there. Return its output."""
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=script.parent,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, ""), finished.stdout + finished.stderr
    return finished.stdout


# --------------------------------------------------------------------------------------------------
# A run with the defaults
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def default_run(once, script, tmp_path_factory):
    """Return the folder of a run with the defaults, of the script alone, and its output."""

    def run_alone():
        copy = edit(script, tmp_path_factory.mktemp("alone"))
        return str(copy.parent), train(copy, begin=start)  # which asserts that stderr is empty

    folder, output = once(run_alone)
    return Path(folder), output


def test_default_run_learns(default_run):
    folder, output = default_run
    test_line = read_numbers(folder / "run")[-1]
    assert test_line["split"] == "test"
    assert test_line["accuracy"] >= 0.97
    assert f"test loss {test_line['loss']:.4f} accuracy {test_line['accuracy']:.4f}" in output


def test_output_into_a_file_is_plain_lines(default_run):
    _, output = default_run
    assert "\x1b" not in output
    assert "\r" not in output
    assert "█" not in output
    lines = output.splitlines()
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs] == [f"{epoch}/30" for epoch in range(1, 31)]
    assert lines[0] == "one_device on 1 × CPU, 19 steps an epoch"


def test_run_directory_has_what_is_promised(default_run):
    folder, _ = default_run
    run_dir = folder / "run"
    assert {path.name for path in folder.iterdir()} == {"train.py", "run"}
    found = {path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*")}

    validated = [line for line in read_numbers(run_dir) if line["split"] == "validation"]
    best = min(validated, key=lambda line: line["loss"])
    numbers = {"last": [532, 551, 570], "best": [best["step"]]}
    expected = {"config.json", "train.py", "metrics.jsonl", "checkpoints", "tensorboard"}
    for kind, steps in numbers.items():
        expected |= {f"checkpoints/{kind}", f"checkpoints/{kind}/checkpoint"}
        for step in steps:
            name = f"checkpoints/{kind}/ckpt-{step}"
            expected |= {f"{name}.index", f"{name}.data-00000-of-00001"}
    events = {path for path in found if ".tfevents." in path}
    assert sorted(path.rpartition("/")[0] for path in events) == [
        f"tensorboard/{split}" for split in ("test", "train", "validation")
    ]
    expected |= {path.rpartition("/")[0] for path in events}
    expected |= {"export", "export/model.keras", "export/saved_model.pb", "export/fingerprint.pb"}
    expected |= {"export/assets", "export/variables", "export/variables/variables.index"}
    expected |= {"export/variables/variables.data-00000-of-00001"}
    assert found - events == expected
    assert (run_dir / "train.py").read_bytes() == (folder / "train.py").read_bytes()


def test_config_has_every_flag_and_the_surroundings(default_run):
    folder, _ = default_run
    config = json.loads((folder / "run" / "config.json").read_text(encoding="utf-8"))
    _, usage, _ = finish(start(folder / "train.py", "--help"))
    flags = {word for word in usage.replace(",", " ").split() if word.startswith("--")}
    flags = {flag.strip("[]") for flag in flags if not flag.startswith("--no-")} - {"--help"}
    assert len(flags) > 10
    assert {flag.lstrip("-").replace("-", "_") for flag in flags} <= set(config)
    assert config["epochs"] == 30
    assert config["strategy"] == "one_device"
    assert config["replicas"] == 1
    assert config["git_commit"] is None
    assert config["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"tensorflow", "keras"} <= set(config["versions"])


def test_log_has_a_line_an_interval_and_an_epoch(default_run):
    lines = read_metrics(default_run[0] / "run")
    shape = [(line["split"], line["epoch"], line["step"]) for line in lines]
    expected = [(split, n, 19 * n) for n in range(1, 31) for split in ("train", "validation")]
    assert shape == [*expected, ("test", 30, 570)]
    for line in lines:
        numbers = TRAIN_NUMBERS if line["split"] == "train" else NUMBERS
        assert set(line) == {"step", "epoch", "split"} | numbers
        assert list(line)[:4] == ["step", "epoch", "split", "loss"]
        if line["split"] == "train":
            assert line["learning_rate"] == pytest.approx(2e-3)
            assert 1 < line["examples_per_second"] < 1e7
            assert 0 <= line["input_wait"] <= 1


# --------------------------------------------------------------------------------------------------
# Flags and surroundings
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("size", ["essential", "complete"])
def test_terminal_shows_a_progress_bar(size, columns, essential, script, tmp_path):
    script = edit({"essential": essential, "complete": script}[size], tmp_path)
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, script.name, "--epochs", "2", "--steps-per-loop", "5"],
        cwd=tmp_path,
        env=environment(TERM="xterm", COLUMNS=str(columns)),
        stdout=its_end,
        stderr=subprocess.PIPE,
    )
    os.close(its_end)
    output = b""
    try:
        while piece := os.read(terminal, 4096):
            output += piece
    except OSError:  # Linux says so that the other end is closed.
        pass
    os.close(terminal)
    assert finish(process)[0] == 0
    shown = output.decode("utf-8").split("\r\x1b[K")
    bars = [text for text in shown if "█" in text or "░" in text]
    # Of 38 steps, after 4, 9, 14, 19, …; each is gone before the next text.
    assert [bar.count("█") for bar in bars] == [1, 2, 3, 5, 6, 7, 8, 10]
    assert all(re.search(r" \d:\d\d:\d\d left( +loss|$)", bar) for bar in bars)
    epochs = [text for text in shown if text.startswith("epoch")]
    assert [text.partition(" *")[0] for text in epochs] == ["epoch   1/2", "epoch   2/2"]
    assert all("validation loss" in text and text.endswith("\r\n") for text in epochs)
    assert all(len(text.rstrip()) < columns and "\n" not in text.rstrip() for text in bars + epochs)
    assert all("accuracy" in text for text in bars + epochs if columns >= 80)


def test_import_does_nothing(script, tmp_path):
    script = edit(script, tmp_path)
    assert ask_python(script, "import train; assert train.create_datasets") == ""
    assert list(tmp_path.iterdir()) == [script]


def test_main_trains_in_the_process_and_traces_each_step_once(script, tmp_path):
    script = edit(script, tmp_path)
    # Of 19 steps, a loop has 6 or 7.
    flags = ["--epochs", "3", "--steps-per-loop", "7", "--checkpoint-every-steps", "10"]
    output = ask_python(
        script,
        f"""import train
assert train.main({flags}) == 0
print("traced", train.run_steps.experimental_get_tracing_count())""",
    )
    assert output.splitlines()[-1] == "traced 3"  # of training, of validation and of the test
    steps = [line["step"] for line in read_metrics(tmp_path / "run") if line["split"] == "train"]
    assert steps == [6, 12, 19, 25, 31, 38, 44, 50, 57]


def test_run_without_tensorboard(script, tmp_path):
    script = edit(script, tmp_path)
    output = ask_python(
        script,
        """import runpy, sys
sys.modules["tensorboard"] = None  # An import raises, as without the package.
sys.argv = ["train.py", "--epochs", "1"]
try:
    runpy.run_path("train.py", run_name="__main__")
except SystemExit as end:
    assert end.code == 0""",
    )
    assert "written to run" in output
    assert len(read_metrics(tmp_path / "run")) == 3
    for split in ("train", "validation", "test"):  # for where there is one
        assert list((tmp_path / "run" / "tensorboard" / split).glob("events*"))


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_commit_is_recorded_and_xla_compiles(script, tmp_path):
    script = edit(script, tmp_path)

    def git(*command):
        who = ("-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *who, *command],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    git("init")
    git("add", "train.py")
    git("commit", "--message", "x")
    train(script, "--jit-compile", "--epochs", "2", "--replicas", "2")
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["git_commit"] == git("rev-parse", "HEAD")
    assert config["jit_compile"] is True
    assert config["strategy"] == "mirrored"
    assert config["replicas"] == 2
    assert_learned(tmp_path / "run")


def assert_learned(run_dir):
    lines = [line for line in read_numbers(run_dir) if line["split"] == "train"]
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]


def test_deterministic_run_learns(train_once):
    assert_learned(train_once("--deterministic", "--epochs", "2"))


# --------------------------------------------------------------------------------------------------
# Waiting for data
# --------------------------------------------------------------------------------------------------

SLOW_INPUT = (
    "    images, labels = batch\n",
    "    images, labels = batch\n"
    "    if training:\n"
    "        wait = lambda x: time.sleep(0.3) or x\n"
    "        labels = tf.ensure_shape(tf.numpy_function(wait, [labels], tf.int32), labels.shape)\n",
)
SLOW_MODEL = ('Dense(64, activation="silu")', 'Dense(20_000, activation="silu")')


def read_input_wait(run_dir):
    """Return the shares of the epochs after the first, most of which goes into tracing."""
    waits = [line["input_wait"] for line in read_metrics(run_dir) if line["split"] == "train"]
    assert len(waits) > 1
    return waits[1:]


def test_input_wait_shows_slow_data(train_once):
    flags = ("--epochs", "2", "--global-batch-size", "128")
    assert min(read_input_wait(train_once(*flags, edits=(SLOW_INPUT,)))) > 0.5


def test_input_wait_is_small_for_a_slow_model(train_once):
    flags = ("--epochs", "2", "--global-batch-size", "128")
    run_dir = train_once(*flags, edits=(SLOW_MODEL,))
    assert max(read_input_wait(run_dir)) < 0.3
    speed = [x["examples_per_second"] for x in read_metrics(run_dir) if x["split"] == "train"]
    assert speed[-1] < 128 / 0.01  # A step takes 10 ms or more.
