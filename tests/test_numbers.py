"""The numbers are the right ones, and what is saved and compared makes them the same anywhere."""

import contextlib
import json
import shutil
import signal
import statistics
import time
from pathlib import Path

import pytest
from conftest import (
    FEW_OF,
    FLAGS,
    NO_DROPOUT,
    TASKS,
    TEMPLATE,
    ask_child,
    assert_same_run,
    edit,
    environment,
    find_free_ports,
    finish,
    flags_of,
    fork,
    hash_tree,
    read_numbers,
    train,
)

WORKERS = [("worker", 0), ("worker", 1)]


def ask(question, script, *arguments, **options):
    """Return what child_numbers.py answers about a script."""
    return read_answer(begin_to_ask(question, script, *arguments, **options))


def begin_to_ask(question, script, *arguments, **options):
    child = TEMPLATE / "tests" / "child_numbers.py"
    return fork(child, question, script, json.dumps(arguments), **options)


def read_answer(process):
    code, output, errors = finish(process)
    assert code == 0, errors
    return json.loads(output.splitlines()[-1])


def environments_of(tasks, **variables):
    """Return the environment of each worker of a cluster."""
    cluster = {}
    for (job, _), port in zip(tasks, find_free_ports(len(tasks)), strict=True):
        cluster.setdefault(job, []).append(f"127.0.0.1:{port}")
    configs = [{"cluster": cluster, "task": {"type": job, "index": index}} for job, index in tasks]
    return [environment(TF_CONFIG=json.dumps(config), **variables) for config in configs]


def start_pair(scripts, *flags, of_second=(), **variables):
    """Start two workers, of two scripts, each in its script's folder."""
    first, second = environments_of(WORKERS, **variables)
    return [fork(scripts[0], *flags, env=first), fork(scripts[1], *flags, *of_second, env=second)]


def finish_pair(pair, timeout=120):
    """Wait for both. Return the exit codes, and what each has said."""
    try:
        ends = [finish(process, timeout) for process in pair]
    finally:
        for process in pair:
            process.kill()
    return [code for code, _, _ in ends], [end[1] for end in ends], [end[2] for end in ends]


def edit_pair(script, folder, *edits):
    """Copy a script into two folders. Return the copies' paths."""
    for name in ("first", "second"):
        (folder / name).mkdir(exist_ok=True)
    return [edit(script, folder / name, *edits) for name in ("first", "second")]


def wait_until(condition, *processes, timeout=120):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        assert all(process.poll() is None for process in processes), finish_pair(processes)
        time.sleep(0.01)


def list_steps(run_dir, which):
    """Return the steps of the checkpoints in a run."""
    return sorted(int(x.stem[5:]) for x in (run_dir / "checkpoints" / which).glob("ckpt-*.index"))


def read_lines(run_dir, split="train"):
    """Return the lines of a split, as far as there are any."""
    with contextlib.suppress(FileNotFoundError):
        return [line for line in read_numbers(run_dir) if line["split"] == split]
    return []


# --------------------------------------------------------------------------------------------------
# 1. The order of an epoch
# --------------------------------------------------------------------------------------------------

SIZES = (1797, 60_000, 65_537, 1_281_167)
# Seeds and epochs; a shuffle by seed + epoch, or by the low bits of either, would repeat itself.
EPOCHS = [(0, 0), (0, 1), (0, 2), (0, 256), (1, 0), (1, 1), (2, 0)]


def find_patterns(answer):
    """Return which tests of randomness the orders of some epochs failed.

    Each limit is 4 to 5 standard deviations from what random orders give.
    """
    limits = {
        "broken": (0, 0),
        "correlation": (0, 5),
        "meeting": (0, 5),
        "mean meeting": (-5, 5),
        "spread of meetings": (0.4, 1.8),
        "places": (0, 2.2),  # 1.36 is passed by 5 of 100, this by 1 of 10,000
    }
    assert answer.keys() == limits.keys()
    return [key for key, (low, high) in limits.items() if not low <= answer[key] <= high]


@pytest.mark.parametrize("size", SIZES)
def test_order_is_as_good_as_random(size, script):
    answer = ask("orders", script, size, EPOCHS, False)
    assert find_patterns(answer) == [], answer


def test_tests_of_randomness_see_a_bad_shuffle(script):
    # tf.random.experimental.index_shuffle, which the order was made by before.
    for size in SIZES[:3]:
        found = find_patterns(ask("orders", script, size, EPOCHS, True))
        assert {"correlation", "meeting"} <= set(found)
        assert ("broken" in found) == (size == 65_537)  # It never draws one of 4^k + 1.


def test_training_starts_late_at_once(script):
    answer = ask("late_start", script, 1_281_167, 1_000_000)
    assert answer["right"] and answer["same"]
    assert statistics.median(answer["seconds"]) < 1


def test_workers_share_out_the_batches_of_one_process(script):
    same = ask("shares", script)
    assert len(same) == 3 * 24 * 3  # numbers, seeds and weights, of three times 24 batches
    assert all(same)


# --------------------------------------------------------------------------------------------------
# 2. Embeddings
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--replicas", "2"),
        ("--replicas", "2", "--accumulation-steps", "2"),
        ("--replicas", "2", "--clip-norm", "1e9"),
    ],
    ids=" ".join,
)
def test_embeddings_get_one_gradient(flags, script):
    errors = ask("embedding", script, *flags)
    assert len(errors) == 9
    assert max(errors.values()) < 1e-4, errors


# --------------------------------------------------------------------------------------------------
# Adam as one operation
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "replicas", "arguments"),
    [
        ("image_classification", 1, {}),
        ("image_classification", 2, {"weight_decay": 0.1}),
        ("image_classification", 2, {"amsgrad": True}),
        ("text_classification", 1, {}),  # with weight decay, but of biases and normalization
        ("text_classification", 2, {}),
        ("tabular_regression", 1, {"weight_decay": 0.1}),
    ],
)
def test_adam_is_that_of_numpy(task, replicas, arguments, projects):
    errors = ask("adam", projects[task] / "train.py", arguments, *flags_of(replicas))
    assert errors["script"] < (1e-5 if not arguments.get("amsgrad") else 2e-5)  # that is Keras's
    assert errors["Keras"] < 2e-5


def test_run_goes_on_with_the_optimizer_of_keras_and_back(essential, tmp_path):
    theirs = "Adam(LEARNING_RATE)", "keras.optimizers.Adam(LEARNING_RATE)"
    flags = ("--global-batch-size", "16", "--epochs")
    runs = {}
    for name, edits in {"ours": (), "theirs": (theirs,)}.items():
        (tmp_path / name).mkdir()
        script = edit(essential, tmp_path / name, *edits)
        train(script, *flags, "1", "--run-dir", "mixed")
        train(script, *flags, "3")
        runs[name] = script
    for name, other in (("ours", "theirs"), ("theirs", "ours")):
        folder = runs[name].parent
        shutil.copy(runs[other], folder / "other.py")
        output = train(folder / "other.py", *flags, "2", "--run-dir", "mixed")
        assert "resumed at step 78" in output
        train(runs[name], *flags, "3", "--run-dir", "mixed")
    expected, *others = (
        [line for line in read_numbers(run) if line["split"] != "train"]
        for script in runs.values()
        for run in (script.parent / "run", script.parent / "mixed")
    )
    for lines in others:
        for line, one in zip(lines, expected, strict=True):
            assert line["loss"] == pytest.approx(one["loss"], rel=1e-4)


# What draws no random numbers, so that a batch in parts gives the same.
NO_RANDOMNESS = {
    "image_classification": (NO_DROPOUT,),
    "text_classification": (
        (
            "                num_layers=2,\n",
            "                num_layers=2,\n                dropout=0,\n",
        ),
        ("Dropout(0.1)(backbone", "Dropout(0.0)(backbone"),
    ),
    "tabular_regression": (),
}


@pytest.mark.parametrize("task", TASKS)
def test_flags_that_change_no_result(task, projects, tmp_path):
    script = edit(projects[task] / "train.py", tmp_path, FEW_OF[task], *NO_RANDOMNESS[task])
    variants = {
        "plain": (),
        "parts": ("--accumulation-steps", "2"),
        "norm": ("--clip-norm", "1e9", "--steps-per-loop", "3"),
    }
    logs = {}
    for name, flags in variants.items():
        train(script, "--epochs", "1", "--run-dir", name, *flags)
        lines = [x for x in read_numbers(tmp_path / name) if x["split"] != "train"]
        logs[name] = [x.pop("split") for x in lines], lines
    splits, plain = logs["plain"]
    assert splits == ["validation", "test"]
    for name in ("parts", "norm"):
        assert logs[name][0] == splits
        for line, other in zip(logs[name][1], plain, strict=True):
            assert line == pytest.approx(other, rel=2e-5), name


# --------------------------------------------------------------------------------------------------
# 3. Workers
# --------------------------------------------------------------------------------------------------

CUT = ("[1257, 1527]", '[int(os.environ["CUT"]), 1527]')
ORDER = ("np.random.default_rng(0)", 'np.random.default_rng(int(os.environ["ORDER"]))')
OTHER_FLAG = ('add("--jit-compile", ', 'add("--compile", ')
VERSION = ('{"python": sys.version.split()[0]}', '{"python": "3.9.0"}')

# What differs: the second worker's flags, its variables, an edit of its script; and what is said.
UNLIKE = {
    "seed": (("--seed", "5"), {}, None, ("seed", "5", "0")),
    "epochs": (("--epochs", "7"), {}, None, ("epochs", "7", "4")),
    "script": ((), {}, (": the same numbers", ": The same numbers"), ("train.py",)),
    "script with other flags": ((), {}, OTHER_FLAG, ()),
    "version": ((), {}, VERSION, ("python", "3.9.0", "3.")),
    "data": ((), {"CUT": "1200"}, None, ("examples", "1200", "1257", "327", "270")),
    "order": ((), {"ORDER": "1"}, None, ("data",)),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_workers_are_refused(name, script, tmp_path):
    flags, variables, change, words = UNLIKE[name]
    scripts = edit_pair(script, tmp_path, CUT, ORDER)
    if change:
        edit(scripts[1], scripts[1].parent, change)
    environments = environments_of(WORKERS, CUT="1257", ORDER="0")
    environments[1].update(variables)
    given = (FLAGS, (*FLAGS, *flags))
    pair = [
        fork(each, *its_flags, env=env)
        for each, its_flags, env in zip(scripts, given, environments, strict=True)
    ]
    codes, outputs, errors = finish_pair(pair, timeout=60)
    assert codes == [2, 2], errors
    assert errors[0] == errors[1]
    [line] = errors[0].splitlines()
    for word in ("worker 1", *words):
        assert word in line
    assert [path.name for path in tmp_path.glob("*/*")] == ["train.py"] * 2


def test_a_worker_needs_not_see_the_run(script, train_once, tmp_path):
    scripts = edit_pair(script, tmp_path)
    run, other = tmp_path / "first" / "run", tmp_path / "second" / "run"
    for step in (20, 120):
        pair = start_pair(scripts, *FLAGS)
        wait_until(lambda step=step: max(list_steps(run, "last"), default=0) > step, *pair)
        for process in pair:
            process.kill()
            finish(process)
        assert not other.exists()
    # Nor does it look at what it has of its own: here, a run of other numbers that has ended.
    shutil.copytree(train_once("--epochs", "1", "--seed", "5"), other)
    before = hash_tree(other)
    pair = start_pair(scripts, *FLAGS)
    codes, outputs, errors = finish_pair(pair)
    assert (codes, errors) == ([0, 0], ["", ""])
    assert "resumed at step" in outputs[0]
    assert_same_run(run, train_once(*FLAGS, "--replicas", "2"))
    assert hash_tree(other) == before


def test_finished_run_of_workers_is_left_alone(script, train_once, tmp_path):
    scripts = edit_pair(script, tmp_path)
    shutil.copytree(train_once(*FLAGS, "--replicas", "2"), tmp_path / "first" / "run")
    before = hash_tree(tmp_path)
    codes, outputs, errors = finish_pair(start_pair(scripts, *FLAGS), timeout=60)
    assert (codes, errors) == ([0, 0], ["", ""])
    assert "is finished" in outputs[0]
    assert hash_tree(tmp_path) == before


# --------------------------------------------------------------------------------------------------
# 4. Back to the start of an epoch
# --------------------------------------------------------------------------------------------------


def plant_nan(epoch):
    """Return an edit of preprocess that makes the first batch of an epoch NaN."""
    old = "    return tf.cast(images, tf.float32), labels\n"
    return old, (
        f"    key = tf.random.stateless_uniform([], [SEED, {epoch}], None, None, tf.int32)\n"
        "    bad = training & (seeds[0, 0] == key) & (seeds[0, 1] == 0)\n"
        "    return tf.where(bad, math.nan, tf.cast(images, tf.float32)), labels\n"
    )


def test_recovery_at_the_start_of_an_epoch(script, train_once, tmp_path):
    flags = (*FLAGS, "--steps-per-loop", "7", "--recover-from-nan", "1")
    expected = train_once(*flags, "--replicas", "2", edits=(plant_nan(1),))
    assert "recovery 1 of 1: back at step 78," in (expected.parent / "output").read_text()
    losses = {line["step"]: line["loss"] for line in read_lines(expected)}
    # A loop of the epoch's own: with the sums of the epoch before, it would be twice as much.
    steps = [step for step in losses if step <= 78]
    after = min(step for step in losses if step > 78)
    assert 78 + 6 <= after <= 78 + 7
    assert losses[after] < 1.3 * losses[steps[-1]]
    assert losses[after] < 0.8 * sum(losses[step] for step in steps) / len(steps)

    # Two workers are two replicas still, dropout included.
    scripts = edit_pair(script, tmp_path, plant_nan(1))
    codes, outputs, errors = finish_pair(start_pair(scripts, *flags))
    assert (codes, errors) == ([0, 0], ["", ""])
    assert "recovery 1 of 1: back at step 78," in outputs[0]
    assert_same_run(tmp_path / "first" / "run", expected)


# --------------------------------------------------------------------------------------------------
# 5. BatchNormalization
# --------------------------------------------------------------------------------------------------

FLATTEN = "                keras.layers.Flatten(),\n"


def normalize(arguments=""):
    """Return an edit: a BatchNormalization in the model."""
    return FLATTEN, f"{FLATTEN}                keras.layers.BatchNormalization({arguments}),\n"


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ("synchronized=True", ("--accumulation-steps", "2", "--replicas", "2")),
        ("synchronized=True", ("--jit-compile", "--replicas", "2")),
        ("synchronized=True", ("--accumulation-steps", "2")),
        ("", ("--accumulation-steps", "2")),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else x or "plain",
)
def test_flags_that_hide_the_batch_are_refused(arguments, flags, script, tmp_path):
    script = edit(script, tmp_path, normalize(arguments))
    code, _, errors = finish(fork(script, *FLAGS, *flags))
    assert code == 2, errors
    [line] = errors.splitlines()
    assert line.startswith(f"train.py: error: {flags[0]}")
    assert "BatchNormalization" in line and "'batch_normalization'" in line
    assert not (tmp_path / "run").exists()


def test_batch_normalization_sees_the_whole_batch(train_once):
    edits = (NO_DROPOUT, normalize("synchronized=True"))
    flags = ("--epochs", "2")
    one, two = (read_numbers(train_once(*flags, *flags_of(n), edits=edits)) for n in (1, 2))
    for line, other in zip(one, two, strict=True):
        assert line.pop("split") == other.pop("split")
        assert line == pytest.approx(other, rel=1e-4)


# --------------------------------------------------------------------------------------------------
# 6. Endless input
# --------------------------------------------------------------------------------------------------


def test_input_is_endless_to_tensorflow(script):
    # Two workers, each of which traces the graph for CPUs and for accelerators.
    environments = environments_of(WORKERS)
    children = [begin_to_ask("endless", script, env=each) for each in environments]
    for answer in [read_answer(child) for child in children]:
        for device in ("CPU", "GPU"):
            assert answer[device]["infinite"] == [True, True]
            assert answer[device]["shapes"] == [[10, 8, 8, 1], [10], [10]]
            assert answer[device]["optionals"] == 0  # It doesn't ask whether there is more.
        assert answer["GPU"]["collectives"] == answer["CPU"]["collectives"] > 0


# --------------------------------------------------------------------------------------------------
# 7. The speed in the log
# --------------------------------------------------------------------------------------------------


def test_speed_counts_what_the_device_does(script):
    line = ask("speed", script)
    assert line["loss"] == 2
    assert 350 < line["examples_per_second"] <= 700  # 7 steps of 100 in a second, or a bit more
    assert 0.25 < line["input_wait"] <= 0.5


# --------------------------------------------------------------------------------------------------
# 8. Half precision
# --------------------------------------------------------------------------------------------------


def test_overflow_on_one_replica_is_seen_by_all(script):
    answer = ask("overflow", script, "--replicas", "2", "--precision", "mixed_float16")
    steps = [
        [list(map(str, each)) for each in (*weights, scales)] for weights, scales in answer["steps"]
    ]
    for values in steps:
        assert all(len(each) == 2 and each[0] == each[1] for each in values)
    weights = [step[:4] for step in steps]
    assert weights[0] == weights[1] != weights[2]
    assert [scales for _, scales in answer["steps"]] == [[1024] * 2, [512] * 2, [512] * 2]


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_gradients_are_summed_over_replicas_once(precision, script):
    answer = ask("overflow", script, "--replicas", "2", "--precision", precision)
    flag = precision == "mixed_float16"  # whether there was an overflow
    assert answer["summed"] == answer["weights"] + flag


# --------------------------------------------------------------------------------------------------
# 9. Lines of the log
# --------------------------------------------------------------------------------------------------


def test_a_line_is_the_mean_of_its_loop(train_once):
    runs = [train_once(*FLAGS, "--steps-per-loop", count) for count in ("1", "7")]
    steps, loops = ({x["step"]: x for x in read_lines(run)} for run in runs)
    assert [*steps] == [*range(1, 4 * 78 + 1)]
    start, lengths = 0, set()
    for end, line in loops.items():
        for key in ("loss", "accuracy"):
            values = [steps[step][key] for step in range(start + 1, end + 1)]
            assert line[key] == pytest.approx(sum(values) / len(values), rel=1e-5), (end, key)
        lengths.add(end - start)
        start = end
    assert start == 4 * 78
    assert lengths == {6, 7}


def test_a_checkpoint_holds_no_metric(train_once):
    run = train_once(*FLAGS, "--steps-per-loop", "7")
    [checkpoints] = ask_child("tensors", run)
    for kind, tensors in checkpoints.items():
        names = [name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for name in tensors]
        groups = [name.partition("/")[0] for name in names]
        # Six weights and the state of a Dropout; Adam has two moments of each weight, a step and
        # a learning rate.
        assert groups.count("model") == 7
        assert groups.count("optimizer") == (14 if kind == "last" else 0)
        counters = {"step", "names", "save_counter", "file"}
        if kind == "last":
            counters |= {"best_loss"}
        assert sorted(set(groups) - {"model", "optimizer"}) == sorted(counters)


# --------------------------------------------------------------------------------------------------
# 10. Signals, and lost workers
# --------------------------------------------------------------------------------------------------

# On request, data are slow to come from step 41 on: the third loop, of steps 40 to 58, takes 20 s.
UNPACK = "    images, labels = batch\n"
SLOW = (
    UNPACK,
    f"{UNPACK}"
    '    wait = lambda at: time.sleep(1.0 * (at // 16 >= 40) * ("SLOW" in os.environ))\n'
    "    training and tf.numpy_function(wait, [seeds[0, 1]], [])\n",
)
LOOPS = (*FLAGS[:2], "--epochs", "2", "--steps-per-loop", "20", "--checkpoint-every-steps", "10000")


@pytest.mark.parametrize(
    ("number", "index"),
    [(signal.SIGTERM, 0), (signal.SIGTERM, 1), (signal.SIGKILL, 1)],
    ids=["term-chief", "term-worker", "kill-worker"],
)
def test_the_end_of_the_last_loop_is_saved(number, index, script, train_once, tmp_path):
    scripts = edit_pair(script, tmp_path, SLOW)
    run = tmp_path / "first" / "run"
    pair = start_pair(scripts, *LOOPS, SLOW="1")
    wait_until(lambda: len(read_lines(run)) == 2, *pair)
    time.sleep(2)
    assert list_steps(run, "last") == []
    pair[index].send_signal(number)
    began = time.monotonic()
    codes, outputs, errors = finish_pair(pair, timeout=60)
    assert time.monotonic() - began < 15
    assert codes == [143, -signal.SIGKILL if number == signal.SIGKILL else 143], errors
    assert all("Traceback" not in each for each in errors)
    assert list_steps(run, "last") == [39]
    codes, outputs, errors = finish_pair(start_pair(scripts, *LOOPS))
    assert (codes, errors) == ([0, 0], ["", ""])
    assert "resumed at step 39" in outputs[0]
    assert_same_run(run, train_once(*LOOPS, "--replicas", "2", edits=(SLOW,)))


# --------------------------------------------------------------------------------------------------
# 11. A worker alone
# --------------------------------------------------------------------------------------------------


def test_a_worker_alone_hears_and_gives_up(script, tmp_path):
    alone = []
    for index in (0, 1):
        for end in (signal.SIGTERM, signal.SIGINT, "gives up"):
            env = environments_of(WORKERS)[index]
            peer = json.loads(env["TF_CONFIG"])["cluster"]["worker"][1 - index]
            flags = ("--timeout", "8") if end == "gives up" else ()
            process = fork(script, "--run-dir", str(tmp_path / "run"), *flags, env=env)
            alone.append((peer, end, process))
    signalled = [(peer, end, process) for peer, end, process in alone if end != "gives up"]

    def says(peer, process):
        [line] = Path(process.outputs[0].name).read_text(encoding="utf-8").splitlines() or [""]
        return "waiting for" in line and peer in line

    try:
        # All wait at the same time: 5 s, once TensorFlow is there.
        for peer, _, process in signalled:
            wait_until(lambda peer=peer, process=process: says(peer, process), process, timeout=20)
        began = time.monotonic()
        for _, end, process in signalled:
            process.send_signal(end)
        for _, _, process in signalled:
            code, _, errors = finish(process, timeout=20)
            assert (code, errors) == (143, "")
        assert time.monotonic() - began < 2
        for peer, end, process in alone:
            if end == "gives up":
                code, output, errors = finish(process, timeout=20)
                assert (code, output.count("waiting for")) == (143, 1)
                [line] = errors.splitlines()
                assert peer in line and "8 s" in line
    finally:
        for _, _, process in alone:
            process.kill()
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------------------------------
# 12. A kill between two checkpoints
# --------------------------------------------------------------------------------------------------

WRITE = '            checkpoint.write(run_dir / "checkpoints" / which / f"ckpt-{step}")\n'
CLEAN = "                    path.unlink()\n"
DIE = (
    '            if [which, str(step)] == os.environ.get("DIE", "").split():\n'
    "                os._exit(9)\n"
)


# At the end of the first epoch there is no other checkpoint to go on from, unless one is asked for.
@pytest.mark.parametrize(
    ("step", "flags"), [(156, FLAGS), (78, FLAGS[:4])], ids=["second", "first"]
)
def test_kill_between_best_and_last(step, flags, script, train_once, tmp_path):
    script = edit(script, tmp_path, (CLEAN, CLEAN + DIE))
    run = tmp_path / "run"
    code, _, errors = finish(fork(script, *flags, env=environment(DIE=f"best {step}")))
    assert code == 9, errors
    assert list_steps(run, "best") == [step]
    assert step not in list_steps(run, "last")
    train(script, *flags)
    assert_same_run(run, train_once(*flags))


def test_kill_before_the_first_checkpoint_is_listed(script, train_once, tmp_path):
    script = edit(script, tmp_path, (WRITE, WRITE + DIE))
    code, _, errors = finish(fork(script, *FLAGS, env=environment(DIE="last 13")))
    assert code == 9, errors
    assert not (tmp_path / "run" / "checkpoints" / "last" / "checkpoint").exists()
    assert "resumed at step 13" in train(script, *FLAGS)
    assert_same_run(tmp_path / "run", train_once(*FLAGS))


# --------------------------------------------------------------------------------------------------
# What a TPU asks of the steps
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "script", "flags"),
    [
        ("image_classification", "essential", ()),
        ("text_classification", "essential", ()),
        ("tabular_regression", "essential", ()),
        ("image_classification", "complete", ("--precision", "mixed_bfloat16")),
        ("image_classification", "complete", ("--clip-norm", "1", "--ema-momentum", "0.9")),
        ("tabular_regression", "complete", ("--accumulation-steps", "2")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_steps_are_compiled_whole(task, script, flags, render, tmp_path):
    """No TPU is at hand. What runs there is compiled by XLA, as here for a CPU: shapes are known,
    and nothing calls the host. Dropout draws other numbers there."""
    folder = render(tmp_path, task=task, script=script)
    rough = "--precision" in flags or task == "text_classification"
    flags = ("--run-dir", str(tmp_path / "run"), *flags)
    for step, answer in ask("compiled", folder / "train.py", *flags).items():
        assert answer["dynamic"] == [], step
        assert not [x for x in answer["operations"] if "PyFunc" in x or "Print" in x or "Summ" in x]
        plain, compiled = answer["values"]
        tolerance = 0.05 if step == "train_step" or rough else 1e-5
        assert compiled == pytest.approx(plain, rel=tolerance), step
