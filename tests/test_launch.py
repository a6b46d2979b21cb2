"""launch/local.py: start, stop and restart several workers on this machine.

All tests but the last two use a train.py of a few lines: the launcher doesn't depend on TensorFlow.
"""

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import (
    FLAGS,
    TIMEOUT,
    assert_same_checkpoints,
    environment,
    finish,
    read_numbers,
    wait_until,
)
from variants import replace_text

# The start of each test's train.py. It runs in the folder in which the launcher was started.
STUB = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

config = json.loads(os.environ["TF_CONFIG"])
role = config["task"]["type"]
index = config["task"]["index"]
name = f"{role}-{index}"
received = []


def receive(number, frame):
    received.append(signal.Signals(number).name)
    Path(f"received-{os.getpid()}").write_text(" ".join(received))
    on_signal()


def on_signal():
    os._exit(143)


def wait_for(*names):
    end = time.monotonic() + 20
    while not all(Path(name).exists() for name in names):
        assert time.monotonic() < end, names
        time.sleep(0.002)


def wait_for_all_workers():
    count = len(config["cluster"]["worker"])
    wait_for(*(f"ready-worker-{i}-{start}" for i in range(count)))


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, receive)
with open(f"starts-{name}", "a") as file:
    facts = {"pid": os.getpid(), "config": config, "argv": sys.argv, "folder": os.getcwd()}
    file.write(json.dumps(facts) + "\\n")
start = len(Path(f"starts-{name}").read_text().splitlines())  # 1, then 2 after a restart
"""
READY = 'Path(f"ready-{name}-{start}").touch()\n'

# Replacements of `on_signal`. The last worker takes longest to save.
SAVE_SLOWLY = """
def on_signal():
    time.sleep(1.5 * index)
    print("saved")
    os._exit(143)
"""
IGNORE_SIGNALS = """
def on_signal():
    pass
"""

WAIT_FOR_ALL = "wait_for_all_workers()\n"
SLEEP = f"time.sleep({TIMEOUT})\n"


def copy_launcher(project_dir, folder):
    """Copy launch/local.py of a rendered project into a new one. Return the new folder."""
    project = folder / "project"
    (project / "launch").mkdir(parents=True)
    replace_text(project_dir / "launch" / "local.py", project / "launch")
    return project


@pytest.fixture
def project(essential_script, tmp_path):
    """Return a folder with launch/local.py. Kill what the test started and left running."""
    project = copy_launcher(essential_script.parent, tmp_path)
    yield project
    kill_tasks(project)


@pytest.fixture
def server_project(server_script, tmp_path):
    """Return a folder with the launch/local.py of parameter servers."""
    project = copy_launcher(server_script.parent, tmp_path)
    yield project
    kill_tasks(project)


def kill_tasks(project):
    for pid in find_running(project):
        os.kill(pid, signal.SIGKILL)


def restore_signal_handlers():
    """Undo the settings of nohup, and of shells for background processes."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start_launcher(
    project, body, *flags, on_signal="", wrapper=(), edits=(), variables=None, **options
):
    """Start the launcher with a train.py that runs `body`, from a folder of its own.

    `variables` are more environment variables.
    """
    (project / "train.py").write_text(STUB + on_signal + READY + body, encoding="utf-8")
    local = project / "launch" / "local.py"
    replace_text(local, local.parent, *edits)
    folder = project.parent / "folder"
    folder.mkdir()
    return subprocess.Popen(
        [*wrapper, sys.executable, local, *map(str, flags)],
        cwd=folder,
        env=environment(PYTHONUNBUFFERED="", **(variables or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=restore_signal_handlers,
        start_new_session=True,
        **options,
    )


def finish_launcher(project, process, code, timeout=20):
    """Wait for the launcher and check its exit code. Return the lines of its output."""
    returned, output, errors = finish(process, timeout=timeout)
    assert (returned, errors) == (code, ""), output
    assert find_running(project) == []
    return output.splitlines()


def run_launcher(project, body, *flags, code=0, **options):
    """Run the launcher to its end. Return the lines of its output."""
    process = start_launcher(project, body, *flags, **options)
    return finish_launcher(project, process, code)


def read_starts(project, name):
    """Return what a task recorded at each of its starts."""
    path = project.parent / "folder" / f"starts-{name}"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def count_starts(project, count=2):
    """Return the number of starts of each worker."""
    return [len(read_starts(project, f"worker-{index}")) for index in range(count)]


def find_pids(project):
    """Return the process numbers of all starts of all tasks, ordered by task."""
    pids = []
    for path in sorted((project.parent / "folder").glob("starts-*")):
        pids += [json.loads(line)["pid"] for line in path.read_text().splitlines()]
    return pids


def is_running(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    state = stat.rpartition(")")[2].split()[0]
    return state not in "ZX"  # zombie or dead


def find_running(project):
    return [pid for pid in find_pids(project) if is_running(pid)]


def read_received(project):
    """Return the signals that each process received, in the order of `find_pids`."""
    received = []
    for pid in find_pids(project):
        path = project.parent / "folder" / f"received-{pid}"
        received.append(path.read_text() if path.exists() else "")
    return received


def touch(project, name):
    (project.parent / "folder" / name).touch()


def wait_for_file(project, name):
    path = project.parent / "folder" / name
    wait_until(path.exists, timeout=20, what=name)


def wait_for_workers(project, count=2):
    """Wait until all workers of the first start have installed their signal handlers."""
    for index in range(count):
        wait_for_file(project, f"ready-worker-{index}-1")


def select_worker_lines(index, lines):
    """Return the lines of a worker without their prefix."""
    prefix = f"[worker {index}] "
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


# --------------------------------------------------------------------------------------------------
# The environment of the workers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_tf_config_names_all_workers(count, project):
    body = WAIT_FOR_ALL + (
        "import socket\n"
        "host, port = config['cluster']['worker'][index].split(':')\n"
        "socket.create_server((host, int(port)))\n"  # raises if the port is in use
    )
    assert run_launcher(project, body, "--workers", count) == []
    configs = []
    for index in range(count):
        configs += [start["config"] for start in read_starts(project, f"worker-{index}")]
    addresses = configs[0]["cluster"]["worker"]
    assert configs == [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index in range(count)
    ]
    assert len(set(addresses)) == count
    assert {address.split(":")[0] for address in addresses} == {"127.0.0.1"}


def test_restart_uses_new_ports(project):
    run_launcher(project, WAIT_FOR_ALL + "sys.exit(143 if start == 1 else 0)", "--workers", 2)
    starts = [read_starts(project, f"worker-{index}") for index in range(2)]
    first, second = [start["config"]["cluster"]["worker"] for start in starts[0]]
    assert not set(first) & set(second)
    assert starts[1][1]["config"]["cluster"]["worker"] == second


@pytest.mark.parametrize(
    ("flags", "train_flags"),
    [
        ([], []),
        (["--"], []),
        (["--", "--epochs", "5"], ["--epochs", "5"]),
        (
            ["--", "--workers", "a b", "", "--", "-h", "--max-restarts=-1"],
            ["--workers", "a b", "", "--", "-h", "--max-restarts=-1"],
        ),
    ],
)
def test_flags_after_two_dashes_are_passed_to_train_py(flags, train_flags, project):
    run_launcher(project, "", "--workers", 2, *flags)
    for index in range(2):
        [start] = read_starts(project, f"worker-{index}")
        assert start["argv"] == [str(project / "train.py"), *train_flags]
        assert start["folder"] == str(project.parent / "folder")


def test_stdin_of_workers_is_empty(project):
    body = "print(repr(sys.stdin.read()))"
    process = start_launcher(project, body, "--workers", 1, stdin=subprocess.PIPE)
    process.stdin.write("text")
    assert finish_launcher(project, process, 0) == ["[worker 0] ''"]


# --------------------------------------------------------------------------------------------------
# Output
# --------------------------------------------------------------------------------------------------


def test_concurrent_lines_are_whole_and_in_order(project):
    body = WAIT_FOR_ALL + (
        "for number in range(500):\n"
        "    for file in (sys.stdout, sys.stderr):\n"
        "        for piece in (file.name, ' ', str(number), ' ', 5000 * str(index), '\\n'):\n"
        "            file.write(piece)\n"
        "            file.flush()\n"
    )
    lines = run_launcher(project, body, "--workers", 3)
    for index in range(3):
        assert select_worker_lines(index, lines) == [
            f"{name} {number} {5000 * str(index)}"
            for number in range(500)
            for name in ("<stdout>", "<stderr>")
        ]
    assert len(lines) == 3 * 1000
    # The test is only meaningful if the workers wrote at the same time.
    assert len({line[:10] for line in lines[:1000]}) > 1


def test_arbitrary_bytes_are_relayed(project):
    body = r"sys.stdout.buffer.write('é\r\n\n'.encode() + b'\xff\x00\t| no line end')"
    process = start_launcher(project, body, "--workers", 1)
    output = process.stdout.buffer.read()
    lines = ["é".encode(), b"", b"\xff\x00\t| no line end"]
    assert output == b"".join(b"[worker 0] " + line + b"\n" for line in lines)
    finish_launcher(project, process, 0)


def test_lines_are_relayed_immediately(project):
    process = start_launcher(project, "print('here')\n" + "wait_for('go')", "--workers", 1)
    assert process.stdout.readline() == "[worker 0] here\n"
    touch(project, "go")
    assert finish_launcher(project, process, 0) == []


def test_closed_stdout_stops_all_workers(project):
    body = "while True:\n    print('line')\n    time.sleep(0.01)\n"
    process = start_launcher(project, body, "--workers", 2, on_signal=SAVE_SLOWLY)
    wait_for_workers(project)
    process.stdout.close()
    assert process.wait(timeout=20) == 143
    assert process.stderr.read() == ""
    assert read_received(project) == ["SIGTERM", "SIGTERM"]


def test_launcher_without_stdout_runs_all_workers(project):
    """Some services close it. More output than a pipe holds must not block a worker."""
    body = "print('x' * 300_000)\nPath('done').touch()\n"
    without_stdout = ["sh", "-c", 'exec "$0" "$@" >&-']
    run_launcher(project, body, "--workers", 1, wrapper=without_stdout)
    assert (project.parent / "folder" / "done").exists()


# --------------------------------------------------------------------------------------------------
# Stopping
# --------------------------------------------------------------------------------------------------


def signal_group(process, number=signal.SIGINT):
    """Send a signal to the process group of the launcher, as a terminal does at Ctrl-C."""
    os.killpg(process.pid, number)


def shorten_grace_period(seconds):
    return [("GRACE_SECONDS = 15", f"GRACE_SECONDS = {seconds}")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_all_workers_and_lets_them_save(number, project):
    # The last worker takes three seconds to save, long after the first has exited.
    edits = shorten_grace_period(1)
    process = start_launcher(project, SLEEP, "--workers", 3, on_signal=SAVE_SLOWLY, edits=edits)
    wait_for_workers(project, 3)
    signal_group(process, number)
    lines = finish_launcher(project, process, 143)
    assert read_received(project) == ["SIGTERM"] * 3
    assert count_starts(project, 3) == [1, 1, 1]
    assert [select_worker_lines(index, lines) for index in range(3)] == [["saved"]] * 3
    assert [line for line in lines if line.startswith("launch: ")] == [lines[0]]


def test_workers_that_drop_the_first_sigterm_stop(project):
    """TensorFlow's C++ code drops it while workers connect."""
    on_signal = "def on_signal():\n    if len(received) > 1:\n        os._exit(143)\n"
    edits = [("REPEAT_SECONDS = 5", "REPEAT_SECONDS = 1")]
    process = start_launcher(project, SLEEP, "--workers", 2, on_signal=on_signal, edits=edits)
    wait_for_workers(project)
    signal_group(process)
    finish_launcher(project, process, 143)
    assert read_received(project) == ["SIGTERM SIGTERM"] * 2


def test_signal_to_the_launcher_only_stops_all_workers(project):
    process = start_launcher(project, SLEEP, "--workers", 2, on_signal=SAVE_SLOWLY)
    wait_for_workers(project)
    process.terminate()
    lines = finish_launcher(project, process, 143)
    assert select_worker_lines(1, lines) == ["saved"]
    assert read_received(project) == ["SIGTERM", "SIGTERM"]


def test_repeated_signal_within_a_second_counts_once(project):
    # `uv run` forwards the signal of the process group 0.2 s later.
    process = start_launcher(project, SLEEP, "--workers", 2, on_signal=SAVE_SLOWLY)
    wait_for_workers(project)
    signal_group(process)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    lines = finish_launcher(project, process, 143)
    assert [select_worker_lines(index, lines) for index in range(2)] == [["saved"], ["saved"]]


def interrupt_twice(process):
    """Press Ctrl-C, check that the launcher waits, and press Ctrl-C again."""
    signal_group(process)
    assert process.stdout.readline().startswith("launch: stopping")
    time.sleep(1.5)
    assert process.poll() is None
    signal_group(process)


def test_second_signal_kills_all_workers(project):
    process = start_launcher(project, SLEEP, "--workers", 2, on_signal=IGNORE_SIGNALS)
    wait_for_workers(project)
    interrupt_twice(process)
    began = time.monotonic()
    finish_launcher(project, process, 143)
    assert time.monotonic() - began < 5
    assert read_received(project) == ["SIGTERM", "SIGTERM"]
    assert count_starts(project) == [1, 1]


def test_signal_during_a_failure_prevents_the_restart(project):
    # Worker 1 has failed and worker 0 has not exited yet.
    body = WAIT_FOR_ALL + ("if index == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    on_signal = (
        "def on_signal():\n    Path('stopping').touch()\n    wait_for('go')\n    os._exit(143)\n"
    )
    process = start_launcher(project, body + SLEEP, "--workers", 2, on_signal=on_signal)
    wait_for_file(project, "stopping")
    signal_group(process)
    time.sleep(0.3)
    touch(project, "go")
    finish_launcher(project, process, 143)
    assert read_received(project) == ["SIGTERM", ""]
    assert count_starts(project) == [1, 1]


def test_nohup_is_respected(project):
    body = "print('here')\nwait_for('go')"
    wrapper = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    process = start_launcher(project, body, "--workers", 1, wrapper=wrapper)
    assert process.stdout.readline() == "[worker 0] here\n"
    signal_group(process, signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    touch(project, "go")
    finish_launcher(project, process, 0)


def test_exit_code_is_0_if_all_workers_finish_despite_a_signal(project):
    on_signal = "def on_signal():\n    os._exit(0)\n"
    process = start_launcher(project, SLEEP, "--workers", 2, on_signal=on_signal)
    wait_for_workers(project)
    signal_group(process)
    finish_launcher(project, process, 0)


# --------------------------------------------------------------------------------------------------
# Failures
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 2, 3, 142, 144])
def test_failure_stops_all_workers_without_a_restart(code, project):
    body = WAIT_FOR_ALL + f"if index == 1:\n    print('why')\n    sys.exit({code})\n" + SLEEP
    lines = run_launcher(project, body, "--workers", 3, code=code)
    assert read_received(project).count("SIGTERM") == 2
    assert count_starts(project, 3) == [1, 1, 1]
    heading = f"launch: worker 1 exited with code {code}; last lines of worker 1:"
    assert lines == ["[worker 1] why", heading, "why"]


def test_worker_that_ignores_sigterm_is_killed_after_the_grace_period(project):
    body = WAIT_FOR_ALL + "if index == 1:\n    sys.exit(1)\n" + SLEEP
    edits = shorten_grace_period(2)
    process = start_launcher(project, body, "--workers", 2, on_signal=IGNORE_SIGNALS, edits=edits)
    wait_for_workers(project)
    began = time.monotonic()
    finish_launcher(project, process, 1)
    assert 1.5 < time.monotonic() - began < 6
    assert read_received(project) == ["SIGTERM", ""]


def test_crash_while_stopping_starts_the_grace_period(project):
    # Worker 0 waits for worker 1 for ever.
    on_signal = "def on_signal():\n    if index == 1:\n        os._exit(1)\n"
    edits = shorten_grace_period(1)
    process = start_launcher(project, SLEEP, "--workers", 2, on_signal=on_signal, edits=edits)
    wait_for_workers(project)
    signal_group(process)
    lines = finish_launcher(project, process, 1)  # it may not have saved
    assert "launch: worker 1 exited with code 1; last lines of worker 1:" in lines


def test_tasks_end_if_the_launcher_is_killed(project):
    process = start_launcher(project, SLEEP, "--workers", 2)
    wait_for_workers(project)
    process.kill()
    process.wait()
    wait_until(lambda: not find_running(project), timeout=20, what="the end of all tasks")
    # Linux may send it twice: when one thread of the launcher ends, another becomes the parent.
    received = [set(signals.split()) for signals in read_received(project)]
    assert received == [{"SIGTERM"}, {"SIGTERM"}]


PRINT_GPUS = "print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"


def gpus_of(numbers):
    return {"CUDA_VISIBLE_DEVICES": numbers}


@pytest.mark.parametrize(
    ("gpus", "shares"),
    [
        ("0,1,2,3", ["0,2", "1,3"]),
        ("2,5", ["2", "5"]),
        ("0,1,2", ["0", "1"]),  # equally many
        ("0", ["", ""]),
        ("-1", ["-1", "-1"]),
    ],
)
def test_workers_share_the_gpus(gpus, shares, project):
    lines = run_launcher(project, PRINT_GPUS, "--workers", 2, variables=gpus_of(gpus))
    printed = [select_worker_lines(index, lines) for index in range(2)]
    assert printed == [[repr(share)] for share in shares]
    assert any("is above the 1 GPUs" in line for line in lines) == (gpus == "0")
    assert any("unused: 1" in line for line in lines) == (gpus == "0,1,2")


LIST_GPUS = """
import sys
from pathlib import Path

sys.path.insert(0, "launch")
import local

Path.glob = lambda *_: iter([Path("/dev/nvidia3"), Path("/dev/nvidia5")])
print(local.list_gpus())
"""


def test_gpus_of_a_container_count_from_zero(project):
    variables = {name: os.environ[name] for name in os.environ if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-c", LIST_GPUS]
    assert subprocess.check_output(command, cwd=project, env=variables) == b"['0', '1']\n"


def test_workers_of_parameter_servers_use_one_gpu_each(server_project):
    flags = ("--ps", 1, "--workers", 2)
    lines = run_launcher(server_project, PRINT_GPUS, *flags, variables=gpus_of("0,1,2,3"))
    printed = sorted(line.partition("] ")[2] for line in lines if line.endswith("'"))
    # The chief and the server have none.
    assert printed == ["''", "''", "'0'", "'1'"]
    assert any("unused: 2" in line for line in lines)


@pytest.mark.parametrize("end", ["os._exit(143)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_interrupted_worker_leaves_the_chief_time_to_save(end, project):
    body = WAIT_FOR_ALL + f"if index == 1:\n    {end}\n" + SLEEP
    on_signal = "def on_signal():\n    time.sleep(3)\n    print('saved')\n    os._exit(143)\n"
    flags = ("--workers", 2, "--max-restarts", 0)
    edits = shorten_grace_period(1)
    process = start_launcher(project, body, *flags, on_signal=on_signal, edits=edits)
    code = 143 if "143" in end else 128 + signal.SIGKILL
    lines = finish_launcher(project, process, code)
    assert select_worker_lines(0, lines) == ["saved"]


def test_failure_after_other_workers_have_finished(project):
    body = "if index == 1:\n    time.sleep(1)\n    sys.exit(3)\n"
    lines = run_launcher(project, body, "--workers", 2, code=3)
    assert lines == ["launch: worker 1 exited with code 3; last lines of worker 1:"]


def test_child_processes_of_a_lost_worker_are_killed(project):
    # The child process holds the pipe open: the end of the output would never come.
    body = (
        "child = subprocess.Popen(['sleep', '60'])\n"
        "with open(f'starts-{name}', 'a') as file:\n"
        "    file.write(json.dumps({'pid': child.pid}) + '\\n')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    began = time.monotonic()
    # `finish_launcher` checks that the child process has ended.
    run_launcher(project, body, "--workers", 1, "--max-restarts", 0, code=128 + 9)
    assert len(find_pids(project)) == 2
    assert time.monotonic() - began < 10


def test_last_lines_of_the_first_failure_are_printed_at_the_end(project):
    on_signal = (
        "def on_signal():\n"
        "    for number in range(100):\n"
        "        print('lost worker 1', number)\n"
        "    os._exit(7)\n"
    )
    body = WAIT_FOR_ALL + (
        "if index == 1:\n"
        "    for number in range(30):\n"
        "        print('line', number)\n"
        "    print('the reason', file=sys.stderr)\n"
        "    sys.exit(1)\n"
    )
    lines = run_launcher(project, body + SLEEP, "--workers", 2, code=1, on_signal=on_signal)
    assert len(select_worker_lines(0, lines)) == 100
    assert len(select_worker_lines(1, lines)) == 31
    assert lines[-21:] == [
        "launch: worker 1 exited with code 1; last lines of worker 1:",
        *(f"line {number}" for number in range(11, 30)),
        "the reason",
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_failures_are_ordered_by_time(first, project):
    # The other worker exits 50 ms later, in half of the runs before the launcher looks and sends a
    # signal. After 20 ms, on a loaded machine, the launcher's threads once saw the second first.
    body = WAIT_FOR_ALL + (
        f"if index == {first}:\n"
        "    Path('lost').touch()\n"
        "    os._exit(1)\n"
        "wait_for('lost')\n"
        "time.sleep(0.05)\n"
        "os._exit(143)\n"
    )
    run_launcher(project, body, "--workers", 2, code=1)
    assert count_starts(project) == [1, 1]


# --------------------------------------------------------------------------------------------------
# Restarts
# --------------------------------------------------------------------------------------------------

# A statement that ends a worker, the launcher's exit code, and its description.
ENDS = [
    ("sys.exit(143)", 143, "exited with code 143"),
    ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV"),
    ("os.kill(os.getpid(), 40)", 168, "was killed by signal 40"),
]


@pytest.mark.parametrize(("statement", "code", "description"), ENDS)
def test_lost_worker_restarts_all_workers(statement, code, description, project):
    body = WAIT_FOR_ALL + f"if index == 1 and start == 1:\n    {statement}\n"
    body += "if start == 1:\n    " + SLEEP + "print('done')"
    lines = run_launcher(project, body, "--workers", 2)
    assert sorted(lines) == [
        "[worker 0] done",
        "[worker 1] done",
        f"launch: worker 1 {description}; restart 1 of 3 (all workers)",
    ]
    assert count_starts(project) == [2, 2]
    assert read_received(project) == ["SIGTERM", "", "", ""]


@pytest.mark.parametrize(("statement", "code", "description"), ENDS)
def test_launcher_fails_when_no_restarts_are_left(statement, code, description, project):
    flags = ("--workers", 2, "--max-restarts", 2)
    body = WAIT_FOR_ALL + f"print('line')\nif index == 0:\n    {statement}\n" + SLEEP
    lines = run_launcher(project, body, *flags, code=code)
    assert [line for line in lines if not line.startswith("[")] == [
        f"launch: worker 0 {description}; restart 1 of 2 (all workers)",
        f"launch: worker 0 {description}; restart 2 of 2 (all workers)",
        f"launch: worker 0 {description}; no restarts left; last lines of worker 0:",
        "line",
    ]
    assert count_starts(project) == [3, 3]


@pytest.mark.parametrize(("flags", "starts"), [([], 4), (["--max-restarts", 0], 1)])
def test_default_and_zero_restarts(flags, starts, project):
    run_launcher(project, WAIT_FOR_ALL + "sys.exit(143)", "--workers", 2, *flags, code=143)
    assert count_starts(project) == [starts, starts]


def test_failure_after_a_restart(project):
    body = WAIT_FOR_ALL + "if start == 2 and index == 0:\n    sys.exit(2)\n"
    body += "if start == 1 and index == 1:\n    sys.exit(143)\n" + SLEEP
    lines = run_launcher(project, body, "--workers", 2, code=2)
    assert lines == [
        "launch: worker 1 exited with code 143; restart 1 of 3 (all workers)",
        "launch: worker 0 exited with code 2; last lines of worker 0:",
    ]
    assert count_starts(project) == [2, 2]


@pytest.mark.parametrize(("first", "second", "starts"), [(143, 1, 2), (1, 143, 1)])
def test_first_failure_decides_whether_to_restart(first, second, starts, project):
    on_signal = f"def on_signal():\n    os._exit({second})\n"
    body = WAIT_FOR_ALL + f"if index == 1 and start == 1:\n    sys.exit({first})\n"
    body += "if start == 1:\n    " + SLEEP
    code = 0 if starts == 2 else first
    run_launcher(project, body, "--workers", 2, code=code, on_signal=on_signal)
    assert count_starts(project) == [starts, starts]


# --------------------------------------------------------------------------------------------------
# Parameter servers; see test_parameter_server.py for the restarts
# --------------------------------------------------------------------------------------------------


def test_run_fails_when_its_last_worker_is_lost(server_project):
    # The daemon holds the worker's output open: the launcher must not take the worker for alive.
    body = (
        "if role == 'worker':\n"
        "    subprocess.Popen(['sleep', '5'], start_new_session=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    flags = ("--ps", 1, "--workers", 1, "--max-restarts", 0)
    lines = run_launcher(server_project, body + SLEEP, *flags, code=137)
    assert lines == [
        "launch: worker 0 was killed by SIGKILL; no restarts left; last lines of worker 0:"
    ]


def test_second_signal_kills_all_tasks_of_parameter_servers(server_project):
    project = server_project
    flags = ("--ps", 1, "--workers", 1)
    process = start_launcher(project, SLEEP, *flags, on_signal=IGNORE_SIGNALS)
    for name in ("chief-0", "ps-0", "worker-0"):
        wait_for_file(project, f"ready-{name}-1")
    interrupt_twice(process)
    finish_launcher(project, process, 143)
    assert read_received(project) == ["SIGTERM"] * 3


# --------------------------------------------------------------------------------------------------
# Wrong input
# --------------------------------------------------------------------------------------------------

# Flags, and words of the error message.
WRONG = {
    "--workers 0": ["--workers 0", "use 1 or more"],
    "--workers -1": ["--workers -1", "use 1 or more"],
    "--workers two": ["--workers", "two"],
    "--workers": ["--workers"],
    "": ["--workers"],
    "-- --workers 2": ["--workers"],
    "--workers 2 --max-restarts -1": ["--max-restarts -1", "use 0 or more"],
    "--workers 2 --max-restarts x": ["--max-restarts", "x"],
    "--workers 2 --epochs 5": ["--epochs 5", "after --"],
    "--workers 2 --max-restart 1": ["--max-restart 1"],
    "--workers 2 train.py": ["train.py", "after --"],
}


@pytest.mark.parametrize("flags", WRONG)
def test_wrong_input_prints_a_one_line_error(flags, project):
    code, output, errors = finish(start_launcher(project, "", *flags.split()))
    assert (code, output) == (2, "")
    [line] = errors.splitlines()
    assert line.startswith("local.py: error: ")
    assert [word for word in WRONG[flags] if word not in line] == []
    assert find_pids(project) == []


def test_missing_train_py_prints_a_one_line_error(project):
    command = [sys.executable, project / "launch" / "local.py", "--workers", "2"]
    finished = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert (finished.returncode, finished.stdout) == (2, "")
    [line] = finished.stderr.splitlines()
    assert line.startswith(f"local.py: error: {project / 'train.py'} does not exist")


def test_help_shows_the_commands(project):
    lines = run_launcher(project, "", "--help")
    assert "python launch/local.py --workers N" in lines[0]
    assert any("-- --epochs 5" in line for line in lines)
    assert find_pids(project) == []


def test_only_the_standard_library_is_imported(project):
    tree = ast.parse((project / "launch" / "local.py").read_text(encoding="utf-8"))
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            modules.add(node.module)
    assert modules <= set(sys.stdlib_module_names)


# --------------------------------------------------------------------------------------------------
# The real train.py
# --------------------------------------------------------------------------------------------------


def read_environment(pid):
    """Return the environment variables of a process."""
    text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    return dict(pair.partition("=")[::2] for pair in text.split("\0"))


def find_children(pid):
    """Return the numbers of the processes that a process started."""
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            parent = path.read_text().rpartition(")")[2].split()[1]
            if parent == str(pid):
                children.append(int(path.parent.name))
    return children


def find_worker(launcher, index):
    """Return the process number of a worker of a launcher."""
    for pid in find_children(launcher.pid):
        config = json.loads(read_environment(pid)["TF_CONFIG"])
        if config["task"]["index"] == index:
            return pid
    raise AssertionError(f"worker {index} is not running")


def test_run_with_a_killed_worker_is_bit_identical(render, train_once, tmp_path):
    project_dir = render(tmp_path)
    (tmp_path / "scratch").mkdir()  # the killed worker leaves temporary files
    process = subprocess.Popen(
        [sys.executable, "launch/local.py", "--workers", "2", "--", *FLAGS],
        cwd=project_dir,
        env=environment(TMPDIR=str(tmp_path / "scratch")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    run_dir = project_dir / "run"
    checkpoint = run_dir / "checkpoints" / "last" / "checkpoint"
    wait_until(checkpoint.exists, process, what="the first checkpoint")
    os.kill(find_worker(process, 1), signal.SIGKILL)
    code, output, errors = finish(process)
    assert (code, errors) == (0, ""), output
    status = [line for line in output.splitlines() if line.startswith("launch: ")]
    assert status == ["launch: worker 1 was killed by SIGKILL; restart 1 of 3 (all workers)"]
    assert re.search(r"(?m)^\[worker 0\] .*resumed at step \d+", output)
    expected = train_once(*FLAGS, "--replicas", "2")
    assert read_numbers(run_dir) == read_numbers(expected)
    assert_same_checkpoints(run_dir, expected)


@pytest.mark.long
def test_workers_connect_past_a_proxy(render, tmp_path):
    # TensorFlow would ask this proxy, which doesn't exist, for the other worker.
    process = subprocess.Popen(
        [sys.executable, "launch/local.py", "--workers", "2", "--", "--epochs", "1"],
        cwd=render(tmp_path),
        env=environment(http_proxy="http://127.0.0.1:9"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    code, output, errors = finish(process)
    assert (code, errors) == (0, ""), output
    assert "[worker 0] written to run: " in output
