"""The questions in a terminal, replays, user defaults, and projects that already exist.

Nothing here imports TensorFlow or trains.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest
from rendering import (
    CHOICES,
    CONTEXT,
    FILES,
    FILES_OF,
    QUESTIONS,
    TEMPLATE,
    load_hook,
    read_files,
)
from running import assert_unchanged, hash_tree
from test_rendering import read_command

COLUMNS = 80  # the terminal's width
LAST_CHOICES = {question: choices[-1] for question, choices in CHOICES.items()}

# Two choices show what replays do; the others repeat it.
EACH_CHOICE = [
    pytest.param("task", marks=pytest.mark.long),
    pytest.param("script", marks=pytest.mark.long),
    "distribution",
    "cluster",
]


def update_json(path, change):
    """Apply a function to the content of a JSON file, in place."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    change(content)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


@pytest.fixture
def ask(cookiecutter_environment, tmp_path):
    """Return a function that runs cookiecutter on the template, without a terminal."""
    config_path = cookiecutter_environment["COOKIECUTTER_CONFIG"]

    def run_cookiecutter(*arguments, config=None, **options):
        if config is not None:
            update_json(config_path, lambda content: content.update(config))
        return subprocess.run(
            [sys.executable, "-m", "cookiecutter", str(TEMPLATE), *arguments],
            capture_output=True,
            encoding="utf-8",
            check=False,
            env=cookiecutter_environment,
            cwd=tmp_path,
            **options,
        )

    return run_cookiecutter


def read_arguments(message):
    """Return the arguments that follow the template in the corrected command."""
    command, _ = read_command(message)
    return shlex.split(command)[2:]


def read_marked(message):
    """Return the part of the corrected command between the first and the last mark."""
    command, marks = read_command(message)
    return command[marks.index("^") : marks.rindex("^") + 1]


def find_answer(question, answer, output):
    """Return whether the closing message shows an answer."""
    return re.search(rf"(?m)^  {question} +{re.escape(answer)}\r?$", output) is not None


def assert_answers_shown(answers, output):
    for question, answer in answers.items():
        assert find_answer(question, answer, output), question


def assert_no_traceback(message):
    """Assert that a message has no traceback before cookiecutter's own report."""
    message, _, report = message.partition("cookiecutter's own report")
    assert report
    assert "Traceback" not in message


def find_replay(env):
    """Return the path of the only replay file."""
    folder = os.path.join(env["HOME"], "replay_dir")
    [name] = os.listdir(folder)
    return os.path.join(folder, name)


# --------------------------------------------------------------------------------------------------
# In a terminal
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(cookiecutter_environment, tmp_path):
    """Return cookiecutter in a terminal that asks its first question."""
    module = pytest.importorskip("pseudo_terminal", reason="Windows has no pseudo-terminals")
    command = [sys.executable, "-m", "cookiecutter", str(TEMPLATE)]
    terminal = module.Terminal(command, cookiecutter_environment, tmp_path, COLUMNS)
    yield terminal
    terminal.process.kill()
    terminal.process.wait()


def answer_all(terminal, texts, wrong=()):
    """Answer each question. Return the text that each question showed.

    The answers are `texts`, and the last choice of the other questions after some wrong answers.
    """
    shown = {}
    for question, value in QUESTIONS.items():
        attempts = [*wrong, str(len(value))]
        if question in texts:
            attempts = [texts[question]]
        shown[question] = ""
        for text in attempts:
            shown[question] += terminal.read_until("): ")
            terminal.type(f"{text}\n")
    return shown


def prompt_lines(number, question):
    """Return the lines that ask a question: its prompt, and a label for each choice."""
    prompt = CONTEXT["__prompts__"][question]
    text = prompt["__prompt__"] if isinstance(prompt, dict) else prompt
    lines = [f"  [{number}/{len(QUESTIONS)}] {text}"]
    for position, choice in enumerate(CHOICES.get(question, []), start=1):
        lines.append(f"    {position} - {prompt[choice]}")
    return lines


def test_each_question_has_one_line_explanations(terminal, tmp_path):
    shown = answer_all(terminal, {"project_name": "It's {{ mine }}", "project_slug": ""})
    assert terminal.finish() == 0
    for number, question in enumerate(QUESTIONS, start=1):
        for line in prompt_lines(number, question):
            assert len(line) <= COLUMNS  # otherwise the terminal breaks the line
            assert line in shown[question]
    assert {path.name for path in tmp_path.iterdir()} == {"it_s_mine"}


def test_wrong_choice_is_asked_again(terminal):
    wrong = ("9", "complete", "0", "-1", "{{ 7 }}")
    shown = answer_all(terminal, {"project_name": "Mine", "project_slug": "mine"}, wrong)
    assert terminal.finish() == 0
    for number, question in enumerate(QUESTIONS, start=1):
        attempts = 1 + len(wrong) if question in CHOICES else 1
        assert terminal.shown.count(f"[{number}/{len(QUESTIONS)}]") == attempts
        rejections = shown[question].count("Please select one of the available options")
        assert rejections == attempts - 1
    assert_answers_shown({"project_slug": "mine", **LAST_CHOICES}, terminal.shown)


def test_closing_message_shows_the_answers_and_commands(terminal, tmp_path):
    texts = {"project_name": "Mine", "project_slug": "mine"}
    answer_all(terminal, texts)
    assert terminal.finish() == 0
    folder = tmp_path / "mine"
    assert_answers_shown(texts | LAST_CHOICES, terminal.shown)
    assert f"  cd {folder}\r\n  uv run train.py\r\n  uv run pytest\r\n" in terminal.shown
    assert set(read_files(folder)) == FILES | FILES_OF[LAST_CHOICES["cluster"]]


def test_command_after_a_wrong_text_keeps_the_other_answers(
    terminal, cookiecutter_environment, tmp_path
):
    name = "It's {{ mine }}"
    answer_all(terminal, {"project_name": name, "project_slug": "class"})
    assert terminal.finish() == 1
    assert_no_traceback(terminal.shown)
    assert read_marked(terminal.shown) == "project_slug=class_project"
    assert list(tmp_path.iterdir()) == []
    command, _ = read_command(terminal.shown)
    pasted = type(terminal)(["sh", "-c", command], cookiecutter_environment, tmp_path, COLUMNS)
    assert pasted.finish() == 0
    assert_answers_shown({"project_name": name, **LAST_CHOICES}, pasted.shown)
    assert [path.name for path in tmp_path.iterdir()] == ["class_project"]


def test_ctrl_c_between_questions_creates_nothing(terminal, tmp_path):
    terminal.read_until("): ")
    terminal.type("Mine\n")
    terminal.read_until("): ")
    time.sleep(1)  # Just before Python reads a line, a signal is only noticed at the next key.
    terminal.type("\x03")
    assert terminal.finish() == 1
    assert "Traceback" not in terminal.shown
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------
# Replays and user defaults
# --------------------------------------------------------------------------------------------------


def test_replay_renders_an_identical_project(ask, tmp_path):
    first = ask("--no-input", "-o", "one", "project_name={{ 'a { b' }}", "script=complete")
    again = ask("--replay", "-o", "two")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")
    assert first.stdout == again.stdout.replace(str(tmp_path / "two"), str(tmp_path / "one"))


@pytest.mark.parametrize("choice", EACH_CHOICE)
def test_replay_asks_only_the_questions_that_it_lacks(choice, ask, cookiecutter_environment):
    assert ask("--no-input", "-o", "one").returncode == 0
    replay = find_replay(cookiecutter_environment)
    update_json(replay, lambda context: context["cookiecutter"].pop(choice))
    again = ask("--replay", "-o", "two", input="2\n")
    assert again.returncode == 0, again.stderr
    assert f"[1/1] {CONTEXT['__prompts__'][choice]['__prompt__']}" in again.stdout
    assert find_answer(choice, CHOICES[choice][1], again.stdout)


@pytest.mark.parametrize("choice", EACH_CHOICE)
def test_replay_with_a_removed_choice_is_rejected(choice, ask, cookiecutter_environment, tmp_path):
    assert ask("--no-input", "-o", "one").returncode == 0
    replay = find_replay(cookiecutter_environment)
    update_json(replay, lambda context: context["cookiecutter"].update({choice: "former"}))
    rejected = ask("--replay", "-o", "two")
    assert rejected.returncode == 1
    assert f"{choice} is 'former'" in rejected.stderr
    assert f"rule:      must be one of: {', '.join(CHOICES[choice])}" in rejected.stderr
    assert list((tmp_path / "two").iterdir()) == []
    assert read_marked(rejected.stderr) == f"{choice}={CHOICES[choice][0]}"


def test_choices_are_repeated_for_the_hook():
    context = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
    assert context["_choices"] == CHOICES


def test_user_defaults_are_used(ask):
    defaults = {"project_name": "Mine", "script": "complete", "cluster": "former", "unknown": 1}
    created = ask("--no-input", config={"default_context": defaults})
    assert created.returncode == 0, created.stderr
    answers = {"project_slug": "mine", "script": "complete", "cluster": "none"}
    assert_answers_shown(answers, created.stdout)
    # cookiecutter itself reports the invalid choice.
    assert "former provided for choice variable cluster" in created.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("project_name", True), ("project_name", None), ("project_slug", None), ("project_slug", {})],
)
def test_user_default_that_is_not_text_is_rejected(name, value, ask, tmp_path):
    # YAML reads `project_name: yes` as a boolean, and `project_name:` as null.
    rejected = ask("--no-input", config={"default_context": {name: value}})
    assert rejected.returncode == 1
    assert f"{name} is {value!r}" in rejected.stderr
    assert "rule:      must be text; in a file, put it in quotes" in rejected.stderr
    assert_no_traceback(rejected.stderr)
    assert list(tmp_path.iterdir()) == []
    created = ask(*read_arguments(rejected.stderr))
    assert created.returncode == 0, created.stderr


# --------------------------------------------------------------------------------------------------
# Projects that already exist
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def existing(ask, tmp_path):
    """Return the folder of a project with a job file, an edit and a file of the user's."""
    assert ask("--no-input", "project_slug=mine", "cluster=slurm").returncode == 0
    folder = tmp_path / "mine"
    (folder / "notes.txt").write_text("mine\n", encoding="utf-8")
    with open(folder / "train.py", "a", encoding="utf-8") as file:
        file.write("# mine\n")
    return folder


def test_existing_project_is_not_overwritten(ask, existing):
    with assert_unchanged(existing):
        rejected = ask("--no-input", "project_slug=mine")
    assert rejected.returncode == 1
    assert rejected.stdout == f'Error: "{existing.name}" directory already exists\n'


def test_overwriting_keeps_and_reports_files_of_another_cluster(ask, existing, tmp_path):
    created = ask("--no-input", "-f", "project_slug=mine")
    assert created.returncode == 0, created.stderr
    leftover = "Not part of this project, from an earlier choice of cluster: launch/slurm.sbatch\n"
    assert leftover in created.stdout
    assert ask("--no-input", "project_slug=mine", "-o", "new").returncode == 0
    new = read_files(tmp_path / "new" / "mine")
    files = read_files(existing)
    assert files.pop("notes.txt") == "mine\n"
    assert files.pop("launch/slurm.sbatch")
    assert files == new  # including train.py, whose edit -f discards


def test_skip_option_keeps_existing_files(ask, existing):
    (existing / "README.md").unlink()
    before = hash_tree(existing)
    created = ask("--no-input", "-f", "-s", "project_slug=mine", "cluster=slurm")
    assert created.returncode == 0, created.stderr
    after = hash_tree(existing)
    assert after.pop("README.md")
    assert after == before


def test_rejected_answers_leave_an_existing_project_unchanged(ask, existing):
    with assert_unchanged(existing):
        rejected = ask("--no-input", "-f", "project_slug=mine", "project_name= x")
    assert rejected.returncode == 1
    message = rejected.stderr.partition("cookiecutter's own report")[0]
    assert "Add -f again, and -s if you used it." in message
    again = ask("-f", *read_arguments(message))
    assert again.returncode == 0, again.stderr


def test_message_without_an_existing_project_does_not_mention_overwriting(ask):
    rejected = ask("--no-input", "project_slug=class")
    assert rejected.returncode == 1
    assert "-f again" not in rejected.stderr


def test_project_without_hooks_is_identical(ask, tmp_path):
    name = "project_name=$(touch pwned)"
    with_hooks = ask("--no-input", "-o", "one", name)
    without = ask("--no-input", "-o", "two", "--accept-hooks", "no", name)
    assert (with_hooks.returncode, without.returncode) == (0, 0)
    assert without.stdout == ""
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")
    assert list(tmp_path.rglob("pwned")) == []


# --------------------------------------------------------------------------------------------------
# Other operating systems
# --------------------------------------------------------------------------------------------------

# Characters and endings that Windows rejects in the name of a file or folder.
REJECTED_BY_WINDOWS = re.compile(r'["|<>:?*\\\x00-\x1f]|[. ]$', re.MULTILINE)


def list_template():
    """Return the paths of the template's files, including tests, as in a checkout."""
    if not (TEMPLATE / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=TEMPLATE,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return [path for path in listed.stdout.split("\0") if path and (TEMPLATE / path).exists()]


def assert_portable(paths):
    """Assert that each path is valid on Linux, macOS and Windows."""
    devices = load_hook("pre_gen_project").DEVICES
    for path in paths:
        assert len(path) < 160  # Windows allows 260 characters, including the parent folder.
        for name in path.split("/"):
            assert not REJECTED_BY_WINDOWS.search(name), path
            assert name.partition(".")[0].lower() not in devices, path
            assert name.isascii(), path  # macOS encodes é in another way.
    assert len({path.lower() for path in paths}) == len(paths)


def test_template_can_be_checked_out_on_any_system():
    paths = list_template()
    assert "cookiecutter.json" in paths
    assert_portable(paths)
    for path in paths:
        if not path.endswith((".png", ".gif")):
            assert b"\r" not in (TEMPLATE / path).read_bytes(), path
    assert "* text=auto eol=lf" in (TEMPLATE / ".gitattributes").read_text(encoding="utf-8")


@pytest.mark.parametrize("cluster", CHOICES["cluster"])
def test_project_can_be_checked_out_on_any_system(cluster, render, tmp_path):
    # The other choices don't change the names of the files.
    assert_portable(read_files(render(tmp_path, accept_hooks=False, cluster=cluster)))


def copy_template_with_crlf(folder):
    """Copy the template into a folder, with Windows line ends. Return the copy."""
    copy = folder / "template"
    for part in ("hooks", "templates", "{{cookiecutter.project_slug}}"):
        shutil.copytree(TEMPLATE / part, copy / part)
    shutil.copy(TEMPLATE / "cookiecutter.json", copy)
    for path in copy.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    return copy


def read_bytes(folder):
    """Return the bytes of every file below a folder, by relative path."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_template_with_crlf_renders_files_with_lf(cookiecutter_environment, tmp_path):
    rendered = {}
    for template in (TEMPLATE, copy_template_with_crlf(tmp_path)):
        output = tmp_path / f"output-{len(rendered)}"
        command = [sys.executable, "-m", "cookiecutter", str(template), "--no-input"]
        finished = subprocess.run(
            [*command, "-o", str(output), "cluster=slurm", "project_slug=x"],
            env=cookiecutter_environment,
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        rendered[template] = read_bytes(output)
    expected, files = rendered.values()
    assert files == expected
    assert b"\r" not in b"".join(files.values())
