"""Train the image example, in both sizes, with other versions of Python and TensorFlow.

    uv run tests/versions.py                  all pairs, some minutes each
    uv run tests/versions.py 3.10:2.18 …      some of them

For each pair uv creates an environment with the project's dependencies and with the pair's Python
and TensorFlow: about 2 GB, removed afterwards. uv downloads interpreters that are missing. The last
lines are the table of docs/versions.md. The exit code is 1 if a pair has failed.
"""

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rendering import SIZES, render_project, write_user_config
from running import TESTS, environment, read_numbers, wait_for_lines
from variants import NO_DROPOUT, SMALL_IMAGES, write_variant

# Python, TensorFlow and, if it isn't the newest, Keras: for each TensorFlow the oldest and the
# newest Python that it has wheels for, from 3.10 on, and once the oldest Keras too.
PAIRS = [
    "3.10:2.18:3.10",
    "3.12:2.18",
    "3.10:2.19",
    "3.12:2.19",
    "3.10:2.20",
    "3.13:2.20",
    "3.10:2.21",
    "3.13:2.21",
]

# A run of seconds, with several checkpoints.
FLAGS = ("--global-batch-size", "16", "--epochs", "3", "--checkpoint-every-steps", "3")
KILLED = [f"{size}-killed" for size in SIZES]
PRINT_VERSIONS = """
import importlib.metadata, platform
print(platform.python_version())
print(importlib.metadata.version("tensorflow"))
print(importlib.metadata.version("keras"))
"""


class Failed(Exception):
    """A check failed, for a reason in one line."""


def call(*command, **options):
    """Run a command that must succeed. Return its output."""
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        **options,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
        lines = done.stderr.strip().splitlines() or ["no message"]
        name = " ".join(map(str, command[1:3]))
        raise Failed(f"`{name}` exit code {done.returncode}: {lines[-1]}")
    return done.stdout


def install(folder, project, python, tensorflow, keras=None):
    """Create an environment for a project. Return its interpreter and the versions in it."""
    uv = [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
    call(*uv, "venv", "--quiet", "--python", python, folder)
    interpreter = folder / "bin" / "python"
    packages = [f"tensorflow=={tensorflow}.*"]
    if keras:
        packages.append(f"keras=={keras}.*")
    target = ["--quiet", "--python", interpreter]
    requirements = ["--requirement", project / "pyproject.toml"]
    call(*uv, "pip", "install", *target, *packages, *requirements)
    return interpreter, call(interpreter, "-c", PRINT_VERSIONS).split()


class Runs:
    """The runs of one pair, each in its own folder."""

    def __init__(self, interpreter, scripts, folder):
        self.interpreter = interpreter
        self.scripts = scripts
        self.folder = folder
        self.env = environment(PYTHONPYCACHEPREFIX=str(folder / "compiled"))

    def create_command(self, name, size, *flags, code=()):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        script = write_variant(self.scripts[size], folder, *code)
        return [self.interpreter, script.name, *FLAGS, *flags]

    def train(self, name, size, *flags, code=()):
        """Run a script to its end. Return its output."""
        command = self.create_command(name, size, *flags, code=code)
        return call(*command, cwd=self.folder / name, env=self.env)

    def kill(self, name, size):
        """Train until some checkpoints are written, and kill the process."""
        process = subprocess.Popen(
            self.create_command(name, size),
            cwd=self.folder / name,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_lines(self.folder / name / "run", 4, process)
        except AssertionError:
            raise Failed(f"{name}: ended before it could be killed") from None
        finally:
            process.kill()
            process.wait()

    def query(self, question, *names):
        """Return the answer of tf_queries.py about some runs."""
        runs = [str(self.folder / name / "run") for name in names]
        queries = TESTS / "tf_queries.py"
        output = call(self.interpreter, queries, question, json.dumps(runs), env=self.env)
        return json.loads(output.splitlines()[-1])

    def read_numbers(self, name):
        return read_numbers(self.folder / name / "run")


def check_resume(runs):
    """Both sizes, killed and resumed, are bit-identical to undisturbed runs."""
    for size, killed in zip(SIZES, KILLED, strict=True):
        runs.train(size, size)
        runs.kill(killed, size)
        if "resumed at step" not in runs.train(killed, size):
            raise Failed(f"{size}: a killed run started from scratch")
    names = [*SIZES, *KILLED]
    first, *others = runs.query("runs.hash_checkpoints", *names)
    numbers = runs.read_numbers(names[0])
    for name, tensors in zip(names[1:], others, strict=True):
        if tensors != first or runs.read_numbers(name) != numbers:
            raise Failed(f"{name} is not bit-identical to {names[0]}")


def check_replicas(runs):
    """Two replicas give the numbers of one, up to rounding."""
    for replicas in ("1", "2"):
        flags = ("--replicas", replicas)
        runs.train(f"replicas-{replicas}", "essential", *flags, code=(NO_DROPOUT,))
    one, two = (runs.read_numbers(f"replicas-{replicas}") for replicas in ("1", "2"))
    for line, other in zip(one, two, strict=True):
        for key in set(line) - {"split"}:
            if not math.isclose(line[key], other[key], rel_tol=1e-4, abs_tol=1e-6):
                values = f"{line[key]}, on 2 replicas {other[key]}"
                raise Failed(f"{key} at step {line['step']}: {values}")


def check_exports(runs):
    """--mode evaluate and both exports give the loss of the log."""
    loss = runs.read_numbers("essential")[-1]["loss"]
    for size in SIZES:
        if f"loss {loss:.4f}" not in runs.train(size, size, "--mode", "evaluate"):
            raise Failed(f"{size}: --mode evaluate gives another loss")
    for size, exports in zip(SIZES, runs.query("runs.evaluate_exports", *SIZES), strict=True):
        for kind, values in exports.items():
            if not math.isclose(values["test"]["loss"], loss, rel_tol=1e-4):
                raise Failed(f"{size}: {kind} gives another loss")


def check(runs):
    """Raise Failed if a version breaks one of the guarantees."""
    check_resume(runs)
    check_replicas(runs)
    check_exports(runs)


def render(folder):
    """Render the example in both sizes, with little data. Return the scripts, by size."""
    config = write_user_config(folder)
    scripts = {}
    for size in SIZES:
        answers = {"script": size, "project_slug": size}
        project = render_project(folder, config, answers, accept_hooks=False)
        scripts[size] = write_variant(project / "train.py", project, SMALL_IMAGES)
    return scripts


def try_pair(pair, scripts, folder):
    """Check a pair of versions. Return the cells of its row in the table."""
    folder.mkdir()
    versions = pair.split(":")
    try:
        project = scripts["essential"].parent
        interpreter, versions = install(folder / "venv", project, *versions)
        check(Runs(interpreter, scripts, folder))
        result = "passed"
    except Failed as error:
        result = str(error)
    shutil.rmtree(folder)
    return [*[*versions, "the newest"][:3], result]


def main(pairs):
    """Check all pairs. Return the exit code."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        scripts = render(Path(folder))
        for number, pair in enumerate(pairs):
            started = time.monotonic()
            rows.append(try_pair(pair, scripts, Path(folder, str(number))))
            print(*rows[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    print("\n| Python | TensorFlow | Keras | result |\n|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return 0 if all(row[-1] == "passed" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PAIRS))
