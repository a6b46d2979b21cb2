"""Several workers: what they compare before they start, what each writes, and worker failures."""

import contextlib
import json
import shutil
import signal
import subprocess
import time

import pytest
from running import (
    FLAGS,
    WORKERS,
    assert_fails,
    assert_interrupted,
    assert_one_line,
    assert_same_run,
    assert_succeeded,
    assert_unchanged,
    assign_addresses,
    environment,
    find_newest_step,
    finish,
    finish_all,
    fork,
    list_checkpoints,
    read_numbers,
    read_split,
    start_pair,
    start_workers,
    tf_config,
    train,
    wait_for_lines,
    wait_until,
    worker_environments,
)
from variants import (
    SMALL_IMAGES,
    kill_after_log,
    make_nan,
    run_before,
    write_copies,
    write_variant,
)

LONG = pytest.mark.long
TWO_REPLICAS = ("--replicas", "2")


@pytest.fixture
def folders(tmp_path):
    """Return a folder for each of two workers, as on machines that share no disk."""
    return [tmp_path / "first", tmp_path / "second"]


# --------------------------------------------------------------------------------------------------
# What workers compare
# --------------------------------------------------------------------------------------------------

OTHER_FLAG = """
Config = dataclasses.make_dataclass("Config", [("another_flag", int, 0)], bases=(Config,))
"""
OTHER_VERSION = """
platform.python_version = lambda: "3.9.0"
"""
# The validation split gets the examples that the training split loses.
OTHER_SIZES = """
@wraps_original
def create_datasets(original):
    train, validation, test = original()
    return train.take(1200), train.skip(1200).concatenate(validation), test
"""
# Only the test split, since a run keeps a checksum of the training split in any case.
OTHER_ORDER = """
@wraps_original
def create_datasets(original):
    train, validation, test = original()
    return train, validation, test.skip(1).concatenate(test.take(1))
"""

# The second worker's flags, the code of its script, and what the error names beside worker 1.
DIFFERENCES = {
    "seed": ("--seed 5", "", ("seed", "5", "0")),
    "epochs": ("--epochs 7", "", ("epochs", "7", "4")),
    "script": ("", "# an edit", ("train.py",)),
    "flags of the script": ("", OTHER_FLAG, ("another_flag", "0", "None")),
    "version": ("", OTHER_VERSION, ("python", "3.9.0", "3.")),
    "sizes": ("", OTHER_SIZES, ("examples", "1200", "1257")),
    "order": ("", OTHER_ORDER, ("has data",)),
}
SHORT_DIFFERENCES = ("seed", "order")


@pytest.mark.parametrize(
    "name",
    [name if name in SHORT_DIFFERENCES else pytest.param(name, marks=LONG) for name in DIFFERENCES],
)
def test_different_workers_are_rejected(name, complete_script, folders):
    flags, code, words = DIFFERENCES[name]
    [first] = write_copies(complete_script, folders[:1])
    [second] = write_copies(complete_script, folders[1:], code)
    pair = start_pair([first, second], *FLAGS, more_flags=flags.split())
    outcomes = finish_all(pair, timeout=60)
    for outcome in outcomes:
        assert_fails(outcome, 2, "worker 1", *words)
    assert outcomes[0].errors == outcomes[1].errors
    for folder in folders:
        assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_worker_needs_no_run_directory(complete_script, folders):
    scripts = write_copies(complete_script, folders)
    (folders[1] / "run").mkdir()
    (folders[1] / "run" / "config.json").write_text("{}")  # the chief would reject it
    assert_succeeded(finish_all(start_pair(scripts, "--epochs", "1")))


# The epochs of the run in each worker's folder.
@pytest.mark.parametrize(
    "epochs",
    [
        pytest.param([], id="new run"),
        pytest.param(["2"], id="resumed run", marks=LONG),
        pytest.param(["2", "1"], id="old copy"),
    ],
)
def test_essential_script_rejects_workers_without_a_shared_folder(
    epochs, essential_script, train_once, folders
):
    scripts = write_copies(essential_script, folders)
    for folder, count in zip(folders, epochs, strict=False):
        run_dir = train_once(*FLAGS[:2], "--epochs", count, *TWO_REPLICAS)
        shutil.copytree(run_dir, folder / "run")
        shutil.rmtree(folder / "run" / "export")
    for outcome in finish_all(start_pair(scripts, *FLAGS), timeout=60):
        assert outcome.code == 2
        assert_one_line(outcome.errors, "--run-dir run must be shared")


# A listing of files that is sorted on the chief only, say.
OTHER_ORDER = """
@wraps_original
def create_datasets(original):
    train, *others = original()
    if config.worker_index == 1:
        train = train.take(TAKEN).shuffle(128, seed=1, reshuffle_each_iteration=False)
    return [train, *others]
"""


@pytest.mark.parametrize("size", [128, 96], ids=["order", "number"])
def test_essential_script_rejects_workers_with_other_examples(size, essential_script, tmp_path):
    code = OTHER_ORDER.replace("TAKEN", f"{size}")
    script = write_variant(essential_script, tmp_path, SMALL_IMAGES, code)
    for outcome in finish_all(start_workers(script, WORKERS, *FLAGS), timeout=60):
        assert outcome.code == 2
        assert_one_line(outcome.errors, "create_datasets equal, for all workers")


@pytest.fixture
def mounts(tmp_path):
    """Return a folder as two machines see it that remember for 30 s which names were missing.

    NFS does so, too. It needs bindfs, and root.
    """
    if not shutil.which("bindfs"):
        pytest.skip("it needs bindfs")
    shared = tmp_path / "shared"
    shared.mkdir()
    folders = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        options = "negative_timeout=30,entry_timeout=30,attr_timeout=30"
        mounted = subprocess.run(
            ["bindfs", "-o", options, shared, folder], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            pytest.skip(f"no FUSE: {mounted.stderr}")
        folders.append(folder)
    yield folders
    for folder in folders:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_essential_workers_share_a_folder_that_appears_late_on_one(mounts, scripts, tmp_path):
    scripts = write_copies(scripts["essential"], mounts)
    run_dirs = [folder / "run" for folder in mounts]
    assert not any(run_dir.exists() for run_dir in run_dirs)  # which the machines remember
    assert_succeeded(finish_all(start_pair(scripts, "--epochs", "1")))
    shutil.rmtree(tmp_path / "shared" / "run" / "export")
    pair = start_pair(scripts, "--epochs", "2")
    outcomes = finish_all(pair)
    assert_succeeded(outcomes)
    assert "resumed at step 19" in outcomes[0].output


# --------------------------------------------------------------------------------------------------
# What workers write
# --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_workers_need_no_shared_folder(complete_script, train_once, folders):
    scripts = write_copies(complete_script, folders)
    run_dir, other = (folder / "run" for folder in folders)
    for step in (20, 120):
        pair = start_pair(scripts, *FLAGS)
        wait_until(lambda step=step: find_newest_step(run_dir) > step, *pair)
        for process in pair:
            process.kill()
        finish_all(pair)
        assert not other.exists()
    # Nor does the other worker look at a run of its own: here, one with other numbers.
    shutil.copytree(train_once("--epochs", "1", "--seed", "5"), other)
    with assert_unchanged(other):
        outcomes = finish_all(start_pair(scripts, *FLAGS))
    assert_succeeded(outcomes)
    assert "resumed at step" in outcomes[0].output
    assert_same_run(run_dir, train_once(*FLAGS, *TWO_REPLICAS))


@pytest.mark.long
def test_finished_run_of_workers_changes_nothing(complete_script, train_once, folders, tmp_path):
    scripts = write_copies(complete_script, folders)
    shutil.copytree(train_once(*FLAGS, *TWO_REPLICAS), folders[0] / "run")
    with assert_unchanged(tmp_path):
        outcomes = finish_all(start_pair(scripts, *FLAGS), timeout=60)
    assert_succeeded(outcomes)
    assert "is finished" in outcomes[0].output


SMALL_FLAGS = (
    *("--global-batch-size", "16", "--epochs", "4"),
    *("--checkpoint-every-steps", "3", "--deterministic", "--profile", "2,30"),
)


def start_small_pair(script, folders, *codes):
    """Start two workers, each with a folder for temporary files in its own folder."""
    scripts = write_copies(script, folders, SMALL_IMAGES, *codes)
    workers = []
    for each, env in zip(scripts, worker_environments(WORKERS), strict=True):
        scratch = each.parent / "scratch"
        scratch.mkdir(exist_ok=True)
        workers.append(fork(each, *SMALL_FLAGS, env={**env, "TMPDIR": str(scratch)}))
    return workers


def assert_nothing_left(chief_folder, killed_folder):
    """Assert that a worker that was killed left no file but AutoGraph's, and the chief none."""
    left = [path for path in (killed_folder / "scratch").rglob("*") if path.is_file()]
    assert all(path.suffix == ".py" for path in left)
    assert not list((chief_folder / "scratch").iterdir())


PRINTS_SNAPSHOT = """
@wraps_original
def take_snapshot(original):
    are_finite = original()
    print("weights in the snapshot:", len(state.snapshot["model"]))
    return are_finite
"""


@pytest.mark.long
def test_only_the_chief_writes(complete_script, train_once, folders):
    chief_folder, other_folder = folders
    # Both workers have saved by step 24 when the second is killed.
    code = kill_after_log(24, condition="config.worker_index == 1")
    outcomes = finish_all(start_small_pair(complete_script, folders, code))
    assert [outcome.code for outcome in outcomes] == [143, -signal.SIGKILL], outcomes
    assert_nothing_left(chief_folder, other_folder)

    outcomes = finish_all(start_small_pair(complete_script, folders, PRINTS_SNAPSHOT))
    assert_succeeded(outcomes)
    assert "resumed at step " in outcomes[0].output
    assert "weights in the snapshot: 0" not in outcomes[0].output
    assert set(outcomes[1].output.splitlines()) == {"weights in the snapshot: 0"}
    assert {path.name for path in other_folder.iterdir()} == {"train.py", "scratch"}
    expected = train_once(*SMALL_FLAGS, *TWO_REPLICAS, code=(SMALL_IMAGES,))
    assert read_numbers(chief_folder / "run") == read_numbers(expected)


# --------------------------------------------------------------------------------------------------
# Recovery
# --------------------------------------------------------------------------------------------------

RECOVERED = "recovery 1 of 1: back at step 78,"
NAN_FLAGS = (*FLAGS, "--steps-per-loop", "7", "--recover-from-nan", "1")
# The first batch of the second epoch.
FIRST_BATCH = make_nan(epoch=1, first_position=0)


@pytest.mark.long
def test_recovery_at_the_start_of_an_epoch_keeps_the_means_of_loops(train_once):
    run_dir = train_once(*NAN_FLAGS, *TWO_REPLICAS, code=(FIRST_BATCH,))
    assert RECOVERED in (run_dir.parent / "output").read_text()
    lines = read_split(run_dir, "train")
    before = [line["loss"] for line in lines if line["step"] <= 78]
    after = next(line for line in lines if line["step"] > 78)
    # A loop that also counted the epoch before would have twice the loss.
    assert 78 + 6 <= after["step"] <= 78 + 7
    assert after["loss"] < 1.3 * before[-1]
    assert after["loss"] < 0.8 * sum(before) / len(before)


@pytest.mark.long
def test_recovery_of_workers_is_bit_identical_to_replicas(complete_script, train_once, folders):
    scripts = write_copies(complete_script, folders, FIRST_BATCH)
    outcomes = finish_all(start_pair(scripts, *NAN_FLAGS))
    assert_succeeded(outcomes)
    assert RECOVERED in outcomes[0].output
    expected = train_once(*NAN_FLAGS, *TWO_REPLICAS, code=(FIRST_BATCH,))
    assert_same_run(folders[0] / "run", expected)


# --------------------------------------------------------------------------------------------------
# Worker failures and signals
# --------------------------------------------------------------------------------------------------

# With SLOW in the environment, the examples from step 41 on take a second per step. The third
# loop, of steps 39 to 58, then takes 18 seconds.
SLOW_DATA = """
@wraps_original
def preprocess(original, batch, seeds, training):
    def wait(position):
        if position // 16 >= 40 and "SLOW" in os.environ:
            time.sleep(1)

    if training:
        tf.numpy_function(wait, [seeds[0, 1]], [])
    return original(batch, seeds, training)
"""
LOOPS = (
    *("--global-batch-size", "16", "--epochs", "2"),
    *("--steps-per-loop", "20", "--checkpoint-every-steps", "10000"),
)


@pytest.mark.parametrize(
    ("number", "index"),
    [
        pytest.param(signal.SIGTERM, 0, marks=LONG),
        (signal.SIGTERM, 1),
        pytest.param(signal.SIGKILL, 1, marks=LONG),
    ],
    ids=["term-chief", "term-worker", "kill-worker"],
)
def test_end_of_the_last_loop_is_saved(number, index, complete_script, train_once, folders):
    scripts = write_copies(complete_script, folders, SLOW_DATA)
    run_dir = folders[0] / "run"
    pair = start_pair(scripts, *LOOPS, SLOW="1")
    wait_until(lambda: len(read_split(run_dir, "train")) == 2, *pair)
    time.sleep(2)
    assert list_checkpoints(run_dir) == []
    pair[index].send_signal(number)
    began = time.monotonic()
    chief, other = finish_all(pair, timeout=60)
    assert time.monotonic() - began < 15
    assert (chief.code, other.code) == (143, -9 if number == signal.SIGKILL else 143)
    assert "Traceback" not in chief.errors + other.errors
    assert list_checkpoints(run_dir) == [38]
    outcomes = finish_all(start_pair(scripts, *LOOPS))
    assert_succeeded(outcomes)
    assert "resumed at step 38" in outcomes[0].output
    assert_same_run(run_dir, train_once(*LOOPS, *TWO_REPLICAS, code=(SLOW_DATA,)))


# The last save after a signal takes ten seconds, as long as a save of a large model.
SLOW_SAVES = {
    "essential": """
@wraps_original
def save(original, kind):
    if signals and config.worker_index == 0:
        time.sleep(10)
    original(kind)
""",
    "complete": """
@wraps_original
def write_checkpoints(original, *contents):
    time.sleep(10)
    original(*contents)
""",
}


@pytest.mark.long
@pytest.mark.parametrize("size", SLOW_SAVES)
def test_chief_saves_a_large_model_after_the_others_have_ended(size, scripts, tmp_path):
    flags = ("--epochs", "500", "--checkpoint-every-steps", "100000")
    script = write_variant(scripts[size], tmp_path, SLOW_SAVES[size])
    pair = start_workers(script, WORKERS, *flags)
    run_dir = tmp_path / "run"
    wait_until(lambda: read_split(run_dir, "train"), *pair)
    logged = read_split(run_dir, "train")[-1]["step"]
    for process in pair:
        process.send_signal(signal.SIGTERM)
    outcomes = finish_all(pair, timeout=90)
    assert [outcome.code for outcome in outcomes] == [143, 143], outcomes
    assert list_checkpoints(run_dir)[-1] >= logged, outcomes


@pytest.mark.long
@pytest.mark.parametrize("index", [0, 1])
def test_failed_worker_is_named(index, complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    workers = start_workers(script, WORKERS, *FLAGS[:2], "--epochs", "30")
    wait_for_lines(tmp_path / "run", 2, workers[0])
    workers[index].kill()
    outcome = finish(workers[1 - index], timeout=30)
    message = f"train.py: stopped: worker {index} failed; start all workers again\n"
    assert (outcome.code, outcome.errors) == (143, message)
    finish(workers[index])
    assert len(list((tmp_path / "scratch").iterdir())) == 1  # the killed worker's


def fail_in_worker(index):
    """Return code of a hook that raises an exception on one worker, in the first epoch."""
    return f"""
@wraps_original
def preprocess(original, batch, seeds, training):
    images, labels = original(batch, seeds, training)
    if training and config.worker_index == {index}:
        with tf.control_dependencies([tf.debugging.assert_less(seeds[0, 1], 700)]):
            labels = tf.identity(labels)
    return images, labels
"""


@pytest.mark.long
@pytest.mark.parametrize("index", [0, 1])
def test_exception_in_a_hook_ends_the_other_worker(index, complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, fail_in_worker(index))
    workers = start_workers(script, WORKERS, *FLAGS)
    outcomes = finish_all(workers, timeout=60)
    failed = outcomes[index]
    assert failed.code == 1
    assert "Traceback" in failed.errors
    assert "assert_less" in failed.errors
    other = outcomes[1 - index]
    assert other.code == 143
    assert other.errors.startswith(f"train.py: stopped: worker {index} failed")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["workers"] == 2


def test_folder_that_the_chief_cannot_create_is_named_by_all_workers(complete_script, folders):
    scripts = write_copies(complete_script, folders)
    workers = start_pair(scripts, "--run-dir", "/proc/no/run")
    for outcome in finish_all(workers, timeout=60):
        assert_fails(outcome, 2, "--run-dir /proc/no/run")


# The export at the start, which shows errors of the hooks, is not of the run.
FAILING_EXPORT = """
@wraps_original
def export(original, folder, examples):
    if folder == run_path("export"):
        raise OSError(28, "No space left on device", str(folder))
    original(folder, examples)
"""


@pytest.mark.long
def test_failed_export_ends_all_workers_with_one_message(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, FAILING_EXPORT)
    workers = start_workers(script, WORKERS, *FLAGS)
    for outcome in finish_all(workers, timeout=90):
        assert_fails(outcome, 1, "the disk of")


# --------------------------------------------------------------------------------------------------
# A worker whose peer doesn't come
# --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def start_alone(script, run_dir, *flags):
    """Start workers of index 0 and 1, each without its peer. Yield processes with addresses."""
    alone = []
    for index in (0, 1):
        cluster = assign_addresses(WORKERS)
        env = environment(**tf_config(cluster, "worker", index))
        process = fork(script, "--run-dir", run_dir, *flags, env=env)
        alone.append((process, cluster["worker"][1 - index]))
    try:
        yield alone
    finally:
        for process, _ in alone:
            process.kill()


def is_waiting(process, address):
    """Return whether a worker has printed that it is waiting for a peer."""
    output = process.read_output()
    return "waiting for" in output and address in output


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=LONG)])
def test_worker_that_waits_for_its_peer_handles_signals(number, complete_script, tmp_path):
    with start_alone(complete_script, tmp_path / "run") as alone:
        for process, address in alone:
            wait_until(
                lambda process=process, address=address: is_waiting(process, address),
                process,
            )
        began = time.monotonic()
        for process, _ in alone:
            process.send_signal(number)
        outcomes = [finish(process, timeout=20) for process, _ in alone]
        assert time.monotonic() - began < 10  # otherwise, it would wait for ten minutes
    for outcome in outcomes:
        assert_interrupted(outcome)
    assert not (tmp_path / "run").exists()


# The chief waits for a worker that doesn't start, or that still loads its data. In the first case,
# TensorFlow catches SIGTERM, so only Ctrl-C ends it; see docs/variants.md.
WAITS = run_before("create_multi_worker_strategy", "Path('waiting').touch()")
WAITS_FOR_DATA = """
@wraps_original
def create_datasets(original):
    if config.worker_index > 0:
        time.sleep(60)
    return original()
""" + run_before("load_adapted", "Path('waiting').touch()")


@pytest.mark.parametrize(
    ("code", "indices", "number"),
    [(WAITS, [0], signal.SIGINT), (WAITS_FOR_DATA, [0, 1], signal.SIGTERM)],
    ids=["worker", "data"],
)
def test_essential_chief_that_waits_ends_on_a_signal(
    code, indices, number, essential_script, tmp_path
):
    script = write_variant(essential_script, tmp_path, code)
    environments = worker_environments([("worker", index) for index in (0, 1)])
    workers = [fork(script, *FLAGS, env=environments[index]) for index in indices]
    try:
        chief = workers[0]
        wait_until((tmp_path / "waiting").exists, chief, timeout=60)
        time.sleep(3)  # by then, TensorFlow waits
        assert chief.poll() is None, finish(chief)
        began = time.monotonic()
        chief.send_signal(number)
        outcome = finish(chief, timeout=30)
        assert time.monotonic() - began < 5
        assert outcome.code == (143 if number == signal.SIGTERM else -number), outcome
        assert "Traceback" not in outcome.errors
    finally:
        for worker in workers:
            worker.kill()


def test_worker_whose_peer_does_not_come_stops_after_timeout(complete_script, tmp_path):
    began = time.monotonic()
    with start_alone(complete_script, tmp_path / "run", "--timeout", "8") as alone:
        for process, address in alone:
            outcome = finish(process, timeout=60)
            assert outcome.output.count("waiting for") == 1
            assert_fails(outcome, 143, "no connection to", address)
            assert time.monotonic() - began >= 8
    assert not (tmp_path / "run").exists()


def test_workers_that_have_come_do_not_wait_in_tensorflow(complete_script, tmp_path):
    """Of three workers, the last one doesn't come."""
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    environments = worker_environments([("worker", index) for index in range(3)])
    workers = [fork(script, "--timeout", "8", env=env) for env in environments[:2]]
    chief, other = finish_all(workers, timeout=60)
    assert_fails(chief, 143, "worker 2 at ")
    assert_fails(other, 143, "no connection to worker 0")


@pytest.mark.long
def test_worker_that_ends_while_it_waits_ends_the_others(complete_script, tmp_path):
    """Of three workers, the second one is killed before the last one comes."""
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    environments = worker_environments([("worker", index) for index in range(3)])
    chief, killed = [fork(script, "--timeout", "20", env=env) for env in environments[:2]]
    wait_until(lambda: "waiting for worker 2 at" in chief.read_output(), chief)
    killed.kill()
    last = fork(script, "--timeout", "20", env=environments[2])
    chief_outcome, last_outcome = finish_all([chief, last], timeout=60)
    assert_fails(chief_outcome, 143, "a worker failed while it waited for others")
    assert_fails(last_outcome, 143, "no connection to worker 0")


def test_single_worker_trains_alone(complete_script, tmp_path):
    """TF_CONFIG with one worker needs no peer."""
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    [env] = worker_environments([("worker", 0)])
    assert "written to run" in train(script, "--epochs", "1", env=env)
