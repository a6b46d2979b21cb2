"""Hostile input, made up by chance: answers, command lines, TF_CONFIGs and run directories.

Whatever it is, it is taken as text or refused in words, with the designed exit code and no
traceback, and what is refused touches nothing. A sample runs each time, the same one unless
FAULTS_SEED is set; this runs 500 answers, 300 command lines and 200 damages, others each time:

    HOSTILE=all FAULTS_SEED=$RANDOM python3 -m uv run pytest tests/test_hostile.py
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
from pathlib import Path

import hypothesis
import pytest
from click.testing import CliRunner
from conftest import (
    FEW_OF,
    TEMPLATE,
    as_constant,
    edit,
    environment,
    finish,
    fork,
    read_questions,
    train,
    write_user_config,
)
from cookiecutter.cli import main as cookiecutter
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from test_rendering import FILES, HOSTILE_PIECES, assert_ruff_clean, load_hook, read_command

ALL = os.environ.get("HOSTILE") == "all"
SEED = int(os.environ.get("FAULTS_SEED", 0))

# Of each kind, how many a test runs: the first is a sample for the short set.
ANSWERS = [20, *([120] * 4 if ALL else [60])]
PROCESSES = [2, 18] if ALL else [2, 6]
LINES = [10, *([70] * 4 if ALL else [20])]
CONFIGS = [10, *([45] * 2 if ALL else [15])]
DAMAGES = [6, *([47] * 2 if ALL else [10])]


@pytest.fixture
def chance(request):
    """Return the random numbers of a test."""
    return random.Random(f"{SEED} {request.node.name}")


def parts(counts):
    """Return a parametrization: how many, and which part of all these are."""
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
MARKS = [
    *("\u200e", "\u200f", "\u061c", "\u202a", "\u202e", "\u2066", "\u2069", "\ufeff", "\u200b"),
    *("%s", "%(x)s", "%", "{}", "{0!r}", "${x}", "..", "../", "/", "\\", ":", "C:\\", "~", "-"),
]
PIECES = st.sampled_from([*(x for x in HOSTILE_PIECES if x != "\udc80"), *MARKS, *CODE])
TEXTS = st.one_of(
    st.lists(PIECES, max_size=6).map("".join),
    st.text(max_size=70),
    st.sampled_from(CODE),
    st.sampled_from(["x", "é", "日", "\u0301", "'", "{", "a/", "../", "\u202e"]).map(
        lambda x: x * 10_000
    ),
)
SLUGS = st.one_of(
    st.none(),  # it follows from the name
    TEXTS,
    st.from_regex(r"[a-z][a-z0-9_]{0,60}", fullmatch=True),
    st.sampled_from(["con", "Nul", "../x", "a/b", ".", "..", "", "/", "tensorflow", "--help"]),
)
MANNERS = ["given", "typed", "rendered"]


def read_plain(render, folder):
    """Return what train.py is but for its docstring, of a project with a name of no harm."""
    tree = ast.parse((render(folder, project_slug="plain") / "train.py").read_bytes())
    tree.body.pop(0)
    return ast.dump(tree)


class Sandbox:
    """A folder in which cookiecutter is run, from well below it, and what may change in there."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.output = folder, folder / "a" / "b" / "c" / "d" / "output"
        self.output.mkdir(parents=True)
        self.config = write_user_config(folder)
        monkeypatch.setenv("P", str(folder / "pwned"))
        monkeypatch.chdir(self.output.parent)
        self.arguments = [str(TEMPLATE), "--config-file", str(self.config), "-o", str(self.output)]

    def read_replay(self):
        [path] = (self.folder / "replay_dir").glob("*.json")
        return json.loads(path.read_text(encoding="utf-8"))["cookiecutter"]

    def find_others(self):
        """Return the files that are neither below the target nor cookiecutter's own."""
        own = {self.config, *(self.folder / "replay_dir").glob("*")}
        found = {path for path in self.folder.rglob("*") if not path.is_dir()}
        return {path for path in found - own if not path.is_relative_to(self.output)}

    def clean(self):
        shutil.rmtree(self.folder / "a")
        self.output.mkdir(parents=True)
        os.chdir(self.output.parent)


@contextlib.contextmanager
def redirect_errors():
    """Give a list that has, once the block is left, what hooks wrote to stdout and stderr."""
    sys.stdout.flush()
    kept, texts = [os.dup(1), os.dup(2)], []
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        try:
            yield texts
        finally:
            os.dup2(kept[0], 1), os.dup2(kept[1], 2)
            for each in kept:
                os.close(each)
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8"))


def run_in_process(sandbox, answers, typed):
    """Run the command line as its console script does. Return exit code, exception, and stdout and
    stderr of the hooks."""
    given = [] if typed else ["--no-input", *(f"{k}={v}" for k, v in answers.items())]
    lines = [answers.get(question, "") for question in read_questions()] if typed else []
    with redirect_errors() as texts:
        result = CliRunner().invoke(
            cookiecutter, [*sandbox.arguments, *given], input="\n".join([*lines, ""])
        )
    error = result.exception if not isinstance(result.exception, SystemExit) else None
    return result.exit_code, error, *texts, result.output


def assert_rendered(sandbox, project, name, plain):
    """Assert that a project has its files and its name as text."""
    assert list(sandbox.output.iterdir()) == [project]
    found = {x.relative_to(project).as_posix() for x in project.rglob("*") if x.is_file()}
    assert found == FILES
    tree = ast.parse((project / "train.py").read_bytes())
    docstring = tree.body.pop(0).value.value
    assert docstring.startswith(f"{name}: ")
    assert ast.dump(tree) == plain
    assert (project / "README.md").read_text(encoding="utf-8").startswith(f"# {name}\n")
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    toml = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    assert toml["project"]["description"] == name
    assert toml["project"]["name"] == project.name


def assert_refused_in_words(answers, message):
    """Assert that a refusal lists all rules that are broken, and has a command that breaks none."""
    faults = HOOK.find_faults(answers)
    assert faults
    assert "Traceback" not in message
    assert message.count("    rule: ") == sum(len(rules) for rules, _ in faults.values())
    command, marks = read_command(message)
    accepted = dict(word.split("=", 1) for word in shlex.split(command)[-len(read_questions()) :])
    assert list(accepted) == list(read_questions())
    for question, answer in accepted.items():
        if "{" in answer:  # cookiecutter renders it: a template of one constant
            accepted[question] = json.loads(answer.removeprefix("{{ ").removesuffix(" }}"))
    assert not HOOK.find_faults(accepted)
    assert marks.replace(" ", "").strip("^") == ""


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    return Sandbox(tmp_path, monkeypatch)


SETTINGS = dict(
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    print_blob=False,
)


@parts(ANSWERS)
def test_answers_are_text_or_refused(part, count, sandbox, render, tmp_path_factory):
    plain, kept = read_plain(render, tmp_path_factory.mktemp("plain")), tmp_path_factory.mktemp("x")
    outcomes = {}

    @hypothesis.seed(f"{SEED} {part}")
    @hypothesis.settings(max_examples=count, **SETTINGS)
    @hypothesis.given(TEXTS, SLUGS, st.sampled_from(MANNERS))
    def answer(name, slug, manner):
        if manner == "typed" and re.search(r"[\n\r\x00\x85\x0b\x0c\x1c-\x1e\u2028\u2029]", name):
            manner = "given"
        if manner == "rendered" and "touch" in name + (slug or ""):
            manner = "given"  # cookiecutter itself runs a template that is given as an answer
        answers = {"project_name": name} | ({} if slug is None else {"project_slug": slug})
        if manner == "typed":  # a line each, which Rich strips
            answers = {x: "".join(text.splitlines()) for x, text in answers.items()}
        elif manner == "given":
            answers = {x: as_constant(text) for x, text in answers.items()}
        code, error, out, err, shown = run_in_process(sandbox, answers, manner == "typed")
        context = f"SEED {SEED}, {manner}: {answers}\n{code} {error!r}\n{out}\n{err}\n{shown}"
        assert not sandbox.find_others(), context
        kinds = (TemplateError, TypeError, RecursionError)
        if isinstance(error, kinds) or "Unable to render" in shown:
            outcome = "an answer that is no template, cookiecutter says"
            assert manner == "rendered" and (out, err) == ("", ""), context
        else:
            taken = sandbox.read_replay()
            if manner == "given":
                assert taken["project_name"] == name
                assert slug in (None, taken["project_slug"])
            outcome = judge(sandbox, taken, code, error, out, err, context, plain, kept)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        sandbox.clean()

    answer()
    print(outcomes)
    assert len(outcomes) > 1
    assert_ruff_clean(["."], kept)
    for project in list(kept.iterdir())[: 2 if part == 0 else 4]:
        code, output, errors = finish(fork(project / "train.py", "--help"))
        assert (code, errors) == (0, ""), errors
        assert "--run-dir" in output


def judge(sandbox, taken, code, error, out, err, context, plain, kept):
    """Assert that answers were taken as text, or refused. Return which of these."""
    name, slug = taken["project_name"], taken["project_slug"]
    if code == 0:
        assert not HOOK.find_faults(taken), context
        assert err == "", context
        assert f"project_name  {name}\n" in out, context
        project = sandbox.output / slug
        assert_rendered(sandbox, project, name, plain)
        if not (kept / slug).exists():
            shutil.move(project, kept / slug)
        return "rendered"
    assert not [x for x in sandbox.output.rglob("*") if not x.is_dir()], context
    if error is None and "Nothing was made" in err:
        assert out == "", context
        assert_refused_in_words(taken, err)
        return "refused"
    # What names no new folder cookiecutter answers itself, before any hook.
    assert HOOK.broken_slug_rules(slug), context
    assert err == "", context
    assert error is None or isinstance(error, OSError | ValueError), context
    return "no folder, cookiecutter says"


@parts(PROCESSES)
def test_answers_to_whole_processes(part, count, sandbox, render, tmp_path_factory):
    plain, kept = read_plain(render, tmp_path_factory.mktemp("plain")), tmp_path_factory.mktemp("x")
    script = Path(sys.executable).with_name("cookiecutter")

    @hypothesis.seed(f"{SEED} processes {part}")
    @hypothesis.settings(max_examples=count, **SETTINGS)
    @hypothesis.given(TEXTS.filter(lambda x: "\0" not in x), SLUGS)
    def answer(name, slug):
        answers = {"project_name": name} | ({} if slug is None else {"project_slug": slug})
        answers = {x: as_constant(text).replace("\0", "") for x, text in answers.items()}
        finished = subprocess.run(
            [script, *sandbox.arguments, "--no-input", *(f"{k}={v}" for k, v in answers.items())],
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )
        context = f"SEED {SEED}: {answers}\n{finished}"
        assert not sandbox.find_others(), context
        # Its own report of the hook's exit code is a traceback too, on stdout.
        out = finished.stdout.partition("ERROR: Stopping generation")[0]
        message = finished.stderr.partition("What follows is cookiecutter's own")[0]
        frames = re.findall(r'File "(.*?)", line', finished.stdout + finished.stderr)
        assert not any("hook" in x and "cookiecutter/hooks.py" not in x for x in frames), context
        error = OSError() if "Traceback" in message else None
        judge(
            sandbox,
            sandbox.read_replay(),
            finished.returncode,
            error,
            out,
            "" if error else message,
            context,
            plain,
            kept,
        )
        sandbox.clean()

    answer()


# --------------------------------------------------------------------------------------------------
# Command lines
# --------------------------------------------------------------------------------------------------

CODES = {0, 1, 2, 143}
NUMBERS = [
    *("1", "2", "3", "7", "16", "64", "66", "-1", "0", "-0", "1.5", "1e-3", "1e30", "1e-320"),
    *("1e999", "nan", "inf", "-inf", "0x10", "²", "٣", "1_0", "", " ", "9" * 30, "2147483648"),
]
WORDS = [
    *("train", "evaluate", "continuous_evaluate", "auto", "one_device", "mirrored", "tpu"),
    *("constant", "cosine", "linear", "float32", "mixed_bfloat16", "TRAIN", "none", "None"),
]
PATHS = [
    *("run", "file", "file/run", "other", "empty", ".", "", "..", "a/b/c", "ü 日本", "x" * 300),
    *("y" * 10_000, "gs://bucket/run", "http://x/y", "~", "$HOME", "%s", "{}", "{x!r}", "a'b\"c"),
    *("/proc/run", "/dev/null", "two\nlines", "\x1b[31mred", "\udcff", "loop", "dangling"),
    *("-", "*", "closed", "closed/run", "nowhere/../run", "\u202e", " ", "run[1]"),
]
HOSTILE = [*CODE, *MARKS, "--", "-", "---", "--=x", "=", "@file", "--help=1", "-hh", "\ud800x"[1:]]


def find_flags(script):
    """Return the flags of a script, from its source."""
    return re.findall(r'\badd\(\s*"(--[\w-]+)"', script.read_text(encoding="utf-8"))


def make_line(chance, flags):
    """Return a random command line."""
    line = []
    for _ in range(chance.choice([1, 1, 2, 2, 3, 5])):
        flag = chance.choice(flags)
        likely = PATHS if flag in ("--run-dir", "--init-checkpoint") else NUMBERS
        likely = WORDS if flag in ("--mode", "--strategy", "--schedule", "--precision") else likely
        value = chance.choice(chance.choice([likely] * 6 + [NUMBERS, WORDS, PATHS, HOSTILE]))
        kinds = [[flag, value]] * 6 + [[f"{flag}={value}"]] * 3 + [[flag], [value], [flag[:-1]]]
        line += chance.choice(kinds)
    return [x.replace("\0", "") for x in line]


# Root has no rights to lack, unless it gives up its capabilities; who isn't root has none.
WITHOUT_RIGHTS = (
    "import argparse\n",
    "import argparse\nimport ctypes\n\n"
    "ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)())\n",
)


@pytest.fixture(scope="session")
def scripts(essential, script, tmp_path_factory):
    """Return the scripts of both sizes, with few data and no more rights than any user has."""
    folders = {x: tmp_path_factory.mktemp(x) for x in ("essential", "complete")}
    edits = (FEW_OF["image_classification"], WITHOUT_RIGHTS)
    return {
        size: edit(each, folders[size], *edits)
        for size, each in (("essential", essential), ("complete", script))
    }


def try_line(script, folder, line, env=None):
    """Run a script in a folder, on a command line. Return the exit code, and what is wrong with how
    it ended: a refusal is a line, and touches nothing."""
    shutil.copy(script, folder)
    scratch = folder.parent / f"{folder.name}-scratch"
    scratch.mkdir()
    before = describe_tree(folder)
    process = fork(folder / "train.py", *line, env=environment(TMPDIR=str(scratch), **(env or {})))
    alarm = threading.Timer(20, process.send_signal, [signal.SIGTERM])
    alarm.start()  # it may train on, or wait for others
    code, output, errors = finish(process)
    alarm.cancel()
    if env and code == -signal.SIGTERM:  # the essential one, while TensorFlow waits for a worker
        code = 143
    is_line = len(errors.splitlines()) == 1
    begin = {0: "", 1: "train.py: stopped: ", 2: "train.py: error: "}.get(code, "")
    wrongs = {
        f"exit code {code}": code not in CODES,
        "a traceback": "Traceback" in errors,
        # TensorFlow may warn of its own list of checkpoints.
        "errors": code == 0 and not re.fullmatch(r"(WARNING:tensorflow:.*\n)*", errors),
        "not one line": code in (1, 2) and not (is_line and errors.startswith(begin)),
        "touched": code == 2 and describe_tree(folder) != before,
        # The essential script leaves what TensorFlow writes there when it compiles a hook.
        "left behind": code == 2 and not all("__autograph" in x.name for x in scratch.iterdir()),
    }
    wrong = ", ".join(name for name, is_so in wrongs.items() if is_so)
    shown = f"{wrong}: {env or ''} {line}\n{output[-2000:]}\n{errors[-4000:]}"
    return code, shown if wrong else None


def assert_all_right(ends):
    """Assert that all ended as they should, and that some were refused."""
    codes, wrongs = zip(*ends, strict=True)
    print({code: codes.count(code) for code in set(codes)})
    wrongs = [wrong for wrong in wrongs if wrong]
    assert not wrongs, f"FAULTS_SEED={SEED}\n" + "\n".join(wrongs)
    assert 2 in codes


def describe_tree(folder):
    """Return what hash_tree does, of what can be read, and of links where they point to."""
    found = {}
    for path in sorted(folder.rglob("*")):
        key = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[key] = os.readlink(path)
        else:
            is_file = path.is_file()
            found[key] = (path.lstat().st_mtime_ns, path.read_bytes() if is_file else "folder")
    return found


def furnish(folder):
    """Make what PATHS name."""
    (folder / "file").write_text("mine")
    (folder / "empty").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text("mine")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nothing")
    (folder / "closed").mkdir(mode=0)


@pytest.fixture
def tidy(tmp_path):
    """Give back the rights to folders, for pytest to remove them."""
    yield
    for folder, names, _ in os.walk(tmp_path):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)


@parts(LINES)
def test_command_lines_end_as_designed(part, count, scripts, tmp_path, chance, tidy):
    ends = []
    for number in range(count):
        size = ("essential", "complete")[number % 2]
        folder = tmp_path / str(number) / "folder"
        folder.mkdir(parents=True)
        furnish(folder)
        line = make_line(chance, find_flags(scripts[size]))
        first = ["--epochs", "1", *(["--timeout", "1"] if size == "complete" else [])]
        ends.append(try_line(scripts[size], folder, [*first, *line]))
    assert_all_right(ends)


# --------------------------------------------------------------------------------------------------
# TF_CONFIG
# --------------------------------------------------------------------------------------------------

VALUES = [
    *(None, True, False, 0, 1, -1, 1.0, 0.5, 10**30, float("inf"), float("nan"), "", "0"),
    *("x", "\n", [], [[]], [None], [1], {}, {"a": 1}, {"0": "localhost:1"}, "worker", "chief"),
    *(
        "ps",
        "master",
        "evaluator",
        "localhost:1",
        ["localhost:1"],
        ["localhost"],
        ["localhost:x"],
        [":1"],
    ),
    *(["localhost:99999"], [""], ["\x00"], ["two\nlines:1"], "x" * 10_000, "日本", "\ud800"),
]


def damage_config(chance):
    """Return a TF_CONFIG with some faults."""
    jobs = chance.choice([["worker"], ["chief"], ["chief", "worker"]])
    cluster = {job: [f"localhost:{number}"] for number, job in enumerate(jobs, start=1)}
    config = {"cluster": cluster, "task": {"type": jobs[0], "index": 0}}
    for _ in range(chance.choice([1, 1, 2])):
        holder = chance.choice([x for x in (config, config.get("cluster"), config.get("task"))])
        if not isinstance(holder, dict) or not holder:
            holder = config
        key = chance.choice([*holder, "worker", "type", "x"])
        action = chance.randrange(4)
        if action == 0:
            holder.pop(key, None)
        else:
            holder[key] = chance.choice(VALUES)
    text = json.dumps(chance.choice([config] * 9 + VALUES))
    action = chance.randrange(10)
    if action == 0:
        text = text[: chance.randrange(len(text) + 1)]
    elif action == 1:
        position = chance.randrange(len(text) + 1)
        piece = chance.choice(["\n", "'", '"', "}", "\\", "日", "\udcff"])
        text = text[:position] + piece + text[position:]
    elif action == 2:
        texts = ["[" * 100_000, "{", "nul", "0x1", " ", "\ufeff{}", "{}{}", "9" * 9999]
        text = chance.choice(texts)
    return text


@parts(CONFIGS)
def test_damaged_tf_configs_are_refused(part, count, scripts, tmp_path, chance):
    ends = []
    for number in range(count):
        size = ("essential", "complete")[number % 2]
        folder = tmp_path / str(number)
        folder.mkdir()
        line = ["--epochs", "1", *(["--timeout", "1"] if size == "complete" else [])]
        if chance.randrange(4) == 0:
            line += ["--strategy", chance.choice(["multi_worker", "mirrored", "one_device"])]
        config = damage_config(chance)
        ends.append(try_line(scripts[size], folder, line, {"TF_CONFIG": config}))
    assert_all_right(ends)


# --------------------------------------------------------------------------------------------------
# Run directories
# --------------------------------------------------------------------------------------------------


def cut(path, chance):
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size + 1)])


def flip(path, chance):
    content = bytearray(path.read_bytes() or b"\0")
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def fill(path, chance):
    contents = [b"", b"\0" * 9, b"\xff\xfe", b"{", b"[1]", b"null", b"1", b'"x"', b"[" * 100_000]
    contents += [b"{}", b"[[1, 2]]", b'{"seed": 0}', b"\n\n", b"9" * 9999, b"def f(:\n", b"NaN"]
    path.write_bytes(chance.choice(contents))


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
    names = ["ckpt-copy.index", "ckpt-.index", "ckpt-99.index", "ckpt-7-b.index", "ckpt-x.data"]
    names += [
        f"{path.name}.bak",
        "config.json.part",
        "metrics.jsonl.part",
        "export.part",
        "ckpt-3_temp",
        ".nfs0001",
    ]
    other = path.with_name(chance.choice(names))
    if chance.randrange(3):
        shutil.copy(path, other)
    else:
        other.mkdir()


def damage_lines(path, chance):
    """Damage a line of the log, or a value of it."""
    log = path.parent / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() or ["{}"]
    number = chance.randrange(len(lines))
    whole = [1, "x", None, [], {}, [1], True, float("inf"), float("nan")]
    values = [*whole, -1, 1e999, 10**30, "1"]
    line = json.loads(lines[number])
    action = chance.randrange(4)
    if action == 0:
        end = chance.randrange(len(lines[number]))
        lines[number] = lines[number][:end] + chance.choice(["", "}"])
    elif action == 1:
        lines[number] = json.dumps(chance.choice(whole))
    elif action == 2 and line:
        line.pop(chance.choice(list(line)))
        lines[number] = json.dumps(line)
    else:
        line[chance.choice([*line, "step", "split", "x"])] = chance.choice(values)
        lines[number] = json.dumps(line)
    log.write_text("\n".join(lines) + chance.choice(["\n", "", "\n\n"]), encoding="utf-8")


def damage_values(path, chance):
    """Damage a value of the configuration."""
    path = path.parent / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    key = chance.choice(list(config))
    if chance.randrange(2):
        config.pop(key)
    else:
        config[key] = chance.choice([1, "x", "two\nlines", None, [], {}, "x" * 10_000, 10**30])
    path.write_text(json.dumps(config), encoding="utf-8")


OF_FILES = [cut, flip, fill, remove, make_folder, link_to_nothing, close_file, close_folder]
OF_FILES += [add_junk]
OF_RECORDS = [damage_lines, damage_lines, damage_values]


@pytest.fixture(scope="session")
def ended(scripts, tmp_path_factory):
    """Return the folder of a finished run of each size."""
    folders = {}
    for size, script in scripts.items():
        folder = tmp_path_factory.mktemp("ended")
        train(edit(script, folder), "--epochs", "2")
        folders[size] = folder / "run"
    return folders


@parts(DAMAGES)
def test_damaged_runs_end_as_designed(part, count, scripts, ended, tmp_path, chance, tidy):
    ends = []
    for number in range(count):
        size = ("essential", "complete")[number % 2]
        folder = tmp_path / str(number)
        shutil.copytree(ended[size], folder / "run")
        told = []
        for _ in range(chance.choice([1, 1, 2])):
            records = [folder / "run" / x for x in ("config.json", "metrics.jsonl", "train.py")]
            files = [x for x in sorted((folder / "run").rglob("*")) if x.is_file()]
            if chance.randrange(2):
                files = [x for x in files if x in records] or files
            path = chance.choice(files)
            damage = chance.choice([*OF_FILES, *OF_RECORDS * 2])
            with contextlib.suppress(OSError, ValueError, TypeError):  # of what is damaged already
                damage(path, chance)
                told.append(f"{damage.__name__} {path.relative_to(folder)}")
        line = ["--epochs", chance.choice(["2", "2", "3", "1"])]
        line += chance.choice([[], [], [], ["--mode", "evaluate"]])
        if size == "complete" and chance.randrange(5) == 0:
            line += ["--init-checkpoint", "run", "--run-dir", "other"]
        code, wrong = try_line(scripts[size], folder, line)
        ends.append((code, wrong and f"{size}, {told}: {wrong}"))
    assert_all_right(ends)


# --------------------------------------------------------------------------------------------------
# What was found so
# --------------------------------------------------------------------------------------------------

EVALUATE = ["--mode", "evaluate"]
FOUND = [
    ["--run-dir", "x" * 300],
    ["--run-dir", "closed/run"],
    ["--run-dir", "run[1]"],  # TensorFlow would not find its checkpoints again
    ["--run-dir", "\udcff"],
    ["--two\nlines"],
    ["--replicas", "2147483647"],
]


@pytest.mark.parametrize("size", ["essential", "complete"])
def test_what_chance_has_found_is_refused(size, scripts, tmp_path, tidy):
    ends = []
    for number, line in enumerate(FOUND):
        folder = tmp_path / str(number) / "folder"
        folder.mkdir(parents=True)
        furnish(folder)
        ends.append(try_line(scripts[size], folder, ["--epochs", "1", *line]))
    assert_all_right(ends)
    assert {code for code, _ in ends} == {2}


@pytest.mark.parametrize("size", ["essential", "complete"])
def test_address_that_cannot_be_had_is_refused(size, scripts, tmp_path):
    with socket.create_server(("", 0)) as other:  # a run of before, say, that has not ended
        address = f"localhost:{other.getsockname()[1]}"
        config = {"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}}
        line = ["--epochs", "1", "--strategy", "multi_worker"]
        folder = tmp_path / "folder"
        folder.mkdir()
        end = try_line(scripts[size], folder, line, {"TF_CONFIG": json.dumps(config)})
    assert end == (2, None)


@pytest.mark.parametrize("size", ["essential", "complete"])
@pytest.mark.parametrize("which", ["checkpoints", "checkpoints/last", "tensorboard/train"])
def test_run_with_a_closed_folder_is_refused(which, size, scripts, ended, tmp_path, tidy):
    """Before anything is written: an essential run would begin anew, over the log of this one."""
    ends = []
    for mode, flags in ((0, ["--epochs", "3"]), (0o500, ["--epochs", "3"]), (0o500, EVALUATE)):
        folder = tmp_path / str(len(ends))
        shutil.copytree(ended[size], folder / "run")
        (folder / "run" / which).chmod(mode)
        ends.append(try_line(scripts[size], folder, flags))
    assert ends == [(2, None), (2, None), (0, None)]


@pytest.mark.parametrize("size", ["essential", "complete"])
@pytest.mark.parametrize("which", ["best", "last"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe"], ids=["empty", "no text"])
def test_damaged_list_of_checkpoints_ends_in_a_line(content, which, size, scripts, ended, tmp_path):
    """TensorFlow's own list, which the essential script has TensorFlow keep."""
    listed, ends = Path("run", "checkpoints", which, "checkpoint"), []
    for flags in (EVALUATE, ["--epochs", "3"]):
        for cured in (False, True):
            folder = tmp_path / f"{flags[1]} {cured}"
            shutil.copytree(ended[size], folder / "run")
            (folder / listed).write_bytes(content)
            if cured:  # as the line says
                (folder / listed).unlink()
            ends.append(try_line(scripts[size], folder, flags))
    codes, wrongs = zip(*ends, strict=True)
    assert wrongs == (None,) * 4
    assert codes == ((2, 0, 2, 0) if size == "essential" else (0, 0, 0, 0))
