"""Whatever happens to a run, the same command again ends it with the bits of an undisturbed one.

Signals come at random moments: while TensorFlow starts, in steps, in saves, in validation. These
tests send a few; the fault run in full is

    FAULTS_KILLS=100 FAULTS_TERMS=20 python3 -m uv run pytest -s tests/test_faults.py

It prints its seed; FAULTS_SEED=… draws the same moments again.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import (
    NO_DROPOUT,
    ask_child,
    assert_same_run,
    edit,
    environment,
    finish,
    flags_of,
    fork,
    read_numbers,
    start,
    start_workers,
    train,
    wait_for_lines,
)

KILLS = int(os.environ.get("FAULTS_KILLS", "3"))
TERMS = int(os.environ.get("FAULTS_TERMS", "3"))

# Some seconds of steps in loops of 19 or 20, a save after most and a validation each 78 of them.
FLAGS = ("--global-batch-size", "16", "--epochs", "30", "--checkpoint-every-steps", "20")
WORKERS = [("worker", 0), ("worker", 1)]
# One replica, two, and two workers, which share the signals.
PLACES = ("one replica", "two replicas", "two workers")


def share_out(count, place):
    """Return how many of the signals a place gets."""
    return len(range(PLACES.index(place), count, len(PLACES)))


def begin(place, script, *flags):
    """Start a run. Return its processes."""
    if place == "two workers":
        return start_workers(script, WORKERS, *flags)
    return [start(script, *flags, *flags_of(PLACES.index(place) + 1))]


def wait_for_moment(run_dir, processes, chance):
    """Wait until a random moment of a run: seldom while it starts, most often while it trains.

    Return whether it has begun to train.
    """
    if chance.random() < 0.1:
        time.sleep(chance.uniform(0, 6))
        return False
    log = run_dir / "metrics.jsonl"
    before = log.stat().st_ino if log.exists() else None  # A run that begins replaces the file.
    end = time.monotonic() + 120
    while not log.exists() or log.stat().st_ino == before:
        assert time.monotonic() < end
        if processes[0].poll() is not None:
            return False
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 3))
    return True


def disturb(number, place, script, run_dir, chance):
    """Start a run, send a signal to it at a random moment, and see it end as it should.

    Return whether the signal came before the run's own end.
    """
    processes = begin(place, script, *FLAGS)
    trains = wait_for_moment(run_dir, processes, chance)
    target = chance.choice(processes)
    target.send_signal(number)
    began = time.monotonic()
    ends = {target: finish(target, timeout=20)}
    for other in processes:
        if other is not target:
            # It hears of the loss from the connection or from the missing heartbeat. One that
            # waits for the others to come would wait for minutes, but whoever starts several ends
            # it then, which it hears at any moment.
            if not trains and not has_ended(other, 15):
                other.terminate()
            ends[other] = finish(other, timeout=20)
    taken = time.monotonic() - began
    codes = [code for code, _, _ in ends.values()]
    print(f"{number.name}, {place}: exit codes {codes} after {taken:.1f} s")
    code, _, errors = ends.pop(target)
    if number == signal.SIGKILL:
        assert code in (0, -signal.SIGKILL)
    else:  # Python itself, as it starts, has no handler yet.
        assert code in ((0, 143) if trains else (0, 143, -signal.SIGTERM))
    assert errors == ""
    for other_code, _, other_errors in ends.values():
        assert other_code in ((0, 143) if trains else (0, 143, -signal.SIGTERM)), other_errors
        assert other_errors == "" or ONE_IS_LOST.fullmatch(other_errors), other_errors
    if trains:  # the save, and the end of the others
        assert taken < 20, ends
    return any(codes)


ONE_IS_LOST = re.compile(r"train\.py: stopped: .* is lost; start all (workers )?again\n")


def has_ended(process, seconds):
    """Wait for a process for some seconds. Return whether it has ended."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    return process.poll() is not None


def complete(place, script):
    ends = [finish(process) for process in begin(place, script, *FLAGS)]
    assert [(code, errors) for code, _, errors in ends] == [(0, "")] * len(ends)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_signals_change_no_bit(number, place, script, train_once, tmp_path, chance):
    count = share_out({signal.SIGKILL: KILLS, signal.SIGTERM: TERMS}[number], place)
    expected = train_once(*FLAGS, *flags_of(min(2, PLACES.index(place) + 1)))
    script = edit(script, tmp_path)
    run_dir = tmp_path / "run"
    sent = runs = 0
    while sent < count:
        sent += disturb(number, place, script, run_dir, chance)
        if (run_dir / "export").exists() or sent == count:
            complete(place, script)
            assert_same_run(run_dir, expected)
            shutil.rmtree(run_dir)
            runs += 1
    print(
        f"{sent} × {number.name} to {place}: {runs} runs, all with the bits of an undisturbed one"
    )


UNPACK = "    images, labels = batch\n"


def test_signal_in_validation(script, train_once, tmp_path):
    flags = (*FLAGS[:2], "--epochs", "2", *FLAGS[4:])
    wait = "    training or tf.numpy_function(lambda: time.sleep(1), [], [])\n"
    process = start(edit(script, tmp_path, (UNPACK, UNPACK + wait)), *flags)
    log = tmp_path / "run" / "metrics.jsonl"
    while not log.exists() or not read_numbers(log.parent):
        time.sleep(0.01)
        assert process.poll() is None
    time.sleep(1)  # of the 17 or more that the validation takes
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    code, output, errors = finish(process)
    assert (code, errors) == (143, "")
    assert time.monotonic() - began < 10
    assert "stopped, and saved at step 78; the same command goes on" in output
    (tmp_path / "run" / "train.py").unlink()  # whose hooks wait
    train(edit(script, tmp_path), *flags)
    assert_same_run(tmp_path / "run", train_once(*flags))


# How many lines the log has when steps begin to take minutes, and the signal that comes in one.
@pytest.mark.parametrize(("lines", "number"), [(0, signal.SIGTERM), (3, signal.SIGINT)])
def test_signal_in_a_step_of_minutes(lines, number, script, train_once, tmp_path):
    flags = (*FLAGS[:2], "--epochs", "2", *FLAGS[4:])
    wait = "    wait = lambda: time.sleep(100 * os.path.exists('slow'))\n"
    wait += "    tf.numpy_function(wait, [], [])\n"
    process = start(edit(script, tmp_path, (UNPACK, UNPACK + wait)), *flags)
    run_dir, slow = tmp_path / "run", tmp_path / "slow"
    while not (run_dir / "train.py").exists() or len(read_numbers(run_dir)) < lines:
        if not lines:
            slow.touch()
        time.sleep(0.002)
        assert process.poll() is None
    slow.touch()
    time.sleep(3)
    logged = read_numbers(run_dir)
    assert all(line["split"] != "test" for line in logged)
    began = time.monotonic()
    process.send_signal(number)
    code, output, errors = finish(process)
    assert (code, errors) == (143, "")
    assert time.monotonic() - began < 10
    # The loop in hand is done again, and no other.
    step = logged[-1]["step"] if lines else 0
    assert lines == 0 or (run_dir / "checkpoints" / "last" / f"ckpt-{step}.index").exists()
    assert ("stopped, and saved" in output) <= (f"saved at step {step}; the same" in output)
    (run_dir / "train.py").unlink()  # whose hooks wait
    output = train(edit(script, tmp_path), *flags)
    assert f"resumed at step {step} from" * (step > 0) in output
    assert_same_run(run_dir, train_once(*flags))


def test_signal_while_it_starts_shows_no_traceback(script, tmp_path):
    script = edit(script, tmp_path)
    for seconds in (0.3, 1, 2):
        process = start(script)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        code, _, errors = finish(process)
        assert code in (143, -signal.SIGINT), errors  # Python itself takes a moment to start.
        assert "Error" not in errors


# --------------------------------------------------------------------------------------------------
# Damaged checkpoints
# --------------------------------------------------------------------------------------------------


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


# What is done to which files of checkpoints/, and the checkpoint that is then named.
DAMAGES = {
    "data cut": (cut, "last/ckpt-234.data*", "last/ckpt-234"),
    "data flipped": (flip, "last/ckpt-234.data*", "last/ckpt-234"),
    "data empty": (empty, "last/ckpt-234.data*", "last/ckpt-234"),
    "data missing": (os.remove, "last/ckpt-234.data*", "last/ckpt-234"),
    "index cut": (cut, "last/ckpt-234.index", "last/ckpt-234"),
    "index flipped": (flip, "last/ckpt-234.index", "last/ckpt-234"),
    "index empty": (empty, "last/ckpt-234.index", "last/ckpt-234"),
    "index missing": (os.remove, "last/ckpt-234.index", "last/ckpt-234"),
    "list empty": (empty, "last/checkpoint", None),
    "list missing": (os.remove, "last/checkpoint", None),
    "list garbled": (garble, "last/checkpoint", None),
    "best flipped": (flip, "best/ckpt-234.data*", "best/ckpt-234"),
    "two indexes cut": (cut, "last/ckpt-2*.index", "last/ckpt-214"),
}


SOME = ("data flipped", "best flipped")


@pytest.mark.parametrize("names", [SOME, DAMAGES.keys() - SOME], ids=["some", "others"])
def test_damaged_checkpoint_is_named_and_skipped(names, script, train_once, tmp_path):
    flags = ("--global-batch-size", "16", "--checkpoint-every-steps", "20", "--epochs")
    half, expected = train_once(*flags, "3"), train_once(*flags, "6")
    script = edit(script, tmp_path)
    for name in names:
        damage, pattern, named = DAMAGES[name]
        run_dir = tmp_path / name
        shutil.copytree(half, run_dir)
        paths = list((run_dir / "checkpoints").glob(pattern))
        assert paths, name
        for path in paths:
            damage(path)
        output = train(script, *flags, "6", "--run-dir", run_dir)
        lines = [line for line in output.splitlines() if "is damaged" in line]
        if named is None:
            assert not lines, name
        else:
            assert f"/{named} is damaged" in lines[-1], name
        assert read_numbers(run_dir) == read_numbers(expected), name
    runs = [tmp_path / name for name in names]
    *tensors, expected_tensors = ask_child("tensors", *runs, expected)
    for name, each in zip(names, tensors, strict=True):
        assert each == expected_tensors, name


@pytest.mark.parametrize("damage", [cut, os.remove])
def test_run_without_a_whole_checkpoint_is_not_started_anew(damage, script, train_once, tmp_path):
    flags = ("--global-batch-size", "16", "--checkpoint-every-steps", "20", "--epochs")
    script = edit(script, tmp_path)
    run_dir = tmp_path / "run"
    shutil.copytree(train_once(*flags, "3"), run_dir)
    for path in (run_dir / "checkpoints" / "last").glob("ckpt-*"):
        damage(path)
    log = (run_dir / "metrics.jsonl").read_bytes()
    code, _, errors = finish(fork(script, *flags, "6"))
    assert code == 2
    [line] = errors.splitlines()
    assert "no whole checkpoint" in line
    assert "run/checkpoints/last" in line
    assert (run_dir / "metrics.jsonl").read_bytes() == log


# --------------------------------------------------------------------------------------------------
# A full disk
# --------------------------------------------------------------------------------------------------

# A disk of 4 MB, in a mount namespace that goes with the shell: as root or not.
FULL_DISK = """
set -e
mount -t tmpfs -o size=4m tmpfs "$1"
cp "$2" "$1/train.py"
cd "$1"
head -c "$3" /dev/zero > filling
shift 3
set +e
"$@"
echo "exit code $?"
rm filling
"$@"
echo "exit code $?"
cp -r run "$KEEP"
"""


@pytest.mark.parametrize("filling", [2200, 2600, 3400])
def test_full_disk(filling, script, train_once, tmp_path):
    disk, keep = tmp_path / "disk", tmp_path / "run"
    disk.mkdir()
    finished = subprocess.run(
        ["unshare", "-rm", "sh", "-c", FULL_DISK, "sh", disk, script, str(filling * 1024)]
        + [sys.executable, "train.py", *FLAGS],
        env=environment(KEEP=str(keep)),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if "unshare" in finished.stderr or "mount:" in finished.stderr:
        pytest.skip(f"no small disk can be made here: {finished.stderr}")
    first, second = finished.stdout.split("exit code ")[1:]
    assert (first[0], second) == ("1", "0\n"), finished
    [line] = finished.stderr.splitlines()
    assert f"the disk of {disk}/run is full" in line
    assert_same_run(keep, train_once(*FLAGS))


# --------------------------------------------------------------------------------------------------
# A loss that is not finite
# --------------------------------------------------------------------------------------------------


def plant_nan(step):
    """Return an edit of preprocess that makes one batch of 16 NaN, in the epoch of a step."""
    old = "    return tf.cast(images, tf.float32), labels\n"
    epoch, position = step // 78, step % 78 * 16
    return old, (
        "    images = tf.cast(images, tf.float32)\n"
        f"    epoch = tf.constant({epoch}, tf.int64)\n"
        "    key = tf.random.stateless_uniform([], [SEED, epoch], None, None, tf.int32)\n"
        f"    bad = training & (seeds[0, 0] == key) & (seeds[0, 1] == {position})\n"
        "    return tf.where(bad, math.nan, images), labels\n"
    )


def test_not_finite_loss(script, tmp_path, chance):
    place = chance.choice(PLACES[:2])
    step = chance.randrange(40, 5 * 78)  # It turns step + 1 to NaN.
    print(f"NaN in step {step}")
    script = edit(script, tmp_path, plant_nan(step))
    flags = (*FLAGS[:2], "--epochs", "6", *FLAGS[4:], "--steps-per-loop", "7")
    [process] = begin(place, script, *flags)
    code, _, errors = finish(process)
    assert code == 1
    [line] = errors.splitlines()
    first, last = [int(word.strip(",")) for word in line.split() if word.strip(",").isdecimal()][:2]
    assert first <= step < last <= first + 7
    for word in ("not finite", "--learning-rate", "--clip-norm", "--precision"):
        assert word in line
    saved = [path for path in (tmp_path / "run").rglob("ckpt-*.index")]
    assert 0 < max(int(path.stem[5:]) for path in saved) <= first
    lines = read_numbers(tmp_path / "run")
    assert lines[-1]["step"] == first

    flags = (*flags, "--recover-from-nan", "1")
    [process] = begin(place, script, *flags)
    code, output, errors = finish(process)
    assert (code, errors) == (0, "")
    # To where the loop began, not to the checkpoint before.
    assert f"recovery 1 of 1: back at step {first}, and on with other data" in output
    recovered = read_numbers(tmp_path / "run")
    assert [line["step"] for line in recovered] == sorted(line["step"] for line in recovered)
    assert recovered[-1]["split"] == "test"
    assert recovered[-1]["accuracy"] > 0.9
    # And killed after the recovery, it still leaves out the same data.
    shutil.rmtree(tmp_path / "run")
    [process] = begin(place, script, *flags)
    saved = tmp_path / "run" / "checkpoints" / "last"
    while not any(int(path.stem[5:]) > step for path in saved.glob("ckpt-*.index")):
        time.sleep(0.002)
        assert process.poll() is None
    process.kill()
    finish(process)
    [process] = begin(place, script, *flags)
    assert finish(process)[0] == 0
    assert read_numbers(tmp_path / "run") == recovered


def test_recoveries_are_counted(script, tmp_path):
    # Every batch from some position on is NaN: each recovery leaves out only a few of them.
    old, new = plant_nan(100)
    script = edit(script, tmp_path, (old, new.replace(" == 352", " >= 352")))
    flags = (*FLAGS[:2], "--epochs", "3", "--steps-per-loop", "5", "--recover-from-nan", "2")
    code, output, errors = finish(fork(script, *flags))
    assert code == 1
    assert output.count("recovery 1 of 2") == output.count("recovery 2 of 2") == 1
    [line] = errors.splitlines()
    assert "not finite" in line


# --------------------------------------------------------------------------------------------------
# Elastic
# --------------------------------------------------------------------------------------------------


def test_run_goes_on_with_more_and_fewer_replicas(script, train_once, tmp_path, chance):
    expected = read_numbers(train_once(*FLAGS, edits=(NO_DROPOUT,)))
    script = edit(script, tmp_path, NO_DROPOUT)
    for replicas in (1, 2, 4, 1):
        process = fork(script, *FLAGS, *flags_of(replicas))
        wait_for_lines(tmp_path / "run", chance.randint(2, 8), process)
        process.send_signal(signal.SIGTERM)  # most often in the middle of an epoch
        assert finish(process)[0] == 143
    code, output, errors = finish(fork(script, *FLAGS, "--replicas", "3"))
    assert code == 2
    assert "3 replicas can share 15 or 18" in errors
    ends = [finish(process) for process in start_workers(script, WORKERS, *FLAGS)]
    assert [(code, errors) for code, _, errors in ends] == [(0, "")] * 2
    lines = read_numbers(tmp_path / "run")
    assert len(lines) == len(expected)
    for line, other in zip(lines, expected, strict=True):
        assert line.pop("split") == other.pop("split")
        # A loop's loss goes down to 0.005, of predictions of some 10: 1e-6 is their rounding.
        assert line == pytest.approx(other, rel=1e-5, abs=1e-6)


# --------------------------------------------------------------------------------------------------
# Other workers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1])
def test_lost_worker_is_named(index, script, tmp_path):
    script = edit(script, tmp_path)
    workers = start_workers(script, WORKERS, *FLAGS)
    wait_for_lines(tmp_path / "run", 2, workers[0])
    workers[index].kill()
    code, _, errors = finish(workers[1 - index], timeout=30)
    assert (code, errors) == (
        143,
        f"train.py: stopped: worker {index} is lost; start all workers again\n",
    )
    finish(workers[index])
    assert len(list((tmp_path / "scratch").iterdir())) == 1  # of the killed one


@pytest.mark.parametrize("index", [0, 1])
def test_exception_in_a_hook_keeps_its_traceback_and_ends_the_others(index, script, tmp_path):
    check = (
        f"    if WORKER == {index}:\n"
        "        limit = tf.where(training, 700, 2**30)\n"
        "        with tf.control_dependencies([tf.debugging.assert_less(seeds[0, 1], limit)]):\n"
        "            labels = tf.identity(labels)\n"
    )
    script = edit(script, tmp_path, (UNPACK, UNPACK + check))
    workers = start_workers(script, WORKERS, *FLAGS)
    ends = [finish(worker, timeout=60) for worker in workers]
    assert ends[index][0] == 1
    assert "Traceback" in ends[index][2]
    assert "assert_less" in ends[index][2]
    assert ends[1 - index][0] == 143
    assert ends[1 - index][2].startswith(f"train.py: stopped: worker {index} is lost")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["workers"] == 2
