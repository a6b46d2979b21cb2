"""What the tests of the template share: rendering a project, and the questions to vary.

A test that takes `answers` runs once for every combination of the choices in cookiecutter.json, so
that a choice added there is tested without a new test.
"""

import itertools
import json
import os
import sys
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).resolve().parents[1]


def read_questions():
    """Return the questions of cookiecutter.json: a list of choices, or a default text, by name."""
    context = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
    return {name: value for name, value in context.items() if not name.startswith("_")}


def combine_choices():
    """Return every combination of the choices, as answers to render a project with."""
    choices = {name: value for name, value in read_questions().items() if isinstance(value, list)}
    return [
        dict(zip(choices, combination, strict=True))
        for combination in itertools.product(*choices.values())
    ]


def pytest_generate_tests(metafunc):
    """Run a test that takes `answers` or `question` for each of them."""
    if "answers" in metafunc.fixturenames:
        combinations = combine_choices()
        ids = ["-".join(answers.values()) or "defaults" for answers in combinations]
        metafunc.parametrize("answers", combinations, ids=ids)
    if "question" in metafunc.fixturenames:
        metafunc.parametrize("question", read_questions())


def write_user_config(folder):
    """Write a cookiecutter configuration that keeps what cookiecutter stores inside a folder."""
    path = folder / "cookiecutter_config.yaml"
    folders = {name: str(folder / name) for name in ("cookiecutters_dir", "replay_dir")}
    path.write_text(json.dumps(folders), encoding="utf-8")  # JSON is YAML.
    return path


def as_constant(answer):
    """Return an answer as a template of itself: cookiecutter renders the answers that it is given.

    At the prompt, where people type, it does not; the tests mean their answers as typed there.
    """
    if "{" in answer or "\r" in answer:  # Rendering turns every line end into a line feed.
        return "{{ " + json.dumps(answer, ensure_ascii=False) + " }}"
    return answer


@pytest.fixture(scope="session")
def render(tmp_path_factory):
    """Return a function that renders a project and returns its folder.

    Its arguments are the folder to render into and the answers, by question; those left out are
    the defaults.
    """
    config_file = write_user_config(tmp_path_factory.mktemp("cookiecutter"))

    def render_project(output_dir, *, accept_hooks=True, **answers):
        project_dir = cookiecutter(
            str(TEMPLATE),
            no_input=True,
            extra_context={name: as_constant(answer) for name, answer in answers.items()},
            output_dir=str(output_dir),
            config_file=str(config_file),
            accept_hooks=accept_hooks,
        )
        return Path(project_dir)

    return render_project


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
        # Rich, which asks the questions, would break them into lines and colour them.
        "COLUMNS": "500",
        "NO_COLOR": "1",
    }
