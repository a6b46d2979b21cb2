"""Signals, full disks and non-finite losses: the same command again ends bit-identical.

Signals come at random moments: while TensorFlow starts, in steps, in saves, in validation. These
tests send a few, to the complete script of the image task. The full fault run sends more in all, to
both sizes of all tasks:

    FAULTS_SCRIPTS=all FAULTS_KILLS=100 FAULTS_TERMS=20 uv run pytest -s tests/test_faults.py

It prints its seed; FAULTS_SEED=… draws the same moments again.
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import running
from rendering import SIZES, TASKS
from running import (
    STEPS_PER_EPOCH,
    WORKERS,
    assert_fails,
    assert_interrupted,
    assert_one_line,
    assert_same_run,
    assert_succeeded,
    environment,
    finish,
    finish_all,
    flags_of,
    fork,
    kill,
    list_checkpoints,
    read_numbers,
    read_split,
    run_script,
    start,
    start_workers,
    train,
    wait_for_lines,
    wait_until,
    watch_log,
)
from variants import (
    SMALL_DATA,
    SMALL_IMAGES,
    make_nan,
    run_before,
    run_before_final_export,
    write_copies,
    write_variant,
)

LONG = pytest.mark.long
KILLS = int(os.environ.get("FAULTS_KILLS", "3"))
TERMS = int(os.environ.get("FAULTS_TERMS", "2"))

# Some seconds of steps in loops of 19 or 20. Most loops end with a save, each 78 steps with a
# validation.
FLAGS = ("--global-batch-size", "16", "--epochs", "20", "--checkpoint-every-steps", "20")
TWO_EPOCHS = ("--global-batch-size", "16", "--epochs", "2", "--checkpoint-every-steps", "20")

ONE_REPLICA = "one replica"
TWO_REPLICAS = "two replicas"
TWO_WORKERS = "two workers"
# Where the signals are sent. SIGTERM is handled by the process, whatever its replicas.
PLACES = {
    signal.SIGKILL: (ONE_REPLICA, TWO_REPLICAS, TWO_WORKERS),
    signal.SIGTERM: (ONE_REPLICA, TWO_WORKERS),
}
# The size and the task of each script that gets signals.
SCRIPTS = [("complete", "image_classification")]
if os.environ.get("FAULTS_SCRIPTS") == "all":
    SCRIPTS = list(itertools.product(SIZES, TASKS))
CASES = [
    (number, place, *script)
    for number, places in PLACES.items()
    for place in places
    for script in SCRIPTS
]

# --------------------------------------------------------------------------------------------------
# Signals at random moments
# --------------------------------------------------------------------------------------------------


def count_signals(case):
    """Return how many of the signals a case gets."""
    total = {signal.SIGKILL: KILLS, signal.SIGTERM: TERMS}[case[0]]
    cases = [each for each in CASES if each[0] == case[0]]
    return len(range(cases.index(case), total, len(cases)))


def begin(place, script, *flags, start=fork):
    """Start a run. Return its processes."""
    if place == TWO_WORKERS:
        return start_workers(script, WORKERS, *flags, begin=start)
    return [start(script, *flags, *flags_of(2 if place == TWO_REPLICAS else 1))]


def begin_until_random_moment(place, script, chance):
    """Start a run and wait: seldom while TensorFlow starts, most often while it trains.

    Return the processes, and whether the run has begun to train.
    """
    if chance.random() < 0.1:
        processes = begin(place, script, *FLAGS, start=start)
        time.sleep(chance.uniform(0, 6))
        return processes, False
    processes = begin(place, script, *FLAGS)
    return processes, wait_until_training(script.parent / "run", processes[0], chance)


def wait_until_training(run_dir, process, chance):
    """Wait until a random moment of a run's training. Return whether it has begun to train."""
    has_begun = watch_log(run_dir)
    wait_until(lambda: has_begun() or process.poll() is not None, timeout=120)
    if process.poll() is not None:
        return False
    time.sleep(chance.uniform(0, 2.5))
    return True


def has_ended(process, seconds):
    """Wait for a process for some seconds. Return whether it has ended."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    return process.poll() is not None


def finish_other(process, size, is_training):
    """Wait for the worker that didn't get the signal. Return its outcome.

    In training it notices the failure by the connection or the missing heartbeat. A worker that
    waits for the others to start would wait for minutes; a launcher ends it then.
    """
    if not is_training and not has_ended(process, 15):
        process.terminate()
        # In the essential script, TensorFlow catches SIGTERM meanwhile; see docs/variants.md.
        if size == "essential" and not has_ended(process, 5):
            process.kill()
    return finish(process, timeout=20)


def assert_ended_by(number, is_training, outcome):
    """Assert how a process ended that got a signal, at its own end at the latest."""
    codes = {0, 143}
    if number == signal.SIGKILL:
        codes = {0, -signal.SIGKILL}
    elif not is_training:
        codes.add(-signal.SIGTERM)  # While Python itself starts, it has no handler yet.
    assert outcome.code in codes, outcome
    if outcome.errors:
        assert_one_line(outcome.errors)


def assert_other_ended(size, is_training, outcome):
    """Assert how a worker ended that lost its peer."""
    codes = {0, 143} if is_training else {0, 143, -signal.SIGTERM}
    if size == "essential" and not is_training:
        codes.add(-signal.SIGKILL)  # see finish_other
    assert outcome.code in codes, outcome
    if outcome.errors:
        line = assert_one_line(outcome.errors)
        # The essential script saves on all workers if one of them gets a SIGTERM.
        assert re.search("start all workers again|the same command resumes", line)


def disturb(number, place, size, script, chance):
    """Start a run, send a signal to it at a random moment, and check how it ends.

    Return whether the signal came before the run's own end.
    """
    processes, is_training = begin_until_random_moment(place, script, chance)
    target = chance.choice(processes)
    others = [process for process in processes if process is not target]
    target.send_signal(number)
    began = time.monotonic()
    outcome = finish(target, timeout=20)
    other_outcomes = [finish_other(process, size, is_training) for process in others]
    seconds = time.monotonic() - began
    codes = [each.code for each in (outcome, *other_outcomes)]
    print(f"{number.name}, {place}: exit codes {codes} after {seconds:.1f} s")
    assert_ended_by(number, is_training, outcome)
    for other_outcome in other_outcomes:
        assert_other_ended(size, is_training, other_outcome)
    assert seconds < 20 or not is_training
    return any(codes)


def get_code(task):
    """Return code with which a run of `FLAGS` takes less than a minute."""
    return [SMALL_DATA[task]] if task == "text_classification" else []


@pytest.fixture(scope="session")
def train_task(once, task_scripts, train_once, tmp_path_factory):
    """Return a function that trains the complete script of a task, once a session.

    It returns the run's folder.
    """

    def train_script(task, flags):
        folder = tmp_path_factory.mktemp(task)
        train(write_variant(task_scripts[task]["complete"], folder, *get_code(task)), *flags)
        return str(folder / "run")

    def train_or_recall(task, *flags):
        if task == "image_classification":
            return train_once(*flags)
        return Path(once(train_script, task, flags))

    return train_or_recall


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "place", "size", "task"), CASES, ids=lambda value: getattr(value, "name", value)
)
def test_interrupted_run_is_bit_identical(
    number, place, size, task, task_scripts, train_task, tmp_path, chance
):
    count = count_signals((number, place, size, task))
    if not count:
        pytest.skip("FAULTS_KILLS and FAULTS_TERMS leave no signal for this case")
    expected = train_task(task, *FLAGS, *flags_of(1 if place == ONE_REPLICA else 2))
    script = write_variant(task_scripts[task][size], tmp_path, *get_code(task))
    run_dir = tmp_path / "run"
    sent = 0
    while sent < count:
        if disturb(number, place, size, script, chance):
            sent += 1
        if (run_dir / "export").exists() or sent == count:
            saved = list_checkpoints(run_dir)
            outcomes = finish_all(begin(place, script, *FLAGS))
            assert_succeeded(outcomes)
            if len(saved) > 1:  # a kill may have cut the newest short
                assert re.search("resumed at step |is finished", outcomes[0].output)
            assert_same_run(run_dir, expected)
            shutil.rmtree(run_dir)
    print(f"{sent} × {number.name} to {size} {task}, {place}: all runs are bit-identical")


# --------------------------------------------------------------------------------------------------
# Signals at given moments
# --------------------------------------------------------------------------------------------------

SLOW_VALIDATION = """
@wraps_original
def preprocess(original, batch, seeds, training):
    if not training:
        tf.numpy_function(lambda: time.sleep(1), [], [])
    return original(batch, seeds, training)
"""
# From the first log line on, or if a file "slow" exists, a step takes minutes.
SLOW_STEPS = """
@wraps_original
def log(original, split, values):
    line = original(split, values)
    Path("slow").touch()
    return line

@wraps_original
def preprocess(original, batch, seeds, training):
    def wait():
        if os.path.exists("slow"):
            time.sleep(100)

    tf.numpy_function(wait, [], [])
    return original(batch, seeds, training)
"""


def stop(process, number, seconds=10):
    """Send a signal to a run, which must end soon with exit code 143. Return its output."""
    began = time.monotonic()
    process.send_signal(number)
    outcome = finish(process, timeout=30)
    assert_interrupted(outcome)
    assert time.monotonic() - began < seconds
    return outcome.output


@pytest.mark.long
def test_signal_in_validation_saves(complete_script, train_once, tmp_path):
    process = fork(write_variant(complete_script, tmp_path, SLOW_VALIDATION), *TWO_EPOCHS)
    run_dir = tmp_path / "run"
    wait_until(lambda: len(read_split(run_dir, "train")) == 4, process)
    time.sleep(1)  # the validation takes at least 17
    output = stop(process, signal.SIGTERM)
    assert f"saved at step {STEPS_PER_EPOCH}" in output
    train(write_variant(complete_script, tmp_path), *TWO_EPOCHS)
    assert_same_run(run_dir, train_once(*TWO_EPOCHS))


# A checkpoint takes two seconds to write. The first loop of the second epoch takes ten.
SLOW_WRITE = """
@wraps_original
def write_checkpoints(original, *contents):
    time.sleep(2)
    original(*contents)

@wraps_original
def train(original, iterator, steps):
    if state.history:
        time.sleep(10)
    return original(iterator, steps)
"""


@pytest.mark.long
def test_signal_during_a_write_saves_no_later_state(complete_script, train_once, tmp_path):
    """The checkpoint of an epoch has no validation yet. The state in memory has it already."""
    process = fork(write_variant(complete_script, tmp_path, SLOW_WRITE), *TWO_EPOCHS)
    run_dir = tmp_path / "run"
    wait_until(lambda: read_split(run_dir, "validation"), process)
    stop(process, signal.SIGTERM)
    train(write_variant(complete_script, tmp_path), *TWO_EPOCHS)
    assert_same_run(run_dir, train_once(*TWO_EPOCHS))


@pytest.mark.long
def test_signal_ends_a_run_whose_output_nobody_reads(complete_script, tmp_path):
    """Ctrl-C in `train.py 2>&1 | tee log` ends tee, too."""
    script = write_variant(complete_script, tmp_path)
    env = environment()
    env.pop("PYTHONUNBUFFERED", None)
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, script.name, "--epochs", "500"],
        cwd=tmp_path,
        env=env,
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    wait_for_lines(tmp_path / "run", 4, process)
    os.close(reader)
    time.sleep(1)  # the run may print before it gets the signal
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(30) == 143
    finally:
        process.kill()


# No checkpoint is due within an epoch. The first loop ends at step 39. The second one is longer, in
# steps, than the input is ahead.
NO_CHECKPOINTS = (*TWO_EPOCHS[:4], "--steps-per-loop", "40", "--checkpoint-every-steps", "10000")


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "number"),
    [(0, signal.SIGTERM), (39, signal.SIGINT)],
    ids=["first loop", "second loop"],
)
def test_signal_in_a_step_of_minutes_saves(step, number, complete_script, train_once, tmp_path):
    """Only the interrupted loop is repeated."""
    run_dir = tmp_path / "run"
    if step == 0:
        (tmp_path / "slow").touch()
    process = fork(write_variant(complete_script, tmp_path, SLOW_STEPS), *NO_CHECKPOINTS)
    wait_until(lambda: (run_dir / "train.py").exists(), process)
    wait_until(lambda: step == 0 or read_numbers(run_dir), process)
    time.sleep(3)
    assert list_checkpoints(run_dir) == []
    output = stop(process, number)
    assert (f"saved at step {step}" in output) == (step > 0), output
    output = train(write_variant(complete_script, tmp_path), *NO_CHECKPOINTS)
    assert (f"resumed at step {step}" in output) == (step > 0), output
    assert_same_run(run_dir, train_once(*NO_CHECKPOINTS))


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.3, 1, 2])
def test_signal_at_the_start_shows_no_traceback(seconds, complete_script, tmp_path):
    process = start(write_variant(complete_script, tmp_path))
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    outcome = finish(process)
    # While Python itself starts, it has no handler yet.
    is_starting = seconds < 2
    assert outcome.code == 143 or (outcome.code == -signal.SIGINT and is_starting), outcome
    assert "Error" not in outcome.errors


WAIT = "open('here', 'w').close(), time.sleep(100)"
MOMENTS = {
    "data": run_before("create_datasets", WAIT),
    "model": run_before("create_model_and_optimizer", WAIT),
    "test": run_before("test_step", f"tf.numpy_function(lambda: ({WAIT}) and None, [], [])"),
    "export": run_before_final_export(WAIT),
}


@pytest.mark.parametrize(
    "moment",
    ["export", *(pytest.param(moment, marks=LONG) for moment in ("data", "model", "test"))],
)
def test_signal_ends_a_run_at_any_moment(moment, complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, MOMENTS[moment])
    process = fork(script, *TWO_EPOCHS)
    wait_until((tmp_path / "here").exists, process)
    stop(process, signal.SIGTERM, seconds=20)


def test_signal_in_the_test_ends_the_essential_script(essential_script, tmp_path):
    code = run_before("test", "os.kill(os.getpid(), signal.SIGTERM)")
    script = write_variant(essential_script, tmp_path, SMALL_IMAGES, code)
    outcome = run_script(script, "--global-batch-size", "16", "--epochs", "1")
    assert outcome.code == 143
    assert not (tmp_path / "run" / "export").exists()


# --------------------------------------------------------------------------------------------------
# Full disks
# --------------------------------------------------------------------------------------------------

# A disk of 4 MB, in a mount namespace that ends with the shell: as root or not.
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


@pytest.mark.parametrize(
    ("size", "filling"),
    [
        ("essential", 3400),
        ("parameter_server", 3400),
        ("complete", 2600),
        pytest.param("complete", 3400, marks=LONG),
    ],
)
def test_run_stops_at_a_full_disk_and_resumes(size, filling, all_scripts, tmp_path):
    script = all_scripts[size]
    disk = tmp_path / "disk"
    disk.mkdir()
    finished = subprocess.run(
        [
            *("unshare", "-rm", "sh", "-c", FULL_DISK, "sh"),
            *(disk, script, str(filling * 1024)),
            *(sys.executable, "train.py", *running.FLAGS),
        ],
        env=environment(KEEP=str(tmp_path / "run")),
        capture_output=True,
        encoding="utf-8",
        timeout=2 * running.TIMEOUT,
        check=False,
    )
    if "unshare" in finished.stderr or "mount:" in finished.stderr:
        pytest.skip(f"no small disk can be mounted here: {finished.stderr}")
    codes = re.findall(r"exit code (\d+)", finished.stdout)
    assert codes == ["1", "0"], finished
    [line] = finished.stderr.splitlines()
    assert line.startswith("train.py: stopped: the disk ")
    assert "make room" in line
    assert f"the disk of {disk}/run, " in line or size != "complete"
    [copy] = write_copies(script, [tmp_path / "undisturbed"])
    train(copy, *running.FLAGS)
    assert_same_run(tmp_path / "run", copy.parent / "run")


# --------------------------------------------------------------------------------------------------
# Non-finite losses
# --------------------------------------------------------------------------------------------------

NAN_FLAGS = (
    *("--global-batch-size", "16", "--epochs", "6"),
    *("--checkpoint-every-steps", "20", "--steps-per-loop", "7"),
)
RECOVERY = (*NAN_FLAGS, "--recover-from-nan", "1")


@pytest.fixture
def nan_run(complete_script, tmp_path, chance):
    """Return a random place, a script whose loss turns NaN at a random step, and that step."""
    place = chance.choice([ONE_REPLICA, TWO_REPLICAS])
    step = chance.randrange(40, 5 * STEPS_PER_EPOCH)
    print(f"NaN in step {step + 1}")
    epoch, position = divmod(step, STEPS_PER_EPOCH)
    code = make_nan(epoch, position * 16)
    return place, write_variant(complete_script, tmp_path, code), step


def run_place(place, script, *flags):
    [process] = begin(place, script, *flags)
    return finish(process)


def find_first_step(line):
    """Return the step before the loop that an error names: "between steps FIRST and LAST"."""
    first, last = map(int, re.search(r"between steps (\d+) and (\d+)", line).groups())
    assert first < last <= first + 7
    return first


@pytest.mark.long
def test_run_stops_before_the_loop_with_a_non_finite_loss(nan_run):
    place, script, step = nan_run
    outcome = run_place(place, script, *NAN_FLAGS)
    words = ("not finite", "--learning-rate", "--clip-norm", "--precision")
    first = find_first_step(assert_fails(outcome, 1, *words))
    assert first <= step < first + 7
    run_dir = script.parent / "run"
    saved = list_checkpoints(run_dir) + list_checkpoints(run_dir, "best")
    assert 0 < max(saved) <= first
    assert read_numbers(run_dir)[-1]["step"] == first


@pytest.mark.long
def test_recovery_skips_the_data_of_a_non_finite_loss(nan_run):
    place, script, step = nan_run
    outcome = run_place(place, script, *RECOVERY)
    assert_succeeded([outcome])
    # It returns to where the loop began, not to the checkpoint before.
    found = re.search(r"recovery 1 of 1: back at step (\d+),", outcome.output)
    assert int(found[1]) <= step < int(found[1]) + 7
    lines = read_numbers(script.parent / "run")
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert lines[-1]["split"] == "test"
    assert lines[-1]["accuracy"] > 0.9


@pytest.mark.long
def test_run_killed_after_a_recovery_skips_the_same_data(nan_run):
    place, script, step = nan_run
    run_dir = script.parent / "run"
    assert_succeeded([run_place(place, script, *RECOVERY)])
    expected = read_numbers(run_dir)
    shutil.rmtree(run_dir)
    [process] = begin(place, script, *RECOVERY)
    # The kill may cut the second one short.
    wait_until(lambda: sum(saved > step for saved in list_checkpoints(run_dir)) >= 2, process)
    kill(process)
    outcome = run_place(place, script, *RECOVERY)
    assert_succeeded([outcome])
    assert "resumed at step " in outcome.output
    assert "recovery 1 of 1" not in outcome.output
    assert read_numbers(run_dir) == expected


@pytest.mark.long
def test_recoveries_are_limited(complete_script, tmp_path):
    # Every batch from a position on is NaN: each recovery skips only a few of them.
    code = make_nan(epoch=1, first_position=352, last_position=10**6)
    script = write_variant(complete_script, tmp_path, code)
    flags = ("--global-batch-size", "16", "--epochs", "3", "--steps-per-loop", "5")
    outcome = run_script(script, *flags, "--recover-from-nan", "2")
    assert_fails(outcome, 1, "not finite")
    for recovery in ("recovery 1 of 2", "recovery 2 of 2"):
        assert outcome.output.count(recovery) == 1
