"""The export: it predicts what the model does, errors are reported early, a kill loses nothing."""

import os
import re
import shutil
import signal

import numpy as np
import pytest
from rendering import TASKS
from running import (
    assert_same_run,
    drop_random_states,
    environment,
    finish,
    query,
    read_numbers,
    run_script,
    start,
    train,
)
from variants import (
    RISING_LOSS,
    SMALL_IMAGES,
    replace_image_model,
    run_before_final_export,
    write_variant,
)

LONG = pytest.mark.long
FLAGS = ("--global-batch-size", "16", "--epochs", "4", "--checkpoint-every-steps", "3")
ONE_EPOCH = ("--global-batch-size", "16", "--epochs", "1")


@pytest.mark.parametrize(
    ("fault", "exit_code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        pytest.param("raise RuntimeError('a fault')", 1, marks=LONG),
    ],
    ids=["kill", "exception"],
)
def test_run_without_its_export_exports_again(
    fault, exit_code, complete_script, train_once, tmp_path
):
    run_dir = tmp_path / "run"
    code = (SMALL_IMAGES, RISING_LOSS)  # the best checkpoint is not the last
    script = write_variant(complete_script, tmp_path, *code, run_before_final_export(fault))
    assert run_script(script, *FLAGS).code == exit_code
    expected = train_once(*FLAGS, code=code)
    assert read_numbers(run_dir) == read_numbers(expected)  # with the test line
    assert not (run_dir / "export").exists()
    output = train(write_variant(complete_script, tmp_path, *code), *FLAGS)
    assert "resumed at step " in output
    assert_same_run(run_dir, expected)
    contents = query("runs.read_contents", run_dir)
    [exported] = contents["exports"]
    assert drop_random_states(exported) == drop_random_states(contents["best"]["model"])
    assert contents["best"]["step"] != contents["last"]["step"]


# Kill the process when it has written the model, before the export has its name.
DIE_WITHIN_EXPORT = """
save_model = keras.Model.save

def save_and_die(model, path, *args, **options):
    save_model(model, path, *args, **options)
    if path.parent in [run_path("export.part"), run_path("checkpoints/best/export_temp")]:
        os.kill(os.getpid(), signal.SIGKILL)

keras.Model.save = save_and_die
"""


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
def test_run_killed_within_its_export_exports_again(size, scripts, train_once, tmp_path):
    run_dir = tmp_path / "run"
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, DIE_WITHIN_EXPORT)
    assert run_script(script, *FLAGS).code == -signal.SIGKILL
    part = "checkpoints/best/export_temp" if size == "essential" else "export.part"
    assert (run_dir / part).exists()
    assert not (run_dir / "export").exists()
    output = train(write_variant(scripts[size], tmp_path, SMALL_IMAGES), *FLAGS)
    assert "resumed at step " in output
    assert_same_run(run_dir, train_once(*FLAGS, code=(SMALL_IMAGES,)))


# A SavedModel can't have functions of Python.
CALLS_PYTHON = """
def preprocess(batch, seeds, training):
    images, labels = batch
    images = tf.numpy_function(lambda x: x.astype("float32"), [images], tf.float32)
    return tf.ensure_shape(images, [None, 8, 8, 1]), labels
"""
# A lambda in a .keras file can't be loaded without trusting the file.
LAMBDA_LAYER = replace_image_model(
    "keras.layers.Lambda(lambda x: x / 16)",
    "keras.layers.Flatten()",
    "keras.layers.Dense(10)",
)
# TensorFlow's message begins with a traceback.
SERVES_OTHER_SHAPES = """
def create_serving_function(models, example):
    @tf.function(input_signature=[tf.TensorSpec([None, 5])])
    def serve(features):
        return tf.matmul(features, tf.zeros([4, 2]))

    return serve
"""
# Keras loads a .keras file of this model without the weights, and without an error.
BUILD_WITHOUT_WEIGHTS = """
@keras.saving.register_keras_serializable()
class Classifier(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(10)

    def build(self, shape):
        self.built = True

    def call(self, images):
        return self.dense(self.flatten(images))


def create_model_and_optimizer(strategy):
    with strategy.scope():
        model = Classifier()
        model(tf.zeros([1, 8, 8, 1]))
        return model, keras.optimizers.Adam()
"""


def assert_reported_twice(output, message):
    """Assert that an output has a message before the first epoch, and again at the end."""
    lines = output.splitlines()
    [began] = [number for number, line in enumerate(lines) if line.startswith("epoch ")]
    first, second = [number for number, line in enumerate(lines) if message in line]
    assert first < began < second


@pytest.mark.parametrize(
    ("code", "what", "reason", "written"),
    [
        (CALLS_PYTHON, "a SavedModel", "runs Python", {"model.keras"}),
        (LAMBDA_LAYER, "model.keras", "unsafe_deserialization", {"saved_model.pb"}),
        pytest.param(
            SERVES_OTHER_SHAPES,
            "a SavedModel",
            "Dimensions must be equal, but are 5 and 4",
            {"model.keras"},
            marks=LONG,
        ),
        pytest.param(
            BUILD_WITHOUT_WEIGHTS,
            "model.keras",
            "was expecting 0 weights",
            {"saved_model.pb"},
            marks=LONG,
        ),
    ],
    ids=["Python", "Lambda", "shapes", "weights"],
)
def test_export_errors_are_reported_at_startup(
    code, what, reason, written, complete_script, tmp_path
):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, code)
    output = train(script, *ONE_EPOCH)
    assert_reported_twice(output, f"can't be written as {what}")
    assert reason in output
    run_dir = tmp_path / "run"
    assert read_numbers(run_dir)[-1]["split"] == "test"
    assert written <= set(os.listdir(run_dir / "export"))
    if what == "a SavedModel":
        assert "saved_model.pb" not in os.listdir(run_dir / "export")
    else:
        assert "is finished" in train(script, *ONE_EPOCH)


@pytest.mark.long
def test_finished_run_exports_when_its_serving_function_is_repaired(complete_script, tmp_path):
    run_dir = tmp_path / "run"
    train(write_variant(complete_script, tmp_path, SMALL_IMAGES, SERVES_OTHER_SHAPES), *ONE_EPOCH)
    tested = read_numbers(run_dir)[-1]
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    output = train(script, *ONE_EPOCH)
    assert "resumed at step" in output
    assert "export: " not in output
    assert (run_dir / "export" / "saved_model.pb").exists()
    assert read_numbers(run_dir)[-1] == tested
    assert "is finished" in train(script, *ONE_EPOCH)


# Only `preprocess` uses the table: no model has it as an attribute.
USES_LOOKUP_TABLE = """
@functools.cache
def create_lookup():
    with tf.init_scope():
        return keras.layers.IntegerLookup(vocabulary=[*range(17)])


def preprocess(batch, seeds, training):
    images, labels = batch
    return tf.cast(create_lookup()(images), tf.float32), labels
"""


# Libraries keep such proxies. The export looks for lookup tables among all objects.
HAS_DEAD_PROXY = """
import weakref

sys.dead_proxy = weakref.proxy(set())
"""


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
def test_export_has_the_lookup_table_of_preprocess(size, scripts, tmp_path):
    codes = (SMALL_IMAGES, USES_LOOKUP_TABLE, HAS_DEAD_PROXY)
    script = write_variant(scripts[size], tmp_path, *codes)
    train(script, *ONE_EPOCH)
    served, expected = query("runs.predict_first_examples", tmp_path / "run")
    np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)


# The function is the first to use the table.
SERVES_A_LOOKUP_TABLE = """
@functools.cache
def create_names():
    with tf.init_scope():
        return keras.layers.StringLookup(
            vocabulary=[str(i) for i in range(10)], num_oov_indices=0, invert=True
        )


def create_serving_function(models, example):
    names = create_names()

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1])])
    def name(images):
        return names(tf.argmax(models[0](images, training=False), axis=-1))

    return name
"""


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
def test_export_has_the_lookup_table_of_the_serving_function(size, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, SERVES_A_LOOKUP_TABLE)
    assert "export: " not in train(script, *ONE_EPOCH)
    names = query("runs.serve_names", tmp_path / "run")
    assert len(names) == 2
    assert all(name.isdigit() for name in names)


ANY_SIZE = replace_image_model(
    "keras.layers.Rescaling(1 / 16)",
    "keras.layers.Conv2D(8, 3)",
    "keras.layers.GlobalAveragePooling2D()",
    "keras.layers.Dense(10)",
).replace("[8, 8, 1]", "[None, None, 1]")
RESIZES = """
def preprocess(batch, seeds, training):
    images, labels = batch
    return tf.image.resize(images[:, :, :6], [16, 16]), labels
"""
CUTS = """
def fetch(batch):
    images, labels = batch
    return images[..., 0], labels


def preprocess(batch, seeds, training):
    images, labels = batch
    return images[..., None], labels
"""


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
@pytest.mark.parametrize(
    ("codes", "shape"),
    [
        ([ANY_SIZE], (None, None, None, 1)),
        ([ANY_SIZE, RESIZES], (None, None, None, 1)),
        pytest.param([ANY_SIZE, CUTS], (None, 8, 8), marks=LONG),
        pytest.param([], (None, 8, 8, 1), marks=LONG),
        pytest.param(
            [RESIZES, ANY_SIZE.replace("[None, None, 1]", "[16, 16, 1]")],
            (None, 8, 8, 1),
            marks=LONG,
        ),
    ],
    ids=["any", "resized", "another rank", "fixed", "fixed and resized"],
)
def test_export_keeps_the_sizes_that_the_model_leaves_open(codes, shape, size, scripts, tmp_path):
    train(write_variant(scripts[size], tmp_path, SMALL_IMAGES, *codes), *ONE_EPOCH)
    run_dir = tmp_path / "run"
    assert query("runs.get_served_shape", run_dir) == list(shape)
    if codes == [ANY_SIZE]:
        served, expected = query("runs.predict_images", run_dir, [2, 12, 9, 1])
        np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)


# As the random features of keras.io's neural decision forests.
DRAWS_CONSTANTS = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        images = keras.Input([8, 8, 1])
        features = keras.layers.Flatten()(images) / 16
        features = keras.ops.matmul(features, np.random.normal(size=[64, 16]).astype("float32"))
        model = keras.Model(images, keras.layers.Dense(10)(features))
        return model, Adam(config.learning_rate)
"""


# This hook draws, too, so the model must be created first, as it is in the export.
DRAWING_LOSS = """
def create_loss_objects(strategy):
    np.random.normal()
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
"""


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
@pytest.mark.parametrize("code", [DRAWS_CONSTANTS, DRAWS_CONSTANTS + DRAWING_LOSS])
def test_export_has_the_constants_that_a_hook_draws(code, size, scripts, tmp_path):
    train(write_variant(scripts[size], tmp_path, code), *ONE_EPOCH)
    run_dir = tmp_path / "run"
    [exports] = query("runs.evaluate_exports", run_dir)
    tested = read_numbers(run_dir)[-1]
    for splits in exports.values():
        for name in ("loss", "accuracy"):
            assert splits["test"][name] == pytest.approx(tested[name], rel=1e-5)


@pytest.mark.long
def test_model_of_the_export_is_created_on_the_cpu(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    devices = query("runs.list_export_devices", script, tmp_path)
    assert {"model.keras", "saved_model.pb"} <= set(os.listdir(tmp_path / "export"))
    assert len(devices) >= 6
    assert {device.rpartition("/device:")[2] for device in devices} == {"CPU:0"}


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_example_of_the_readme_predicts(task, projects, first_runs, tmp_path):
    readme = (projects[task] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    [code] = [block for block in blocks if "export" in block]
    # Only the export is copied: it needs no train.py.
    shutil.copytree(first_runs[task] / "export", tmp_path / "run" / "export")
    example = tmp_path / "example.py"
    example.write_text(code, encoding="utf-8")
    outcome = finish(start(example, env=environment(TF_CPP_MIN_LOG_LEVEL="3")))
    assert outcome.code == 0, outcome.errors
    assert "shape=(2," in outcome.output


# Features that depend on the labels, for each example.
PAIRS = """
@wraps_original
def preprocess(original, batch, seeds, training):
    images, labels = original(batch, seeds, training)

    def add_label(pair):
        image, label = pair
        return tf.cast(image, tf.float32) + 1e-6 * tf.cast(label, tf.float32)

    return tf.map_fn(add_label, (images, labels), fn_output_signature=tf.float32), labels
"""


def test_exported_function_has_a_label_for_each_example(essential_script, tmp_path):
    train(write_variant(essential_script, tmp_path, SMALL_IMAGES, PAIRS), *ONE_EPOCH)
    # `serve` gets no labels. It uses the label of one example, which changes the images by 1e-6.
    served, expected = query("runs.predict_first_examples", tmp_path / "run")
    np.testing.assert_allclose(served, expected, rtol=1e-3, atol=1e-4)
