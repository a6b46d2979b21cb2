"""Trains the image example, in both sizes, on other versions of Python and TensorFlow.

    python3 -m uv run tests/versions.py                  all pairs, some minutes each
    python3 -m uv run tests/versions.py 3.10:2.18 …      some of them

For each pair uv makes an environment of what the project asks for, with Python and TensorFlow held
to the pair: some 2 GB, removed again. Interpreters that the machine lacks are downloaded by uv. The
last lines are the table of the README. The exit code is 1 where a pair has failed.
"""

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from conftest import (
    FEW_OF,
    NO_DROPOUT,
    TASKS,
    TEMPLATE,
    edit,
    environment,
    read_numbers,
    wait_for_lines,
    write_user_config,
)
from cookiecutter.main import cookiecutter

# Python, TensorFlow and, where it isn't the newest, Keras: for each TensorFlow the oldest and the
# newest Python that it has wheels for, from 3.10 on, and once the oldest Keras too.
PAIRS = ["3.10:2.18:3.10", "3.12:2.18", "3.10:2.19", "3.12:2.19"]
PAIRS += ["3.10:2.20", "3.13:2.20", "3.10:2.21", "3.13:2.21"]
SIZES = ("essential", "complete")

# A run of seconds, with several checkpoints.
FLAGS = ("--global-batch-size", "16", "--epochs", "3", "--checkpoint-every-steps", "3")


class Failed(Exception):
    """What did not work, in a line."""


def call(*command, **options):
    """Run a command to its good end. Return its output."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
        last = [done.stderr.strip() or "no message"][0].splitlines()[-1]
        raise Failed(f"`{' '.join(map(str, command[1:3]))}` exit code {done.returncode}: {last}")
    return done.stdout


def install(folder, project, python, tensorflow, keras=None):
    """Make an environment of a project. Return its interpreter and the versions that it has."""
    uv = [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
    call(*uv, "venv", "--quiet", "--python", python, folder)
    interpreter = folder / "bin" / "python"
    held = [f"tensorflow=={tensorflow}.*", *([f"keras=={keras}.*"] if keras else [])]
    asked = ["--requirement", project / "pyproject.toml"]
    call(*uv, "pip", "install", "--quiet", "--python", interpreter, *held, *asked)
    names = "tensorflow", "keras"
    ask = "import importlib.metadata as m, platform as p; print(p.python_version(), *map(m.version,"
    return interpreter, call(interpreter, "-c", f"{ask}{names}))").split()


class Runs:
    """The runs of one pair, each in a folder of its own."""

    def __init__(self, interpreter, scripts, folder):
        self.interpreter, self.scripts, self.folder = interpreter, scripts, folder
        self.env = environment(PYTHONPYCACHEPREFIX=str(folder / "compiled"))

    def command(self, name, size, *flags, edits=()):
        (self.folder / name).mkdir(exist_ok=True)
        script = edit(self.scripts[size], self.folder / name, *edits)
        return [self.interpreter, script.name, *FLAGS, *flags]

    def run(self, name, size, *flags, edits=()):
        """Train, or do what else the flags say. Return what was printed."""
        command = self.command(name, size, *flags, edits=edits)
        return call(*command, cwd=self.folder / name, env=self.env)

    def kill(self, name, size):
        """Train until some checkpoints are written."""
        command, quiet = self.command(name, size), subprocess.DEVNULL
        options = {"cwd": self.folder / name, "env": self.env, "stdout": quiet, "stderr": quiet}
        process = subprocess.Popen(command, **options)
        try:
            wait_for_lines(self.folder / name / "run", 4, process)
        except AssertionError:
            raise Failed(f"{name}: ended before it could be killed") from None
        finally:
            process.kill()
            process.wait()

    def ask(self, question, *names):
        """Return what child.py answers about some runs."""
        runs = [self.folder / name / "run" for name in names]
        child = TEMPLATE / "tests" / "child.py"
        output = call(self.interpreter, child, question, *runs, env=self.env)
        return json.loads(output.splitlines()[-1])

    def numbers(self, name):
        return read_numbers(self.folder / name / "run")


def check(runs):
    """Raise Failed at the first promise that doesn't hold."""
    names = list(SIZES)
    for size in SIZES:
        runs.run(size, size)
        runs.kill(f"{size}-killed", size)
        if "resumed at step" not in runs.run(f"{size}-killed", size):
            raise Failed(f"{size}: a killed run began anew")
        names.append(f"{size}-killed")
    first, *others = runs.ask("tensors", *names)
    for name, tensors in zip(names[1:], others, strict=True):
        if tensors != first or runs.numbers(name) != runs.numbers("essential"):
            raise Failed(f"{name} has other bits than essential")

    for replicas in ("1", "2"):
        runs.run(f"by {replicas}", "essential", "--replicas", replicas, edits=[NO_DROPOUT])
    for one, two in zip(*map(runs.numbers, ("by 1", "by 2")), strict=True):
        for key in set(one) - {"split"}:
            if not math.isclose(one[key], two[key], rel_tol=1e-4, abs_tol=1e-6):
                raise Failed(f"{key} at step {one['step']}: {one[key]}, on 2 replicas {two[key]}")

    [*_, test] = runs.numbers("essential")
    for size in SIZES:
        if f"loss {test['loss']:.4f}" not in runs.run(size, size, "--mode", "evaluate"):
            raise Failed(f"{size}: --mode evaluate gives another loss")
    for name, exports in zip(SIZES, runs.ask("evaluations", *SIZES), strict=True):
        for kind, values in exports.items():
            if not math.isclose(values["test"]["loss"], test["loss"], rel_tol=1e-4):
                raise Failed(f"{name}: {kind} gives another loss")


def render(folder):
    """Render the example in both sizes, with less data. Return the scripts, by size."""
    scripts, config = {}, str(write_user_config(folder))
    for size in SIZES:
        options = {"no_input": True, "accept_hooks": False, "config_file": config}
        answers = {"script": size, "project_slug": size}
        project = cookiecutter(
            str(TEMPLATE), extra_context=answers, output_dir=str(folder), **options
        )
        scripts[size] = edit(Path(project, "train.py"), Path(project), FEW_OF[TASKS[0]])
    return scripts


def main(pairs):
    """Return the exit code."""
    rows, ok = [], True
    with tempfile.TemporaryDirectory() as folder:
        scripts = render(Path(folder))
        for number, pair in enumerate(pairs):
            started = time.monotonic()
            versions, result = pair.split(":"), "passed"
            place = Path(folder, str(number))
            place.mkdir()
            try:
                interpreter, versions = install(
                    place / "venv", scripts["essential"].parent, *versions
                )
                check(Runs(interpreter, scripts, place))
            except Failed as error:
                result, ok = str(error), False
            shutil.rmtree(place)
            rows.append([*versions, "the newest"][:3] + [result])
            print(*rows[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    print("\n| Python | TensorFlow | Keras | |\n|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PAIRS))
