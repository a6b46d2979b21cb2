"""Hooks of users: several models, layers of one name, other structures of examples, large data."""

import os
import subprocess
import sys

import pytest
from rendering import SIZES
from running import (
    WORKERS,
    assert_close,
    assert_fails,
    assert_same_run,
    assert_succeeded,
    drop_random_states,
    environment,
    finish,
    finish_all,
    flags_of,
    flatten,
    fork,
    query,
    read_numbers,
    read_split,
    run_python,
    run_script,
    shape_of,
    start,
    start_workers,
    train,
    wait_until,
)
from variants import (
    MASK,
    SMALL_IMAGES,
    kill_after_log,
    replace_image_model,
    use_optimizer,
    write_variant,
)

LONG = pytest.mark.long
FLAGS = ("--global-batch-size", "16", "--epochs", "4", "--checkpoint-every-steps", "3")


@pytest.fixture
def resume_killed(complete_script, tmp_path):
    """Return a function that trains a variant, with a kill in its third epoch of four.

    It returns the run's folder.
    """

    def train_twice(code, *flags):
        killed = write_variant(complete_script, tmp_path, *code, kill_after_log(24))
        outcome = run_script(killed, *flags)
        assert (outcome.code, outcome.errors) == (-9, "")
        output = train(write_variant(complete_script, tmp_path, *code), *flags)
        assert "resumed at step " in output
        return tmp_path / "run"

    return train_twice


def find_result(output):
    """Return the result in an output's test line."""
    [line] = [line for line in output.splitlines() if line.startswith("test ")]
    return line.partition("  of ")[0]


def assert_evaluation_repeats_the_test(run_dir, expected, *flags):
    """Assert that --mode evaluate prints what an undisturbed run has printed of its test."""
    script = run_dir.parent / "train.py"
    output = train(script, "--mode", "evaluate", *FLAGS[:2], *flags)
    expected_output = (expected.parent / "output").read_text(encoding="utf-8")
    assert find_result(output) == find_result(expected_output)


RANDOM_MASK = MASK + replace_image_model(
    "keras.layers.Flatten()", "keras.layers.Dense(10)", "Mask()"
)


@pytest.mark.parametrize(
    "kind",
    ["essential", *(pytest.param(kind, marks=LONG) for kind in ("complete", "parameter_server"))],
)
def test_evaluation_draws_the_constants_of_the_run(kind, all_scripts, tmp_path):
    script = write_variant(all_scripts[kind], tmp_path, SMALL_IMAGES, RANDOM_MASK)
    flags = ("--global-batch-size", "16", "--epochs", "1")
    output = train(script, *flags, "--seed", "5")
    assert find_result(train(script, "--mode", "evaluate", *flags)) == find_result(output)


def test_continuous_evaluation_draws_the_constants_of_the_run(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, RANDOM_MASK)
    flags = ("--global-batch-size", "16", "--epochs", "1")
    train(script, *flags, "--seed", "5")
    train(script, "--mode", "continuous_evaluate", *flags)
    [expected] = read_split(tmp_path / "run", "validation")
    [line] = read_split(tmp_path / "run" / "evaluator", "validation")
    assert line["loss"] == expected["loss"]


# An evaluator writes a file when it starts, and must not call `adapt`.
STARTS_FIRST = """
@wraps_original
def create_datasets(original):
    if config.mode == "continuous_evaluate":
        Path("started").touch()
    return original()


def adapt(train):
    return {"mode": config.mode}


@wraps_original
def create_loss_objects(original, strategy):
    assert adapted == {"mode": "train"}
    return original(strategy)
"""


def test_evaluator_that_starts_before_the_run_draws_its_constants(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, RANDOM_MASK, STARTS_FIRST)
    flags = ("--global-batch-size", "16", "--epochs", "1")
    evaluator = fork(script, "--mode", "continuous_evaluate", *flags)
    wait_until(lambda: (tmp_path / "started").exists(), evaluator)
    train(script, *flags, "--seed", "5")
    outcome = finish(evaluator, timeout=60)
    assert (outcome.code, outcome.errors) == (0, "")
    assert "run is finished" in outcome.output
    [expected] = read_split(tmp_path / "run", "validation")
    [line] = read_split(tmp_path / "run" / "evaluator", "validation")
    assert line["loss"] == expected["loss"]


RETURNS_A_NUMBER = """
class Rate(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.001
""" + use_optimizer("Adam(Rate())")


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
@pytest.mark.parametrize("replicas", ["1", pytest.param("2", marks=LONG)])
@pytest.mark.parametrize("code", [use_optimizer("Adam(lambda: 0.001)"), RETURNS_A_NUMBER])
def test_learning_rate_may_be_a_python_number(code, replicas, size, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, code)
    train(script, "--global-batch-size", "16", "--epochs", "1", "--replicas", replicas)
    assert {line["learning_rate"] for line in read_split(tmp_path / "run", "train")} == {0.001}


def assert_exports_agree(run_dir):
    """Assert that the SavedModel and model.keras predict the same."""
    saved_model, keras_model = query("runs.predict_first_examples", run_dir)
    assert flatten(saved_model) == pytest.approx(
        flatten(keras_model),
        rel=1e-4,
        abs=1e-6,
    )


def assert_learned(run_dir, share):
    """Assert that the training loss fell to a share of its first value."""
    lines = read_split(run_dir, "train")
    assert lines[-1]["loss"] < share * lines[0]["loss"]


# --------------------------------------------------------------------------------------------------
# Several models and optimizers
# --------------------------------------------------------------------------------------------------

# A GAN: the generator restores digits of which half the pixels were dropped.
GAN = """
def preprocess(batch, seeds, training):
    images = tf.cast(batch[0], tf.float32)
    return images, images / 16


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
        optimizers = Adam(2e-3), keras.optimizers.Adam(1e-3)
    return (generator, discriminator), optimizers


def create_metrics(strategy):
    def create():
        return [keras.metrics.MeanAbsoluteError(name="error")]

    with strategy.scope():
        return create(), create(), create()


def compute_losses(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions), axis=[1, 2, 3])


def compute_adversarial_losses(real, fake):
    fooling = tf.nn.softplus(-fake)
    telling = tf.nn.softplus(-real) + tf.nn.softplus(fake)
    return fooling[:, 0], telling[:, 0]


def compute_gradients(batch):
    features, labels, sample_weight = batch
    generator, discriminator = model
    generator_optimizer, discriminator_optimizer = optimizer
    with tf.GradientTape(persistent=True) as tape:
        images = generator(features, training=True)
        real = discriminator(labels, training=True)
        fake = discriminator(images, training=True)
        loss = compute_loss(labels, images, sample_weight)
        fooling, telling = compute_adversarial_losses(real, fake)
        size = GLOBAL_BATCH_SIZE
        fooling = tf.nn.compute_average_loss(fooling, sample_weight, global_batch_size=size)
        telling = tf.nn.compute_average_loss(telling, sample_weight, global_batch_size=size)
        generator_loss = generator_optimizer.scale_loss(loss + 0.01 * fooling)
        discriminator_loss = discriminator_optimizer.scale_loss(telling)
    update_metrics(train_metrics, labels, images, sample_weight)
    return loss, (
        tape.gradient(generator_loss, generator.trainable_variables),
        tape.gradient(discriminator_loss, discriminator.trainable_variables),
    )


def train_step(batch):
    loss, gradients = compute_gradients(batch)
    for each, its_optimizer, its_gradients in zip(model, optimizer, gradients, strict=True):
        update(its_optimizer, its_gradients, each.trainable_variables)
    return tf.stack([loss * config.global_batch_size, tf.reduce_sum(batch[-1])])


def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    predictions = model[0](features, training=False)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions)
    return tf.stack([tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)])
"""
# The shapes of the kernels and biases of each model, in order.
GENERATOR = [[64, 32], [32], [32, 64], [64]]
DISCRIMINATOR = [[64, 16], [16], [16, 1], [1]]
EMA_FLAGS = (*FLAGS, "--ema-momentum", "0.9")


@pytest.mark.parametrize(
    "replicas",
    [1, pytest.param(2, marks=LONG)],
)
def test_killed_gan_is_bit_identical(replicas, resume_killed, train_once):
    code = (SMALL_IMAGES, GAN)
    flags = (*EMA_FLAGS, *flags_of(replicas))
    expected = train_once(*flags, code=code)
    run_dir = resume_killed(code, *flags)
    assert_same_run(run_dir, expected)
    assert_learned(run_dir, 0.8)
    assert_evaluation_repeats_the_test(run_dir, expected, *flags_of(replicas))


def split_slots(variables):
    """Return the variables of the optimizers of generator and discriminator.

    Each has its step, its learning rate, the EMA of four weights, and two moments of each.
    """
    assert len(variables) == 2 * (2 + 4 + 8)
    return variables[:14], variables[14:]


def shapes_of_slots(weights):
    """Return the shapes of an optimizer's variables, given the shapes of its weights."""
    moments = [shape for shape in weights for _ in range(2)]
    return [[], [], *weights, *moments]


def test_checkpoint_of_a_gan_has_both_models_and_optimizers(train_once):
    last = query("runs.read_contents", train_once(*EMA_FLAGS, code=(SMALL_IMAGES, GAN)))["last"]
    weights = drop_random_states(last["model"])
    assert [shape_of(weight) for weight in weights] == GENERATOR + DISCRIMINATOR
    assert len(last["model"]) == len(weights) + 2  # the random state of each Dropout
    generator, discriminator = split_slots(last["optimizer"])
    assert [shape_of(slot) for slot in generator] == shapes_of_slots(GENERATOR)
    assert [shape_of(slot) for slot in discriminator] == shapes_of_slots(DISCRIMINATOR)
    assert all(any(flatten(slot)) for slot in last["optimizer"])


def test_export_of_a_gan_has_the_ema_of_both_models(train_once):
    run_dir = train_once(*EMA_FLAGS, code=(SMALL_IMAGES, GAN))
    contents = query("runs.read_contents", run_dir)
    last = contents["last"]
    best = contents["best"]
    generator, discriminator = split_slots(last["optimizer"])
    averages = generator[2:6] + discriminator[2:6]
    # The last epoch was the best. Its checkpoint and the export have the averages.
    assert best["step"] == last["step"] == [32]
    assert drop_random_states(best["model"]) == averages
    assert drop_random_states(last["model"]) != averages
    assert (run_dir / "export" / "model_2.keras").is_file()
    exported = [drop_random_states(variables) for variables in contents["exports"]]
    assert exported[0] + exported[1] == averages
    assert_exports_agree(run_dir)


# As in the docstring of keras.metrics.Metric.
RETURNS_VARIABLE = """
class Seen(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="seen")
        self.seen = self.add_variable([], "zeros", name="seen")

    def update_state(self, labels, predictions, sample_weight):
        self.seen.assign_add(tf.reduce_sum(sample_weight))

    def result(self):
        return self.seen


def create_metrics(strategy):
    with strategy.scope():
        return [[Seen()] for _ in range(3)]
"""


@pytest.mark.parametrize("replicas", ["1", "2"])
@pytest.mark.parametrize("size", SIZES)
def test_metric_may_return_its_variable(size, replicas, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, RETURNS_VARIABLE)
    train(script, *FLAGS, "--replicas", replicas)
    *_, tested = read_numbers(tmp_path / "run")
    assert tested["seen"] == 64


# The sum of the float16 numbers is above the largest one, 65,504.
LARGE_SUM = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, optimizer = original(strategy)
    with strategy.scope():
        teacher = keras.Sequential([keras.Input([400]), keras.layers.Dense(400, dtype="float16")])
        teacher.layers[0].kernel.assign(tf.ones([400, 400]))
    return (model, teacher), (optimizer, None)


def compute_gradients(batch):
    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model[0](features, training=True)
        loss = compute_loss(labels, predictions, sample_weight)
    gradients = tape.gradient(loss, [x.value for x in model[0].trainable_variables])
    return loss, gradients


def train_step(batch):
    loss, gradients = compute_gradients(batch)
    update(optimizer[0], gradients, model[0].trainable_variables)
    return loss * config.global_batch_size, tf.reduce_sum(batch[-1])


def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    losses = compute_losses(labels, model[0](features, training=False))
    return tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)
"""


@pytest.mark.parametrize("size", SIZES)
def test_sum_of_float16_weights_may_overflow(size, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, LARGE_SUM)
    assert "written to run" in train(script, *FLAGS[:2], "--epochs", "1")


# Without dropout: float16 numbers are not rounded float32 numbers.
STILL_GAN = GAN.replace("Dropout(0.5)", "Dropout(0.0)").replace("Dropout(0.3)", "Dropout(0.0)")


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "gan", "tolerance"),
    [
        ("--accumulation-steps 2 --replicas 2", GAN, 1e-4),
        ("--clip-norm 1e9 --replicas 2", GAN, 1e-4),
        ("--precision mixed_float16 --replicas 2", STILL_GAN, 0.05),
    ],
    ids=["accumulation", "clipping", "float16"],
)
def test_gan_has_the_same_losses_with_each_flag(flags, gan, tolerance, train_once):
    code = (SMALL_IMAGES, gan)
    plain = read_numbers(train_once(*FLAGS, code=code))
    lines = read_numbers(train_once(*FLAGS, *flags.split(), code=code))
    for line, other in zip(lines, plain, strict=True):
        for name in ("loss", "error"):
            assert line[name] == pytest.approx(other[name], rel=tolerance)


@pytest.mark.long
def test_both_losses_of_a_gan_are_scaled(train_once):
    flags = (*FLAGS, "--precision", "mixed_float16", "--replicas", "2")
    run_dir = train_once(*flags, code=(SMALL_IMAGES, GAN))
    variables = query("runs.read_contents", run_dir)["last"]["optimizer"]
    assert variables.count(2.0**15) == 2  # the initial scale


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
        return model, keras.optimizers.Adam(2e-3)
"""


def test_layers_of_one_name_are_all_saved(resume_killed, train_once):
    code = (SMALL_IMAGES, SAME_NAMES)
    expected = train_once(*FLAGS, code=code)
    run_dir = resume_killed(code, *FLAGS)
    assert_same_run(run_dir, expected)
    assert_evaluation_repeats_the_test(run_dir, expected)
    contents = query("runs.read_contents", run_dir)
    last = contents["last"]
    names = last["names"][0]
    assert len(set(names)) < len(names)
    assert len(last["model"]) == len(names) == 6 + 2
    assert len(last["optimizer"]) == 2 + 2 * 6
    assert_weights_exported(contents)


def test_layers_of_one_name_are_initialized_with_their_own_weights(
    complete_script, train_once, tmp_path
):
    initial = train_once(*FLAGS, code=(SMALL_IMAGES, SAME_NAMES))
    code = SAME_NAMES.replace("2e-3", "1e-30")  # no step changes the weights
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, code)
    train(script, *FLAGS, "--init-checkpoint", initial)
    expected = query("runs.read_contents", initial)["best"]["model"]
    loaded = query("runs.read_contents", tmp_path / "run")["best"]["model"]
    assert drop_random_states(loaded) == drop_random_states(expected)


def assert_weights_exported(contents):
    """Assert that an export has all weights of the last checkpoint, the blocks' own among them."""
    weights = drop_random_states(contents["last"]["model"])
    first, second = [weight for weight in weights if shape_of(weight) == [64, 64]]
    assert first != second
    [exported] = contents["exports"]
    assert drop_random_states(exported) == weights


# --------------------------------------------------------------------------------------------------
# Structures of examples
# --------------------------------------------------------------------------------------------------

# An autoencoder, whose examples have no labels and whose log has no metrics.
NO_LABELS = """
def create_datasets():
    from sklearn.datasets import load_digits

    images = load_digits(return_X_y=True)[0].reshape(-1, 8, 8, 1).astype("uint8")
    splits = np.split(images, [128, 192])
    return [tf.data.Dataset.from_tensor_slices((split,)) for split in splits]


def preprocess(batch, seeds, training):
    (images,) = batch
    return (tf.cast(images, tf.float32) / 16,)


def create_model_and_optimizer(strategy):
    with strategy.scope():
        images = keras.Input([8, 8, 1])
        code = keras.layers.Dense(8, activation="silu")(keras.layers.Flatten()(images))
        code = keras.layers.Dropout(0.1)(code)
        decoded = keras.layers.Reshape([8, 8, 1])(keras.layers.Dense(64)(code))
        model = keras.Model(images, (images, decoded))
        return model, keras.optimizers.Adam(2e-3)


def create_metrics(strategy):
    return [], [], []


def compute_losses(labels, predictions):
    assert labels is None
    images, decoded = predictions
    return tf.reduce_mean(tf.square(images - decoded), axis=[1, 2, 3])
"""
# Dicts of features, labels and predictions.
DICTS = """
def preprocess(batch, seeds, training):
    images, labels = batch
    return {"image": tf.cast(images, tf.float32)}, {"digit": labels, "is odd": labels % 2}


def create_model_and_optimizer(strategy):
    with strategy.scope():
        images = keras.Input([8, 8, 1], name="image")
        code = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(images))
        code = keras.layers.Dropout(0.1)(keras.layers.Dense(32, activation="silu")(code))
        outputs = {"digit": keras.layers.Dense(10)(code), "is odd": keras.layers.Dense(2)(code)}
        model = keras.Model({"image": images}, outputs)
        return model, keras.optimizers.Adam(2e-3)


def compute_losses(labels, predictions):
    return tf.add_n([loss_object(labels[name], predictions[name]) for name in labels])


def update_metrics(metrics, labels, predictions, sample_weight):
    for metric in metrics:
        metric.update_state(labels["is odd"], predictions["is odd"], sample_weight)
"""
TWO_REPLICAS = (*FLAGS, "--replicas", "2")


@pytest.mark.parametrize(
    ("code", "metrics"),
    [
        ((NO_LABELS,), set()),
        pytest.param((SMALL_IMAGES, DICTS), {"accuracy"}, marks=LONG),
    ],
    ids=["no labels", "dicts"],
)
def test_killed_run_with_other_structures_is_bit_identical(
    code, metrics, resume_killed, train_once
):
    expected = train_once(*TWO_REPLICAS, code=code)
    assert set(read_numbers(expected)[-1]) == {
        "step",
        "epoch",
        "split",
        "loss",
        *metrics,
    }
    assert_learned(expected, 0.95)
    run_dir = resume_killed(code, *TWO_REPLICAS)
    assert_same_run(run_dir, expected)


# A label above 8 makes a batch longer.
PADS_TO_THE_BATCH = """
def preprocess(batch, seeds, training):
    images, labels = batch
    height = tf.where(tf.reduce_max(labels) > 8, 8, 7)
    return tf.cast(images[:, :height], tf.float32), labels
"""
ANY_HEIGHT = replace_image_model(
    "keras.layers.Conv2D(8, 3)",
    "keras.layers.GlobalAveragePooling2D()",
    "keras.layers.Dense(10)",
).replace("[8, 8, 1]", "[None, 8, 1]")


@pytest.mark.long
def test_accumulation_takes_lengths_that_differ_between_batches(train_once):
    code = (PADS_TO_THE_BATCH, ANY_HEIGHT)
    whole = read_numbers(train_once(*FLAGS, code=code))
    parts = read_numbers(train_once(*FLAGS, "--accumulation-steps", "2", code=code))
    assert_close(parts, whole, rel=1e-4, flips=1)


@pytest.mark.long
def test_accumulation_takes_examples_without_labels(train_once):
    whole = read_numbers(train_once(*TWO_REPLICAS, code=(NO_LABELS,)))
    parts = read_numbers(train_once(*FLAGS, "--accumulation-steps", "2", code=(NO_LABELS,)))
    assert parts[-1]["loss"] == pytest.approx(
        whole[-1]["loss"],
        rel=0.3,
    )


def test_export_predicts_without_labels(train_once):
    assert_exports_agree(train_once(*TWO_REPLICAS, code=(NO_LABELS,)))


@pytest.mark.long
def test_export_predicts_dicts(train_once):
    run_dir = train_once(*TWO_REPLICAS, code=(SMALL_IMAGES, DICTS))
    saved_model, keras_model = query("runs.predict_first_examples", run_dir)
    assert sorted(saved_model) == sorted(keras_model) == ["digit", "is odd"]
    for name, values in saved_model.items():
        assert shape_of(values)[0] == 5
        expected = flatten(keras_model[name])
        assert flatten(values) == pytest.approx(expected, rel=1e-4, abs=1e-6)


# --------------------------------------------------------------------------------------------------
# Large data
# --------------------------------------------------------------------------------------------------

# Examples that are created one by one: of a NumPy array, TensorFlow has three copies for a moment
# before train.py reads any.
CREATED_ONE_BY_ONE = """
def create_datasets():
    def create(i):
        return tf.fill([64, 64, 1], tf.cast(i, tf.float32)), tf.cast(i % 10, tf.int32)

    return [tf.data.Dataset.range(size).map(create) for size in (SIZE, 64, 64)]


def preprocess(batch, seeds, training):
    images, labels = batch
    return images[:, ::8, ::8], labels


def create_model_and_optimizer(strategy):
    with strategy.scope():
        layers = [keras.Input([8, 8, 1]), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential(layers), keras.optimizers.Adam(2e-3)
"""


def measure_peak(script, folder, size):
    """Return the largest memory of a run with a number of examples, in bytes."""
    folder.mkdir()
    script = write_variant(script, folder, CREATED_ONE_BY_ONE.replace("SIZE", str(size)))
    flags = ("--epochs", "1", "--global-batch-size", str(size // 10))
    process = subprocess.Popen(
        [sys.executable, script.name, *flags],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


@pytest.mark.long
def test_data_are_in_memory_once(complete_script, tmp_path):
    size = 25_600
    few = measure_peak(complete_script, tmp_path / "few", 100)
    many = measure_peak(complete_script, tmp_path / "many", size)
    assert many - few < 1.5 * size * 64 * 64 * 4


# --------------------------------------------------------------------------------------------------
# Errors in hooks
# --------------------------------------------------------------------------------------------------

# As a file system in the cloud raises it.
UNAVAILABLE_DATA = """
def create_datasets():
    raise tf.errors.UnavailableError(None, None, "no such bucket")
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["essential", "complete", "parameter_server"])
def test_error_of_a_remote_file_system_keeps_its_traceback(kind, all_scripts, tmp_path):
    outcome = run_script(write_variant(all_scripts[kind], tmp_path, UNAVAILABLE_DATA))
    assert outcome.code == 1
    assert "Traceback" in outcome.errors
    assert "no such bucket" in outcome.errors


# An index has no gradient, so no weight of the first layer gets one.
WITHOUT_GRADIENT = replace_image_model(
    "keras.layers.Flatten()",
    "keras.layers.Dense(3)",
    "keras.layers.Rescaling(0.0)",
    "keras.layers.Embedding(2, 4)",
    "keras.layers.Flatten()",
    "keras.layers.Dense(10)",
)


def test_weights_without_a_gradient_are_allowed(essential_script, tmp_path):
    script = write_variant(essential_script, tmp_path, SMALL_IMAGES, WITHOUT_GRADIENT)
    train(script, "--epochs", "1", "--replicas", "2")


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
@pytest.mark.parametrize(
    "setting",
    [
        "gradient_accumulation_steps=2",
        "use_ema=True, ema_overwrite_frequency=2",
        "global_clipnorm=1.0",
        "clipnorm=1.0",
        "clipvalue=0.1",
    ],
)
def test_settings_of_an_optimizer_for_one_replica(setting, size, scripts, tmp_path):
    code = use_optimizer(f"Adam(learning_rate, {setting})")
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, code)
    train(script, "--epochs", "1")
    outcome = run_script(script, *flags_of(2), "--epochs", "1", "--run-dir", "two")
    assert_fails(outcome, 2, "create_model_and_optimizer: ", setting.split(", ")[-1].split("=")[0])


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
def test_loss_scale_of_the_hook_is_rejected_where_it_is_wrong(size, scripts, tmp_path):
    """Only the first replica's overflow is found by Keras. The complete script has a flag."""
    code = use_optimizer("keras.optimizers.LossScaleOptimizer(Adam(learning_rate))")
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, code)
    replicas = "2" if size == "essential" else "1"
    outcome = run_script(script, "--replicas", replicas, "--epochs", "1", "--run-dir", "rejected")
    assert_fails(outcome, 2, "create_model_and_optimizer: ", "LossScaleOptimizer")
    if size == "essential":
        train(script, "--epochs", "1")


BUILT = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, optimizer = original(strategy)
    with strategy.scope():
        optimizer.build(model.trainable_variables)
    return model, optimizer
"""


def test_built_optimizer_is_rejected_with_an_ema(complete_script, tmp_path):
    """Keras would not create the averages, and fail in the first step."""
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, BUILT)
    outcome = run_script(script, "--epochs", "1", "--ema-momentum", "0.9")
    assert_fails(outcome, 2, "with --ema-momentum no built optimizer")
    train(script, "--epochs", "1")


WRONG_UPDATE = """
def train_step(batch):
    loss, gradients = compute_gradients(batch)
    update(optimizer, gradients[::-1], model.trainable_variables)
    return loss * config.global_batch_size, tf.reduce_sum(batch[-1])
"""


def test_error_in_an_update_is_a_traceback(complete_script, tmp_path):
    """Keras's own code has the word merge_call, as an error of TensorFlow about replicas has."""
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, WRONG_UPDATE)
    outcome = run_script(script, "--epochs", "1")
    assert outcome.code == 1
    assert "Traceback" in outcome.errors
    assert "--accumulation-steps:" not in outcome.errors


UNBUILT = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential(layers), Adam(config.learning_rate)
"""


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
def test_model_without_weights_is_named(size, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, UNBUILT)
    assert_fails(run_script(script), 2, "no weights to train; add a keras.Input")


@pytest.mark.long
def test_model_without_weights_is_named_with_initial_weights(complete_script, train_once, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, UNBUILT)
    outcome = run_script(script, "--init-checkpoint", train_once("--epochs", "2"))
    assert_fails(outcome, 2, "no weights to train; add a keras.Input")


UNEQUAL = """
def create_datasets():
    rows = tf.ragged.constant([[1.0, 2.0], [3.0]] * 64)
    splits = [tf.data.Dataset.from_tensor_slices(rows) for _ in range(3)]
    return [split.map(CONVERT) for split in splits]
"""
AS_TENSORS = UNEQUAL.replace("CONVERT", "lambda row: tf.identity(row)")
AS_ROWS = UNEQUAL.replace("CONVERT", "lambda row: tf.RaggedTensor.from_tensor(row[None])")
IN_SECOND_PIECE = AS_TENSORS.replace("[[1.0, 2.0], [3.0]] * 64", "[[1.0, 2.0]] * PIECE + [[3.0]]")
# Examples that the script copies at a time, of 513 and 515; see `load_into_memory`.
PIECES = {"essential": 512, "complete": 512 + 515 // 256}


@pytest.mark.parametrize(
    "code",
    [AS_TENSORS, AS_ROWS, IN_SECOND_PIECE],
    ids=["unequal", "ragged", "in the second piece"],
)
@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
def test_examples_of_different_shapes_are_rejected(size, code, scripts, tmp_path):
    code = code.replace("PIECE", f"{PIECES[size]}")
    outcome = run_script(write_variant(scripts[size], tmp_path, code))
    reason = "the examples of train can't be stacked; if their shapes differ, pad them, or return"
    assert_fails(outcome, 2, f"create_datasets: {reason} places")


def test_error_of_a_dataset_keeps_its_text(essential_script, tmp_path):
    code = """
def create_datasets():
    split = tf.data.Dataset.range(64).map(lambda i: tf.debugging.check_numerics(0 / i, "no zero"))
    return split, split, split
"""
    outcome = run_script(write_variant(essential_script, tmp_path, code))
    assert_fails(outcome, 2, "no zero")


WRONG_SIZE = """
def create_datasets():
    split = tf.data.Dataset.range(64)
    split = split.apply(tf.data.experimental.assert_cardinality(65))
    return split, split, split
"""


@pytest.mark.parametrize("size", SIZES)
def test_wrong_number_of_examples_is_named(size, scripts, tmp_path):
    outcome = run_script(write_variant(scripts[size], tmp_path, WRONG_SIZE))
    assert_fails(outcome, 2, "expected to contain 65 elements but contained only 64")


RAISES = """
def create_datasets():
    def generate():
        yield 1
        raise ValueError("row 1 is bad")

    split = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int32))
    split = split.apply(tf.data.experimental.assert_cardinality(64))
    return split, split, split
"""


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
def test_exception_of_a_generator_keeps_its_traceback(size, scripts, tmp_path):
    outcome = run_script(write_variant(scripts[size], tmp_path, RAISES))
    assert outcome.code == 1
    assert "in generate\n" in outcome.errors


# --------------------------------------------------------------------------------------------------
# adapt
# --------------------------------------------------------------------------------------------------

NO_RESULT = """
def adapt(train):
    pass
"""


def test_adapt_without_a_result_is_named(essential_script, tmp_path):
    outcome = run_script(write_variant(essential_script, tmp_path, NO_RESULT))
    assert outcome.code == 1
    assert "{**adapt(train)}" in outcome.errors


COUNTS_CALLS = """
def adapt(train):
    with open("calls", "a") as file:
        file.write(f"{config.worker_index}")
    return {}
"""


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_chief_alone_calls_adapt_once(size, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, SMALL_IMAGES, COUNTS_CALLS)
    for epochs in ("1", "2"):
        flags = (*FLAGS[:2], "--epochs", epochs)
        assert_succeeded(finish_all(start_workers(script, WORKERS, *flags)))
    train(script, "--mode", "evaluate", *FLAGS[:2])
    assert (tmp_path / "calls").read_text() == "0"


# The splits come one after the other.
GENERATES_SPLITS = (
    SMALL_IMAGES
    + """
@wraps_original
def create_datasets(original):
    yield from original()
"""
)


@pytest.mark.parametrize("size", [*SIZES, "parameter_server"])
def test_splits_may_come_from_a_generator(size, all_scripts, tmp_path):
    script = write_variant(all_scripts[size], tmp_path, GENERATES_SPLITS)
    assert "written to run" in train(script, *FLAGS[:2], "--epochs", "1")


# The end of a pool sends SIGTERM to a process that is still busy.
FORKS = (
    SMALL_IMAGES
    + """
import multiprocessing


@wraps_original
def create_datasets(original):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        next(pool.imap_unordered(time.sleep, [0, 60]))
    return original()
"""
)


@pytest.mark.parametrize("size", [*SIZES, "parameter_server"])
def test_signal_to_a_process_of_a_hook_does_not_end_the_run(size, all_scripts, tmp_path):
    script = write_variant(all_scripts[size], tmp_path, FORKS)
    assert "written to run" in train(script, *FLAGS[:2], "--epochs", "1")


# As a library does that limits the time of a download.
ALARM = (
    SMALL_IMAGES
    + """
@wraps_original
def create_datasets(original):
    signal.signal(signal.SIGALRM, lambda *_: print("alarm", flush=True))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    time.sleep(1)
    return original()
"""
)


@pytest.mark.parametrize("size", SIZES)
def test_signal_that_a_hook_handles_does_not_end_the_run(size, scripts, tmp_path):
    script = write_variant(scripts[size], tmp_path, ALARM)
    output = train(script, *FLAGS[:2], "--epochs", "1")
    assert "alarm" in output
    assert "written to run" in output


# The run edits its own script, when it reads the data and after an epoch: other lines follow.
EDITS_ITSELF = """
def edit_script():
    path = Path(__file__)
    path.write_text("# an edit\\n\\n\\n" + path.read_text("utf-8"), "utf-8")


@wraps_original
def create_datasets(original):
    edit_script()
    return original()


@wraps_original
def end_epoch(original, history):
    edit_script()
    return original(history)
"""


@pytest.mark.parametrize("kind", ["essential", "complete", "parameter_server"])
def test_edits_during_a_run_have_no_effect(kind, all_scripts, tmp_path):
    """The functions of the test and of the export are traced at the end."""
    runs = []
    for name, codes in {"still": (), "edited": (EDITS_ITSELF,)}.items():
        (tmp_path / name).mkdir()
        script = write_variant(all_scripts[kind], tmp_path / name, SMALL_IMAGES, *codes)
        before = script.read_text(encoding="utf-8")
        assert_succeeded([finish(start(script, *FLAGS))])  # by a relative path, as users do
        run_dir = script.parent / "run"
        assert (run_dir / "train.py").read_text(encoding="utf-8") == before
        runs.append(run_dir)
    still, edited = runs
    assert script.read_text(encoding="utf-8") != before
    assert read_numbers(edited) == read_numbers(still)
    predictions = [query("runs.predict_first_examples", run) for run in runs]
    assert predictions[0] == predictions[1]


def test_reload_reads_an_edited_script(essential_script, tmp_path):
    """As in a notebook. Otherwise, AutoGraph would read the lines of before."""
    script = write_variant(essential_script, tmp_path)
    code = (
        "import importlib, pathlib, train\n"
        "path = pathlib.Path(train.__file__)\n"
        "path.write_text('# an edit\\n' + path.read_text('utf-8'), 'utf-8')\n"
        "importlib.reload(train)\n"
        "assert train.source_lines[0] == '# an edit\\n'\n"
    )
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, cwd=script.parent, env=environment(), check=False)
    assert finished.returncode == 0


TWO_RUNS = """
import importlib, train

flags = ["--epochs", "1", "--global-batch-size", "16"]
train.main([*flags, "--run-dir", "first"])
try:
    train.main([*flags, "--run-dir", "rejected"])
except AssertionError as error:
    assert "reload" in str(error)
else:
    raise SystemExit("its graphs contain the first run's model")
importlib.reload(train)
train.main([*flags, "--learning-rate", "0.01", "--run-dir", "second"])
"""


@pytest.mark.parametrize("kind", ["essential", "complete", "parameter_server"])
def test_second_run_in_a_process_needs_a_reload(kind, all_scripts, tmp_path):
    """As in a notebook, to compare learning rates."""
    script = write_variant(all_scripts[kind], tmp_path, SMALL_IMAGES)
    run_python(TWO_RUNS, tmp_path)
    assert not (tmp_path / "rejected").exists()
    train(script, *FLAGS[:2], "--epochs", "1", "--learning-rate", "0.01", "--run-dir", "alone")
    assert read_numbers(tmp_path / "second") == read_numbers(tmp_path / "alone")
