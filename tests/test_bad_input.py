"""Errors speak: wrong input ends in one line on stderr and exit code 2, and touches nothing."""

import ast
import contextlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from conftest import (
    ask_child,
    edit,
    environment,
    finish,
    hash_tree,
    read_numbers,
    start,
)

# A run under way, for flags that would change its numbers.
RUN_FLAGS = ("--epochs", "1")

CLUSTER = {"worker": ["localhost:1", "localhost:2"]}
WORKER = {"type": "worker", "index": 0}


def tf_config(cluster=CLUSTER, task=WORKER):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


# By name: the flags, the variables, what the line has to say.
COMMANDS = {
    "strategy": (["--strategy", "horovod"], {}, ["--strategy", "horovod", "multi_worker"]),
    "mode": (["--mode", "predict"], {}, ["--mode", "predict", "evaluate"]),
    "flag": (["--learning-rat", "1"], {}, ["--learning-rat"]),
    "argument": (["train"], {}, ["train"]),
    "no value": (["--epochs"], {}, ["--epochs"]),
    "profile past the end": (["--epochs", "1", "--profile", "1,20"], {}, ["--profile", "20", "19"]),
    "warm-up past the end": (
        ["--epochs", "1", "--warmup-steps", "20"],
        {},
        ["--warmup-steps", "19"],
    ),
    "parts that can't be equal": (
        ["--accumulation-steps", "3"],
        {},
        ["--global-batch-size 64", "3 parts", "63 or 66"],
    ),
    "momentum": (["--ema-momentum", "1"], {}, ["--ema-momentum", "'1.0'", "between 0 and 1"]),
    "batch larger than the data": (["--global-batch-size", "1258"], {}, ["1258", "1257"]),
    "TF_CONFIG is no JSON": ([], {"TF_CONFIG": "{cluster:"}, ["TF_CONFIG", '"cluster"']),
    "TF_CONFIG is a list": ([], {"TF_CONFIG": "[]"}, ["TF_CONFIG", '"cluster"']),
    "TF_CONFIG is a list with a value": ([], {"TF_CONFIG": "[1]"}, ["TF_CONFIG", '"cluster"']),
    "TF_CONFIG is a number": ([], {"TF_CONFIG": "1"}, ["TF_CONFIG", '"cluster"']),
    "TF_CONFIG is null": ([], {"TF_CONFIG": "null"}, ["TF_CONFIG", '"cluster"']),
    "no task": ([], {"TF_CONFIG": json.dumps({"cluster": CLUSTER})}, ["TF_CONFIG", "'task'"]),
    "no cluster": ([], {"TF_CONFIG": json.dumps({"task": WORKER})}, ["TF_CONFIG", "'cluster'"]),
    "no type": ([], tf_config(task={"index": 0}), ["TF_CONFIG", "'type'"]),
    "no index": ([], tf_config(task={"type": "worker"}), ["TF_CONFIG", "'index'"]),
    "index out of range": (
        [],
        tf_config(task={"type": "worker", "index": 2}),
        ["TF_CONFIG", "index 2", "worker"],
    ),
    "negative index": (
        [],
        tf_config(task={"type": "worker", "index": -1}),
        ["TF_CONFIG", "index -1", "worker"],
    ),
    "index is a text": ([], tf_config(task={"type": "worker", "index": "0"}), ["TF_CONFIG"]),
    "type is not in the cluster": (
        [],
        tf_config(task={"type": "chief", "index": 0}),
        ["TF_CONFIG", "'chief'"],
    ),
    "task is a text": ([], tf_config(task="worker"), ["TF_CONFIG"]),
    "cluster is a text": ([], tf_config(cluster="worker"), ["TF_CONFIG"]),
    "cluster is a list": ([], tf_config(cluster=["worker"]), ["TF_CONFIG"]),
    "workers are a text": ([], tf_config(cluster={"worker": "localhost:1"}), ["TF_CONFIG"]),
    "workers are a number": ([], tf_config(cluster={"worker": 2}), ["TF_CONFIG"]),
    "master": (
        [],
        tf_config(cluster=CLUSTER | {"master": ["localhost:3"]}),
        ["TF_CONFIG", "master", "chief"],
    ),
    "parameter server": (
        [],
        tf_config(cluster=CLUSTER | {"ps": ["localhost:3"]}),
        ["TF_CONFIG", "ps", "worker"],
    ),
    "one strategy, several workers": (
        ["--strategy", "mirrored"],
        tf_config(),
        ["mirrored", "TF_CONFIG", "2"],
    ),
    "multi_worker without TF_CONFIG": (["--strategy", "multi_worker"], {}, ["TF_CONFIG"]),
    "multi_worker with an empty TF_CONFIG": (
        ["--strategy", "multi_worker"],
        {"TF_CONFIG": "{}"},
        ["TF_CONFIG"],
    ),
    "replicas with several workers": (["--replicas", "2"], tf_config(), ["--replicas"]),
    "replicas with multi_worker": (
        ["--replicas", "2", "--strategy", "multi_worker"],
        tf_config(cluster={"worker": ["localhost:1"]}),
        ["--replicas", "multi_worker"],
    ),
    "replicas with tpu": (["--replicas", "2", "--strategy", "tpu"], {}, ["--replicas", "tpu"]),
    "one device with two replicas": (
        ["--replicas", "2", "--strategy", "one_device"],
        {},
        ["one_device", "2"],
    ),
    "run directory is a file": (["--run-dir", "file"], {}, ["--run-dir file", "folder"]),
    "run directory below a file": (["--run-dir", "file/run"], {}, ["--run-dir file/run"]),
    "run directory is something else": (["--run-dir", "other"], {}, ["--run-dir other"]),
    "continuous evaluation by several workers": (
        ["--mode", "continuous_evaluate"],
        tf_config(),
        ["continuous_evaluate", "one worker", "TF_CONFIG"],
    ),
    "evaluate a missing folder": (
        ["--mode", "evaluate", "--run-dir", "missing"],
        {},
        ["--run-dir missing", "train"],
    ),
    "evaluate an empty folder": (
        ["--mode", "evaluate", "--run-dir", "empty"],
        {},
        ["--run-dir empty", "train"],
    ),
    "evaluate a file": (["--mode", "evaluate", "--run-dir", "file"], {}, ["--run-dir file"]),
    "another config, damaged": ([], {}, ["config.json"]),
    "another config, missing": ([], {}, ["config.json"]),
    "another seed": (["--seed", "8"], {}, ["seed", " 0", " 8"]),
    "another batch": (["--global-batch-size", "32"], {}, ["batch", " 64", " 32"]),
    "another learning rate": (["--learning-rate", "0.5"], {}, ["learning", " 0.002", " 0.5"]),
    "another schedule": (["--schedule", "linear"], {}, ["schedule", " constant", " linear"]),
    "another warm-up": (["--warmup-steps", "2"], {}, ["warmup_steps", " 0", " 2"]),
    "another norm": (["--clip-norm", "2"], {}, ["clip_norm", " None", " 2.0"]),
    "another momentum": (["--ema-momentum", "0.9"], {}, ["ema_momentum", " None", " 0.9"]),
    "another precision": (
        ["--precision", "mixed_bfloat16"],
        {},
        ["precision", " float32", " mixed_bfloat16"],
    ),
    "another start": (["--init-checkpoint", "x"], {}, ["init_checkpoint", " None", " x"]),
}


@pytest.fixture(scope="module")
def outcomes(once, script, train_once, tmp_path_factory):
    """Return what became of COMMANDS, by name: the answer, and whether anything was touched."""

    def run_commands():
        run_dir = train_once(*RUN_FLAGS)
        folders, commands = {}, []
        for name, (flags, variables, _) in COMMANDS.items():
            folder = folders[name] = tmp_path_factory.mktemp("refused")
            (folder / "file").write_text("mine")
            (folder / "empty").mkdir()
            (folder / "other").mkdir()
            (folder / "other" / "config.json").write_text("mine")
            if name.startswith("another "):
                shutil.copytree(run_dir, folder / "run")
            if name == "another config, damaged":
                (folder / "run" / "config.json").write_text("{")
            if name == "another config, missing":
                (folder / "run" / "config.json").unlink()
            # One that isn't refused, by mistake, is at least short.
            flags = [*(() if "--epochs" in flags else RUN_FLAGS), *flags]
            commands.append(as_command(script, folder, flags, variables))
        before = {name: hash_tree(folder) for name, folder in folders.items()}
        given = dict(zip(COMMANDS, ask_child("commands", json.dumps(commands)), strict=True))
        touched = {name: hash_tree(folder) != before[name] for name, folder in folders.items()}
        return {name: (given[name], touched[name]) for name in COMMANDS}

    return once(run_commands)


def as_command(script, folder, flags, variables=None):
    """Return a command for child.py."""
    variables = variables or {}
    return {
        "script": str(script),
        "flags": list(flags),
        "variables": variables,
        "folder": str(folder),
    }


def assert_refused(answer, *named):
    assert answer["code"] == 2, answer["stderr"]
    assert answer["stdout"] == ""
    assert_one_line(answer["stderr"], *named)


def assert_one_line(errors, *named):
    assert errors.endswith("\n")
    [line] = errors.splitlines()
    assert line.startswith("train.py: ")
    for part in named:
        assert part in line


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_refused(name, outcomes):
    answer, touched = outcomes[name]
    assert_refused(answer, *COMMANDS[name][2])
    assert not touched


# --------------------------------------------------------------------------------------------------
# Numbers
# --------------------------------------------------------------------------------------------------

FRACTIONS = {"--learning-rate", "--clip-norm", "--ema-momentum", "--timeout"}
FROM_ZERO = ("--seed", "--recover-from-nan", "--warmup-steps")


def find_numeric_flags(script):
    """Return the flags that take a number, from the source: those with a type."""
    calls = [
        node
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and any(keyword.arg == "type" for keyword in node.keywords)
    ]
    return [call.args[0].value for call in calls]


def test_wrong_numbers_are_refused(script, tmp_path):
    flags = find_numeric_flags(script)
    assert {"--epochs", "--replicas", "--seed", "--learning-rate"} <= set(flags)
    tried = []
    for flag in flags:
        values = ["-1", "-0.5", "nan", "inf", "1e999", "abc", "", " ", "0x10", "--seed"]
        values.append("5,1" if flag == "--profile" else "1,5")
        if flag not in FROM_ZERO:
            values.append("0")
        if flag not in FRACTIONS:
            values += ["1.5", "1e3", "9" * 30, "²"]
        tried += [(flag, value) for value in values]
    joined = [pair for pair in tried if pair[1] in ("-1", "abc", "")]
    commands = [as_command(script, tmp_path, [*RUN_FLAGS, *pair]) for pair in tried]
    commands += [as_command(script, tmp_path, [*RUN_FLAGS, "=".join(pair)]) for pair in joined]
    answers = ask_child("commands", json.dumps(commands))
    assert len(answers) == len(commands) > 200
    for (flag, value), answer in zip(tried + joined, answers, strict=True):
        assert_refused(answer, flag)
        with contextlib.suppress(ValueError):
            if flag in FRACTIONS:
                value = str(float(value))  # As Python reads it.
        assert value.startswith("-") or repr(value) in answer["stderr"], answer["stderr"]
    assert list(tmp_path.iterdir()) == []


def test_batch_that_replicas_cannot_share_is_refused_with_the_nearest(script, tmp_path):
    tried = {66: ["64", "68"], 63: ["60", "64"], 65: ["64", "68"], 3: ["4"], 1: ["4"]}
    flags = [*RUN_FLAGS, "--replicas", "4", "--global-batch-size"]
    commands = [as_command(script, tmp_path, [*flags, str(size)]) for size in tried]
    answers = ask_child("commands", json.dumps(commands))
    for (size, nearest), answer in zip(tried.items(), answers, strict=True):
        assert_refused(answer, f"--global-batch-size {size} ", "4 replicas", *nearest)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------
# Data sets
# --------------------------------------------------------------------------------------------------

SPLITS = "    return [tf.data.Dataset.from_tensor_slices((images[i], labels[i])) for i in splits]\n"


def change_split(position, change):
    """Return an edit that changes one of the data sets."""
    return SPLITS, (
        f"{SPLITS.replace('return', 'sets =')}    sets[{position}] = sets[{position}].{change}\n"
        "    return sets\n"
    )


CHANGES = {"empty": "take(0)", "unknown": "filter(lambda _, label: label > 4)", "none": "repeat()"}


@pytest.fixture(scope="module")
def outcomes_of_changes(once, script, tmp_path_factory):
    """Return what became of runs with changed data sets, by the change and the set's position."""

    def run_changes():
        commands = {}
        for change, call in CHANGES.items():
            for position in range(3):
                folder = tmp_path_factory.mktemp("edited")
                edited = edit(script, folder, change_split(position, call))
                folder = tmp_path_factory.mktemp("refused")
                commands[f"{change} {position}"] = as_command(edited, folder, RUN_FLAGS)
        answers = ask_child("commands", json.dumps(list(commands.values())))
        folders = [command["folder"] for command in commands.values()]
        return dict(zip(commands, zip(answers, folders, strict=True), strict=True))

    return once(run_changes)


@pytest.mark.parametrize(("position", "split"), [(0, "train"), (1, "validation"), (2, "test")])
@pytest.mark.parametrize("change", CHANGES)
def test_data_set_of_no_known_size_is_refused(change, position, split, outcomes_of_changes):
    answer, folder = outcomes_of_changes[f"{change} {position}"]
    assert_refused(answer, "create_datasets", split, "assert_cardinality")
    assert list(Path(folder).iterdir()) == []


# --------------------------------------------------------------------------------------------------
# Commands of their own
# --------------------------------------------------------------------------------------------------


def test_whole_process_prints_one_line(script, tmp_path):
    script = edit(script, tmp_path)
    code, output, errors = finish(start(script, "--global-batch-size", "1258"))
    assert (code, output) == (2, "")
    assert_one_line(errors, "1258", "1257")
    assert list(tmp_path.iterdir()) == [script]


def test_missing_tpu_is_refused_soon(script, tmp_path):
    script = edit(script, tmp_path)
    began = time.monotonic()
    code, output, errors = finish(start(script, "--strategy", "tpu"))
    assert (code, output) == (2, "")
    assert_one_line(errors, "--strategy tpu", "TPU_NAME")
    assert time.monotonic() - began < 90
    assert list(tmp_path.iterdir()) == [script]


def test_run_directory_that_cannot_be_written_is_refused(script, tmp_path):
    script = edit(script, tmp_path)
    if os.geteuid() == 0:  # Whom no permission stops.
        parent = Path("/proc")
        if not parent.is_dir():
            pytest.skip("as root, and without /proc, every folder can be written")
    else:
        parent = tmp_path / "closed"
        parent.mkdir(mode=0o500)
    code, output, errors = finish(start(script, *RUN_FLAGS, "--run-dir", parent / "run"))
    assert (code, output) == (2, "")
    assert_one_line(errors, f"--run-dir {parent / 'run'}")
    assert not (parent / "run").exists()


def test_help(script, tmp_path):
    script = edit(script, tmp_path)
    code, output, errors = finish(start(script, "--help", env=environment(COLUMNS="100")))
    assert (code, errors) == (0, "")
    for flag in [*find_numeric_flags(script), "--mode", "uv run train.py"]:
        assert flag in output
    assert list(tmp_path.iterdir()) == [script]


# --------------------------------------------------------------------------------------------------
# A loss that is not finite
# --------------------------------------------------------------------------------------------------


def test_run_stops_before_it_saves_a_loss_that_is_not_finite(script, tmp_path):
    script = edit(script, tmp_path)
    flags = ("--learning-rate", "1e30", "--checkpoint-every-steps", "1")
    code, _, errors = finish(start(script, *flags))
    assert code == 1
    assert_one_line(errors, "not finite", "between steps", "--learning-rate", "1e+30")
    assert all(is_finite(line) for line in read_numbers(tmp_path / "run"))
    assert list(tmp_path.rglob("ckpt-*.index")) in ([], [last_checkpoint(tmp_path, 1)])


def last_checkpoint(folder, step):
    return folder / "run" / "checkpoints" / "last" / f"ckpt-{step}.index"


def is_finite(line):
    return all(abs(value) < float("inf") for value in line.values() if not isinstance(value, str))


def test_run_stops_before_it_saves_what_only_the_validation_sees(script, tmp_path):
    # One step an epoch: its loss is that of the weights before, and the epoch's end saves those
    # after it.
    script = edit(script, tmp_path)
    flags = ("--learning-rate", "1e30", "--global-batch-size", "1257", "--epochs", "1")
    code, _, errors = finish(start(script, *flags))
    assert code == 1, errors
    assert_one_line(errors, "not finite", "validation", "step 1")
    assert list(tmp_path.rglob("ckpt-*")) == []
    assert not (tmp_path / "run" / "export").exists()
    assert all(is_finite(line) for line in read_numbers(tmp_path / "run"))
