"""Every command of the READMEs is executed, as it stands there.

`uv` and `uvx` download what a project needs. Here, programs of these names stand in front of them
that run the same with the Python of the tests, `train.py` for one epoch where no number is given.
What takes minutes, or a cluster, is executed by another test: ELSEWHERE names it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import versions
import yaml
from conftest import (
    FEW_OF,
    TEMPLATE,
    combine_choices,
    edit,
    environment,
    find_free_ports,
    hash_tree,
    read_questions,
    write_user_config,
)
from versions import Runs

SLUG = "a_project"

# Blocks that are no commands, by how they begin.
OUTPUT = ("one_device on 1 × CPU", "train.py              the script", "preprocess gives other")

# Programs: what stands in backquotes and begins with one of them is a command too.
PROGRAMS = r"(?:[A-Z_]+='?[^`]*? )?(?:uv|uvx|python3?|kubectl) [^`]+"
# Of these, what is said to be left alone, or is told of in other words.
NO_COMMANDS = ("uv run", "kubectl delete -f", "kubectl delete node")

# Commands, the file that executes them, and what stands there.
ELSEWHERE = [
    (r".* uv run pytest -n 2 --dist worksteal -m .*", ".ci/run", ["grep 'run pytest -n 2' README"]),
    (r"python benchmarks/side_by_side.py", ".ci/run", ["uv run benchmarks/side_by_side.py"]),
    # As a step of the Dockerfile, without what the tests of the project need.
    (r"uv sync", "tests/test_kubernetes.py", ["def test_image_installs", 'word == "RUN"']),
    (
        r"python benchmarks/parameter_server.py",
        ".ci/run",
        ["uv run benchmarks/parameter_server.py"],
    ),
    # For the versions of these tests alone; others take environments of some 2 GB each.
    (r"python3 -m uv run tests/versions.py", "tests/test_commands.py", ["versions.check(Runs("]),
    (r"PROMISES=all .*", "tests/test_promises.py", ['environ.get("PROMISES") == "all"']),
    (r"uv run train.py --run-dir run-ink", "tests/test_tasks.py", ["test_worked_edit_of_the_fi"]),
    (
        r"(uv run )?python launch/local.py --ps 2 --workers 2",
        "tests/test_parameter_server.py",
        ['FOUR = ("--ps", "2", "--workers", "2")'],
    ),
    # Those of a project, which are read from its README there; the others are these once more.
    (
        r"for version in v0.1.0 main; do uvx cookiecutter .*|git (merge-file|add) .*update.*"
        r"|git add .cruft.json .*|uvx cruft .*",
        "tests/test_update.py",
        ["commands are those of the project's README", "cruft create", "def read_commands"],
    ),
    (
        r"sbatch( --nodes 4)? launch/slurm.sbatch( --run-dir run)?( --epochs 50)?",
        "tests/test_slurm.py",
        ['"sbatch", "--parsable", *options, "launch/slurm.sbatch", *arguments', "--run-dir"],
    ),
    (r"TPU_NAME=local uv run train.py", "tests/test_bad_input.py", ["test_missing_tpu_is_refused"]),
]

# What takes an engine or an API server, which the READMEs say that no test had: their arguments are
# checked against the files that they name.
NOT_RUN = r"(docker|kubectl) .*"
SAID_SO = "No API server has seen the file, no image was built"


def read_blocks(text):
    """Return the fenced blocks of a README, (language, text)."""
    return re.findall(r"(?m)^```(\w*)\n((?:.*\n)*?)```$", text)


def read_commands(text):
    """Return the commands of a README, each once: lines of blocks, and what is in backquotes."""
    commands = []
    for language, block in read_blocks(text):
        if not language and not block.startswith((*OUTPUT, "checkpoint = ")):
            commands += [re.sub(r" +# .*", "", line) for line in block.splitlines()]
    prose = re.sub(r"(?m)^```\w*\n(?:.*\n)*?```$", "", text)
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))
    commands += [span for span in spans if re.fullmatch(PROGRAMS, span)]
    return [x for x in dict.fromkeys(commands) if x not in NO_COMMANDS]


def find_command(text, pattern):
    """Return the one command of a README that a pattern matches."""
    [command] = [x for x in read_commands(text) if re.fullmatch(pattern, x)]
    return command


# --------------------------------------------------------------------------------------------------
# Nothing is left out
# --------------------------------------------------------------------------------------------------

# Commands that tests below execute.
FIRST = r"python3 -m pip install -q uv && .* cookiecutter --no-input -o demo \. .* train\.py"
FAULTS = r"FAULTS_KILLS=\d+ FAULTS_TERMS=\d+ .*test_faults\.py"
PAIRS = r"FLAGS_PAIRS=all .*test_flags\.py -k pairs"
GROW = r"for script in essential complete; do uvx cookiecutter .*; done"
MERGE = r"git merge-file train\.py \.\./grow/essential/train\.py \.\./grow/complete/train\.py"
GOLDEN = r"GOLDEN=write .* pytest tests/test_golden\.py"
QUESTIONS = r"uvx cookiecutter gh:org/template && cd tf_distribute && uv run train\.py"
TRAIN = r"uv run train\.py|python train\.py"
EVALUATE = r"uv run train\.py --mode evaluate"
PYTEST = r"uv run pytest"
HELP = r"uv run train\.py --help"
REPLICAS = r"uv run train\.py --replicas 4"
LAUNCH = r"uv run python launch/local\.py --workers 2( -- --run-dir run-two)?"
WORKER = r"TF_CONFIG='.*' uv run train\.py"
FOLLOW = r"uv run train\.py --mode continuous_evaluate"
CURVES = r"uvx --with tensorboard tensorboard --logdir run/tensorboard"
OF_A_TASK = r"uv run train\.py --run-dir run-(bert|fashion) .*"
EXECUTED = [FIRST, FAULTS, PAIRS, GROW, MERGE, GOLDEN, QUESTIONS, TRAIN, EVALUATE]
EXECUTED += [PYTEST, HELP, REPLICAS, LAUNCH, WORKER, FOLLOW, CURVES, OF_A_TASK]


@pytest.fixture(scope="module")
def readmes(render, tmp_path_factory):
    """Return the texts of the template's README, and of the projects' of all answers."""
    folder = tmp_path_factory.mktemp("readmes")
    texts = {"": (TEMPLATE / "README.md").read_text(encoding="utf-8")}
    for answers in combine_choices():
        name = "-".join(answers.values())
        project = render(folder / name, accept_hooks=False, project_slug=SLUG, **answers)
        texts[name] = (project / "README.md").read_text(encoding="utf-8")
    return texts


def test_each_command_is_executed(readmes):
    found = {}
    for name, text in readmes.items():
        for command in read_commands(text):
            found.setdefault(command, name)
    patterns = [*EXECUTED, *(pattern for pattern, _, _ in ELSEWHERE), NOT_RUN]
    for command, name in found.items():
        matches = [pattern for pattern in patterns if re.fullmatch(pattern, command)]
        assert len(matches) == 1, f"README of {name or 'the template'}: {command}\n{matches}"
        if matches == [NOT_RUN]:
            assert SAID_SO in " ".join(readmes[name].split()), command
    for pattern in patterns:
        assert any(re.fullmatch(pattern, command) for command in found), f"no more: {pattern}"
    for _, file, texts in ELSEWHERE:
        content = (TEMPLATE / file).read_text(encoding="utf-8")
        assert all(text in content for text in texts), f"{file} has not: {texts}"


def test_each_block_of_python_is_executed(readmes):
    files = [TEMPLATE / "tests" / f"test_{name}.py" for name in ("tasks", "parameter_server")]
    tests = "".join(file.read_text(encoding="utf-8") for file in files)
    for name, text in readmes.items():
        for language, block in read_blocks(text):
            if language:
                assert language == "python", f"{name}: {block}"
                # The one with the export is executed by test_example_of_the_readme_predicts, the
                # others are edits, and a program.
                marks = ("export", "fashion_mnist", "28, 28", "def preprocess", "SplitEmbedding(")
                marks += ("FixedShardsPartitioner",)
                [mark] = [x for x in marks if x in block]
                assert mark in tests
            elif block.startswith("checkpoint = "):
                assert block == CHECKPOINT, name
    for test in ("test_example_of_the_readme_predicts", "test_edit_to_fashion_mnist"):
        assert f"def {test}(" in tests


def test_command_that_nothing_executes_is_found(readmes):
    readmes = {**readmes, "": readmes[""] + "\n```\npython3 -m uv run nothing.py\n```\n"}
    with pytest.raises(AssertionError, match="of the template: python3 -m uv run nothing.py"):
        test_each_command_is_executed(readmes)


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
case "$1" in
    train.py) shift; exec {python} train.py --epochs 1 "$@" ;; # the last --epochs counts
    python) shift; exec {python} "$@" ;;
    tensorboard) shift; exec {python} -m tensorboard.main "$@" ;;
    *) exec {python} -m "$@" ;;
esac
"""
PYTHON = """#!/bin/sh
case "$1 $2" in
    "-m pip") [ "$*" = "-m pip install -q uv" ]; exit $? ;;
    "-m uv") shift 2; exec uv "$@" ;;
    train.py*) shift; exec {python} train.py --epochs 1 "$@" ;;
    *) exec {python} "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def execute(tmp_path_factory):
    """Return a function that runs a command in a folder. It returns the output, both streams'."""
    programs, home = tmp_path_factory.mktemp("programs"), tmp_path_factory.mktemp("home")
    for names, text in ((("uv", "uvx"), UV), (("python", "python3"), PYTHON)):
        for name in names:
            (programs / name).write_text(text.format(python=sys.executable), encoding="utf-8")
            (programs / name).chmod(0o755)
    # gh:org/template is a copy of the template in there.
    copy_template(home / "org" / "template")
    config = json.loads(write_user_config(home).read_text(encoding="utf-8"))
    config["abbreviations"] = {"gh": f"{home}/{{0}}"}
    (home / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    fixed = {"PATH": path, "HOME": str(home), "COOKIECUTTER_CONFIG": str(home / "config.yaml")}

    def run_command(command, folder, start=False, **variables):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
        env = environment(**fixed, **variables)
        process = subprocess.Popen(["sh", "-ec", command], cwd=folder, env=env, **options)
        if start:
            return process
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"{command}\n{output}"
        return output

    return run_command


def copy_template(folder):
    """Copy what a checkout of the template has."""
    ignored = shutil.ignore_patterns(
        ".git", "__pycache__", "demo", ".venv", ".*_cache", "*.png", "*.gif"
    )
    shutil.copytree(TEMPLATE, folder, ignore=ignored)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a copy of the template."""
    folder = tmp_path_factory.mktemp("root") / "template"
    copy_template(folder)
    return folder


@pytest.fixture
def project(render, tmp_path):
    """Return a function that gives the folder of a project with few data, and its README."""

    def render_project(task="image_classification", **answers):
        folder = render(
            tmp_path / "-".join(["x", *answers.values()]), task=task, project_slug=SLUG, **answers
        )
        edit(folder / "train.py", folder, FEW_OF[task])
        return folder, (folder / "README.md").read_text(encoding="utf-8")

    return render_project


# --------------------------------------------------------------------------------------------------
# The template's
# --------------------------------------------------------------------------------------------------


def test_first_command_renders_and_trains(execute, root, readmes):
    output = execute(find_command(readmes[""], FIRST), root)
    assert "written to run" in output
    assert (root / "demo" / "tf_distribute" / "run" / "export").is_dir()


@pytest.mark.parametrize("pattern", [FAULTS, PAIRS])
def test_commands_of_the_tests_find_their_tests(pattern, execute, root, readmes):
    # They take minutes or hours: their files, options and variables are what is looked at.
    command = find_command(readmes[""], pattern)
    addopts = "--collect-only -q -p no:cacheprovider"
    assert re.search(r"\d+(/\d+)? tests collected", execute(command, root, PYTEST_ADDOPTS=addopts))
    file = (root / re.search(r"tests/\w+\.py", command)[0]).read_text(encoding="utf-8")
    for variable in re.findall(r"\b([A-Z]+_[A-Z]+)=", command):
        assert f'"{variable}"' in file


def test_command_writes_the_golden_files_anew(execute, root, readmes):
    golden = root / "tests" / "golden" / "default" / "train.py"
    before = golden.read_bytes()
    golden.write_bytes(b"")
    execute(find_command(readmes[""], GOLDEN), root, PYTEST_ADDOPTS="-p no:cacheprovider")
    assert golden.read_bytes() == before


def test_cookiecutter_asks_as_many_questions_as_is_said(execute, readmes, tmp_path):
    numbers = ["No", "One", "Two", "Three", "Four", "Five", "Six", "Seven"]
    count = len(read_questions())
    assert f"{numbers[count]} questions, a title, a folder's name," in readmes[""]
    output = execute(f"yes '' | {find_command(readmes[''], QUESTIONS)}", tmp_path)
    assert f"[{count}/{count}]" in output
    assert "written to run" in output
    assert (tmp_path / "tf_distribute" / "run" / "export").is_dir()


@pytest.mark.parametrize("name", ["", "tabular_regression"])
def test_commands_grow_a_script(name, execute, readmes, project):
    folder, text = project(task=name or "image_classification")
    text = text if name else readmes[""]
    mine = (folder / "train.py").read_text(encoding="utf-8")
    execute(find_command(text, GROW), folder)
    execute(find_command(text, MERGE), folder)
    [old, new] = FEW_OF[name or "image_classification"]
    grown = (folder.parent / "grow" / "complete" / "train.py").read_text(encoding="utf-8")
    assert (folder / "train.py").read_text(encoding="utf-8").replace("TF Distribute", "x") == (
        grown.replace(old, new).replace("TF Distribute", "x")
    )
    assert "--schedule" not in mine


# --------------------------------------------------------------------------------------------------
# A project's
# --------------------------------------------------------------------------------------------------

CHECKPOINT = """\
checkpoint = tf.train.Checkpoint(model=[variable.value for variable in model.variables])
checkpoint.restore(tf.train.latest_checkpoint("run/checkpoints/best")).expect_partial()
"""
# The model is that of the script; the weights that it then has, its export has too.
USE_OF_CHECKPOINT = """\
import keras, tensorflow as tf, train
model, _ = train.create_model_and_optimizer(tf.distribute.get_strategy())
{block}
export = keras.saving.load_model("run/export/model.keras", compile=False)
for one, other in zip(model.variables, export.variables, strict=True):
    assert "seed" in one.path or (one.numpy() == other.numpy()).all(), one.path
"""


def test_commands_of_a_project(execute, project):
    folder, text = project()
    assert "usage: train.py" in execute(find_command(text, HELP), folder)
    for command in dict.fromkeys(x for x in read_commands(text) if re.fullmatch(TRAIN, x)):
        output = execute(command, folder)
        assert "written to run" in output or "run is finished" in output
    assert execute(find_command(text, EVALUATE), folder).startswith("test loss ")
    output = execute(find_command(text, PYTEST), folder, PYTEST_ADDOPTS="--collect-only -q")
    assert "tests collected" in output  # see test_proofs.py
    [block] = [block for _, block in read_blocks(text) if block.startswith("checkpoint = ")]
    (folder / "use.py").write_text(USE_OF_CHECKPOINT.format(block=block), encoding="utf-8")
    execute("python use.py", folder)
    # Instead of serving them, it says which it has found.
    assert "first_step" in execute(find_command(text, CURVES) + " --inspect", folder)


def test_commands_of_several_replicas_and_workers(execute, project):
    folder, text = project()
    output = execute(find_command(text, REPLICAS), folder)
    assert "mirrored on 4 × CPU" in output and "written to run" in output
    output = execute(find_command(text, LAUNCH), folder)
    assert "[worker 0] multi_worker on 2 × CPU" in output
    assert (folder / "run-two" / "export").is_dir()


def test_command_of_a_worker(execute, project):
    folder, text = project(script="complete")
    command = find_command(text, WORKER)
    for name, port in zip("ab", find_free_ports(2), strict=True):
        command = command.replace(f"{name}:2222", f"127.0.0.1:{port}")
    chief = command.replace('"index": 1', '"index": 0')
    assert chief != command
    processes = [execute(x, folder, start=True) for x in (chief, command)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "multi_worker on 2 × CPU" in outputs[0]
    assert find_command(project()[1], WORKER) == find_command(text, WORKER)
    following = execute(find_command(text, FOLLOW), folder)
    assert "validation loss" in following


@pytest.mark.parametrize("task", ["image_classification", "text_classification"])
def test_command_of_a_task(task, execute, project):
    folder, text = project(task=task)
    output = execute(find_command(text, OF_A_TASK), folder)
    assert "written to run-" in output


def test_versions_are_checked(tmp_path):
    """Those that run the tests, without an environment made for them."""
    versions.check(Runs(sys.executable, versions.render(tmp_path), tmp_path))


def test_commands_of_kubernetes_name_what_is_there(readmes, project):
    folder, text = project(cluster="kubernetes")
    before = hash_tree(folder)
    commands = [x for x in read_commands(text) if re.fullmatch(NOT_RUN, x)]
    assert len(commands) > 5
    manifest = (folder / "launch" / "kubernetes.yaml").read_text(encoding="utf-8")
    service, _, job = yaml.safe_load_all(manifest)
    [container] = job["spec"]["template"]["spec"]["containers"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    for command in commands:
        words = command.split()
        for word in words:
            if word.startswith("registry."):
                assert word == container["image"], command
            if word.startswith("app="):
                assert labels["app"] == word.split(",")[0].removeprefix("app="), command
            if word.startswith("job/") or "delete job" in command and word == words[-1]:
                assert job["metadata"]["name"] == word.removeprefix("job/"), command
            if word.startswith("launch/") or words[:2] == ["docker", "build"] and word == ".":
                assert Path(folder, word).exists(), command
    assert (folder / "Dockerfile").is_file()
    assert "/runs" in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert hash_tree(folder) == before
    assert service["kind"] == "Service"
