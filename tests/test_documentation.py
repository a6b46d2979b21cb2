"""Every command of the READMEs and of docs/*.md is executed, as written.

`uv` and `uvx` download what a project needs. Here, programs of these names come first in PATH and
run the same with the Python of the tests, `train.py` for one epoch if no number is given. What
takes minutes or needs a cluster is executed by another test, which ELSEWHERE names.

README.md is short, its links resolve, and the code that it shows is in the rendering.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import versions
import yaml
from rendering import (
    DEFAULT_CHOICES,
    TASKS,
    TEMPLATE,
    combine_choices,
    read_questions,
    write_user_config,
)
from running import environment, find_free_ports, train
from variants import SMALL_DATA, edit_all_hooks, write_variant

LONG = pytest.mark.long
SLUG = "a_project"
README = "README.md"
MOST_WORDS = 1000  # in README.md
LOOP = "def train_step(batch)"  # in the block of README.md that shows the loop

# Blocks that are no commands, by how they begin.
OUTPUT = (
    "one_device on 1 × CPU",
    "train.py              the training script",
    "preprocess: with training=True",
    "checkpoint = ",
)

# Text in backquotes is a command if it begins with one of these programs.
PROGRAMS = r"(?:[A-Z_]+='?[^`]*? )?(?:(?:\.uv/bin/)?uvx?|python3?|kubectl|export) [^`]+"
# Text in backquotes that only names a command.
NO_COMMANDS = ("uv run", "kubectl delete -f", "kubectl delete node")


class Elsewhere(typing.NamedTuple):
    """Commands that another file executes, and texts of that file that show it."""

    pattern: str
    file: str
    texts: tuple[str, ...]


ELSEWHERE = [
    Elsewhere(
        r"(?:\.uv/bin/)?uv run pytest -n \d --dist worksteal -m .*",
        ".ci/run",
        ("grep 'run pytest -n' README",),
    ),
    Elsewhere(
        r"uv run benchmarks/side_by_side.py",
        ".ci/run",
        ("uv run benchmarks/side_by_side.py",),
    ),
    Elsewhere(
        r"uv run benchmarks/parameter_server.py",
        ".ci/run",
        ("uv run benchmarks/parameter_server.py",),
    ),
    # As a step of the Dockerfile, without the packages of the project's tests.
    Elsewhere(
        r"uv sync",
        "tests/test_kubernetes.py",
        ("def test_image_installs", 'word == "RUN"'),
    ),
    # With the versions of these tests; other versions need environments of about 2 GB each.
    Elsewhere(
        r"uv run tests/versions.py",
        "tests/test_documentation.py",
        ("versions.check(",),
    ),
    Elsewhere(
        r"PROMISES=all .*",
        "tests/test_promises.py",
        ('environ.get("PROMISES") == "all"',),
    ),
    Elsewhere(
        r"uv run train.py --run-dir run-contrast",
        "tests/test_tasks.py",
        ("test_worked_edit_of_the_page",),
    ),
    Elsewhere(
        r"(uv run )?python launch/local.py --ps 2 --workers 2",
        "tests/test_parameter_servers.py",
        ('FOUR = ("--ps", "2", "--workers", "2")',),
    ),
    # There, the commands are read from the project's README; the others are the same.
    Elsewhere(
        r"for version in \S+ main; do uvx cookiecutter .*|git (merge-file|add) .*update.*"
        r"|git add .cruft.json .*|uvx cruft .*",
        "tests/test_update.py",
        ("commands are read from the project's README", "cruft create", "def read_commands"),
    ),
    Elsewhere(
        r"sbatch( --nodes 4)? launch/slurm.sbatch( --run-dir run)?( --epochs 50)?",
        "tests/test_slurm.py",
        ('"sbatch", "--parsable", *options, "launch/slurm.sbatch", *arguments', "--run-dir"),
    ),
    Elsewhere(
        r"uv run pytest -k contract",
        "tests/test_project_tests.py",
        ('CONTRACT = "contract"', 'begin(project, "-rA", "-k", only)'),
    ),
    Elsewhere(
        r"uv lock( --script train.py)?",
        "tests/test_answers.py",
        ("uv lock .*", '["sh", "-ec", command]'),
    ),
    Elsewhere(
        r"for rate in .*; do uv run train.py .*; done",
        "tests/test_answers.py",
        ("^for rate in .*", "loop.replace("),
    ),
    Elsewhere(
        r"TPU_NAME=local uv run train.py",
        "tests/test_command_line.py",
        ("test_missing_tpu_is_rejected",),
    ),
]

# Commands that need a container engine or an API server. The README states that they were not run;
# their arguments are compared with the files that they name.
NOT_RUN = r"(docker|kubectl) .*"
NOT_RUN_NOTICE = "never applied; the image was never built"


def read_blocks(text):
    """Return the fenced blocks of a README as (language, text)."""
    return re.findall(r"(?m)^```(\w*)\n((?:.*\n)*?)```$", text)


def read_commands(text):
    """Return the commands of a README, each once: lines of blocks, and text in backquotes."""
    commands = []
    for language, block in read_blocks(text):
        if not language and not block.startswith(OUTPUT):
            commands += [re.sub(r" +# .*", "", line) for line in block.splitlines()]
    prose = re.sub(r"(?m)^```\w*\n(?:.*\n)*?```$", "", text)
    for span in re.findall(r"`([^`]+)`", prose):
        command = " ".join(span.split())
        if re.fullmatch(PROGRAMS, command):
            commands.append(command)
    return [command for command in dict.fromkeys(commands) if command not in NO_COMMANDS]


def find_command(text, pattern):
    """Return the one command of a README that matches a pattern."""
    [command] = [command for command in read_commands(text) if re.fullmatch(pattern, command)]
    return command


# --------------------------------------------------------------------------------------------------
# Nothing is left out
# --------------------------------------------------------------------------------------------------

# Commands that tests below execute.
INSTALL = r"python3 -m pip install -q --target \.uv uv"
EXPORT = r"export PATH=.*"
FIRST = r"\.uv/bin/uv tool run cookiecutter --no-input -o demo \. .* train\.py"
RESUME = r"\.uv/bin/uv run --directory demo/tf_distribute train\.py"
SETTINGS = r"(?:FAULTS_\w+=\w+ |FLAGS_PAIRS=all |RESNET=yes )*"
OF_TESTS = SETTINGS + r"uv run pytest (?:-s |-n \d+ )?tests/\w+\.py(?: -k .*)?"
GROW = r"for script in essential complete; do uvx cookiecutter .*; done"
MERGE = r"git merge-file train\.py \.\./grow/essential/train\.py \.\./grow/complete/train\.py"
GOLDEN = r"GOLDEN=write uv run pytest tests/test_golden\.py"
LINES = r"wc -l tests/golden/\*/train\.py"
SIMULATE = r"uv run benchmarks/scaling\.py simulate"
MEASURE = r"uv run benchmarks/scaling\.py measure"
EMBEDDING = r"uv run benchmarks/scaling\.py embedding"
QUESTIONS = r"uvx cookiecutter gh:org/template && cd tf_distribute && uv run train\.py"
TRAIN = r"uv run train\.py|python train\.py"
EVALUATE = r"uv run train\.py --mode evaluate"
PYTEST = r"uv run pytest"
HELP = r"uv run train\.py --help"
REPLICAS = r"uv run train\.py --replicas 4( --run-dir run-four)?"
LAUNCH = r"uv run python launch/local\.py --workers 2( -- --run-dir run-two)?"
WORKER = r"TF_CONFIG='.*' uv run train\.py"
FOLLOW = r"uv run train\.py --mode continuous_evaluate"
CURVES = r"uvx --with tensorboard tensorboard --logdir run/tensorboard"
OF_A_TASK = r"uv run train\.py --run-dir run-(bert|fashion) .*"
EXECUTED = [
    INSTALL,
    EXPORT,
    FIRST,
    RESUME,
    OF_TESTS,
    GROW,
    MERGE,
    GOLDEN,
    LINES,
    SIMULATE,
    MEASURE,
    EMBEDDING,
    QUESTIONS,
    TRAIN,
    EVALUATE,
    PYTEST,
    HELP,
    REPLICAS,
    LAUNCH,
    WORKER,
    FOLLOW,
    CURVES,
    OF_A_TASK,
]


def read_pages():
    """Return the texts of README.md and of docs/*.md, by path."""
    paths = [TEMPLATE / README, *sorted(TEMPLATE.glob("docs/*.md"))]
    return {path.relative_to(TEMPLATE).as_posix(): path.read_text("utf-8") for path in paths}


@pytest.fixture(scope="module")
def readmes(render, tmp_path_factory):
    """Return the texts of the template's pages, and of the projects' READMEs of all answers."""
    folder = tmp_path_factory.mktemp("readmes")
    texts = read_pages()
    for answers in combine_choices():
        name = "-".join(answers.values())
        project = render(folder / name, accept_hooks=False, project_slug=SLUG, **answers)
        texts[name] = (project / "README.md").read_text(encoding="utf-8")
    return texts


def find_all_commands(readmes):
    """Return the commands of all pages, each with the first page that has it."""
    found = {}
    for name, text in readmes.items():
        for command in read_commands(text):
            found.setdefault(command, name)
    return found


def find_pattern(command, name):
    """Return the one pattern that matches a command of a page."""
    patterns = [*EXECUTED, *(each.pattern for each in ELSEWHERE), NOT_RUN]
    matches = [pattern for pattern in patterns if re.fullmatch(pattern, command)]
    assert len(matches) == 1, f"{name}: {command}\n{matches}"
    return matches[0]


def test_each_command_is_executed(readmes):
    used = set()
    for command, name in find_all_commands(readmes).items():
        pattern = find_pattern(command, name)
        used.add(pattern)
        if pattern == NOT_RUN:
            assert NOT_RUN_NOTICE in " ".join(readmes[name].split()), command
    patterns = {*EXECUTED, *(each.pattern for each in ELSEWHERE), NOT_RUN}
    assert patterns - used == set()


@pytest.mark.parametrize("elsewhere", ELSEWHERE, ids=lambda each: each.file)
def test_other_file_executes_a_command(elsewhere):
    content = (TEMPLATE / elsewhere.file).read_text(encoding="utf-8")
    for text in elsewhere.texts:
        assert text in content


# What blocks of Python have. Other tests use each of these texts to find its block.
MARKS = (
    "export",
    "fashion_mnist",
    "28, 28",
    "def preprocess",
    "loadtxt",
    "DictReader",
    "SplitEmbedding(",
    "FixedShardsPartitioner",
    "enable_check_numerics",
    "run_functions_eagerly",
    "tf.summary.image",
    "run-*/metrics.jsonl",
    "adapted.update(",
    "set_dtype_policy",
    "class ClippedAdam",
    "class NoisyAdam",
    "class LayerwiseAdam",
    "mlflow.log_metrics",
)
PYTHON_TESTS = ("test_tasks", "test_export", "test_parameter_servers", "test_answers")


def read_loop(text):
    """Return the block of README.md that shows the loop."""
    [block] = [block for _, block in read_blocks(text) if LOOP in block]
    return block


def test_loop_of_the_readme_is_in_the_rendering(readmes, render, tmp_path):
    script = render(tmp_path) / "train.py"
    rendering = script.read_text(encoding="utf-8")
    functions = read_loop(readmes[README]).strip().split("\n\n\n")
    assert len(functions) == 3
    for function in functions:
        assert f"\n\n\n{function}\n\n\n" in rendering


def list_code(readmes):
    """Return the blocks of Python of all pages, without the loop of README.md."""
    loop = read_loop(readmes[README])
    blocks = []
    for name, text in readmes.items():
        for language, block in read_blocks(text):
            if language and (name, block) != (README, loop):
                assert language == "python", f"{name}: {block}"
                blocks.append(block)
    return blocks


def test_each_block_of_python_is_executed(readmes):
    files = [TEMPLATE / "tests" / f"{name}.py" for name in PYTHON_TESTS]
    tests = "".join(file.read_text(encoding="utf-8") for file in files)
    for block in list_code(readmes):
        [mark] = [mark for mark in MARKS if mark in block]
        assert mark in tests


@pytest.mark.parametrize("page", [README, "docs/tests.md"])
def test_command_that_nothing_executes_is_found(page, readmes):
    block = "\n```\nuv run nothing.py\n```\n"
    with pytest.raises(AssertionError, match=f"{page}: uv run nothing.py"):
        test_each_command_is_executed({**readmes, page: readmes[page] + block})


@pytest.mark.parametrize("file", [".ci/run", "CONTRIBUTING.md"])
def test_uv_is_installed_as_the_readme_says(file, readmes):
    content = (TEMPLATE / file).read_text(encoding="utf-8")
    for pattern in (INSTALL, EXPORT):
        assert f"\n{find_command(readmes[README], pattern)}\n" in content


def read_update_commands(text):
    """Return the commands of a page that update a project, without the version."""
    version = re.search(r"for version in (\S+) main", text)[1]
    [update] = [each for each in ELSEWHERE if each.file == "tests/test_update.py"]
    commands = [each for each in read_commands(text) if re.fullmatch(update.pattern, each)]
    return {command.replace(version, "VERSION") for command in commands}


def test_update_page_has_the_commands_of_a_project(readmes):
    project = "-".join(DEFAULT_CHOICES.values())
    page = read_update_commands(readmes["docs/update.md"])
    create = "uvx cruft create https://github.com/org/template"
    assert page == {*read_update_commands(readmes[project]), create}


# --------------------------------------------------------------------------------------------------
# README.md is short, and its links resolve
# --------------------------------------------------------------------------------------------------

LINKING = [
    README,
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    *(path.relative_to(TEMPLATE).as_posix() for path in sorted(TEMPLATE.glob("docs/**/*.md"))),
]


def test_readme_is_short(readmes):
    assert len(readmes[README].split()) <= MOST_WORDS


def test_placeholder_is_once_in_the_readme(readmes):
    text = readmes[README]
    assert text.count("gh:org/template` is a placeholder") == 1
    assert len(re.findall(r"(?m)^.*gh:org/template(?!`)", text)) == 1
    assert text.index("org/template") > text.index(find_command(text, FIRST))


def read_links(text):
    """Return the links of a page to files: pairs of a path and a heading's anchor."""
    links = re.findall(r"\]\(([^)\s#]*)#?([^)\s]*)\)", text)
    return [(path, anchor) for path, anchor in links if "://" not in path]


def read_anchors(path):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"(?m)^#+ (.*)$", path.read_text(encoding="utf-8"))
    return [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]


def find_broken_links(page, text):
    """Return the links of a page whose file or heading doesn't exist."""
    broken = []
    for path, anchor in read_links(text):
        target = (TEMPLATE / page).parent / path if path else TEMPLATE / page
        if not target.exists() or (anchor and anchor not in read_anchors(target)):
            broken.append(f"{path}#{anchor}")
    return broken


@pytest.mark.parametrize("page", LINKING)
def test_links_resolve(page):
    text = (TEMPLATE / page).read_text(encoding="utf-8")
    assert find_broken_links(page, text) == []


@pytest.mark.parametrize("link", ["docs/nothing.md#", "docs/tests.md#nothing", "#nothing"])
def test_broken_link_is_found(link):
    assert find_broken_links(README, f"[x]({link})") == [link]


def test_each_page_is_in_the_index(readmes):
    _, _, index = readmes[README].partition("\n## Documentation\n")
    section = index.partition("\n## ")[0]
    linked = {path for path, _ in read_links(section)}
    pages = {page for page in read_pages() if page != README}
    assert pages | {"docs/recipes/README.md", "benchmarks/README.md"} <= linked


# --------------------------------------------------------------------------------------------------
# How they are executed
# --------------------------------------------------------------------------------------------------

UV = """#!/bin/sh
# Stands in for uv and uvx, with a Python that has all that they would install.
case "${{0##*/}} $1" in
    "uv run") shift ;;
    "uv tool") shift 2 ;;
    "uvx --with") shift 2 ;;
    uvx*) ;;
    *) echo "uv $* is not known to the tests" >&2; exit 9 ;;
esac
if [ "$1" = --directory ]; then cd "$2"; shift 2; fi
case "$1" in
    train.py) shift; exec {python} train.py --epochs 1 "$@" ;; # the last --epochs counts
    *.py) exec {python} "$@" ;;
    python) shift; exec {python} "$@" ;;
    tensorboard) shift; exec {python} -m tensorboard.main "$@" ;;
    *) exec {python} -m "$@" ;;
esac
"""
PYTHON = """#!/bin/sh
case "$1 $2" in
    "-m pip")
        [ "$*" = "-m pip install -q --target .uv uv" ] || exit 9
        mkdir -p .uv/bin && ln -sf {folder}/uv .uv/bin/uv; exit $? ;;
    train.py*) shift; exec {python} train.py --epochs 1 "$@" ;;
    *) exec {python} "$@" ;;
esac
"""


def write_programs(folder):
    """Write programs named uv, uvx, python and python3."""
    for name, text in {"uv": UV, "uvx": UV, "python": PYTHON, "python3": PYTHON}.items():
        (folder / name).write_text(
            text.format(python=sys.executable, folder=folder), encoding="utf-8"
        )
        (folder / name).chmod(0o755)


def copy_template(folder):
    """Copy the files of a checkout of the template."""
    names = (".git", "__pycache__", "demo", ".uv", ".venv", ".*_cache", "*.png", "*.gif")
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns(*names))


def write_home(folder):
    """Write a home folder in which gh:org/template is a copy of the template."""
    copy_template(folder / "org" / "template")
    config = json.loads(write_user_config(folder).read_text(encoding="utf-8"))
    config["abbreviations"] = {"gh": f"{folder}/{{0}}"}
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture(scope="module")
def start_command(tmp_path_factory):
    """Return a function that starts a command in a folder. It returns the process."""
    programs = tmp_path_factory.mktemp("programs")
    home = tmp_path_factory.mktemp("home")
    write_programs(programs)
    write_home(home)
    fixed = {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "HOME": str(home),
        "COOKIECUTTER_CONFIG": str(home / "config.yaml"),
    }

    def start(command, folder, **variables):
        return subprocess.Popen(
            ["sh", "-ec", command],
            cwd=folder,
            env=environment(**fixed, **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    return start


@pytest.fixture(scope="module")
def execute(start_command):
    """Return a function that runs a command in a folder. It returns the output of both streams."""

    def run(command, folder, **variables):
        process = start_command(command, folder, **variables)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"{command}\n{output}"
        return output

    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a copy of the template."""
    folder = tmp_path_factory.mktemp("root") / "template"
    copy_template(folder)
    return folder


@pytest.fixture
def create_project(render, tmp_path):
    """Return a function that renders a project with little data. It returns folder and README."""

    def render_answers(task="image_classification", **answers):
        folder = tmp_path / "-".join(["x", *answers.values()])
        project = render(folder, task=task, project_slug=SLUG, **answers)
        write_variant(project / "train.py", project, SMALL_DATA[task])
        return project, (project / "README.md").read_text(encoding="utf-8")

    return render_answers


# --------------------------------------------------------------------------------------------------
# The template's commands
# --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_first_commands_render_and_train(execute, root, readmes):
    readme = readmes[README]
    execute(find_command(readme, INSTALL), root)
    output = execute(find_command(readme, FIRST), root)
    assert "written to run" in output
    assert (root / "demo" / "tf_distribute" / "run" / "export").is_dir()
    assert "resumed at step" in execute(find_command(readme, RESUME), root)
    output = execute(f"{find_command(readme, EXPORT)}; command -v uv", root)
    assert output == f"{root}/.uv/bin/uv\n"


# The commands of all pages that run tests of the template.
TEST_COMMANDS = []
for page in read_pages().values():
    for each in read_commands(page):
        if re.fullmatch(OF_TESTS, each):
            TEST_COMMANDS.append(each)


@pytest.mark.long
@pytest.mark.parametrize("command", dict.fromkeys(TEST_COMMANDS))
def test_commands_of_tests_find_their_tests(command, execute, root):
    # They take minutes or hours, so only their files, options and variables are tested.
    output = execute(command, root, PYTEST_ADDOPTS="--collect-only -q -p no:cacheprovider")
    assert re.search(r"\d+(/\d+)? tests collected", output)
    file = (root / re.search(r"tests/\w+\.py", command)[0]).read_text(encoding="utf-8")
    for variable in re.findall(r"\b([A-Z]+_[A-Z]+)=", command):
        assert f'"{variable}"' in file


@pytest.mark.long
def test_golden_command_writes_the_golden_files(execute, root, readmes):
    golden = root / "tests" / "golden" / "default" / "train.py"
    before = golden.read_bytes()
    golden.write_bytes(b"")
    command = find_command(readmes["docs/tests.md"], GOLDEN)
    execute(command, root, PYTEST_ADDOPTS="-p no:cacheprovider")
    assert golden.read_bytes() == before


def test_page_has_the_lines_of_each_variant(execute, readmes):
    page = readmes["docs/variants.md"]
    output = execute(find_command(page, LINES), TEMPLATE)
    counts = {}
    for count, name in re.findall(r"(\d+) tests/golden/(\w+)/train.py", output):
        counts[name] = int(count)
    stated = [int(count.replace(",", "")) for count in re.findall(r"about ([\d,]+)", page)]
    found = [counts[name] for name in ("default", "complete", "parameter_server")]
    assert stated == pytest.approx(found, abs=50)


def test_simulation_prints_the_tables_of_the_page(execute, readmes):
    page = readmes["docs/scaling.md"]
    output = execute(find_command(page, SIMULATE), TEMPLATE)
    lines = [line for line in output.splitlines() if line.startswith("|")]
    assert len(lines) == 12
    assert set(lines) <= set(page.splitlines())


@pytest.mark.long
def test_scaling_is_measured(execute, root, readmes):
    command = find_command(readmes["docs/scaling.md"], MEASURE)
    output = execute(f"{command} --workers 1 2 --steps 20", root)
    assert output.count("\n| ") >= 3  # a header and two rows


@pytest.mark.long
def test_what_tasks_send_of_an_embedding(execute, root, readmes):
    """Workers send the whole table. A server sends it to a worker for Keras's layer only."""
    command = find_command(readmes["docs/scaling.md"], EMBEDDING)
    output = execute(f"{command} --rows 20000 --steps 20", root)
    table, *sent = (float(size) for size in re.findall(r"([\d.]+) MB", output))
    assert table == 5.12
    by_worker, by_keras, of_rows = sent
    assert table < by_worker < 1.1 * table
    assert table < by_keras < 1.3 * table
    assert of_rows < 0.1 * table


NUMBERS = ["No", "One", "Two", "Three", "Four", "Five", "Six", "Seven"]


def test_first_steps_ask_as_many_questions_as_the_readme_says(execute, readmes, tmp_path):
    count = len(read_questions())
    assert f"{NUMBERS[count].lower()} questions" in readmes[README]
    output = execute(f"yes '' | {find_command(readmes[README], QUESTIONS)}", tmp_path)
    assert f"[{count}/{count}]" in output
    assert "written to run" in output
    assert (tmp_path / "tf_distribute" / "run" / "export").is_dir()


@pytest.mark.long
@pytest.mark.parametrize("task", [None, "tabular_regression"])
def test_commands_grow_a_script(task, execute, readmes, render, tmp_path):
    """Of docs/variants.md, for the default task, and of a project's README."""
    project = render(tmp_path / "x", task=task or TASKS[0], project_slug=SLUG)
    script = project / "train.py"
    readme = (
        (project / "README.md").read_text(encoding="utf-8") if task else readmes["docs/variants.md"]
    )
    script.write_text(edit_all_hooks(script.read_text("utf-8")), encoding="utf-8")
    execute(find_command(readme, GROW), project)
    execute(find_command(readme, MERGE), project)
    complete = tmp_path / "x" / "grow" / "complete" / "train.py"
    expected = edit_all_hooks(complete.read_text(encoding="utf-8"))
    assert script.read_text(encoding="utf-8") == expected


# --------------------------------------------------------------------------------------------------
# A project's commands
# --------------------------------------------------------------------------------------------------

CHECKPOINT = """\
checkpoint = tf.train.Checkpoint(model=[variable.value for variable in model.variables])
status = checkpoint.restore(tf.train.latest_checkpoint("run/checkpoints/best"))
status.assert_existing_objects_matched().expect_partial()
"""
# The script's model then has the weights of the run's export.
USE_OF_CHECKPOINT = """\
import keras, tensorflow as tf, train
cpu, *_ = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
model, _ = train.create_model_and_optimizer(tf.distribute.{strategy})
{block}
export = keras.saving.load_model("run/export/model.keras", compile=False)
for one, other in zip(model.variables, export.variables, strict=True):
    assert "seed" in one.path or (one.numpy() == other.numpy()).all(), one.path
"""


def use_checkpoint(execute, project, strategy):
    """Load the weights of a run under a strategy, and compare them with the export's."""
    code = USE_OF_CHECKPOINT.format(strategy=strategy, block=CHECKPOINT)
    (project / "use.py").write_text(code, encoding="utf-8")
    execute("python use.py", project)


@pytest.mark.long
def test_commands_train_evaluate_and_test_a_project(execute, create_project):
    project, readme = create_project()
    execute(find_command(readme, INSTALL), project)
    assert "usage: train.py" in execute(find_command(readme, HELP), project)
    commands = [command for command in read_commands(readme) if re.fullmatch(TRAIN, command)]
    for command in commands:
        output = execute(command, project)
        assert "written to run" in output or "run is finished" in output
    assert execute(find_command(readme, EVALUATE), project).startswith("test loss ")
    # test_project_tests.py runs the project's tests.
    output = execute(find_command(readme, PYTEST), project, PYTEST_ADDOPTS="--collect-only -q")
    assert "tests collected" in output
    use_checkpoint(execute, project, "get_strategy()")
    use_checkpoint(execute, project, 'MirroredStrategy(["CPU:0", "CPU:1"])')
    # With --inspect, TensorBoard describes the curves instead of serving them.
    assert "first_step" in execute(find_command(readme, CURVES) + " --inspect", project)


@pytest.mark.long
def test_commands_train_with_several_replicas_and_workers(execute, create_project):
    project, readme = create_project()
    output = execute(find_command(readme, REPLICAS), project)
    assert "mirrored on 4 × CPU" in output
    assert "written to run-four" in output
    output = execute(find_command(readme, LAUNCH), project)
    assert "[worker 0] multi_worker on 2 × CPU" in output
    assert (project / "run-two" / "export").is_dir()


@pytest.mark.long
def test_command_starts_a_worker(start_command, execute, create_project):
    project, readme = create_project(script="complete")
    command = find_command(readme, WORKER)
    assert find_command(create_project()[1], WORKER) == command
    for name, port in zip("ab", find_free_ports(2), strict=True):
        command = command.replace(f"{name}:2222", f"127.0.0.1:{port}")
    chief = command.replace('"index": 1', '"index": 0')
    assert chief != command
    processes = [start_command(each, project) for each in (chief, command)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "multi_worker on 2 × CPU" in outputs[0]
    assert "validation loss" in execute(find_command(readme, FOLLOW), project)


@pytest.mark.long
@pytest.mark.parametrize("task", ["image_classification", "text_classification"])
def test_command_of_a_task_trains(task, execute, create_project):
    project, readme = create_project(task=task)
    assert "written to run-" in execute(find_command(readme, OF_A_TASK), project)


class ForkedRuns(versions.Runs):
    """Runs with the versions of these tests, in forks, which don't import TensorFlow again."""

    def train(self, name, size, *flags, code=()):
        _, script, *flags = self.create_command(name, size, *flags, code=code)
        return train(self.folder / name / script, *flags)


@pytest.mark.long
def test_versions_are_checked(tmp_path):
    versions.check(ForkedRuns(sys.executable, versions.render(tmp_path), tmp_path))


# --------------------------------------------------------------------------------------------------
# The commands of Kubernetes
# --------------------------------------------------------------------------------------------------


def find_file(words):
    """Return the file or folder that a command reads, or None."""
    if words[:2] == ["docker", "build"]:
        return words[-1]
    return next((word for word in words if word.startswith("launch/")), None)


def find_job(words):
    """Return the job that a command names, or None."""
    if words[:3] == ["kubectl", "delete", "job"]:
        return words[-1]
    names = [word.removeprefix("job/") for word in words if word.startswith("job/")]
    return names[0] if names else None


def check_command(command, job, project):
    """Assert that a command names an image, a container, a label, a job and a file that exist."""
    words = command.split()
    template = job["spec"]["template"]
    [container] = template["spec"]["containers"]
    label = template["metadata"]["labels"]["app"]
    names = {
        "registry.": container["image"],
        "--container=": f"--container={container['name']}",
        "app=": f"app={label}",
    }
    for word in words:
        for begin, expected in names.items():
            if word.startswith(begin):
                assert word.split(",")[0] == expected, command
    assert find_job(words) in (None, job["metadata"]["name"]), command
    assert Path(project, find_file(words) or ".").exists(), command


def test_commands_of_kubernetes_name_what_exists(create_project):
    project, readme = create_project(cluster="kubernetes")
    manifest = (project / "launch" / "kubernetes.yaml").read_text(encoding="utf-8")
    [*_, job] = yaml.safe_load_all(manifest)
    commands = [command for command in read_commands(readme) if re.fullmatch(NOT_RUN, command)]
    assert len(commands) > 4
    in_comments = re.findall(r"^#     .*?(kubectl .*)", manifest, re.MULTILINE)
    assert len(in_comments) > 6
    commands += in_comments
    for command in commands:
        check_command(command, job, project)
    assert (project / "Dockerfile").is_file()
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert "/runs" in {mount["mountPath"] for mount in container["volumeMounts"]}
