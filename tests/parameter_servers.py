"""Clusters with parameter servers on this machine: a chief, servers and workers of one run."""

import collections
import re

from running import assign_addresses, environment, finish, fork, tf_config
from variants import write_variant

TASKS = (
    ("chief", 0),
    ("ps", 0),
    ("ps", 1),
    ("worker", 0),
    ("worker", 1),
)
STEPS_PER_EPOCH = 19

# Has each training step write its number and the indices of its examples to a file, in the folder
# of the worker that takes it.
RECORD_STEPS = """
@wraps_original
def create_batch(original, examples, size, training, places):
    if training:
        step = places[0, 0] * config.steps_per_epoch + places[0, 1] // config.global_batch_size
        tf.print(step, places[:, 2], summarize=-1, output_stream="file://steps")
    return original(examples, size, training, places)
"""


class Cluster:
    """A chief, workers and servers of a script, each in a folder of its own, with one run."""

    def __init__(self, script, folder, codes=(), tasks=TASKS, variables=None):
        self.folder = folder
        self.variables = variables or {}  # environment variables of all tasks
        self.run_dir = folder / "run"
        self.flags = ()
        self.processes = {}
        self.addresses = assign_addresses(tasks)
        self.scripts = {}
        for job, index in tasks:
            task_folder = folder / f"{job}-{index}"
            task_folder.mkdir()
            self.scripts[job, index] = write_variant(script, task_folder, *codes)

    def start(self, *flags, tasks=None, begin=fork):
        """Start some tasks, or all. Without flags, use the flags of the last start."""
        self.flags = flags or self.flags
        for task in tasks or self.scripts:
            env = environment(**tf_config(self.addresses, *task), **self.variables)
            arguments = ("--run-dir", self.run_dir, *self.flags)
            self.processes[task] = begin(
                self.scripts[task],
                *arguments,
                env=env,
            )
        return self

    @property
    def chief(self):
        return self.processes["chief", 0]

    def finish(self, *tasks):
        """Wait for some tasks, or all. Return their outcomes, by task."""
        return {task: finish(self.processes[task]) for task in tasks or self.processes}

    def train(self, *flags):
        """Run all tasks, which must succeed. Return the chief's output."""
        outcomes = self.start(*flags).finish()
        assert_codes(outcomes, 0)
        assert all(outcome.errors == "" for outcome in outcomes.values()), outcomes
        return outcomes["chief", 0].output

    def kill(self):
        for process in self.processes.values():
            process.kill()

    def read_steps(self, index):
        """Return the steps that a worker has taken: their numbers and their examples' indices."""
        return read_recorded_steps(self.folder / f"worker-{index}" / "steps")

    def read_all_steps(self):
        return self.read_steps(0) + self.read_steps(1)

    def have_all_workers_begun(self):
        return self.read_steps(0) and self.read_steps(1)


def read_recorded_steps(path):
    """Return what RECORD_STEPS has written: the number of each step and its examples' indices."""
    lines = path.read_text().splitlines() if path.exists() else []
    numbers = [[int(number) for number in re.findall(r"\d+", line)] for line in lines]
    return [(step, tuple(indices)) for step, *indices in numbers]


def assert_codes(outcomes, code):
    """Assert that all tasks ended with an exit code."""
    assert {outcome.code for outcome in outcomes.values()} == {code}, outcomes


def assert_each_example_once(steps, epochs, steps_per_epoch=STEPS_PER_EPOCH):
    """Assert that all steps were taken, and that no example came twice in an epoch.

    A step that was taken twice had the same examples.
    """
    examples = dict(steps)
    assert len(examples) == len(set(steps))
    assert sorted(examples) == list(range(epochs * steps_per_epoch))
    for epoch in range(epochs):
        first = epoch * steps_per_epoch
        counts = collections.Counter()
        for step in range(first, first + steps_per_epoch):
            counts.update(examples[step])
        assert set(counts.values()) == {1}
    assert examples[0] != examples[steps_per_epoch]
