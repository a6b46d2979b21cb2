"""The questions in a terminal, and the ways around them: replays, defaults, folders that exist.

Nothing here imports TensorFlow or trains.
"""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from conftest import TEMPLATE, hash_tree, read_questions
from test_rendering import CONTEXT, FILES, FILES_OF, read_command, read_files

QUESTIONS = read_questions()
CHOICES = {name: value for name, value in QUESTIONS.items() if isinstance(value, list)}
COLUMNS = 80


@pytest.fixture
def ask(cookiecutter_environment, tmp_path):
    """Return a function that runs cookiecutter on the template, without a terminal."""

    def run_cookiecutter(*arguments, config=None, **options):
        if config is not None:
            path = cookiecutter_environment["COOKIECUTTER_CONFIG"]
            with open(path, encoding="utf-8") as file:
                config = json.load(file) | config
            with open(path, "w", encoding="utf-8") as file:
                json.dump(config, file)
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
    """Return the arguments of the command to paste, behind the template."""
    return shlex.split(read_command(message)[0])[2:]


def find_replay(env):
    folder = os.path.join(env["HOME"], "replay_dir")
    [name] = os.listdir(folder)
    return os.path.join(folder, name)


# --------------------------------------------------------------------------------------------------
# In a terminal
# --------------------------------------------------------------------------------------------------


class Terminal:
    """A command that runs in a terminal, and what it has shown there."""

    def __init__(self, command, env, cwd):
        self.end, its_end = pty.openpty()
        fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("4H", 24, COLUMNS, 0, 0))
        env = {**env, "TERM": "xterm", "COLUMNS": str(COLUMNS)}
        self.process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            start_new_session=True,
            preexec_fn=self.take_terminal,
        )
        os.close(its_end)
        self.shown, self.read = "", b""

    @staticmethod
    def take_terminal():
        """Have Ctrl-C reach the command, and end it, also where the tests run in the background."""
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def read_until(self, *texts):
        """Read until one of the texts is shown. Return what was, up to there."""
        began, start = time.monotonic(), len(self.shown)
        while not any(text in self.shown[start:] for text in texts):
            assert time.monotonic() - began < 60, self.shown
            if not select.select([self.end], [], [], 1)[0]:
                continue
            try:
                self.read += os.read(self.end, 4096)
            except OSError:  # Linux says so that the other end is closed.
                break
            text = self.read.decode("utf-8", errors="ignore")  # of half a character, say
            self.shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text)  # bold and the like
        return self.shown[start:]

    def type(self, text):
        os.write(self.end, text.encode("utf-8"))

    def finish(self):
        """Return the exit code, once all is shown."""
        self.read_until("no text has\0this")
        os.close(self.end)
        return self.process.wait(timeout=60)


@pytest.fixture
def terminal(cookiecutter_environment, tmp_path):
    """Return cookiecutter in a terminal, at its first question."""
    command = [sys.executable, "-m", "cookiecutter", str(TEMPLATE)]
    terminal = Terminal(command, cookiecutter_environment, tmp_path)
    yield terminal
    terminal.process.kill()
    terminal.process.wait()


def answer_all(terminal, texts, wrong=()):
    """Answer each question: those for a text by `texts`, the others by the last of their choices,
    after answers that are wrong. Return what each of them showed."""
    shown = {}
    for question, value in QUESTIONS.items():
        tries = [texts[question]] if question in texts else [*wrong, str(len(value))]
        shown[question] = ""
        for text in tries:
            shown[question] += terminal.read_until("): ")
            terminal.type(f"{text}\n")
    return shown


def test_each_question_explains_itself_in_a_line(terminal, tmp_path):
    shown = answer_all(terminal, {"project_name": "It's {{ mine }}", "project_slug": ""})
    assert terminal.finish() == 0
    for number, question in enumerate(QUESTIONS, start=1):
        prompt = CONTEXT["__prompts__"][question]
        text = prompt["__prompt__"] if isinstance(prompt, dict) else prompt
        line = f"  [{number}/{len(QUESTIONS)}] {text}"
        labels = [f"    {n} - {prompt[x]}" for n, x in enumerate(CHOICES.get(question, []), 1)]
        for each in (line, *labels):
            assert len(each) <= COLUMNS  # or the terminal would break it
            assert each in shown[question]
    assert {path.name for path in tmp_path.iterdir()} == {"it_s_mine"}


def test_wrong_choice_costs_no_other_answer(terminal, tmp_path):
    texts = {"project_name": "Mine", "project_slug": "mine"}
    shown = answer_all(terminal, texts, wrong=("9", "complete", "0", "-1", "{{ 7 }}"))
    assert terminal.finish() == 0
    for number, question in enumerate(QUESTIONS, start=1):
        asked = 6 if question in CHOICES else 1
        assert terminal.shown.count(f"[{number}/{len(QUESTIONS)}]") == asked
        assert shown[question].count("Please select one of the available options") == asked - 1
    answers = texts | {question: choices[-1] for question, choices in CHOICES.items()}
    for question, answer in answers.items():
        assert re.search(rf"(?m)^  {question} +{answer}\r$", terminal.shown)
    folder = tmp_path / "mine"
    closing = f"  cd {folder}\r\n  uv run train.py\r\n  uv run pytest\r\n"
    assert closing in terminal.shown
    assert set(read_files(folder)) == FILES | FILES_OF[CHOICES["cluster"][-1]]


def test_wrong_text_costs_no_other_answer(terminal, cookiecutter_environment, tmp_path):
    answer_all(terminal, {"project_name": "It's {{ mine }}", "project_slug": "class"})
    assert terminal.finish() == 1
    assert "Traceback" not in terminal.shown.partition("cookiecutter's own report")[0]
    command, marks = read_command(terminal.shown)
    assert command[marks.index("^") : marks.rindex("^") + 1] == "project_slug=class_project"
    assert list(tmp_path.iterdir()) == []
    pasted = Terminal(["sh", "-c", command], cookiecutter_environment, tmp_path)
    assert pasted.finish() == 0
    answers = {question: choices[-1] for question, choices in CHOICES.items()}
    for question, answer in {**answers, "project_name": "It's {{ mine }}"}.items():
        assert re.search(rf"(?m)^  {question} +{re.escape(answer)}\r$", pasted.shown)
    assert [path.name for path in tmp_path.iterdir()] == ["class_project"]


def test_ctrl_c_between_two_questions_makes_nothing(terminal, tmp_path):
    terminal.read_until("): ")
    terminal.type("Mine\n")
    terminal.read_until("): ")
    terminal.type("\x03")
    assert terminal.finish() == 1
    assert "Traceback" not in terminal.shown
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------
# Replays and defaults
# --------------------------------------------------------------------------------------------------


def test_replay_gives_the_same_project(ask, tmp_path):
    first = ask("--no-input", "-o", "one", "project_name={{ 'a { b' }}", "script=complete")
    again = ask("--replay", "-o", "two")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")
    assert first.stdout == again.stdout.replace(str(tmp_path / "two"), str(tmp_path / "one"))


@pytest.mark.parametrize("choice", CHOICES)
def test_replay_of_before_a_question_asks_just_that(choice, ask, cookiecutter_environment):
    assert ask("--no-input", "-o", "one").returncode == 0
    change_replay(cookiecutter_environment, lambda answers: answers.pop(choice))
    again = ask("--replay", "-o", "two", input="2\n")
    assert again.returncode == 0, again.stderr
    assert f"[1/1] {CONTEXT['__prompts__'][choice]['__prompt__']}" in again.stdout
    assert re.search(rf"(?m)^  {choice} +{CHOICES[choice][1]}$", again.stdout)


def change_replay(env, change):
    path = find_replay(env)
    with open(path, encoding="utf-8") as file:
        context = json.load(file)
    change(context["cookiecutter"])
    with open(path, "w", encoding="utf-8") as file:
        json.dump(context, file)


@pytest.mark.parametrize("choice", CHOICES)
def test_replay_of_a_choice_that_is_no_more_is_refused(
    choice, ask, cookiecutter_environment, tmp_path
):
    assert ask("--no-input", "-o", "one").returncode == 0
    change_replay(cookiecutter_environment, lambda x: x.update({choice: "former"}))
    refused = ask("--replay", "-o", "two")
    assert refused.returncode == 1
    assert f"{choice} is 'former'" in refused.stderr
    assert f"rule:      it is one of: {', '.join(CHOICES[choice])}" in refused.stderr
    assert list((tmp_path / "two").iterdir()) == []
    command, marks = read_command(refused.stderr)
    default = f"{choice}={CHOICES[choice][0]}"
    assert command[marks.index("^") : marks.rindex("^") + 1] == default


def test_hook_knows_the_choices():
    from test_rendering import load_hook

    assert load_hook("pre_gen_project").CHOICES == CHOICES


def test_defaults_of_a_user_are_taken(ask, tmp_path):
    defaults = {"project_name": "Mine", "script": "complete", "cluster": "former", "unknown": 1}
    made = ask("--no-input", config={"default_context": defaults})
    assert made.returncode == 0, made.stderr
    for question, answer in (("project_slug", "mine"), ("script", "complete"), ("cluster", "none")):
        assert re.search(rf"(?m)^  {question} +{answer}$", made.stdout)
    assert "former provided for choice variable cluster" in made.stderr  # by cookiecutter


@pytest.mark.parametrize(
    ("text", "value"),
    [("project_name", True), ("project_name", None), ("project_slug", None), ("project_slug", {})],
)
def test_default_that_is_no_text_is_refused(text, value, ask, tmp_path):
    # As YAML reads `project_name: yes`, or nothing at all behind the colon.
    refused = ask("--no-input", config={"default_context": {text: value}})
    assert refused.returncode == 1
    assert f"{text} is {value!r}" in refused.stderr
    assert "rule:      it is a text, in quotes where a file has it" in refused.stderr
    report = refused.stderr.partition("cookiecutter's own report")[0]
    assert "Traceback" not in report
    assert list(tmp_path.iterdir()) == []
    made = ask(*read_arguments(refused.stderr))
    assert made.returncode == 0, made.stderr


# --------------------------------------------------------------------------------------------------
# Folders that exist
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def older(ask, tmp_path):
    """Return the folder of a project with a job file, an edit and a file of the user's."""
    assert ask("--no-input", "project_slug=mine", "cluster=slurm").returncode == 0
    folder = tmp_path / "mine"
    (folder / "notes.txt").write_text("mine\n", encoding="utf-8")
    with open(folder / "train.py", "a", encoding="utf-8") as file:
        file.write("# mine\n")
    return folder


def test_folder_that_exists_is_left_alone(ask, older):
    before = hash_tree(older)
    refused = ask("--no-input", "project_slug=mine")
    assert refused.returncode == 1
    assert refused.stdout == f'Error: "{older.name}" directory already exists\n'
    assert hash_tree(older) == before


def test_overwriting_leaves_what_is_not_its_own_and_says_so(ask, older, tmp_path):
    made = ask("--no-input", "-f", "project_slug=mine")
    assert made.returncode == 0, made.stderr
    assert "Left from before, of another cluster: launch/slurm.sbatch\n" in made.stdout
    assert ask("--no-input", "project_slug=mine", "-o", "new").returncode == 0
    new = read_files(tmp_path / "new" / "mine")
    now = read_files(older)
    assert now.pop("notes.txt") == "mine\n"
    assert now.pop("launch/slurm.sbatch")
    assert now == new  # train.py too: that is what -f asks for


def test_overwriting_can_keep_edits(ask, older):
    (older / "README.md").unlink()
    before = hash_tree(older)
    made = ask("--no-input", "-f", "-s", "project_slug=mine", "cluster=slurm")
    assert made.returncode == 0, made.stderr
    after = hash_tree(older)
    assert after.pop("README.md")
    assert after == before


def test_refused_overwriting_touches_nothing(ask, older):
    before = hash_tree(older)
    refused = ask("--no-input", "-f", "project_slug=mine", "project_name= x")
    assert refused.returncode == 1
    assert hash_tree(older) == before
    message = refused.stderr.partition("What follows")[0]
    assert "add -f again, and -s if you gave it" in message
    again = ask("-f", *read_arguments(message))
    assert again.returncode == 0, again.stderr


def test_refusal_without_a_folder_asks_for_no_option(ask):
    assert "-f again" not in ask("--no-input", "project_slug=class").stderr


def test_hooks_may_be_left_out(ask, tmp_path):
    with_hooks = ask("--no-input", "-o", "one", "project_name=$(touch pwned)")
    without = ask("--no-input", "-o", "two", "--accept-hooks", "no", "project_name=$(touch pwned)")
    assert (with_hooks.returncode, without.returncode) == (0, 0)
    assert without.stdout == ""
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")
    assert list(tmp_path.rglob("pwned")) == []


# --------------------------------------------------------------------------------------------------
# Other systems
# --------------------------------------------------------------------------------------------------

REFUSED_BY_WINDOWS = re.compile(r'["|<>:?*\\\x00-\x1f]|[. ]$', re.MULTILINE)


def list_template():
    """Return the paths of the template's files, of tests too, as it is checked out."""
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
    from test_rendering import load_hook

    devices = load_hook("pre_gen_project").DEVICES
    for path in paths:
        assert len(path) < 160  # of Windows's 260, with the folder that it is in
        for name in path.split("/"):
            assert not REFUSED_BY_WINDOWS.search(name), path
            assert name.partition(".")[0].lower() not in devices, path
            assert name.isascii(), path  # macOS has other bytes for é
    assert len({path.lower() for path in paths}) == len(paths)


def test_template_can_be_checked_out_anywhere():
    paths = list_template()
    assert "cookiecutter.json" in paths
    assert_portable(paths)
    for path in paths:
        if not path.endswith((".png", ".gif")):
            assert b"\r" not in (TEMPLATE / path).read_bytes(), path
    assert "* text=auto eol=lf" in (TEMPLATE / ".gitattributes").read_text(encoding="utf-8")


def test_project_can_be_checked_out_anywhere(answers, render, tmp_path):
    assert_portable(read_files(render(tmp_path, accept_hooks=False, **answers)))


def test_template_with_carriage_returns_gives_line_feeds(cookiecutter_environment, tmp_path):
    template = tmp_path / "template"
    for part in ("hooks", "templates", "{{cookiecutter.project_slug}}"):
        shutil.copytree(TEMPLATE / part, template / part)
    shutil.copy(TEMPLATE / "cookiecutter.json", template)
    for path in template.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    for source, folder in ((TEMPLATE, "one"), (template, "two")):
        command = [sys.executable, "-m", "cookiecutter", str(source), "--no-input", "-o", folder]
        answers = ["cluster=slurm", "project_slug=x"]
        made = subprocess.run(
            [*command, *answers],
            env=cookiecutter_environment,
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
        )
        assert made.returncode == 0, made.stderr
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / x).rglob("*") if path.is_file()}
        for x in ("one", "two")
    )
    assert one == two
    assert b"\r" not in b"".join(two.values())
