"""Parameter servers: a chief, workers and servers on this machine, lost and brought back.

Which worker takes which step is a matter of chance here, so that no two runs end in the same bits:
what is asserted is what was counted, what came back, and what was learned.
"""

import collections
import json
import os
import re
import signal
import sys
import time

import pytest
from conftest import (
    TEMPLATE,
    TIMEOUT,
    ask_child,
    edit,
    environment,
    find_free_ports,
    finish,
    fork,
    read_metrics,
    start,
    train,
    wait_for_lines,
)

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
