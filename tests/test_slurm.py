"""launch/slurm.sbatch, on a real Slurm with a controller and two nodes.

It needs root and Debian's slurmctld, slurmd and slurm-client, which .ci/run installs if it can.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from network_namespaces import Slurm, start_machines
from running import (
    FLAGS,
    assert_same_run,
    environment,
    list_checkpoints,
    read_metrics,
    wait_for_lines,
    wait_until,
)
from variants import replace_text, run_before, write_variant

PROGRAMS = ("slurmctld", "slurmd", "nsenter")
needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
    reason="it needs root, and Debian's slurmctld, slurmd and slurm-client",
)

TWO_REPLICAS = ("--replicas", "2")
LONG_RUN = ("--global-batch-size", "16", "--epochs", "400", "--steps-per-loop", "7")
# A job on one node.
ONE_NODE = ("--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1")
KILL_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
NO_PROGRAM = "import os\nos.execv('/no/such/program', ['x'])\n"


@pytest.fixture
def create_project(render, tmp_path_factory):
    """Return a function that returns the folder of a new project for Slurm.

    If a test fails, pytest shows the logs of its jobs.
    """
    projects = []

    def render_answers(**answers):
        projects.append(render(tmp_path_factory.mktemp("slurm"), cluster="slurm", **answers))
        return projects[-1]

    yield render_answers
    for project in projects:
        for log in sorted(project.glob("slurm-*.log")):
            print(f"{log.name}:", log.read_text("utf-8"), sep="\n")


@pytest.fixture
def slurm(tmp_path):
    (tmp_path / "slurm").mkdir()
    with start_machines(tmp_path) as on:
        yield Slurm(on, tmp_path / "slurm")


def submit(slurm, project, *arguments, options=()):
    """Submit a job. Return its number."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in an activated environment
    command = ["sbatch", "--parsable", *options, "launch/slurm.sbatch", *arguments]
    return slurm.run(
        *command,
        cwd=project,
        env=environment(PATH=path),
    )


def read_logs(project, job, tasks=2):
    """Return what the job's shell has written, and each of its tasks."""
    names = [f"slurm-{job}.log", *(f"slurm-{job}-{rank}.log" for rank in range(tasks))]
    return [(project / name).read_text("utf-8") for name in names]


def assert_ended(shown, state, code="0:0", restarts="0"):
    """Assert how a job ended, given Slurm's record of it."""
    found = shown["JobState"], shown["ExitCode"], shown["Restarts"]
    assert found == (state, code, restarts)


# --------------------------------------------------------------------------------------------------
# Processes of a job
# --------------------------------------------------------------------------------------------------


def read_words(pid):
    """Return the words of a process's command, or none if it has ended."""
    try:
        content = Path("/proc", pid, "cmdline").read_bytes()
        return content.decode().split("\0")
    except (OSError, UnicodeDecodeError):
        return [""]


def find_tasks(run_dir):
    """Return the processes of train.py with a run directory."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        words = read_words(pid)
        if words[0].endswith("python") and str(run_dir) in words:
            found.append(int(pid))
    return found


def read_rank(pid):
    """Return the rank of a task's process."""
    content = Path("/proc", str(pid), "environ").read_bytes().decode()
    [rank] = re.findall(r"\bSLURM_PROCID=(\d+)", content)
    return int(rank)


def find_task(run_dir, rank):
    """Return the process of a task by its rank."""
    [pid] = [pid for pid in find_tasks(run_dir) if read_rank(pid) == rank]
    return pid


def find_parent(pid):
    status = Path("/proc", str(pid), "status").read_text()
    return int(re.search(r"PPid:\s+(\d+)", status)[1])


# --------------------------------------------------------------------------------------------------
# Workers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", ["synchronous", "parameter_server"])
@pytest.mark.skipif(not shutil.which("shellcheck"), reason="it needs shellcheck")
def test_job_file_passes_shellcheck(distribution, create_project):
    project = create_project(distribution=distribution)
    subprocess.run(["shellcheck", "launch/slurm.sbatch"], cwd=project, check=True)


WRONG_TASKS = {
    "no tasks per node": ({}, "SLURM_NTASKS_PER_NODE is not set; use --ntasks-per-node"),
    "more than the ports": (
        {"SLURM_NTASKS_PER_NODE": "17"},
        "--ntasks-per-node 17 is above 16, the number of ports of a job; use more nodes",
    ),
    "nodes of unequal tasks": (
        {"SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "3"},
        "--ntasks 3 is not nodes x --ntasks-per-node, 4; leave it out, and give --nodes one number",
    ),
}


@pytest.mark.parametrize("kind", WRONG_TASKS)
def test_job_with_a_wrong_number_of_tasks_is_rejected(kind, create_project, tmp_path):
    assert_job_is_rejected(create_project(), tmp_path, *WRONG_TASKS[kind])


def test_job_without_a_task_for_a_worker_is_rejected(create_project, tmp_path):
    project = create_project(distribution="parameter_server")
    message = (
        "2 tasks are too few for a chief, 1 servers and a worker; "
        "use more --nodes, or lower SERVERS"
    )
    assert_job_is_rejected(project, tmp_path, {"SLURM_NTASKS_PER_NODE": "1"}, message)


def assert_job_is_rejected(project, folder, variables, message):
    """Assert that a job of the nodes a and b ends with a line. The folder is for a program."""
    program = folder / "scontrol"
    program.write_text("#!/bin/sh\necho a b\n")
    program.chmod(0o755)
    finished = subprocess.run(
        ["bash", "launch/slurm.sbatch"],
        cwd=project,
        env=environment(
            PATH=f"{folder}:{os.environ['PATH']}",
            SLURM_JOB_ID="1",
            SLURM_JOB_NODELIST="[a-b]",
            **variables,
        ),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 2
    assert finished.stderr == f"slurm.sbatch: error: {message}\n"


@pytest.mark.long
@needs_slurm
def test_two_jobs_at_once_are_bit_identical_to_replicas(create_project, slurm, train_once):
    project = create_project(script="complete")
    slurm.run("sbatch", "--test-only", project / "launch" / "slurm.sbatch")
    jobs = {}
    # Tasks of the second job get none of the job's variables from Slurm but PATH.
    for name, options in {"run-a": (), "run-b": (*ONE_NODE, "--export=PATH")}.items():
        jobs[name] = submit(
            slurm,
            project,
            *FLAGS,
            "--run-dir",
            project / name,
            options=options,
        )
    for job in jobs.values():
        slurm.wait_for(job, "RUNNING")
    assert slurm.show(jobs["run-a"])["JobState"] == "RUNNING"  # still, so that both run at once
    for name, job in jobs.items():
        assert_ended(slurm.wait_for(job, "COMPLETED", "FAILED", seconds=300), "COMPLETED")
        _, chief, other = read_logs(project, job)
        assert "multi_worker on 2 × CPU" in chief
        assert "multi_worker" not in other
        assert_same_run(project / name, train_once(*FLAGS, *TWO_REPLICAS))


@pytest.fixture
def start_job(slurm):
    """Return a function that submits a job and waits until its run is under way."""

    def submit_and_wait(project, *flags, lines=10, options=()):
        run_dir = project / "run"
        job = submit(slurm, project, *flags, "--run-dir", run_dir, options=options)
        slurm.wait_for(job, "RUNNING")
        wait_for_lines(run_dir, lines)
        return job, run_dir

    return submit_and_wait


@pytest.mark.long
@needs_slurm
def test_killed_task_is_requeued(create_project, start_job, slurm, train_once):
    project = create_project()
    job, run_dir = start_job(project, *FLAGS)
    os.kill(find_task(run_dir, 0), signal.SIGKILL)
    slurm.wait_for_restart(job)
    assert_ended(slurm.wait_for(job, "COMPLETED", "FAILED"), "COMPLETED", restarts="1")
    shell, chief, _ = read_logs(project, job)
    assert "restart 1 of 20" in shell
    assert "resumed at step " in chief
    assert_same_run(run_dir, train_once(*FLAGS, *TWO_REPLICAS))


@pytest.mark.long
@needs_slurm
def test_failed_node_is_requeued(create_project, start_job, slurm, train_once):
    project = create_project(script="complete")
    job, run_dir = start_job(project, *FLAGS)
    task = find_task(run_dir, 1)
    # The node's daemon, what runs the task, and the task.
    for pid in (slurm.read_pid("slurmd-n2"), find_parent(find_parent(task)), task):
        os.kill(pid, signal.SIGKILL)
    slurm.wait_for_restart(job)
    slurm.start_node(1)
    assert_ended(slurm.wait_for(job, "COMPLETED", "FAILED"), "COMPLETED", restarts="1")
    assert "resumed at step " in read_logs(project, job)[1]
    assert_same_run(run_dir, train_once(*FLAGS, *TWO_REPLICAS))


@pytest.mark.long
@needs_slurm
def test_time_limit_is_requeued(create_project, slurm, train_once):
    project = create_project(script="complete")
    write_variant(project / "train.py", project, run_before("validate", "time.sleep(15)"))
    options = ("--time=1", "--signal=TERM@50")  # Slurm checks the limit every 30 seconds.
    flags = (*FLAGS, "--run-dir", project / "run")
    job = submit(slurm, project, *flags, options=options)
    slurm.wait_for_restart(job)
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=20")
    shown = slurm.wait_for(job, "COMPLETED", "FAILED")
    assert shown["JobState"] == "COMPLETED", read_logs(project, job)
    assert "resumed at step " in read_logs(project, job)[1]
    assert_same_run(project / "run", train_once(*FLAGS, *TWO_REPLICAS))


@pytest.mark.long
@needs_slurm
@pytest.mark.parametrize("size", ["essential", "complete"])
def test_cancelled_job_saves_and_is_not_requeued(size, create_project, start_job, slurm):
    project = create_project(script=size)
    job, run_dir = start_job(project, *LONG_RUN)
    slurm.run("scancel", job)
    wait_until(lambda: not find_tasks(run_dir), timeout=30, what="the end of the tasks")
    shown = slurm.wait_for(job, "CANCELLED", "FAILED", "COMPLETED")
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0")
    # Slurm may write the end of a log after the end of the job.
    [step] = wait_until(
        lambda: re.findall(r"saved at step (\d+)", read_logs(project, job)[1]),
        timeout=20,
        what="the saved step",
    )
    assert int(step) in list_checkpoints(run_dir)


@pytest.mark.long
@needs_slurm
@pytest.mark.parametrize("distribution", ["synchronous", "parameter_server"])
def test_signal_to_the_shells_of_tasks_saves(distribution, create_project, start_job, slurm):
    # With proctrack/cgroup, Slurm signals only the processes that it has started itself.
    project = create_project(distribution=distribution)
    options = FOUR_TASKS if distribution == "parameter_server" else ()
    job, run_dir = start_job(project, *LONG_RUN, options=options)
    for pid in find_tasks(run_dir):
        os.kill(find_parent(pid), signal.SIGTERM)
    slurm.wait_for_restart(job)
    slurm.run("scancel", job)
    shell, chief, *_ = read_logs(project, job)
    assert "a task exited with code 143; restart 1 of 20" in shell
    [step] = re.findall(r"saved at step (\d+)", chief)
    assert int(step) in list_checkpoints(run_dir)


FAILURES = {
    "input": (("--epochs", "x"), "2:0", "--epochs"),
    "run": (("--learning-rate", "2e9"), "1:0", "not finite"),
    "script": ((), "1:0", "No such file"),
}


@pytest.mark.long
@needs_slurm
@pytest.mark.parametrize("kind", FAILURES)
def test_failed_run_is_not_requeued(kind, create_project, slurm):
    flags, code, words = FAILURES[kind]
    project = create_project(script="complete")
    if kind == "script":
        (project / "train.py").write_text(NO_PROGRAM)
    job = submit(slurm, project, *flags, "--run-dir", project / "run")
    assert_ended(slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED"), "FAILED", code)
    # Slurm may write the end of a log after the end of the job.
    wait_until(lambda: words in "".join(read_logs(project, job)[1:]), timeout=20, what=words)


@pytest.mark.long
@needs_slurm
def test_restarts_are_limited(create_project, slurm):
    project = create_project()
    job_file = project / "launch" / "slurm.sbatch"
    replace_text(job_file, job_file.parent, ("MAX_RESTARTS=20", "MAX_RESTARTS=1"))
    (project / "train.py").write_text(KILL_ITSELF)
    job = submit(slurm, project)
    shown = slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED")
    assert_ended(shown, "FAILED", "137:0", restarts="1")
    assert "no restarts left" in read_logs(project, job)[0]


@pytest.mark.long
@needs_slurm
def test_job_that_cannot_be_requeued_names_the_cause(create_project, slurm):
    project = create_project()
    (project / "train.py").write_text(KILL_ITSELF)
    job = submit(slurm, project, options=("--no-requeue",))
    shown = slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED")
    assert_ended(shown, "FAILED", "137:0")
    log = read_logs(project, job)[0]
    assert "Slurm can't requeue the job; submit it again to resume" in log
    assert "no restarts left" not in log


# --------------------------------------------------------------------------------------------------
# Parameter servers: the chief and a server on the first node, two workers on the second
# --------------------------------------------------------------------------------------------------

FOUR_TASKS = ("--nodes=2", "--ntasks-per-node=2")
SERVER = 1  # the ranks of two tasks
SECOND_WORKER = 3


@pytest.fixture
def server_project(create_project):
    return create_project(distribution="parameter_server")


@pytest.mark.long
@needs_slurm
def test_killed_server_is_requeued(server_project, start_job, slurm):
    job, run_dir = start_job(server_project, "--epochs", "60", lines=6, options=FOUR_TASKS)
    os.kill(find_task(run_dir, SERVER), signal.SIGKILL)
    slurm.wait_for_restart(job)
    assert_ended(slurm.wait_for(job, "COMPLETED", "FAILED"), "COMPLETED", restarts="1")
    shell, chief, *_ = read_logs(server_project, job, tasks=4)
    assert "a task exited with code 143; restart 1 of 20" in shell
    [step] = re.findall(r", resumed at step (\d+)", chief)
    assert int(step) >= 3 * 19  # An epoch has a line of training and one of validation.
    steps = [line["step"] for line in read_metrics(run_dir) if line["split"] == "train"]
    assert steps == [19 * (epoch + 1) for epoch in range(60)]


@pytest.mark.long
@needs_slurm
def test_killed_worker_alone_is_restarted(server_project, start_job, slurm):
    # If the run ends before the second start, the worker waits this long for a chief.
    write_variant(server_project / "train.py", server_project, "FINISHED_SECONDS = 1")
    job, run_dir = start_job(server_project, "--epochs", "200", lines=6, options=FOUR_TASKS)
    os.kill(find_task(run_dir, SECOND_WORKER), signal.SIGKILL)
    wait_until(
        lambda: "restart 1 of 3" in read_logs(server_project, job, tasks=4)[4],
        timeout=120,
        what="the worker's second start",
    )
    assert_ended(slurm.wait_for(job, "COMPLETED", "FAILED", seconds=300), "COMPLETED")
    assert read_metrics(run_dir)[-1]["split"] == "test"
    assert_roles(read_logs(server_project, job, tasks=4))


# The last worker of each start is killed some seconds after it serves.
KILL_LAST_WORKER = """
@wraps_original
def serve(original, cluster, job, index):
    if (job, index) == ("worker", len(cluster["worker"]) - 1):
        threading.Timer(5, os.kill, [os.getpid(), signal.SIGKILL]).start()
    original(cluster, job, index)
"""


@pytest.mark.long
@needs_slurm
def test_run_is_saved_when_a_worker_has_no_restart_left(server_project, start_job, slurm):
    write_variant(server_project / "train.py", server_project, KILL_LAST_WORKER)
    job, _ = start_job(server_project, *LONG_RUN, lines=1, options=FOUR_TASKS)
    wait_until(
        lambda: "saved at step" in read_logs(server_project, job, tasks=4)[1],
        what="the checkpoint of the chief",
    )
    slurm.run("scancel", job)
    assert "restart 3 of 3" in read_logs(server_project, job, tasks=4)[4]


# In its second start, a worker serves when the chief has ended. Its wait for a chief is 12 seconds.
SECOND_START_AFTER_THE_END = """
FINISHED_SECONDS /= 5

@wraps_original
def serve(original, cluster, job, index):
    started = Path(__file__).with_name(f"started-{job}-{index}")
    chief = urlsplit("//" + cluster["chief"][0])
    while started.exists():
        try:
            socket.create_connection((chief.hostname, chief.port), timeout=5).close()
        except ConnectionRefusedError:
            break
        time.sleep(0.3)
    started.touch()
    original(cluster, job, index)
"""


@pytest.mark.long
@needs_slurm
def test_worker_restarted_after_the_end_of_the_run_ends_too(server_project, start_job, slurm):
    write_variant(server_project / "train.py", server_project, SECOND_START_AFTER_THE_END)
    job_file = server_project / "launch" / "slurm.sbatch"
    [seconds] = re.findall(r"--wait=(\d+)", job_file.read_text())
    a_fifth = f"--wait={int(seconds) // 5}"
    replace_text(job_file, job_file.parent, (f"--wait={seconds}", a_fifth))
    job, run_dir = start_job(server_project, "--epochs", "30", lines=6, options=FOUR_TASKS)
    os.kill(find_task(run_dir, SECOND_WORKER), signal.SIGKILL)
    assert_ended(slurm.wait_for(job, "COMPLETED", "FAILED", seconds=300), "COMPLETED")
    wait_until(
        lambda: "finished: worker 1" in read_logs(server_project, job, tasks=4)[-1],
        timeout=20,
        what="the end of the worker's log",
    )


def assert_roles(logs):
    """Assert that each task had its role and its node, and that the second worker failed once."""
    _, chief, server, worker, killed = logs
    assert "parameter_server on 2 × worker, 1 × ps" in chief
    assert "\ntest loss " in chief
    assert "worker 1 failed" in chief
    place = r"(?m)^(\w+ \d) serves at (\w+):"
    places = [re.findall(place, log) for log in (server, worker, killed)]
    assert places == [
        [("ps 0", "n1")],
        [("worker 0", "n2")],
        [("worker 1", "n2")] * 2,
    ]
