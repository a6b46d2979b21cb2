"""Random input: answers, command lines, TF_CONFIGs and corrupt run directories.

All of it is taken as text or rejected in words, with one of the exit codes and no traceback, and
what is rejected changes no file. A sample runs each time, the same one unless FAULTS_SEED is set.
This runs 500 answers, 300 command lines and 200 corruptions, others each time:

    HOSTILE=all FAULTS_SEED=$RANDOM python3 -m uv run pytest tests/test_fuzzing.py
"""

import ast
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import typing
from pathlib import Path

import hypothesis
import pytest
from click.testing import CliRunner
from cookiecutter.cli import main as cookiecutter
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from rendering import (
    FILES,
    QUESTIONS,
    SIZES,
    TEMPLATE,
    as_constant,
    assert_ruff_clean,
    load_hook,
    write_user_config,
)
from running import environment, find_flags, finish, fork, run_script, tf_config, train
from test_rendering import HOSTILE_PIECES, read_command
from variants import SMALL_IMAGES, write_variant

ALL = os.environ.get("HOSTILE") == "all"
SEED = int(os.environ.get("FAULTS_SEED", 0))


@pytest.fixture
def chance(request):
    """Return a generator of random numbers, the same in each session unless FAULTS_SEED is set."""
    return random.Random(f"{SEED} {request.node.name}")


def split_counts(sample, *others):
    """Parametrize a test by part and count: a sample, and with HOSTILE=all the others."""
    counts = [sample, *others] if ALL else [sample]
    return pytest.mark.parametrize(("part", "count"), list(enumerate(counts)))


# --------------------------------------------------------------------------------------------------
# Answers
# --------------------------------------------------------------------------------------------------

HOOK = load_hook("pre_gen_project")
CODE = [
    '"; import os; os.system("touch $P") #',
    "'''; __import__('os').system('touch $P') #",
    '"""; __import__("os").system("touch $P") #',
    "$(touch $P) `touch $P`; touch $P",
    "{{ cycler.__init__.__globals__.os.system('touch $P') }}",
    "# {% for x in ().__class__.__base__.__subclasses__() %}",
    "\n__import__('os').system('touch $P')\n",
    '"]\n[tool.x]\nx = "',
    "\n# ///\n",
    "\\N{DASH} \\u0041 \\",
]
# Format characters of Unicode, and what is special to formatting, shells and paths.
DIRECTIONS = "\u200e \u200f \u061c \u202a \u202e \u2066 \u2069 \ufeff \u200b".split(" ")
MARKS = [*DIRECTIONS, *"%s %(x)s % {} {0!r} ${x} .. ../ / \\ : C:\\ ~ -".split()]
PIECES = st.sampled_from([*(x for x in HOSTILE_PIECES if x != "\udc80"), *MARKS, *CODE])
LONG_TEXTS = ["x", "é", "日", "\u0301", "'", "{", "a/", "../", "\u202e"]
TEXTS = st.one_of(
    st.lists(PIECES, max_size=6).map("".join),
    st.text(max_size=70),
    st.sampled_from(CODE),
    st.sampled_from(LONG_TEXTS).map(lambda text: text * 10_000),
)
BAD_SLUGS = ["con", "Nul", "../x", "a/b", ".", "..", "", "/", "tensorflow", "--help"]
SLUGS = st.one_of(
    st.none(),  # The slug then follows from the name.
    TEXTS,
    st.from_regex(r"[a-z][a-z0-9_]{0,60}", fullmatch=True),
    st.sampled_from(BAD_SLUGS),
)
MANNERS = ["given", "typed", "rendered"]
LINE_ENDS = re.compile(r"[\n\r\x00\x85\x0b\x0c\x1c-\x1e\u2028\u2029]")
SETTINGS = {
    "database": None,
    "deadline": None,
    "suppress_health_check": list(hypothesis.HealthCheck),
    "phases": [hypothesis.Phase.generate, hypothesis.Phase.shrink],
    "print_blob": False,
}


class Generation(typing.NamedTuple):
    """How cookiecutter ended, and what the hooks wrote."""

    code: int
    error: BaseException | None
    output: str
    errors: str
    shown: str = ""  # what cookiecutter wrote


class Sandbox:
    """A folder in which cookiecutter runs, far below it, and what may change in there."""

    def __init__(self, folder, kept, monkeypatch):
        self.folder = folder
        self.kept = kept  # the folder of one project for each slug
        self.output = folder / "a" / "b" / "c" / "d" / "output"
        self.output.mkdir(parents=True)
        self.config = write_user_config(folder)
        monkeypatch.setenv("P", str(folder / "pwned"))
        monkeypatch.chdir(self.output.parent)
        options = ["--config-file", str(self.config), "-o", str(self.output)]
        self.arguments = [str(TEMPLATE), *options]

    def read_replay(self):
        """Return the answers that cookiecutter has stored."""
        [path] = (self.folder / "replay_dir").glob("*.json")
        return json.loads(path.read_text(encoding="utf-8"))["cookiecutter"]

    def find_other_files(self):
        """Return the files that are neither below the target nor cookiecutter's own."""
        own = {self.config, *(self.folder / "replay_dir").glob("*")}
        found = {path for path in self.folder.rglob("*") if not path.is_dir()}
        return {path for path in found - own if not path.is_relative_to(self.output)}

    def find_output_files(self):
        return [path for path in self.output.rglob("*") if not path.is_dir()]

    def clean(self):
        shutil.rmtree(self.folder / "a")
        self.output.mkdir(parents=True)
        os.chdir(self.output.parent)


@pytest.fixture
def sandbox(tmp_path, tmp_path_factory, monkeypatch):
    return Sandbox(tmp_path, tmp_path_factory.mktemp("kept"), monkeypatch)


@pytest.fixture(scope="module")
def plain_tree(render, tmp_path_factory):
    """Return train.py's syntax tree without its docstring, of a project with a plain name."""
    script = render(tmp_path_factory.mktemp("plain"), project_slug="plain") / "train.py"
    tree = ast.parse(script.read_bytes())
    tree.body.pop(0)
    return ast.dump(tree)


@contextlib.contextmanager
def capture(descriptor):
    """Yield a list that has, after the block, what was written to a file descriptor."""
    texts = []
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield texts
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)
            file.seek(0)
            texts.append(file.read().decode("utf-8"))


def generate(sandbox, answers, is_typed):
    """Run cookiecutter in this process, as its console script does."""
    arguments = sandbox.arguments
    lines = []
    if is_typed:
        lines = [answers.get(question, "") for question in QUESTIONS]
    else:
        given = [f"{name}={answer}" for name, answer in answers.items()]
        arguments = [*arguments, "--no-input", *given]
    sys.stdout.flush()
    with capture(1) as output, capture(2) as errors:
        result = CliRunner().invoke(cookiecutter, arguments, input="\n".join([*lines, ""]))
    error = result.exception
    if isinstance(error, SystemExit):
        error = None
    return Generation(result.exit_code, error, output[0], errors[0], result.output)


def generate_in_process(sandbox, answers):
    """Run cookiecutter in a process of its own."""
    given = [f"{name}={answer}" for name, answer in answers.items()]
    finished = subprocess.run(
        [Path(sys.executable).with_name("cookiecutter"), *sandbox.arguments, "--no-input", *given],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    # cookiecutter reports the exit code of a hook by a traceback.
    output = finished.stdout.partition("ERROR: Stopping generation")[0]
    message = finished.stderr.partition("cookiecutter's own report")[0]
    frames = re.findall(r'File "(.*?)", line', finished.stdout + finished.stderr)
    own_frames = [x for x in frames if "hook" in x and "cookiecutter/hooks.py" not in x]
    assert not own_frames, finished
    if "Traceback" in message:
        return Generation(finished.returncode, OSError(), output, "", message)
    return Generation(finished.returncode, None, output, message)


def assert_rendered(project, name, plain_tree):
    """Assert that a project has its files, and its name as text."""
    assert list(project.parent.iterdir()) == [project]
    files = {x.relative_to(project).as_posix() for x in project.rglob("*") if x.is_file()}
    assert files == FILES
    tree = ast.parse((project / "train.py").read_bytes())
    docstring = tree.body.pop(0).value.value
    assert docstring.startswith(f"{name}: ")
    assert ast.dump(tree) == plain_tree
    assert (project / "README.md").read_text(encoding="utf-8").startswith(f"# {name}\n")
    assert_described(project, name)


def assert_described(project, name):
    """Assert that pyproject.toml has a project's name and description."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    toml = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    assert toml["project"]["description"] == name
    assert toml["project"]["name"] == project.name


def read_accepted(command):
    """Return the answers in a command that a rejection has printed, by question."""
    words = shlex.split(command)[-len(QUESTIONS) :]
    accepted = dict(word.split("=", 1) for word in words)
    for question, answer in accepted.items():
        if "{" in answer:  # a template of one constant
            accepted[question] = json.loads(answer.removeprefix("{{ ").removesuffix(" }}"))
    return accepted


def assert_rejected_in_words(answers, message):
    """Assert that a rejection lists all broken rules, and has a command that breaks none."""
    faults = HOOK.find_faults(answers)
    assert faults
    assert "Traceback" not in message
    assert message.count("    rule: ") == sum(len(rules) for rules, _ in faults.values())
    command, marks = read_command(message)
    accepted = read_accepted(command)
    assert list(accepted) == list(QUESTIONS)
    assert not HOOK.find_faults(accepted)
    assert set(marks) <= set(" ^")


def judge(sandbox, generation, plain_tree):
    """Assert that answers were taken as text or rejected. Return which of these."""
    answers = sandbox.read_replay()
    if generation.code == 0:
        judge_project(sandbox, answers, generation, plain_tree)
        return "rendered"
    assert not sandbox.find_output_files()
    if generation.error is None and "No project was created" in generation.errors:
        assert generation.output == ""
        assert_rejected_in_words(answers, generation.errors)
        return "rejected"
    # cookiecutter itself rejects what names no new folder, before any hook.
    assert HOOK.broken_slug_rules(answers["project_slug"])
    assert generation.errors == ""
    assert isinstance(generation.error, OSError | ValueError | None)
    return "rejected by cookiecutter"


def judge_project(sandbox, answers, generation, plain_tree):
    """Assert that a project was rendered from valid answers. Keep one of each slug."""
    name = answers["project_name"]
    slug = answers["project_slug"]
    assert not HOOK.find_faults(answers)
    assert generation.errors == ""
    assert f"project_name  {name}\n" in generation.output
    assert_rendered(sandbox.output / slug, name, plain_tree)
    if not (sandbox.kept / slug).exists():
        shutil.move(sandbox.output / slug, sandbox.kept / slug)


def choose_manner(manner, name, slug):
    """Return how to pass answers: the wanted manner, if it can pass them."""
    if manner == "typed" and LINE_ENDS.search(name):
        return "given"
    if manner == "rendered" and "touch" in name + (slug or ""):
        return "given"  # cookiecutter itself runs a template that is given as an answer.
    return manner


def prepare_answers(manner, name, slug):
    """Return answers as they are passed in a manner."""
    answers = {"project_name": name}
    if slug is not None:
        answers["project_slug"] = slug
    if manner == "typed":  # one line each
        return {question: "".join(text.splitlines()) for question, text in answers.items()}
    if manner == "given":
        return {question: as_constant(text) for question, text in answers.items()}
    return answers


def is_template_error(generation):
    """Return whether cookiecutter could not render an answer."""
    kinds = (TemplateError, TypeError, RecursionError)
    return isinstance(generation.error, kinds) or "Unable to render" in generation.shown


def try_answers(sandbox, manner, name, slug, plain_tree):
    """Render with random answers. Return what became of them."""
    manner = choose_manner(manner, name, slug)
    generation = generate(sandbox, prepare_answers(manner, name, slug), manner == "typed")
    print(SEED, manner, repr(name), repr(slug), generation)
    assert not sandbox.find_other_files()
    if is_template_error(generation):
        assert manner == "rendered"
        assert (generation.output, generation.errors) == ("", "")
        return "an answer that is no template"
    if manner == "given":
        taken = sandbox.read_replay()
        assert taken["project_name"] == name
        assert slug in (None, taken["project_slug"])
    return judge(sandbox, generation, plain_tree)


@split_counts(20, 120, 120, 120, 120)
def test_answers_are_text_or_rejected(part, count, sandbox, plain_tree):
    outcomes = set()

    @hypothesis.seed(f"{SEED} {part}")
    @hypothesis.settings(max_examples=count, **SETTINGS)
    @hypothesis.given(TEXTS, SLUGS, st.sampled_from(MANNERS))
    def answer(name, slug, manner):
        outcomes.add(try_answers(sandbox, manner, name, slug, plain_tree))
        sandbox.clean()

    answer()
    assert "rendered" in outcomes
    assert_ruff_clean(["."], sandbox.kept)
    for project in list(sandbox.kept.iterdir())[:2]:
        outcome = run_script(project / "train.py", "--help")
        assert (outcome.code, outcome.errors) == (0, "")
        assert "--run-dir" in outcome.output


@split_counts(2, 18)
def test_answers_to_whole_processes_are_text_or_rejected(part, count, sandbox, plain_tree):
    @hypothesis.seed(f"{SEED} processes {part}")
    @hypothesis.settings(max_examples=count, **SETTINGS)
    @hypothesis.given(TEXTS.filter(lambda text: "\0" not in text), SLUGS)
    def answer(name, slug):
        answers = prepare_answers("given", name, slug)
        answers = {question: text.replace("\0", "") for question, text in answers.items()}
        generation = generate_in_process(sandbox, answers)
        print(SEED, answers, generation)
        assert not sandbox.find_other_files()
        judge(sandbox, generation, plain_tree)
        sandbox.clean()

    answer()


# --------------------------------------------------------------------------------------------------
# Command lines
# --------------------------------------------------------------------------------------------------

CODES = {0, 1, 2, 143}
NUMBERS = "1 2 3 7 16 64 66 -1 0 -0 1.5 1e-3 1e30 1e-320 1e999 nan inf -inf 0x10 ² ٣ 1_0".split()
NUMBERS += ["", " ", "9" * 30, "2147483648"]
WORDS = "train evaluate continuous_evaluate auto one_device mirrored tpu constant cosine".split()
WORDS += "linear float32 mixed_bfloat16 TRAIN none None".split()
PATHS = "run file file/run other empty . .. a/b/c gs://bucket/run http://x/y ~ $HOME %s {}".split()
PATHS += "{x!r} a'b\"c /proc/run /dev/null \udcff loop dangling - * closed closed/run".split()
PATHS += ["nowhere/../run", "\u202e", "run[1]", "", " ", "ü 日本", "x" * 300, "y" * 10_000]
PATHS += ["two\nlines", "\x1b[31mred"]
HOSTILE = [*CODE, *MARKS, *"-- - --- --=x = @file --help=1 -hh".split(), "\ud800x"[1:]]
LIKELY = {
    "--run-dir": PATHS,
    "--init-checkpoint": PATHS,
    "--mode": WORDS,
    "--strategy": WORDS,
    "--schedule": WORDS,
    "--precision": WORDS,
}


def make_line(chance, flags):
    """Return a random command line."""
    line = []
    for _ in range(chance.choice([1, 1, 2, 2, 3, 5])):
        flag = chance.choice(flags)
        likely = LIKELY.get(flag, NUMBERS)
        values = chance.choice([likely] * 6 + [NUMBERS, WORDS, PATHS, HOSTILE])
        value = chance.choice(values)
        forms = [[flag, value]] * 6 + [[f"{flag}={value}"]] * 3
        line += chance.choice([*forms, [flag], [value], [flag[:-1]]])
    return [word.replace("\0", "") for word in line]


# Root may read and write everything, unless it gives up its capabilities.
WITHOUT_CAPABILITIES = """
import ctypes

ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)())
"""


@pytest.fixture(scope="session")
def small_scripts(scripts, tmp_path_factory):
    """Return the scripts of both sizes, with little data and no more rights than other users."""
    folders = {size: tmp_path_factory.mktemp(size) for size in SIZES}
    code = (SMALL_IMAGES, WITHOUT_CAPABILITIES)
    return {size: write_variant(scripts[size], folders[size], *code) for size in SIZES}


def describe_tree(folder):
    """Return the content and time of change of what can be read, and the targets of links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        key = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[key] = os.readlink(path)
        else:
            content = path.read_bytes() if path.is_file() else "folder"
            found[key] = (path.lstat().st_mtime_ns, content)
    return found


def run_for(seconds, script, line, env):
    """Run a script. End it after some seconds: it may train, or wait for others."""
    process = fork(script, *line, env=env)
    alarm = threading.Timer(seconds, process.send_signal, [signal.SIGTERM])
    alarm.start()
    outcome = finish(process)
    alarm.cancel()
    return outcome


def find_wrongs(outcome, is_changed, left):
    """Return what is wrong with how a script ended."""
    code, _, errors = outcome
    begin = {0: "", 1: "train.py: stopped: ", 2: "train.py: error: "}.get(code, "")
    is_one_line = len(errors.splitlines()) == 1 and errors.startswith(begin)
    # TensorFlow may warn about its own list of checkpoints.
    is_warning = re.fullmatch(r"(WARNING:tensorflow:.*\n)*", errors)
    wrongs = {
        f"exit code {code}": code not in CODES,
        "a traceback": "Traceback" in errors,
        "errors": code == 0 and not is_warning,
        "not one line": code in (1, 2) and not is_one_line,
        "files changed": code == 2 and is_changed,
        # The essential script leaves the files of AutoGraph, which compiles hooks.
        "files left": code == 2 and any("__autograph" not in name for name in left),
    }
    return [name for name, is_wrong in wrongs.items() if is_wrong]


def try_line(script, folder, line, seconds=20, **variables):
    """Run a script in a folder, on a command line. Return the exit code, and what is wrong."""
    outcome, wrong = run_line(script, folder, line, seconds, **variables)
    return outcome.code, wrong


def run_line(script, folder, line, seconds=20, **variables):
    """Run a script in a folder, on a command line. Return the outcome, and what is wrong."""
    shutil.copy(script, folder)
    scratch = folder.parent / f"{folder.name}-scratch"
    scratch.mkdir()
    before = describe_tree(folder)
    env = environment(TMPDIR=str(scratch), **variables)
    outcome = run_for(seconds, folder / "train.py", line, env)
    if variables and outcome.code == -signal.SIGTERM:
        # The essential script has no handler while TensorFlow waits for another worker.
        outcome = outcome._replace(code=143)
    is_changed = describe_tree(folder) != before
    wrongs = find_wrongs(outcome, is_changed, os.listdir(scratch))
    if not wrongs:
        return outcome, None
    ends = f"{outcome.output[-2000:]}\n{outcome.errors[-4000:]}"
    return outcome, f"{', '.join(wrongs)}: {variables} {line}\n{ends}"


def assert_all_right(ends, are_some_rejected=True):
    """Assert that nothing is wrong, and that some commands were rejected."""
    codes = [code for code, _ in ends]
    print({code: codes.count(code) for code in set(codes)})
    wrongs = [wrong for _, wrong in ends if wrong]
    assert not wrongs, f"FAULTS_SEED={SEED}\n" + "\n".join(wrongs)
    assert 2 in codes or not are_some_rejected


def furnish(folder):
    """Create a folder with what PATHS name."""
    folder.mkdir(parents=True)
    (folder / "file").write_text("mine")
    (folder / "empty").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text("mine")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nothing")
    (folder / "closed").mkdir(mode=0)


@pytest.fixture
def reopen(tmp_path):
    """Restore the permissions of folders after the test, so that pytest can remove them."""
    yield
    for folder, names, _ in os.walk(tmp_path):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)


def first_flags(size):
    """Return flags that make a run short which isn't rejected."""
    flags = ["--epochs", "1"]
    if size == "complete":
        flags += ["--timeout", "1"]
    return flags


@split_counts(8, 73, 73, 73, 73)
def test_random_command_lines_end_as_designed(part, count, small_scripts, tmp_path, chance, reopen):
    ends = []
    flags = {size: find_flags(script) for size, script in small_scripts.items()}
    for number in range(count):
        size = SIZES[number % 2]
        folder = tmp_path / str(number) / "folder"
        furnish(folder)
        line = [*first_flags(size), *make_line(chance, flags[size])]
        ends.append(try_line(small_scripts[size], folder, line))
    assert_all_right(ends)


# --------------------------------------------------------------------------------------------------
# TF_CONFIG
# --------------------------------------------------------------------------------------------------

VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    0.5,
    10**30,
    float("inf"),
    float("nan"),
]
VALUES += [
    [],
    [[]],
    [None],
    [1],
    {},
    {"a": 1},
    {"0": "localhost:1"},
]
VALUES += ["", "0", "x", "\n", "x" * 10_000, "日本", "\ud800"]
VALUES += "worker chief ps master evaluator localhost:1".split()
ADDRESSES = ["localhost:1", "localhost", "localhost:x", ":1", "localhost:99999", "", "\x00"]
VALUES += [[address] for address in [*ADDRESSES, "two\nlines:1"]]
BROKEN_TEXTS = ["[" * 100_000, "{", "nul", "0x1", " ", "\ufeff{}", "{}{}", "9" * 9999]
PIECES_OF_TEXT = ["\n", "'", '"', "}", "\\", "日", "\udcff"]


def create_config(chance):
    """Return a valid configuration."""
    jobs = chance.choice([["worker"], ["chief"], ["chief", "worker"]])
    cluster = {job: [f"localhost:{number}"] for number, job in enumerate(jobs, start=1)}
    return {"cluster": cluster, "task": {"type": jobs[0], "index": 0}}


def corrupt_config(config, chance):
    """Remove or replace an entry of a configuration."""
    entry = chance.choice([config, config.get("cluster"), config.get("task")])
    if not isinstance(entry, dict) or not entry:
        entry = config
    key = chance.choice([*entry, "worker", "type", "x"])
    if chance.randrange(4) == 0:
        entry.pop(key, None)
    else:
        entry[key] = chance.choice(VALUES)


def corrupt_text(text, chance):
    """Return a text that is cut, has one more character, or is another, in three of ten cases."""
    action = chance.randrange(10)
    position = chance.randrange(len(text) + 1)
    if action == 0:
        return text[:position]
    if action == 1:
        return text[:position] + chance.choice(PIECES_OF_TEXT) + text[position:]
    if action == 2:
        return chance.choice(BROKEN_TEXTS)
    return text


def make_config(chance):
    """Return a TF_CONFIG with some faults."""
    config = create_config(chance)
    for _ in range(chance.choice([1, 1, 2])):
        corrupt_config(config, chance)
    text = json.dumps(chance.choice([config] * 9 + VALUES))
    return corrupt_text(text, chance)


@split_counts(8, 46, 46)
def test_random_tf_configs_end_as_designed(part, count, small_scripts, tmp_path, chance):
    ends = []
    for number in range(count):
        size = SIZES[number % 2]
        folder = tmp_path / str(number)
        folder.mkdir()
        line = first_flags(size)
        if chance.randrange(4) == 0:
            line += ["--strategy", chance.choice(["multi_worker", "mirrored", "one_device"])]
        config = make_config(chance)
        ends.append(try_line(small_scripts[size], folder, line, TF_CONFIG=config))
    assert_all_right(ends)


# --------------------------------------------------------------------------------------------------
# Run directories
# --------------------------------------------------------------------------------------------------

CONTENTS = [b"", b"\0" * 9, b"\xff\xfe", b"{", b"[1]", b"null", b"1", b'"x"', b"[" * 100_000]
CONTENTS += [b"{}", b"[[1, 2]]", b'{"seed": 0}', b"\n\n", b"9" * 9999, b"def f(:\n", b"NaN"]
JUNK = "ckpt-copy.index ckpt-.index ckpt-99.index ckpt-7-b.index ckpt-x.data config.json.part"
JUNK += " metrics.jsonl.part export.part ckpt-3_temp .nfs0001"
LINE_VALUES = [
    1,
    "x",
    None,
    [],
    {},
    [1],
    True,
    float("inf"),
    float("nan"),
]
CONFIG_VALUES = [1, "x", "two\nlines", None, [], {}, "x" * 10_000, 10**30]


def cut(path, chance):
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size + 1)])


def flip(path, chance):
    content = bytearray(path.read_bytes() or b"\0")
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def fill(path, chance):
    path.write_bytes(chance.choice(CONTENTS))


def remove(path, chance):
    path.unlink()


def make_folder(path, chance):
    path.unlink()
    path.mkdir()
    if chance.randrange(2):
        (path / "file").write_text("mine")


def link_to_nothing(path, chance):
    path.unlink()
    path.symlink_to(chance.choice(["nothing", path.name]))


def close_file(path, chance):
    path.chmod(chance.choice([0, 0o400, 0o200]))


def close_folder(path, chance):
    path.parent.chmod(chance.choice([0, 0o500, 0o400, 0o100, 0o600]))


def add_junk(path, chance):
    other = path.with_name(chance.choice([*JUNK.split(), f"{path.name}.bak"]))
    if chance.randrange(3):
        shutil.copy(path, other)
    else:
        other.mkdir()


def corrupt_line(line, chance):
    """Return a corrupt line of the log."""
    action = chance.randrange(4)
    values = json.loads(line)
    if action == 0:
        return line[: chance.randrange(len(line))] + chance.choice(["", "}"])
    if action == 1:
        return json.dumps(chance.choice(LINE_VALUES))
    if action == 2 and values:
        values.pop(chance.choice(list(values)))
        return json.dumps(values)
    key = chance.choice([*values, "step", "split", "x"])
    values[key] = chance.choice([*LINE_VALUES, -1, 10**30, "1"])
    return json.dumps(values)


def corrupt_lines(path, chance):
    """Corrupt a line of the log, and maybe its end."""
    log = path.parent / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() or ["{}"]
    number = chance.randrange(len(lines))
    lines[number] = corrupt_line(lines[number], chance)
    end = chance.choice(["\n", "", "\n\n"])
    log.write_text("\n".join(lines) + end, encoding="utf-8")


def corrupt_values(path, chance):
    """Corrupt a value of the configuration."""
    path = path.parent / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    key = chance.choice(list(config))
    if chance.randrange(2):
        config.pop(key)
    else:
        config[key] = chance.choice(CONFIG_VALUES)
    path.write_text(json.dumps(config), encoding="utf-8")


FILE_CORRUPTIONS = [
    cut,
    flip,
    fill,
    remove,
    make_folder,
    link_to_nothing,
    close_file,
    close_folder,
    add_junk,
]
RECORD_CORRUPTIONS = [corrupt_lines, corrupt_lines, corrupt_values]


@pytest.fixture(scope="session")
def finished_runs(small_scripts, tmp_path_factory):
    """Return the folder of a finished run of each size."""
    folders = {}
    for size, script in small_scripts.items():
        folder = tmp_path_factory.mktemp("finished")
        train(write_variant(script, folder), "--epochs", "2")
        folders[size] = folder / "run"
    return folders


def choose_file(run_dir, chance):
    """Return a file of a run, in half of the cases one of its records."""
    files = [path for path in sorted(run_dir.rglob("*")) if path.is_file()]
    names = ("config.json", "metrics.jsonl", "train.py")
    records = [path for path in files if path.parent == run_dir and path.name in names]
    if records and chance.randrange(2):
        return chance.choice(records)
    return chance.choice(files)


def corrupt_run(run_dir, chance):
    """Corrupt a run in one or two ways. Return what was done."""
    done = []
    for _ in range(chance.choice([1, 1, 2])):
        path = choose_file(run_dir, chance)
        corrupt = chance.choice([*FILE_CORRUPTIONS, *RECORD_CORRUPTIONS * 2])
        # The file may be corrupt already.
        with contextlib.suppress(OSError, ValueError, TypeError):
            corrupt(path, chance)
            done.append(f"{corrupt.__name__} {path.relative_to(run_dir)}")
    return done


@split_counts(6, 47, 47)
def test_corrupt_runs_end_as_designed(
    part, count, small_scripts, finished_runs, tmp_path, chance, reopen
):
    ends = []
    for number in range(count):
        size = SIZES[number % 2]
        folder = tmp_path / str(number)
        shutil.copytree(finished_runs[size], folder / "run")
        done = corrupt_run(folder / "run", chance)
        line = ["--epochs", chance.choice(["2", "2", "3", "1"])]
        line += chance.choice([[], [], [], ["--mode", "evaluate"]])
        if size == "complete" and chance.randrange(5) == 0:
            line += ["--init-checkpoint", "run", "--run-dir", "other"]
        code, wrong = try_line(small_scripts[size], folder, line)
        ends.append((code, wrong and f"{size}, {done}: {wrong}"))
    assert_all_right(ends, are_some_rejected=count > 6)


# --------------------------------------------------------------------------------------------------
# What was found so
# --------------------------------------------------------------------------------------------------

EVALUATE = ["--mode", "evaluate"]
RESUME = ["--epochs", "3"]
UNUSUAL_RUN_DIRS = [
    ["--run-dir", "x" * 300],
    ["--run-dir", "run[1]"],  # TensorFlow would not find its checkpoints again.
    ["--run-dir", "\udcff"],
]
FOUND = [
    ["--run-dir", "closed/run"],
    ["--two\nlines"],
    ["--replicas", "2147483647"],
]
BOTH_SIZES = pytest.mark.parametrize(
    "size", ["essential", pytest.param("complete", marks=pytest.mark.long)]
)


@BOTH_SIZES
def test_command_lines_that_were_found_are_rejected(size, small_scripts, tmp_path, reopen):
    ends = []
    lines = [*FOUND, *UNUSUAL_RUN_DIRS] if size == "complete" else FOUND
    for number, line in enumerate(lines):
        folder = tmp_path / str(number) / "folder"
        furnish(folder)
        ends.append(try_line(small_scripts[size], folder, ["--epochs", "1", *line]))
    assert ends == [(2, None)] * len(lines)


@pytest.mark.long
@BOTH_SIZES
def test_address_in_use_is_rejected(size, small_scripts, tmp_path):
    with socket.create_server(("", 0)) as other:  # such as an earlier run that has not ended
        cluster = {"worker": [f"localhost:{other.getsockname()[1]}"]}
        folder = tmp_path / "folder"
        folder.mkdir()
        line = ["--epochs", "1", "--strategy", "multi_worker"]
        variables = tf_config(cluster, "worker", 0)
        assert try_line(small_scripts[size], folder, line, **variables) == (2, None)


@pytest.mark.long
@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/last", "tensorboard/train"])
def test_run_with_a_closed_folder_is_rejected(name, small_scripts, finished_runs, tmp_path, reopen):
    """It is rejected before anything is written. It may be evaluated if it can be read."""
    ends = []
    for mode, flags in ((0, RESUME), (0o500, RESUME), (0o500, EVALUATE)):
        folder = tmp_path / str(len(ends))
        shutil.copytree(finished_runs["complete"], folder / "run")
        (folder / "run" / name).chmod(mode)
        ends.append(try_line(small_scripts["complete"], folder, flags, seconds=120))
    assert ends == [(2, None), (2, None), (0, None)]


@pytest.mark.long
@BOTH_SIZES
@pytest.mark.parametrize("kind", ["best", "last"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"], ids=["missing", "empty", "no text"])
def test_corrupt_list_of_checkpoints_is_handled(
    content, kind, size, small_scripts, finished_runs, tmp_path
):
    """No script needs TensorFlow's list of checkpoints."""
    for flags in (EVALUATE, RESUME):
        folder = tmp_path / flags[1]
        shutil.copytree(finished_runs[size], folder / "run")
        listed = folder / "run" / "checkpoints" / kind / "checkpoint"
        listed.unlink()
        if content is not None:
            listed.write_bytes(content)
        outcome, wrong = run_line(small_scripts[size], folder, flags, seconds=120)
        assert outcome.code == 0, outcome
        assert wrong is None
        assert flags == EVALUATE or "resumed at step " in outcome.output
