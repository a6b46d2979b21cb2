"""Proofs about train.py with the hooks as they are now; run them after each edit of a hook:

    uv run pytest

Every run is a process of its own, because strategies of different sizes in one process break
each other's collectives. Runs are cut to ten batches a split, so that these tests take minutes.
"""

import functools
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
TIMEOUT = 900  # seconds, of any one process
SPEEDS = ("examples_per_second", "input_wait")
FLAGS = ("--epochs", 2, "--steps-per-loop", 3, "--checkpoint-every-steps", 4)
# {% if cookiecutter.distribution == "parameter_server" %}
REPLICAS = ()
# {% else %}
REPLICAS = ("--replicas", 2)
# {% endif %}
HOOKS = (
    "create_datasets",
    "fetch",
    "preprocess",
    "create_model_and_optimizer",
    "create_loss_objects",
    "create_metrics",
    "compute_losses",
    "compute_loss",
    "train_step",
)
STEPS = ("update_metrics", "compute_gradients", "evaluation_step")  # checked with train_step

# A hook can't be checked where these break their promises.
NEEDED = {
    "compute_losses": ["create_loss_objects"],
    "compute_loss": ["create_loss_objects", "compute_losses"],
}

# Where numbers differ, and no check of the hooks tells why.
# {% if cookiecutter.distribution == "synchronous" %}
CAUSES_OF_REPLICAS = """No check of a hook by itself finds the cause. What it can be:
- compute_loss, create_loss_objects: a mean over a replica's own examples, or a statistic of them
- create_model_and_optimizer: a layer that looks at other examples of the batch, or that draws
  random numbers in evaluation too; a variable made outside strategy.scope()
- create_metrics: a metric that isn't a sum or a mean over examples, or is made outside the scope
- create_datasets, fetch, preprocess: randomness that comes from anything but the seeds"""
# {% endif %}
CAUSES_OF_RESTARTS = """No check of a hook by itself finds the cause. What it can be:
- fetch, preprocess: randomness that comes from anything but `seeds`
- create_datasets: examples, or an order of them, that differ from process to process
- create_model_and_optimizer: a layer that keeps state in something else than variables"""


# ----------------------------------------------------------------------------------------------
# The proofs
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_keeps_its_contract(hook, contract):
    broken = contract[hook]
    if broken is None:
        pytest.skip(f"{hook} can't be checked before the other hooks are repaired")
    if broken:
        fail("".join(f"{hook} {promise}\n" for promise in broken))


# {% if cookiecutter.distribution == "synchronous" %}
def test_numbers_do_not_depend_on_the_replicas(tmp_path, request):
    runs = {replicas: tmp_path / str(replicas) for replicas in (1, 2, 4)}
    flags = [("--run-dir", run_dir, "--replicas", count) for count, run_dir in runs.items()]
    finish(*(start("train_a_little", "still", *each) for each in flags))
    for replicas in (2, 4):
        pairs = list(zip(read_log(runs[1]), read_log(runs[replicas]), strict=True))
        wrong = [(one, two, name) for one, two in pairs for name in one if differ(one, two, name)]
        if not wrong:
            continue
        one, two, name = wrong[0]
        causes = find_causes(request, "suspects")
        if not causes and not any(key == "loss" for _, _, key in wrong):
            causes = ["All losses agree, so look at create_metrics first."]
        causes = causes if len(causes) > 1 else [*causes, CAUSES_OF_REPLICAS]
        fail(
            f"The same job gives other numbers on {replicas} replicas than on 1, random layers "
            f"switched off: the {name} of the {one['split']} split at step {one['step']} is "
            f"{two[name]} instead of {one[name]}.",
            *causes,
        )


# {% endif %}
def test_evaluation_counts_every_example_once(two_replicas, request):
    logged = read_log(two_replicas)[-1]
    for name, value in ask("evaluate", two_replicas).items():
        if logged[name] != pytest.approx(value, rel=1e-4, abs=1e-6):
            fail(
                f"The {name} of the test split is {logged[name]} according to the run, and {value} "
                "when each example is counted once.",
                *find_causes(request)
                or [
                    "Look for an evaluation_step or update_metrics that doesn't count with "
                    "sample_weight (0 for what fills up the last batch), for a metric that isn't "
                    "a sum or a mean over examples (create_metrics), and for an output that "
                    "depends on the other examples of a batch (preprocess, "
                    "create_model_and_optimizer)."
                ],
            )


def test_killed_run_resumes_to_the_same_bits(two_replicas, tmp_path, request):
    flags = ("whole", "--run-dir", tmp_path / "run", *REPLICAS)
    process = start("train_a_little", *flags)
    while process.poll() is None and not (tmp_path / "run/checkpoints/last/checkpoint").exists():
        time.sleep(0.01)
    process.kill()
    if process.wait() >= 0:
        finish(process)
        pytest.skip("the run ended before it could be killed")
    finish(start("train_a_little", *flags))
    assert_same_bits(
        tmp_path / "run",
        two_replicas,
        "A run that was killed and started again gives other numbers than an undisturbed one",
        request,
    )


# {% if cookiecutter.distribution == "parameter_server" %}
def test_workers_and_servers_train(tmp_path, request):
    tasks = [("chief", 0), ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    cluster, processes = {}, []
    for (job, _), port in zip(tasks, find_free_ports(len(tasks)), strict=True):
        cluster.setdefault(job, []).append(f"localhost:{port}")
    for job, index in tasks:
        task = {"cluster": cluster, "task": {"type": job, "index": index}}
        flags = ("whole", "--run-dir", tmp_path / "run")
        processes.append(start("train_a_little", *flags, TF_CONFIG=json.dumps(task)))
    finish(*processes)
    # The numbers of training depend on who came first. Those of the test don't.
    logged = read_log(tmp_path / "run")[-1]
    for name, value in ask("evaluate", tmp_path / "run").items():
        if logged[name] != pytest.approx(value, rel=1e-4, abs=1e-6):
            fail(
                f"The {name} of the test split is {logged[name]} according to two workers, and "
                f"{value} in one process.",
                *find_causes(request) or [CAUSES_OF_RESTARTS],
            )


# {% else %}
def test_two_workers_equal_two_replicas(two_replicas, tmp_path, request):
    addresses = [f"localhost:{port}" for port in find_free_ports(2)]
    workers = []
    for index in (0, 1):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        flags = ("whole", "--run-dir", tmp_path / "run")
        workers.append(start("train_a_little", *flags, TF_CONFIG=json.dumps(task)))
    finish(*workers)
    assert_same_bits(
        tmp_path / "run",
        two_replicas,
        "Two workers give other numbers than two replicas in one process",
        request,
    )


# {% endif %}
def test_export_predicts_what_the_model_does(two_replicas):
    wrong = ask("compare_exports", two_replicas)
    if wrong:
        fail(*wrong)


@pytest.fixture(scope="module")
def contract():
    """What each hook breaks of its contract, and, as "suspects", what may be wrong."""
    return ask("check_hooks")


@pytest.fixture(scope="module")
def two_replicas(tmp_path_factory):
    """The folder of an undisturbed run on two replicas."""
    run_dir = tmp_path_factory.mktemp("two") / "run"
    finish(start("train_a_little", "whole", "--run-dir", run_dir, *REPLICAS))
    return run_dir


# ----------------------------------------------------------------------------------------------
# What the proofs share
# ----------------------------------------------------------------------------------------------


def fail(*paragraphs):
    """Fails a test with a text alone: where in this file it happened is of no interest."""
    pytest.fail("\n".join(paragraphs), pytrace=False)


def start(function, *arguments, **variables):
    """Starts a process that runs a function of this file. Its output goes to process.log."""
    env = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "TPU_NAME")}
    log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # no pipe to fill up
    process = subprocess.Popen(
        [sys.executable, __file__, function, *map(str, arguments)],
        env={**env, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONIOENCODING": "utf-8", **variables},
        cwd=PROJECT,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    process.log = log
    return process


def finish(*processes):
    """Waits for processes, and returns what the first one printed. If one fails, all end."""
    end = time.monotonic() + TIMEOUT
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes) or time.monotonic() > end:
                break
            time.sleep(0.02)
        failed = [process for process in processes if process.poll() != 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    outputs = []
    for process in processes:
        process.log.seek(0)
        outputs.append(process.log.read().strip())
    # The first that failed by itself: not one that we ended, or that another's end did.
    for process in sorted(failed, key=lambda x: x.returncode < 0 or x.returncode == 143):
        output = outputs[processes.index(process)]
        code = process.returncode
        how = f"exit code {code}" if code >= 0 else f"no end within {TIMEOUT} seconds"
        hook, line = find_hook(output)
        blame = f"It happened in {hook} (train.py, line {line}). " if hook else ""
        last = "\n".join(output.splitlines()[-15:])
        fail(f"train.py broke off with {how}. {blame}Its last lines:\n{last}")
    return outputs[0]


def find_hook(text):
    """Returns the innermost hook or step in a traceback and the line in train.py, or None twice."""
    frames = re.findall(r'train\.py", line (\d+), in (\w+)', text)
    found = [(name, int(line)) for line, name in frames if name in (*HOOKS, *STEPS)]
    return found[-1] if found else (None, None)


def ask(function, *arguments):
    """Returns what a function of this file returns in a process of its own."""
    return json.loads(finish(start(function, *arguments)).splitlines()[-1])


def find_causes(request, *more):
    """Returns what checks of the hooks by themselves find."""
    contract = request.getfixturevalue("contract")
    causes = [f"{hook} {promise}" for hook in HOOKS for promise in contract[hook] or []]
    causes += [cause for key in more for cause in contract[key]]
    return ["The likely cause:", *causes] if causes else []


def read_log(run_dir):
    """Returns the lines of the log, less the speeds, which are never the same twice."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in line if key not in SPEEDS} for line in lines]


def differ(one, other, name):
    """Returns whether a value differs between two lines of logs by more than rounding."""
    return name != "split" and one[name] != pytest.approx(other[name], rel=1e-4, abs=1e-6)


def assert_same_bits(run_dir, expected, what, request):
    """Fails unless two runs have the same log and the same last checkpoint."""
    for line, other in zip(read_log(run_dir), read_log(expected), strict=True):
        for name, value in line.items():
            if value != other[name]:
                fail(
                    f"{what}: the {name} of the {line['split']} split at step {line['step']} is "
                    f"{value} instead of {other[name]}.",
                    *find_causes(request) or [CAUSES_OF_RESTARTS],
                )
    names = ask("compare_checkpoints", run_dir, expected)
    if names:
        fail(
            f"{what}: the logs agree, but of checkpoints/last not {', '.join(names[:5])}"
            f"{' and others' * (len(names) > 5)}.",
            *find_causes(request) or [CAUSES_OF_RESTARTS],
        )


def find_free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


# ----------------------------------------------------------------------------------------------
# In a process of its own: runs, and what they have written
# ----------------------------------------------------------------------------------------------


def train_a_little(mode, *argv):
    """Runs train.py on ten batches of each split. "still" switches off the random layers, whose
    numbers differ from replica to replica."""
    cut_datasets()
    # {% if cookiecutter.__size == "complete" %}
    export = train.export  # once, at the end: the trial at the start takes seconds of each run
    train.export = lambda *args: export(*args) if len(args) == 3 else []
    # {% endif %}
    if mode == "still":
        create = train.create_model_and_optimizer
        train.create_model_and_optimizer = lambda strategy: still(*create(strategy))
    train.run([*argv, *map(str, FLAGS), "--global-batch-size", str(batch_size())])


def batch_size():
    """Returns a batch size near the script's own that four replicas can share."""
    return max(4, train.GLOBAL_BATCH_SIZE // 4 * 4)


def cut_datasets():
    """Cuts the splits to ten batches, the last of an evaluation not full."""
    create = train.create_datasets

    def cut(split, is_training):
        size = int(split.cardinality())
        if size <= 0:  # which train.py refuses
            return split
        count = min(size, 10 * batch_size())
        return split.take(count - (not is_training and count % batch_size() == 0))

    train.create_datasets = lambda: [cut(split, i == 0) for i, split in enumerate(create())]


def still(model, optimizer):
    """Has the random layers of the models behave as in evaluation. Returns both arguments."""

    def call(layer_call, *args, **kwargs):
        return layer_call(*args, **{**kwargs, "training": False})

    for layer in find_layers(model):
        if is_random(layer) and layer._call_has_training_arg:
            layer.call = functools.partial(call, layer.call)
    return model, optimizer


def find_layers(model):
    return [layer for each in tf.nest.flatten(model) for layer in each._flatten_layers()]


def is_random(layer):
    return any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())


def restore_best(run_dir):
    """Creates the model, with the weights of the best checkpoint of a run."""
    train.args.run_dir = str(run_dir)  # hooks may read files of it
    train.model, train.optimizer = train.create_model_and_optimizer(tf.distribute.get_strategy())
    values = [v.value for each in tf.nest.flatten(train.model) for v in each.variables]
    path = tf.train.latest_checkpoint(Path(run_dir) / "checkpoints" / "best")
    status = tf.train.Checkpoint(model=values).restore(path)
    status.assert_existing_objects_matched().expect_partial()


def read_test_split(size):
    """Yields the raw inputs of the test split in batches, none filled up, and for the steps
    (features, labels, sample_weight)."""
    cut_datasets()
    for batch in fetch_all(train.create_datasets()[2].batch(size)):
        inputs = batch[0] if isinstance(batch, tuple) else batch
        count = len(tf.nest.flatten(batch)[0])
        batch = train.preprocess(batch, tf.zeros([count, 2], tf.int32), training=False)
        features, labels, weight = keras.utils.unpack_x_y_sample_weight(batch)
        yield inputs, (features, labels, tf.ones([count]) if weight is None else weight)


def evaluate(run_dir):
    """Returns loss and metrics of a run's best checkpoint on the test split, in batches of a size
    that the run didn't have."""
    train.loss_object = train.create_loss_objects(tf.distribute.get_strategy())
    train.test_metrics = train.create_metrics(tf.distribute.get_strategy())[2]
    restore_best(run_dir)
    # {% if cookiecutter.distribution == "parameter_server" %}
    train.counts.clear()
    for metric in train.test_metrics:
        train.count(metric)
    # {% endif %}
    sums = [train.test_step(batch) for _, batch in read_test_split(batch_size() // 2 + 1)]
    # {% if cookiecutter.distribution == "parameter_server" %}
    for variable in (x for metric in train.test_metrics for x in metric.variables):
        variable.assign(train.counts[id(variable)])
    # {% endif %}
    loss, weight = (math.fsum(map(float, values)) for values in zip(*sums, strict=True))
    values = {m.name: float(m.result()) for m in train.test_metrics}
    return {"loss": loss / weight if weight else 0.0, **values}


def compare_checkpoints(*run_dirs):
    """Returns the names of the tensors in which the last checkpoints of two runs differ."""
    folders = [Path(run_dir) / "checkpoints" / "last" for run_dir in run_dirs]
    one, other = (tf.train.load_checkpoint(tf.train.latest_checkpoint(x)) for x in folders)
    names = set(one.get_variable_to_shape_map()) ^ set(other.get_variable_to_shape_map())
    for name in one.get_variable_to_shape_map().keys() - names:
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH":  # which has no values
            if not is_same(one.get_tensor(name), other.get_tensor(name)):
                names.add(name)
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    names = sorted(name.removesuffix(suffix) for name in names)
    paths = [path.decode() for path in one.get_tensor(f"names{suffix}")]  # of model/0, model/1, …
    paths = {f"model/{i}": f"model: {path}" for i, path in enumerate(paths)}
    return [paths.get(name, name) for name in names]


def compare_exports(run_dir):
    """Returns what is wrong with the exports: lines."""
    restore_best(run_dir)
    export, wrong = Path(run_dir) / "export", []
    batches = [(inputs, batch[0]) for inputs, batch in read_test_split(batch_size())]
    loaded = []  # must outlive what it serves

    def load_saved_model():
        loaded.append(tf.saved_model.load(str(export)))
        return lambda inputs, features: loaded[0].serve(inputs)

    def load_keras():
        loaded.append(keras.saving.load_model(export / "model.keras"))
        return lambda inputs, features: loaded[-1](features, training=False)

    for name, load in (("the SavedModel", load_saved_model), ("model.keras", load_keras)):
        where = f"create_model_and_optimizer: {name} in export/"
        try:
            predict = load()
            for inputs, features in batches:
                predicted = tf.nest.flatten(predict(inputs, features))
                model = tf.nest.flatten(train.model)[0]  # of several, the one that is served
                expected = tf.nest.flatten(model(features, training=False))
                for a, b in zip(predicted, expected, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            lines = [line for line in str(error).splitlines() if "ifference" in line]
            wrong.append(
                f"{where} predicts something else than the best checkpoint does in the model. Look "
                "for a layer whose get_config leaves out an argument, or that keeps state in "
                "something else than variables. " + "; ".join(map(str.strip, lines))
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".split("\n\n")[0][:500]
            wrong.append(
                f"{where} can't be loaded and called ({reason}). A class of your own takes "
                "@keras.saving.register_keras_serializable() and a get_config with all arguments."
            )
    return wrong


# ----------------------------------------------------------------------------------------------
# In a process of its own: each hook by itself
# ----------------------------------------------------------------------------------------------


def check_hooks():
    """Returns the promises that each hook breaks, and as "suspects" what may make numbers differ
    between replicas. Of a hook that can't be checked because of another, None. Of several models
    the checks are fewer."""
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    report = {hook: [] for hook in (*HOOKS, "suspects")}
    for hook, check in (
        ("create_datasets", check_datasets),
        ("fetch", check_fetch),
        ("preprocess", check_preprocess),
        ("create_model_and_optimizer", check_model),
        ("create_loss_objects", check_losses),
        ("create_metrics", check_metrics),
        ("compute_losses", check_losses_of_examples),
        ("compute_loss", check_loss_of_replicas),
        ("create_model_and_optimizer", check_gradients),
        ("train_step", check_slices),
        ("suspects", check_batch_statistics),
    ):
        if any(report[needed] for needed in NEEDED.get(hook, ())):
            report[hook] = None
            continue
        promises = []
        try:
            for promise in check():  # one by one: those before an exception count
                promises.append(promise)
        except (Exception, SystemExit) as error:
            raised_in, line = find_hook("".join(traceback.format_exception(error)))
            if not promises and not any(report.values()):
                where = f" (train.py, line {line})" if line else ""
                if raised_in in STEPS:
                    where = f" in {raised_in}{where}"
                hook = "train_step" if raised_in in STEPS else raised_in or hook
                reason = f"{type(error).__name__}: {shorten(error)}"
                if "values to unpack" in reason:
                    reason += "; a batch of the steps is (features, labels, sample_weight), always"
                promises.append(f"fails{where}: {reason}")
            elif not promises and not report[hook] and hook != "suspects":
                report[hook] = None
        if promises:
            report[hook] = (report[hook] or []) + promises
    return report


@functools.cache
def read_examples(split):
    """Returns some examples of a split, as a dataset that doesn't change from call to call."""
    examples = train.create_datasets()[split].take(32).batch(32).get_single_element()
    return tf.data.Dataset.from_tensor_slices(examples)


def fetch_all(batches):
    """Returns what the hook fetches of batches of examples, as in the input of a run."""
    if isinstance(batches.element_spec, tuple):  # which `map` would take apart
        return batches.map(lambda *batch: train.fetch(batch))
    return batches.map(train.fetch)


def read_fetched(split):
    """Returns batches of 4, fetched."""
    return fetch_all(read_examples(split).repeat().batch(4, drop_remainder=True))


def read_batches(split, size, training, key=1):
    """Returns 32 examples in preprocessed batches: dictionaries of lists of arrays."""
    examples = read_examples(split).repeat().take(32)

    def run(batch, position):
        return train.preprocess(
            train.fetch(batch), tf.stack([0 * position + key, position], 1), training
        )

    positions = tf.data.Dataset.range(32).map(lambda i: tf.cast(i, tf.int32))
    batches = tf.data.Dataset.zip((examples, positions)).batch(size, drop_remainder=True).map(run)
    names = ("features", "labels", "sample_weight")
    return [
        {
            name: [x.numpy() for x in tf.nest.flatten(part, expand_composites=True)]
            for name, part in zip(names, batch, strict=False)
        }
        for batch in batches
    ]


def shorten(error):
    """Returns what an exception says: of TensorFlow's, which may be pages, the first lines."""
    lines = [line for line in str(error).split("\n") if line.strip() and "traceback" not in line]
    return " ".join(line.strip() for line in lines[:3])[:500]


def is_same(one, other):
    """Returns whether two arrays have the same bits."""
    a, b = np.asarray(one), np.asarray(other)
    same = np.array_equal(a, b) if a.dtype.kind == "O" else a.tobytes() == b.tobytes()
    return same and a.shape == b.shape


def is_close(one, other):
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    return all(np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in pairs)


def find_differences(batches, others, exactly=True):
    """Yields what differs between the same examples in batches: features, labels, weights."""
    for name in batches[0]:
        for i in range(len(batches[0][name])):
            a, b = (np.concatenate([x[name][i] for x in each]) for each in (batches, others))
            if not (is_same if exactly or a.dtype.kind not in "fc" else is_close)(a, b):
                yield name
                break


def check_datasets():
    splits = train.create_datasets()
    if len(splits) != 3:
        yield f"returns {len(splits)} datasets, not 3: train, validation and test"
        return
    names = ("train", "validation", "test")
    sizes = [int(split.cardinality()) for split in splits]
    for size, promise in (
        (
            tf.data.UNKNOWN_CARDINALITY,
            "doesn't say how many examples the {} dataset has (after .filter, say, or "
            "from_generator): .apply(tf.data.experimental.assert_cardinality(n)) tells it",
        ),
        (
            tf.data.INFINITE_CARDINALITY,
            "repeats the {} dataset for ever: leave out .repeat(), since train.py counts epochs",
        ),
        (0, "returns an empty {} dataset"),
    ):
        found = [name for name, other in zip(names, sizes, strict=True) if other == size]
        if found:
            yield promise.format(" and ".join(found))
    for split, name in zip(splits, names, strict=True):
        if split.element_spec != splits[0].element_spec:
            yield (
                f"gives examples of another structure in the {name} dataset, {split.element_spec}, "
                f"than in the train dataset, {splits[0].element_spec}"
            )
    found = [
        name
        for name, split, again in zip(names, splits, train.create_datasets(), strict=True)
        if not all(
            is_same(a, b)
            for pair in tf.data.Dataset.zip((split, again)).take(32)
            for a, b in zip(*map(tf.nest.flatten, pair), strict=True)
        )
    ]
    if found:
        yield (
            f"gives the {' and '.join(found)} dataset in another order, or other examples, when it "
            "is called again: draw from a generator with a seed of its own, "
            "np.random.default_rng(0) say; train.py itself shuffles each epoch"
        )


def check_fetch():
    for split in (0, 1):
        fetched = read_fetched(split)
        for spec in tf.nest.flatten(fetched.element_spec):
            if spec.shape.rank is None or None in spec.shape[1:]:
                yield (
                    f"returns a tensor of unknown shape, {spec.shape}, as tf.numpy_function does: "
                    "tf.ensure_shape(it, [None, …]) tells it"
                )
                return
        for x in tf.nest.flatten(next(iter(fetched))):
            if x.shape[:1] != (4,):
                yield f"returns a tensor of shape {x.shape} for 4 examples: [4, …] is due"
                return


def any_weight(split):
    """Returns whether any example of a split has a weight above 0 in evaluation."""
    for batch in fetch_all(train.create_datasets()[split].batch(128)):
        seeds = tf.zeros([len(tf.nest.flatten(batch)[0]), 2], tf.int32)
        if tf.reduce_any(train.preprocess(batch, seeds, training=False)[2] > 0):
            return True
    return False


def check_preprocess():
    for split, training in ((0, True), (1, False)):
        mode = f"with training={training}"
        example = next(iter(read_fetched(split)))
        returned = train.preprocess(example, tf.ones([4, 2], tf.int32), training)
        if not isinstance(returned, tuple) or len(returned) not in (1, 2, 3):
            yield (
                f"returns {type(returned).__name__}, not a tuple: (features,), (features, labels) "
                "or (features, labels, sample_weight)"
            )
            return
        batches = read_batches(split, 4, training)
        for name in batches[0]:
            shapes = {tuple(str(x.shape) for x in batch[name]) for batch in batches}
            if len(shapes) > 1:
                yield (
                    f"gives {name} of other shapes from batch to batch, "
                    f"{' and '.join(map(', '.join, sorted(shapes)[:2]))}, {mode}: pad or cut them"
                )
                return
            for x in batches[0][name]:
                if x.shape[:1] != (4,):
                    yield f"gives {name} of shape {x.shape} for 4 examples, {mode}: [4, …] is due"
                    return
        weights = batches[0].get("sample_weight", [])
        if len(weights) > 1:
            yield (
                f"gives {len(weights)} sample_weights for each example, where one is due, [batch]: "
                "put those of a part of the labels among the labels, and use them in compute_losses"
            )
            return
        for weight in weights:
            if weight.shape != (4,) or weight.dtype != np.float32:
                yield (
                    f"gives sample_weight {weight.dtype} of shape {weight.shape} for 4 examples: "
                    "float32 of shape (4,) is due"
                )
                return
        again = list(find_differences(batches, read_batches(split, 4, training)))
        if again:
            yield (
                f"gives other {' and '.join(again)} when it is called again with the same seeds, "
                f"{mode}: draw from `seeds` alone (tf.random.stateless_…, "
                "tf.image.stateless_random_…), not from tf.random, np.random or random"
            )
            return
        alone = list(find_differences(batches, read_batches(split, 2, training), exactly=False))
        if alone:
            yield (
                f"gives other {' and '.join(alone)} for the same examples in a batch of 2 than in "
                f"one of 4, {mode}: it must treat each example by itself, with its own seed, "
                "because replicas share a batch"
            )
            return
        if not training:
            other = list(find_differences(batches, read_batches(split, 4, training, key=2)))
            if other:
                yield (
                    f"draws {' and '.join(other)} from `seeds` {mode} too: then an evaluation "
                    "depends on --seed"
                )
            if "sample_weight" in batches[0] and not any_weight(split):
                yield (
                    "gives all examples of the validation split the weight 0: their loss is 0 "
                    "whatever the model does, and no checkpoint the best"
                )


def create_all(strategy):
    """Creates what `main` does, for a batch of 4 examples. Returns these, with weights."""
    keras.utils.clear_session()  # so that layers have the names that they have in a run
    train.strategy, train.GLOBAL_BATCH_SIZE = strategy, 4
    train.loss_object = train.create_loss_objects(strategy)
    train.model, train.optimizer = train.create_model_and_optimizer(strategy)
    still(train.model, train.optimizer)
    examples = next(iter(read_fetched(0)))
    seeds = tf.reshape(tf.range(8), [4, 2])
    batch = train.preprocess(examples, seeds, training=True)
    features, labels, weight = keras.utils.unpack_x_y_sample_weight(batch)
    return features, labels, tf.ones([4]) if weight is None else weight


@functools.cache
def mirror():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def find_outsiders(variables):
    """Returns which variables aren't on every replica, in words: "" if all are."""
    kind = tf.distribute.DistributedValues
    paths = [v.path for v in variables if not isinstance(v.value, kind)]
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more


def parts_of(structure, size):
    """Cuts [4, …] tensors into parts of a size. None stays None."""

    def part(start):
        end = start + size
        return tf.nest.map_structure(lambda x: None if x is None else x[start:end], structure)

    return [part(start) for start in range(0, 4, size)]


def predicts():
    """Returns whether there is one model, which predicts: what several do, only the steps know."""
    return isinstance(train.model, keras.Model)


def depends_on_others(model, features, training):
    """Returns whether what the model predicts for an example depends on the rest of the batch."""
    together = model(features, training=training)
    halves = [model(half, training=training) for half in parts_of(features, 2)]
    return not is_close(together, tf.nest.map_structure(lambda *x: tf.concat(x, 0), *halves))


def predicts_twice(features):
    """Returns whether the model predicts the same from the same state, in training."""
    kept = [variable.numpy() for variable in train.model.variables]
    predictions = []
    for _ in range(2):
        predictions.append(train.model(features, training=True))
        for variable, value in zip(train.model.variables, kept, strict=True):
            variable.assign(value)
    return is_close(*predictions)


def check_model():
    created = train.create_model_and_optimizer(mirror())
    models, optimizers = map(tf.nest.flatten, created if len(created) == 2 else ([], [None]))
    if len(models) != len(optimizers) or not all(
        isinstance(model, keras.Model) and isinstance(optimizer, keras.optimizers.Optimizer)
        for model, optimizer in zip(models, optimizers, strict=True)
    ):
        yield "doesn't return a model and an optimizer, or as many of each"
        return
    if not all(model.built for model in models):
        yield "returns a model that isn't built: give it keras.Input, or call build() or the model"
        return
    for layer in find_layers(models):
        if isinstance(layer, keras.layers.BatchNormalization):
            if layer.trainable and not layer.synchronized:
                yield (
                    f"makes a BatchNormalization, {layer.name!r}, that is not synchronized, so "
                    "that each replica takes the statistics of its own examples: give it "
                    "synchronized=True"
                )
    for what, made in (("model", models), ("optimizer", optimizers)):
        outsiders = find_outsiders([variable for each in made for variable in each.variables])
        if outsiders:
            yield (
                f"makes variables of the {what} outside strategy.scope(), which puts a copy on "
                f"every replica: {outsiders}. Indent what makes them below `with strategy.scope():`"
            )
    features, _, _ = create_all(tf.distribute.get_strategy())
    if not predicts():
        return
    predictions = train.model(features, training=False)
    if any(x.shape[:1] != (4,) for x in tf.nest.flatten(predictions)):
        shapes = [str(x.shape) for x in tf.nest.flatten(predictions)]
        yield f"predicts {', '.join(shapes)} for 4 examples: [4, …] is due"
    elif depends_on_others(train.model, features, training=False):
        yield (
            "returns a model that predicts an example, in evaluation, by the other examples of the "
            "batch as well: then a test depends on the batch size"
        )
    elif not predicts_twice(features):
        yield (
            "returns a model that draws random numbers which no checkpoint holds (tf.random, "
            "np.random?), so that a killed run can't resume to the same bits: in a layer, draw by "
            "keras.random with a keras.random.SeedGenerator of the layer's"
        )


def each_loss(labels, predictions):
    """Yields (words, loss, its labels, its predictions): several if loss_object is a structure as
    labels and predictions are. Of others, only compute_losses knows what they take."""
    losses = train.loss_object
    if callable(losses):
        if labels is not None:
            yield "", losses, labels, predictions
        return
    keys = losses.keys() if isinstance(losses, dict) else range(len(losses))
    if all(isinstance(x, type(losses)) and len(x) == len(losses) for x in (labels, predictions)):
        for key in keys:
            yield f"as {key!r} ", losses[key], labels[key], predictions[key]


def check_losses():
    features, labels, _ = create_all(tf.distribute.get_strategy())
    if predicts():
        predictions = train.model(features, training=False)
        means = takes_means(labels, predictions)
        for words, loss, y, p in each_loss(labels, predictions):
            yield from check_loss(f"returns {words}a loss that gives", loss, y, p, means)


def check_losses_of_examples():
    features, labels, _ = create_all(tf.distribute.get_strategy())
    if predicts():
        predictions = train.model(features, training=False)
        yield from check_loss("gives", train.compute_losses, labels, predictions)


def check_loss(gives, loss, labels, predictions, means=False):
    """Yields what is wrong with a function that is to return the loss of each example; or of each
    pixel, say, where means of them are taken later."""
    shapes = [[tuple(x.shape) for x in flatten_some(each)] for each in (labels, predictions)]
    hint = "labels are {}, predictions {}".format(
        *(" and ".join(map(str, each)) for each in shapes)
    )
    if any(a != b and math.prod(a) == math.prod(b) for a, b in zip(*shapes, strict=False)):
        hint += "; subtracting one from the other broadcasts to all pairs of examples"
    losses = loss(labels, predictions)
    axes = [*range(1, len(losses.shape))]
    if any(axes and len(x) > 2 and x[: len(axes) + 1] == losses.shape for x in shapes[0]):
        if means:
            return
        hint += f"; have compute_losses take the mean: tf.reduce_mean(losses, axis={axes})"
    if losses.shape == []:
        yield (
            f'{gives} one number, reduced already: reduction="none" gives one for each example, '
            "[4] here"
        )
    elif losses.shape != [4]:
        yield (
            f"{gives} {tuple(losses.shape)} for 4 examples, where one value each, (4,), is due "
            f"({hint})"
        )
    else:
        pairs = zip(parts_of(labels, 1), parts_of(predictions, 1), strict=True)
        if not is_close(losses, tf.concat([tf.reshape(loss(*x), [1]) for x in pairs], 0)):
            yield (
                f"{gives} an example another value in a batch than alone: it mixes the "
                f"examples ({hint})"
            )


def takes_means(labels, predictions):
    """Returns whether compute_losses gives one value an example."""
    try:
        return train.compute_losses(labels, predictions).shape == [4]
    except Exception:
        return False


def flatten_some(structure):
    """Returns the tensors of a structure, which may be None."""
    return [x for x in tf.nest.flatten(structure) if x is not None]


def check_metrics():
    lists = train.create_metrics(mirror())
    if len(lists) != 3:
        yield f"returns {len(lists)} lists, not 3: of the train, validation and test split"
        return
    metrics = [metric for split in lists for metric in split]
    if len({id(metric) for metric in metrics}) < len(metrics):
        yield "returns the same metric twice: each list needs objects of its own"
    taken = {"step", "epoch", "split", "loss", "learning_rate", "gradient_norm", *SPEEDS}
    names = [[metric.name for metric in split] for split in lists]
    for name in sorted({n for split in names for n in split if split.count(n) > 1 or n in taken}):
        yield f"has two values named {name!r} in a split (the log has its own {sorted(taken)})"
    outsiders = find_outsiders([v for metric in metrics for v in metric.variables])
    if outsiders:
        yield (
            "makes variables of metrics outside strategy.scope(), so that their values don't span "
            f"the replicas: {outsiders}. Indent what makes them below `with strategy.scope():`"
        )
    features, labels, weight = create_all(tf.distribute.get_strategy())
    metrics = train.validation_metrics = train.create_metrics(tf.distribute.get_strategy())[1]
    counts = [len(metric.variables) for metric in metrics]
    train.validation_step((features, labels, weight))
    for metric, count in zip(metrics, counts, strict=True):
        if len(metric.variables) > count:
            yield (
                f"has a metric, {metric.name!r}, that makes variables when it is first updated, "
                "too late in a traced step: update it in the hook, inside the scope, and reset it"
            )
        shape = tuple(tf.convert_to_tensor(metric.result()).shape)
        if shape != ():
            yield f"has a metric, {metric.name!r}, of shape {shape}: the log takes one number, ()"


def check_loss_of_replicas():
    batch = create_all(tf.distribute.get_strategy())
    if not predicts():
        return
    predictions = train.model(batch[0], training=False)
    # What is the same on all replicas, and counts once, goes through this.
    tf.nn.scale_regularization_loss = tf.zeros_like
    labels, weights = (parts_of(x, 2) for x in batch[1:])
    whole = train.compute_loss(batch[1], predictions, batch[2])
    if whole.shape != []:
        yield f"returns a loss of shape {tuple(whole.shape)}, where one number, (), is due"
        return
    parts = map(train.compute_loss, labels, parts_of(predictions, 2), weights)
    whole, parts = float(whole), float(sum(parts))
    if is_close(whole, parts):
        return
    if is_close(2 * whole, parts):
        yield (
            "takes the mean over a replica's own examples (tf.reduce_mean?): the losses of two "
            f"replicas sum to {parts:.6g}, twice the loss of both together, {whole:.6g}. Divide by "
            "the global batch, as tf.nn.compute_average_loss does with GLOBAL_BATCH_SIZE"
        )
    else:
        yield (
            f"gives two replicas losses that sum to {parts:.6g}, where the loss of both together "
            f"is {whole:.6g}: look for a statistic of a replica's own examples, or for a "
            "regularization loss that doesn't go through tf.nn.scale_regularization_loss"
        )


def check_gradients():
    batch = create_all(tf.distribute.get_strategy())
    train.train_metrics = train.create_metrics(tf.distribute.get_strategy())[0]
    gradient = tf.GradientTape.gradient

    def tell(*args, unconnected_gradients=None, **kwargs):
        """As train.py's, but None, and not zeros, for what has no path to the loss."""
        return gradient(*args, **kwargs)

    tf.GradientTape.gradient = tell
    try:
        gradients = tf.nest.flatten(train.compute_gradients(batch)[-1])
    finally:
        tf.GradientTape.gradient = gradient
    variables = [x for each in tf.nest.flatten(train.model) for x in each.trainable_variables]
    if len(gradients) != len(variables):
        return  # a compute_gradients of your own
    paths = [v.path for v, g in zip(variables, gradients, strict=True) if g is None]
    if paths:
        yield (
            f"makes variables that get no gradient, so that they never learn: {', '.join(paths)}. "
            "Is their layer used? Does the loss depend on it (stop_gradient, tf.argmax, a cast to "
            "integers)? What is not to learn has trainable=False"
        )


def check_slices():
    batch = create_all(tf.distribute.get_strategy())
    train.train_metrics, paths = train.create_metrics(tf.distribute.get_strategy())[0], []

    def listen(optimizer):
        apply = optimizer.apply

        def note(gradients, variables=None):
            gradients = list(gradients)
            paths.extend(
                variable.path
                for variable, gradient in zip(variables or [], gradients, strict=False)
                if isinstance(gradient, tf.IndexedSlices)
                # {% if cookiecutter.distribution == "parameter_server" %}
                and len(set(gradient.indices.numpy())) < len(gradient.indices)
                # {% endif %}
            )
            return apply(gradients, variables)

        optimizer.apply = note

    models, optimizers = tf.nest.flatten(train.model), tf.nest.flatten(train.optimizer)
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.build(model.trainable_variables)
        listen(optimizer)
    train.train_step(batch)
    if paths:
        yield (
            f"has an optimizer apply the gradients of {', '.join(paths)} as tf.IndexedSlices, in "
            "which an index may come twice: Keras's Adam squares each slice by itself, where the "
            "square of their sum is due. Sum them with tf.convert_to_tensor, or go through "
            "train.py's `update`, which does"
        )


def find_idle_biases(features):
    """Yields the paths of biases that change nothing in training, but something in evaluation."""
    variables = train.model.variables
    kept = [variable.numpy() for variable in variables]

    def predict():
        predictions = [train.model(features, training=training) for training in (False, True)]
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
        return predictions

    evaluated, trained = predict()
    for variable in train.model.trainable_variables:
        if variable.path.endswith("bias"):
            variable.assign_add(tf.ones_like(variable))
            others = predict()
            if is_close(trained, others[1]) and not is_close(evaluated, others[0]):
                yield variable.path


def check_batch_statistics():
    """Yields whole sentences, since they are about several hooks."""
    features, _, _ = create_all(tf.distribute.get_strategy())
    layers = find_layers(train.model)
    normalizing = [x for x in layers if isinstance(x, keras.layers.BatchNormalization)]
    for layer in layers:
        if is_random(layer) and not layer._call_has_training_arg:
            yield (
                f"create_model_and_optimizer: layer {layer.name!r} draws random numbers in "
                "evaluation too, and other ones on each replica: draw only if `training`"
            )
    if normalizing and predicts():
        for path in find_idle_biases(features):
            yield (
                f"create_model_and_optimizer: what {path} adds, a BatchNormalization takes away "
                "again, so that its gradient is nothing but rounding errors, which Adam makes as "
                "large as any: give its layer use_bias=False"
            )
    if not normalizing and predicts() and depends_on_others(train.model, features, training=True):
        yield (
            "create_model_and_optimizer: what the model predicts for an example in training "
            "depends on the other examples of the batch: are they statistics of a replica's own?"
        )


if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))
    import train  # first: it silences the start of TensorFlow

    train.args = train.parse_arguments([])  # the defaults, and an epoch: hooks may read them
    train.STEPS_PER_EPOCH = 10
    import keras
    import numpy as np
    import tensorflow as tf

    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
