"""Wrong input is rejected: one line on stderr, exit code 2, and no file is written.

The line names the flag or file, the value and what is allowed.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import (
    Outcome,
    assert_fails,
    assert_one_line,
    assert_rejected,
    assert_unchanged,
    create_command,
    environment,
    find_flags,
    finish,
    hash_tree,
    list_checkpoints,
    read_numbers,
    run_commands,
    run_script,
    start,
)
from variants import write_variant

# Flags of each command. A command that isn't rejected, by mistake, is at least short.
SHORT = ("--epochs", "1")

# By name: the flags, and what the line has to name.
BAD_FLAGS = {
    "strategy": ("--strategy horovod", "--strategy", "horovod", "one_device or mirrored"),
    "mode": ("--mode predict", "--mode", "predict", "evaluate"),
    "unknown flag": ("--learning-rat 1", "--learning-rat"),
    "argument": ("train", "train"),
    "no value": ("--epochs", "--epochs"),
    "profile past the end": ("--epochs 1 --profile 1,20", "--profile", "20", "19"),
    "warm-up past the end": ("--epochs 1 --warmup-steps 20", "--warmup-steps", "19"),
    "unequal parts": ("--accumulation-steps 3", "--global-batch-size 64", "multiple of 3"),
    "momentum": ("--ema-momentum 1", "--ema-momentum", "must be above 0 and below 1"),
    "batch larger than the data": ("--global-batch-size 1258", "1258", "1257"),
    "multi_worker without TF_CONFIG": ("--strategy multi_worker", "TF_CONFIG"),
    "replicas on a TPU": ("--replicas 2 --strategy tpu", "--strategy tpu"),
    "two replicas on one device": ("--replicas 2 --strategy one_device", "one_device"),
    "no integer": ("--epochs 2.5", "invalid number value: '2.5'"),
    "no number": ("--learning-rate x", "invalid number value: 'x'"),
    "run directory without a name": ("--run-dir=", "--run-dir", "use another folder"),
    "run directory is a file": ("--run-dir file", "--run-dir file", "folder"),
    "run directory below a file": ("--run-dir file/run", "--run-dir file/run"),
    "run directory that can't be created": ("--run-dir /proc/no/run", "--run-dir /proc/no/run"),
    "run directory of another program": ("--run-dir other", "--run-dir other"),
    "run directory is a URL": ("--run-dir gs://bucket/run", "gs://bucket/run"),
    "evaluate a URL": ("--mode evaluate --run-dir gs://bucket/run", "gs://bucket/run"),
    "evaluate a missing run": ("--mode evaluate --run-dir no", "--run-dir no", "train"),
    "evaluate an empty folder": ("--mode evaluate --run-dir empty", "--run-dir empty", "train"),
    "evaluate a file": ("--mode evaluate --run-dir file", "--run-dir file"),
}

# By name: the flags of the essential script, and what the line has to name.
BAD_FLAGS_OF_ESSENTIAL = {
    "flag of the complete script": ("--clip-norm 1", "--clip-norm"),
    "integer": ("--epochs 0", "--epochs"),
    "float": ("--learning-rate nan", "--learning-rate"),
    "text": ("--seed x", "--seed"),
    "batch": ("--replicas 3", "multiple of 3"),
    "batch larger than the data": ("--global-batch-size 1258", "1257"),
    "TPU": ("--strategy tpu", "--strategy tpu"),
    "evaluate a missing run": ("--mode evaluate", "no complete best checkpoint"),
    "no integer": ("--epochs 2.5", "invalid number value: '2.5'"),
    "run directory without a name": ("--run-dir=", "--run-dir", "use another folder"),
    "run directory is a file": ("--run-dir file", "--run-dir file"),
    "run directory below a file": ("--run-dir file/run", "--run-dir file/run"),
    "run directory that can't be created": ("--run-dir /proc/no/run", "--run-dir /proc/no/run"),
    "run directory that TensorFlow can't read": ("--run-dir run[1]", "--run-dir run[1]"),
    "run directory that is a URL": ("--run-dir gs://bucket/run", "--run-dir gs://bucket/run"),
    "run directory that is no UTF-8": ("--run-dir bad\udcff", "--run-dir bad", "UTF-8"),
}

# For an existing run: the flags, and the names that the line must have.
CHANGED_FLAGS = {
    "seed": ("--seed 8", "seed", " 0", " 8"),
    "batch size": ("--global-batch-size 32", "batch", " 64", " 32"),
    "learning rate": ("--learning-rate 0.5", "learning", " 0.002", " 0.5"),
    "schedule": ("--schedule linear", "schedule", " constant", " linear"),
    "warm-up": ("--warmup-steps 2", "warmup_steps", " 0", " 2"),
    "norm": ("--clip-norm 2", "clip_norm", " None", " 2.0"),
    "momentum": ("--ema-momentum 0.9", "ema_momentum", " None", " 0.9"),
    "precision": ("--precision mixed_bfloat16", "precision", " float32", " mixed_bfloat16"),
    "initial weights": ("--init-checkpoint x", "init_checkpoint", " None", " x"),
}

CLUSTER = {"worker": ["localhost:1", "localhost:2"]}
ONE_WORKER = {"worker": ["localhost:1"]}
WORKER = {"type": "worker", "index": 0}


def config_text(cluster=CLUSTER, task=WORKER):
    return json.dumps({"cluster": cluster, "task": task})


# By name: a TF_CONFIG, and the reason in the line.
BAD_TF_CONFIGS = {
    "no JSON": ("{cluster:", "Expecting property name"),
    "list": ("[]", "No such job in cluster: None"),
    "list with a value": ("[1]", "No such job in cluster: None"),
    "number": ("1", "argument of type 'int'"),
    "null": ("null", "argument of type 'NoneType'"),
    "no task": (json.dumps({"cluster": CLUSTER}), "No such job in cluster: None"),
    "no cluster": (json.dumps({"task": WORKER}), "No such job in cluster: 'worker'"),
    "no type": (config_text(task={"index": 0}), "No such job in cluster: None"),
    "no index": (config_text(task={"type": "worker"}), "No task with index None"),
    "index out of range": (config_text(task=WORKER | {"index": 2}), "No task with index 2"),
    "negative index": (config_text(task=WORKER | {"index": -1}), "No task with index -1"),
    "type not in the cluster": (
        config_text(task={"type": "chief", "index": 0}),
        "No such job in cluster: 'chief'",
    ),
    "task is a text": (config_text(task="worker"), "No such job in cluster: None"),
    "cluster is a text": (config_text(cluster="worker"), "`cluster` must be a dictionary"),
    "cluster is a list": (config_text(cluster=["worker"]), "`cluster` must be a dictionary"),
    "workers are a text": (
        config_text(cluster={"worker": "localhost:1"}),
        "The tasks for job 'worker' must be a list",
    ),
    "workers are a number": (
        config_text(cluster={"worker": 2}),
        "The tasks for job 'worker' must be a list",
    ),
    "master": (
        config_text(CLUSTER | {"master": ["localhost:3"]}),
        "master is not chief or worker",
    ),
    "parameter server": (
        config_text(CLUSTER | {"ps": ["localhost:3"]}),
        "ps is not chief or worker",
    ),
}

# By name: flags that don't go with a TF_CONFIG, that TF_CONFIG, and what the line has to name.
BAD_WITH_TF_CONFIG = {
    "one strategy": ("--strategy mirrored", config_text(), "mirrored", "TF_CONFIG"),
    "empty": ("--strategy multi_worker", "{}", "TF_CONFIG"),
    "replicas": ("--replicas 2", config_text(), "--replicas"),
    "replicas of one worker": (
        "--replicas 2 --strategy multi_worker",
        config_text(ONE_WORKER),
        "multi_worker",
    ),
    "continuous evaluation": (
        "--mode continuous_evaluate",
        config_text(),
        "continuous_evaluate",
        "one worker",
        "TF_CONFIG",
    ),
}

# Corrupt versions of the config.json of an existing run: its text, or None to remove it.
CORRUPT_CONFIGS = {"corrupt": "{", "list": "[]", "text": '"text"', "empty": "", "missing": None}


def furnish(folder):
    """Create the files that BAD_FLAGS name."""
    (folder / "file").write_text("mine")
    (folder / "empty").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text("mine")
    return folder


def add_short_flags(flags):
    words = flags.split()
    return words if "--epochs" in words else [*SHORT, *words]


@pytest.fixture(scope="module")
def run_all(once, tmp_path_factory):
    """Return a function that runs commands of one script in one process, once a session.

    It returns each command's outcome, and whether the command changed a file, by name.
    """

    def run_cases(script, cases, run_dir):
        folders = {}
        commands = []
        for name, (flags, variables) in cases.items():
            folder = folders[name] = furnish(tmp_path_factory.mktemp("rejected"))
            if run_dir:
                shutil.copytree(run_dir, folder / "run")
            commands.append(create_command(script, folder, add_short_flags(flags), variables))
        before = {name: hash_tree(folder) for name, folder in folders.items()}
        outcomes = dict(zip(cases, run_commands(commands), strict=True))
        changed = {name: hash_tree(folders[name]) != before[name] for name in cases}
        return {name: (outcomes[name], changed[name]) for name in cases}

    def run_cases_once(script, cases, run_dir=None):
        path = str(run_dir) if run_dir else None
        return once(run_cases, str(script), cases, path)

    return run_cases_once


def assert_case_rejected(result, *words):
    (code, output, errors), is_changed = result
    assert (code, output) == (2, ""), errors
    assert_one_line(errors, *words)
    assert not is_changed


@pytest.mark.parametrize("name", BAD_FLAGS)
def test_bad_flags_are_rejected(name, run_all, complete_script):
    cases = {name: (flags, {}) for name, (flags, *_) in BAD_FLAGS.items()}
    _, *words = BAD_FLAGS[name]
    assert_case_rejected(run_all(complete_script, cases)[name], *words)


@pytest.mark.parametrize("name", BAD_FLAGS_OF_ESSENTIAL)
def test_essential_script_rejects_bad_flags(name, run_all, essential_script):
    cases = {name: (flags, {}) for name, (flags, *_) in BAD_FLAGS_OF_ESSENTIAL.items()}
    _, *words = BAD_FLAGS_OF_ESSENTIAL[name]
    assert_case_rejected(run_all(essential_script, cases)[name], *words)


@pytest.mark.parametrize("size", ["essential", "complete"])
@pytest.mark.parametrize("name", BAD_TF_CONFIGS)
def test_bad_tf_config_is_rejected(name, size, run_all, scripts):
    cases = {name: ("", {"TF_CONFIG": text}) for name, (text, _) in BAD_TF_CONFIGS.items()}
    _, reason = BAD_TF_CONFIGS[name]
    result = run_all(scripts[size], cases)[name]
    assert_case_rejected(result, f"TF_CONFIG: {reason}", "; use a value such as")


@pytest.mark.parametrize("name", BAD_WITH_TF_CONFIG)
def test_flags_that_contradict_tf_config_are_rejected(name, run_all, complete_script):
    cases = {
        name: (flags, {"TF_CONFIG": text}) for name, (flags, text, *_) in BAD_WITH_TF_CONFIG.items()
    }
    _, _, *words = BAD_WITH_TF_CONFIG[name]
    assert_case_rejected(run_all(complete_script, cases)[name], *words)


@pytest.mark.parametrize("name", CHANGED_FLAGS)
def test_resume_rejects_changed_flags(name, run_all, complete_script, train_once):
    cases = {name: (flags, {}) for name, (flags, *_) in CHANGED_FLAGS.items()}
    _, *words = CHANGED_FLAGS[name]
    results = run_all(complete_script, cases, train_once(*SHORT))
    assert_case_rejected(results[name], *words)


@pytest.mark.parametrize("name", ["seed", "batch size", "learning rate"])
def test_essential_script_rejects_changed_flags(name, essential_script, train_once, tmp_path):
    run_dir = shutil.copytree(train_once(*SHORT), tmp_path / "run")
    flags, *words = CHANGED_FLAGS[name]
    script = write_variant(essential_script, tmp_path)
    with assert_unchanged(run_dir):
        outcome = run_script(script, *SHORT, *flags.split())
    assert_fails(outcome, 2, *words, "another --run-dir")


@pytest.mark.parametrize("name", CORRUPT_CONFIGS)
def test_resume_rejects_corrupt_config(name, complete_script, train_once, tmp_path):
    shutil.copytree(train_once(*SHORT), tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    if CORRUPT_CONFIGS[name] is None:
        config.unlink()
    else:
        config.write_text(CORRUPT_CONFIGS[name], encoding="utf-8")
    before = hash_tree(tmp_path)
    [outcome] = run_commands([create_command(complete_script, tmp_path, SHORT)])
    assert_rejected(outcome, "run/config.json")
    assert hash_tree(tmp_path) == before


# --------------------------------------------------------------------------------------------------
# Numbers
# --------------------------------------------------------------------------------------------------

FLOATS = ("--learning-rate", "--clip-norm", "--ema-momentum", "--timeout")
INTEGERS_FROM_0 = ("--seed", "--recover-from-nan", "--warmup-steps")
INTEGERS_FROM_1 = (
    "--replicas",
    "--epochs",
    "--global-batch-size",
    "--steps-per-loop",
    "--accumulation-steps",
    "--patience",
    "--checkpoint-every-steps",
)
NO_NUMBERS = (
    "--mode",
    "--run-dir",
    "--strategy",
    "--schedule",
    "--precision",
    "--jit-compile",
    "--init-checkpoint",
    "--deterministic",
    "--export",
)
NUMERIC_FLAGS = (*FLOATS, *INTEGERS_FROM_0, *INTEGERS_FROM_1, "--profile")

BAD_NUMBERS = ["-1", "-0.5", "nan", "inf", "1e999", "abc", "", " ", "0x10", "--seed"]
BAD_INTEGERS = ["1.5", "1e3", "9" * 30, "²"]


def list_bad_values(flag):
    values = [*BAD_NUMBERS, "5,1" if flag == "--profile" else "1,5"]
    if flag not in INTEGERS_FROM_0:
        values.append("0")
    if flag not in FLOATS:
        values += BAD_INTEGERS
    return values


def assert_names_value(line, value):
    """Assert that a line names a value, unless it looks like a flag."""
    if not value.startswith("-"):
        assert repr(value) in line or f" {value} " in line, line


def test_flags_are_those_that_the_tests_know(complete_script, tmp_path):
    found = find_flags(write_variant(complete_script, tmp_path))
    assert found == sorted([*NUMERIC_FLAGS, *NO_NUMBERS])


def list_bad_numbers():
    """Return flags with bad values, as (words of the command line, flag, value)."""
    cases = []
    for flag in NUMERIC_FLAGS:
        for value in list_bad_values(flag):
            cases.append(([flag, value], flag, value))
            if value in ("-1", "abc", ""):
                cases.append(([f"{flag}={value}"], flag, value))
    return cases


def test_bad_numbers_are_rejected(complete_script, tmp_path):
    cases = list_bad_numbers()
    lines = [[*SHORT, *words] for words, _, _ in cases]
    commands = [create_command(complete_script, tmp_path, line) for line in lines]
    outcomes = run_commands(commands)
    assert len(outcomes) > 200
    for (_, flag, value), outcome in zip(cases, outcomes, strict=True):
        assert_names_value(assert_rejected(outcome, flag), value)
    assert list(tmp_path.iterdir()) == []


def test_batch_that_replicas_cannot_share_is_rejected(complete_script, tmp_path):
    sizes = (66, 63, 65, 3, 1)
    flags = [*SHORT, "--replicas", "4", "--global-batch-size"]
    commands = [create_command(complete_script, tmp_path, [*flags, size]) for size in sizes]
    outcomes = run_commands(commands)
    for size, outcome in zip(sizes, outcomes, strict=True):
        words = (f"--global-batch-size {size} ", "4 replicas", "use a multiple of 4")
        assert_rejected(outcome, *words)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------
# Data sets
# --------------------------------------------------------------------------------------------------

SPLITS = ("train", "validation", "test")
SIZE_CHANGES = {
    "empty": "take(0)",
    "unknown": "filter(lambda image, label: label > 4)",
    "infinite": "repeat()",
    "too large": "repeat(10**8)",
}


def change_split(position, change):
    """Return code that changes one of the data sets."""
    return f"""
@wraps_original
def create_datasets(original):
    splits = list(original())
    splits[{position}] = splits[{position}].{change}
    return splits
"""


@pytest.fixture(scope="module")
def changed_data_outcomes(once, complete_script, tmp_path_factory):
    """Return the outcomes and folders of runs with changed data sets, by change and split."""

    def run_changes():
        commands = {}
        for change, call in SIZE_CHANGES.items():
            for position, split in enumerate(SPLITS):
                code = change_split(position, call)
                script = write_variant(complete_script, tmp_path_factory.mktemp("changed"), code)
                folder = tmp_path_factory.mktemp("rejected")
                commands[f"{change} {split}"] = create_command(script, folder, SHORT)
        outcomes = run_commands(list(commands.values()))
        folders = [command["folder"] for command in commands.values()]
        return dict(zip(commands, zip(outcomes, folders, strict=True), strict=True))

    return once(run_changes)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("change", SIZE_CHANGES)
def test_data_set_without_usable_size_is_rejected(change, split, changed_data_outcomes):
    (code, output, errors), folder = changed_data_outcomes[f"{change} {split}"]
    assert (code, output) == (2, ""), errors
    assert_one_line(errors, "create_datasets", split, "assert_cardinality")
    assert list(Path(folder).iterdir()) == []


# --------------------------------------------------------------------------------------------------
# Whole processes
# --------------------------------------------------------------------------------------------------


def test_process_prints_one_line(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    assert_rejected(finish(start(script, "--global-batch-size", "1258")), "1258", "1257")
    assert list(tmp_path.iterdir()) == [script]


def test_missing_tpu_is_rejected_soon(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    began = time.monotonic()
    outcome = finish(start(script, "--strategy", "tpu"))
    assert_rejected(outcome, "--strategy tpu")
    assert time.monotonic() - began < 90
    assert list(tmp_path.iterdir()) == [script]


def find_closed_folder(tmp_path):
    """Return a folder in which this process can't write, or skip the test."""
    if os.geteuid() != 0:
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o500)
        return folder
    if not Path("/proc").is_dir():
        pytest.skip("root can write everywhere without /proc")
    return Path("/proc")


def test_run_directory_that_cannot_be_written_is_rejected(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    run_dir = find_closed_folder(tmp_path) / "run"
    outcome = run_script(script, *SHORT, "--run-dir", run_dir)
    assert_rejected(outcome, f"--run-dir {run_dir}")
    assert not run_dir.exists()


def test_continuous_evaluation_of_a_url_is_rejected(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    flags = ("--mode", "continuous_evaluate", "--timeout", "1", "--run-dir", "gs://bucket/run")
    assert_rejected(run_script(script, *flags), "gs://bucket/run")
    assert list(tmp_path.iterdir()) == [script]


def test_help_names_every_flag(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    outcome = run_script(script, "--help", env=environment(COLUMNS="100"))
    assert (outcome.code, outcome.errors) == (0, "")
    for text in [*NUMERIC_FLAGS, "--mode", "uv run train.py"]:
        assert text in outcome.output
    assert list(tmp_path.iterdir()) == [script]


# --------------------------------------------------------------------------------------------------
# Non-finite losses
# --------------------------------------------------------------------------------------------------


def is_finite(line):
    numbers = [value for value in line.values() if not isinstance(value, str)]
    return all(abs(number) < float("inf") for number in numbers)


def test_run_stops_before_it_saves_a_non_finite_loss(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    flags = ("--learning-rate", "2e9", "--checkpoint-every-steps", "1")
    outcome = run_script(script, *flags)
    assert_fails(outcome, 1, "not finite", "between steps", "--learning-rate", "2e+09")
    run_dir = tmp_path / "run"
    assert all(is_finite(line) for line in read_numbers(run_dir))
    assert list_checkpoints(run_dir) in ([], [1])
    assert list_checkpoints(run_dir, "best") == []


NON_FINITE_VALIDATION = """
@wraps_original
def evaluation_step(original, batch, metrics):
    loss, weight = original(batch, metrics)
    return loss * math.inf, weight
"""


def test_run_stops_before_it_saves_a_non_finite_validation_loss(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, NON_FINITE_VALIDATION)
    outcome = run_script(script, *SHORT, "--global-batch-size", "1257")  # a step per epoch
    assert_fails(outcome, 1, "not finite", "validation", "step 1")
    assert list(tmp_path.rglob("ckpt-*")) == []
    assert not (tmp_path / "run" / "export").exists()
    assert all(is_finite(line) for line in read_numbers(tmp_path / "run"))


def test_essential_script_stops_at_a_non_finite_loss(essential_script, tmp_path):
    script = write_variant(essential_script, tmp_path)
    outcome = run_script(script, "--learning-rate", "2e9")
    assert_fails(outcome, 1, "not finite at step 19", "--learning-rate", "2e+09")


def test_essential_script_stops_at_a_non_finite_validation_loss(essential_script, tmp_path):
    score = "def score(validation): return -validation['accuracy']"
    script = write_variant(essential_script, tmp_path, NON_FINITE_VALIDATION, score)
    outcome = run_script(script, "--epochs", "2")
    assert_fails(outcome, 1, "not finite at step 19")
    assert list(tmp_path.rglob("ckpt-*")) == []


# --------------------------------------------------------------------------------------------------
# TF_CONFIG as other programs write it
# --------------------------------------------------------------------------------------------------

KUBEFLOW_CLUSTER = {
    "chief": ["job-chief-0.ns.svc:2222"],
    "worker": ["job-worker-0.ns.svc:2222", "job-worker-1.ns.svc:2222"],
}
# By program: TF_CONFIG, and what train.py must read: the worker's index, and how many there are.
FOREIGN_CONFIGS = {
    # https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow
    "Kubeflow": (
        {
            "cluster": KUBEFLOW_CLUSTER,
            "task": {"type": "worker", "index": 1},
            "environment": "cloud",
        },
        (2, 3),
    ),
    # https://cloud.google.com/vertex-ai/docs/training/distributed-training
    "Vertex AI": (
        {
            "cluster": {"chief": ["cmle-0:2222"], "worker": ["cmle-1:2222"]},
            "environment": "cloud",
            "task": {"type": "chief", "index": 0, "trial": "0", "cloud": "{}"},
            "job": "{}",
        },
        (0, 2),
    ),
    # https://github.com/aws/sagemaker-tensorflow-training-toolkit
    "SageMaker": (
        {
            "cluster": {"worker": ["algo-1:8890", "algo-2:8890"]},
            "task": {"type": "worker", "index": 1},
            "environment": "cloud",
        },
        (1, 2),
    ),
    # https://docs.ray.io/en/latest/train/distributed-tensorflow-keras.html
    "Ray": (
        {
            "cluster": {"worker": ["10.0.0.1:40", "10.0.0.2:41"]},
            "task": {"type": "worker", "index": 0},
        },
        (0, 2),
    ),
    "one worker": (
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}},
        (0, 1),
    ),
    "only a chief": (
        {"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}},
        (0, 1),
    ),
}
EVALUATOR_CONFIG = {"cluster": KUBEFLOW_CLUSTER, "task": {"type": "evaluator", "index": 0}}
READ_TF_CONFIGS = """
import os, sys, train
for text in sys.stdin.read().splitlines():
    os.environ["TF_CONFIG"] = text
    train.config = train.Config()
    train.read_tf_config()
    print(train.config.worker_index, train.config.workers, train.config.mode)
"""


def read_tf_configs(script, configs):
    """Return the outcome of a program that prints what a script reads from each TF_CONFIG."""
    finished = subprocess.run(
        [sys.executable, "-c", READ_TF_CONFIGS],
        input="\n".join(json.dumps(config) for config in configs),
        cwd=script.parent,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return Outcome(finished.returncode, finished.stdout, finished.stderr)


@pytest.mark.parametrize("size", ["essential", "complete"])
def test_tf_config_of_other_programs_is_read(size, scripts):
    outcome = read_tf_configs(scripts[size], [config for config, _ in FOREIGN_CONFIGS.values()])
    expected = [f"{index} {workers} train" for _, (index, workers) in FOREIGN_CONFIGS.values()]
    assert outcome == (0, "\n".join([*expected, ""]), "")


def test_evaluator_of_tf_config_evaluates_continuously(complete_script):
    outcome = read_tf_configs(complete_script, [EVALUATOR_CONFIG])
    assert outcome == (0, "0 1 continuous_evaluate\n", "")


def test_essential_script_rejects_an_evaluator(essential_script, tmp_path):
    variables = {"TF_CONFIG": json.dumps(EVALUATOR_CONFIG)}
    [outcome] = run_commands([create_command(essential_script, tmp_path, SHORT, variables)])
    assert_rejected(outcome, "evaluator", "TF_CONFIG")
