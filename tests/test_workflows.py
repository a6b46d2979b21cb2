"""The workflows of GitHub and the hooks of pre-commit.

Neither GitHub's runners nor its repositories are reachable here, so the files are checked against
GitHub's schema, and their commands against the README.
"""

import re
import shlex
import sys

import pytest
import yaml
from rendering import TEMPLATE, run

WORKFLOWS = sorted(TEMPLATE.glob(".github/workflows/*.yml"))
EACH_WORKFLOW = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
# A major version: Dependabot or a maintainer changes it, and no workflow follows a branch.
PINNED = r"actions/[\w-]+@v\d+"
RENDERING_FILES = {"tests/test_rendering.py", "tests/test_golden.py", "tests/test_questions.py"}


def read_yaml(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def list_steps(path):
    """Return all steps of a workflow."""
    jobs = read_yaml(path)["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def list_commands(path):
    """Return the commands of a workflow, without those that install Debian's packages."""
    commands = [step["run"] for step in list_steps(path) if "run" in step]
    return [command for command in commands if not command.startswith("sudo apt-get")]


def read_readme_lines():
    """Return the lines of the README's blocks."""
    readme = (TEMPLATE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?m)^```(\w*)\n((?:.*\n)*?)```$", readme)
    lines = []
    for language, text in blocks:
        if not language:
            lines += text.splitlines()
    return lines


def test_there_are_workflows():
    assert [path.name for path in WORKFLOWS] == ["nightly.yml", "test.yml"]


@EACH_WORKFLOW
def test_workflow_is_valid(path):
    command = [sys.executable, "-m", "check_jsonschema"]
    finished = run(*command, "--builtin-schema", "vendor.github-workflows", str(path))
    assert finished.returncode == 0, finished.stdout + finished.stderr


@EACH_WORKFLOW
def test_workflow_is_limited(path):
    workflow = read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "group" in workflow["concurrency"]
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 240
        assert "permissions" not in job
    for step in list_steps(path):
        if "uses" in step:
            assert re.fullmatch(PINNED, step["uses"])


@EACH_WORKFLOW
def test_workflow_says_that_it_has_not_run(path):
    first_line = path.read_text(encoding="utf-8").splitlines()[0]
    assert "has not run on GitHub yet" in first_line


def find_other_command():
    """Return the words of the one command that the README doesn't have."""
    lines = read_readme_lines()
    others = []
    for path in WORKFLOWS:
        for command in list_commands(path):
            if command not in lines:
                others.append(command)
    [command] = others
    return shlex.split(command)


def test_other_command_is_that_of_the_short_tests():
    words = find_other_command()
    files = {word for word in words if word.startswith("tests/")}
    assert files == RENDERING_FILES
    group = ["--only-group", "rendering"]
    [short_tests] = [line for line in read_readme_lines() if line.endswith('"not long"')]
    start, *others = short_tests.split(" run ")
    expected = [start, "run", *group, *shlex.split(" ".join(others))]
    assert words[: len(expected)] == expected


def test_workflows_run_the_commands_of_the_readme():
    commands = {command for path in WORKFLOWS for command in list_commands(path)}
    lines = read_readme_lines()
    tests = {line for line in lines if "--dist worksteal" in line}
    first = {line for line in lines if line.startswith((".uv/bin/uv tool", "python3 -m pip"))}
    assert len(tests) == len(first) == 2
    assert tests | first <= commands


def test_hooks_of_pre_commit_are_those_of_the_tests():
    config = read_yaml(TEMPLATE / ".pre-commit-config.yaml")
    [repository] = config["repos"]
    assert repository["repo"] == "local"  # installed from PyPI, not from GitHub
    for hook in repository["hooks"]:
        assert hook["language"] == "python"
        assert hook["entry"].startswith("ruff ")
        assert "--no-cache" in hook["entry"]
        # The hook's own command, but that it changes no file.
        command = [*shlex.split(hook["entry"]), "."]
        if "format" in command:
            command.insert(2, "--check")
        finished = run(sys.executable, "-m", *command, cwd=TEMPLATE)
        assert finished.returncode == 0, finished.stdout + finished.stderr
