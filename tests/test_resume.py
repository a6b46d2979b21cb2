"""Resume is exact: whatever kills a run and however often, the same command again ends the same.

The moments of the kills are random. A failure shows their seed; FAULTS_SEED=… sets it.
"""

import re
import shutil
import signal
import time

import pytest
from conftest import (
    FLAGS,
    NO_DROPOUT,
    TIMEOUT,
    assert_same_run,
    edit,
    finish,
    flags_of,
    fork,
    hash_tree,
    read_numbers,
    start,
    train,
)

LAST_STEP = 4 * 78  # of a run with FLAGS


def wait_until(happened, processes):
    """Wait until something happened, while processes run."""
    end = time.monotonic() + TIMEOUT
    while not happened():
        for process in processes:
            assert process.poll() is None, finish(process)
        assert time.monotonic() < end
        time.sleep(0.002)


def count_lines(run_dir):
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def draw_moment(run_dir, lines, chance):
    """Return a function that says whether a random line of the log has been written.

    The last third is left out, so that a kill doesn't come too late.
    """
    count, step = count_lines(run_dir), read_step(run_dir)
    target = chance.randint(1, max(1, lines * 2 // 3))
    print(f"a kill at line {target} of {lines}, resuming at step {step}, {count} lines in the log")
    # The log has lines from before. Past the step that it has restored, the run is under way.
    return lambda: count_lines(run_dir) >= target and read_step(run_dir) > min(step, LAST_STEP - 1)


def read_step(run_dir):
    """Return the step of the newest whole checkpoint, 0 without one."""
    steps = (run_dir / "checkpoints" / "last").glob("ckpt-*.index")
    return max((int(re.search(r"ckpt-(\d+)", path.name)[1]) for path in steps), default=0)


def kill(process):
    process.kill()
    code, output, errors = finish(process)
    assert code == -signal.SIGKILL, "it had ended before the kill"
    assert errors == ""
    return output


# --------------------------------------------------------------------------------------------------
# Kills
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("replicas", "steps_per_loop", "kills"), [(1, "1", 1), (2, "7", 1)])
def test_killed_run_ends_as_an_undisturbed_one(
    replicas, steps_per_loop, kills, script, train_once, tmp_path, chance
):
    flags = (*FLAGS, *flags_of(replicas), "--steps-per-loop", steps_per_loop)
    expected = train_once(*flags)
    script = edit(script, tmp_path)
    run_dir = tmp_path / "run"
    lines = len(read_numbers(expected))
    for _ in range(kills):
        process = start(script, *flags)
        wait_until(draw_moment(run_dir, lines, chance), [process])
        time.sleep(chance.uniform(0, 0.05))
        kill(process)
        assert count_lines(run_dir) < lines
    kill_after_last_save(script, run_dir, flags)
    output = train(script, *flags)
    assert f"resumed at step {LAST_STEP} from run/checkpoints/last/ckpt-{LAST_STEP}" in output
    assert_same_run(run_dir, expected)


def kill_after_last_save(script, run_dir, flags):
    """Kill a run that has saved all that it will, and owes its test line and its export yet."""
    process = start(script, *flags)
    wait_until(lambda: read_step(run_dir) == LAST_STEP, [process])
    # The file's name comes before the rest of the checkpoint: wait for the epoch's end too.
    state = run_dir / "checkpoints" / "last" / "checkpoint"
    wait_until(lambda: f'"ckpt-{LAST_STEP}"' in state.read_text(), [process])
    kill(process)
    assert all(line["split"] != "test" for line in read_numbers(run_dir))
    assert not (run_dir / "export").exists()


# --------------------------------------------------------------------------------------------------
# What the log holds
# --------------------------------------------------------------------------------------------------

# A run of half the epochs of FLAGS.
HALF = (*FLAGS[:3], "2", *FLAGS[4:])


def copy_half(train_once, script, folder):
    """Copy a finished run of half the epochs into a folder, with the script beside it."""
    half = train_once(*HALF)
    shutil.copytree(half, folder / "run")
    return edit(script, folder), folder / "run"


def test_lines_past_the_checkpoint_are_dropped(script, train_once, tmp_path):
    script, run_dir = copy_half(train_once, script, tmp_path)
    log = run_dir / "metrics.jsonl"
    *lines, test_line = log.read_text().splitlines(keepends=True)
    assert '"test"' in test_line
    past = lines[-2].replace('"step": 156', '"step": 234').replace('"epoch": 2', '"epoch": 3')
    assert past != lines[-2]
    log.write_text("".join([*lines, past, past.replace('"train"', '"validation"'), past[:40]]))
    train(script, *FLAGS)
    assert_same_run(run_dir, train_once(*FLAGS))


def test_line_cut_short_is_dropped(script, train_once, tmp_path):
    script, run_dir = copy_half(train_once, script, tmp_path)
    log = run_dir / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])  # in the test line: the run is not finished
    shutil.rmtree(run_dir / "export")
    train(script, *HALF)
    assert log.read_bytes() == whole
    assert_same_run(run_dir, train_once(*HALF))


# --------------------------------------------------------------------------------------------------
# Finished runs
# --------------------------------------------------------------------------------------------------


def test_finished_run_says_so_and_changes_nothing(script, train_once, tmp_path):
    script, run_dir = copy_half(train_once, script, tmp_path)
    before = hash_tree(tmp_path)
    output = train(script, *HALF)
    assert "run is finished" in output
    assert "epoch" not in output.replace("more --epochs", "")
    assert hash_tree(tmp_path) == before
    assert len(before) > 15


def test_more_epochs_go_on(script, train_once, tmp_path):
    script, run_dir = copy_half(train_once, script, tmp_path)
    output = train(script, *FLAGS)
    assert "resumed at step 156" in output
    assert_same_run(run_dir, train_once(*FLAGS))


def test_fewer_epochs_are_refused(script, train_once, tmp_path):
    script, run_dir = copy_half(train_once, script, tmp_path)
    before = hash_tree(tmp_path)
    code, output, errors = finish(fork(script, *FLAGS[:3], "1"))
    assert (code, output) == (2, "")
    [line] = errors.splitlines()
    assert "--epochs 1" in line
    assert "epoch 2" in line
    assert hash_tree(tmp_path) == before


@pytest.mark.parametrize("flags", [("--global-batch-size", "64"), ("--replicas", "2")])
def test_evaluate_gives_the_test_line(flags, script, train_once, tmp_path):
    script, run_dir = copy_half(train_once, script, tmp_path)
    before = hash_tree(tmp_path)
    output = train(script, "--mode", "evaluate", *flags)
    line = read_numbers(run_dir)[-1]
    shown = re.search(r"test loss ([\d.]+) accuracy ([\d.]+)", output)
    assert float(shown[1]) == pytest.approx(line["loss"], abs=1.01e-4)  # It shows four digits.
    assert float(shown[2]) == pytest.approx(line["accuracy"], abs=1.01e-4)
    assert hash_tree(tmp_path) == before


# --------------------------------------------------------------------------------------------------
# Other replicas
# --------------------------------------------------------------------------------------------------


def test_resume_on_other_replica_counts(script, train_once, tmp_path):
    script = edit(script, tmp_path, NO_DROPOUT)
    for replicas, epochs in [(1, "3"), (2, "5"), (1, "8")]:
        output = train(script, "--epochs", epochs, *flags_of(replicas))
        assert ("resumed at step" in output) == (epochs != "3")
    expected = read_numbers(train_once("--epochs", "8", edits=(NO_DROPOUT,)))
    lines = read_numbers(tmp_path / "run")
    assert len(lines) == len(expected) == 8 + 8 + 1
    for line, other in zip(lines, expected, strict=True):
        assert line.pop("split") == other.pop("split")
        assert line == pytest.approx(other, rel=1e-5, abs=0)
