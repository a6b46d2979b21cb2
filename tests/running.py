"""Start train.py and other scripts, wait for them, and read what runs have written."""

import atexit
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import typing
from pathlib import Path

import fork_service
import pytest
from fork_server import Fork

TESTS = Path(__file__).resolve().parent
TIMEOUT = 300  # seconds, of any one process

# Seeds the random moments at which tests kill runs. A failure prints it; the variable sets it.
SEED = int(os.environ.get("FAULTS_SEED", random.SystemRandom().randrange(2**31)))

# Flags of runs whose bits are compared. An epoch has 78 steps, a multiple of 13, so a checkpoint
# falls on the end of each epoch and several fall within it.
FLAGS = ("--global-batch-size", "16", "--epochs", "4", "--checkpoint-every-steps", "13")
STEPS_PER_EPOCH = 78
LAST_STEP = 4 * STEPS_PER_EPOCH

# Flags of the complete script, as many as possible in one run.
FLAGS_TOGETHER = {
    "float32": "--accumulation-steps 4 --clip-norm 0.3 --ema-momentum 0.9",
    "compiled": "--jit-compile --schedule cosine --warmup-steps 7",
    "bfloat16": "--precision mixed_bfloat16 --schedule linear",
    "float16": "--precision mixed_float16 --clip-norm 0.3 --accumulation-steps 2",
}

WORKERS = (("worker", 0), ("worker", 1))

# Variables that would change what train.py does.
STEERING_PREFIXES = (
    "TF_",
    "TPU_",
    "XLA_",
    "KERAS_",
    "SLURM_",
    "GIT_",
    "COLUMNS",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
)

# Compiled modules are kept, since compiling TensorFlow's takes long, but not beside the script:
# there a test would find them.
COMPILED = tempfile.mkdtemp()
atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)


class Outcome(typing.NamedTuple):
    """The exit code of a process, and what it wrote to stdout and stderr."""

    code: int
    output: str
    errors: str


# --------------------------------------------------------------------------------------------------
# Processes
# --------------------------------------------------------------------------------------------------


def environment(**variables):
    """Return environment variables for train.py: this process's, if they don't change its run."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(STEERING_PREFIXES)
    }
    # Bit-identical results are promised on CPUs.
    fixed = {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONPYCACHEPREFIX": COMPILED}
    return {**kept, **fixed, **variables}


def start(script, *flags, env=None, **options):
    """Start a script in its folder, as a user does. Return the process."""
    return subprocess.Popen(
        [sys.executable, script.name, *map(str, flags)],
        cwd=script.parent,
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        **options,
    )


def fork(script, *flags, env=None):
    """Start a script in its folder, faster than `start`. Return an object like a process."""
    return Fork(script, [*map(str, flags)], env or environment())


def finish(process, timeout=TIMEOUT):
    """Wait for a process, and kill it if it doesn't end in time. Return its outcome."""
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return Outcome(process.returncode, output, errors)


def run_script(script, *flags, env=None, timeout=TIMEOUT):
    """Run a script to its end. Return its outcome."""
    return finish(fork(script, *flags, env=env), timeout)


def train(script, *flags, timeout=TIMEOUT, begin=fork, **options):
    """Run a script that must succeed. Return its output."""
    outcome = finish(begin(script, *flags, **options), timeout)
    assert (outcome.code, outcome.errors) == (0, ""), f"{flags}\n{outcome.output}\n{outcome.errors}"
    return outcome.output


def run_python(code, folder):
    """Run Python code in a folder, as in a notebook there. Return its output."""
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, ""), finished.stdout + finished.stderr
    return finished.stdout


def run_project_tests(project, *options, in_forks=fork_service.IS_AVAILABLE):
    """Run the tests of a rendered project, by default faster than a user does.

    Return the finished process.
    """
    variables = {}
    if in_forks:
        options = ("-p", "fork_service", *options)
        variables = {"PYTHONPATH": str(TESTS), fork_service.ADDRESS: fork_service.serve()}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=project,
        env=environment(**variables),
        capture_output=True,
        encoding="utf-8",
        timeout=3 * TIMEOUT,  # They start up to a dozen processes.
        check=False,
    )


def kill(process):
    """Kill a process that is still running. Return what it has printed."""
    process.kill()
    outcome = finish(process)
    assert outcome.code == -signal.SIGKILL, "it ended before the kill"
    assert outcome.errors == ""
    return outcome.output


def query(question, *arguments, env=None):
    """Return the answer of a function of query_*.py, such as "runs.hash_checkpoints".

    It runs in a process of its own, since TensorFlow does.
    """
    return read_answer(begin_query(question, *arguments, env=env))


def begin_query(question, *arguments, env=None):
    """Start a query. Return the process, for `read_answer`."""
    texts = json.dumps(arguments, default=str)
    return fork(TESTS / "tf_queries.py", question, texts, env=env)


def read_answer(process):
    outcome = finish(process)
    assert outcome.code == 0, outcome.errors
    return json.loads(outcome.output.splitlines()[-1])


# --------------------------------------------------------------------------------------------------
# Replicas and workers
# --------------------------------------------------------------------------------------------------


def flags_of(replicas):
    """Return the flags for a number of replicas. One replica is the default."""
    return () if replicas == 1 else ("--replicas", str(replicas))


def find_free_ports(count):
    """Return ports of this machine that are free.

    Each of pytest's processes has its own range, below the ports that the kernel gives to outgoing
    connections. So none is taken before its task uses it.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 20_000 + 1000 * (process % 12)
    ports = []
    for port in random.sample(range(first, first + 1000), 1000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            break
    return ports


def assign_addresses(tasks):
    """Return a cluster on this machine, as in TF_CONFIG, for tasks given as (job, index)."""
    cluster = {}
    for (job, _), port in zip(tasks, find_free_ports(len(tasks)), strict=True):
        cluster.setdefault(job, []).append(f"127.0.0.1:{port}")
    return cluster


def tf_config(cluster, job, index):
    """Return the environment variable TF_CONFIG of one task, as a dict."""
    task = {"type": job, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def worker_environments(tasks, **variables):
    """Return the environment of each task of one cluster on this machine."""
    cluster = assign_addresses(tasks)
    return [environment(**tf_config(cluster, job, index), **variables) for job, index in tasks]


def start_workers(script, tasks, *flags, begin=fork):
    """Start a process for each task. Their temporary files go to the folder "scratch"."""
    scratch = script.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    environments = worker_environments(tasks, TMPDIR=str(scratch))
    return [begin(script, *flags, env=env) for env in environments]


def start_pair(scripts, *flags, more_flags=(), **variables):
    """Start two workers, each with its script in its own folder. The second has more flags."""
    first_env, second_env = worker_environments(WORKERS, **variables)
    first_script, second_script = scripts
    return [
        fork(first_script, *flags, env=first_env),
        fork(second_script, *flags, *more_flags, env=second_env),
    ]


def finish_all(processes, timeout=TIMEOUT):
    """Wait for processes. Return their outcomes, in order."""
    try:
        return [finish(process, timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()


def assert_succeeded(outcomes):
    assert [(outcome.code, outcome.errors) for outcome in outcomes] == [(0, "")] * len(outcomes)


# --------------------------------------------------------------------------------------------------
# Errors
# --------------------------------------------------------------------------------------------------


def assert_one_line(errors, *words):
    """Assert that stderr has one line of train.py, with some words in it. Return the line."""
    assert errors.endswith("\n"), errors
    [line] = errors.splitlines()
    assert line.startswith("train.py: "), line
    for word in words:
        assert word in line, line
    return line


def assert_fails(outcome, code, *words):
    """Assert that a script ended with an exit code and one line on stderr. Return the line."""
    assert outcome.code == code, outcome
    return assert_one_line(outcome.errors, *words)


def assert_interrupted(outcome):
    """Assert that a signal ended a script: exit code 143, and at most one line on stderr."""
    assert outcome.code == 143, outcome
    if outcome.errors:
        assert_one_line(outcome.errors)


def assert_rejected(outcome, *words):
    """Assert that a script rejected its input: exit code 2, no output, one line on stderr."""
    assert (outcome.code, outcome.output) == (2, ""), outcome
    return assert_one_line(outcome.errors, *words)


# --------------------------------------------------------------------------------------------------
# Waiting
# --------------------------------------------------------------------------------------------------


def wait_until(condition, *processes, timeout=TIMEOUT, interval=0.005, what=""):
    """Wait until a condition is true, while all processes run. Return its value."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        for process in processes:
            assert process.poll() is None, finish(process)
        assert time.monotonic() < end, f"not within {timeout} s: {what}"
        time.sleep(interval)
    return value


def count_lines(run_dir):
    """Return the number of lines in a run's log."""
    log = run_dir / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def watch_log(run_dir):
    """Return a function that returns whether a run has replaced the log, as each does at its start.

    Call `watch_log` while the run is starting.
    """
    log = run_dir / "metrics.jsonl"
    inode = log.stat().st_ino if log.exists() else None

    def has_new_log():
        return log.exists() and log.stat().st_ino != inode

    return has_new_log


def wait_for_lines(run_dir, count, *processes):
    """Wait until a run that is starting has added lines to its log."""
    wait_until(watch_log(run_dir), *processes)
    wait_for_more_lines(run_dir, count, *processes)


def wait_for_more_lines(run_dir, count, *processes):
    """Wait until a run that is under way has added lines to its log."""
    before = count_lines(run_dir)
    wait_until(lambda: count_lines(run_dir) >= before + count, *processes)


# --------------------------------------------------------------------------------------------------
# Run directories
# --------------------------------------------------------------------------------------------------


def read_metrics(run_dir, *left_out):
    """Return the lines of metrics.jsonl, without some of their keys."""
    text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [{key: line[key] for key in line if key not in left_out} for line in lines]


def read_numbers(run_dir):
    """Return the lines of metrics.jsonl without speeds, which differ from run to run."""
    return read_metrics(run_dir, "examples_per_second", "input_wait")


def read_split(run_dir, split):
    """Return the log lines of one split, without speeds; none if there is no log yet."""
    with contextlib.suppress(FileNotFoundError):
        return [line for line in read_numbers(run_dir) if line["split"] == split]
    return []


def join_numbers(lines):
    """Return the numbers of a log by (split, step, name)."""
    numbers = {}
    for line in lines:
        for name, value in line.items():
            if name not in ("split", "step"):
                numbers[line["split"], line["step"], name] = value
    return numbers


def assert_close(lines, expected, rel, abs=0, flips=0):
    """Assert that two logs have the same lines, with numbers that are equal to a tolerance.

    Accuracies may also differ by `flips` predictions of 270: rounding decides between two classes
    that are almost equally likely, and differs from one kind of CPU to another.
    """
    assert len(lines) == len(expected) > 0
    numbers = join_numbers(lines)
    others = join_numbers(expected)
    assert numbers.keys() == others.keys()
    for key, value in numbers.items():
        tolerance = abs
        if flips and key[2] == "accuracy":
            tolerance = (flips + 0.5) / 270
        assert value == pytest.approx(others[key], rel=rel, abs=tolerance), key


def list_checkpoints(run_dir, kind="last"):
    """Return the steps of the checkpoints of a kind, "last" or "best", in order."""
    paths = (run_dir / "checkpoints" / kind).glob("ckpt-*.index")
    return sorted(int(path.stem.removeprefix("ckpt-")) for path in paths)


def find_newest_step(run_dir):
    """Return the step of the newest checkpoint, 0 without one."""
    return max(list_checkpoints(run_dir), default=0)


def describe_path(path):
    """Return a path's time of change, and the hash of its content if it is a file."""
    if not path.is_file():
        return path.stat().st_mtime_ns, "folder"
    return path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()


def hash_tree(folder):
    """Return the time of change and the content of every file and folder below a folder."""
    return {
        path.relative_to(folder).as_posix(): describe_path(path)
        for path in sorted(folder.rglob("*"))
    }


@contextlib.contextmanager
def assert_unchanged(folder):
    """Assert that the block changes nothing below a folder."""
    before = hash_tree(folder)
    yield
    assert hash_tree(folder) == before


def assert_same_checkpoints(run_dir, expected):
    """Assert that two runs have bit-identical checkpoints. Return the tensors' hashes, by name."""
    tensors, expected_tensors = query("runs.hash_checkpoints", run_dir, expected)
    assert tensors == expected_tensors
    return tensors


def assert_same_run(run_dir, expected):
    """Assert that two finished runs have the same log and bit-identical checkpoints.

    Their exports are not compared.
    """
    assert read_numbers(run_dir) == read_numbers(expected)
    tensors = assert_same_checkpoints(run_dir, expected)
    assert len(tensors["last"]) > 15
    for name in ("export/model.keras", "export/saved_model.pb", "train.py", "config.json"):
        assert (run_dir / name).is_file()
    assert not [*run_dir.rglob("*.part"), *run_dir.rglob("*_temp")]


def shape_of(value):
    """Return the shape of a tensor given as a list of lists."""
    return [len(value), *shape_of(value[0])] if isinstance(value, list) else []


def flatten(value):
    """Return the numbers of a tensor given as a list of lists."""
    if not isinstance(value, list):
        return [value]
    return [number for part in value for number in flatten(part)]


def drop_random_states(tensors):
    """Return the tensors of a model, given as lists, except tensors of shape [2].

    The states of random layers have this shape, and no weight of the test's model.
    """
    return [tensor for tensor in tensors if shape_of(tensor) != [2]]


# --------------------------------------------------------------------------------------------------
# Command lines
# --------------------------------------------------------------------------------------------------


def find_flags(script):
    """Return the flags of a script, from its --help, less --help itself and the --no-… ones."""
    # Narrower columns would break the names of flags.
    usage = run_script(script, "--help", env=environment(COLUMNS="500")).output
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", usage))
    return sorted(flag for flag in flags if flag != "--help" and not flag.startswith("--no-"))


def create_command(script, folder, flags, variables=None):
    """Return a command for `run_commands`."""
    return {
        "script": str(script),
        "flags": [*map(str, flags)],
        "variables": variables or {},
        "folder": str(folder),
    }


def run_commands(commands):
    """Run commands of train.py, one after another in one process. Return their outcomes."""
    return [Outcome(*values) for values in query("commands.run_commands", commands)]
