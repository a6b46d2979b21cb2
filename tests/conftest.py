"""Fixtures of the template's tests: rendered projects, their scripts, and runs that tests share.

The helpers are modules of their own, whose names don't begin with test_.

A test that takes `answers` runs once for every combination of the choices in cookiecutter.json, so
a choice that is added there is tested without a new test. `@pytest.mark.long` marks the tests that
show again, in minutes, what a shorter test shows, on other tasks, replicas, workers or flags.

TensorFlow runs in processes of its own: strategies of several sizes in one process break
collectives.
"""

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

import pytest
from rendering import (
    QUESTIONS,
    SIZES,
    TASKS,
    combine_choices,
    is_near_default,
    render_project,
    write_user_config,
)
from running import (
    SEED,
    run_script,
    train,
)
from variants import SMALL_DATA, write_variant

# The order of the files: those that take seconds come first.
FILES_IN_ORDER = [
    "test_style",
    "test_vocabulary",
    "test_workflows",
    "test_golden",
    "test_rendering",
    "test_update",
    "test_questions",
    "test_new_task",
    "test_kubernetes",
    "test_conditions",
    "test_command_line",
    "test_launch",
    "test_fuzzing",
    "test_documentation",
    "test_run_outputs",
    "test_data_order",
    "test_evaluation",
    "test_random_numbers",
    "test_replicas",
    "test_numerics",
    "test_checkpoints",
    "test_resume",
    "test_export",
    "test_user_hooks",
    "test_recipes",
    "test_workers",
    "test_script_sizes",
    "test_training_flags",
    "test_project_tests",
    "test_tasks",
    "test_faults",
    "test_parameter_servers",
    "test_gpu",
    "test_network",
    "test_slurm",
    "test_promises",
]


def find_position(item):
    """Return the position of a test's file in the order. Files that are not listed come last."""
    name = item.path.stem
    return FILES_IN_ORDER.index(name) if name in FILES_IN_ORDER else len(FILES_IN_ORDER)


def pytest_collection_modifyitems(items):
    items.sort(key=find_position)


def pytest_runtest_setup(item):
    """Skip long tests after the time in TESTS_END, in seconds since 1970, which .ci/run sets."""
    end = float(os.environ.get("TESTS_END", "inf"))
    if item.get_closest_marker("long") and time.time() > end:
        pytest.skip("it is past TESTS_END")


def create_answers_parameter(answers):
    """Return a parameter for `answers`: long if several choices differ from the defaults."""
    marks = [] if is_near_default(answers) else [pytest.mark.long]
    name = "-".join(answers.values()) or "defaults"
    return pytest.param(answers, id=name, marks=marks)


def pytest_generate_tests(metafunc):
    """Parametrize tests that take `answers` or `question`."""
    if "answers" in metafunc.fixturenames:
        parameters = [create_answers_parameter(answers) for answers in combine_choices()]
        metafunc.parametrize("answers", parameters)
    if "question" in metafunc.fixturenames:
        metafunc.parametrize("question", QUESTIONS)


# --------------------------------------------------------------------------------------------------
# Rendering
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def render(tmp_path_factory):
    """Return a function that renders a project and returns its folder.

    Its arguments are the folder to render into and the answers, by question. Answers that are left
    out are the defaults.
    """
    config_file = write_user_config(tmp_path_factory.mktemp("cookiecutter"))

    def render_with_answers(output_dir, *, accept_hooks=True, **answers):
        return render_project(output_dir, config_file, answers, accept_hooks)

    return render_with_answers


@pytest.fixture
def cookiecutter_environment(tmp_path_factory):
    """Return environment variables for the cookiecutter command, with a home of the test's own."""
    home = tmp_path_factory.mktemp("home")
    scripts = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "HOME": str(home),
        "USERPROFILE": str(home),
        "COOKIECUTTER_CONFIG": str(write_user_config(home)),
        "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
        "PYTHONIOENCODING": "utf-8",
        # Otherwise Rich, which asks the questions, breaks them into lines and colors them.
        "COLUMNS": "500",
        "NO_COLOR": "1",
    }


@pytest.fixture(scope="session")
def complete_script(render, tmp_path_factory):
    """Return the path of the complete train.py of the default task."""
    return render(tmp_path_factory.mktemp("complete"), script="complete") / "train.py"


@pytest.fixture(scope="session")
def essential_script(render, tmp_path_factory):
    """Return the path of the train.py of the default answers."""
    return render(tmp_path_factory.mktemp("essential")) / "train.py"


@pytest.fixture(scope="session")
def scripts(essential_script, complete_script):
    """Return the scripts of the default task, by size."""
    return {"essential": essential_script, "complete": complete_script}


@pytest.fixture(scope="session")
def task_scripts(render, tmp_path_factory):
    """Return the scripts of each task, by size."""
    folder = tmp_path_factory.mktemp("sizes")

    def render_script(task, size):
        project = render(folder / task, task=task, script=size, project_slug=f"a_{size}")
        return project / "train.py"

    return {task: {size: render_script(task, size) for size in SIZES} for task in TASKS}


@pytest.fixture(scope="session")
def server_script(render, tmp_path_factory):
    """Return the path of the train.py of the default task with parameter servers."""
    folder = tmp_path_factory.mktemp("servers")
    return render(folder, distribution="parameter_server") / "train.py"


@pytest.fixture(scope="session")
def all_scripts(scripts, server_script):
    """Return the three scripts of the default task, by kind."""
    return {**scripts, "parameter_server": server_script}


@pytest.fixture(scope="session")
def projects(render, tmp_path_factory):
    """Return the folder of a project of each task, with the complete script."""
    folder = tmp_path_factory.mktemp("tasks")
    return {
        task: render(folder, task=task, script="complete", project_slug=f"a_{task}")
        for task in TASKS
    }


# --------------------------------------------------------------------------------------------------
# Runs
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def chance(request):
    """Return a generator of random numbers for a test."""
    print(f"FAULTS_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Return a function that computes another function's result, JSON, once a session.

    The first of pytest's processes that asks computes it, and the others wait. They share the
    parent of their temporary folders.
    """
    fcntl = pytest.importorskip("fcntl", reason="Windows has no such locks")
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def compute_or_recall(function, *arguments):
        key = repr((function.__module__, function.__qualname__, arguments))
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        result = folder / f"{digest}.json"
        with open(result.with_suffix(".lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not result.exists():
                result.write_text(json.dumps(function(*arguments)), encoding="utf-8")
        return json.loads(result.read_text(encoding="utf-8"))

    return compute_or_recall


@pytest.fixture(scope="session")
def train_once(once, complete_script, tmp_path_factory):
    """Return a function that trains a variant with some flags, once a session.

    It returns the run's folder, which tests share: a test that changes it takes a copy. What the
    run printed is in the file "output" beside it.
    """

    def run_variant(flags, code):
        folder = tmp_path_factory.mktemp("trained")
        outcome = run_script(write_variant(complete_script, folder, *code), *flags)
        (folder / "output").write_text(outcome.output, encoding="utf-8")
        return str(folder), outcome

    def train_or_recall(*flags, code=()):
        folder, (exit_code, output, errors) = once(run_variant, flags, code)
        assert (exit_code, errors) == (0, ""), f"{flags}\n{output}\n{errors}"
        return Path(folder) / "run"

    return train_or_recall


class FirstRuns(dict):
    """The folder of a short run of each task, trained when a test asks for it."""

    def __init__(self, train_first_run):
        self.train_first_run = train_first_run

    def __missing__(self, task):
        self[task] = Path(self.train_first_run(task))
        return self[task]


@pytest.fixture(scope="session")
def first_runs(once, projects, tmp_path_factory):
    """Return the folder of a short run by task. Tests share it: a test changes only a copy."""

    def train_task(task):
        folder = tmp_path_factory.mktemp(task)
        script = write_variant(projects[task] / "train.py", folder, SMALL_DATA[task])
        train(script, "--epochs", "1")
        return str(folder / "run")

    return FirstRuns(lambda task: once(train_task, task))
