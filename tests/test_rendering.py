"""What every combination of answers renders to, the questions, and the generation hooks.

Nothing here imports TensorFlow or trains: these tests take seconds.
"""

import ast
import json
import keyword
import random
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from cookiecutter.exceptions import FailedHookException, OutputDirExistsException
from cookiecutter.utils import create_env_with_context
from rendering import (
    CONTEXT,
    FILES,
    FILES_OF,
    PRODUCT,
    QUESTIONS,
    SIZES,
    TASKS,
    TEMPLATE,
    assert_ruff_clean,
    load_hook,
    read_files,
    run,
)
from variants import find_definition, list_hooks

# A comment block with the metadata of a script, by the regular expression of PEP 723.
SCRIPT_METADATA = re.compile(
    r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
)

# --------------------------------------------------------------------------------------------------
# Parts of the template
# --------------------------------------------------------------------------------------------------

PARTS = TEMPLATE / "templates"
INCLUDING = [*PARTS.rglob("*"), *PRODUCT.rglob("*")]
FOLDERS_OF_PARTS = [
    *("essential", "complete", "parameter_server"),
    *(f"readme/{x}" for x in ("essential", "complete", "parameter_server", "synchronous")),
    *(f"tasks/{x}" for x in TASKS),
]


def find_included_names():
    """Return the names of parts in all include and extends statements."""
    names = set()
    for path in INCLUDING:
        if path.is_file():
            statements = re.findall(r"# {%-? *(?:include|extends).*", path.read_text("utf-8"))
            names.update(re.findall(r'"([\w/]+\.\w+)"', "\n".join(statements)))
    return names


def test_each_part_is_included():
    parts = {path.relative_to(PARTS).as_posix() for path in PARTS.rglob("*") if path.is_file()}
    names = find_included_names()
    included = set()
    for name in names:
        if name.startswith("/"):  # a size or a task
            included |= {folder + name for folder in FOLDERS_OF_PARTS}
        else:
            included.add(name)
    assert parts <= included
    assert {name for name in names if not name.startswith("/")} <= parts


def name_path(path):
    return path.relative_to(TEMPLATE).as_posix()


@pytest.mark.parametrize(
    "path",
    [*TEMPLATE.glob("hooks/*.py"), *PARTS.rglob("*.py"), *PRODUCT.rglob("*.py")],
    ids=name_path,
)
def test_unrendered_python_parses_and_is_clean(path):
    ast.parse(path.read_bytes(), filename=str(path))
    # Sorting the imports needs the folder in which `import train` finds its module.
    folder = PRODUCT if path.is_relative_to(PRODUCT) else TEMPLATE
    assert_ruff_clean([path], folder, "--config", str(TEMPLATE / "pyproject.toml"))


# --------------------------------------------------------------------------------------------------
# Every combination of answers
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def render_sizes(render, tmp_path):
    """Return a function that returns the texts of the essential and the complete script."""

    def render_texts(task):
        texts = []
        for size in SIZES:
            project = render(tmp_path, task=task, script=size, project_slug=size)
            texts.append((project / "train.py").read_text(encoding="utf-8"))
        return texts

    return render_texts


@pytest.mark.parametrize("task", TASKS)
def test_sizes_have_the_same_hooks(task, render_sizes):
    essential, complete = render_sizes(task)
    assert list_hooks(essential) == list_hooks(complete)
    for name in list_hooks(essential):
        node, other = find_definition(essential, name), find_definition(complete, name)
        assert ast.dump(node) == ast.dump(other), name


def list_definitions(text):
    """Return the names of a script's functions and classes, in order."""
    return [node.name for node in ast.parse(text).body if hasattr(node, "name")]


@pytest.mark.parametrize("task", TASKS)
def test_sizes_have_the_same_order(task, render_sizes):
    essential, complete = map(list_definitions, render_sizes(task))
    shared = set(essential) & set(complete)
    assert len(shared) > 30
    assert [x for x in essential if x in shared] == [x for x in complete if x in shared]


def test_product_has_exactly_these_files(answers, render, tmp_path):
    project_dir = render(tmp_path, project_slug="some_slug", **answers)
    assert project_dir == tmp_path / "some_slug"
    assert set(read_files(project_dir)) == FILES | FILES_OF[answers["cluster"]]
    assert list(tmp_path.iterdir()) == [project_dir]


def test_rendered_python_parses_and_is_clean(answers, render, tmp_path):
    project_dir = render(tmp_path, **answers)
    for path in project_dir.rglob("*.py"):
        ast.parse(path.read_bytes(), filename=str(path))
    assert_ruff_clean(["."], project_dir, "--config", "pyproject.toml")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", TASKS)
def test_types_are_clean(task, size, render, tmp_path, tmp_path_factory):
    project = render(tmp_path, task=task, script=size)
    cache = tmp_path_factory.getbasetemp() / "mypy"  # has the standard library, for all projects
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache)]
    finished = run(*command, cwd=project)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    # A wrong type of a global is found.
    script = project / "train.py"
    text = script.read_text(encoding="utf-8") + '\nGLOBAL_BATCH_SIZE = "64"\n'
    script.write_text(text, encoding="utf-8")
    finished = run(*command, cwd=project)
    assert (finished.returncode, finished.stdout.count("error:")) == (1, 1), finished.stdout
    assert 'variable has type "int"' in finished.stdout


VARIANTS = [
    ("essential", "synchronous"),
    ("complete", "synchronous"),
    ("essential", "parameter_server"),
]


@pytest.mark.long
@pytest.mark.parametrize(("size", "distribution"), VARIANTS)
def test_editors_show_no_errors(size, distribution, render, tmp_path):
    """pyright finds nothing, as in VS Code. It follows TensorFlow's and Keras's types."""
    answers = {"task": "text_classification", "script": size, "distribution": distribution}
    project = render(tmp_path, **answers)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    finished = run(*command, cwd=project)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    # An undefined name is found.
    script = project / "train.py"
    text = script.read_text(encoding="utf-8") + "\nprint(undefined_name)\n"
    script.write_text(text, encoding="utf-8")
    finished = run(*command, cwd=project)
    assert (finished.returncode, finished.stdout.count("error:")) == (1, 1), finished.stdout


RESIDUES = ["{{", "# {%", "# {#", *(f"cookiecutter.{name}" for name in CONTEXT)]


def test_no_template_code_is_left(answers, render, tmp_path):
    for path, text in read_files(render(tmp_path, **answers)).items():
        for residue in RESIDUES:
            assert residue not in text, f"{path} contains {residue}"
        # Only the README and the template's name tell where the project comes from.
        if path != "README.md":
            assert "cookiecutter" not in text.replace("cookiecutter-tf-distribute", ""), path


def test_hooks_change_no_file(answers, render, tmp_path):
    with_hooks = render(tmp_path / "with", **answers)
    without_hooks = render(tmp_path / "without", accept_hooks=False, **answers)
    assert read_files(with_hooks) == read_files(without_hooks)


@pytest.mark.parametrize("cluster", ["slurm", "kubernetes"])
def test_cluster_changes_no_code(cluster, render, tmp_path):
    plain = read_files(render(tmp_path / "none", cluster="none"))
    files = read_files(render(tmp_path / cluster, cluster=cluster))
    record = files.pop("pyproject.toml").replace(f'"{cluster}"', '"none"')
    assert record == plain["pyproject.toml"]
    changed = {path for path, text in files.items() if text != plain.get(path)}
    expected = {*FILES_OF[cluster], "README.md"}
    if cluster == "slurm":
        expected.add(".gitignore")  # for the logs of tasks
    assert changed == expected


def list_other_answers(question, answer):
    """Return the other answers to a question."""
    if isinstance(QUESTIONS[question], list):
        return [choice for choice in QUESTIONS[question] if choice != answer]
    return ["other_text"]


def remove_record(files, answers):
    """Remove the record of the answers from a project's files, and commands that repeat them."""
    pattern = r"\[tool\.cookiecutter-.*?\n\n"
    [record] = re.findall(pattern, files["pyproject.toml"], re.DOTALL)
    files["pyproject.toml"] = files["pyproject.toml"].replace(record, "")
    for name, answer in answers.items():
        files["README.md"] = files["README.md"].replace(f"{name}={answer}", "")
    return files


def test_each_answer_changes_the_product(question, answers, render, tmp_path):
    # All texts are given, so that no other answer follows from the one that changes.
    texts = {name: "some_text" for name, value in QUESTIONS.items() if isinstance(value, str)}
    given = texts | answers

    def render_product(answer):
        changed = {question: answer}
        project = render(tmp_path / answer, accept_hooks=False, **(given | changed))
        return remove_record(read_files(project), changed)

    product = render_product(given[question])
    # With parameter servers, the script has one size.
    is_ignored = question == "script" and given["distribution"] == "parameter_server"
    for other in list_other_answers(question, given[question]):
        assert (render_product(other) == product) == is_ignored


# --------------------------------------------------------------------------------------------------
# The questions
# --------------------------------------------------------------------------------------------------


def read_question_texts(question):
    """Return the prompt of a question, then the labels of its choices."""
    prompt = CONTEXT["__prompts__"][question]
    value = QUESTIONS[question]
    if isinstance(value, str):
        return [prompt]
    return [prompt["__prompt__"], *(prompt[choice] for choice in value)]


def test_prompts_ask_exactly_the_questions(cookiecutter_environment, tmp_path):
    finished = run(
        *(sys.executable, "-m", "cookiecutter", str(TEMPLATE)),
        # One more question would find no answer, and fail.
        input="\n" * len(QUESTIONS),
        env=cookiecutter_environment,
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr
    for number, question in enumerate(QUESTIONS, start=1):
        prompt, *labels = read_question_texts(question)
        assert f"[{number}/{len(QUESTIONS)}] {prompt}" in finished.stdout
        for position, label in enumerate(labels, start=1):
            assert f"{position} - {label}" in finished.stdout


def test_prompts_have_no_markup(question):
    # Rich, which shows the texts, takes text in square brackets for markup.
    for text in read_question_texts(question):
        assert text.strip()
        assert "[" not in text


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Détection d'images", "detection_d_images"),
        ("???", "tf_distribute"),
        ("x " * 29 + "x", "x_" * 24 + "x"),
    ],
)
def test_slug_follows_from_the_name(name, slug, render, tmp_path):
    assert render(tmp_path, project_name=name).name == slug


# --------------------------------------------------------------------------------------------------
# Names that are hostile but allowed
# --------------------------------------------------------------------------------------------------

ALLOWED_NAMES = [
    """Bob's "best" model""",
    "ends in a backslash \\",
    'ends in a quote "',
    r"C:\new\table \" \u0041 \N{DASH}",
    '"""',
    "'''",
    "{{ 7*7 }}",
    "{# {% {{ unbalanced",
    "# {% if x %} and # {# x",
    '"; import os; os.system("touch pwned") #',
    "'''; open('pwned', 'w') #",
    "$(touch pwned) `touch pwned` ; touch pwned",
    "%s %(x)s {0} {x!r} ${HOME} %PATH%",
    "<b>&lt;</b> [bold]x[/bold] *x* _x_",
    "日本語 ñ é \u0301 🚀 👩‍🔬",
    "日本語 " * 8 + "画像",
    "x" * 60,
    "=",
    "---",
    # What a comment can mean to Python, to uv, and to ruff.
    "-*- coding: latin-1 -*-",
    "!/bin/sh",
    "///",
    "/// script",
    "noqa",
    "ruff: noqa",
    "fmt: off",
    "type: ignore",
]


# A name that occurs nowhere else, so that it can be replaced by another.
PLAIN_NAME = "Plain Name"


@pytest.fixture
def render_two(render, tmp_path):
    """Return a function that renders a project with a name, and one with a plain name."""

    def render_both(name):
        folders = [tmp_path / "x", tmp_path / "y"]
        return [
            render(folder, project_name=each, project_slug="some_slug")
            for folder, each in zip(folders, (name, PLAIN_NAME), strict=True)
        ]

    return render_both


@pytest.mark.parametrize("name", ALLOWED_NAMES)
def test_allowed_name_is_text_in_every_file(name, render_two, tmp_path):
    texts, plain_texts = map(read_files, render_two(name))
    assert PLAIN_NAME in plain_texts["train.py"]
    assert PLAIN_NAME in plain_texts["README.md"]
    assert set(texts) == set(plain_texts)
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')  # in a docstring
    for path in set(texts) - {"pyproject.toml"}:  # There it is quoted: see the next tests.
        shown = escaped if path == "train.py" else name
        assert texts[path] == plain_texts[path].replace(PLAIN_NAME, shown)
    [metadata] = SCRIPT_METADATA.finditer(texts["train.py"])
    [plain_metadata] = SCRIPT_METADATA.finditer(plain_texts["train.py"])
    assert metadata.group() == plain_metadata.group()
    assert list(tmp_path.rglob("pwned")) == []


@pytest.mark.parametrize("name", ALLOWED_NAMES)
def test_allowed_name_changes_no_code(name, render_two):
    project, plain_project = render_two(name)
    for path in project.rglob("*.py"):
        # As bytes, because a comment near the top can name another encoding.
        tree = ast.parse(path.read_bytes())
        plain_tree = ast.parse((plain_project / path.relative_to(project)).read_bytes())
        if path == project / "train.py":
            docstring = tree.body.pop(0).value.value
            plain_docstring = plain_tree.body.pop(0).value.value
            assert docstring == plain_docstring.replace(PLAIN_NAME, name)
        assert ast.dump(tree) == ast.dump(plain_tree)


@pytest.mark.parametrize("name", ALLOWED_NAMES)
def test_allowed_name_is_the_description(name, render, tmp_path):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    project_dir = render(tmp_path, project_name=name, project_slug="some_slug")
    project = tomllib.loads((project_dir / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["description"] == name
    assert project["name"] == "some_slug"


def test_allowed_names_leave_the_project_clean(render, tmp_path):
    for number, name in enumerate(ALLOWED_NAMES):
        render(tmp_path / str(number), project_name=name, project_slug="some_slug")
    assert_ruff_clean(["."], tmp_path)


def test_typed_name_is_no_template(cookiecutter_environment, tmp_path):
    finished = run(
        *(sys.executable, "-m", "cookiecutter", str(TEMPLATE), "project_slug=some_slug"),
        input="{{ 7*7 }}\n" + "\n" * len(QUESTIONS),
        env=cookiecutter_environment,
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr
    assert "{{ 7*7 }}" in (tmp_path / "some_slug" / "README.md").read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------------------
# Rejected answers
# --------------------------------------------------------------------------------------------------

SHAPE = "must contain only the letters a to z"
SLUG_LENGTH = "must have at most 50 characters"
KEYWORD = "must not be a Python keyword"
STANDARD_LIBRARY = "must not be a module of Python's standard library"
IN_USE = "must not be a name that this project imports"
DEVICE = "must not be a device name of Windows"
BLANK = "must not be blank"
ENDS = "must not start or end with white space"
ONE_LINE = "must be one line without control characters"
NAME_WIDTH = "must take at most 60 columns"
NAME_LENGTH = "must have at most 240 characters"

REJECTED_SLUGS = [
    ("class", [KEYWORD]),
    ("match", [KEYWORD]),
    ("None", [SHAPE, KEYWORD]),
    ("json", [STANDARD_LIBRARY]),
    ("tensorflow", [IN_USE]),
    ("train", [IN_USE]),
    ("con", [DEVICE]),
    ("com7", [DEVICE]),
    ("NUL", [SHAPE]),
    ("My Project", [SHAPE]),
    ("my-project", [SHAPE]),
    ("1st", [SHAPE]),
    ("_x", [SHAPE]),
    ("x_", [SHAPE]),
    ("é", [SHAPE]),
    ("日本", [SHAPE]),
    (" ", [SHAPE]),
    ("x" * 51, [SLUG_LENGTH]),
    ("X" * 51, [SHAPE, SLUG_LENGTH]),
    ("""quotes'"'''""", [SHAPE]),
    ("back\\slash\\", [SHAPE]),
    ("two\nlines", [SHAPE]),
    ("line end\r\n", [SHAPE]),
    ("{{ 7*7 }}", [SHAPE]),
    ('"; import os; os.system("touch pwned") #', [SHAPE]),
    ("$(touch pwned)`touch pwned`; touch pwned", [SHAPE]),
    ("--help", [SHAPE]),
    ("../x", [SHAPE]),
]

REJECTED_NAMES = [
    ("", [BLANK]),
    (" \t", [BLANK, ONE_LINE]),
    ("\u3000", [BLANK]),
    (" x", [ENDS]),
    ("x\u00a0", [ENDS]),
    ("x\n", [ENDS, ONE_LINE]),
    ("two\nlines", [ONE_LINE]),
    ("a\rb", [ONE_LINE]),
    ("a\x00b", [ONE_LINE]),
    ("a\x0cb", [ONE_LINE]),
    ("a\x1b[31mb", [ONE_LINE]),
    ("a\x85b", [ONE_LINE]),
    ("a\u2028b", [ONE_LINE]),
    ("a\u2029b", [ONE_LINE]),
    ("a\u202eb", [ONE_LINE]),
    ("a\udc80b", [ONE_LINE]),
    ("x" * 61, [NAME_WIDTH]),
    ("e" + "\u0301" * 240, [NAME_LENGTH]),
    ("日" * 31, [NAME_WIDTH]),
    (
        " {{ 7*7 }}\n\"'; $(touch pwned) `touch pwned` #\\" + "日" * 300,
        [ENDS, ONE_LINE, NAME_WIDTH, NAME_LENGTH],
    ),
]


def read_command(message):
    """Return the command to paste and the line of marks below it."""
    lines = message.splitlines()
    [number] = [n for n, line in enumerate(lines) if line.startswith("cookiecutter ")]
    return lines[number], lines[number + 1]


# The default answers to the questions with choices.
DEFAULT_CHOICES = {name: value[0] for name, value in QUESTIONS.items() if isinstance(value, list)}


def read_answers(command):
    """Return the answers that a command gives, by question."""
    words = shlex.split(command)[-len(QUESTIONS) :]
    return dict(word.split("=", 1) for word in words)


# How cookiecutter ends. It creates the folder first, for which Windows rejects some names.
REJECTIONS = (FailedHookException, OSError) if sys.platform == "win32" else FailedHookException


@pytest.fixture
def reject(render, tmp_path, capfd):
    """Return a function that gives answers that are rejected, and returns the error message."""

    def reject_answers(**answers):
        output_dir = tmp_path / "output"
        output_dir.mkdir()
        with pytest.raises(REJECTIONS) as raised:
            render(output_dir, **answers)
        if raised.errisinstance(OSError):
            pytest.skip("Windows rejects the folder's name before cookiecutter runs the hook")
        assert list(tmp_path.iterdir()) == [output_dir]
        assert list(output_dir.iterdir()) == []
        captured = capfd.readouterr()
        assert captured.out == ""
        return captured.err

    return reject_answers


@pytest.fixture
def paste(cookiecutter_environment, tmp_path):
    """Return a function that runs a command in a shell and returns the answers that took effect."""

    def paste_command(command):
        finished = run("sh", "-c", command, env=cookiecutter_environment, cwd=tmp_path)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert list(tmp_path.rglob("pwned")) == []
        [replay_file] = Path(cookiecutter_environment["HOME"]).glob("replay_dir/*.json")
        context = json.loads(replay_file.read_text(encoding="utf-8"))["cookiecutter"]
        [project_dir] = (tmp_path / "output").iterdir()
        assert project_dir.name == context["project_slug"]
        return {name: context[name] for name in context if name in QUESTIONS}

    return paste_command


def assert_rules_listed(message, question, answer, rules):
    """Assert that a message has a question's answer and exactly these broken rules."""
    _, _, section = message.partition(f"  {question} is ")
    shown, *lines = section.split("\n\n")[0].splitlines()
    # The first characters are enough: a long answer is shown in part.
    assert shown.startswith(repr(answer)[:80])
    listed = [line for line in lines if line.startswith("    rule:")]
    assert len(listed) == len(rules)
    for rule in rules:
        assert any(rule in line for line in listed)
    assert lines[-1].startswith("    accepted:  ")


@pytest.mark.parametrize(("slug", "rules"), REJECTED_SLUGS)
def test_invalid_slug_is_rejected(slug, rules, reject):
    message = reject(project_name="It's mine", project_slug=slug)
    assert "1 answer is invalid" in message
    assert_rules_listed(message, "project_slug", slug, rules)
    answers = read_answers(read_command(message)[0])
    assert answers == DEFAULT_CHOICES | {
        "project_name": "It's mine",
        "project_slug": answers["project_slug"],
    }
    assert load_hook("pre_gen_project").broken_slug_rules(answers["project_slug"]) == []


@pytest.mark.parametrize(("name", "rules"), REJECTED_NAMES)
def test_invalid_name_is_rejected(name, rules, reject):
    message = reject(project_name=name, project_slug="some_slug")
    assert "1 answer is invalid" in message
    assert_rules_listed(message, "project_name", name, rules)
    answers = read_answers(read_command(message)[0])
    assert set(answers) == set(QUESTIONS)
    assert answers["project_slug"] == "some_slug"


HOSTILE_TO_SHELLS = """'"; $(touch pwned) `touch pwned` & touch pwned # {{ 7*7 }} 模 \\"""


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        (HOSTILE_TO_SHELLS, HOSTILE_TO_SHELLS),
        (HOSTILE_TO_SHELLS, '"; import os; os.system("touch pwned") #'),
        (HOSTILE_TO_SHELLS, "two\nlines"),
        ("TF Distribute", "tensorflow"),
        ("TF Distribute", "--help"),
        ("TF Distribute", "../x"),
        ("\n" + HOSTILE_TO_SHELLS, "class"),
        (HOSTILE_TO_SHELLS * 9, "json"),
        ("", "pytest"),
        ("a\udc80\x1b\u2028b", "some slug"),
    ],
)
def test_pasted_command_works(name, slug, reject, paste):
    answers = paste(read_command(reject(project_name=name, project_slug=slug))[0])
    hook = load_hook("pre_gen_project")
    assert answers == DEFAULT_CHOICES | {
        "project_name": hook.accepted_name(name),
        "project_slug": hook.accepted_slug(slug),
    }


def test_absolute_path_as_slug_is_rejected(reject, paste, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    message = reject(project_slug=str(elsewhere))
    assert_rules_listed(message, "project_slug", str(elsewhere), [SHAPE, SLUG_LENGTH])
    paste(read_command(message)[0])
    assert not elsewhere.exists()


def test_corrected_command_keeps_the_name_of_a_rejected_derived_slug(reject, paste):
    message = reject(project_name="TensorFlow")
    assert_rules_listed(message, "project_slug", "tensorflow", [IN_USE])
    assert paste(read_command(message)[0]) == DEFAULT_CHOICES | {
        "project_name": "TensorFlow",
        "project_slug": "tensorflow_project",
    }


@pytest.mark.parametrize(
    ("slug", "error"),
    [("", OutputDirExistsException), (".", OutputDirExistsException), ("x" * 300, OSError)],
)
def test_slug_without_a_new_folder_is_rejected_by_cookiecutter(slug, error, render, tmp_path):
    # cookiecutter creates the folder before it runs the hook.
    with pytest.raises(error):
        render(tmp_path, project_slug=slug)
    assert list(tmp_path.iterdir()) == []


def test_all_invalid_answers_are_reported_and_marked(reject, paste):
    message = reject(project_name=" two\nlines", project_slug="Class")
    assert "2 answers are invalid" in message
    assert_rules_listed(message, "project_name", " two\nlines", [ENDS, ONE_LINE])
    assert_rules_listed(message, "project_slug", "Class", [SHAPE])
    command, marks = read_command(message)
    assert marked(command, marks) == ["'project_name=two lines'", "project_slug=class_project"]
    accepted = {"project_name": "two lines", "project_slug": "class_project"}
    assert paste(command) == DEFAULT_CHOICES | accepted


def test_only_corrections_are_marked(reject):
    command, marks = read_command(reject(project_name="it's", project_slug="json"))
    assert marked(command, marks) == ["project_slug=json_project"]


def marked(command, marks):
    """Return the parts of a command that are marked on the line below."""
    return [command[mark.start() : mark.end()] for mark in re.finditer(r"\^+", marks)]


def write_empty_template(folder):
    """Write a template with the questions and hooks, whose projects have no files."""
    shutil.copytree(TEMPLATE / "hooks", folder / "hooks")
    shutil.copy(TEMPLATE / "cookiecutter.json", folder)
    (folder / PRODUCT.name).mkdir()


def test_pasted_command_quotes_the_path_of_the_template(cookiecutter_environment, tmp_path):
    template = tmp_path / """it's a "template" $(touch pwned)"""
    write_empty_template(template)
    cookiecutter = [sys.executable, "-m", "cookiecutter", str(template), "--no-input"]
    options = {"cwd": tmp_path, "env": cookiecutter_environment}

    rejected = run(*cookiecutter, "--output-dir", "my output", "project_slug=class", **options)
    assert rejected.returncode == 1
    assert "No project was created" in rejected.stderr
    assert list((tmp_path / "my output").iterdir()) == []

    pasted = run("sh", "-c", read_command(rejected.stderr)[0], **options)
    assert pasted.returncode == 0, pasted.stderr
    assert (tmp_path / "my output" / "class_project").is_dir()
    assert list(tmp_path.rglob("pwned")) == []


# --------------------------------------------------------------------------------------------------
# The hooks, function by function
# --------------------------------------------------------------------------------------------------

# Special characters and template delimiters.
HOSTILE_PIECES = [
    *"'\"`\\/;# <>&(){}$ru0aé日🚀\n\r\t\x00\x85\u2028\udc80",
    *("{{", "}}", "# {%", "%}", "# {#", "#}"),
]


def random_texts(count):
    """Return texts of characters that are special in Python, JSON, Jinja, shells or terminals."""
    generator = random.Random(0)
    return [
        "".join(generator.choices(HOSTILE_PIECES, k=generator.randrange(9))) for _ in range(count)
    ]


def render_text(text, answers):
    """Render a text as cookiecutter does."""
    context = {"cookiecutter": {"_jinja2_env_vars": CONTEXT["_jinja2_env_vars"], **answers}}
    return create_env_with_context(context).from_string(text).render(context)


@pytest.mark.parametrize("hook", ["pre_gen_project", "post_gen_project"])
def test_hooks_read_any_answer_as_data(hook):
    source = (TEMPLATE / "hooks" / f"{hook}.py").read_text(encoding="utf-8")
    for text in random_texts(100):
        answers = {"project_name": text, "project_slug": text[::-1], "_template": text + text}
        tree = ast.parse(render_text(source, answers))
        [answers_as_json] = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and node.targets[0].id == "ANSWERS"
        ]
        read = dict(json.loads(answers_as_json))
        assert {name: read[name] for name in answers} == answers
        assert list(read)[1:] == list(answers)


def test_suggested_answers_are_valid():
    hook = load_hook("pre_gen_project")
    reserved = [*sys.stdlib_module_names, *keyword.kwlist, *hook.NAMES_IN_USE]
    for text in [*reserved, *random_texts(1000)]:
        for answer in (text, text.upper(), text * 20):
            assert hook.broken_name_rules(hook.accepted_name(answer)) == []
            assert hook.broken_slug_rules(hook.accepted_slug(answer)) == []


def test_every_reserved_slug_is_rejected():
    hook = load_hook("pre_gen_project")
    keywords = [*keyword.kwlist, *keyword.softkwlist]
    for slug in [*sys.stdlib_module_names, *keywords, *hook.NAMES_IN_USE]:
        assert hook.broken_slug_rules(slug) != []


def test_dependencies_of_the_project_are_reserved(render, tmp_path):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    text = (render(tmp_path) / "pyproject.toml").read_text(encoding="utf-8")
    names = [
        re.match(r"[\w.-]+", requirement).group().lower().replace("-", "_")
        for requirement in tomllib.loads(text)["project"]["dependencies"]
    ]
    assert set(names) <= load_hook("pre_gen_project").NAMES_IN_USE


def test_argument_renders_to_the_answer():
    hook = load_hook("pre_gen_project")
    for name in [*ALLOWED_NAMES, *map(hook.accepted_name, random_texts(300))]:
        argument = hook.as_argument("project_name", name)
        assert render_text(argument.removeprefix("project_name="), {}) == name


def test_hook_defaults_equal_those_of_cookiecutter_json(render, tmp_path):
    hook = load_hook("pre_gen_project")
    assert QUESTIONS["project_name"] == hook.DEFAULT_NAME
    assert render(tmp_path).name == hook.DEFAULT_SLUG


def test_corrected_command_has_the_checkout_and_every_answer():
    answers = {
        "project_name": "x",
        "project_slug": "Y",
        "task": "text_classification",
        "script": "essential",
        "distribution": "synchronous",
        "cluster": "none",
        "_template": "gh:owner/template",
        "_output_dir": "/some folder",
        "_checkout": "v1.0",
    }
    hook = load_hook("pre_gen_project")
    command, _ = hook.corrected_command(answers, hook.find_faults(answers))
    assert shlex.split(command) == [
        *("cookiecutter", "gh:owner/template", "--no-input", "--output-dir", "/some folder"),
        *("--checkout", "v1.0", "project_name=x", "project_slug=y", "task=text_classification"),
        *("script=essential", "distribution=synchronous", "cluster=none"),
    ]


def test_closing_message_shows_answers_and_commands(render, tmp_path, capfd):
    project_dir = render(tmp_path / "my output", project_name="it's {{ x }} 日本")
    message = capfd.readouterr().out
    assert "  project_name  it's {{ x }} 日本\n" in message
    assert f"  project_slug  {project_dir.name}\n" in message
    commands = f"  cd {shlex.quote(str(project_dir))}\n  uv run train.py\n  uv run pytest\n"
    assert commands in message
    assert "misspelled" in message


def test_closing_message_has_the_commit_of_the_template(cookiecutter_environment, tmp_path):
    clone = tmp_path / "clone"
    write_empty_template(clone)
    git = ("git", "-c", "user.name=x", "-c", "user.email=x")
    for arguments in ("init -q", "add .", "commit -q -m x"):
        assert run(*git, *arguments.split(), cwd=clone).returncode == 0
    commit = run("git", "rev-parse", "HEAD", cwd=clone).stdout.strip()
    for path, folder in ((str(clone), tmp_path), (".", clone), ("clone", tmp_path)):
        command = (sys.executable, "-m", "cookiecutter", path, "--no-input", "-f")
        environment = cookiecutter_environment | {"PWD": str(folder)}
        finished = run(*command, env=environment, cwd=folder)
        assert f"update the project later: {commit}\n" in finished.stdout, path


def test_closing_message_needs_no_clone(tmp_path):
    """A folder inside another repository is no clone."""
    assert run("git", "init", "-q", cwd=tmp_path).returncode == 0
    write_empty_template(tmp_path / "template")
    hook = load_hook("post_gen_project")
    assert hook.read_commit(str(tmp_path / "template")) == ""
    answers = {"_output_dir": ".", "project_slug": "x"}
    assert "commit" not in hook.describe(answers)


def test_closing_message_works_on_an_ascii_terminal(cookiecutter_environment, tmp_path):
    finished = run(
        *(sys.executable, "-m", "cookiecutter", str(TEMPLATE), "--no-input"),
        "project_name=日本",
        env=cookiecutter_environment | {"PYTHONIOENCODING": "ascii"},
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr
    assert r"\u65e5\u672c" in finished.stdout
