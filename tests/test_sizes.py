"""The two sizes of the script are one program: the same bits, and one grows into the other."""

import json
import os
import shutil
import signal
import subprocess

import pytest
from conftest import (
    FEW_OF,
    FLAGS,
    TASKS,
    assert_same_run,
    edit,
    environment,
    find_free_ports,
    finish,
    flags_of,
    fork,
    hash_tree,
    read_numbers,
    start_workers,
    train,
    wait_for_lines,
)

WORKERS = [("worker", 0), ("worker", 1)]


@pytest.fixture(scope="module")
def sizes(render, tmp_path_factory):
    """Return the scripts of each task in both sizes."""
    folder = tmp_path_factory.mktemp("sizes")
    return {
        task: [
            render(folder / task, task=task, script=size, project_slug=f"a_{size}") / "train.py"
            for size in ("essential", "complete")
        ]
        for task in TASKS
    }


def begin(place, script, *flags):
    """Start a script on one replica, two replicas or two workers. Return the processes."""
    if place == "workers":
        return start_workers(script, WORKERS, *flags)
    return [fork(script, *flags, *flags_of(2 if place == "replicas" else 1))]


def complete(place, script, *flags):
    ends = [finish(process) for process in begin(place, script, *flags)]
    assert [(code, errors) for code, _, errors in ends] == [(0, "")] * len(ends)
    return ends[0][1]


# --------------------------------------------------------------------------------------------------
# One program
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_sizes_give_the_same_bits(task, replicas, sizes, tmp_path):
    flags = ("--epochs", "2", "--checkpoint-every-steps", "3", *flags_of(replicas))
    runs = []
    for script, name in zip(sizes[task], "ab", strict=True):
        (tmp_path / name).mkdir()
        train(edit(script, tmp_path / name, FEW_OF[task]), *flags)
        runs.append(tmp_path / name / "run")
    assert_same_run(*runs)


@pytest.mark.parametrize("first", [0, 1], ids=["essential", "complete"])
def test_run_begun_by_one_size_goes_on_under_the_other(first, sizes, train_once, tmp_path, chance):
    pair = sizes["image_classification"]
    scripts = [edit(pair[i], tmp_path / str(i)) for i in (0, 1) if not (tmp_path / str(i)).mkdir()]
    run_dir = tmp_path / "run"
    for turn in range(3):
        process = fork(scripts[(first + turn) % 2], *FLAGS, "--run-dir", run_dir)
        wait_for_lines(run_dir, chance.randint(2, 6), process)
        process.kill()
        finish(process)
    output = train(scripts[(first + 1) % 2], *FLAGS, "--run-dir", run_dir)
    assert "resumed at step" in output
    assert_same_run(run_dir, train_once(*FLAGS))


def test_flags_that_an_essential_script_lacks_are_refused(sizes, train_once, tmp_path):
    keys = {"--clip-norm": "clip_norm", "--warmup-steps": "warmup", "--recover-from-nan": "recover"}
    for flag, key in keys.items():
        run = train_once("--epochs", "1", flag, "1")
        script = edit(sizes["image_classification"][0], tmp_path)
        code, _, errors = finish(fork(script, "--epochs", "2", "--run-dir", run))
        assert code == 2
        [line] = errors.splitlines()
        assert key in line


# --------------------------------------------------------------------------------------------------
# The essential script by itself
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["replica", "replicas", "workers"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_essential_script_ends_with_the_same_bits(
    number, place, essential, train_once, tmp_path, chance
):
    script = edit(essential, tmp_path)
    for _ in range(1 if place == "workers" else 3):
        processes = begin(place, script, *FLAGS)
        wait_for_lines(tmp_path / "run", chance.randint(2, 6), *processes)
        target = chance.choice(processes)
        target.send_signal(number)
        ends = {process: finish(process, timeout=60) for process in processes}
        for process, (code, output, errors) in ends.items():
            assert code == (-9 if (process, number) == (target, signal.SIGKILL) else 143), errors
            assert errors in ("", "train.py: stopped: a worker is lost; start all workers again\n")
            if number == signal.SIGTERM and process is processes[0]:
                assert "stopped, and saved at step" in output
    complete(place, script, *FLAGS)
    assert_same_run(tmp_path / "run", train_once(*FLAGS, *flags_of(1 + (place != "replica"))))


def test_essential_script_names_a_damaged_checkpoint(essential, train_once, tmp_path):
    script = edit(essential, tmp_path)
    shutil.copytree(train_once("--epochs", "2"), tmp_path / "run")
    for which in ("last", "best"):
        [*_, data] = sorted((tmp_path / "run/checkpoints" / which).glob("*.data-*"))
        kept = data.read_bytes()
        data.write_bytes(kept[: len(kept) // 2])
        flags = ("--epochs", "3") if which == "last" else ("--mode", "evaluate")
        code, _, errors = finish(fork(script, *flags))
        assert code == 2
        [line] = errors.splitlines()
        assert f"checkpoints/{which}/ckpt-38 is damaged" in line
        data.write_bytes(kept)
    for path in (tmp_path / "run/checkpoints/last").glob("ckpt-38.*"):
        path.unlink()
    assert "resumed at step 19" in train(script, "--epochs", "3")
    assert read_numbers(tmp_path / "run") == read_numbers(train_once("--epochs", "3"))


def test_essential_script_goes_on_before_a_checkpoint_that_a_kill_cut_short(
    essential, train_once, tmp_path
):
    # The index is written last, under its own name: TensorFlow renames only the data. A folder
    # that it writes in before may be left too.
    script = edit(essential, tmp_path)
    shutil.copytree(train_once("--epochs", "2"), tmp_path / "run")
    for which in ("last", "best"):
        index = tmp_path / "run" / "checkpoints" / which / "ckpt-38.index"
        os.truncate(index, index.stat().st_size // 2)
        index.with_name("ckpt-30_temp").mkdir()
    assert "resumed at step 19 " in train(script, "--epochs", "3")
    assert_same_run(tmp_path / "run", train_once("--epochs", "3"))


BAD = {
    "flag": (["--clip-norm", "1"], "--clip-norm"),
    "number": (["--epochs", "0"], "--epochs"),
    "float": (["--learning-rate", "nan"], "--learning-rate"),
    "text": (["--seed", "x"], "--seed"),
    "batch": (["--replicas", "3"], "63 or 66"),
    "large batch": (["--global-batch-size", "1258"], "1257"),
    "strategy": (["--strategy", "tpu"], "TPU_NAME"),
    "no run": (["--mode", "evaluate"], "train it first"),
    "file": (["--run-dir", "train.py"], "--run-dir train.py"),
    "url": (["--run-dir", "gs://bucket"], "gs://bucket"),
    "not writable": (["--run-dir", "train.py/run"], "--run-dir train.py/run"),
    "not finite": (["--learning-rate", "1e30"], "between steps 0 and 19"),
}


@pytest.mark.parametrize("name", BAD)
def test_essential_script_refuses_in_a_line(name, essential, tmp_path):
    flags, words = BAD[name]
    script = edit(essential, tmp_path)
    before = hash_tree(tmp_path)
    code, _, errors = finish(fork(script, *flags))
    assert code == (1 if name == "not finite" else 2)
    [line] = errors.splitlines()
    assert words in line
    if name != "not finite":
        assert hash_tree(tmp_path) == before


@pytest.mark.parametrize("config", ["[1]", "{", '{"cluster": {"ps": ["a:1"]}}'])
def test_essential_script_refuses_a_tf_config_in_a_line(config, essential, tmp_path):
    script = edit(essential, tmp_path)
    code, _, errors = finish(fork(script, env=environment(TF_CONFIG=config)))
    assert code == 2
    [line] = errors.splitlines()
    assert "TF_CONFIG" in line and '"cluster"' in line


@pytest.mark.parametrize("is_begun", [False, True], ids=["new", "begun"])
def test_workers_of_an_essential_script_need_one_folder(is_begun, essential, train_once, tmp_path):
    script = edit(essential, tmp_path)
    if is_begun:
        run_dir = train_once(*FLAGS[:2], "--epochs", "2", "--replicas", "2")
        shutil.copytree(run_dir, tmp_path / "run")
        shutil.rmtree(tmp_path / "run" / "export")
    (tmp_path / "other").mkdir()
    other = edit(essential, tmp_path / "other")
    ports = find_free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    pair = []
    for index, each in enumerate((script, other)):
        task = {"type": "worker", "index": index}
        variables = {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}
        pair.append(fork(each, *FLAGS, env=environment(**variables)))
    for process in pair:
        code, _, errors = finish(process, timeout=60)
        assert code == 2
        assert "not one folder for all workers" in errors


# --------------------------------------------------------------------------------------------------
# Growth
# --------------------------------------------------------------------------------------------------

# An edit of every hook and step, and of a default.
EDITS = {
    "image_classification": [
        ("EPOCHS: int = 30", "EPOCHS: int = 20"),
        ("    images, labels = load_digits", "    print()\n    images, labels = load_digits"),
        ("    images, labels = batch\n", "    images, labels = batch\n    images = images + 0\n"),
        ('Dense(64, activation="silu")', 'Dense(48, activation="gelu")'),
        ("from_logits=True, reduction", "from_logits=True, ignore_class=-1, reduction"),
        ('[keras.metrics.SparseCategoricalAccuracy(name="accuracy")]', "[keras.metrics.Mean('x')]"),
        (
            "    return loss_object(labels, predictions)",
            "    return 2.0 * loss_object(labels, predictions)",
        ),
        ("    return loss\n", "    return loss + 0.0\n"),
        (
            "        metric.update_state(labels,",
            "        metric.update_state(predictions) or (labels,",
        ),
        (
            "    features, labels, sample_weight = batch\n    with",
            "    (features, labels, sample_weight) = batch\n    with",
        ),
        (
            "    loss, gradients = compute_gradients(batch)\n",
            "    (loss, gradients) = compute_gradients(batch)\n",
        ),
        (
            "    predictions = model(features, training=False)",
            "    predictions = 1.0 * model(features, training=False)",
        ),
    ],
}


@pytest.mark.parametrize("task", TASKS)
def test_essential_script_grows_by_a_merge(task, sizes, tmp_path):
    essential, whole = sizes[task]
    text = essential.read_text(encoding="utf-8")
    edits = EDITS.get(task, [])
    if not edits:  # A line into each function of sections 3 and 4.
        edits = []
        section = text[text.index("\n# 3. ") : text.index("\n# 5. ")]
        for line in section.splitlines():
            if line.startswith("    return ") and section.count(line + "\n") == 1:
                edits.append((line + "\n", f"    _ = 0\n{line}\n"))
        assert len(edits) > 5
    mine = edit(essential, tmp_path, *edits)
    shutil.copy(essential, tmp_path / "essential.py")
    shutil.copy(whole, tmp_path / "complete.py")
    merged = subprocess.run(
        ["git", "merge-file", "train.py", "essential.py", "complete.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert merged.returncode == 0, merged.stdout + merged.stderr
    (tmp_path / "same").mkdir()
    expected = edit(whole, tmp_path / "same", *edits).read_text(encoding="utf-8")
    assert mine.read_text(encoding="utf-8") == expected


def test_grown_script_goes_on_with_the_run(sizes, tmp_path):
    essential, whole = sizes["image_classification"]
    edits = EDITS["image_classification"]
    mine = edit(essential, tmp_path, *edits)
    train(mine, "--epochs", "1")
    shutil.copy(essential, tmp_path / "essential.py")
    shutil.copy(whole, tmp_path / "complete.py")
    subprocess.run(
        ["git", "merge-file", "train.py", "essential.py", "complete.py"], cwd=tmp_path, check=True
    )
    assert "resumed at step 19" in train(tmp_path / "train.py", "--epochs", "2", "--patience", "5")
