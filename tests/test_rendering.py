"""The questions, the hooks, and what every combination of answers renders to.

Nothing here imports TensorFlow or trains: these tests take seconds.
"""

import ast
import json
import keyword
import random
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from cookiecutter.exceptions import FailedHookException, OutputDirExistsException
from cookiecutter.utils import create_env_with_context

TEMPLATE = Path(__file__).resolve().parents[1]
PRODUCT = TEMPLATE / "{{cookiecutter.project_slug}}"
CONTEXT = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
QUESTIONS = {name: value for name, value in CONTEXT.items() if not name.startswith("_")}

# Every file of the product, and those that a cluster adds.
FILES = {
    ".gitignore",
    "README.md",
    "launch/local.py",
    "pyproject.toml",
    "tests/conftest.py",
    "tests/test_train.py",
    "train.py",
}
FILES_OF = {
    "none": set(),
    "slurm": {"launch/slurm.sbatch"},
    "kubernetes": {"launch/kubernetes.yaml", "Dockerfile"},
}

# A comment block with the metadata of a script, by the regular expression of PEP 723.
SCRIPT_METADATA = re.compile(
    r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
)


def read_files(folder):
    """Return the content of every file below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def run(*command, **options):
    """Run a command and return what became of it, output included."""
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", check=False, **options
    )


def load_hook(name):
    """Return the functions and constants of a hook, as it stands in the template."""
    return types.SimpleNamespace(**runpy.run_path(str(TEMPLATE / "hooks" / f"{name}.py")))


def assert_ruff_clean(paths, folder, *options):
    """Assert that ruff finds nothing to report and nothing to format. It changes no file.

    Its settings are those of the nearest pyproject.toml, unless the options name another.
    """
    for command in (["check", "--quiet"], ["format", "--diff", "--quiet"]):
        arguments = [*command, "--no-cache", *options, *map(str, paths)]
        finished = run(sys.executable, "-m", "ruff", *arguments, cwd=folder)
        assert finished.returncode == 0, finished.stdout + finished.stderr


# --------------------------------------------------------------------------------------------------
# Every combination of answers
# --------------------------------------------------------------------------------------------------


def test_each_part_is_included_once():
    folder = TEMPLATE / "templates"
    parts = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    texts = {part: (folder / part).read_text(encoding="utf-8") for part in parts}
    texts["train.py"] = (PRODUCT / "train.py").read_text(encoding="utf-8")
    named = re.findall(
        r'"([\w/]+\.py)"', "".join(re.findall("# {%.*%}", "\n".join(texts.values())))
    )
    sizes = {part for part in parts if part.startswith(("complete/", "parameter_server/"))}
    tasks = {f"tasks/{task}.py" for task in QUESTIONS["task"]}
    assert parts == tasks | sizes | set(named) - {x for x in named if x.startswith("/")}
    for part in sizes:  # In the place of one of the same name, or by its own.
        assert part.partition("/")[2] in parts or part in named, part


def count_lines(text):
    """Return the lines of a script, all told, and those of sections 1 to 5."""
    return text.count("\n"), text[: text.index("\n# 6. ")].count("\n")


def test_script_is_read_in_one_sitting(answers, render, tmp_path):
    text = (render(tmp_path, **answers) / "train.py").read_text(encoding="utf-8")
    limits = {"essential": (750, 380), "complete": (1300, 430)}[answers["script"]]
    if answers["distribution"] == "parameter_server":  # of one size
        limits = (900, 430)
    more = 100 if answers["task"] == "text_classification" else 0
    for lines, limit in zip(count_lines(text), limits, strict=True):
        assert lines <= limit + more


def test_sizes_have_the_same_hooks(render, tmp_path):
    for task in QUESTIONS["task"]:
        texts = [
            (render(tmp_path / task, task=task, script=size, project_slug=size) / "train.py")
            for size in QUESTIONS["script"]
        ]
        texts = [path.read_text(encoding="utf-8") for path in texts]
        hooks = [text[text.index("\n# 3. ") : text.index("\n# 5. ")] for text in texts]
        assert hooks[0] == hooks[1]
        names = [[x.name for x in ast.parse(text).body if hasattr(x, "name")] for text in texts]
        shared = [[x for x in each if x in names[0] and x in names[1]] for each in names]
        assert shared[0] == shared[1], "the order"


def test_product_is_exactly_these_files(answers, render, tmp_path):
    project_dir = render(tmp_path, project_slug="some_slug", **answers)
    assert project_dir == tmp_path / "some_slug"
    assert set(read_files(project_dir)) == FILES | FILES_OF[answers["cluster"]]
    assert list(tmp_path.iterdir()) == [project_dir]


def test_rendered_python_parses_and_is_clean(answers, render, tmp_path):
    project_dir = render(tmp_path, **answers)
    for path in project_dir.rglob("*.py"):
        ast.parse(path.read_bytes(), filename=str(path))
    assert_ruff_clean(["."], project_dir, "--config", "pyproject.toml")


@pytest.mark.parametrize("size", QUESTIONS["script"])
@pytest.mark.parametrize("task", QUESTIONS["task"])
def test_types_are_clean(task, size, render, tmp_path, tmp_path_factory):
    project = render(tmp_path, task=task, script=size)
    cache = tmp_path_factory.getbasetemp() / "mypy"  # the standard library's, for all of them
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache)]
    finished = run(*command, cwd=project)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    # It does look into the hooks.
    script = project / "train.py"
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace("    return batch\n", "    return [batch]\n"), encoding="utf-8")
    finished = run(*command, cwd=project)
    assert (finished.returncode, finished.stdout.count("error:")) == (1, 1), finished.stdout
    assert 'expected "tuple' in finished.stdout


def test_no_template_residue(answers, render, tmp_path):
    for path, text in read_files(render(tmp_path, **answers)).items():
        for residue in ("{{", "# {%", "# {#", *(f"cookiecutter.{name}" for name in CONTEXT)):
            assert residue not in text, f"{path} contains {residue}"
        # The README and the template's own name may tell where the project comes from.
        if path != "README.md":
            assert "cookiecutter" not in text.replace("cookiecutter-tf-distribute", ""), path


def test_hooks_change_no_file(answers, render, tmp_path):
    with_hooks = render(tmp_path / "with", **answers)
    without_hooks = render(tmp_path / "without", accept_hooks=False, **answers)
    assert read_files(with_hooks) == read_files(without_hooks)


def test_cluster_changes_no_code(render, tmp_path):
    products = {x: read_files(render(tmp_path / x, cluster=x)) for x in QUESTIONS["cluster"]}
    for cluster in ("slurm", "kubernetes"):
        record = products[cluster].pop("pyproject.toml").replace(f'"{cluster}"', '"none"')
        assert record == products["none"]["pyproject.toml"]
        changed = {
            path for path, text in products[cluster].items() if text != products["none"].get(path)
        }
        ignored = {".gitignore"} if cluster == "slurm" else set()  # the logs of its tasks
        assert changed == {*FILES_OF[cluster], "README.md", *ignored}


def other_answers(question, answer):
    """Return the answers to flip a question to."""
    if isinstance(QUESTIONS[question], list):
        return [choice for choice in QUESTIONS[question] if choice != answer]
    return ["other_text"]


def test_flipping_an_answer_changes_the_product(question, answers, render, tmp_path):
    # All texts are given, so that no other answer follows from the one that is flipped.
    texts = {name: "some_text" for name, value in QUESTIONS.items() if isinstance(value, str)}
    given = texts | answers

    def render_product(**flipped):
        output_dir = tmp_path / "-".join(flipped.values())
        files = read_files(render(output_dir, accept_hooks=False, **(given | flipped)))
        # Not by its record of the answers, nor by the command that repeats them.
        [record] = re.findall(r"\[tool\.cookiecutter-.*?\n\n", files["pyproject.toml"], re.DOTALL)
        files["pyproject.toml"] = files["pyproject.toml"].replace(record, "")
        for name, answer in flipped.items():
            files["README.md"] = files["README.md"].replace(f"{name}={answer}", "")
        return files

    product = render_product(**{question: given[question]})
    changes = (question, given["distribution"]) != ("script", "parameter_server")  # of one size
    for other in other_answers(question, given[question]):
        assert (render_product(**{question: other}) != product) == changes


@pytest.mark.parametrize(
    "path",
    [*TEMPLATE.glob("hooks/*.py"), *TEMPLATE.glob("templates/**/*.py"), *PRODUCT.rglob("*.py")],
    ids=lambda path: path.relative_to(TEMPLATE).as_posix(),
)
def test_unrendered_python_parses_and_is_clean(path):
    ast.parse(path.read_bytes(), filename=str(path))
    # Sorting the imports needs the folder in which `import train` finds its module.
    folder = PRODUCT if path.is_relative_to(PRODUCT) else TEMPLATE
    assert_ruff_clean([path], folder, "--config", str(TEMPLATE / "pyproject.toml"))


# --------------------------------------------------------------------------------------------------
# The questions
# --------------------------------------------------------------------------------------------------


def question_texts(question):
    """Return the prompt of a question, then the labels of its choices."""
    prompt, value = CONTEXT["__prompts__"][question], QUESTIONS[question]
    if isinstance(value, str):
        return [prompt]
    return [prompt["__prompt__"], *(prompt[choice] for choice in value)]


def test_prompts_are_human_and_ask_just_the_questions(cookiecutter_environment, tmp_path):
    finished = run(
        *(sys.executable, "-m", "cookiecutter", str(TEMPLATE)),
        # One question more would find no answer, and fail.
        input="\n" * len(QUESTIONS),
        env=cookiecutter_environment,
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr
    for number, question in enumerate(QUESTIONS, start=1):
        prompt, *labels = question_texts(question)
        assert f"[{number}/{len(QUESTIONS)}] {prompt}" in finished.stdout
        for position, label in enumerate(labels, start=1):
            assert f"{position} - {label}" in finished.stdout


def test_prompts_are_free_of_markup(question):
    # Rich, which shows the texts, takes what stands in square brackets for markup.
    assert all(text.strip() and "[" not in text for text in question_texts(question))


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


# One that occurs nowhere else, so that it can be replaced by another.
PLAIN_NAME = "Plain Name"


@pytest.mark.parametrize("name", ALLOWED_NAMES)
def test_allowed_name_is_text_in_every_file(name, render, tmp_path):
    project_dir = render(tmp_path / "x", project_name=name, project_slug="some_slug")
    plain_dir = render(tmp_path / "y", project_name=PLAIN_NAME, project_slug="some_slug")
    texts, plain_texts = read_files(project_dir), read_files(plain_dir)

    assert PLAIN_NAME in plain_texts["train.py"]
    assert PLAIN_NAME in plain_texts["README.md"]
    assert set(texts) == set(plain_texts)
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')  # In a docstring.
    for path in set(texts) - {"pyproject.toml"}:  # There it is quoted: see the next test.
        shown = escaped if path == "train.py" else name
        assert texts[path] == plain_texts[path].replace(PLAIN_NAME, shown)

    for path in project_dir.rglob("*.py"):
        # As bytes, because a comment near the top can name another encoding.
        tree = ast.parse(path.read_bytes())
        plain = ast.parse((plain_dir / path.relative_to(project_dir)).read_bytes())
        if path.name == "train.py" and path.parent == project_dir:
            docstring, plain_docstring = tree.body.pop(0).value.value, plain.body.pop(0).value.value
            assert docstring == plain_docstring.replace(PLAIN_NAME, name)
        assert ast.dump(tree) == ast.dump(plain)
    [metadata] = SCRIPT_METADATA.finditer(texts["train.py"])
    [plain_metadata] = SCRIPT_METADATA.finditer(plain_texts["train.py"])
    assert metadata.group() == plain_metadata.group()
    assert list(tmp_path.rglob("pwned")) == []


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
# Answers that are refused
# --------------------------------------------------------------------------------------------------

SHAPE = "has only the letters a to z"
SLUG_LENGTH = "has at most 50 characters"
KEYWORD = "is not a keyword"
STANDARD_LIBRARY = "is not a module of Python's standard library"
IN_USE = "is not a name that the project itself imports"
DEVICE = "is not a name that Windows keeps"
BLANK = "is not blank"
ENDS = "has no white space at either end"
ONE_LINE = "is one line without control characters"
NAME_WIDTH = "takes at most 60 columns"
NAME_LENGTH = "has at most 240 characters"

REFUSED_SLUGS = [
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

REFUSED_NAMES = [
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


# The answers of those who choose nothing.
DEFAULT_CHOICES = {name: value[0] for name, value in QUESTIONS.items() if isinstance(value, list)}


def read_answers(command):
    """Return the answers that a command gives, by question."""
    words = shlex.split(command)[-len(QUESTIONS) :]
    return dict(word.split("=", 1) for word in words)


@pytest.fixture
def refuse(render, tmp_path, capfd):
    """Return a function that has answers refused and returns what their author gets to read."""

    def refuse_answers(**answers):
        output_dir = tmp_path / "output"
        output_dir.mkdir()
        with pytest.raises(FailedHookException):
            render(output_dir, **answers)
        assert list(tmp_path.iterdir()) == [output_dir]
        assert list(output_dir.iterdir()) == []
        captured = capfd.readouterr()
        assert captured.out == ""
        return captured.err

    return refuse_answers


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
    """Assert that a message lists just these broken rules of a question, and its answer."""
    _, _, section = message.partition(f"  {question} is ")
    shown, *lines = section.split("\n\n")[0].splitlines()
    # The first characters are enough: a long answer is shown in part.
    assert shown.startswith(repr(answer)[:80])
    listed = [line for line in lines if line.startswith("    rule:")]
    assert len(listed) == len(rules)
    for rule in rules:
        assert any(rule in line for line in listed)
    assert lines[-1].startswith("    accepted:  ")


@pytest.mark.parametrize(("slug", "rules"), REFUSED_SLUGS)
def test_slug_is_refused(slug, rules, refuse):
    message = refuse(project_name="It's mine", project_slug=slug)
    assert "1 answer can't be used" in message
    assert_rules_listed(message, "project_slug", slug, rules)
    answers = read_answers(read_command(message)[0])
    assert answers == DEFAULT_CHOICES | {
        "project_name": "It's mine",
        "project_slug": answers["project_slug"],
    }
    assert load_hook("pre_gen_project").broken_slug_rules(answers["project_slug"]) == []


@pytest.mark.parametrize(("name", "rules"), REFUSED_NAMES)
def test_name_is_refused(name, rules, refuse):
    message = refuse(project_name=name, project_slug="some_slug")
    assert "1 answer can't be used" in message
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
def test_pasted_command_works(name, slug, refuse, paste):
    answers = paste(read_command(refuse(project_name=name, project_slug=slug))[0])
    hook = load_hook("pre_gen_project")
    assert answers == DEFAULT_CHOICES | {
        "project_name": hook.accepted_name(name),
        "project_slug": hook.accepted_slug(slug),
    }


def test_absolute_slug_is_refused(refuse, paste, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    message = refuse(project_slug=str(elsewhere))
    assert_rules_listed(message, "project_slug", str(elsewhere), [SHAPE, SLUG_LENGTH])
    paste(read_command(message)[0])
    assert not elsewhere.exists()


def test_derived_slug_is_refused_with_its_name_kept(refuse, paste):
    message = refuse(project_name="TensorFlow")
    assert_rules_listed(message, "project_slug", "tensorflow", [IN_USE])
    assert paste(read_command(message)[0]) == DEFAULT_CHOICES | {
        "project_name": "TensorFlow",
        "project_slug": "tensorflow_project",
    }


@pytest.mark.parametrize(
    ("slug", "error"),
    [("", OutputDirExistsException), (".", OutputDirExistsException), ("x" * 300, OSError)],
)
def test_slug_that_names_no_new_folder_is_refused_by_cookiecutter(slug, error, render, tmp_path):
    # It makes the folder before it runs the hook.
    with pytest.raises(error):
        render(tmp_path, project_slug=slug)
    assert list(tmp_path.iterdir()) == []


def test_all_faults_are_reported_at_once_and_marked(refuse, paste):
    message = refuse(project_name=" two\nlines", project_slug="Class")
    assert "2 answers can't be used" in message
    assert_rules_listed(message, "project_name", " two\nlines", [ENDS, ONE_LINE])
    assert_rules_listed(message, "project_slug", "Class", [SHAPE])
    command, marks = read_command(message)
    assert marked(command, marks) == ["'project_name=two lines'", "project_slug=class_project"]
    accepted = {"project_name": "two lines", "project_slug": "class_project"}
    assert paste(command) == DEFAULT_CHOICES | accepted


def test_only_what_differs_is_marked(refuse):
    command, marks = read_command(refuse(project_name="it's", project_slug="json"))
    assert marked(command, marks) == ["project_slug=json_project"]


def marked(command, marks):
    """Return the parts of a command that have marks below them."""
    return [command[mark.start() : mark.end()] for mark in re.finditer(r"\^+", marks)]


def test_pasted_command_finds_a_template_with_a_hostile_path(cookiecutter_environment, tmp_path):
    template = tmp_path / """it's a "template" $(touch pwned)"""
    shutil.copytree(TEMPLATE / "hooks", template / "hooks")
    shutil.copy(TEMPLATE / "cookiecutter.json", template)
    (template / PRODUCT.name).mkdir()
    cookiecutter = [sys.executable, "-m", "cookiecutter", str(template), "--no-input"]
    options = {"cwd": tmp_path, "env": cookiecutter_environment}

    refused = run(*cookiecutter, "--output-dir", "my output", "project_slug=class", **options)
    assert refused.returncode == 1
    assert "Nothing was made" in refused.stderr
    assert list((tmp_path / "my output").iterdir()) == []

    pasted = run("sh", "-c", read_command(refused.stderr)[0], **options)
    assert pasted.returncode == 0, pasted.stderr
    assert (tmp_path / "my output" / "class_project").is_dir()
    assert list(tmp_path.rglob("pwned")) == []


# --------------------------------------------------------------------------------------------------
# The hooks, function by function
# --------------------------------------------------------------------------------------------------

# Characters, and delimiters of templates.
HOSTILE_PIECES = [
    *"'\"`\\/;# <>&(){}$ru0aé日🚀\n\r\t\x00\x85\u2028\udc80",
    *("{{", "}}", "# {%", "%}", "# {#", "#}"),
]


def random_texts(count):
    """Return texts made of what is special to Python, JSON, Jinja, shells and terminals."""
    generator = random.Random(0)
    return [
        "".join(generator.choices(HOSTILE_PIECES, k=generator.randrange(9))) for _ in range(count)
    ]


def render_text(text, answers):
    """Return a text as cookiecutter renders it."""
    context = {"cookiecutter": {"_jinja2_env_vars": CONTEXT["_jinja2_env_vars"], **answers}}
    return create_env_with_context(context).from_string(text).render(context)


@pytest.mark.parametrize("hook", ["pre_gen_project", "post_gen_project"])
def test_any_answer_is_data_to_a_hook(hook):
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


def test_accepted_answers_are_accepted():
    hook = load_hook("pre_gen_project")
    reserved = [*sys.stdlib_module_names, *keyword.kwlist, *hook.NAMES_IN_USE]
    for text in [*reserved, *random_texts(1000)]:
        for answer in (text, text.upper(), text * 20):
            assert hook.broken_name_rules(hook.accepted_name(answer)) == []
            assert hook.broken_slug_rules(hook.accepted_slug(answer)) == []


def test_every_reserved_slug_is_refused():
    hook = load_hook("pre_gen_project")
    keywords = [*keyword.kwlist, *keyword.softkwlist]
    for slug in [*sys.stdlib_module_names, *keywords, *hook.NAMES_IN_USE]:
        assert hook.broken_slug_rules(slug) != []


def test_dependencies_of_the_product_are_reserved(render, tmp_path):
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


def test_defaults_are_those_of_the_questions(render, tmp_path):
    hook = load_hook("pre_gen_project")
    assert QUESTIONS["project_name"] == hook.DEFAULT_NAME
    assert render(tmp_path).name == hook.DEFAULT_SLUG


def test_command_names_the_checkout_and_every_answer():
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
    assert "misspelt" in message


def test_closing_message_needs_no_unicode_terminal(cookiecutter_environment, tmp_path):
    finished = run(
        *(sys.executable, "-m", "cookiecutter", str(TEMPLATE), "--no-input"),
        "project_name=日本",
        env=cookiecutter_environment | {"PYTHONIOENCODING": "ascii"},
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr
    assert r"\u65e5\u672c" in finished.stdout
