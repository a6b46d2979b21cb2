"""A project takes the changes of a newer version of the template, and keeps its own edits.

The template is a git repository here: the working tree, and an older version before it. The
commands are read from the project's README. The result of an update is compared with the newer
rendering that has the same edits, byte by byte.
"""

import json
import re
import shlex
import shutil
import subprocess

import pytest
from rendering import CONTEXT, PRODUCT, QUESTIONS, SIZES, TEMPLATE, read_files
from running import assert_same_run, train
from test_rendering import ALLOWED_NAMES
from variants import SMALL_IMAGES, replace_text, write_variant

LONG = pytest.mark.long
VERSION = CONTEXT["_version"]
OLD_VERSION = "0.0.9"
OLD_TAG = f"v{OLD_VERSION}"
PARTS = ["cookiecutter.json", "hooks", "templates", PRODUCT.name]
HOSTILE_NAME = """Bob's "best" $(touch pwned) \\ model"""

# What the older version had, by file of the template: (today's text, its text). One change is a
# few lines above the place at which the user edits the same hook. None changes the numbers.
DOCSTRING = "templates/docstrings/create_model_and_optimizer.txt"
MACHINERY = "templates/set_up.py"
STEPS = ("steps per epoch", "steps an epoch")
OLDER = {
    "cookiecutter.json": (f'"_version": "{VERSION}"', f'"_version": "{OLD_VERSION}"'),
    DOCSTRING: ("Return a built model", "Return a model"),
    MACHINERY: STEPS,
    "templates/readme/systems.md": ("## Other systems", "## Systems"),
    f"{PRODUCT.name}/.gitignore": ("/runs/\n", ""),
}
CHANGED_FIRST = DOCSTRING
ADDED = "tests/conftest.py"  # a file that the older version doesn't have

# The user's edits of a project.
EDITS = {
    "train.py": [
        ('Dense(64, activation="silu")', 'Dense(48, activation="gelu")'),
        ("Dropout(0.3)", "Dropout(0.0)"),
    ],
    "pyproject.toml": [("[tool.ruff]", "[tool.own]\nx = 1\n\n[tool.ruff]")],
    "README.md": [("## Exit codes", "## Our own\n\nText.\n\n## Exit codes")],
}
CHECK = "cruft check"  # It fails if the project isn't up to date.
OWN_STEPS = "steps per pass"  # an edit of a line that the newer version has changed

SIZE = pytest.mark.parametrize("size", ["complete", pytest.param("essential", marks=LONG)])

# --------------------------------------------------------------------------------------------------
# Repositories
# --------------------------------------------------------------------------------------------------


def run(*command, **options):
    """Run a command that must succeed. Return its output."""
    finished = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", **options)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def git(folder, *arguments):
    author = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false")
    return run("git", *author, *arguments, cwd=folder)


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "x")


def initialize(folder):
    """Make a folder a git repository with all its files."""
    git(folder, "init", "--quiet", "--initial-branch", "main")
    commit(folder)


def replace(path, *pairs):
    """Replace texts in a file, each of which it has once."""
    replace_text(path, path.parent, *pairs)


def copy_template(folder):
    """Copy the files from which projects are rendered."""
    for name in PARTS[1:]:
        shutil.copytree(TEMPLATE / name, folder / name, ignore=lambda *_: ["__pycache__"])
    shutil.copy(TEMPLATE / PARTS[0], folder)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Return a git repository of the template, whose main branch is the working tree.

    Before it are an older version, and a state between the two that has the older version's
    number.
    """
    folder = (
        tmp_path_factory.mktemp("origin") / "template.git"
    )  # by its name, cookiecutter uses git
    copy_template(folder)
    newer = {name: (folder / name).read_text(encoding="utf-8") for name in OLDER}
    newer[f"{PRODUCT.name}/{ADDED}"] = (PRODUCT / ADDED).read_text(encoding="utf-8")
    for name, pair in OLDER.items():
        replace(folder / name, pair)
    (folder / PRODUCT.name / ADDED).unlink()
    initialize(folder)
    git(folder, "tag", OLD_TAG)
    (folder / CHANGED_FIRST).write_text(newer[CHANGED_FIRST], encoding="utf-8")
    commit(folder)
    git(folder, "tag", "between")
    for name, text in newer.items():
        (folder / name).write_text(text, encoding="utf-8")
    commit(folder)
    git(folder, "tag", f"v{VERSION}")
    return folder


@pytest.fixture
def call(cookiecutter_environment, repository):
    """Return a function that runs a command of a README in a folder. It returns the output."""

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


def read_commands(project, commit):
    """Return the commands of the README's section on updates: a list for each block.

    `commit` is the commit or tag from which the project was rendered.
    """
    text = (project / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```\n(.*?)```", text.partition("\n## Update\n")[2], re.DOTALL)
    for block in blocks:
        assert "<commit>" in block
    return [block.replace("<commit>", commit).splitlines() for block in blocks]


def edit_project(project):
    for name, pairs in EDITS.items():
        replace(project / name, *pairs)


@pytest.fixture
def create_projects(call):
    """Return a function that renders a project of a version, and the newest one with edits."""

    def create(folder, version, **answers):
        words = [shlex.quote(f"{name}={answer}") for name, answer in answers.items()]
        projects = []
        for place, checkout in (("mine", version), ("expected", "main")):
            (folder / place).mkdir()
            rendering = f"cookiecutter --no-input gh:org/template --checkout {checkout}"
            call(folder / place, f"{rendering} {' '.join(words)}")
            projects += (folder / place).iterdir()
        mine, expected = projects
        edit_project(expected)
        return mine, expected

    return create


def read_project(project):
    """Return the content of a project's files that are in its git repository, without cruft's."""
    files = git(project, "ls-files", "--cached", "--others").splitlines()
    names = [name for name in files if name != ".cruft.json"]
    return {name: (project / name).read_text(encoding="utf-8") for name in names}


# --------------------------------------------------------------------------------------------------
# The record
# --------------------------------------------------------------------------------------------------


def read_toml(path):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_version_is_the_same_everywhere():
    text = (TEMPLATE / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = "(.*)"$', text, re.MULTILINE)[1] == VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    # It is the version of the newest release, or of the first one to come.
    changes = (TEMPLATE / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(\d.*?)\]", changes, re.MULTILINE)
    assert not releases or releases[0] == VERSION


def test_project_records_version_and_answers(answers, render, tmp_path):
    project = render(tmp_path, **answers)
    record = read_toml(project / "pyproject.toml")["tool"]["cookiecutter-tf-distribute"]
    assert record == {
        "version": VERSION,
        "project_name": QUESTIONS["project_name"],
        "project_slug": project.name,
        **answers,
    }
    docstring = (project / "train.py").read_text(encoding="utf-8").split('"""')[1]
    assert f"cookiecutter-tf-distribute {VERSION}." in docstring


def test_record_is_toml_before_it_is_rendered():
    # Otherwise, ruff fails in the template's folder.
    read_toml(PRODUCT / "pyproject.toml")


@pytest.mark.parametrize("name", ALLOWED_NAMES)
def test_allowed_name_is_recorded(name, render, tmp_path):
    project = render(tmp_path, project_name=name, project_slug="some_slug")
    record = read_toml(project / "pyproject.toml")["tool"]["cookiecutter-tf-distribute"]
    assert record["project_name"] == name


# --------------------------------------------------------------------------------------------------
# cruft
# --------------------------------------------------------------------------------------------------


def create_by_cruft(call, folder, checkout, template=None, **answers):
    """Create a project by cruft. Return its folder, which is no git repository yet."""
    before = set(folder.iterdir())
    options = {"template": template} if template else {}
    context = shlex.quote(json.dumps(answers))
    command = f"cruft create --no-input --checkout {checkout} --extra-context {context}"
    call(folder, f"{command} gh:org/template", **options)
    [project] = set(folder.iterdir()) - before
    return project


@SIZE
def test_project_created_by_cruft_is_updated(size, create_projects, call, tmp_path):
    _, expected = create_projects(tmp_path, "main", script=size)
    project = create_by_cruft(call, tmp_path, OLD_TAG, script=size)
    initialize(project)
    edit_project(project)
    commit(project)
    assert not (project / ADDED).exists()
    update = read_commands(project, OLD_TAG)[1][-1]
    assert "out of date" in call(project, CHECK, code=1)
    output = call(project, update)
    assert "Made" not in output, "the message for a new project"
    assert read_project(project) == read_files(expected)
    commit(project)
    call(project, CHECK)
    assert "Nothing to do" in call(project, update)


def choose(answers):
    """Return what is typed for each question."""
    typed = []
    for name, value in QUESTIONS.items():
        if isinstance(value, list):
            typed.append(str(value.index(answers.get(name, value[0])) + 1))
        else:
            typed.append(answers[name])
    return typed


def test_project_created_by_cookiecutter_is_linked_and_updated(create_projects, call, tmp_path):
    answers = {"project_name": HOSTILE_NAME, "project_slug": "some_slug", "cluster": "slurm"}
    project, expected = create_projects(tmp_path, OLD_TAG, **answers)
    initialize(project)
    edit_project(project)
    commit(project)
    link, add, update = read_commands(project, OLD_TAG)[1]
    call(project, link, input="\n".join([*choose(answers), "", ""]))  # the last asks for the commit
    git(project, "config", "user.name", "x")
    git(project, "config", "user.email", "x@example.com")
    call(project, add)
    call(project, update)  # It doesn't ask: with typer 0.29, cruft 2.16 would fail.
    assert read_project(project) == read_files(expected)
    call(project, CHECK)


@pytest.mark.parametrize(
    "is_rendering",
    [pytest.param(True, marks=LONG), False],
    ids=["rendering", "edited"],
)
def test_cruft_leaves_conflicts_to_the_user(is_rendering, call, tmp_path):
    """In marks if the first commit is the rendering, otherwise in a file beside."""
    project = create_by_cruft(call, tmp_path, OLD_TAG)
    today, then = STEPS
    if is_rendering:
        initialize(project)
    replace(project / "train.py", (then, OWN_STEPS))
    if is_rendering:
        commit(project)
    else:
        initialize(project)
    update = read_commands(project, OLD_TAG)[1][-1]
    assert "Good work" in call(project, update)  # cruft's message in both cases
    text = (project / "train.py").read_text(encoding="utf-8")
    assert OWN_STEPS in text
    assert f"cookiecutter-tf-distribute {VERSION}." in text, "the rest is updated"
    assert (today in text) == ("<<<<<<<" in text) == is_rendering
    assert has_rejected_line(project, today) != is_rendering


def has_rejected_line(project, text):
    """Return whether there is a file of rejected changes, which has a text then."""
    rejected = [path.read_text(encoding="utf-8") for path in project.glob("*.rej")]
    return len(rejected) == 1 and text in rejected[0]


def find_earlier_version():
    """Return the last release as a revision and a tag, or before it an earlier commit and a tag."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD"]
    found = subprocess.run(command, cwd=TEMPLATE, capture_output=True, text=True, check=False)
    tag = found.stdout.strip()
    if tag:
        return tag, tag
    return git(TEMPLATE, "rev-list", "--max-count=2", "HEAD").split()[-1], "v0.0.1"


@pytest.mark.long
def test_project_of_an_earlier_version_is_updated(call, render, tmp_path):
    revision, tag = find_earlier_version()
    template = tmp_path / "template.git"
    template.mkdir()
    git(TEMPLATE, "archive", "--output", tmp_path / "release.tar", revision, *PARTS)
    shutil.unpack_archive(tmp_path / "release.tar", template)
    initialize(template)
    git(template, "tag", tag)
    for name in PARTS[1:]:
        shutil.rmtree(template / name)
    copy_template(template)
    commit(template)
    (tmp_path / "mine").mkdir()
    project = create_by_cruft(call, tmp_path / "mine", tag, template)
    initialize(project)
    expected = render(tmp_path / "expected")
    for each in (project, expected):
        replace(each / "train.py", *EDITS["train.py"])
    commit(project)
    call(project, "cruft update --skip-apply-ask", template=template)
    assert read_project(project) == read_files(expected)


def test_cruft_names_a_rejected_answer(call, tmp_path):
    context = json.dumps({"project_slug": "class"})
    command = f"cruft create --no-input --extra-context '{context}' gh:org/template 2>&1"
    output = call(tmp_path, command, code=1)
    assert "project_slug is 'class'" in output
    assert "KeyError" not in output
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------
# train.py alone
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "version", "base"),
    [
        ("complete", "between", OLD_TAG),
        pytest.param("complete", "between", "between", marks=LONG),
        pytest.param("complete", OLD_TAG, OLD_TAG, marks=LONG),
        pytest.param("essential", "between", OLD_TAG, marks=LONG),
        pytest.param("essential", OLD_TAG, OLD_TAG, marks=LONG),
    ],
)
def test_script_alone_is_merged(size, version, base, create_projects, call, tmp_path):
    """A project from between two versions has the older number. The older tag as `<commit>`
    gives no conflict."""
    answers = {"script": size, "project_name": "Other Name"}
    project, expected = create_projects(tmp_path, version, **answers)
    commands = read_commands(project, base)[0]
    alone = tmp_path / "alone"
    alone.mkdir()
    script = replace_text(project / "train.py", alone, *EDITS["train.py"])
    for command in commands:
        call(alone, command)
    assert script.read_bytes() == (expected / "train.py").read_bytes()
    assert [*alone.iterdir()] == [script]


def test_merge_leaves_conflicts_to_the_user(create_projects, call, tmp_path):
    project, _ = create_projects(tmp_path, OLD_TAG)
    today, then = STEPS
    replace(project / "train.py", (then, OWN_STEPS))
    rendering, merge = read_commands(project, OLD_TAG)[0]
    call(project, rendering)
    call(project, merge, code=1)
    marked = (project / "train.py").read_text(encoding="utf-8")
    [(mine, theirs)] = re.findall(r"(?s)<<<<<<< (.*?)=======(.*?)>>>>>>> ", marked)
    assert OWN_STEPS in mine
    assert today in theirs


def clone_history(folder):
    """Clone this repository, with an older commit, or skip the test. Return the clone's folder."""
    command = ["git", "rev-list", "--count", "HEAD"]
    counted = subprocess.run(command, cwd=TEMPLATE, capture_output=True, text=True, check=False)
    if counted.returncode != 0:
        pytest.skip("this is not a git repository")
    if int(counted.stdout) < 2:
        pytest.skip("this clone has only one commit")
    clone = folder / "template.git"
    git(TEMPLATE, "clone", "--quiet", "--no-checkout", TEMPLATE.as_uri(), clone)
    git(clone, "checkout", "--quiet", "-B", "main")
    return clone


def commit_working_tree(clone, text):
    """Commit the working tree to a clone, with one text of main.py replaced."""
    for name in PARTS[1:]:
        shutil.rmtree(clone / name)
    copy_template(clone)
    replace(clone / "templates" / "main.py", text)
    commit(clone)


def render_commits(call, folder, template, *commits):
    """Render the default project of each commit. Return the folders."""
    projects = []
    for commit_name in commits:
        (folder / commit_name).mkdir()
        rendering = f"cookiecutter --no-input gh:org/template --checkout {commit_name}"
        call(folder / commit_name, rendering, template=template)
        projects += (folder / commit_name).iterdir()
    return projects


NEWEST = ("def main", "# A line of a newer version.\ndef main")


@pytest.mark.parametrize("age", [0, 1])
def test_project_of_a_commit_of_this_repository_is_merged(age, call, tmp_path):
    """By the README's commands, from the last commit or the one before it."""
    clone = clone_history(tmp_path)
    old_commit = git(clone, "rev-parse", f"HEAD~{age}").strip()
    commit_working_tree(clone, NEWEST)
    project, newest = render_commits(call, tmp_path, clone, old_commit, "main")
    replace(project / "train.py", *EDITS["train.py"])
    # The commands are today's: the commit may have another README.
    shutil.copy(newest / "README.md", project)
    for command in read_commands(project, old_commit)[0]:
        call(project, command, template=clone)
    text = (project / "train.py").read_text(encoding="utf-8")
    assert NEWEST[1] in text
    for _, edit in EDITS["train.py"]:
        assert edit in text
    assert "<<<<<<<" not in text


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_run_resumes_after_an_update(size, create_projects, call, tmp_path):
    project, expected = create_projects(tmp_path, OLD_TAG, script=size)
    replace(project / "train.py", *EDITS["train.py"])
    small = [project / "small", expected / "small"]
    for folder in small:
        folder.mkdir()
    script = write_variant(project / "train.py", small[0], SMALL_IMAGES)
    train(script, "--epochs", "1")
    for command in read_commands(project, OLD_TAG)[0]:
        call(project, command)
    script = write_variant(project / "train.py", small[0], SMALL_IMAGES)
    assert "resumed at step" in train(script, "--epochs", "2")
    expected_script = write_variant(expected / "train.py", small[1], SMALL_IMAGES)
    assert script.read_bytes() == expected_script.read_bytes()
    train(expected_script, "--epochs", "2")
    assert_same_run(small[0] / "run", small[1] / "run")
