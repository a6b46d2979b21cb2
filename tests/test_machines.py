"""Two machines with a link of their own that is cut, and a TF_CONFIG as others write it."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import FLAGS, assert_same_run, edit, environment, finish, wait_for_lines
from machines import HOSTS, cut_link, start_machines, wait_until
from test_parameter_server import COUNT, Cluster, assert_each_once, count_steps

PORT = 2222
REPLICAS = ("--replicas", "2")
needs_machines = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare"))),
    reason="it takes root, and Linux's ip, nsenter and unshare",
)


@pytest.fixture
def on(tmp_path):
    with start_machines(tmp_path) as on:
        yield on


def start_on(on, index, script, *flags, before=()):
    """Start a worker on one of two machines, its command behind another."""
    cluster = {"worker": [f"{host}:{PORT}" for host in HOSTS]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
    return subprocess.Popen(
        on(index, *before, sys.executable, "-u", script.name, *flags),
        cwd=script.parent,
        env=environment(TF_CONFIG=json.dumps(config)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


# Where the link is cut: there the worker that comes first waits, the first time.
MOMENTS = {
    "training": [],
    "validation": ["    return run_loop(distributed_validation_step,"],
    "export": ['    part, archive = folder.with_name("export.part")'],
}
WAIT = """
    if not Path("is_there").exists():
        Path("is_there").touch()
        time.sleep(5)
"""


def wait_for_moment(moment, folder, pair):
    if moment == "training":
        wait_for_lines(folder / "run", 8, *pair)
    else:
        wait_until((folder / "is_there").exists, moment)


@needs_machines
@pytest.mark.parametrize(
    ("size", "moment"),
    [
        ("essential", "training"),
        ("complete", "training"),
        ("essential", "validation"),
        ("complete", "export"),
    ],
)
def test_cut_link_ends_both_and_they_go_on(size, moment, on, render, train_once, tmp_path):
    script = render(tmp_path, script=size) / "train.py"
    script = edit(script, tmp_path, *((line, WAIT + line) for line in MOMENTS[moment]))
    pair = [start_on(on, index, script, *FLAGS) for index in range(2)]
    wait_for_moment(moment, tmp_path, pair)
    with cut_link(on):
        began = time.monotonic()
        ends = [finish(process, timeout=60) for process in pair]
        assert time.monotonic() - began < 30
    assert [code for code, _, _ in ends] == [143, 143], ends
    pair = [start_on(on, index, script, *FLAGS) for index in range(2)]
    for process in pair:
        code, output, errors = finish(process)
        assert code == 0, output + errors
    assert_same_run(tmp_path / "run", train_once(*FLAGS, *REPLICAS))


@needs_machines
@pytest.mark.parametrize(
    ("size", "moment"),
    [
        ("essential", "training"),
        ("complete", "training"),
        ("complete", "validation"),
        ("essential", "export"),
    ],
)
def test_link_that_is_back_soon_changes_no_bit(size, moment, on, render, train_once, tmp_path):
    script = render(tmp_path, script=size) / "train.py"
    script = edit(script, tmp_path, *((line, WAIT + line) for line in MOMENTS[moment]))
    pair = [start_on(on, index, script, *FLAGS) for index in range(2)]
    wait_for_moment(moment, tmp_path, pair)
    with cut_link(on):
        time.sleep(3)
    for process in pair:
        code, output, errors = finish(process)
        assert code == 0, output + errors
    assert_same_run(tmp_path / "run", train_once(*FLAGS, *REPLICAS))


@pytest.fixture
def start_roles(on, render, tmp_path):
    """Return a function that starts a chief, a server and two workers: some tasks on the second
    machine, all others on the first."""

    def start_them(*flags, apart):
        script = render(tmp_path / "roles", distribution="parameter_server") / "train.py"
        roles = (("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1))
        cluster, ports = Cluster(script, tmp_path, [COUNT], roles), iter(range(PORT, PORT + 4))
        cluster.jobs = {}
        for job, index in roles:
            address = f"{HOSTS[(job, index) == apart]}:{next(ports)}"
            cluster.jobs.setdefault(job, []).append(address)

        def begin(script, *flags, env):
            return subprocess.Popen(
                on(script.parent.name == "{}-{}".format(*apart), sys.executable, script, *flags),
                cwd=script.parent,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
            )

        cluster.start(*flags, begin=begin)
        wait_for_lines(tmp_path / "run", 6, *cluster.processes.values())
        return cluster

    return start_them


@needs_machines
def test_roles_go_on_when_a_link_is_back_soon(start_roles, on, tmp_path):
    tasks = start_roles("--epochs", "20", apart=("worker", 1))
    with cut_link(on):
        time.sleep(3)
    ends = tasks.finish()
    assert {end[0] for end in ends.values()} == {0}, ends
    steps = [count_steps(tmp_path / f"worker-{index}") for index in (0, 1)]
    assert_each_once(sum(steps, []), 20, 19)


@needs_machines
def test_run_goes_on_without_a_worker_behind_a_cut_link(start_roles, on, tmp_path):
    tasks = start_roles("--epochs", "20", apart=("worker", 1))
    with cut_link(on):
        began = time.monotonic()
        ends = tasks.finish()
        assert time.monotonic() - began < 120  # Linux alone would take 15 minutes
    assert ends.pop(("worker", 1))[0] == 143
    assert {end[0] for end in ends.values()} == {0}, ends
    assert "worker 1 is lost; its steps go to others" in ends["chief", 0][1]
    steps = [count_steps(tmp_path / f"worker-{index}") for index in (0, 1)]
    assert_each_once(sum(steps, []), 20, 19)


@needs_machines
def test_roles_end_when_a_server_is_behind_a_cut_link(start_roles, on):
    tasks = start_roles("--epochs", "500", apart=("ps", 0))
    with cut_link(on):
        began = time.monotonic()
        ends = tasks.finish()
        assert time.monotonic() - began < 120
    assert {end[0] for end in ends.values()} == {143}, ends
    assert ends["chief", 0][2] == "train.py: stopped: a server is lost; start all tasks again\n"


@needs_machines
@pytest.mark.skipif(not shutil.which("faketime"), reason="it takes faketime")
def test_clocks_may_differ_and_a_machine_be_late(on, script, train_once, tmp_path):
    script = edit(script, tmp_path)
    chief = start_on(on, 0, script, *FLAGS)
    time.sleep(15)
    late = start_on(on, 1, script, *FLAGS, before=["faketime", "-f", "-3h"])
    (code, output, errors), (late_code, _, late_errors) = finish(chief), finish(late)
    assert (code, late_code) == (0, 0), errors + late_errors
    assert f"waiting for worker 1 at {HOSTS[1]}:{PORT}" in output
    assert_same_run(tmp_path / "run", train_once(*FLAGS, *REPLICAS))


@needs_machines
@pytest.mark.parametrize("index", [0, 1])
def test_peer_that_never_comes_is_named(index, on, script, tmp_path):
    process = start_on(on, index, edit(script, tmp_path), "--timeout", "8")
    code, output, errors = finish(process, timeout=60)
    assert code == 143
    [line] = errors.splitlines()
    assert f"worker {1 - index} at {HOSTS[1 - index]}:{PORT} did not come in 8 s" in line
    assert "waiting for" in output
    assert not (tmp_path / "run").exists()


@needs_machines
@pytest.mark.parametrize("size", ["essential", "complete"])
def test_pods_of_kubernetes_have_the_bits_of_replicas(size, render, train_once, tmp_path):
    folder = render(tmp_path, script=size, cluster="kubernetes", project_slug="a_project")
    job = list(yaml.safe_load_all((folder / "launch" / "kubernetes.yaml").read_text("utf-8")))[-1]
    [container] = job["spec"]["template"]["spec"]["containers"]
    variables = {x["name"]: x["value"] for x in container["env"]}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    names = [f"a-project-{index}.a-project" for index in range(2)]
    with start_machines(tmp_path, names) as on:
        pods = [
            subprocess.Popen(
                on(index, *container["command"], "--run-dir=run", *FLAGS),
                cwd=folder,
                env=environment(**variables, JOB_COMPLETION_INDEX=str(index)),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
            )
            for index in range(2)
        ]
        for pod in pods:
            code, output, errors = finish(pod)
            assert code == 0, output + errors
    assert_same_run(folder / "run", train_once(*FLAGS, *REPLICAS))


# TF_CONFIG as others write it: this worker's index and the number of all; or what is refused.
CHIEF, A, B = "job-chief-0.ns.svc:2222", "job-worker-0.ns.svc:2222", "job-worker-1.ns.svc:2222"
WRITTEN = {
    # https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow
    "Kubeflow": (
        {
            "cluster": {"chief": [CHIEF], "worker": [A, B]},
            "task": {"type": "worker", "index": 1},
            "environment": "cloud",
        },
        (2, 3),
    ),
    # https://cloud.google.com/vertex-ai/docs/training/distributed-training
    "Vertex AI": (
        {
            "cluster": {"chief": ["cmle-0:2222"], "worker": ["cmle-1:2222"]},
            "environment": "cloud",
            "task": {"type": "chief", "index": 0, "trial": "0", "cloud": "{}"},
            "job": "{}",
        },
        (0, 2),
    ),
    # https://github.com/aws/sagemaker-tensorflow-training-toolkit
    "SageMaker": (
        {
            "cluster": {"worker": ["algo-1:8890", "algo-2:8890"]},
            "task": {"type": "worker", "index": 1},
            "environment": "cloud",
        },
        (1, 2),
    ),
    # https://docs.ray.io/en/latest/train/distributed-tensorflow-keras.html
    "Ray": (
        {
            "cluster": {"worker": ["10.0.0.1:40", "10.0.0.2:41"]},
            "task": {"type": "worker", "index": 0},
        },
        (0, 2),
    ),
    "one worker": (
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}},
        (0, 1),
    ),
    "a chief alone": (
        {"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}},
        (0, 1),
    ),
    "a master": (
        {
            "cluster": {"master": ["a:1"], "worker": ["b:1"]},
            "task": {"type": "master", "index": 0},
        },
        "master",
    ),
    "parameter servers": (
        {
            "cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]},
            "task": {"type": "ps", "index": 0},
        },
        "ps",
    ),
}
READ = """
import os, sys, train
train.args = train.parse_arguments([])
for text in sys.stdin.read().splitlines():
    os.environ["TF_CONFIG"] = text
    try:
        index, addresses = train.read_tf_config()
        print(index, len(addresses), train.args.mode)
    except SystemExit as end:
        print("refused", end.code)
"""


@pytest.mark.parametrize("size", ["essential", "complete"])
def test_configurations_of_others_are_read(size, render, tmp_path):
    folder = render(tmp_path, script=size)
    task = {"type": "evaluator", "index": 0}
    evaluator = {"cluster": WRITTEN["Kubeflow"][0]["cluster"], "task": task}
    configs = [*(config for config, _ in WRITTEN.values()), evaluator]
    finished = subprocess.run(
        [sys.executable, "-c", READ],
        input="\n".join(map(json.dumps, configs)),
        cwd=folder,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    *answers, of_evaluator = finished.stdout.splitlines()
    refused = iter(finished.stderr.splitlines())
    for answer, (_, expected) in zip(answers, WRITTEN.values(), strict=True):
        if isinstance(expected, str):
            assert answer == "refused 2"
            assert f" {expected}" in (line := next(refused)) and "TF_CONFIG" in line
        else:
            assert answer == "{} {} train".format(*expected)
    if size == "complete":  # Beside the cluster: it trains nothing.
        assert of_evaluator == "0 1 continuous_evaluate"
    else:
        assert of_evaluator == "refused 2"
        assert "evaluator" in next(refused)
