"""Two machines with a link that is cut, clocks that differ, and a peer that starts late.

Network namespaces stand in for the machines: see network_namespaces.py.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from network_namespaces import HOSTS, cut_link, start_machines
from parameter_servers import RECORD_STEPS, Cluster, assert_codes, assert_each_example_once
from running import (
    FLAGS,
    assert_fails,
    assert_same_run,
    environment,
    finish,
    finish_all,
    tf_config,
    wait_for_lines,
    wait_until,
)
from variants import run_before, run_before_final_export, write_variant

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare"))),
        reason="it needs root, and Linux's ip, nsenter and unshare",
    ),
]

PORT = 2222
CLUSTER = {"worker": [f"{host}:{PORT}" for host in HOSTS]}
TWO_REPLICAS = ("--replicas", "2")


@pytest.fixture
def on(tmp_path):
    """Start two machines. Return a function that returns a command to run on one of them."""
    with start_machines(tmp_path) as on:
        yield on


def start_command(command, folder, env):
    return subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def start_on(on, index, script, *flags, before=()):
    """Start a worker on one of two machines. Other programs may come before its command."""
    command = on(index, *before, sys.executable, "-u", script.name, *flags)
    env = environment(**tf_config(CLUSTER, "worker", index))
    return start_command(command, script.parent, env)


def assert_all_succeeded(processes):
    for outcome in finish_all(processes):
        assert outcome.code == 0, outcome


# --------------------------------------------------------------------------------------------------
# A link that is cut
# --------------------------------------------------------------------------------------------------

# The worker that comes first waits there, the first time.
WAIT = "if not Path('is_there').exists(): Path('is_there').touch(); time.sleep(5)"
# The code of the script, by the moment at which the link is cut.
MOMENTS = {
    "training": (),
    "validation": (run_before("validate", WAIT),),
    "export": (run_before_final_export(WAIT),),
}


@pytest.fixture
def start_pair(on, scripts, tmp_path):
    """Return a function that starts two workers, and waits until a moment of their run."""

    def start_and_wait(size, moment):
        script = write_variant(scripts[size], tmp_path, *MOMENTS[moment])
        pair = [start_on(on, index, script, *FLAGS) for index in range(2)]
        if moment == "training":
            wait_for_lines(tmp_path / "run", 8, *pair)
        else:
            wait_until((tmp_path / "is_there").exists, what=moment)
        return script, pair

    return start_and_wait


@pytest.mark.parametrize(
    ("size", "moment"),
    [("essential", "training"), ("complete", "export")],
)
def test_cut_link_ends_both_workers_and_they_resume(size, moment, start_pair, on, train_once):
    script, pair = start_pair(size, moment)
    with cut_link(on):
        began = time.monotonic()
        outcomes = finish_all(pair, timeout=60)
        assert time.monotonic() - began < 30
    assert [outcome.code for outcome in outcomes] == [143, 143], outcomes
    resumed = finish_all([start_on(on, index, script, *FLAGS) for index in range(2)])
    codes = [outcome.code for outcome in resumed]
    assert codes == [0, 0], resumed
    # The chief may have ended the export without the other worker.
    assert re.search("resumed at step |is finished", resumed[0].output)
    assert_same_run(script.parent / "run", train_once(*FLAGS, *TWO_REPLICAS))


@pytest.mark.parametrize(
    ("size", "moment"),
    [("complete", "training"), ("essential", "validation")],
)
def test_link_that_is_soon_restored_changes_no_bit(size, moment, start_pair, on, train_once):
    script, pair = start_pair(size, moment)
    with cut_link(on):
        time.sleep(3)
        assert [process.poll() for process in pair] == [None, None]
    assert_all_succeeded(pair)
    assert_same_run(script.parent / "run", train_once(*FLAGS, *TWO_REPLICAS))


# --------------------------------------------------------------------------------------------------
# Parameter servers
# --------------------------------------------------------------------------------------------------

TASKS = (("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1))


@pytest.fixture
def start_tasks(on, server_script, tmp_path):
    """Return a function that starts a cluster with one task on the second machine."""

    def start_cluster(*flags, apart):
        cluster = Cluster(server_script, tmp_path, [RECORD_STEPS], TASKS)
        cluster.addresses = {}
        for number, task in enumerate(TASKS):
            host = HOSTS[1] if task == apart else HOSTS[0]
            cluster.addresses.setdefault(task[0], []).append(f"{host}:{PORT + number}")

        def begin(script, *flags, env):
            machine = 1 if script == cluster.scripts[apart] else 0
            command = on(machine, sys.executable, script, *flags)
            return start_command(command, script.parent, env)

        cluster.start(*flags, begin=begin)
        wait_for_lines(cluster.run_dir, 6, *cluster.processes.values())
        return cluster

    return start_cluster


def test_parameter_servers_continue_when_a_link_is_soon_restored(start_tasks, on):
    tasks = start_tasks("--epochs", "20", apart=("worker", 1))
    with cut_link(on):
        time.sleep(3)
        assert tasks.chief.poll() is None
    assert_codes(tasks.finish(), 0)
    assert_each_example_once(tasks.read_all_steps(), 20)


def test_run_completes_without_a_worker_behind_a_cut_link(start_tasks, on):
    tasks = start_tasks("--epochs", "20", apart=("worker", 1))
    with cut_link(on):
        began = time.monotonic()
        outcomes = tasks.finish()
        assert time.monotonic() - began < 120  # Linux alone would take 15 minutes.
    assert outcomes.pop(("worker", 1)).code == 143
    assert_codes(outcomes, 0)
    assert "worker 1 failed" in outcomes["chief", 0].output
    assert_each_example_once(tasks.read_all_steps(), 20)


def test_all_tasks_end_when_a_server_is_behind_a_cut_link(start_tasks, on):
    tasks = start_tasks("--epochs", "500", apart=("ps", 0))
    with cut_link(on):
        began = time.monotonic()
        outcomes = tasks.finish()
        assert time.monotonic() - began < 120
    assert_codes(outcomes, 143)
    assert_fails(outcomes["chief", 0], 143, "failed", "start all")


# --------------------------------------------------------------------------------------------------
# Other machines
# --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("faketime"), reason="it needs faketime")
def test_clocks_may_differ_and_a_worker_start_late(on, complete_script, train_once, tmp_path):
    script = write_variant(complete_script, tmp_path)
    chief = start_on(on, 0, script, *FLAGS)
    time.sleep(15)
    late = start_on(on, 1, script, *FLAGS, before=["faketime", "-f", "-3h"])
    outcome, late_outcome = finish_all([chief, late])
    assert (outcome.code, late_outcome.code) == (0, 0), (outcome, late_outcome)
    assert f"waiting for worker 1 at {HOSTS[1]}:{PORT}" in outcome.output
    assert_same_run(tmp_path / "run", train_once(*FLAGS, *TWO_REPLICAS))


def test_pods_of_kubernetes_are_bit_identical_to_replicas(render, train_once, tmp_path):
    project = render(tmp_path, cluster="kubernetes", project_slug="a_project")
    text = (project / "launch" / "kubernetes.yaml").read_text("utf-8")
    [*_, job] = yaml.safe_load_all(text)
    [container] = job["spec"]["template"]["spec"]["containers"]
    # As many threads as the replicas have: another number rounds differently.
    threads = str(os.cpu_count())
    variables = {pair["name"]: pair.get("value", threads) for pair in container["env"]}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    names = [f"a-project-{index}.a-project" for index in range(2)]
    with start_machines(tmp_path, names) as on:
        pods = []
        for index in range(2):
            command = on(index, *container["command"], "--run-dir=run", *FLAGS)
            env = environment(**variables, JOB_COMPLETION_INDEX=str(index))
            pods.append(start_command(command, project, env))
        assert_all_succeeded(pods)
    assert_same_run(project / "run", train_once(*FLAGS, *TWO_REPLICAS))


def test_process_on_a_machine_has_its_host_name(on):
    """Otherwise the tests above would show nothing."""
    for index, host in enumerate(HOSTS):
        process = start_command(on(index, "hostname"), "/", os.environ)
        assert finish(process).output == f"{host}\n"
