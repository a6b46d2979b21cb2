"""A project takes over what a newer version of the template has, and keeps its own edits.

The template is a git repository here: the working tree, and an older version before it. The
commands are those of the project's README. What an update gives is compared to the newer rendering
with the same edits, byte by byte.
"""

import json
import re
import shlex
import shutil
import subprocess

import pytest
from conftest import FEW_OF, NO_DROPOUT, TEMPLATE, assert_same_run, edit, train
from test_rendering import ALLOWED_NAMES, CONTEXT, PRODUCT, QUESTIONS, read_files

VERSION, OLD_VERSION = CONTEXT["_version"], "0.0.9"
SIZES = CONTEXT["script"]
PARTS = ["cookiecutter.json", "hooks", "templates", PRODUCT.name]
HOSTILE_NAME = """Bob's "best" $(touch pwned) \\ model"""

# What the older version had, by file of the template: (text of today, text of then). One change is
# a few lines from where the user edits the same hook. None changes the numbers.
OLDER = {
    "cookiecutter.json": [(f'"_version": "{VERSION}"', f'"_version": "{OLD_VERSION}"')],
    "templates/hooks.py": [("Returns the model, built, and its", "Returns the model and its")],
    "templates/terminal.py": [
        ("get_terminal_size().columns - 1", "get_terminal_size().columns - 2")
    ],
    f"{PRODUCT.name}/README.md": [("## What you can rely on", "## Promises")],
    f"{PRODUCT.name}/.gitignore": [("/runs/\n", "")],
}
EARLIER = "templates/hooks.py"  # was changed before the others
ADDED = "tests/conftest.py"  # of the project: a file that the older version didn't have

# What the user has made of a project.
EDITS = {
    "train.py": [('Dense(64, activation="silu")', 'Dense(48, activation="gelu")'), NO_DROPOUT],
    "pyproject.toml": [("dependencies = [", 'dependencies = ["pandas", ')],
    "README.md": [("## Exit codes", "## Our own\n\nText.\n\n## Exit codes")],
}


def run(*command, **options):
    """Run a command to its good end. Return its output."""
    finished = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", **options)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def git(folder, *arguments):
    who = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false")
    return run("git", *who, *arguments, cwd=folder)


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "x")


def replace(path, pairs):
    """Replace texts in a file, each of which it has once."""
    edit(path, path.parent, *pairs)


def copy_template(folder):
    """Put what a project is rendered from into a folder."""
    for name in PARTS[1:]:
        shutil.copytree(TEMPLATE / name, folder / name, ignore=lambda *_: ["__pycache__"])
    shutil.copy(TEMPLATE / PARTS[0], folder)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Return a git repository of the template, whose main branch is the working tree.

    Before it are an older version, and a state between the two, which calls itself the older.
    """
    folder = tmp_path_factory.mktemp("origin") / "template.git"  # as cookiecutter knows git by
    copy_template(folder)
    newer = {name: (folder / name).read_text(encoding="utf-8") for name in OLDER}
    newer[f"{PRODUCT.name}/{ADDED}"] = (PRODUCT / ADDED).read_text(encoding="utf-8")
    for name, pairs in OLDER.items():
        replace(folder / name, pairs)
    (folder / PRODUCT.name / ADDED).unlink()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    commit(folder)
    git(folder, "tag", f"v{OLD_VERSION}")
    (folder / EARLIER).write_text(newer[EARLIER], encoding="utf-8")
    commit(folder)
    git(folder, "tag", "between")
    for name, text in newer.items():
        (folder / name).write_text(text, encoding="utf-8")
    commit(folder)
    git(folder, "tag", f"v{VERSION}")
    return folder


@pytest.fixture
def call(cookiecutter_environment, repository):
    """Return a function that runs a command as it stands in a README, in a folder."""

    def call_command(folder, command, code=0, template=repository, **options):
        for address in ("https://github.com/org/template", "gh:org/template"):
            command = command.replace(address, template.as_uri())
        finished = subprocess.run(
            ["sh", "-c", command.replace("uvx ", "")],
            cwd=folder,
            env=cookiecutter_environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            **options,
        )
        assert finished.returncode == code, finished.stdout + finished.stderr
        return finished.stdout

    return call_command


def read_commands(project):
    """Return the commands of the README's section on updates: a list for each block."""
    text = (project / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```\n(.*?)```", text.partition("\n## Update\n")[2], re.DOTALL)
    return [block.splitlines() for block in blocks]


def make_edits(project):
    for name, pairs in EDITS.items():
        replace(project / name, pairs)


@pytest.fixture
def make(call):
    """Return a function that renders a project of a version, and one of the newest, with edits."""

    def make_projects(folder, version, **answers):
        words = [shlex.quote(f"{name}={answer}") for name, answer in answers.items()]
        for place, checkout in (("mine", version), ("expected", "main")):
            (folder / place).mkdir()
            rendering = f"cookiecutter --no-input gh:org/template --checkout {checkout}"
            call(folder / place, f"{rendering} {' '.join(words)}")
        [mine], [expected] = (list((folder / place).iterdir()) for place in ("mine", "expected"))
        make_edits(expected)
        return mine, expected

    return make_projects


def read_project(project):
    """Return the content of a project's files that are in its git repository, without cruft's."""
    files = git(project, "ls-files", "--cached", "--others").splitlines()
    return {x: (project / x).read_text(encoding="utf-8") for x in files if x != ".cruft.json"}


# --------------------------------------------------------------------------------------------------
# The record
# --------------------------------------------------------------------------------------------------


def test_version_is_one():
    text = (TEMPLATE / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = "(.*)"$', text, re.MULTILINE)[1] == VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    # `_version` is that of the newest release, or of the first one to be.
    changes = (TEMPLATE / "CHANGELOG.md").read_text(encoding="utf-8")
    assert (re.findall(r"^## \[(\d.*?)\]", changes, re.MULTILINE) or [VERSION])[0] == VERSION


def test_project_has_the_version_and_the_answers(answers, render, tmp_path):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    project = render(tmp_path, **answers)
    record = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert record["cookiecutter-tf-distribute"] == {
        "version": VERSION,
        "project_name": QUESTIONS["project_name"],
        "project_slug": project.name,
        **answers,
    }
    docstring = (project / "train.py").read_text(encoding="utf-8").split('"""')[1]
    assert f"cookiecutter-tf-distribute {VERSION}." in docstring


def test_record_is_toml_before_it_is_rendered():
    # Where it isn't, ruff fails in the folder of the template.
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    tomllib.loads((PRODUCT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ALLOWED_NAMES)
def test_allowed_name_is_recorded(name, render, tmp_path):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    project = render(tmp_path, project_name=name, project_slug="some_slug")
    record = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert record["cookiecutter-tf-distribute"]["project_name"] == name


# --------------------------------------------------------------------------------------------------
# cruft
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_project_made_by_cruft_is_updated(size, make, call, tmp_path):
    _, expected = make(tmp_path, "main", script=size)
    context = json.dumps({"script": size})
    create = f"cruft create --no-input --checkout v{OLD_VERSION} --extra-context '{context}'"
    call(tmp_path, f"{create} https://github.com/org/template")
    project = tmp_path / expected.name
    git(project, "init", "--quiet")
    commit(project)
    make_edits(project)
    commit(project)
    assert not (project / ADDED).exists()
    *_, update, check = read_commands(project)[1]
    assert "out of date" in call(project, check, code=1)
    output = call(project, update)
    assert "Made" not in output, "the message for a new project"
    assert read_project(project) == read_files(expected)
    commit(project)
    call(project, check)
    assert "Nothing to do" in call(project, update)


def test_project_made_by_cookiecutter_is_linked_and_updated(make, call, tmp_path):
    answers = {"project_name": HOSTILE_NAME, "project_slug": "some_slug", "cluster": "slurm"}
    project, expected = make(tmp_path, f"v{OLD_VERSION}", **answers)
    git(project, "init", "--quiet")
    commit(project)
    make_edits(project)
    commit(project)
    link, add, update, check = read_commands(project)[1]
    chosen = [
        str(value.index(answers.get(name, value[0])) + 1)
        if isinstance(value, list)
        else answers[name]
        for name, value in QUESTIONS.items()
    ]
    call(project, link, input="\n".join([*chosen, "", ""]))  # the last asks for the commit
    git(project, "config", "user.name", "x")
    git(project, "config", "user.email", "x@example.com")
    call(project, add)
    call(project, update)  # which doesn't ask: cruft 2.16 then ends in a traceback under typer 0.29
    assert read_project(project) == read_files(expected)
    call(project, check)


@pytest.mark.parametrize("is_rendering", [True, False], ids=["rendering", "edited"])
def test_lines_that_both_changed_are_left_by_cruft_too(is_rendering, call, tmp_path):
    """In marks where the first commit is what was rendered, else in a file beside."""
    call(tmp_path, f"cruft create --no-input --checkout v{OLD_VERSION} gh:org/template")
    [project] = tmp_path.iterdir()
    git(project, "init", "--quiet")
    if is_rendering:
        commit(project)
    [(today, then)] = OLDER["templates/terminal.py"]
    replace(project / "train.py", [(then, "columns_of_mine()")])
    commit(project)
    *_, update, _ = read_commands(project)[1]
    assert "Good work" in call(project, update)  # so says cruft either way
    text = (project / "train.py").read_text(encoding="utf-8")
    assert "columns_of_mine()" in text
    assert f"cookiecutter-tf-distribute {VERSION}." in text, "the rest is updated"
    assert (today in text) == ("<<<<<<<" in text) == is_rendering
    rejected = [path.read_text(encoding="utf-8") for path in project.glob("*.rej")]
    assert [today in text for text in rejected] == [True] * (not is_rendering)


def test_project_of_the_last_release_is_updated(call, render, tmp_path):
    last = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD"]
    found = subprocess.run(last, cwd=TEMPLATE, capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip("no version has a tag yet")
    tag = found.stdout.strip()
    template = tmp_path / "template.git"
    template.mkdir()
    git(TEMPLATE, "archive", "--output", tmp_path / "release.tar", tag, *PARTS)
    shutil.unpack_archive(tmp_path / "release.tar", template)
    git(template, "init", "--quiet", "--initial-branch", "main")
    commit(template)
    git(template, "tag", tag)
    for name in PARTS[1:]:
        shutil.rmtree(template / name)
    copy_template(template)
    commit(template)
    create = f"cruft create --no-input --checkout {tag} gh:org/template"
    call(tmp_path, create, template=template)
    expected = render(tmp_path / "expected")
    project = tmp_path / expected.name
    git(project, "init", "--quiet")
    commit(project)
    for each in (project, expected):
        replace(each / "train.py", EDITS["train.py"])
    commit(project)
    call(project, "cruft update --skip-apply-ask", template=template)
    assert read_project(project) == read_files(expected)


def test_answer_that_is_refused_is_named_by_cruft_too(call, tmp_path):
    context = json.dumps({"project_slug": "class"})
    command = f"cruft create --no-input --extra-context '{context}' gh:org/template 2>&1"
    output = call(tmp_path, command, code=1)
    assert "project_slug is 'class'" in output and "KeyError" not in output
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------
# train.py alone
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [f"v{OLD_VERSION}", "between"])
@pytest.mark.parametrize("size", SIZES)
def test_script_alone_is_merged(size, version, make, call, tmp_path):
    # A project from between two versions names the older. What it has already is no conflict.
    project, expected = make(tmp_path, version, script=size, project_name="Other Name")
    commands = read_commands(project)[0]
    alone = tmp_path / "alone"
    alone.mkdir()
    script = edit(project / "train.py", alone, *EDITS["train.py"])
    for command in commands:
        call(alone, command)
    assert script.read_bytes() == (expected / "train.py").read_bytes()
    assert [*alone.iterdir()] == [script]


def test_lines_that_both_changed_are_left_to_the_user(make, call, tmp_path):
    project, _ = make(tmp_path, f"v{OLD_VERSION}")
    [today, then] = OLDER["templates/terminal.py"][0]
    replace(project / "train.py", [(then, "columns_of_mine()")])
    rendering, merge = read_commands(project)[0]
    call(project, rendering)
    call(project, merge, code=1)
    marked = (project / "train.py").read_text(encoding="utf-8")
    [(mine, theirs)] = re.findall(r"(?s)<<<<<<< (.*?)=======(.*?)>>>>>>> ", marked)
    assert "columns_of_mine()" in mine and today in theirs


@pytest.mark.parametrize("size", SIZES)
def test_run_goes_on_after_an_update(size, make, call, tmp_path):
    project, expected = make(tmp_path, f"v{OLD_VERSION}", script=size)
    few = FEW_OF["image_classification"]
    script = project / "train.py"
    replace(script, [*EDITS["train.py"], few])
    train(script, "--epochs", "1")
    for command in read_commands(project)[0]:
        call(project, command)
    assert "resumed at step" in train(script, "--epochs", "2")
    replace(expected / "train.py", [few])
    assert script.read_bytes() == (expected / "train.py").read_bytes()
    train(expected / "train.py", "--epochs", "2")
    assert_same_run(project / "run", expected / "run")
