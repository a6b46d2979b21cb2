"""launch/slurm.sbatch, on a real Slurm: a controller and two nodes, on two machines in one.

It needs root and Debian's slurmctld, slurmd and slurm-client, which .ci/run installs where it can.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FLAGS, assert_same_run, edit, environment, read_metrics, wait_for_lines
from machines import Slurm, start_machines, wait_until

REPLICAS = ("--replicas", "2")
LONG = ("--global-batch-size", "16", "--epochs", "400", "--steps-per-loop", "7")
needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "nsenter"))),
    reason="it takes root, and Debian's slurmctld, slurmd and slurm-client",
)


@pytest.fixture(scope="session")
def project(render, tmp_path_factory):
    """Return a function that gives the folder of a new project of some size."""

    def render_project(script="complete"):
        return render(tmp_path_factory.mktemp("slurm"), script=script, cluster="slurm")

    return render_project


@pytest.fixture
def slurm(tmp_path):
    (tmp_path / "slurm").mkdir()
    with start_machines(tmp_path) as on:
        yield Slurm(on, tmp_path / "slurm")


def submit(slurm, project, *arguments, options=()):
    """Submit a job. Return its number."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in an activated environment
    command = ["sbatch", "--parsable", *options, "launch/slurm.sbatch", *arguments]
    return slurm.run(*command, cwd=project, env=environment(PATH=path))


def read_logs(project, job, tasks=2):
    """Return what the job's shell wrote, and each of its tasks."""
    names = [f"slurm-{job}{x}.log" for x in ("", *(f"-{rank}" for rank in range(tasks)))]
    return [(project / name).read_text("utf-8") for name in names]


def find_tasks(run_dir):
    """Return the processes of train.py with this run directory, Python's alone."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if entry.isdigit() and words[0].endswith("python") and str(run_dir) in words:
            found.append(int(entry))
    return found


def read_variable(pid, name):
    """Return an environment variable of a process."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = (pair.partition(b"=") for pair in file.read().split(b"\0"))
        return {key.decode(): value.decode() for key, _, value in pairs}[name]


def find_ancestor(pid, generations):
    """Return the process that started a process, or the one that started that."""
    for _ in range(generations):
        with open(f"/proc/{pid}/status") as file:
            pid = int(re.search(r"PPid:\s+(\d+)", file.read())[1])
    return pid


@pytest.mark.parametrize("distribution", ["synchronous", "parameter_server"])
def test_job_file_is_clean(distribution, render, tmp_path):
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    folder = render(tmp_path, cluster="slurm", distribution=distribution)
    subprocess.run(["shellcheck", "launch/slurm.sbatch"], cwd=folder, check=True)


@needs_slurm
def test_two_jobs_at_once_have_the_bits_of_replicas(project, slurm, train_once):
    folder = project()
    slurm.run("sbatch", "--test-only", folder / "launch" / "slurm.sbatch")
    runs = [folder / name for name in ("run-a", "run-b")]
    shapes = ([], ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1"])  # on one node, both
    jobs = [
        submit(slurm, folder, *FLAGS, "--run-dir", run, options=options)
        for run, options in zip(runs, shapes, strict=True)
    ]
    slurm.wait_for(jobs[0], "RUNNING")
    slurm.wait_for(jobs[1], "RUNNING")
    for job, run in zip(jobs, runs, strict=True):
        shown = slurm.wait_for(job, "COMPLETED", "FAILED", seconds=300)
        logs = _, chief, other = read_logs(folder, job)
        assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), logs
        assert "multi_worker on 2 × CPU" in chief and "multi_worker" not in other
        assert_same_run(run, train_once(*FLAGS, *REPLICAS))


@needs_slurm
@pytest.mark.parametrize(("size", "task"), [("essential", 1), ("complete", 0)])
def test_killed_task_is_requeued(size, task, project, slurm, train_once):
    folder = project(size)
    run = folder / "run"
    job = submit(slurm, folder, *FLAGS, "--run-dir", run)
    slurm.wait_for(job, "RUNNING")
    wait_for_lines(run, 10)
    pids = wait_until(lambda: (found := find_tasks(run)) and len(found) == 2 and found, "two tasks")
    ranks = [read_variable(pid, "SLURM_PROCID") for pid in pids]
    os.kill(pids[ranks.index(str(task))], signal.SIGKILL)
    wait_until(lambda: slurm.show(job)["Restarts"] == "1", "the restart")
    shown = slurm.wait_for(job, "COMPLETED", "FAILED")
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "1"), read_logs(folder, job)
    assert "restart 1 of 20" in read_logs(folder, job)[0]
    assert_same_run(run, train_once(*FLAGS, *REPLICAS))


@needs_slurm
def test_lost_node_is_requeued(project, slurm, train_once):
    folder = project()
    run = folder / "run"
    job = submit(slurm, folder, *FLAGS, "--run-dir", run)
    slurm.wait_for(job, "RUNNING")
    wait_for_lines(run, 10)
    pids = find_tasks(run)
    lost = [pid for pid in pids if read_variable(pid, "SLURM_PROCID") == "1"]
    # The node's daemon, what runs the task, and the task.
    slurmd = slurm.read_pid("slurmd-n2")
    for pid in (slurmd, *(find_ancestor(pid, 2) for pid in lost), *lost):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: slurm.show(job)["Restarts"] == "1", "the restart")
    slurm.start_node(1)
    shown = slurm.wait_for(job, "COMPLETED", "FAILED")
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "1"), read_logs(folder, job)
    assert_same_run(run, train_once(*FLAGS, *REPLICAS))


@needs_slurm
def test_time_limit_is_requeued(project, slurm, train_once):
    folder = project()
    run = folder / "run"
    validate = "def validate(iterator, steps):\n"
    edit(folder / "train.py", folder, (validate, f"{validate}    time.sleep(15)\n"))
    options = ("--time=1", "--signal=TERM@50")  # Slurm looks every half a minute
    job = submit(slurm, folder, *FLAGS, "--run-dir", run, options=options)
    wait_until(lambda: slurm.show(job)["Restarts"] == "1", "the restart")
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=20")
    shown = slurm.wait_for(job, "COMPLETED", "FAILED")
    assert shown["JobState"] == "COMPLETED", read_logs(folder, job)
    assert_same_run(run, train_once(*FLAGS, *REPLICAS))


@needs_slurm
@pytest.mark.parametrize("size", ["essential", "complete"])
def test_cancelled_job_is_saved_and_not_requeued(size, project, slurm):
    folder = project(size)
    run = folder / "run"
    job = submit(slurm, folder, *LONG, "--run-dir", run)
    slurm.wait_for(job, "RUNNING")
    wait_for_lines(run, 10)
    slurm.run("scancel", job)
    wait_until(lambda: not find_tasks(run), "the end of the tasks", 30)
    shown = slurm.wait_for(job, "CANCELLED", "FAILED", "COMPLETED")
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0")
    [step] = re.findall(r"stopped, and saved at step (\d+);", read_logs(folder, job)[1])
    assert (run / "checkpoints" / "last" / f"ckpt-{step}.index").is_file()


@needs_slurm
@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--epochs", "x"), "2:0", "--epochs"),
        (("--learning-rate", "1e30"), "1:0", "not finite"),
        (None, "1:0", "No such file"),
    ],
    ids=["input", "run", "script"],
)
def test_what_fails_is_not_requeued(flags, code, words, project, slurm):
    folder = project()
    if flags is None:
        (folder / "train.py").write_text("import os\nos.execv('/no/such/program', ['x'])\n")
        flags = ()
    job = submit(slurm, folder, *flags, "--run-dir", folder / "run")
    shown = slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED")
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", code, "0")
    # Slurm may write the end of a log after that of the job.
    wait_until(lambda: words in "".join(read_logs(folder, job)[1:]), words, seconds=20)


@needs_slurm
def test_restarts_are_counted(project, slurm):
    folder = project()
    edit(folder / "launch/slurm.sbatch", folder / "launch", ("MAX_RESTARTS=20", "MAX_RESTARTS=1"))
    (folder / "train.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    job = submit(slurm, folder)
    shown = slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED")
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "137:0", "1")
    assert "no restart is left" in read_logs(folder, job)[0]


# --------------------------------------------------------------------------------------------------
# Parameter servers: the chief and a server on the first node, two workers on the other
# --------------------------------------------------------------------------------------------------

ROLES = ("--nodes=2", "--ntasks-per-node=2")


@pytest.fixture
def run_roles(render, slurm, tmp_path_factory):
    """Return a function that starts a job with roles, and returns its number and folder."""
    folder = render(
        tmp_path_factory.mktemp("roles"), cluster="slurm", distribution="parameter_server"
    )

    def start(*flags):
        job = submit(slurm, folder, *flags, "--run-dir", folder / "run", options=ROLES)
        slurm.wait_for(job, "RUNNING")
        return job, folder

    return start


def kill_task(run, rank):
    """Kill a task of a job by its rank: 0 is the chief, 1 the server, 2 and 3 are workers."""
    [pid] = [pid for pid in find_tasks(run) if read_variable(pid, "SLURM_PROCID") == str(rank)]
    os.kill(pid, signal.SIGKILL)


@needs_slurm
def test_job_with_roles_is_completed(run_roles, slurm):
    job, folder = run_roles("--epochs", "3")
    shown = slurm.wait_for(job, "COMPLETED", "FAILED")
    _, chief, *others = logs = read_logs(folder, job, tasks=4)
    assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), logs
    assert "parameter_server on 2 × worker, 1 × ps" in chief
    assert "\ntest loss " in chief
    places = [re.findall(r"^(\w+ \d) serves at (\w+):", log) for log in others]
    assert places == [[("ps 0", "n1")], [("worker 0", "n2")], [("worker 1", "n2")]]
    assert read_metrics(folder / "run")[-1]["split"] == "test"


@needs_slurm
def test_killed_server_is_requeued(run_roles, slurm):
    job, folder = run_roles("--epochs", "60")
    wait_for_lines(folder / "run", 6)
    kill_task(folder / "run", 1)
    wait_until(lambda: slurm.show(job)["Restarts"] == "1", "the restart")
    shown = slurm.wait_for(job, "COMPLETED", "FAILED")
    shell, chief, *_ = logs = read_logs(folder, job, tasks=4)
    assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), logs
    assert shown["Restarts"] == "1"
    assert "a task ended with 143; restart 1 of 20" in shell
    [step] = re.findall(r", resumed at step (\d+) from", chief)
    assert int(step) >= 3 * 19  # a line of training and one of validation each epoch
    steps = [line["step"] for line in read_metrics(folder / "run") if line["split"] == "train"]
    assert steps == [19 * (epoch + 1) for epoch in range(60)]


@needs_slurm
def test_killed_worker_alone_starts_again(run_roles, slurm):
    job, folder = run_roles("--epochs", "200")
    wait_for_lines(folder / "run", 6)
    kill_task(folder / "run", 3)
    wait_until(lambda: "starts again" in read_logs(folder, job, tasks=4)[4], "the second start")
    shown = slurm.wait_for(job, "COMPLETED", "FAILED", seconds=300)
    _, chief, _, other, killed = logs = read_logs(folder, job, tasks=4)
    assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), logs
    assert shown["Restarts"] == "0"
    assert "worker 1 is lost; its steps go to others" in chief
    assert (other.count("serves at"), killed.count("serves at")) == (1, 2)
    assert read_metrics(folder / "run")[-1]["split"] == "test"
