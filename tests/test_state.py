"""All of the user's state is kept, whatever the hooks and steps are edited to, however it ends."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import (
    FEW_OF,
    TEMPLATE,
    TIMEOUT,
    assert_same_run,
    edit,
    environment,
    find_free_ports,
    finish,
    flags_of,
    fork,
    hash_tree,
    read_numbers,
    start,
    train,
)

FEW = FEW_OF["image_classification"]  # 128 examples to train on: 8 steps an epoch.
FLAGS = ("--global-batch-size", "16", "--epochs", "4", "--checkpoint-every-steps", "3")


def ask(question, *arguments):
    """Return what child_state.py answers."""
    child = TEMPLATE / "tests" / "child_state.py"
    code, output, errors = finish(fork(child, question, *arguments))
    assert code == 0, errors
    return json.loads(output.splitlines()[-1])


def replace(script, *functions):
    """Return edits of a script: for each function, its whole text and what is put there."""
    text = script.read_text(encoding="utf-8")
    lines, old = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            old[node.name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return tuple((old[ast.parse(each).body[0].name], each.strip()) for each in functions)


LOGGED = '        log(end, "train", trained)\n'


def kill_at(step):
    """Return an edit of the machinery: a SIGKILL where the line of a step has just been logged."""
    kill = f"        state['step'] == {step} and os.kill(os.getpid(), signal.SIGKILL)\n"
    return LOGGED, LOGGED + kill


def train_with_a_kill(script, folder, edits, *flags):
    """Train, with a kill at the end of the third epoch. Return the output after it."""
    code, _, errors = finish(fork(edit(script, folder, *edits, kill_at(24)), *flags))
    assert (code, errors) == (-signal.SIGKILL, "")
    output = train(edit(script, folder, *edits), *flags)
    assert "resumed at step " in output
    return output


def find_line(output, beginning):
    """Return the one line of an output that begins so."""
    [line] = [line for line in output.splitlines() if line.startswith(beginning)]
    return line


def assert_evaluation_repeats_the_test(script, run_dir, output, *flags):
    """Assert that --mode evaluate says what a run, of some output, said of its own test."""
    again = train(script, "--mode", "evaluate", "--run-dir", run_dir, *FLAGS[:2], *flags)
    numbers = [find_line(text, "test ").partition("  of ")[0] for text in (again, output)]
    assert numbers[0] == numbers[1]


# --------------------------------------------------------------------------------------------------
# Several models and optimizers
# --------------------------------------------------------------------------------------------------

# A GAN: the generator mends digits of which half the pixels were dropped.
GAN = (
    """
def preprocess(batch, seeds, training):
    images = tf.cast(batch[0], tf.float32)
    return images, images / 16
""",
    """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        generator = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                keras.layers.Rescaling(1 / 16),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(32, activation="silu"),
                keras.layers.Dense(64, dtype="float32"),
                keras.layers.Reshape([8, 8, 1], dtype="float32"),
            ]
        )
        discriminator = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                keras.layers.Flatten(),
                keras.layers.Dense(16, activation="silu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1, dtype="float32"),
            ]
        )
        optimizers = Adam(LEARNING_RATE), keras.optimizers.Adam(1e-3)
    return (generator, discriminator), optimizers
""",
    """
def create_metrics(strategy):
    def metrics():
        return [keras.metrics.MeanAbsoluteError(name="error")]

    with strategy.scope():
        return metrics(), metrics(), metrics()
""",
    """
def compute_losses(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions), axis=[1, 2, 3])
""",
    """
def compute_gradients(batch):
    features, labels, sample_weight = batch
    generator, discriminator = model
    with tf.GradientTape(persistent=True) as tape:
        images = generator(features, training=True)
        real = discriminator(labels, training=True)
        fake = discriminator(images, training=True)
        loss = compute_loss(labels, images, sample_weight)
        size = GLOBAL_BATCH_SIZE
        fooling = tf.nn.compute_average_loss(
            tf.nn.softplus(-fake)[:, 0], sample_weight, global_batch_size=size
        )
        telling = tf.nn.compute_average_loss(
            (tf.nn.softplus(-real) + tf.nn.softplus(fake))[:, 0],
            sample_weight,
            global_batch_size=size,
        )
        generator_loss = optimizer[0].scale_loss(loss + 0.01 * fooling)
        discriminator_loss = optimizer[1].scale_loss(telling)
    update_metrics(train_metrics, labels, images, sample_weight)
    return loss, (
        tape.gradient(generator_loss, generator.trainable_variables),
        tape.gradient(discriminator_loss, discriminator.trainable_variables),
    )
""",
    """
def train_step(batch):
    loss, gradients = compute_gradients(batch)
    for i in (0, 1):
        update(optimizer[i], gradients[i], model[i].trainable_variables)
    return tf.stack([loss * GLOBAL_BATCH_SIZE, tf.reduce_sum(batch[-1])])
""",
    """
def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    predictions = model[0](features, training=False)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions)
    return tf.stack([tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)])
""",
)
# Of each of the two, in their order: kernels and biases, and the state of the dropout.
TRAINABLE = [[64, 32], [32], [32, 64], [64]], [[64, 16], [16], [16, 1], [1]]
SEED_STATE = [2]


def shape_of(value):
    """Return the shape of a list of lists."""
    return [len(value), *shape_of(value[0])] if isinstance(value, list) else []


def flatten(value):
    """Return the numbers of a list of lists."""
    return [x for each in value for x in flatten(each)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("replicas", [1, 2])
def test_gan_is_whole(replicas, script, train_once, tmp_path):
    edits = (FEW, *replace(script, *GAN))
    flags = (*FLAGS, "--ema-momentum", "0.9", *flags_of(replicas))
    expected = train_once(*flags, edits=edits)
    train_with_a_kill(script, tmp_path, edits, *flags)
    run_dir = tmp_path / "run"
    assert_same_run(run_dir, expected)
    lines = [line for line in read_numbers(run_dir) if line["split"] == "train"]
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]
    output = (expected.parent / "output").read_text(encoding="utf-8")
    assert_evaluation_repeats_the_test(tmp_path / "train.py", run_dir, output, *flags_of(replicas))

    kept = ask("contents", run_dir)
    last, best, exports = kept["last"], kept["best"], kept["exports"]
    assert (run_dir / "export" / "model_2.keras").is_file()
    weights = [*TRAINABLE[0], *TRAINABLE[1]]
    is_weight = [shape_of(x) != SEED_STATE for x in last["model"]]
    assert [shape_of(x) for x, y in zip(last["model"], is_weight, strict=True) if y] == weights
    assert is_weight.count(False) == 2
    # Of each optimizer: its steps, its learning rate, the averages of all weights, and two moments
    # of each.
    slots = [[[], [], *each, *(shape for shape in each for _ in range(2))] for each in TRAINABLE]
    assert [shape_of(x) for x in last["optimizer"]] == slots[0] + slots[1]
    assert all(any(flatten(x)) for x in last["optimizer"])
    # The last epoch was the best: its weights are the averages, and they are what is exported.
    assert best["step"] == last["step"] == [32]
    starts = 2, len(slots[0]) + 2
    averages = iter([x for start in starts for x in last["optimizer"][start : start + 4]])
    averaged = [next(averages) if y else x for x, y in zip(last["model"], is_weight, strict=True)]
    assert best["model"] == averaged != last["model"]
    exported = [x for x in exports[0] + exports[1] if shape_of(x) != SEED_STATE]
    assert exported == [x for x, y in zip(averaged, is_weight, strict=True) if y]
    answers = ask("served", run_dir)
    assert flatten(answers[0]) == pytest.approx(flatten(answers[1]), rel=1e-4, abs=1e-6)


def test_each_replica_has_random_numbers_of_its_own_in_both_models(script, tmp_path):
    script = edit(script, tmp_path, FEW, *replace(script, *GAN))
    states = ask("seeds", script, "2")
    assert len(states) == 2
    for state, of_the_other_replica in states:
        assert state != of_the_other_replica


NO_NOISE = [("Dropout(0.5)", "Dropout(0.0)"), ("Dropout(0.3)", "Dropout(0.0)")]


@pytest.mark.parametrize(
    ("flags", "tolerance"),
    [
        (("--accumulation-steps", "2", "--replicas", "2"), 1e-4),
        (("--clip-norm", "1e9", "--replicas", "2"), 1e-4),
        (("--precision", "mixed_float16", "--replicas", "2"), 0.05),
    ],
    ids=lambda x: x[0][2:] if isinstance(x, tuple) else "",
)
def test_gan_has_the_same_numbers_with_each_flag(flags, tolerance, script, train_once):
    code = [each for each in GAN]
    for old, new in NO_NOISE:
        code = [each.replace(old, new) for each in code]
    edits = (FEW, *replace(script, *code))
    plain = read_numbers(train_once(*FLAGS, edits=edits))
    run_dir = train_once(*FLAGS, *flags, edits=edits)
    lines = read_numbers(run_dir)
    assert len(lines) == len(plain)
    for line, other in zip(lines, plain, strict=True):
        for name in ("loss", "error"):
            assert line[name] == pytest.approx(other[name], rel=tolerance)
    if "mixed_float16" in flags:
        # Both losses were scaled, and both optimizers scaled back.
        scales = [x for x in ask("contents", run_dir)["last"]["optimizer"] if x == 2.0**15]
        assert len(scales) == 2


# --------------------------------------------------------------------------------------------------
# Layers of one name
# --------------------------------------------------------------------------------------------------

SAME_NAMES = """
def create_model_and_optimizer(strategy):
    with strategy.scope():

        def create_part(name):
            inputs = keras.Input([64])
            outputs = keras.layers.Dense(64, activation="silu", name="block")(inputs)
            return keras.Model(inputs, keras.layers.Dropout(0.3)(outputs), name=name)

        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                keras.layers.Rescaling(1 / 16),
                keras.layers.Flatten(),
                create_part("a"),
                create_part("b"),
                keras.layers.Dense(10, dtype="float32"),
            ]
        )
        optimizer = keras.optimizers.Adam(LEARNING_RATE)
    return model, optimizer
"""


def test_layers_of_one_name_are_all_kept(script, train_once, tmp_path):
    edits = (FEW, *replace(script, SAME_NAMES))
    expected = train_once(*FLAGS, edits=edits)
    train_with_a_kill(script, tmp_path, edits, *FLAGS)
    run_dir = tmp_path / "run"
    assert_same_run(run_dir, expected)
    output = (expected.parent / "output").read_text(encoding="utf-8")
    assert_evaluation_repeats_the_test(tmp_path / "train.py", run_dir, output)
    kept = ask("contents", run_dir)
    names = kept["last"]["names"][0]
    assert len(set(names)) < len(names)  # or else this would test nothing
    assert len(kept["last"]["model"]) == len(names) == 6 + 2
    assert len(kept["last"]["optimizer"]) == 2 + 2 * 6
    assert kept["best"]["step"] == kept["last"]["step"]
    exported = [x for x in kept["exports"][0] if shape_of(x) != SEED_STATE]
    assert exported == [x for x in kept["last"]["model"] if shape_of(x) != SEED_STATE]
    blocks = [x for x in kept["last"]["model"] if shape_of(x) == [64, 64]]
    assert len(blocks) == 2 and blocks[0] != blocks[1]


# --------------------------------------------------------------------------------------------------
# Another script, the same run
# --------------------------------------------------------------------------------------------------


def number_of(script, text):
    """Return the number of the one line that has a text."""
    lines = script.read_text(encoding="utf-8").splitlines()
    [number] = [number for number, line in enumerate(lines, start=1) if text in line]
    return number


RATE = ("keras.layers.Dropout(0.3)", "keras.layers.Dropout(0.2)")
STEP = (
    "    return tf.stack([tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)])\n",
    "    losses = 2 * losses\n"
    "    total = tf.reduce_sum(losses * sample_weight)\n"
    "    return tf.stack([total, tf.reduce_sum(sample_weight)])\n",
)
COMMENT = ("# 70 %, 15 %, 15 %", "# 10 %, 5 % and 85 %: a few to train on")
WRAP = (
    'keras.layers.Dense(64, activation="silu"),',
    'keras.layers.Dense(\n                    64,\n                    activation="silu",\n'
    "                ),",
)
MACHINERY = ("{' *' if is_best", "{' the best so far' if is_best")


@pytest.fixture(scope="module")
def stopped_run(script, tmp_path_factory):
    """Return the folder of a script and its run, which was killed."""
    folder = tmp_path_factory.mktemp("stopped")
    process = fork(edit(script, folder, FEW, kill_at(24)), *FLAGS)
    assert finish(process)[0] == -signal.SIGKILL
    return folder


@pytest.mark.parametrize("is_finished", [False, True], ids=["under way", "finished"])
def test_run_is_not_gone_on_with_by_other_hooks(
    is_finished, script, stopped_run, train_once, tmp_path
):
    run_dir = tmp_path / "run"
    shutil.copytree(
        train_once(*FLAGS, edits=(FEW,)) if is_finished else stopped_run / "run", run_dir
    )
    before = hash_tree(run_dir)
    for edits in ((RATE,), (STEP,), (RATE, STEP)):
        edited = edit(script, tmp_path, FEW, *edits)
        changed = []
        if RATE in edits:
            line = number_of(edited, "def create_model_and_optimizer")
            changed.append(f"create_model_and_optimizer (line {line})")
        if STEP in edits:
            line = number_of(edited, "def evaluation_step")
            changed.append(f"evaluation_step (line {line})")
        code, output, errors = finish(fork(edited, *FLAGS))
        assert (code, output) == (2, "")
        [line] = errors.splitlines()
        assert "of train.py changed since the run" in line
        assert f" began: {', '.join(changed)}." in line
        assert "run/train.py" in line
        assert hash_tree(run_dir) == before


def test_run_goes_on_where_no_hook_says_something_else(script, stopped_run, train_once, tmp_path):
    shutil.copytree(stopped_run / "run", tmp_path / "run")
    first = (tmp_path / "run" / "train.py").read_bytes()
    edited = edit(script, tmp_path, FEW, COMMENT, WRAP, MACHINERY)
    output = train(edited, *FLAGS)
    assert "resumed at step " in output
    assert "the best so far" in output
    assert_same_run(tmp_path / "run", train_once(*FLAGS, edits=(FEW,)))
    # The record has both scripts, and says where one took over.
    [step] = re.findall(r"resumed at step (\d+) ", output)
    [record] = (tmp_path / "run").glob("train.until-step-*.py")
    assert record.name == f"train.until-step-{step}.py"
    assert record.read_bytes() == first
    assert (tmp_path / "run" / "train.py").read_bytes() == edited.read_bytes()
    assert "is finished" in train(edit(script, tmp_path, FEW), *FLAGS)


def test_run_goes_on_with_other_hooks_where_its_script_was_renamed(script, stopped_run, tmp_path):
    shutil.copytree(stopped_run / "run", tmp_path / "run")
    record = tmp_path / "run" / "train.py"
    record.rename(record.with_name("train.first.py"))
    assert "resumed at step " in train(edit(script, tmp_path, FEW, RATE), *FLAGS)
    assert read_numbers(tmp_path / "run")[-1]["split"] == "test"
    assert record.with_name("train.first.py").exists()
    assert record.read_bytes() == (tmp_path / "train.py").read_bytes()


# --------------------------------------------------------------------------------------------------
# The export
# --------------------------------------------------------------------------------------------------

EXPORT = "def export(folder, examples, weights=None):\n"
IS_LAST = "    if Path(folder) == run_dir / 'export':\n"


@pytest.mark.parametrize(
    ("fault", "code"),
    [("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL), ("1 / 0", 1)],
    ids=["kill", "exception"],
)
def test_export_is_made_up_for(fault, code, script, train_once, tmp_path):
    run_dir = tmp_path / "run"
    plant = (EXPORT, f"{EXPORT}{IS_LAST}        {fault}\n")
    assert finish(fork(edit(script, tmp_path, FEW, plant), *FLAGS))[0] == code
    expected = train_once(*FLAGS, edits=(FEW,))
    assert read_numbers(run_dir) == read_numbers(expected)  # the test line too
    assert not (run_dir / "export").exists()
    train(edit(script, tmp_path, FEW), *FLAGS)
    assert_same_run(run_dir, expected)


PYTHON = (
    "    return tf.cast(images, tf.float32), labels\n",
    "    images = tf.numpy_function(lambda x: x.astype('float32'), [images], tf.float32)\n"
    "    return tf.ensure_shape(images, [None, 8, 8, 1]), labels\n",
)


def test_what_can_not_be_exported_is_said_at_the_start(script, tmp_path):
    run_dir = tmp_path / "run"
    # A lambda can't be read again without a flag that trusts the file.
    lambda_layer = ("keras.layers.Rescaling(1 / 16)", "keras.layers.Lambda(lambda x: x / 16)")
    cases = {
        "a SavedModel": (PYTHON, "model.keras", "saved_model.pb"),
        "model.keras": (lambda_layer, "saved_model.pb", None),
    }
    for what, (change, kept, missing) in cases.items():
        flags = (*FLAGS[:2], "--epochs", "1")
        lines = train(edit(script, tmp_path, FEW, change), *flags).splitlines()
        said = [i for i, line in enumerate(lines) if f"can't be written as {what}: " in line]
        assert len(said) == 2  # at the start, and at the end
        [began] = [i for i, line in enumerate(lines) if line.startswith("epoch ")]
        assert said[0] < began < said[1]
        assert read_numbers(run_dir)[-1]["split"] == "test"
        assert (run_dir / "export" / kept).is_file()
        assert missing is None or not (run_dir / "export" / missing).exists()
        assert "is finished" in train(tmp_path / "train.py", *flags)
        shutil.rmtree(run_dir)


# --------------------------------------------------------------------------------------------------
# What examples are made of
# --------------------------------------------------------------------------------------------------

WEIGHTED = (
    FEW,
    (
        "    return [tf.data.Dataset.from_tensor_slices((images[i], labels[i])) for i in splits]\n",
        "    split = tf.data.Dataset.from_tensor_slices((images[splits[0]], labels[splits[0]]))\n"
        "    return split, split, split\n",
    ),
    (
        "    return tf.cast(images, tf.float32), labels\n",
        "    weights = tf.cast(labels, tf.float32) / 4 + 0.1\n"
        "    return tf.cast(images, tf.float32), labels, weights\n",
    ),
    ("keras.layers.Dropout(0.3)", "keras.layers.Dropout(0.0)"),
)


def test_weighted_losses_have_one_scale(script, train_once):
    flags = (*FLAGS[:2], "--epochs", "1", "--learning-rate", "1e-9", "--steps-per-loop", "8")
    for replicas in (1, 2):
        run_dir = train_once(*flags, *flags_of(replicas), edits=WEIGHTED)
        loss, accuracy = ask("weighted_loss", run_dir)
        lines = read_numbers(run_dir)
        assert [line["split"] for line in lines] == ["train", "validation", "test"]
        for line in lines:
            assert line["loss"] == pytest.approx(loss, rel=1e-5)
            assert line["accuracy"] == pytest.approx(accuracy, rel=1e-5)


NO_METRICS = """
def create_metrics(strategy):
    return [], [], []
"""
NO_LABELS = (
    """
def create_datasets():
    from sklearn.datasets import load_digits

    images = load_digits(return_X_y=True)[0].reshape(-1, 8, 8, 1).astype("uint8")
    splits = np.split(images, [128, 192])
    return [tf.data.Dataset.from_tensor_slices((split,)) for split in splits]
""",
    """
def preprocess(batch, seeds, training):
    (images,) = batch
    return (tf.cast(images, tf.float32) / 16,)
""",
    """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        images = keras.Input([8, 8, 1])
        code = keras.layers.Dense(8, activation="silu")(keras.layers.Flatten()(images))
        code = keras.layers.Dropout(0.1)(code)
        decoded = keras.layers.Reshape([8, 8, 1])(keras.layers.Dense(64)(code))
        model = keras.Model(images, (images, decoded))
        optimizer = keras.optimizers.Adam(LEARNING_RATE)
    return model, optimizer
""",
    NO_METRICS,
    """
def compute_losses(labels, predictions):
    assert labels is None
    images, decoded = predictions
    return tf.reduce_mean(tf.square(images - decoded), axis=[1, 2, 3])
""",
)
DICTS = (
    """
def preprocess(batch, seeds, training):
    images, labels = batch
    return {"image": tf.cast(images, tf.float32)}, {"digit": labels, "is odd": labels % 2}
""",
    """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        images = keras.Input([8, 8, 1], name="image")
        code = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(images))
        code = keras.layers.Dropout(0.1)(keras.layers.Dense(32, activation="silu")(code))
        outputs = {"digit": keras.layers.Dense(10)(code), "is odd": keras.layers.Dense(2)(code)}
        model = keras.Model({"image": images}, outputs)
        optimizer = keras.optimizers.Adam(LEARNING_RATE)
    return model, optimizer
""",
    """
def compute_losses(labels, predictions):
    return tf.add_n([loss_object(labels[name], predictions[name]) for name in labels])
""",
    """
def update_metrics(metrics, labels, predictions, sample_weight):
    for metric in metrics:
        metric.update_state(labels["is odd"], predictions["is odd"], sample_weight)
""",
)


@pytest.mark.parametrize("functions", [NO_LABELS, DICTS], ids=["no labels", "dicts"])
def test_examples_of_other_shapes(functions, script, train_once, tmp_path):
    edits = replace(script, *functions)
    if functions is DICTS:
        edits = (FEW, *edits)
    flags = (*FLAGS, "--replicas", "2")
    expected = train_once(*flags, edits=edits)
    lines = read_numbers(expected)
    names = {"step", "epoch", "split", "loss"} | ({"accuracy"} if functions is DICTS else set())
    assert set(lines[-1]) == names
    for split in ("train", "validation"):
        losses = [line["loss"] for line in lines if line["split"] == split]
        assert losses[-1] < 0.95 * losses[0]
    train_with_a_kill(script, tmp_path, edits, *flags)
    assert_same_run(tmp_path / "run", expected)
    answers = ask("served", tmp_path / "run")
    if functions is DICTS:
        assert [sorted(answer) for answer in answers] == [["digit", "is odd"]] * 2
        answers = [[answer["digit"], answer["is odd"]] for answer in answers]
    assert shape_of(answers[0][0])[0] == 5
    assert flatten(answers[0]) == pytest.approx(flatten(answers[1]), rel=1e-4, abs=1e-6)
    # In parts, each has None for labels too.
    halves = train_once(*flags[:4], "--accumulation-steps", "2", edits=edits)
    assert read_numbers(halves)[-1]["loss"] == pytest.approx(lines[-1]["loss"], rel=0.3)


# --------------------------------------------------------------------------------------------------
# What ends badly
# --------------------------------------------------------------------------------------------------


def test_url_as_run_dir_is_refused(script, tmp_path):
    script = edit(script, tmp_path)
    others = [("--mode", "evaluate")]
    others += [("--mode", "continuous_evaluate", "--timeout", "1")]
    for flags in [(), *others]:
        code, output, errors = finish(fork(script, "--run-dir", "gs://bucket/run", *flags))
        assert (code, output) == (2, "")
        [line] = errors.splitlines()
        assert "gs://bucket/run" in line
        assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_damaged_config_is_named(script, stopped_run, tmp_path):
    shutil.copytree(stopped_run / "run", tmp_path / "run")
    script = edit(script, tmp_path, FEW)
    for text in ("[]", '"text"', "7", "{", ""):
        (tmp_path / "run" / "config.json").write_text(text, encoding="utf-8")
        before = hash_tree(tmp_path / "run")
        code, output, errors = finish(fork(script, *FLAGS))
        assert (code, output) == (2, "")
        [line] = errors.splitlines()
        assert "run/config.json" in line
        assert hash_tree(tmp_path / "run") == before


DAMAGED_LINES = ["{", "[]", "7", "null", '{"step": null, "epoch": 1, "split": "train"}', "\x00\x00"]


def test_damaged_lines_of_the_log_are_named(script, stopped_run, train_once, tmp_path):
    """But for the last, which any kill may cut short."""
    log = tmp_path / "run" / "metrics.jsonl"
    expected = read_numbers(train_once(*FLAGS, edits=(FEW,)))
    shutil.copytree(stopped_run / "run", log.parent)
    lines = log.read_text(encoding="utf-8").splitlines()
    lines[1 : 1 + len(DAMAGED_LINES)] = DAMAGED_LINES
    log.write_text("\n".join(lines) + '\n{"step": 24, "epo', encoding="utf-8")
    output = train(edit(script, tmp_path, FEW), *FLAGS)
    said = [line for line in output.splitlines() if "damaged" in line]
    assert said
    for i in range(2, 2 + len(DAMAGED_LINES)):
        assert any(f"metrics.jsonl: line {i} is damaged" in line for line in said)
    assert "resumed at step " in output
    assert read_numbers(log.parent) == [expected[0], *expected[1 + len(DAMAGED_LINES) :]]


@pytest.mark.parametrize("last", ['{"step": 32, "ep', "\x00" * 10], ids=["cut", "zeros"])
def test_finished_run_with_a_damaged_last_line_ends_again(last, script, train_once, tmp_path):
    expected = train_once(*FLAGS, edits=(FEW,))
    shutil.copytree(expected, tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines()
    log.write_text("\n".join([*lines[:-1], last]), encoding="utf-8")
    train(edit(script, tmp_path, FEW), *FLAGS)
    assert_same_run(tmp_path / "run", expected)


def test_saved_model_is_not_executed(script, train_once, tmp_path):
    witness = tmp_path / "witness"
    assert ask("make_trap", tmp_path / "trap", witness)  # it does write a file when it is loaded
    script = edit(script, tmp_path, FEW)
    flags = (*FLAGS[:2], "--epochs", "1", "--init-checkpoint")
    code, output, errors = finish(fork(script, *flags, "trap"))
    assert code == 2
    [line] = errors.splitlines()
    assert "--init-checkpoint trap is no run, checkpoint or .keras file" in line
    assert not witness.exists()
    assert not (tmp_path / "run").exists()
    # An export has the model beside it, in a file of which nothing is executed.
    shutil.copy(train_once(*FLAGS, edits=(FEW,)) / "export" / "model.keras", tmp_path / "trap")
    assert "trap: loaded 6 of 6 weights" in train(script, *flags, "trap")
    assert not witness.exists()


def test_code_in_a_keras_file_is_not_executed(script, tmp_path):
    witness = tmp_path / "witness"
    assert ask("make_keras_trap", tmp_path / "trap.keras", witness)  # it runs where it is trusted
    code, output, errors = finish(fork(edit(script, tmp_path), "--init-checkpoint", "trap.keras"))
    assert code == 2
    [line] = errors.splitlines()
    assert "--init-checkpoint trap.keras is no run, checkpoint or .keras file" in line
    assert "Lambda" in line
    assert not witness.exists()
    assert not (tmp_path / "run").exists()


WAIT = "open('here', 'w').close(), time.sleep(100)"
MOMENTS = {
    "data": ("    from sklearn.datasets import load_digits\n", f"    {WAIT}\n"),
    "model": ("        optimizer = Adam(LEARNING_RATE)", f"        {WAIT}\n"),
    "test": (
        "    return evaluation_step(batch, test_metrics)\n",
        f"    tf.numpy_function(lambda: ({WAIT}) and None, [], [])\n",
    ),
    "export": (EXPORT, f"{IS_LAST}        {WAIT}\n"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_signal_at_any_moment(moment, script, tmp_path):
    old, wait = MOMENTS[moment]
    new = old + wait if moment == "export" else wait + old
    process = fork(edit(script, tmp_path, FEW, (old, new)), *FLAGS)
    here = tmp_path / "here"
    end = time.monotonic() + TIMEOUT
    while not here.exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    code, _, errors = finish(process, timeout=20)
    assert (code, errors) == (143, "")


# --------------------------------------------------------------------------------------------------
# The vocabulary of a run
# --------------------------------------------------------------------------------------------------

# Other texts, of as many examples, without an edit of a hook.
OTHER_TEXTS = (
    "import argparse\n",
    "import unicodedata\n\n"
    "import argparse\n\n"
    "name_of = unicodedata.name\n"
    "unicodedata.name = lambda *x: name_of(*x).replace('LETTER', 'GLYPH OR CHARACTER')\n",
)


def test_run_keeps_its_own_vocabulary(projects, tmp_path):
    script = projects["text_classification"] / "train.py"
    few = FEW_OF["text_classification"]
    flags = ("--schedule", "constant", "--warmup-steps", "0", "--epochs")
    train(edit(script, tmp_path, few), *flags, "1")
    vocabulary = tmp_path / "run" / "vocabulary.txt"
    words = vocabulary.read_bytes()
    assert b"letter" in words.split(b"\n")
    script = edit(script, tmp_path, few, OTHER_TEXTS)
    assert "resumed at step 5" in train(script, *flags, "2")
    assert vocabulary.read_bytes() == words
    [again] = train(script, "--mode", "evaluate").splitlines()
    numbers = read_numbers(tmp_path / "run")[-1]
    assert f"loss {numbers['loss']:.4f} accuracy {numbers['accuracy']:.4f}" in again
    # A new run has a vocabulary of its own.
    train(script, *flags, "1", "--run-dir", "other")
    others = (tmp_path / "other" / "vocabulary.txt").read_bytes()
    assert b"glyph" in others.split(b"\n")
    assert others.count(b"\n") != words.count(b"\n")


def test_evaluation_that_finds_nothing_leaves_the_vocabulary(render, tmp_path):
    project = render(tmp_path, task="text_classification", script="essential")
    script = edit(project / "train.py", tmp_path, FEW_OF["text_classification"])
    vocabulary = tmp_path / "run" / "vocabulary.txt"
    vocabulary.parent.mkdir()
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nletter")
    code, _, errors = finish(fork(script, "--mode", "evaluate"))
    assert (code, errors.count("\n")) == (2, 1), errors
    assert vocabulary.read_text().endswith("letter")


# --------------------------------------------------------------------------------------------------
# What breaks at size
# --------------------------------------------------------------------------------------------------


def test_best_checkpoint_is_of_the_model_alone(train_once):
    kept = ask("contents", train_once(*FLAGS, edits=(FEW,)))
    counts = {kind: {k: len(v) for k, v in kept[kind].items()} for kind in ("last", "best")}
    assert counts["best"].keys() - {"save_counter"} == {"step", "model", "names"}
    assert counts["last"].keys() >= {"step", "model", "names", "optimizer"}
    assert counts["best"]["model"] == counts["last"]["model"] == 6 + 1


def test_other_workers_write_nothing(script, train_once, tmp_path):
    """In a folder of its own, as on a machine that shares none with the chief's."""
    ports = [f"127.0.0.1:{port}" for port in find_free_ports(2)]
    folders = [tmp_path / name for name in ("chief", "worker")]
    flags = (*FLAGS, "--deterministic")

    def begin(edits):
        workers = []
        for index, folder in enumerate(folders):
            (folder / "scratch").mkdir(parents=True, exist_ok=True)
            config = {"cluster": {"worker": ports}, "task": {"type": "worker", "index": index}}
            variables = {"TF_CONFIG": json.dumps(config), "TMPDIR": str(folder / "scratch")}
            env = environment(**variables)
            workers.append(start(edit(script, folder, FEW, *edits), *flags, env=env))
        return workers

    # The chief stops the run at a step, by killing the other worker once both have saved.
    kill = "        state['step'] == 24 and WORKER and os.kill(os.getpid(), signal.SIGKILL)\n"
    ends = [finish(worker) for worker in begin([(LOGGED, LOGGED + kill)])]
    assert [code for code, _, _ in ends] == [143, -signal.SIGKILL], ends
    left = [path for path in folders[1].rglob("*") if path.is_file() and path.name != "train.py"]
    assert all(path.suffix == ".py" for path in left)  # what AutoGraph has written of functions
    assert not list((folders[0] / "scratch").iterdir())
    ends = [finish(worker) for worker in begin([])]
    assert [(code, errors) for code, _, errors in ends] == [(0, "")] * 2, ends
    assert "resumed at step " in ends[0][1]
    assert [path.name for path in folders[1].iterdir() if path.name != "scratch"] == ["train.py"]
    numbers = read_numbers(folders[0] / "run")
    assert numbers == read_numbers(train_once(*flags, "--replicas", "2", edits=(FEW,)))


def test_threads_follow_the_cores_of_the_process(script, tmp_path):
    of_one_core, of_all = ask("cores", edit(script, tmp_path))
    assert of_one_core == 1
    assert of_all == len(os.sched_getaffinity(0))


def test_second_model_of_the_export_is_on_the_cpu(script, tmp_path):
    problems, devices = ask("placement", edit(script, tmp_path, FEW), tmp_path)
    assert not problems
    assert len(devices) >= 6
    assert {device.rpartition("/device:")[2] for device in devices} == {"CPU:0"}


CREATED_ONE_BY_ONE = """
def create_datasets():
    create = lambda i: (tf.fill([64, 64, 1], tf.cast(i, tf.float32)), tf.cast(i % 10, tf.int32))
    return [tf.data.Dataset.range(size).map(create) for size in (SIZE, 64, 64)]
"""
ON_FEW_PIXELS = (
    """
def preprocess(batch, seeds, training):
    images, labels = batch
    return images[:, ::8, ::8], labels
""",
    """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        layers = [keras.Input([8, 8, 1]), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential(layers), keras.optimizers.Adam(LEARNING_RATE)
""",
)


def test_data_are_in_memory_once(script, tmp_path):
    """Of examples that are created one by one: to create them of a NumPy array takes TensorFlow
    three copies for a moment, before train.py sees any."""

    def measure_peak(size):
        functions = (CREATED_ONE_BY_ONE.replace("SIZE", str(size)), *ON_FEW_PIXELS)
        script_of_size = edit(script, tmp_path, *replace(script, *functions))
        flags = ("--epochs", "1", "--global-batch-size", str(size // 10), "--run-dir", str(size))
        command = [sys.executable, script_of_size.name, *flags]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return usage.ru_maxrss * 1024

    size = 25_600
    assert measure_peak(size) - measure_peak(100) < 1.5 * size * 64 * 64 * 4
