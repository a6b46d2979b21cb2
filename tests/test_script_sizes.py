"""The essential and the complete script are one program.

They give bit-identical results, and an edited essential script grows into a complete one by a
merge.
"""

import shutil
import signal
import subprocess

import pytest
from rendering import SIZES, TASKS
from running import (
    FLAGS,
    WORKERS,
    assert_one_line,
    assert_same_run,
    assert_succeeded,
    finish,
    finish_all,
    flags_of,
    fork,
    start_workers,
    train,
    wait_for_lines,
)
from variants import SMALL_DATA, edit_all_hooks, list_hooks, write_copies, write_variant

LONG = pytest.mark.long


# --------------------------------------------------------------------------------------------------
# Bit-identical results
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "replicas"),
    [
        ("image_classification", 2),
        ("tabular_regression", 1),
        pytest.param("text_classification", 1, marks=LONG),
    ],
)
def test_sizes_are_bit_identical(task, replicas, task_scripts, tmp_path):
    flags = ("--epochs", "2", "--checkpoint-every-steps", "3", *flags_of(replicas))
    for size, script in task_scripts[task].items():
        write_copies(script, [tmp_path / size], SMALL_DATA[task])
        train(tmp_path / size / "train.py", *flags)
    assert_same_run(tmp_path / "essential" / "run", tmp_path / "complete" / "run")


def test_compiled_sizes_are_bit_identical(scripts, train_once, tmp_path):
    flags = ("--epochs", "2", "--jit-compile")
    code = SMALL_DATA["image_classification"]
    train(write_variant(scripts["essential"], tmp_path, code), *flags)
    assert_same_run(tmp_path / "run", train_once(*flags, code=(code,)))


@pytest.mark.parametrize("size", SIZES)
def test_folder_of_the_script_may_be_the_run_directory(size, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, SMALL_DATA["image_classification"])
    before = script.read_bytes()
    train(script, "--epochs", "1", "--run-dir", ".")
    assert script.read_bytes() == before


ONE_REPLICA = "one replica"
TWO_WORKERS = "two workers"


def begin(place, script):
    """Start a script on one replica or on two workers. Return the processes."""
    if place == TWO_WORKERS:
        return start_workers(script, WORKERS, *FLAGS)
    return [fork(script, *FLAGS)]


def assert_ended(process, target, number):
    """Assert how a process ended after a signal to the target, which may be another worker."""
    outcome = finish(process, timeout=60)
    if number == signal.SIGKILL and process is target:
        assert (outcome.code, outcome.errors) == (-signal.SIGKILL, "")
        return
    assert outcome.code == 143, outcome
    # A signal to one worker has all workers save. A kill is noticed as the failure of a worker.
    assert_one_line(outcome.errors, "saved at step" if number == signal.SIGTERM else "")


@pytest.mark.parametrize(
    ("number", "place"),
    [
        (signal.SIGTERM, ONE_REPLICA),
        pytest.param(signal.SIGKILL, ONE_REPLICA, marks=LONG),
        pytest.param(signal.SIGTERM, TWO_WORKERS, marks=LONG),
        pytest.param(signal.SIGKILL, TWO_WORKERS, marks=LONG),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_interrupted_essential_script_is_bit_identical(
    number, place, essential_script, train_once, tmp_path, chance
):
    script = write_variant(essential_script, tmp_path)
    run_dir = tmp_path / "run"
    for _ in range(1 if place == TWO_WORKERS else 2):
        processes = begin(place, script)
        wait_for_lines(run_dir, chance.randint(2, 6), *processes)
        target = chance.choice(processes)
        target.send_signal(number)
        for process in processes:
            assert_ended(process, target, number)
    outcomes = finish_all(begin(place, script))
    assert_succeeded(outcomes)
    assert "resumed at step " in outcomes[0].output
    replicas = 2 if place == TWO_WORKERS else 1
    assert_same_run(run_dir, train_once(*FLAGS, *flags_of(replicas)))


# --------------------------------------------------------------------------------------------------
# Growth
# --------------------------------------------------------------------------------------------------


def merge(mine, essential, complete):
    """Merge the complete script into an edited essential one."""
    folder = mine.parent
    shutil.copy(essential, folder / "essential.py")
    shutil.copy(complete, folder / "complete.py")
    finished = subprocess.run(
        ["git", "merge-file", mine.name, "essential.py", "complete.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("task", TASKS)
def test_edited_essential_script_grows_by_a_merge(task, task_scripts, tmp_path):
    essential = task_scripts[task]["essential"]
    complete = task_scripts[task]["complete"]
    text = essential.read_text(encoding="utf-8")
    assert len(list_hooks(text)) > 10
    mine = tmp_path / "train.py"
    mine.write_text(edit_all_hooks(text), encoding="utf-8")
    merge(mine, essential, complete)
    expected = edit_all_hooks(complete.read_text(encoding="utf-8"))
    assert mine.read_text(encoding="utf-8") == expected


@pytest.mark.long
def test_grown_script_resumes_the_run(task_scripts, tmp_path):
    scripts = task_scripts["image_classification"]
    mine = tmp_path / "train.py"
    mine.write_text(edit_all_hooks(scripts["essential"].read_text("utf-8")), encoding="utf-8")
    train(mine, "--epochs", "1")
    merge(mine, scripts["essential"], scripts["complete"])
    assert "resumed at step 19" in train(mine, "--epochs", "2", "--patience", "5")
