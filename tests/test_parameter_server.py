"""Parameter servers: a chief, workers and servers on this machine, lost and brought back.

Which worker takes which step is a matter of chance here, so that no two runs end in the same bits:
what is asserted is what was counted, what came back, and what was learned.
"""

import collections
import json
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import (
    TEMPLATE,
    TIMEOUT,
    edit,
    environment,
    find_free_ports,
    finish,
    fork,
    read_metrics,
    train,
)
from test_edits import apply, split_blocks

TASKS = (("chief", 0), ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1))
FLAGS = ("--epochs", "3")

# Has each step write its number and examples to a file, in the folder of the worker that takes it.
COUNT = (
    "    batch, size = next(examples)\n",
    """    if training:
        tf.print(step, index, summarize=-1, output_stream="file://steps")
    batch, size = next(examples)
""",
)


@pytest.fixture(scope="session")
def server_script(render, tmp_path_factory):
    """Return the path of the train.py of the default task with parameter servers."""
    folder = tmp_path_factory.mktemp("servers")
    return render(folder, distribution="parameter_server") / "train.py"


class Cluster:
    """A chief, workers and servers of a script, each in a folder of its own, with one run."""

    def __init__(self, script, folder, edits, tasks):
        self.folder, self.run_dir = folder, folder / "run"
        self.processes, self.flags, self.jobs, self.scripts = {}, (), {}, {}
        for job, index in tasks:
            (folder / f"{job}-{index}").mkdir()
            self.scripts[job, index] = edit(script, folder / f"{job}-{index}", *edits)
        for (job, _), port in zip(tasks, find_free_ports(len(tasks)), strict=True):
            self.jobs.setdefault(job, []).append(f"127.0.0.1:{port}")

    def start(self, *flags, tasks=None, begin=fork):
        """Start some tasks, or all."""
        self.flags = flags or self.flags
        for task in tasks or self.scripts:
            config = {"cluster": self.jobs, "task": {"type": task[0], "index": task[1]}}
            env, flags = environment(TF_CONFIG=json.dumps(config)), ("--run-dir", self.run_dir)
            self.processes[task] = begin(self.scripts[task], *flags, *self.flags, env=env)
        return self

    def __getitem__(self, task):
        return self.processes[task]

    def finish(self, *tasks):
        """Wait for some tasks, or all. Return their exit codes and outputs, by task."""
        return {task: finish(self.processes[task]) for task in tasks or self.processes}

    def train(self, *flags):
        """Run all tasks to a good end. Return the chief's output."""
        ends = self.start(*flags).finish()
        assert {end[0] for end in ends.values()} == {0}, ends
        assert all(end[2] == "" for end in ends.values()), ends
        return ends["chief", 0][1]


@pytest.fixture
def cluster(server_script, tmp_path):
    """Return a function that returns a cluster of an edited script. What it starts is ended."""
    clusters = []

    def create(*edits, script=server_script, tasks=TASKS):
        clusters.append(Cluster(script, tmp_path, edits, tasks))
        return clusters[-1]

    yield create
    for process in (process for each in clusters for process in each.processes.values()):
        process.kill()


def count_steps(folder):
    """Return the numbers and examples of the steps that a worker has taken."""
    lines = (folder / "steps").read_text().splitlines() if (folder / "steps").exists() else []
    numbers = [[int(number) for number in re.findall(r"\d+", line)] for line in lines]
    return [(step, tuple(index)) for step, *index in numbers]


def assert_each_once(steps, epochs, steps_of_epoch):
    """Assert that each step was taken, and that no example came twice in an epoch."""
    examples = dict(steps)
    assert len(examples) == len(set(steps))  # A step that was taken again took the same ones.
    assert sorted(examples) == list(range(epochs * steps_of_epoch))
    for epoch in range(epochs):
        counts = collections.Counter(
            index
            for step in range(epoch * steps_of_epoch, (epoch + 1) * steps_of_epoch)
            for index in examples[step]
        )
        assert set(counts.values()) == {1}
    assert examples[0] != examples[steps_of_epoch]


def test_two_workers_take_each_example_once_an_epoch(cluster, tmp_path):
    output = cluster(COUNT).train(*FLAGS)
    assert "parameter_server on 2 × worker, 2 × ps, 19 steps an epoch" in output
    steps = [count_steps(tmp_path / f"worker-{index}") for index in (0, 1)]
    assert all(steps)
    assert sum(map(len, steps)) == 3 * 19
    assert_each_once(sum(steps, []), 3, 19)
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines if line["split"] == "train"] == [19, 38, 57]
    assert lines[-1]["split"] == "test"
    # What a worker counted is what the best checkpoint gives in one process.
    alone = train(tmp_path / "chief-0" / "train.py", "--mode", "evaluate", "--run-dir", "../run")
    assert f"test loss {lines[-1]['loss']:.4f}" in alone
    assert not list(tmp_path.glob("run/finished-*"))


def wait_until(condition, *processes):
    """Wait until something holds, while some processes run."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        for process in processes:
            assert process.poll() is None, finish(process)
        time.sleep(0.02)


def test_lost_worker_takes_steps_again_when_it_is_back(cluster, tmp_path):
    tasks = cluster(COUNT).start("--epochs", "500")
    folder = tmp_path / "worker-0"
    wait_until(lambda: len(count_steps(folder)) > 20, tasks["chief", 0])
    tasks["worker", 0].kill()
    wait_for_lines_more(tmp_path / "run", 2, tasks["chief", 0])  # without it
    before = len(count_steps(folder))
    tasks.start(tasks=[("worker", 0)])
    wait_until(lambda: len(count_steps(folder)) > before + 20, tasks["chief", 0])
    tasks["chief", 0].send_signal(signal.SIGTERM)
    ends = tasks.finish()
    assert {end[0] for end in ends.values()} == {143}
    [stopped] = re.findall(r"stopped, and saved at step (\d+)", ends["chief", 0][1])
    assert "worker 0 is lost; its steps go to others" in ends["chief", 0][1]
    assert ends["chief", 0][2] == ""
    # All steps up to there, whoever took them; those under way may have been taken twice.
    steps = count_steps(folder) + count_steps(tmp_path / "worker-1")
    assert {step for step, _ in steps} == set(range(int(stopped)))
    assert len(steps) <= int(stopped) + 2
    assert len(set(steps)) == int(stopped)


def wait_for_lines_more(run_dir, count, *processes):
    """Wait until a run that is under way has added some lines to its log."""
    lines = len(read_metrics(run_dir))
    wait_until(lambda: len(read_metrics(run_dir)) >= lines + count, *processes)


def test_run_ends_well_without_a_lost_worker(cluster, tmp_path):
    tasks = cluster(COUNT).start("--epochs", "8")
    wait_until(lambda: len(count_steps(tmp_path / "worker-1")) > 5, tasks["chief", 0])
    tasks["worker", 1].kill()
    ends = tasks.finish()
    assert ends.pop(("worker", 1))[0] == -signal.SIGKILL
    assert {end[0] for end in ends.values()} == {0}, ends
    steps = count_steps(tmp_path / "worker-0") + count_steps(tmp_path / "worker-1")
    assert_each_once(steps, 8, 19)
    assert read_metrics(tmp_path / "run")[-1]["split"] == "test"


def test_slow_worker_takes_fewer_steps(cluster, tmp_path):
    tasks = cluster(COUNT).start("--epochs", "12")
    folders = [tmp_path / f"worker-{index}" for index in (0, 1)]
    wait_until(lambda: all(map(count_steps, folders)), tasks["chief", 0])
    before = [len(count_steps(folder)) for folder in folders]
    while tasks["chief", 0].poll() is None:  # a tenth of the time is left to it
        tasks["worker", 1].send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        tasks["worker", 1].send_signal(signal.SIGCONT)
        time.sleep(0.03)
    ends = tasks.finish()
    assert {end[0] for end in ends.values()} == {0}, ends
    assert "is lost" not in ends["chief", 0][1]
    steps = [count_steps(folder) for folder in folders]
    fast, slow = (len(taken) - old for taken, old in zip(steps, before, strict=True))
    assert 0 < 2 * slow < fast
    assert_each_once(sum(steps, []), 12, 19)


def test_worker_that_stands_still_holds_up_no_other_within_a_loop(cluster, tmp_path):
    flags = ("--epochs", "2", "--global-batch-size", "2", "--steps-per-loop", "1000")
    tasks = cluster(COUNT).start(*flags)
    folders = [tmp_path / f"worker-{index}" for index in (0, 1)]
    wait_until(lambda: all(map(count_steps, folders)), tasks["chief", 0])
    tasks["worker", 1].send_signal(signal.SIGSTOP)
    before = len(count_steps(folders[0]))
    # More than are dealt out at a time, of the 628 of the loop.
    wait_until(lambda: len(count_steps(folders[0])) > before + 50, tasks["chief", 0])
    tasks["worker", 1].send_signal(signal.SIGCONT)
    ends = tasks.finish()
    assert {end[0] for end in ends.values()} == {0}, ends
    assert_each_once(sum(map(count_steps, folders), []), 2, 628)


@pytest.mark.parametrize("task", [("ps", 1), ("chief", 0)], ids=["ps", "chief"])
def test_job_goes_on_after_a_server_or_the_chief_was_killed(task, cluster, tmp_path):
    tasks = cluster(COUNT).start("--epochs", "6", "--checkpoint-every-steps", "10")
    run_dir = tmp_path / "run"
    wait_until(lambda: (run_dir / "metrics.jsonl").exists(), tasks["chief", 0])
    wait_for_lines_more(run_dir, 4, tasks["chief", 0])
    tasks[task].kill()
    ends = tasks.finish()
    assert ends.pop(task)[0] == -signal.SIGKILL
    assert {end[0] for end in ends.values()} == {143}, ends
    if task[0] == "ps":
        assert ends["chief", 0][2] == (
            "train.py: stopped: a server is lost; start all tasks again\n"
        )
    before = [count_steps(tmp_path / f"worker-{index}") for index in (0, 1)]
    output = tasks.train()
    resumed = int(re.search(r"resumed at step (\d+) from", output)[1])
    assert resumed >= 19
    steps = [count_steps(tmp_path / f"worker-{index}") for index in (0, 1)]
    later = [step for old, new in zip(before, steps, strict=True) for step in new[len(old) :]]
    assert sorted(step for step, _ in later) == list(range(resumed, 6 * 19))
    # What came again took the same examples, so that the log reads as one undisturbed run.
    assert_each_once(sum(steps, []), 6, 19)
    train_lines = [line for line in read_metrics(run_dir) if line["split"] == "train"]
    assert [line["step"] for line in train_lines] == [
        step for epoch in range(6) for step in (19 * epoch + 9, 19 * epoch + 19)
    ]


def test_sigterm_to_all_saves_first(cluster, tmp_path):
    tasks = cluster().start("--epochs", "500")
    run_dir = tmp_path / "run"
    wait_until(lambda: (run_dir / "metrics.jsonl").exists(), tasks["chief", 0])
    wait_for_lines_more(run_dir, 3, tasks["chief", 0])
    began = time.monotonic()
    for process in tasks.processes.values():
        process.send_signal(signal.SIGTERM)
    ends = tasks.finish()
    assert time.monotonic() - began < 20
    assert {end[0] for end in ends.values()} == {143}, ends
    [step] = re.findall(r"stopped, and saved at step (\d+)", ends["chief", 0][1])
    assert (run_dir / f"checkpoints/last/ckpt-{step}.index").exists()


def test_sigterm_ends_a_worker_that_waits(cluster):
    tasks = cluster().start(tasks=[("worker", 0), ("ps", 1)])
    for process in tasks.processes.values():
        wait_until(lambda process=process: "serves" in read_output(process), process)
        process.send_signal(signal.SIGTERM)
    assert [end[0] for end in tasks.finish().values()] == [143, 143]


def read_output(process):
    """Return what a fork has written so far."""
    with open(process.outputs[0].name, encoding="utf-8") as file:
        return file.read()


def test_checkpoints_are_exchanged_with_the_synchronous_script(cluster, essential, tmp_path):
    one_epoch, three_epochs = ("--epochs", "1"), ("--epochs", "3")
    # There …
    tasks = cluster()
    tasks.train(*one_epoch)
    (tmp_path / "sync").mkdir()
    alone = edit(essential, tmp_path / "sync")
    assert_same_evaluation(alone, tasks)
    assert "resumed at step 19" in train(alone, *three_epochs, "--run-dir", "../run")
    # … and back.
    output = tasks.train("--epochs", "5")
    assert "resumed at step 57" in output
    assert_same_evaluation(alone, tasks)
    [*_, line] = read_metrics(tmp_path / "run")
    assert (line["step"], line["split"]) == (95, "test")


def assert_same_evaluation(script, tasks):
    """Assert that a script finds in a run what the cluster's test line says."""
    line = read_metrics(tasks.run_dir)[-1]
    output = train(script, "--mode", "evaluate", "--run-dir", tasks.run_dir)
    assert f"test loss {line['loss']:.4f} accuracy {line['accuracy']:.4f}" in output


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1"]}
WORKER = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{cluster:", ["JSONDecodeError"]),
        ("[]", ["TypeError"]),
        ({"cluster": CLUSTER}, ["KeyError 'task'"]),
        ({"task": WORKER}, ["KeyError 'cluster'"]),
        ({"cluster": {**CLUSTER, "ps": []}, "task": WORKER}, ["has no ps"]),
        ({"cluster": {"worker": ["a:1", "b:1"]}, "task": WORKER}, ["has no chief"]),
        ({"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": WORKER}, ["has no worker"]),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 2}}, ["index 2"]),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": "0"}}, ["TF_CONFIG"]),
        ({"cluster": CLUSTER, "task": {"type": "master", "index": 0}}, ["'master'"]),
        ({"cluster": {**CLUSTER, "master": ["d:1"]}, "task": WORKER}, ["master"]),
        ({"cluster": {**CLUSTER, "chief": ["a:1", "a:2"]}, "task": WORKER}, ["one chief"]),
        ({"cluster": {**CLUSTER, "ps": ["c"]}, "task": WORKER}, ["c is not host:port"]),
        ({"cluster": {**CLUSTER, "ps": ["c:x"]}, "task": WORKER}, ["'x'"]),
        ({"cluster": {**CLUSTER, "ps": 1}, "task": WORKER}, ["TF_CONFIG"]),
    ],
)
def test_bad_tf_config_ends_in_one_line(config, words, server_script, tmp_path):
    text = config if isinstance(config, str) else json.dumps(config)
    code, output, errors = finish(
        fork(edit(server_script, tmp_path), env=environment(TF_CONFIG=text))
    )
    assert (code, output, errors.count("\n")) == (2, "", 1), (output, errors)
    assert all(word in errors for word in ["TF_CONFIG", '"ps"', *words]), errors


def test_taken_port_ends_in_one_line(cluster, tmp_path):
    tasks = cluster().start(tasks=[("worker", 0)])
    wait_until(lambda: "serves" in read_output(tasks["worker", 0]))
    first = tasks["worker", 0]
    code, _, errors = tasks.start(tasks=[("worker", 0)]).finish(("worker", 0))["worker", 0]
    assert first.poll() is None
    first.kill()
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "worker 0 can't listen at 127.0.0.1:" in errors


def test_evaluator_tells_each_checkpoint(cluster, tmp_path):
    tasks = cluster(tasks=(*TASKS, ("evaluator", 0)))
    ends = tasks.start(*FLAGS).finish()
    assert {end[0] for end in ends.values()} == {0}, ends
    [*_, validation] = [x for x in read_metrics(tmp_path / "run") if x["split"] == "validation"]
    assert f"step 57  validation loss {validation['loss']:.4f}" in ends["evaluator", 0][1]


def test_digits_are_learned(cluster):
    output = cluster().train()
    [accuracy] = re.findall(r"\ntest loss \S+ accuracy (\S+)", output)
    assert float(accuracy) >= 0.95


def test_diabetes_is_learned(cluster, render, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tabular")
    project = render(folder, task="tabular_regression", distribution="parameter_server")
    output = cluster(script=project / "train.py").train()
    [error] = re.findall(r"\ntest loss \S+ mean_absolute_error (\S+)", output)
    assert float(error) < 45.3  # of the baseline


@pytest.mark.parametrize("name", ["sample", "gan"])
def test_first_edits_carry_over(name, cluster, server_script, tmp_path):
    text, _ = apply(server_script.read_text("utf-8"), split_blocks(name)[0])
    alone = tmp_path / "train.py"
    alone.write_text(text, encoding="utf-8")
    flags = ("--epochs", "1", "--global-batch-size", "16")
    train(alone, *flags)
    assert_tested_again(alone, tmp_path / "run")
    if name == "gan":
        (tmp_path / "run").rename(tmp_path / "run-alone")  # where the cluster's is
        cluster(script=alone).train(*flags)
        assert_tested_again(alone, tmp_path / "run")


def assert_tested_again(script, run_dir):
    """Assert that a script finds in a run what its test line says, where metrics have counted."""
    line = read_metrics(run_dir)[-1]
    assert line["split"] == "test"
    [name] = line.keys() & {"balanced_accuracy", "taken_for_real"}
    assert 0 < line[name] < 1
    output = train(script, "--mode", "evaluate", "--run-dir", run_dir)
    assert f"test loss {line['loss']:.4f} {name} {line[name]:.4f}" in output


def read_snippet():
    """Return the layer that the README shows."""
    readme = TEMPLATE / "templates" / "parameter_server" / "README.md"
    [code] = re.findall(r"```python\n(@keras.*?)```", readme.read_text("utf-8"), re.DOTALL)
    return code


def test_embedding_lies_on_both_servers(cluster, tmp_path):
    edits = (
        ("def create_model_and_optimizer", read_snippet() + "\n\ndef create_model_and_optimizer"),
        ("return tf.cast(images, tf.float32)", "return tf.cast(images, tf.int32)"),
        ("keras.Input([8, 8, 1])", 'keras.Input([8, 8, 1], dtype="int32")'),
        ("keras.layers.Rescaling(1 / 16)", "SplitEmbedding(17, 8, parts=2)"),
        (
            'keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="silu"),\n',
            "",
        ),
        (
            "    managers = create_managers()\n",
            "    managers = create_managers()\n"
            "    tables = [*model.trainable_variables[:2], *optimizer.variables[2:6]]\n"
            "    say(json.dumps([[x.shape[0], x.value.device] for x in tables]))\n",
        ),
    )
    output = cluster(*edits).train("--epochs", "8")
    tables = json.loads(output.splitlines()[0])
    places = [(rows, re.search(r"ps/replica:0/task:(\d)", device)[1]) for rows, device in tables]
    assert {rows for rows, _ in places[:2]} == {9, 8}
    assert {server for _, server in places[:2]} == {"0", "1"}
    # Adam's averages lie beside the rows.
    assert sorted(places[2:]) == sorted([*places[:2], *places[:2]])
    [accuracy] = re.findall(r"\ntest loss \S+ accuracy (\S+)", output)
    assert float(accuracy) > 0.8


def test_keras_can_not_train_a_variable_that_is_split(tmp_path):
    """The program of the README. Once it works, the README's layer has had its day."""
    readme = (TEMPLATE / "README.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(import keras.*?)```", readme, re.DOTALL)
    assert "FixedShardsPartitioner" in code
    for port, free in zip(("2221", "2222", "2223"), find_free_ports(3), strict=True):
        code = code.replace(f"localhost:{port}", f"localhost:{free}")
    (tmp_path / "program.py").write_text(code, encoding="utf-8")
    code, _, errors = finish(fork(tmp_path / "program.py"))
    assert code == 1
    assert errors.endswith("AttributeError: 'ShardedVariable' object has no attribute 'handle'\n")


def test_proofs_of_the_product_pass(render, tmp_path):
    project = render(tmp_path, distribution="parameter_server")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=3 * TIMEOUT,
    )
    assert finished.returncode == 0, finished.stdout
    assert " skipped" not in finished.stdout


# --------------------------------------------------------------------------------------------------
# What starts the tasks, beside a train.py of a few lines
# --------------------------------------------------------------------------------------------------

# Each task notes its starts, and ends once the chief has.
BEGINNING = """
import json, os, signal, sys, time
from pathlib import Path

task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}-{task['index']}"
with open(name, "a") as file:
    file.write("start ")


def count(name):
    return Path(name).read_text().count("start") if Path(name).exists() else 0


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


"""
END = """
if name == "chief-0":
    wait_for(lambda: all(count(x) for x in ("ps-0", "ps-1", "worker-0", "worker-1")))
    Path("finished").touch()
wait_for(lambda: Path("finished").exists())
"""
KILLED = "if name == {!r} and count(name) == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
FOUR = ("--ps", "2", "--workers", "2")


@pytest.fixture
def launch(server_script, tmp_path):
    """Return a function that runs the launcher, and returns exit code, output, errors, starts."""
    (tmp_path / "launch").mkdir()
    edit(server_script.parent / "launch" / "local.py", tmp_path / "launch")

    def run_launcher(body, *flags):
        (tmp_path / "train.py").write_text(BEGINNING + body, encoding="utf-8")
        command = [sys.executable, "launch/local.py", *flags]
        finished = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
        )
        starts = {path.name: path.read_text().count("start") for path in tmp_path.glob("*-[01]")}
        return finished.returncode, finished.stdout, finished.stderr, starts

    return run_launcher


def test_lost_worker_is_started_again_by_itself(launch):
    wait = "if name == 'chief-0':\n    wait_for(lambda: count('worker-1') == 2)\n"
    code, output, errors, starts = launch(KILLED.format("worker-1") + wait + END, *FOUR)
    assert (code, errors) == (0, "")
    assert starts == {"chief-0": 1, "ps-0": 1, "ps-1": 1, "worker-0": 1, "worker-1": 2}
    said = "worker 1 was killed by SIGKILL; it alone starts again; restart 1 of 3"
    assert f"launch: {said}\n" in output


def test_run_goes_on_without_a_worker_that_has_no_restart_left(launch):
    body = "if name == 'chief-0':\n    time.sleep(0.5)\n"
    code, output, _, starts = launch(
        KILLED.format("worker-1") + body + END, *FOUR, "--max-restarts", "0"
    )
    assert code == 0
    assert starts == {"chief-0": 1, "ps-0": 1, "ps-1": 1, "worker-0": 1, "worker-1": 1}
    assert "launch: worker 1 was killed by SIGKILL; no restart is left\n" in output


@pytest.mark.parametrize("task", ["ps 0", "chief 0"])
def test_all_start_again_after_a_lost_server_or_chief(task, launch):
    name = task.replace(" ", "-")
    wait = (
        "wait_for(lambda: all(map(count, ('chief-0', 'ps-0', 'ps-1', 'worker-0', 'worker-1'))))\n"
    )
    stay = "if count(name) == 1:\n    time.sleep(30)\n"  # not by another's, which may be late
    code, output, errors, starts = launch(wait + KILLED.format(name) + stay + END, *FOUR)
    assert (code, errors) == (0, ""), output
    assert set(starts.values()) == {2}
    assert f"launch: {task} was killed by SIGKILL; all start again; restart 1 of 3\n" in output


def test_wrong_input_of_the_chief_ends_all(launch):
    body = "if name == 'chief-0':\n    sys.exit(2)\ntime.sleep(30)\n"
    code, output, errors, starts = launch(body, *FOUR)
    assert (code, errors) == (2, "")
    assert max(starts.values()) == 1
    assert "launch: chief 0 ended with exit code 2; its last lines:" in output


@pytest.mark.parametrize("flags", [("--workers", "2"), ("--ps", "0", "--workers", "2")])
def test_launcher_refuses_a_cluster_without_servers(flags, launch):
    code, output, errors, _ = launch("", *flags)
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert "--ps" in errors


def test_job_files_tell_each_task_its_role(render, tmp_path):
    """Run the lines of shell that make TF_CONFIG, of four tasks with a server and two workers."""
    answers = {"distribution": "parameter_server", "project_slug": "x"}
    slurm = render(tmp_path / "slurm", cluster="slurm", **answers) / "launch" / "slurm.sbatch"
    [body] = re.findall(r"bash -c '\n(.*?)\n +' task", slurm.read_text("utf-8"), re.DOTALL)
    slurm_body = body.replace('"$@"', 'echo "$TF_CONFIG"')
    kubernetes = render(tmp_path / "kubernetes", cluster="kubernetes", **answers) / "launch"
    text = (kubernetes / "kubernetes.yaml").read_text("utf-8")
    [body] = re.findall(r"- \|\n(.*?)\n +exec python", text, re.DOTALL)
    names = [f"x-{number}.x:2222" for number in range(4)]
    cluster = {"chief": names[:1], "ps": names[1:2], "worker": names[2:]}
    roles = [("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
    for number, (job, index) in enumerate(roles):
        task = {"type": job, "index": index}
        for shell, lines, variables in (
            ("bash", slurm_body, {"ADDRESSES": ",".join(names), "SLURM_PROCID": str(number)}),
            (
                "sh",
                textwrap.dedent(body) + '\necho "$TF_CONFIG"',
                {"NAME": "x", "WORKERS": "2", "JOB_COMPLETION_INDEX": str(number)},
            ),
        ):
            env = environment(SERVERS="1", **variables)
            output = subprocess.run([shell, "-c", lines], env=env, capture_output=True, check=True)
            assert json.loads(output.stdout) == {"cluster": cluster, "task": task}
