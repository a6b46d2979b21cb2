"""Render projects from the template, and check rendered files."""

import itertools
import json
import os
import runpy
import subprocess
import sys
import types
from pathlib import Path

from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).resolve().parents[1]
PRODUCT = TEMPLATE / "{{cookiecutter.project_slug}}"
CONTEXT = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
# The questions, each with its default text or the list of its choices.
QUESTIONS = {name: value for name, value in CONTEXT.items() if not name.startswith("_")}
CHOICES = {name: value for name, value in QUESTIONS.items() if isinstance(value, list)}
DEFAULT_CHOICES = {name: choices[0] for name, choices in CHOICES.items()}
TASKS = tuple(CHOICES["task"])
SIZES = tuple(CHOICES["script"])

# The files of every project, and those that a cluster adds.
FILES = {
    ".gitignore",
    "README.md",
    "launch/local.py",
    "pyproject.toml",
    "tests/check_data.py",
    "tests/check_losses.py",
    "tests/check_models.py",
    "tests/check_replicas.py",
    "tests/check_steps.py",
    "tests/check_tools.py",
    "tests/conftest.py",
    "tests/hook_checks.py",
    "tests/hook_names.py",
    "tests/test_train.py",
    "tests/train_runs.py",
    "train.py",
}
FILES_OF = {
    "none": set(),
    "slurm": {"launch/slurm.sbatch"},
    "kubernetes": {"launch/kubernetes.yaml", "Dockerfile"},
}


def read_questions():
    """Return the questions of cookiecutter.json: a list of choices, or a default text, by name."""
    return dict(QUESTIONS)


def combine_choices():
    """Return every combination of the choices, as answers to render a project with."""
    combinations = itertools.product(*CHOICES.values())
    return [dict(zip(CHOICES, combination, strict=True)) for combination in combinations]


def is_near_default(answers):
    """Return whether at most one of the choices differs from its default."""
    changed = [name for name, answer in answers.items() if answer != DEFAULT_CHOICES[name]]
    return len(changed) <= 1


def write_user_config(folder):
    """Write a cookiecutter configuration that keeps what cookiecutter stores inside a folder."""
    path = folder / "cookiecutter_config.yaml"
    folders = {name: str(folder / name) for name in ("cookiecutters_dir", "replay_dir")}
    path.write_text(json.dumps(folders), encoding="utf-8")  # JSON is valid YAML.
    return path


def as_constant(answer):
    """Return a template that renders to an answer.

    cookiecutter renders answers that are given to it, but not answers that are typed. The tests
    mean answers as they are typed.
    """
    if "{" in answer or "\r" in answer:  # Rendering turns every line end into a line feed.
        return "{{ " + json.dumps(answer, ensure_ascii=False) + " }}"
    return answer


def break_script(script):
    """Replace the text of a script that test_promises.py asks for."""
    old, new = json.loads(os.environ["MUTANT"])
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace(old, new), encoding="utf-8")


def render_project(output_dir, config_file, answers, accept_hooks=True):
    """Render a project into a folder. Return the project's folder."""
    project_dir = cookiecutter(
        str(TEMPLATE),
        no_input=True,
        extra_context={name: as_constant(answer) for name, answer in answers.items()},
        output_dir=str(output_dir),
        config_file=str(config_file),
        accept_hooks=accept_hooks,
    )
    if "MUTANT" in os.environ:
        break_script(Path(project_dir, "train.py"))
    return Path(project_dir)


def read_files(folder):
    """Return the content of every file below a folder, by relative path."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in paths}


def run(*command, **options):
    """Run a command. Return the finished process, with its output."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        **options,
    )


def load_hook(name):
    """Return the functions and constants of a generation hook."""
    return types.SimpleNamespace(**runpy.run_path(str(TEMPLATE / "hooks" / f"{name}.py")))


def assert_ruff_clean(paths, folder, *options):
    """Assert that ruff reports nothing and would format nothing. It changes no file.

    The nearest pyproject.toml has the settings, unless the options name another.
    """
    for command in (["check", "--quiet"], ["format", "--diff", "--quiet"]):
        arguments = [*command, "--no-cache", *options, *map(str, paths)]
        finished = run(sys.executable, "-m", "ruff", *arguments, cwd=folder)
        assert finished.returncode == 0, finished.stdout + finished.stderr
