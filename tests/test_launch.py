"""launch/local.py: several workers on this machine, which start and end together.

All but the last test run it beside a train.py of a few lines, since what it promises has nothing
to do with TensorFlow.
"""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import FLAGS, TIMEOUT, ask_child, edit, environment, finish, read_numbers

# How each train.py of a test begins. It runs in the folder where the launcher was started.
BEGINNING = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
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


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, receive)
with open(f"starts-{index}", "a") as file:
    facts = {"pid": os.getpid(), "config": config, "argv": sys.argv, "folder": os.getcwd()}
    file.write(json.dumps(facts) + "\\n")
start = len(Path(f"starts-{index}").read_text().splitlines())  # 1, then 2 after a restart
"""

# What some do when they are asked to end; the last one saves long after the first.
SLOW_TO_SAVE = """
def on_signal():
    time.sleep(1.5 * index)
    print("saved")
    os._exit(143)
"""
DEAF = """
def on_signal():
    pass
"""

READY = 'Path(f"ready-{index}-{start}").touch()\n'
# To go on with when all workers are there.
TOGETHER = "wait_for(*(f'ready-{i}-{start}' for i in range(len(config['cluster']['worker']))))\n"
FOR_EVER = f"time.sleep({TIMEOUT})\n"


@pytest.fixture
def project(script, tmp_path):
    """Return a folder with launch/local.py in it. What a test started is ended after it."""
    (tmp_path / "project" / "launch").mkdir(parents=True)
    edit(script.parent / "launch" / "local.py", tmp_path / "project" / "launch")
    yield tmp_path / "project"
    for pid in filter(is_running, find_pids(tmp_path / "project")):
        os.kill(pid, signal.SIGKILL)


def heed_signals():
    """Undo what nohup and shells do to what they start in the background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def launch(project, body, *flags, on_signal="", wrapper=(), edits=(), **options):
    """Start the launcher with a train.py of some lines, in another folder than theirs."""
    (project / "train.py").write_text(BEGINNING + on_signal + READY + body, encoding="utf-8")
    local = project / "launch" / "local.py"
    edit(local, local.parent, *edits)
    folder = project.parent / "folder"
    folder.mkdir()
    return subprocess.Popen(
        [*wrapper, sys.executable, local, *map(str, flags)],
        cwd=folder,
        env=environment(PYTHONUNBUFFERED=""),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=heed_signals,
        start_new_session=True,
        **options,
    )


def end(project, process, code, timeout=20):
    """Wait for the launcher, whose exit code is known. Return the lines of its output."""
    returned, output, errors = finish(process, timeout=timeout)
    assert (returned, errors) == (code, ""), output
    assert [pid for pid in find_pids(project) if is_running(pid)] == []
    return output.splitlines()


def run(project, body, *flags, code=0, **options):
    """Run the launcher to its end. Return the lines of its output."""
    return end(project, launch(project, body, *flags, **options), code)


def read_starts(project, index):
    """Return what a worker noted at each of its starts."""
    path = project.parent / "folder" / f"starts-{index}"
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def count_starts(project, count=2):
    return [len(read_starts(project, index)) for index in range(count)]


def find_pids(project):
    paths = sorted((project.parent / "folder").glob("starts-*"))
    return [json.loads(line)["pid"] for path in paths for line in path.read_text().splitlines()]


def read_received(project):
    """Return the signals that came to each process: of worker 0 over all starts, and so on."""
    paths = [project.parent / "folder" / f"received-{pid}" for pid in find_pids(project)]
    return [path.read_text() if path.exists() else "" for path in paths]


def is_running(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"  # Zombies have ended.


def wait_for_file(project, name):
    deadline = time.monotonic() + 20
    while not (project.parent / "folder" / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.005)


def wait_for_workers(project, count=2):
    """Wait until all workers of the first start know what to do at a signal."""
    for index in range(count):
        wait_for_file(project, f"ready-{index}-1")


def written_by(index, lines):
    """Return the lines of a worker, less what says so."""
    prefix = f"[worker {index}] "
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


# --------------------------------------------------------------------------------------------------
# What workers get
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_workers_find_each_other_through_tf_config(count, project):
    body = TOGETHER + (
        "import socket\n"
        "host, port = config['cluster']['worker'][index].split(':')\n"
        "socket.create_server((host, int(port)))\n"  # It raises if the port is taken.
    )
    assert run(project, body, "--workers", count) == []
    configs = [start["config"] for index in range(count) for start in read_starts(project, index)]
    addresses = configs[0]["cluster"]["worker"]
    assert configs == [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index in range(count)
    ]
    assert len(set(addresses)) == count
    assert {address.split(":")[0] for address in addresses} == {"127.0.0.1"}


def test_ports_are_new_after_a_restart(project):
    run(project, TOGETHER + "sys.exit(143 if start == 1 else 0)", "--workers", 2)
    first, second = [start["config"]["cluster"]["worker"] for start in read_starts(project, 0)]
    assert not set(first) & set(second)
    assert read_starts(project, 1)[1]["config"]["cluster"]["worker"] == second


@pytest.mark.parametrize(
    "flags", [[], ["--epochs", "5"], ["--workers", "a b", "", "--", "-h", "--max-restarts=-1"]]
)
def test_flags_after_two_dashes_are_for_train_py(flags, project):
    run(project, "", "--workers", 2, "--", *flags)
    for index in range(2):
        [start] = read_starts(project, index)
        assert start["argv"] == [str(project / "train.py"), *flags]
        assert start["folder"] == str(project.parent / "folder")


def test_no_flags_at_all(project):
    run(project, "", "--workers", 2)
    assert [read_starts(project, i)[0]["argv"][1:] for i in range(2)] == [[], []]


def test_nothing_to_read_on_stdin(project):
    body = "print(repr(sys.stdin.read()))"
    process = launch(project, body, "--workers", 1, stdin=subprocess.PIPE)
    process.stdin.write("text")
    assert end(project, process, 0) == ["[worker 0] ''"]


# --------------------------------------------------------------------------------------------------
# Output
# --------------------------------------------------------------------------------------------------


def test_lines_stay_whole_and_in_order(project):
    body = TOGETHER + (
        "for number in range(500):\n"
        "    for file in (sys.stdout, sys.stderr):\n"
        "        for piece in (file.name, ' ', str(number), ' ', 5000 * str(index), '\\n'):\n"
        "            file.write(piece)\n"
        "            file.flush()\n"
    )
    lines = run(project, body, "--workers", 3)
    for index in range(3):
        assert written_by(index, lines) == [
            f"{name} {number} {5000 * str(index)}"
            for number in range(500)
            for name in ("<stdout>", "<stderr>")
        ]
    assert len(lines) == 3 * 1000
    # They wrote at the same time: else nothing was tried.
    assert len({line[:10] for line in lines[:1000]}) > 1


def test_any_bytes_are_passed_on(project):
    body = r"sys.stdout.buffer.write('é\r\n\n'.encode() + b'\xff\x00\t| no line end')"
    process = launch(project, body, "--workers", 1)
    output = process.stdout.buffer.read()
    lines = ["é".encode(), b"", b"\xff\x00\t| no line end"]
    assert output == b"".join(b"[worker 0] " + line + b"\n" for line in lines)
    end(project, process, 0)


def test_lines_appear_when_they_are_written(project):
    process = launch(project, "print('here')\n" + "wait_for('go')", "--workers", 1)
    assert process.stdout.readline() == "[worker 0] here\n"
    (project.parent / "folder" / "go").touch()
    assert end(project, process, 0) == []


def test_workers_stop_where_nobody_reads(project):
    body = "while True:\n    print('line')\n    time.sleep(0.01)\n"
    process = launch(project, body, "--workers", 2, on_signal=SLOW_TO_SAVE)
    wait_for_workers(project)
    process.stdout.close()
    assert process.wait(timeout=20) == 143
    assert process.stderr.read() == ""
    assert read_received(project) == ["SIGTERM", "SIGTERM"]


# --------------------------------------------------------------------------------------------------
# Stopping
# --------------------------------------------------------------------------------------------------


def press(process, number=signal.SIGINT):
    """Send a signal to the process group of the launcher, as a terminal does at Ctrl-C."""
    os.killpg(process.pid, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_ends_all_and_waits_for_them(number, project):
    # The last one takes three seconds to save, long after the first has ended.
    grace = [("GRACE = 15", "GRACE = 1")]
    process = launch(project, FOR_EVER, "--workers", 3, on_signal=SLOW_TO_SAVE, edits=grace)
    wait_for_workers(project, 3)
    press(process, number)
    lines = end(project, process, 143)
    assert read_received(project) == ["SIGTERM"] * 3
    assert count_starts(project, 3) == [1, 1, 1]
    assert [written_by(index, lines) for index in range(3)] == [["saved"]] * 3
    assert [line for line in lines if line.startswith("launch: ")] == [lines[0]]


def test_signal_to_the_launcher_alone(project):
    process = launch(project, FOR_EVER, "--workers", 2, on_signal=SLOW_TO_SAVE)
    wait_for_workers(project)
    process.terminate()
    lines = end(project, process, 143)
    assert written_by(1, lines) == ["saved"]
    assert read_received(project) == ["SIGTERM", "SIGTERM"]


def test_signal_that_comes_twice_counts_once(project):
    # `uv run` passes on what comes to the process group, 0.2 s later.
    process = launch(project, FOR_EVER, "--workers", 2, on_signal=SLOW_TO_SAVE)
    wait_for_workers(project)
    press(process)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    lines = end(project, process, 143)
    assert [written_by(index, lines) for index in range(2)] == [["saved"], ["saved"]]


def test_second_signal_kills(project):
    process = launch(project, FOR_EVER, "--workers", 2, on_signal=DEAF)
    wait_for_workers(project)
    press(process)
    assert process.stdout.readline().startswith("launch: ")
    time.sleep(1.5)
    assert process.poll() is None
    press(process)
    began = time.monotonic()
    end(project, process, 143)
    assert time.monotonic() - began < 5
    assert read_received(project) == ["SIGTERM", "SIGTERM"]
    assert count_starts(project) == [1, 1]


def test_signal_between_two_starts(project):
    # Worker 1 has failed, and worker 0 takes its time: after a signal, nothing starts again.
    body = TOGETHER + "if index == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n" + FOR_EVER
    on_signal = (
        "def on_signal():\n    Path('told').touch()\n    wait_for('go')\n    os._exit(143)\n"
    )
    process = launch(project, body, "--workers", 2, on_signal=on_signal)
    wait_for_file(project, "told")
    press(process)
    time.sleep(0.3)
    (project.parent / "folder" / "go").touch()
    end(project, process, 143)
    assert read_received(project) == ["SIGTERM", ""]
    assert count_starts(project) == [1, 1]


def test_nohup_is_respected(project):
    body = "print('here')\nwait_for('go')"
    wrapper = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    process = launch(project, body, "--workers", 1, wrapper=wrapper)
    assert process.stdout.readline() == "[worker 0] here\n"
    press(process, signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    (project.parent / "folder" / "go").touch()
    end(project, process, 0)


def test_signal_after_all_is_done_changes_nothing(project):
    on_signal = "def on_signal():\n    os._exit(0)\n"
    process = launch(project, FOR_EVER, "--workers", 2, on_signal=on_signal)
    wait_for_workers(project)
    press(process)
    end(project, process, 0)


# --------------------------------------------------------------------------------------------------
# Failing
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 2, 3, 142, 144])
def test_failure_ends_all_for_good(code, project):
    body = TOGETHER + f"if index == 1:\n    print('why')\n    sys.exit({code})\n" + FOR_EVER
    lines = run(project, body, "--workers", 3, code=code)
    assert read_received(project).count("SIGTERM") == 2
    assert count_starts(project, 3) == [1, 1, 1]
    heading = f"launch: worker 1 ended with exit code {code}; its last lines:"
    assert lines == ["[worker 1] why", heading, "why"]


def test_deaf_worker_is_killed_after_the_grace(project):
    body = TOGETHER + "if index == 1:\n    sys.exit(1)\n" + FOR_EVER
    grace = [("GRACE = 15", "GRACE = 2")]
    process = launch(project, body, "--workers", 2, on_signal=DEAF, edits=grace)
    wait_for_workers(project)
    began = time.monotonic()
    end(project, process, 1)
    assert 1.5 < time.monotonic() - began < 6
    assert read_received(project) == ["SIGTERM", ""]


def test_deaf_worker_is_killed_where_another_crashed_while_stopping(project):
    # Worker 0 waits for it, in vain.
    on_signal = "def on_signal():\n    if index == 1:\n        os._exit(1)\n"
    grace = [("GRACE = 15", "GRACE = 1")]
    process = launch(project, FOR_EVER, "--workers", 2, on_signal=on_signal, edits=grace)
    wait_for_workers(project)
    press(process)
    end(project, process, 143)


def test_failure_after_others_are_done(project):
    body = "if index == 1:\n    time.sleep(1)\n    sys.exit(3)\n"
    lines = run(project, body, "--workers", 2, code=3)
    assert lines == ["launch: worker 1 ended with exit code 3; its last lines:"]


def test_what_a_worker_started_is_ended_too(project):
    # The child holds the pipe: who waits for the end of the output waits for ever.
    body = (
        "child = subprocess.Popen(['sleep', '60'])\n"
        "with open(f'starts-{index}', 'a') as file:\n"
        "    file.write(json.dumps({'pid': child.pid}) + '\\n')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    began = time.monotonic()
    run(project, body, "--workers", 1, "--max-restarts", 0, code=128 + 9)  # `end` looks for it.
    assert len(find_pids(project)) == 2
    assert time.monotonic() - began < 10


def test_last_lines_of_the_first_that_failed_come_last(project):
    on_signal = (
        "def on_signal():\n"
        "    for number in range(100):\n"
        "        print('lost my peer', number)\n"
        "    os._exit(7)\n"
    )
    body = TOGETHER + (
        "if index == 1:\n"
        "    for number in range(30):\n"
        "        print('line', number)\n"
        "    print('the reason', file=sys.stderr)\n"
        "    sys.exit(1)\n"
    )
    lines = run(project, body + FOR_EVER, "--workers", 2, code=1, on_signal=on_signal)
    assert len(written_by(0, lines)) == 100
    assert len(written_by(1, lines)) == 31
    assert lines[-21:] == [
        "launch: worker 1 ended with exit code 1; its last lines:",
        *(f"line {number}" for number in range(11, 30)),
        "the reason",
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_first_is_who_ended_first(first, project):
    # The other follows 20 ms later, without being told.
    body = TOGETHER + (
        f"if index == {first}:\n"
        "    Path('lost').touch()\n"
        "    os._exit(1)\n"
        "wait_for('lost')\n"
        "time.sleep(0.02)\n"
        "os._exit(143)\n"
    )
    run(project, body, "--workers", 2, code=1)
    assert count_starts(project) == [1, 1]


# --------------------------------------------------------------------------------------------------
# Starting again
# --------------------------------------------------------------------------------------------------

ENDS = {
    "sys.exit(143)": (143, "ended with exit code 143"),
    "os.kill(os.getpid(), signal.SIGKILL)": (137, "was killed by SIGKILL"),
    "os.kill(os.getpid(), signal.SIGSEGV)": (139, "was killed by SIGSEGV"),
    "os.kill(os.getpid(), 40)": (168, "was killed by signal 40"),
}


@pytest.mark.parametrize("how", ENDS)
def test_all_start_again(how, project):
    body = TOGETHER + f"if index == 1 and start == 1:\n    {how}\n"
    body += "if start == 1:\n    " + FOR_EVER + "print('done')"
    lines = run(project, body, "--workers", 2)
    assert sorted(lines) == [
        "[worker 0] done",
        "[worker 1] done",
        f"launch: worker 1 {ENDS[how][1]}; restart 1 of 3",
    ]
    assert count_starts(project) == [2, 2]
    assert read_received(project) == ["SIGTERM", "", "", ""]


@pytest.mark.parametrize("how", ENDS)
def test_no_more_starts_than_allowed(how, project):
    code, what = ENDS[how]
    flags = ("--workers", 2, "--max-restarts", 2)
    body = TOGETHER + f"print('line')\nif index == 0:\n    {how}\n" + FOR_EVER
    lines = run(project, body, *flags, code=code)
    assert [line for line in lines if not line.startswith("[")] == [
        f"launch: worker 0 {what}; restart 1 of 2",
        f"launch: worker 0 {what}; restart 2 of 2",
        f"launch: worker 0 {what}, and no restart is left; its last lines:",
        "line",
    ]
    assert count_starts(project) == [3, 3]


def test_no_restart_is_allowed(project):
    flags = ("--workers", 2, "--max-restarts", 0)
    run(project, TOGETHER + "sys.exit(143)", *flags, code=143)
    assert count_starts(project) == [1, 1]


def test_three_restarts_are_the_default(project):
    run(project, TOGETHER + "sys.exit(143)", "--workers", 2, code=143)
    assert count_starts(project) == [4, 4]


def test_restart_that_fails_for_good(project):
    body = TOGETHER + "if start == 2 and index == 0:\n    sys.exit(2)\n"
    body += "if start == 1 and index == 1:\n    sys.exit(143)\n" + FOR_EVER
    lines = run(project, body, "--workers", 2, code=2)
    assert lines == [
        "launch: worker 1 ended with exit code 143; restart 1 of 3",
        "launch: worker 0 ended with exit code 2; its last lines:",
    ]
    assert count_starts(project) == [2, 2]


@pytest.mark.parametrize(("first", "second", "starts"), [(143, 1, 2), (1, 143, 1)])
def test_the_first_that_failed_decides(first, second, starts, project):
    on_signal = f"def on_signal():\n    os._exit({second})\n"
    body = TOGETHER + f"if index == 1 and start == 1:\n    sys.exit({first})\n"
    body += "if start == 1:\n    " + FOR_EVER
    code = 0 if starts == 2 else first
    run(project, body, "--workers", 2, code=code, on_signal=on_signal)
    assert count_starts(project) == [starts, starts]


# --------------------------------------------------------------------------------------------------
# Wrong input
# --------------------------------------------------------------------------------------------------

WRONG = {
    "--workers 0": ["--workers", "1"],
    "--workers -1": ["--workers", "1"],
    "--workers two": ["--workers", "two"],
    "--workers": ["--workers"],
    "": ["--workers"],
    "-- --workers 2": ["--workers"],
    "--workers 2 --max-restarts -1": ["--max-restarts", "0"],
    "--workers 2 --max-restarts x": ["--max-restarts", "x"],
    "--workers 2 --epochs 5": ["--epochs 5", "after --"],
    "--workers 2 --max-restart 1": ["--max-restart 1"],
    "--workers 2 train.py": ["train.py", "after --"],
}


@pytest.mark.parametrize("flags", WRONG)
def test_wrong_input_is_refused_in_one_line(flags, project):
    code, output, errors = finish(launch(project, "", *flags.split()))
    assert (code, output) == (2, "")
    [line] = errors.splitlines()
    assert line.startswith("local.py: error: ")
    assert [word for word in WRONG[flags] if word not in line] == []
    assert find_pids(project) == []


def test_missing_train_py_is_refused(project):
    command = [sys.executable, project / "launch" / "local.py", "--workers", "2"]
    finished = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert (finished.returncode, finished.stdout) == (2, "")
    [line] = finished.stderr.splitlines()
    assert line.startswith("local.py: error: ")
    assert str(project / "train.py") in line


def test_help_shows_how_to_use_it(project):
    lines = run(project, "", "--help")
    assert "python launch/local.py --workers N" in lines[0]
    assert any("-- --epochs 5" in line for line in lines)
    assert find_pids(project) == []


def test_it_needs_nothing_but_the_standard_library(project):
    tree = ast.parse((project / "launch" / "local.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    modules = {alias.name for node in imports for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= set(sys.stdlib_module_names)


# --------------------------------------------------------------------------------------------------
# The real train.py
# --------------------------------------------------------------------------------------------------


def find_worker(launcher, index):
    """Return the number of the process that is a worker of a launcher."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            variables = (folder / "environ").read_text(errors="replace").split("\0")
        except OSError:  # It has just ended, or isn't ours.
            continue
        if parent == str(launcher.pid):
            [config] = [x.removeprefix("TF_CONFIG=") for x in variables if x[:10] == "TF_CONFIG="]
            if json.loads(config)["task"]["index"] == index:
                return int(folder.name)
    raise AssertionError(f"worker {index} isn't there")


def test_killed_worker_costs_nothing(render, train_once, tmp_path):
    project_dir = render(tmp_path)
    (tmp_path / "scratch").mkdir()  # of the worker that is killed, and so doesn't tidy up
    process = subprocess.Popen(
        [sys.executable, "launch/local.py", "--workers", "2", "--", *FLAGS],
        cwd=project_dir,
        env=environment(TMPDIR=str(tmp_path / "scratch")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    run_dir = project_dir / "run"
    deadline = time.monotonic() + TIMEOUT
    while not (run_dir / "checkpoints" / "last" / "checkpoint").exists():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(find_worker(process, 1), signal.SIGKILL)
    code, output, errors = finish(process)
    assert (code, errors) == (0, ""), output
    said = [line for line in output.splitlines() if line.startswith("launch: ")]
    assert said == ["launch: worker 1 was killed by SIGKILL; restart 1 of 3"]
    assert re.search(r"(?m)^\[worker 0\] .*resumed at step \d+", output)
    expected = train_once(*FLAGS, "--replicas", "2")
    assert read_numbers(run_dir) == read_numbers(expected)
    tensors, expected_tensors = ask_child("tensors", run_dir, expected)
    assert tensors == expected_tensors
