"""The project's own tests: they pass as rendered, and report what people get wrong in the hooks.

A test plants a mistake in the train.py of a project and runs the project's tests, or those that
must find it. They must fail, with a message that names the hook and the cause.
"""

import functools
import os
import re
import signal
import subprocess
import sys

import pytest
from running import environment, run_project_tests, wait_until
from variants import (
    IMAGE_LAYERS,
    PLATEAU,
    TEACHER,
    insert_layer,
    replace_image_model,
    write_variant,
)

LONG = pytest.mark.long
HOOKS = (
    "create_datasets",
    "adapt",
    "fetch",
    "preprocess",
    "create_model_and_optimizer",
    "create_loss_objects",
    "create_metrics",
    "compute_losses",
    "compute_loss",
    "score",
    "end_epoch",
    "create_serving_function",
    "train_step",
)

# The project's tests.
REPLICAS = "results_do_not_depend_on_the_replicas[2]"
MORE_REPLICAS = "results_do_not_depend_on_the_replicas[4]"
EVALUATION = "evaluation_counts_every_example_once"
KILLED = "killed_run_resumes_bit_identical"
WORKERS = "two_workers_equal_two_replicas"
EXPORT = "export_predicts_what_the_model_predicts"
CONTRACT = "contract"


def contract_of(hook):
    return f"hook_keeps_its_contract[{hook}]"


RUN_TESTS = {REPLICAS, MORE_REPLICAS, EVALUATION, KILLED, WORKERS, EXPORT}
ALL_TESTS = {*map(contract_of, HOOKS), *RUN_TESTS}


class Report:
    """What the tests of a project reported."""

    def __init__(self, project, finished):
        self.project = project
        summary = r"(?m)^(PASSED|FAILED|ERROR) tests/test_train\.py::test_(\S+)"
        found = re.findall(summary, finished.stdout)
        self.outcomes = {name: outcome for outcome, name in found}
        self.failed = {name for outcome, name in found if outcome != "PASSED"}
        assert finished.stderr == ""
        assert finished.returncode == (1 if self.failed or not found else 0), finished.stdout
        # What a user reads about failures, up to the summary.
        self.output = finished.stdout.partition("short test summary")[0]


@pytest.fixture
def run_tests(render, tmp_path):
    """Return a function that runs the tests of a project whose train.py has more code."""

    def run(*code, only="", begin=run_project_tests, **answers):
        project = render(tmp_path, **answers)
        write_variant(project / "train.py", project, *code)
        return Report(project, begin(project, "-rA", "-k", only))

    return run


def measure_processor_time():
    """Return the processor time of the processes that this one has waited for, in seconds."""
    times = os.times()
    return times.children_user + times.children_system


def test_project_tests_pass_as_rendered(run_tests):
    start = measure_processor_time()
    report = run_tests(begin=functools.partial(run_project_tests, in_forks=False))
    assert_all_pass(report)
    assert measure_processor_time() - start < 600


# Each task and each size: hooks, steps and tests of both sizes are the same.
@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "script"),
    [
        ("text_classification", "complete"),
        ("tabular_regression", "essential"),
    ],
)
def test_project_tests_of_other_tasks_pass(task, script, run_tests):
    assert_all_pass(run_tests(task=task, script=script))


def assert_all_pass(report):
    assert set(report.outcomes) == ALL_TESTS
    assert not report.failed, report.output
    assert_lists_marks(report)


def assert_lists_marks(report):
    """Assert that a report ends with the places in train.py that are marked TODO(you)."""
    lines = (report.project / "train.py").read_text(encoding="utf-8").splitlines()
    marks = []
    for number, line in enumerate(lines, start=1):
        if "# TODO(you):" in line:
            marks.append(f"train.py:{number}: {line[line.index('TODO(you):') :]}")
    assert len(marks) > 8
    assert [line for line in report.output.splitlines() if "TODO(you): " in line] == marks
    assert "TODO(you) still in train.py" in report.output


def test_removed_marks_are_not_listed(render, tmp_path):
    project = render(tmp_path)
    script = project / "train.py"
    lines = script.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if "TODO(you): your loss" not in line]
    assert len(kept) == len(lines) - 1
    script.write_text("".join(kept), encoding="utf-8")
    finished = run_project_tests(project, "-rA", "-k", "contract and compute_losses")
    assert "your loss" not in finished.stdout
    assert "TODO(you): your data" in finished.stdout


# --------------------------------------------------------------------------------------------------
# Hooks with mistakes
# --------------------------------------------------------------------------------------------------


def return_batch(images="tf.cast(images, tf.float32)", labels="labels", before=""):
    """Return code of a `preprocess` that returns two expressions, after a statement."""
    return f"""
def preprocess(batch, seeds, training):
    images, labels = batch
    {before}
    return {images}, {labels}
"""


def augment(expression):
    """Return code of a `preprocess` that changes its images in training."""
    return f"""
def preprocess(batch, seeds, training):
    images, labels = batch
    images = tf.cast(images, tf.float32)
    if training:
        images = {expression}
    return images, labels
"""


def return_losses(expression):
    """Return code of a `compute_losses` that returns an expression of the losses."""
    return f"""
def compute_losses(labels, predictions):
    losses = loss_object(labels, predictions)
    return {expression}
"""


def return_loss(expression):
    """Return code of a `compute_loss` that returns an expression of the losses."""
    return f"""
def compute_loss(labels, predictions, sample_weight):
    losses = compute_losses(labels, predictions)
    return {expression}
"""


def use_loss(expression):
    return f"""
def create_loss_objects(strategy):
    with strategy.scope():
        return {expression}
"""


def use_metrics(*expressions):
    return f"""
def create_metrics(strategy):
    with strategy.scope():
        return [[{", ".join(expressions)}] for _ in range(3)]
"""


def return_adapted(expression):
    return f"""
def adapt(train):
    return {expression}
"""


def use_optimizer(expression):
    return f"""
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, _ = original(strategy)
    with strategy.scope():
        return model, {expression}
"""


def change_splits(expression):
    """Return code of a `create_datasets` that changes each split."""
    return f"""
@wraps_original
def create_datasets(original):
    return [{expression} for split in original()]
"""


UPDATE_METRICS = "update_metrics(train_metrics, labels, predictions, sample_weight)"


def use_steps(unpack="features, labels, sample_weight", update=UPDATE_METRICS):
    """Return code of a `compute_gradients` that unpacks a batch and updates the metrics."""
    return f"""
def compute_gradients(batch):
    {unpack} = batch
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = compute_loss(labels, predictions, sample_weight)
        scaled_loss = optimizer.scale_loss(loss)
    {update}
    weights = model.trainable_variables
    return loss, tape.gradient(scaled_loss, weights, unconnected_gradients="zero")
"""


def end_model_with(*layers):
    """Return code of the image model with other layers at its end."""
    return replace_image_model(*IMAGE_LAYERS, *layers)


ACCURACY = 'keras.metrics.SparseCategoricalAccuracy(name="accuracy")'
MEAN_METRIC = use_metrics('keras.metrics.MeanAbsoluteError(name="error")')
PLAIN_MODEL = end_model_with("keras.layers.Dense(10)")
SOFTMAX = 'keras.layers.Dense(10, activation="softmax")'
USES_PROBABILITIES = use_loss('keras.losses.SparseCategoricalCrossentropy(reduction="none")')

# Losses that are written by hand, for labels [batch] and predictions [batch, 1] or the reverse.
SQUARES = use_loss("lambda labels, x: tf.reduce_mean(tf.square(labels - x), axis=-1)")
PAIRS = use_loss("lambda labels, x: tf.square(labels - x)")

# A model with a class of its own, which doesn't use one of its layers.
FORGETFUL = """
class Forgetful(keras.Model):
    def __init__(self):
        super().__init__()
        self.used = keras.layers.Dense(10)
        self.unused = keras.layers.Dense(5, name="forgotten")
        self.unused.build([None, 64])

    def call(self, inputs):
        return self.used(keras.layers.Flatten()(inputs))


def create_model_and_optimizer(strategy):
    with strategy.scope():
        model = Forgetful()
        model(tf.zeros([1, 8, 8, 1]))
        return model, keras.optimizers.Adam(2e-3)
"""

# A metric that creates a variable late, as keras.metrics.R2Score and F1Score do.
LATE_METRIC = f"""
class LateAccuracy(keras.metrics.SparseCategoricalAccuracy):
    late = None

    def update_state(self, *args):
        self.late = self.late or self.add_variable((), "zeros", name="late")
        super().update_state(*args)

{use_metrics('LateAccuracy(name="accuracy")')}
"""

# A metric with one number per class, as none of Keras's own metrics is.
VECTOR_METRIC = f"""
class Each(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="each")
        self.seen = self.add_variable([10], "zeros", name="seen")

    def update_state(self, labels, predictions, sample_weight):
        weights = tf.one_hot(labels, 10) * sample_weight[:, None]
        self.seen.assign_add(tf.reduce_sum(weights, axis=0))

    def result(self):
        return tf.convert_to_tensor(self.seen)

{use_metrics("Each()")}
"""

NOISE = f"""
class Noise(keras.layers.Layer):
    def call(self, inputs, training=False):
        return inputs + tf.random.normal(tf.shape(inputs)) if training else inputs

{end_model_with("Noise()", "keras.layers.Dense(10)")}
"""

# The numbers have no effect while the scale is 0.
LATER_NOISE = f"""
class Noise(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(initializer="zeros", trainable=False, name="scale")

    def call(self, inputs, training=False):
        return inputs + self.scale * tf.random.normal(tf.shape(inputs)) if training else inputs

{end_model_with("Noise()", "keras.layers.Dense(10)")}
"""

COUNTS_IN_PYTHON = f"""
class Decay(keras.layers.Layer):
    count = 0

    def call(self, inputs):
        self.count += 1
        return inputs * (1 - 0.5 / self.count)

{end_model_with("Decay()", "keras.layers.Dense(10)")}
"""

# A model that draws random numbers itself, and has other layers too.
DRAWING = """
class Drawing(keras.Model):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)
        self.norm = keras.layers.BatchNormalization(name="norm")
        self.flat = keras.layers.Flatten()
        self.dense = keras.layers.Dense(10)

    def call(self, inputs, training=False):
        x = self.norm(self.flat(inputs), training=training)
        if training:
            x += keras.random.normal(tf.shape(x), seed=self.seeds)
        return self.dense(x)


def create_model_and_optimizer(strategy):
    with strategy.scope():
        model = Drawing()
        model(tf.zeros([1, 8, 8, 1]))
        return model, keras.optimizers.Adam(2e-3)
"""

METRICS_OUTSIDE = f"""
def create_metrics(strategy):
    return [[{ACCURACY}] for _ in range(3)]
"""

UPDATE_WITH_SLICES = """
def train_step(batch):
    loss, gradients = compute_gradients(batch)
    optimizer.apply(gradients, model.trainable_variables)
    return tf.stack([loss * config.global_batch_size, tf.reduce_sum(batch[-1])])
"""
EMBEDDING = replace_image_model(
    "keras.layers.Embedding(17, 4)",
    "keras.layers.Flatten()",
    "keras.layers.Dense(10)",
)

UNEQUAL_EXAMPLES = """
def create_datasets():
    def generate():
        for length in range(5, 69):
            yield np.zeros([length], "float32"), 1

    spec = tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int32)
    split = tf.data.Dataset.from_generator(generate, output_signature=spec)
    split = split.apply(tf.data.experimental.assert_cardinality(64))
    return split, split, split
"""

LOSES_SHAPES = """
def fetch(batch):
    images, labels = batch
    return tf.numpy_function(lambda x: x, [images], tf.uint8), labels
"""

# A loss for each token, whose mean `compute_losses` takes.
TOKENS = """
def create_datasets():
    tokens = np.random.default_rng(0).integers(0, 20, [400, 9]).astype("int32")
    return [tf.data.Dataset.from_tensor_slices(tokens[i::3]) for i in range(3)]


def preprocess(batch, seeds, training):
    return batch[:, :-1], batch[:, 1:]


def create_model_and_optimizer(strategy):
    with strategy.scope():
        layers = [keras.layers.Embedding(20, 8), keras.layers.Dense(20)]
        return keras.Sequential([keras.Input([8], dtype="int32"), *layers]), Adam(1e-3)
""" + return_losses("tf.reduce_mean(losses, axis=-1)")

# A layer adds the only loss. `compute_losses` returns 0.
ADDED_LOSS = f"""
@keras.saving.register_keras_serializable()
class Loss(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs

{end_model_with("keras.layers.Dense(10)", "Loss()")}
""" + return_losses("0.0 * losses")

TOKENS_WITHOUT_MEAN = TOKENS.replace("tf.reduce_mean(losses, axis=-1)", "losses")

# In training, the plain model is called on two views, in evaluation on one.
VIEWS = """
def preprocess(batch, seeds, training):
    images, labels = batch
    images = tf.cast(images, tf.float32)
    return {"one": images, "other": images} if training else images, labels


def compute_gradients(batch):
    views, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        one = model(views["one"], training=True)
        predictions = (one + model(views["other"], training=True)) / 2
        loss = compute_loss(labels, predictions, sample_weight)
    update_metrics(train_metrics, labels, predictions, sample_weight)
    return loss, tape.gradient(loss, [x.value for x in model.trainable_variables])
"""

# As in Keras's examples of image classification.
AUGMENTATION_OF_THE_MODULE = """
augmentation = keras.Sequential([keras.layers.RandomTranslation(0.1, 0.1)])
"""

# As in layers for Keras 2.
OWN_VARIABLE = """
class Scale(keras.layers.Layer):
    def build(self, shape):
        self.factor = tf.Variable(tf.ones(shape[1:]))

    def call(self, inputs):
        return inputs * self.factor
""" + end_model_with("Scale()", "keras.layers.Dense(10)")

ZERO_LOSSES = """
def compute_losses(labels, predictions):
    return tf.zeros(tf.shape(labels))


def compute_loss(labels, predictions, sample_weight):
    losses = loss_object(labels, predictions)
    return tf.nn.compute_average_loss(losses, sample_weight, GLOBAL_BATCH_SIZE)
"""

# The features of evaluation have other names than in training. Only the steps, which get a
# tuple of models, know how to call them.
TWO_STRUCTURES = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, optimizer = original(strategy)
    return (model,), (optimizer,)


def preprocess(batch, seeds, training):
    images, labels = batch
    images = tf.cast(images, tf.float32)
    return {"noisy" if training else "clean": images}, labels


def compute_gradients(batch):
    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model[0](features["noisy"], training=True)
        loss = compute_loss(labels, predictions, sample_weight)
    update_metrics(train_metrics, labels, predictions, sample_weight)
    return loss, tape.gradient(loss, model[0].trainable_variables)


def train_step(batch):
    loss, gradients = compute_gradients(batch)
    update(optimizer[0], gradients, model[0].trainable_variables)
    return tf.stack([loss * config.global_batch_size, tf.reduce_sum(batch[-1])])


def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    predictions = model[0](features["clean"], training=False)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions)
    return tf.stack([tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)])
"""


# An optimizer of the user's own, as for gradient centralization.
def use_own_optimizer(methods):
    return f"""
@keras.saving.register_keras_serializable()
class Own(keras.optimizers.SGD):
{methods}

""" + use_optimizer("Own(0.1)")


FORGETFUL_OPTIMIZER = use_own_optimizer("""
    def build(self, variables):
        super().build(variables)
        self.means = [tf.Variable(tf.zeros_like(variable.value)) for variable in variables]

    def update_step(self, gradient, variable, learning_rate):
        mean = self.means[self._get_variable_index(variable)]
        mean.assign(0.9 * mean + 0.1 * gradient)
        super().update_step(gradient - mean, variable, learning_rate)
""")
FAILING_OPTIMIZER = use_own_optimizer("""
    def update_step(self, gradient, variable, learning_rate):
        gradient = gradient / {}[variable.shape]
        super().update_step(gradient, variable, learning_rate)
""")
# The step of several models draws, as in Keras's example of AdaMatch.
DRAWS_IN_STEP = TWO_STRUCTURES.replace(
    'predictions = model[0](features["noisy"], training=True)',
    'images = features["noisy"] + tf.random.uniform([])\n'
    "        predictions = model[0](images, training=True)",
)

DRAWS_IN_TRAIN_STEP = """
@wraps_original
def train_step(original, batch):
    images, labels, sample_weight = batch
    images = tf.cast(images, tf.float32)
    return original((images + tf.random.normal(tf.shape(images)), labels, sample_weight))
"""

# The temperature of a softmax, say.
CHANGES_A_VARIABLE = """
@wraps_original
def create_loss_objects(original, strategy):
    global temperature
    temperature = tf.Variable(1.0, name="temperature")
    return original(strategy)


@wraps_original
def train_step(original, batch):
    temperature.assign(0.9 * temperature)
    return original(batch)
"""

# The center of a teacher's outputs, say.
CHANGES_A_VARIABLE_IN_THE_LOSS = """
@wraps_original
def create_loss_objects(original, strategy):
    global center
    center = tf.Variable(0.0, name="center")
    return original(strategy)


@wraps_original
def compute_loss(original, labels, predictions, sample_weight):
    loss = original(labels, predictions - center, sample_weight)
    center.assign_add(tf.reduce_mean(predictions))
    return loss
"""

SAMPLER = """
def compute_loss(labels, predictions, sample_weight):
    classes = tf.cast(labels, "int64")[:, None]
    losses = tf.nn.sampled_softmax_loss(tf.eye(10), tf.zeros(10), classes, predictions, 4, 10)
    return tf.nn.compute_average_loss(losses, sample_weight, GLOBAL_BATCH_SIZE)
"""
# The same without TensorFlow's sampler. All examples share the sampled classes.
SAMPLED = end_model_with("keras.layers.Dense(10)", "keras.layers.Dropout(0.1)") + SAMPLER.replace(
    "predictions, 4, 10)",
    """predictions, 4, 10, sampled_values=sample())""",
)
SAMPLED += """
def sample():
    classes = keras.random.randint([1, 4], 0, 10, seed=model.layers[-1].seed_generator)[0]
    batch_size = config.global_batch_size // config.replicas
    return tf.cast(classes, "int64"), tf.fill([batch_size, 1], 0.4), tf.fill([4], 0.4)
"""

# As in Keras's example of a GAN. The loss that is logged is right.
MEAN_IN_THE_GRADIENTS = """
def compute_gradients(batch):
    images, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        mean = tf.reduce_mean(compute_losses(labels, predictions))
    update_metrics(train_metrics, labels, predictions, sample_weight)
    loss = compute_loss(labels, predictions, sample_weight)
    return loss, tape.gradient(mean, model.trainable_variables)
"""
BY_SGD = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, _ = original(strategy)
    with strategy.scope():
        return model, keras.optimizers.SGD(0.1)
"""

# Such as the steps of the Forward-Forward algorithm, each with its own gradients.
OWN_STEP = """
def compute_gradients(features, labels, sample_weight):
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = compute_loss(labels, predictions, sample_weight)
    update_metrics(train_metrics, labels, predictions, sample_weight)
    return loss, tape.gradient(loss, model.trainable_variables)


def train_step(batch):
    loss, gradients = compute_gradients(*batch)
    update(optimizer, gradients, model.trainable_variables)
    return loss * config.global_batch_size, tf.reduce_sum(batch[-1])
"""
WITHOUT_GRADIENTS = OWN_STEP.replace("compute_gradients", "compute_own_gradients")
WITHOUT_GRADIENTS += "\n\ndel compute_gradients\n"
# Such as the critic of a Wasserstein GAN, which is updated several times a step.
OTHER_BATCH = OWN_STEP.replace(
    "compute_gradients(features, labels, sample_weight):\n",
    "compute_gradients(batch):\n    (features, _), labels, sample_weight = batch\n",
).replace("compute_gradients(*batch)", "compute_gradients(((batch[0], None), *batch[1:]))")

NO_UPDATE = """
def train_step(batch):
    loss, _ = compute_gradients(batch)
    return loss * config.global_batch_size, tf.reduce_sum(batch[-1])
"""

STATEFUL = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        inputs = keras.Input([8, 8, 1], config.global_batch_size)
        outputs = keras.layers.LSTM(8, stateful=True)(keras.layers.Reshape([8, 8])(inputs))
        model = keras.Model(inputs, keras.layers.Dense(10)(outputs))
        return model, Adam(config.learning_rate)
"""
BATCH_SIZE_IN_A_SHAPE = """
class Rows(keras.layers.Layer):
    def call(self, inputs):
        return keras.ops.reshape(inputs, [config.global_batch_size, 64])
""" + replace_image_model("Rows()", "keras.layers.Dense(10)")

# By name: the code, the hook that the message must name, and parts of the message.
MISTAKES = {
    "stateful-layer": (
        STATEFUL,
        "create_model_and_optimizer",
        ["lstm is stateful", "no checkpoint contains them"],
    ),
    "policy-outside-of-hooks": (
        'keras.config.set_dtype_policy("mixed_bfloat16")\n',
        "create_model_and_optimizer",
        ["train.py sets the dtype policy mixed_bfloat16 outside of its functions"],
    ),
    "batch-size-in-a-shape": (
        BATCH_SIZE_IN_A_SHAPE,
        "create_model_and_optimizer",
        ["if the shape contains the batch size, write -1 or None for it"],
    ),
    "layers-outside-of-hooks": (
        AUGMENTATION_OF_THE_MODULE,
        "create_model_and_optimizer",
        ["creates tensors or variables outside of its functions", "Look at augmentation"],
    ),
    "variable-that-keras-does-not-know": (
        OWN_VARIABLE,
        "create_model_and_optimizer",
        ["neither trains nor saves a tf.Variable of a layer: scale.factor", "self.add_weight"],
    ),
    "losses-that-are-zero": (
        ZERO_LOSSES,
        "compute_losses",
        ["the result is 0 for each example", "the first epoch counts as the best", "`score`"],
    ),
    "python-in-a-graph": (
        """
def preprocess(batch, seeds, training):
    images, labels = batch
    return images.numpy() / 16, labels
""",
        "preprocess",
        ["this runs in a graph"],
    ),
    "list-of-features": (
        """
def preprocess(batch, seeds, training):
    images, labels = batch
    return [images, images], labels
""",
        "preprocess",
        ["tf.data stacks the tensors of a list"],
    ),
    "mean-in-the-loss": (
        return_loss("tf.reduce_mean(losses)"),
        "compute_loss",
        ["takes the mean over a replica's own examples", "compute_average_loss"],
    ),
    # The first two examples have as many tokens as the other two.
    "mean-over-the-tokens-of-a-replica": (
        """
def create_datasets():
    images = tf.fill([64, 8, 8, 1], 16)
    tokens = tf.tile([9, 5, 7, 7], [16])
    return [tf.data.Dataset.from_tensor_slices((images, tokens))] * 3


def compute_loss(labels, predictions, sample_weight):
    tokens = tf.cast(labels, "float32")
    losses = tokens * compute_losses(labels, predictions)
    return tf.reduce_sum(losses) / tf.reduce_sum(tokens) / config.replicas
""",
        "compute_loss",
        ["a statistic of a replica's own examples", "divide by the sum over all replicas"],
    ),
    "unscaled-regularization": (
        return_loss(
            "tf.add_n(model.losses) + tf.nn.compute_average_loss("
            "losses, sample_weight, global_batch_size=GLOBAL_BATCH_SIZE)"
        )
        + end_model_with('keras.layers.Dense(10, kernel_regularizer="l2")'),
        "compute_loss",
        ["a regularization loss without tf.nn.scale_regularization_loss"],
    ),
    "reduced-loss": (
        use_loss("keras.losses.SparseCategoricalCrossentropy(from_logits=True)"),
        "create_loss_objects",
        ["the loss is reduced to one number", 'reduction="none"', "Dice or Tversky"],
    ),
    "mean-in-the-loss-of-a-part-of-the-batch": (
        return_loss("tf.reduce_mean(losses)")
        + TWO_STRUCTURES.replace('features["noisy"]', "features").replace(
            "compute_gradients(batch)\n", "compute_gradients((batch[0]['noisy'], *batch[1:]))\n"
        ),
        "compute_loss",
        ["takes the mean over a replica's own examples"],
    ),
    "library-that-crashes": (
        """
def create_serving_function(models, example):
    os.abort()
""",
        "create_serving_function",
        ["its check crashed; repair the other hooks first", "train.py was killed by SIGABRT"],
    ),
    "score-of-all-values": (
        """
def score(validation):
    return sum(value for value in validation.values() if not isinstance(value, str))
""",
        "score",
        ["depends on the step, the epoch or the split", "by name"],
    ),
    "loss-that-expects-probabilities": (
        USES_PROBABILITIES,
        "create_loss_objects",
        ["the loss expects probabilities", "create it with from_logits=True"],
    ),
    "losses-of-all-examples": (
        return_losses("losses + tf.reduce_mean(losses)"),
        "compute_losses",
        ["the result of an example depends on the other examples of the batch"],
    ),
    "tf-random": (
        augment("images + tf.random.normal([8, 8, 1])"),
        "preprocess",
        ["features change when it is called again with the same seeds", "not from tf.random"],
    ),
    "one-seed-for-all": (
        augment("tf.image.stateless_random_contrast(images, 0.5, 1.5, seed=seeds[0])"),
        "preprocess",
        [
            "features of an example differ between a batch of 2 and a batch of 4",
            "with its own seed",
        ],
    ),
    "unknown-size": (
        change_splits("split.filter(lambda image, label: label > 0)"),
        "create_datasets",
        [
            "the number of examples in train, validation and test is unknown",
            "assert_cardinality",
        ],
    ),
    "another-order-each-time": (
        change_splits("split.shuffle(100, seed=time.time_ns() % 10**6)"),
        "create_datasets",
        ["the order or the examples of train, validation and test change", "with a fixed seed"],
    ),
    "labels-that-broadcast": (
        return_batch(labels="tf.cast(labels, tf.float32)")
        + end_model_with("keras.layers.Dense(1)")
        + SQUARES
        + MEAN_METRIC,
        "create_loss_objects",
        ["depends on the other examples", "labels are (4,), predictions (4, 1)", "would broadcast"],
    ),
    "predictions-that-broadcast": (
        return_batch(labels="tf.cast(labels, tf.float32)[:, None]")
        + end_model_with("keras.layers.Dense(1)", "keras.layers.Reshape([])")
        + PAIRS
        + MEAN_METRIC,
        "create_loss_objects",
        [
            "the loss has shape (4, 4) for 4 examples",
            "labels are (4, 1), predictions (4,)",
            "would broadcast",
        ],
    ),
    "accumulation-in-the-optimizer": (
        use_optimizer("keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)"),
        "create_model_and_optimizer",
        ["gradient_accumulation_steps raises", "--accumulation-steps"],
    ),
    "average-that-overwrites": (
        use_optimizer("keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)"),
        "create_model_and_optimizer",
        ["ema_overwrite_frequency raises", "--ema-momentum"],
    ),
    "clipping-of-each-replica": (
        use_optimizer("keras.optimizers.Adam(0.002, global_clipnorm=1.0)"),
        "create_model_and_optimizer",
        ["global_clipnorm raises an error on several replicas", "--clip-norm"],
    ),
    "several-optimizers-in-one": (
        use_optimizer("keras.optimizers.MultiOptimizer([(Adam(0.002), model.layers)])"),
        "create_model_and_optimizer",
        ["a MultiOptimizer has no learning rate for the log"],
    ),
    "weights-of-examples-for-tokens": (
        TOKENS + use_metrics("keras.metrics.MeanIoU(20, sparse_y_pred=False, name='overlap')"),
        "train_step",
        ["fails in update_metrics", "needs a weight for each of them"],
    ),
    "losses-of-add_loss-only": (
        ADDED_LOSS,
        "compute_losses",
        ["the result is 0 for each example", "leaves out what only compute_loss or add_loss adds"],
    ),
    "unused-layer": (
        FORGETFUL,
        "create_model_and_optimizer",
        ["get no gradient", "forgotten/kernel and forgotten/bias; use their layer"],
    ),
    "gradient-that-stops": (
        end_model_with("keras.layers.Lambda(tf.stop_gradient)", "keras.layers.Dense(10)"),
        "create_model_and_optimizer",
        ["get no gradient", "conv2d", "stop_gradient"],
    ),
    "model-outside-the-scope": (
        PLAIN_MODEL.replace("with strategy.scope():", "if True:"),
        "create_model_and_optimizer",
        ["variables of the model are created outside strategy.scope()", "indent"],
    ),
    "metrics-outside-the-scope": (
        METRICS_OUTSIDE,
        "create_metrics",
        ["variables of metrics are created outside strategy.scope()", "indent"],
    ),
    "two-metrics-of-a-name": (
        use_metrics(ACCURACY, ACCURACY),
        "create_metrics",
        ["two values of a split are named 'accuracy'"],
    ),
    "metric-that-is-built-late": (
        LATE_METRIC,
        "create_metrics",
        ["the metric 'accuracy' creates variables in its first update"],
    ),
    "slices-to-the-optimizer": (
        EMBEDDING + UPDATE_WITH_SLICES,
        "train_step",
        ["the gradients of sequential/embedding/embeddings as tf.IndexedSlices", "`update`"],
    ),
    "loss-of-pixels": (
        return_batch(labels="tf.cast(images, tf.float32) / 16")
        + end_model_with("keras.layers.Dense(64)", "keras.layers.Reshape([8, 8, 1])")
        + use_loss('keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")')
        + MEAN_METRIC,
        "compute_losses",
        ["the result has shape (4, 8, 8) for 4 examples", "tf.reduce_mean(losses, axis=[1, 2])"],
    ),
    "loss-of-tokens": (
        TOKENS_WITHOUT_MEAN,
        "compute_losses",
        ["the result has shape (4, 8) for 4 examples", "tf.reduce_mean(losses, axis=[1])"],
    ),
    "losses-of-all-examples-for-views": (
        VIEWS + return_losses("losses + tf.reduce_mean(losses)"),
        "compute_losses",
        ["the result of an example depends on the other examples of the batch"],
    ),
    "mean-in-the-loss-for-views": (
        VIEWS + return_loss("tf.reduce_mean(losses)"),
        "compute_loss",
        ["takes the mean over a replica's own examples", "compute_average_loss"],
    ),
    "two-mistakes-of-a-layer": (
        NOISE.replace(
            "if training else inputs", "if training else inputs - tf.reduce_mean(inputs)"
        ),
        "create_model_and_optimizer",
        ["depends on the other examples of the batch in evaluation", "draws random numbers that"],
    ),
    "step-of-two": (
        use_steps(unpack="features, labels"),
        "train_step",
        [
            "fails in compute_gradients (train.py, line ",
            "is always (features, labels, sample_weight)",
        ],
    ),
    "unbuilt-model": (
        PLAIN_MODEL.replace("keras.Input([8, 8, 1]),", ""),
        "create_model_and_optimizer",
        ["sequential isn't built; add keras.Input"],
    ),
    "vector-for-a-metric": (
        VECTOR_METRIC,
        "create_metrics",
        ["the result of 'each' has shape (10,); return one number"],
    ),
    "float64-weights": (
        return_batch(labels="labels, tf.ones(tf.shape(labels), tf.float64)"),
        "preprocess",
        ["sample_weight is float64 of shape (4,) for 4 examples; return float32 of shape (4,)"],
    ),
    "weights-by-name": (
        return_batch(labels="labels, {x: tf.ones(tf.shape(labels)) for x in ('a', 'b')}"),
        "preprocess",
        ["each example has 2 sample weights; return one", "in compute_losses"],
    ),
    "weights-of-nothing": (
        return_batch(labels="labels, tf.fill(tf.shape(labels), float(training))"),
        "preprocess",
        ["all examples of the validation split have weight 0"],
    ),
    "python-counter-in-a-layer": (
        COUNTS_IN_PYTHON,
        "create_model_and_optimizer",
        ["or counts in Python", "count in add_weight"],
    ),
    "tf-random-in-a-layer": (
        NOISE,
        "create_model_and_optimizer",
        ["draws random numbers that no checkpoint contains", "keras.random.SeedGenerator"],
    ),
    "unequal-examples": (
        UNEQUAL_EXAMPLES,
        "create_datasets",
        ["examples have no common shape", "pad them, or return places"],
    ),
    "score-of-text": (
        "def score(validation): return f\"{validation['loss']}\"",
        "score",
        ["returns str; return a number"],
    ),
    "end_epoch-that-depends-on-its-calls": (
        """
def end_epoch(history):
    optimizer.learning_rate = 0.9 * float(optimizer.learning_rate.numpy())
""",
        "end_epoch",
        ["changes something else when it is called again with the same history", "`config`"],
    ),
    "end_epoch-that-halves-the-rate-again": (
        """
def end_epoch(history):
    losses = [line["loss"] for line in history]
    if len(losses) > 3 and min(losses[-3:]) >= min(losses[:-3]):
        optimizer.learning_rate = 0.5 * float(optimizer.learning_rate.numpy())
""",
        "end_epoch",
        ["changes something else when it is called again with the same history"],
    ),
    "end_epoch-that-freezes": (
        """
def end_epoch(history):
    model.layers[1].trainable = len(history) < 5
""",
        "end_epoch",
        ["changes which weights are trainable", "in train_step, multiply their gradients by 0"],
    ),
    "step-in-the-loss": (
        """
@wraps_original
def compute_loss(original, *arguments):
    return min(1.0, state.step / 100) * original(*arguments)
""",
        "compute_loss",
        ["depends on state.step, of which a graph keeps the value of its trace"],
    ),
    "labels-that-are-replaced-too-late": (
        """
def compute_losses(labels, predictions):
    missing = tf.range(len(labels)) == 0
    losses = tf.where(missing, np.nan, 1.0) * loss_object(labels, predictions)
    return tf.where(missing, 0.0, losses)
""",
        "compute_losses",
        ["is finite, but gradients are not", "tf.where passes on its gradient"],
    ),
    "shape-that-preprocess-loses": (
        LOSES_SHAPES.replace("def fetch(batch):", "def preprocess(batch, seeds, training):"),
        "preprocess",
        ["returns a tensor of unknown shape", "tf.ensure_shape"],
    ),
    "lookup-table-of-each-call": (
        return_batch(before="images = keras.layers.IntegerLookup(vocabulary=[*range(17)])(images)"),
        "create_serving_function",
        ["lookup table", "create it once"],
    ),
    "adapt-without-dict": (
        return_adapted("[1.0]"),
        "adapt",
        ["returns list; return a dict"],
    ),
    "adapt-with-arrays": (
        return_adapted("{'mean': np.ones(3)}"),
        "adapt",
        ["returns what JSON can't store", "array.tolist()"],
    ),
    "adapt-with-tuples": (
        return_adapted("{'mean': (1.0, 2.0)}"),
        "adapt",
        ["JSON changes its mean", "lists"],
    ),
    "adapt-with-another-result-each-time": (
        return_adapted("{'mean': time.time_ns()}"),
        "adapt",
        ["returns something else when it is called again", "fixed seed"],
    ),
    "shape-that-is-lost": (
        LOSES_SHAPES,
        "fetch",
        ["returns a tensor of unknown shape", "tf.ensure_shape"],
    ),
    "lookup-table-of-the-graph": (
        """
@functools.cache
def create_lookup():
    return keras.layers.StringLookup(vocabulary=[str(i) for i in range(10)], mask_token="")


def preprocess(batch, seeds, training):
    images, labels = batch
    return images, create_lookup()(tf.strings.as_string(labels)) - 1
""",
        "preprocess",
        ["@functools.cache, and there inside tf.init_scope()"],
    ),
    "model-that-is-built-late": (
        """
class Late(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(10)

    def build(self, shape):
        self.built = True

    def call(self, inputs, training=False):
        return self.dense(keras.ops.reshape(inputs, [-1, 64]))


@wraps_original
def create_model_and_optimizer(original, strategy):
    with strategy.scope():
        model = Late()
        model.build([None, 8, 8, 1])
        return model, Adam(1e-3)
""",
        "create_model_and_optimizer",
        ["creates variables when it is called"],
    ),
    "variables-that-checkpoints-lack": (
        FORGETFUL_OPTIMIZER,
        "create_model_and_optimizer",
        ["checkpoints don't contain Own.means", "self.add_variable_from_reference"],
    ),
    "exception-of-an-optimizer": (
        FAILING_OPTIMIZER,
        "train_step",
        ["fails in train_step (train.py, line ", " in update_step): KeyError"],
    ),
    "random-numbers-of-a-step": (
        DRAWS_IN_STEP,
        "train_step",
        ["a step or a model draws random numbers that no checkpoint contains"],
    ),
    "random-numbers-without-an-effect-at-first": (
        LATER_NOISE,
        "train_step",
        ["a step or a model draws random numbers that no checkpoint contains"],
    ),
    "random-numbers-of-train-step": (
        DRAWS_IN_TRAIN_STEP,
        "train_step",
        ["that no checkpoint contains (random_normal/RandomStandardNormal)"],
    ),
    "variable-that-a-step-changes": (
        CHANGES_A_VARIABLE,
        "train_step",
        ["changes temperature:0, which no checkpoint contains"],
    ),
    "term-that-is-0-at-first": (
        return_loss(
            "tf.nn.compute_average_loss(losses, sample_weight, GLOBAL_BATCH_SIZE)"
            " + tf.reduce_sum(model.layers[-1].bias)"
        ),
        "compute_loss",
        ["a regularization loss without tf.nn.scale_regularization_loss"],
    ),
    "metric-of-unknown-rank": (
        """
def update_metrics(metrics, labels, predictions, sample_weight):
    for metric in metrics:
        values = tf.numpy_function(lambda x: x, [labels], tf.int32)
        metric.update_state(values, predictions, sample_weight)
""",
        "train_step",
        ["set it by tf.ensure_shape"],
    ),
    "losses-that-draw": (
        return_losses("losses + keras.random.uniform([1], seed=model.layers[-2].seed_generator)"),
        "compute_losses",
        ["the result differs from call to call", "draw random numbers in compute_loss only"],
    ),
    "sampler-of-tensorflow": (
        SAMPLER,
        "train_step",
        ["draws random numbers that no checkpoint contains", "CandidateSampler"],
    ),
    "exception": (
        return_batch(before="images = tf.reshape(images, [-1, 7])"),
        "preprocess",
        ["fails (train.py, line ", "must be evenly divisible by 7"],
    ),
}


def assert_is_readable(output):
    """Assert that a report has no traceback, no values of tensors and no endless line."""
    for text in ("Traceback", "tf.Tensor", "array("):
        assert text not in output
    assert max(map(len, output.splitlines())) < 1000


SHORT_MISTAKES = ("mean-in-the-loss", "slices-to-the-optimizer")


@pytest.mark.parametrize(
    "mistake",
    [name if name in SHORT_MISTAKES else pytest.param(name, marks=LONG) for name in MISTAKES],
)
def test_contract_reports_the_hook_and_the_cause(mistake, run_tests):
    code, hook, words = MISTAKES[mistake]
    report = run_tests(code, only=CONTRACT)
    # The other hooks pass, or are skipped if this one leaves nothing to check.
    assert report.failed == {contract_of(hook)}, report.output
    lines = [line for line in report.output.splitlines() if line.startswith(f"{hook}: ")]
    for text in words:
        assert text in "\n".join(lines)
    assert_is_readable(report.output)


# --------------------------------------------------------------------------------------------------
# Mistakes that show in runs
# --------------------------------------------------------------------------------------------------


def normalize(arguments):
    """Return code of the image model with a BatchNormalization."""
    rescaling, convolution, *others = IMAGE_LAYERS
    return replace_image_model(
        rescaling,
        convolution,
        f"keras.layers.BatchNormalization({arguments})",
        *others,
        "keras.layers.Dense(10)",
    )


# A BatchNormalization behind a convolution with a bias.
# Pixels that are multiples of 1/15 are rounded. Sums of multiples of 1/16 may be exact on replicas.
IDLE_BIAS = replace_image_model(
    "keras.layers.Rescaling(1 / 15)",
    'keras.layers.Conv2D(32, 3, strides=2, padding="same")',
    "keras.layers.BatchNormalization(synchronized=True)",
    'keras.layers.Activation("silu")',
    "keras.layers.Flatten()",
    "keras.layers.Dense(10)",
)

# The bias of an attention's keys has no effect, though Adam changes it by rounding errors.
ATTENTION_AFTER_IDLE_BIAS = """
@keras.saving.register_keras_serializable()
class Attention(keras.layers.Layer):
    def build(self, shape):
        self.attention = keras.layers.MultiHeadAttention(2, 8)
        self.attention.build(shape, shape)

    def call(self, inputs):
        return self.attention(inputs, inputs)
""" + IDLE_BIAS.replace(
    "keras.layers.Flatten(),",
    "keras.layers.Reshape([16, 32]), Attention(), keras.layers.Flatten(),",
)

# On 2 replicas, an untrained accuracy differed by two examples, and the losses agreed.
FLIPS = replace_image_model(
    "keras.layers.Rescaling(1 / 16)",
    'keras.layers.Conv2D(64, 3, padding="same")',
    "keras.layers.BatchNormalization()",
    "keras.layers.ReLU()",
    'keras.layers.Conv2D(64, 3, strides=2, padding="same", activation="relu")',
    "keras.layers.GlobalAveragePooling2D()",
    'keras.layers.Dense(64, activation="silu")',
    "keras.layers.Dropout(0.3)",
    "keras.layers.Dense(10)",
    optimizer="Adam(config.learning_rate)",
)
FLIPS += """

def score(validation):
    return -validation["accuracy"]
"""

# A metric that counts updates, of which each replica has one per step.
COUNTS_UPDATES = """
class Updates(keras.metrics.Sum):
    def update_state(self, labels, predictions, sample_weight=None):
        super().update_state(0.001)

""" + use_metrics('Updates(name="updates")')

# IDLE_BIAS, with a layer that uses the mean of a replica's own examples.
CENTERED = """
class Center(keras.layers.Layer):
    def call(self, inputs, training=False):
        return inputs - keras.ops.mean(inputs, axis=0) if training else inputs
""" + IDLE_BIAS.replace("keras.layers.Flatten(),", "keras.layers.Flatten(), Center(),")

# Half of the units are always active, so a BatchNormalization cancels their biases.
ACTIVE_UNITS = replace_image_model(
    "keras.layers.Rescaling(1 / 16)",
    "keras.layers.Flatten()",
    'keras.layers.Dense(64, "relu", bias_initializer=keras.initializers.Constant([99, 0] * 32))',
    "keras.layers.BatchNormalization()",
    "keras.layers.Dense(10)",
)

# In a layer, since Keras can't call an Equalization while it builds a Sequential.
EQUALIZED = f"""
class Equalized(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.equalization = keras.layers.Equalization()

    def call(self, images):
        return self.equalization(255.0 * images) / 255.0

{replace_image_model(IMAGE_LAYERS[0], "Equalized()", *IMAGE_LAYERS[1:], "keras.layers.Dense(10)")}
"""

# The images are sequences of rows. Empty rows are masked.
MASKED = replace_image_model(
    "keras.layers.Reshape([8, 8])",
    "keras.layers.Masking()",
    "keras.layers.BatchNormalization()",
    "keras.layers.GlobalAveragePooling1D()",
    "keras.layers.Dense(10)",
)

# An evaluation whose metrics ignore the weights: they count the examples that fill the last batch.
COUNTS_PADDING = """
def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    predictions = model(features, training=False)
    update_metrics(metrics, labels, predictions, None)
    losses = compute_losses(labels, predictions)
    return tf.stack([tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)])
"""


def forget_argument(default):
    """Return code of a layer whose configuration lacks its factor, and of the default factor."""
    layer = f"""
@keras.saving.register_keras_serializable()
class Times(keras.layers.Layer):
    def __init__(self, factor{default}, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, inputs):
        return self.factor * inputs

    def get_config(self):
        return super().get_config()
"""
    return layer + end_model_with("keras.layers.Dense(10)", "Times(2.0)")


RANDOM_CONSTANT = """
@keras.saving.register_keras_serializable()
class Mask(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mask = np.random.uniform(size=10).astype("float32")

    def call(self, inputs):
        return self.mask * inputs
""" + end_model_with("keras.layers.Dense(10)", "Mask()")

# The first lines of TensorFlow's message are a heading and a traceback.
SERVES_A_MISSING_EXAMPLE = """
def create_serving_function(models, example):
    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.uint8)])
    def serve(images):
        return models[0](tf.gather(images, [9999]), training=False)

    return serve
"""

# Each replica keeps the mean of its own examples.
QUEUE = """
class Center(keras.layers.Layer):
    def build(self, shape):
        self.queue = self.add_weight(shape=shape[1:], trainable=False, name="queue")

    def call(self, inputs, training=False):
        if training:
            self.queue.assign(keras.ops.mean(inputs, axis=0))
        return inputs - self.queue
""" + PLAIN_MODEL.replace("keras.layers.Flatten(),", "keras.layers.Flatten(), Center(),")

# As a decoder that gets the target, too.
NEEDS_LABELS = """
def preprocess(batch, seeds, training):
    images, labels = batch
    return tf.concat([tf.cast(images, tf.int32), tf.tile(
        labels[:, None, None, None], [1, 8, 8, 1]
    )], axis=-1), labels
""" + PLAIN_MODEL.replace("[8, 8, 1]", "[8, 8, 2]")

# The label changes predictions by less than rounding, as with small weights.
HARDLY_NEEDS_LABELS = """
def preprocess(batch, seeds, training):
    images, labels = batch
    labels_as_pixels = tf.cast(labels[:, None, None, None], tf.float32)
    return tf.cast(images, tf.float32) + 1e-6 * labels_as_pixels, labels
"""

# No checkpoint has the variable. A resume at the end of an epoch sets it again, others don't. The
# second epoch is slow, so that the last kill comes in time.
OWN_FACTOR = """
@wraps_original
def train(original, iterator, steps):
    if state.history:
        time.sleep(0.5)
    return original(iterator, steps)


@wraps_original
def create_model_and_optimizer(original, strategy):
    global factor
    with strategy.scope():
        factor = tf.Variable(1.0, trainable=False)
    return original(strategy)


def compute_losses(labels, predictions):
    return loss_object(labels, predictions) * factor


def end_epoch(history):
    factor.assign(0.5 ** len(history))
    return False
"""

# As in Keras's example of PointNet: the matrices of all examples are multiplied with each other.
MIXING_REGULARIZER = """
@keras.saving.register_keras_serializable()
class Orthogonal(keras.Regularizer):
    def __call__(self, outputs):
        matrices = keras.ops.reshape(outputs, [-1, 3, 3])
        products = keras.ops.tensordot(matrices, matrices, axes=(2, 2))
        products = keras.ops.reshape(products, [-1, 3, 3])
        return 0.1 * keras.ops.sum(keras.ops.square(products - keras.ops.eye(3)))

    def get_config(self):
        return {}
""" + end_model_with(
    "keras.layers.Dense(9, name='matrix', activity_regularizer=Orthogonal())",
    "keras.layers.Dense(10)",
)

# A layer that draws in evaluation, too, and a step that keeps the states that this changes.
DRAWS_IN_EVALUATION = """
@keras.saving.register_keras_serializable()
class Sampling(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)


def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    predictions = model(features, training=False)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions)
    return tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)
""" + end_model_with("Sampling()", "keras.layers.Dense(10)")

SUMS_LOSSES = """
@keras.saving.register_keras_serializable()
class Shrink(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.sum(keras.ops.square(inputs)))
        return inputs
""" + end_model_with("Shrink()", "keras.layers.Dense(10)")

# Keras 3.15 divides by the batch size once more. With the initial weights, the loss is 0.
AVERAGES_ACTIVITY = """
@keras.saving.register_keras_serializable()
class MeanSquare(keras.regularizers.Regularizer):
    def __call__(self, x):
        return keras.ops.mean(keras.ops.square(x))

    def get_config(self):
        return {}
""" + end_model_with(
    'keras.layers.Dense(10, kernel_initializer="zeros", activity_regularizer=MeanSquare())'
)

# A layer that draws as many numbers for any batch.
DRAWS_FOR_NODES = """
@keras.saving.register_keras_serializable()
class Nodes(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs, training=False):
        if not training:
            return inputs
        noise = keras.random.normal([64, 10], seed=self.seeds)
        return inputs + keras.ops.mean(noise, axis=0)
""" + end_model_with("keras.layers.Dense(10)", "Nodes()")
NODES_HINT = "nodes draws random numbers for a tensor whose first dimension is not the batch"

NORMALIZING_OPTIMIZER = use_own_optimizer("""
    def apply(self, grads, trainable_variables=None):
        super().apply([g / (tf.norm(g) + 1e-6) for g in grads], trainable_variables)
""")

# RandomTranslation draws unless it is called with training=False.
FORGOTTEN_TRAINING = end_model_with("keras.layers.Dense(10)").replace(
    "keras.layers.Flatten()", "keras.layers.RandomTranslation(0.4, 0.4), keras.layers.Flatten()"
)
DRAWING_EXPORT = (
    FORGOTTEN_TRAINING
    + """
def create_serving_function(models, example):
    return tf.function(models[0], [tf.TensorSpec([None, 8, 8, 1], tf.uint8)])
"""
)
DRAWING_EVALUATION = (
    FORGOTTEN_TRAINING
    + """
def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    with keras.StatelessScope():
        predictions = model(features)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions)
    return tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)
"""
)
STYLE = """
@functools.cache
def get_style():
    with tf.init_scope():
        return tf.random.stateless_uniform([4, 8, 8, 1], [0, 0])


def compute_loss(labels, predictions, sample_weight):
    losses = compute_losses(labels, predictions)
    loss = tf.nn.compute_average_loss(losses, sample_weight, GLOBAL_BATCH_SIZE)
    return loss + tf.reduce_mean(model(get_style(), training=True)) / config.replicas
""" + replace_image_model(
    'keras.layers.Conv2D(16, 3, padding="same", activation="relu")',
    "keras.layers.Flatten()",
    "keras.layers.Dense(10)",
)
STYLE += return_batch("tf.cast(images, tf.float32) / 16")

# TensorFlow draws these numbers by rejection, so a replica can't skip the others' numbers.
TRUNCATED_NOISE = """
@keras.saving.register_keras_serializable()
class TruncatedNoise(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs, training=False):
        if not training:
            return inputs
        shape = keras.ops.shape(inputs)
        return inputs + keras.random.truncated_normal(shape, seed=self.seeds)

""" + insert_layer("TruncatedNoise()", after="Flatten")

CONCATENATED_VIEWS = """
def compute_gradients(batch):
    images, labels, sample_weight = batch
    images = tf.cast(images, tf.float32)
    with tf.GradientTape() as tape:
        one, other = tf.split(model(tf.concat([images, images], axis=0), training=True), 2)
        predictions = (one + other) / 2
        loss = compute_loss(labels, predictions, sample_weight)
    update_metrics(train_metrics, labels, predictions, sample_weight)
    return loss, tape.gradient(loss, [x.value for x in model.trainable_variables])
"""
ADJACENT_VIEWS = CONCATENATED_VIEWS.replace(
    "one, other = tf.split(model(tf.concat([images, images], axis=0), training=True), 2)",
    """views = [images, images]
        both = tf.reshape(tf.stack(views, axis=1), [-1, *views[0].shape[1:]])
        predictions = model(both, training=True)
        one, other = predictions[::2], predictions[1::2]""",
)

CLIPS_ON_REPLICAS = """
def train_step(batch):
    loss, gradients = compute_gradients(batch)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.01)
    update(optimizer, gradients, model.trainable_variables)
    return loss * config.global_batch_size, tf.reduce_sum(batch[-1])
"""

# By name: the code, the test that fails, and parts of its message.
MISTAKES_IN_RUNS = {
    "numbers-that-replicas-cannot-share": (
        TRUNCATED_NOISE,
        REPLICAS,
        ["train_step: the gradients of sequential", "random numbers that replicas can't share"],
    ),
    "states-that-evaluation-changes": (
        DRAWS_IN_EVALUATION,
        KILLED,
        ["A run that was killed and resumed differs", "called outside keras.StatelessScope()"],
    ),
    "losses-that-are-summed": (
        SUMS_LOSSES,
        REPLICAS,
        ["the loss that shrink adds for a batch is not the mean of the losses for its halves"],
    ),
    "mean-of-an-activity": (
        AVERAGES_ACTIVITY,
        REPLICAS,
        ["the loss that dense_1 adds for a batch is not the mean", "an activity regularizer"],
    ),
    "gradients-of-a-replica": (
        NORMALIZING_OPTIMIZER,
        REPLICAS,
        ["an optimizer whose `apply` changes gradients before replicas sum them"],
    ),
    "concatenated-views": (
        CONCATENATED_VIEWS,
        REPLICAS,
        ["they agree without random layers", "instead of tf.concat of two views"],
    ),
    "clipping-of-a-replica": (
        CLIPS_ON_REPLICAS,
        REPLICAS,
        ["clipping or noise of one replica's gradients", "`update_step`"],
    ),
    "equalization": (
        EQUALIZED,
        REPLICAS,
        ["create_model_and_optimizer: equalization combines the images of a replica's batch"],
    ),
    "mean-in-the-gradients": (
        MEAN_IN_THE_GRADIENTS + BY_SGD,
        REPLICAS,
        ["train_step: the gradients of sequential/", " differ on two replicas"],
    ),
    "evaluation-that-draws": (
        DRAWING_EVALUATION,
        EVALUATION,
        ["The run reports loss ", "a model is called without training=False"],
    ),
    "convolution-of-a-constant": (
        STYLE,
        WORKERS,
        ["A run of two workers differs", "copy it by tf.identity"],
    ),
    "draws-for-nodes": (
        DRAWS_FOR_NODES,
        REPLICAS,
        [
            "Likely causes, found by the checks of hooks:",
            f"create_model_and_optimizer: {NODES_HINT}",
        ],
    ),
    "regularizer-that-mixes-examples": (
        MIXING_REGULARIZER,
        REPLICAS,
        ["the loss that matrix adds for a batch is not the mean", "one value per example"],
    ),
    "layers-outside-of-hooks": (
        AUGMENTATION_OF_THE_MODULE,
        WORKERS,
        ["train.py ended with exit code 1. train.py creates tensors or variables outside of"],
    ),
    "variable-of-no-model": (
        OWN_FACTOR,
        KILLED,
        ["A run that was killed and resumed differs", "and checkpoints lack other variables"],
    ),
    "predict-in-end-epoch": (
        """
def end_epoch(history):
    if config.worker_index == 0:
        model.predict(np.zeros([4, 8, 8, 1], "float32"), verbose=0)
    return False
""",
        WORKERS,
        ["The error comes from end_epoch", "call the model instead"],
    ),
    "state-of-a-replica": (
        QUEUE,
        REPLICAS,
        ["these variables differ between replicas: sequential/center/queue"],
    ),
    "state-of-a-replica-after-a-kill": (
        QUEUE,
        KILLED,
        ["A likely cause: these variables differ between replicas: sequential/center/queue"],
    ),
    "prediction-that-needs-the-label": (
        NEEDS_LABELS,
        EXPORT,
        ["create_serving_function: predictions of the SavedModel need more than `fetch`'s first"],
    ),
    "prediction-that-hardly-needs-the-label": (
        HARDLY_NEEDS_LABELS,
        EXPORT,
        ["create_serving_function: predictions of the SavedModel need more than `fetch`'s first"],
    ),
    "statistic-of-a-replica": (
        CENTERED,
        REPLICAS,
        ["Results on 2 replicas differ", "a mean or a statistic of a replica's own examples"],
    ),
    "biases-of-active-units": (
        ACTIVE_UNITS,
        REPLICAS,
        [
            "No check of a single hook finds the cause. Possible causes:",
            "elements of sequential/dense/bias have gradients that are rounding errors",
        ],
    ),
    "normalization-with-a-mask": (
        MASKED,
        REPLICAS,
        ["batch_normalization gets a mask", "statistics of each replica's own examples"],
    ),
    "padding-that-counts": (
        COUNTS_PADDING,
        EVALUATION,
        ["The run reports accuracy ", "evaluation_step, update_metrics: sample_weight is not used"],
    ),
    "tf-random": (
        MISTAKES["tf-random"][0],
        KILLED,
        [
            "A run that was killed and resumed differs from an undisturbed one",
            "preprocess: with training=True, features change when it is called again",
        ],
    ),
    "another-order-each-time": (
        MISTAKES["another-order-each-time"][0],
        WORKERS,
        ["train.py ended with exit code 2", "create_datasets equal, for all workers"],
    ),
    "configuration-without-an-argument": (
        forget_argument("=1.0"),
        EXPORT,
        [
            "create_model_and_optimizer: model.keras in export/ and the best checkpoint predict "
            "different values",
            "get_config omits an argument",
        ],
    ),
    "random-constant-outside-of-variables": (
        RANDOM_CONSTANT,
        EXPORT,
        ["predict different values", "a random constant outside its variables"],
    ),
    "serving-function-that-fails": (
        SERVES_A_MISSING_EXAMPLE,
        EXPORT,
        [
            "create_serving_function: the SavedModel in export/ can't be loaded and called "
            "(InvalidArgumentError: indices[0] = 9999 is not in [0",
        ],
    ),
    "configuration-that-does-not-load": (
        forget_argument(""),
        EXPORT,
        ["create_model_and_optimizer: model.keras in export/ can't be loaded", "get_config"],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES_IN_RUNS)
def test_run_reports_the_hook_and_the_cause(mistake, run_tests):
    code, test, words = MISTAKES_IN_RUNS[mistake]
    report = run_tests(code, only=test)
    assert report.outcomes == {test: "FAILED"}, report.output
    for text in words:
        assert text in report.output
    assert_is_readable(report.output)


@pytest.mark.long
def test_export_that_draws_is_a_warning(run_tests):
    report = run_tests(DRAWING_EXPORT, only=EXPORT)
    assert report.outcomes == {EXPORT: "PASSED"}, report.output
    assert "predictions of the SavedModel differ from call to call" in report.output


READS_CHECKPOINT = """
def end_epoch(history):
    assert run_path("config.json").exists()
    step = tf.train.load_variable(run_path(f"checkpoints/last/ckpt-{state.step}"), STEP_NAME)
    assert step == state.step == history[-1]["step"]
    return False
""".replace("STEP_NAME", repr("step/.ATTRIBUTES/VARIABLE_VALUE"))
# In float16, the gradients of the first layer times the first loss scale overflow.
OVERFLOWS = """
def create_model_and_optimizer(strategy):
    keras.config.set_dtype_policy("mixed_float16")
    with strategy.scope():
        layers = [
            keras.layers.Rescaling(100.0),
            keras.layers.Flatten(),
            keras.layers.Dense(16),
            keras.layers.Dense(10, dtype="float32"),
        ]
        model = keras.Sequential([keras.Input([8, 8, 1]), *layers])
        return model, keras.optimizers.LossScaleOptimizer(Adam(0.01))
"""
SERVES_OTHERS = """
def create_serving_function(models, example):
    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.uint8)])
    def serve(images):
        return CODE

    return serve
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "is_warning"),
    [
        ("models[0](images[:, ::-1], training=False)", True),
        ("tf.nn.softmax(models[0](images, training=False))", False),
        ("models[0](images, training=False) * np.arange(1, 11, dtype='float32') - 5.0", False),
        ("tf.round(models[0](images, training=False))", False),
        ("tf.cast(models[0](images, training=False) > 0, tf.float32)", False),
    ],
    ids=["mirrored", "softmax", "scales", "rounded", "thresholds"],
)
def test_export_of_other_predictions_is_a_warning(code, is_warning, run_tests):
    report = run_tests(SERVES_OTHERS.replace("CODE", code), only=EXPORT)
    assert report.outcomes == {EXPORT: "PASSED"}, report.output
    assert (OTHER_ORDER in report.output) == is_warning


# A label for each row of an image.
TAGGER = """
def preprocess(batch, seeds, training):
    images, labels = batch
    return images[..., 0], tf.repeat(labels[:, None], 8, axis=1)


def create_model_and_optimizer(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input([None, 8]), keras.layers.Dense(10)])
        return model, Adam(0.01)


def compute_losses(labels, predictions):
    return tf.reduce_mean(loss_object(labels, predictions), axis=1)


def update_metrics(metrics, labels, predictions, sample_weight):
    weights = tf.ones_like(labels, tf.float32) * sample_weight[:, None]
    for metric in metrics:
        metric.update_state(labels, predictions, weights)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "is_warning"),
    [("models[0](images[..., 0])", False), ("models[0](images[:, 2:, :, 0])", True)],
    ids=["all", "shorter"],
)
def test_export_of_another_length_is_a_warning(code, is_warning, run_tests):
    report = run_tests(TAGGER + SERVES_OTHERS.replace("CODE", code), only=EXPORT)
    assert report.outcomes == {EXPORT: "PASSED"}, report.output
    assert ("predictions of the SavedModel have shape" in report.output) == is_warning


OTHER_ORDER = "the SavedModel orders classes and examples unlike the model"
ONE_NUMBER = (
    return_batch(labels="tf.cast(labels, tf.float32)[:, None]")
    + end_model_with("keras.layers.Dense(1)")
    + SQUARES
    + MEAN_METRIC
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "is_warning"),
    [
        ("models[0](images[:, ::-1], training=False)", True),
        ("tf.round(100 * models[0](images, training=False) + 5)", False),
    ],
    ids=["mirrored", "rounded"],
)
def test_export_of_another_number_is_a_warning(code, is_warning, run_tests):
    report = run_tests(ONE_NUMBER, SERVES_OTHERS.replace("CODE", code), only=EXPORT)
    assert report.outcomes == {EXPORT: "PASSED"}, report.output
    assert (OTHER_ORDER in report.output) == is_warning


@pytest.mark.long
@pytest.mark.parametrize("rows", [64, 2])
def test_many_random_numbers_of_no_batch_are_a_warning(rows, run_tests):
    # Keras's RandomGaussianBlur draws two for all examples.
    code = DRAWS_FOR_NODES.replace("[64, 10]", f"[{rows}, 10]")
    report = run_tests(code, only=CONTRACT)
    assert not report.failed, report.output
    assert (NODES_HINT in report.output) == (rows == 64)


@pytest.mark.long
def test_random_numbers_are_no_dependence_on_other_examples(run_tests):
    report = run_tests(NOISE, only=REPLICAS)
    assert report.outcomes == {REPLICAS: "FAILED"}, report.output
    assert "draws random numbers that no checkpoint contains" in report.output
    assert "depends on the other examples" not in report.output


@pytest.mark.long
def test_unsaved_variable_is_no_random_number(run_tests):
    report = run_tests(CHANGES_A_VARIABLE_IN_THE_LOSS, only=CONTRACT)
    assert report.failed == {contract_of("train_step")}, report.output
    assert "changes center:0, which no checkpoint contains" in report.output
    assert "draws random numbers" not in report.output


STOPS_ON_REPLICAS = """
def end_epoch(history):
    return config.replicas > 1
"""


@pytest.mark.long
def test_runs_that_stop_at_different_epochs_are_reported(run_tests):
    report = run_tests(STOPS_ON_REPLICAS, only=REPLICAS)
    assert report.outcomes == {REPLICAS: "FAILED"}, report.output
    assert "end_epoch: the run stopped at step 10 instead of 20" in report.output


@pytest.mark.long
def test_amplified_rounding_is_a_warning(run_tests):
    report = run_tests(IDLE_BIAS, only=REPLICAS)
    assert report.outcomes == {REPLICAS: "PASSED"}, report.output
    for text in (
        "Results on 2 replicas differ from those on 1",
        "The cause is rounding",
        "a BatchNormalization cancels sequential/conv2d/bias",
        "set use_bias=False in their layers",
    ):
        assert text in report.output


@pytest.mark.long
def test_weights_without_an_effect_are_no_cause_of_rounding(run_tests):
    report = run_tests(ATTENTION_AFTER_IDLE_BIAS, only=REPLICAS)
    assert report.outcomes == {REPLICAS: "PASSED"}, report.output
    assert "a BatchNormalization cancels sequential/conv2d/bias" in report.output
    assert "key/bias" not in report.output


@pytest.mark.long
def test_problem_of_another_hook_is_no_cause_of_rounding(run_tests):
    report = run_tests(IDLE_BIAS, USES_PROBABILITIES, only=f"{REPLICAS} or {CONTRACT}")
    assert report.failed == {contract_of("create_loss_objects")}, report.output
    assert "The cause is rounding" in report.output


# As in Keras's TokenLearner: the result is a constant, and no model has the layer.
CONSTANT_EMBEDDING = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        inputs = keras.Input([8, 8, 1])
        rows = keras.layers.Reshape([8, 8])(inputs)
        rows += keras.layers.Embedding(8, 8)(keras.ops.arange(8))
        outputs = keras.layers.Dense(10)(keras.layers.Flatten()(rows))
        return keras.Model(inputs, outputs), Adam(config.learning_rate)
"""


FORGETS_WEIGHTS = """
def update_metrics(metrics, labels, predictions, sample_weight):
    for metric in metrics:
        metric.update_state(labels, predictions)
""" + use_metrics('keras.metrics.SparseCategoricalCrossentropy(name="entropy", from_logits=True)')

# As in losses for several tasks with learned weights (Kendall et al.).
LEARNED_WEIGHT = """
@wraps_original
def create_loss_objects(original, strategy):
    global log_variance
    with strategy.scope():
        log_variance = tf.Variable(0.0, name="log_variance")
    return original(strategy)


@wraps_original
def compute_loss(original, labels, predictions, sample_weight):
    loss = original(labels, predictions, sample_weight)
    return tf.exp(-log_variance) * loss + log_variance / config.replicas
"""

# Keras's own get_config has `units`, and no `width`.
UNSAVED_ARGUMENT = """
@keras.saving.register_keras_serializable()
class Wide(keras.layers.Dense):
    def __init__(self, width, **options):
        super().__init__(width, **options)
""" + end_model_with("Wide(width=10)")

# By name: the code, and a part of the warning. The hooks may be as intended.
WARNINGS = {
    "metric that forgets weights": (
        FORGETS_WEIGHTS,
        "create_metrics: entropy changes if examples with a sample_weight of 0 are added",
    ),
    "learned weight of no model": (
        LEARNED_WEIGHT,
        "the loss depends on log_variance:0, which belongs to no model",
    ),
    "layer that is called on a constant": (
        CONSTANT_EMBEDDING,
        "neither trained nor saved, since no model contains it: embedding/embeddings;",
    ),
    "model that a step does not update": (
        NO_UPDATE,
        "the first step doesn't update sequential, which has an optimizer",
    ),
    "model that cannot be saved": (
        UNSAVED_ARGUMENT,
        "create_model_and_optimizer: model.keras can't be written or loaded (TypeError",
    ),
    "mean that Adam hides": (MEAN_IN_THE_GRADIENTS, "are twice as large on two replicas"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WARNINGS)
def test_contract_warns(name, run_tests):
    code, text = WARNINGS[name]
    report = run_tests(code, only=CONTRACT)
    assert not report.failed, report.output
    assert text in report.output


# As in a perceptual loss: the gradient flows through a network that is not trained.
FROZEN_NETWORK = """
@functools.cache
def create_network():
    with tf.init_scope(), strategy.scope():
        network = keras.Sequential([keras.Input([10]), keras.layers.Dense(4)])
        network.trainable = False
        return network


@wraps_original
def compute_loss(original, labels, predictions, sample_weight):
    code = tf.reduce_mean(tf.square(create_network()(predictions)), axis=-1)
    added = tf.nn.compute_average_loss(code, sample_weight, GLOBAL_BATCH_SIZE)
    return original(labels, predictions, sample_weight) + 0.01 * added
"""


@pytest.mark.long
def test_frozen_network_of_no_model_is_no_warning(run_tests):
    report = run_tests(FROZEN_NETWORK, only=CONTRACT)
    assert not report.failed, report.output
    assert "belongs to no model" not in report.output


@pytest.mark.long
def test_logits_of_a_softmax_are_a_warning(run_tests):
    report = run_tests(end_model_with(SOFTMAX), only=f"{CONTRACT} or {REPLICAS}")
    assert not report.failed, report.output
    assert "the loss expects logits, but predictions add up to 1" in report.output


@pytest.mark.long
def test_metric_that_rounding_changes_is_no_failure(run_tests):
    report = run_tests(FLIPS, only=REPLICAS.partition("[")[0])
    assert set(report.outcomes.values()) == {"PASSED"}, report.output


@pytest.mark.long
def test_small_error_of_a_metric_on_replicas_is_reported(run_tests):
    report = run_tests(COUNTS_UPDATES, only=REPLICAS)
    assert report.outcomes == {REPLICAS: "FAILED"}, report.output
    assert "look at create_metrics first" in report.output


# --------------------------------------------------------------------------------------------------
# Correct hooks that failed the tests once
# --------------------------------------------------------------------------------------------------

# An autoencoder that samples in evaluation too, with an added loss on which one of its weights
# depends alone, and predictions in a dict.
AUTOENCODER = """
@keras.saving.register_keras_serializable()
class Sampling(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def build(self, shape):
        self.alone = self.add_weight(name="alone")

    def call(self, inputs):
        self.add_loss(keras.ops.square(self.alone - 1))
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)


def create_model_and_optimizer(strategy):
    with strategy.scope():
        inputs = keras.Input([8, 8, 1])
        code = keras.layers.Dense(4)(keras.layers.Flatten()(inputs))
        code = Sampling()(code)
        image = keras.layers.Dense(64)(code)
        return keras.Model(inputs, {"image": image, "code": code}), Adam(1e-3)


def preprocess(batch, seeds, training):
    images, _ = batch
    return tf.cast(images, tf.float32) / 16, tf.cast(images, tf.float32) / 16


def compute_losses(labels, predictions):
    return loss_object(tf.reshape(labels, [-1, 64]), predictions["image"])


def create_loss_objects(strategy):
    return keras.losses.MeanSquaredError(reduction="none")


def update_metrics(metrics, labels, predictions, sample_weight):
    pass


def create_metrics(strategy):
    return [], [], []
"""

# The loss object returns the losses of regions, which have another size than the labels.
REGIONS = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        layers = [keras.Input([8, 8, 1]), keras.layers.Conv2D(1, 3, padding="same")]
        return keras.Sequential(layers), Adam(1e-3)


def preprocess(batch, seeds, training):
    images, _ = batch
    return tf.cast(images, tf.float32) / 16, tf.cast(images, tf.float32) / 16


def create_loss_objects(strategy):
    pool = keras.layers.AveragePooling2D(2)

    class Regions(keras.losses.Loss):
        def call(self, labels, predictions):
            return tf.reduce_mean(tf.square(pool(labels) - pool(predictions)), axis=-1)

    return Regions(reduction="none")


def create_metrics(strategy):
    return [], [], []
""" + return_losses("tf.reduce_mean(losses, axis=[1, 2])")

# The loss of an example depends on all predictions for the global batch.
GLOBAL_LOSS = """
def compute_losses(labels, predictions):
    context = tf.distribute.get_replica_context()
    everyone = context.all_gather(predictions, axis=0)
    mean = tf.reduce_mean(everyone, axis=0)
    return loss_object(labels, predictions) + tf.reduce_mean(tf.square(predictions - mean), axis=-1)
"""

# A layer adds a loss of the mean over the global batch, as a mixture of experts does.
GLOBAL_ADDED_LOSS = """
@keras.saving.register_keras_serializable()
class Balance(keras.layers.Layer):
    def call(self, inputs):
        mean = tf.reduce_mean(inputs, axis=0)
        context = tf.distribute.get_replica_context()
        if context:
            mean = context.all_reduce("MEAN", mean)
        self.add_loss(tf.reduce_sum(tf.square(mean)))
        return inputs
""" + end_model_with("Balance()", "keras.layers.Dense(10)")

# The mean divides by the examples of all replicas, too, and the other loss is divided by replicas.
DIVIDED_BY_REPLICAS = return_loss(
    "tf.nn.compute_average_loss(losses, sample_weight) + tf.norm(model.trainable_variables[0]) / "
    "strategy.num_replicas_in_sync"
)

LOSSES_IN_STEPS = """
def create_loss_objects(strategy):
    return None


def list_losses(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def compute_gradients(batch):
    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        losses = list_losses(labels, predictions)
        loss = tf.nn.compute_average_loss(losses, sample_weight, GLOBAL_BATCH_SIZE)
    update_metrics(train_metrics, labels, predictions, sample_weight)
    return loss, tape.gradient(loss, [x.value for x in model.trainable_variables])


def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    predictions = model(features, training=False)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = list_losses(labels, predictions)
    return tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)
"""

# In evaluation, the steps take other features than in training.
OTHER_FEATURES = """
def preprocess(batch, seeds, training):
    images, labels = batch
    images = tf.cast(images, tf.float32)
    return (images if training else {"clean": images}), labels
""" + LOSSES_IN_STEPS.replace(
    "model(features, training=False)", 'model(features["clean"], training=False)'
)

NO_LOSS_OBJECT = """
def preprocess(batch, seeds, training):
    images, _ = batch
    return (tf.cast(images, tf.float32),)


def create_loss_objects(strategy):
    return None


def create_metrics(strategy):
    return [], [], []


def compute_losses(labels, predictions):
    return tf.reduce_mean(tf.square(predictions), axis=-1)
"""

# The loss object gets other labels than `compute_losses`.
ONE_HOT = (
    use_loss(
        "keras.losses.CategoricalCrossentropy("
        "from_logits=True, label_smoothing=0.1, reduction='none')"
    )
    + """
def compute_losses(labels, predictions):
    return loss_object(tf.one_hot(labels, 10), predictions)
"""
)

# Two rows that follow each other belong together, on each replica.
PAIRS = return_loss(
    "tf.reduce_sum(tf.reduce_max(tf.reshape(losses * sample_weight, [-1, 2]), axis=1))"
    " / GLOBAL_BATCH_SIZE"
)

GENERATED_SPLITS = """
@wraps_original
def create_datasets(original):
    yield from original()
"""

# As for a masked autoencoder: `preprocess` masks pixels in evaluation, too.
MASKS = """
def preprocess(batch, seeds, training):
    def draw(seed):
        return tf.random.stateless_uniform([8, 8, 1], seed)

    images, labels = batch
    numbers = tf.map_fn(draw, seeds, fn_output_signature=tf.float32)
    return tf.where(numbers < 0.2, 0.0, tf.cast(images, tf.float32)), labels
"""

OWN_SCHEDULE = use_optimizer(
    "keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay("
    "1e-3 * GLOBAL_BATCH_SIZE / 64, config.last_step // 2))"
)

# The elements have unknown shapes, but all have the same one.
DECODED_IN_DATASETS = change_splits(
    "split.map(lambda image, label: (tf.io.decode_png(tf.io.encode_png(image)), label))"
)

DECODED_IN_FETCH = (
    change_splits("split.map(lambda image, label: (tf.io.encode_png(image), label))")
    + """
def fetch(batch):
    files, labels = batch
    return tf.map_fn(tf.io.decode_png, files, fn_output_signature=tf.uint8), labels


def preprocess(batch, seeds, training):
    images, labels = batch
    return tf.image.resize(tf.cast(images, tf.float32)[..., :1], [8, 8]), labels
"""
)

NO_LABELS_BUT_WEIGHTS = NO_LOSS_OBJECT.replace(
    "return (tf.cast(images, tf.float32),)",
    "return tf.cast(images, tf.float32), None, tf.ones([tf.shape(images)[0]])",
)

# The steps use the features as labels, and the model gets labels, too.
OTHER_ARGUMENTS = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        images = keras.Input([8, 8, 1])
        labels = keras.Input([], dtype="int32")
        embedded = keras.layers.Embedding(10, 8)(labels)
        hidden = keras.layers.Concatenate()([keras.layers.Flatten()(images), embedded])
        outputs = keras.layers.Reshape([8, 8, 1])(keras.layers.Dense(64)(hidden))
        model = keras.Model([images, labels], outputs)
        optimizer = Adam(config.learning_rate)
    return model, optimizer


def create_loss_objects(strategy):
    return None


def create_metrics(strategy):
    return [], [], []


def compute_losses(labels, predictions):
    return tf.reduce_mean(tf.square(tf.cast(labels, tf.float32) - predictions), axis=[1, 2, 3])


def compute_gradients(batch):
    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model([features, labels], training=True)
        loss = compute_loss(features, predictions, sample_weight)
    return loss, tape.gradient(loss, model.trainable_variables)


def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    predictions = model([features, labels], training=False)
    losses = compute_losses(features, predictions)
    return tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)


def create_serving_function(models, example):
    specs = [tf.TensorSpec([None, 8, 8, 1]), tf.TensorSpec([None], tf.int32)]
    return tf.function(lambda *inputs: models[0](list(inputs), training=False), specs)
"""

NAMED_ELEMENTS = """
import collections

Digit = collections.namedtuple("Digit", "image label")


def preprocess(batch, seeds, training):
    return batch.image, batch.label
""" + change_splits("split.map(Digit)")

NAN_METRIC = use_metrics(
    'keras.metrics.MeanMetricWrapper(lambda labels, x: x[:, 0] * math.nan, name="nothing")'
)

# Its weights are drawn when the metrics are created, before the model.
NETWORK_METRIC = """
class Distance(keras.metrics.Mean):
    def __init__(self):
        super().__init__(name="distance")
        self.encoder = keras.Sequential([keras.Input([10]), keras.layers.Dense(4)])

    def update_state(self, labels, predictions, sample_weight=None):
        codes = tf.reduce_sum(tf.abs(self.encoder(predictions)), axis=-1)
        return super().update_state(codes, sample_weight)
""" + use_metrics("Distance()")

READS_THE_LOG = """
def end_epoch(history):
    lines = run_path("metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["epoch"] > 1000
"""

# A function of texts, and a layer that Keras loads only if asked to.
TEXTS = (
    end_model_with("keras.layers.Dense(10)", "keras.layers.Lambda(lambda x: 2.0 * x)")
    + """
def create_serving_function(models, example):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def answer(prompts):
        length = tf.cast(tf.strings.length(prompts), tf.float32)
        logits = models[0](tf.reshape(length, [-1, 1, 1, 1]) * tf.ones([1, 8, 8, 1]))
        return tf.strings.as_string(tf.argmax(logits, axis=-1))

    return answer
"""
)

# The loss of one of two networks starts later, by the step.
LATE_LOSS = """
def compute_gradients(batch):
    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)

        def compute():
            return compute_loss(labels, predictions, sample_weight)

        loss = tf.cond(optimizer.iterations.value < 5, lambda: tf.constant(0.0), compute)
    update_metrics(train_metrics, labels, predictions, sample_weight)
    return loss, tape.gradient(loss, model.trainable_variables)
"""

# Keras's RandomCrop crops in training only: in evaluation, images have another size.
CROPS = """
class Cropping(keras.Model):
    def __init__(self):
        super().__init__()
        self.crop = keras.layers.RandomCrop(6, 6)
        self.resize = keras.layers.Resizing(6, 6)
        self.dense = keras.layers.Dense(10)

    def call(self, images, training=False):
        images = self.crop(images, training=True) if training else self.resize(images)
        return self.dense(keras.ops.reshape(images, [-1, 36]))


def create_model_and_optimizer(strategy):
    with strategy.scope():
        model = Cropping()
        model(tf.zeros([1, 8, 8, 1]), training=True)
        return model, Adam(1e-3)
"""

# After an epoch without a lower loss, the weights of the best one are restored.
BACK_TO_THE_BEST = """
def end_epoch(history):
    if history[-1]["loss"] > min(line["loss"] for line in history):
        best = tf.train.Checkpoint(model=[variable.value for variable in model.variables])
        path = tf.train.latest_checkpoint(run_path("checkpoints/best"))
        best.restore(path).assert_existing_objects_matched().expect_partial()
    return False
"""

# Keras's losses and metrics leave out masked tokens.
MASKED_TOKENS = (
    TOKENS.replace("Embedding(20, 8)", "Embedding(20, 8, mask_zero=True)")
    + """
def update_metrics(metrics, labels, predictions, sample_weight):
    weights = tf.ones_like(labels, tf.float32) * sample_weight[:, None]
    for metric in metrics:
        metric.update_state(labels, predictions, weights)
"""
)

# As in a model with a temperature, or with learned weights of losses.
LEARNED_SCALE = """
@keras.saving.register_keras_serializable()
class Scaled(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(10)

    def build(self, shape):
        self.dense.build([None, 64])
        self.scale = self.add_weight(shape=[], initializer="ones", name="scale")

    def call(self, images):
        return {"logits": self.dense(self.flatten(images)), "scale": self.scale + 0.0}


def create_model_and_optimizer(strategy):
    with strategy.scope():
        model = Scaled()
        model.build([None, 8, 8, 1])
        return model, Adam(1e-3)


def preprocess(batch, seeds, training):
    images, labels = batch
    return tf.cast(images, tf.float32) / 16, labels


def compute_losses(labels, predictions):
    return loss_object(labels, predictions["logits"] * predictions["scale"])


def update_metrics(metrics, labels, predictions, sample_weight):
    for metric in metrics:
        metric.update_state(labels, predictions["logits"], sample_weight)
"""

MORE_RESULTS = """
@wraps_original
def compute_gradients(original, batch):
    loss, gradients = original(batch)
    return loss, gradients, 2.0 * loss


def train_step(batch):
    loss, gradients, _ = compute_gradients(batch)
    update(optimizer, gradients, model.trainable_variables)
    return loss * config.global_batch_size, tf.reduce_sum(batch[-1])
"""

# Each call in training changes a variable of the layer.
SPECTRAL = end_model_with("keras.layers.SpectralNormalization(keras.layers.Dense(10))")

READS_TRAINING_LINES = """
def end_epoch(history):
    lines = map(json.loads, run_path("metrics.jsonl").read_text().splitlines())
    [*_, last] = [line for line in lines if line["split"] == "train"]
    return last["epoch"] > 1000
"""

# A learned token replaces some features, in training only.
LEARNED_MASK = """
@keras.saving.register_keras_serializable()
class Mask(keras.layers.Layer):
    def build(self, shape):
        self.seeds = keras.random.SeedGenerator(1)
        self.token = self.add_weight(shape=shape[1:], name="token")

    def call(self, inputs, training=False):
        if not training:
            return inputs
        shape = [keras.ops.shape(inputs)[0], 1]
        is_masked = keras.random.uniform(shape, seed=self.seeds) < 0.5
        return keras.ops.where(is_masked, self.token, inputs)
""" + PLAIN_MODEL.replace("keras.layers.Flatten(),", "keras.layers.Flatten(), Mask(),")

# `compute_losses` gets one of the model's two outputs.
ONE_OUTPUT = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        inputs = keras.Input([8, 8, 1])
        code = keras.layers.Dense(8)(keras.layers.Flatten()(inputs))
        return keras.Model(inputs, (code, keras.layers.Dense(10)(code))), Adam(1e-3)


def compute_loss(labels, predictions, sample_weight):
    _, logits = predictions
    losses = compute_losses(labels, logits)
    return tf.nn.compute_average_loss(losses, sample_weight, GLOBAL_BATCH_SIZE)


def update_metrics(metrics, labels, predictions, sample_weight):
    for metric in metrics:
        metric.update_state(labels, predictions[-1], sample_weight)


def evaluation_step(batch, metrics):
    features, labels, sample_weight = batch
    predictions = model(features, training=False)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions[-1])
    return tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)
"""

# The loss compares the examples of the batch. The best epoch has the highest accuracy.
BATCH_LOSS = """
def compute_losses(labels, predictions):
    return tf.zeros(tf.shape(labels))


def compute_loss(labels, predictions, sample_weight):
    context = tf.distribute.get_replica_context()
    labels = context.all_gather(labels, axis=0)
    predictions = context.all_gather(predictions, axis=0)
    losses = loss_object(labels, predictions - tf.reduce_mean(predictions, axis=0))
    return tf.reduce_mean(losses) / config.replicas
"""
BY_ACCURACY = """
def score(validation):
    return -validation["accuracy"]
"""

# TensorFlow's list of checkpoints may be older than the files after a kill.
OLD_LIST = """
was_resumed = False


@wraps_original
def restore_run(original, checkpoint):
    global was_resumed
    was_resumed = bool(checkpoint)
    original(checkpoint)


@wraps_original
def save(original, kind):
    original(kind)
    if was_resumed:
        oldest = min(list_checkpoints(kind))
        tf.compat.v1.train.update_checkpoint_state(
            run_path("checkpoints", kind), f"ckpt-{oldest}"
        )
"""

# As in Keras's examples of structured data.
POPS_LABELS = """
def fetch(batch):
    images, labels = batch
    return {"images": images, "labels": labels}


def preprocess(batch, seeds, training):
    labels = batch.pop("labels")
    return tf.cast(batch["images"], tf.float32), labels
"""

# What Keras and TensorFlow allow, though few hooks have it.
UNUSUAL = f"""
class Unusual(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.names = {{0: "zero", "one": 1}}
        self.mean = keras.metrics.Mean(name="mean_of_inputs")

    def build(self, shape):
        self.shape = self.add_weight([10], initializer="ones")

    def call(self, inputs):
        self.mean.update_state(inputs)
        return inputs + tf.random.stateless_gamma([10], [1, 2], 1 + self.shape**2)

{end_model_with("keras.layers.Dense(10)", "Unusual()")}


@wraps_original
def create_loss_objects(original, strategy):
    global last_loss
    last_loss = tf.Variable(0.0)
    return original(strategy)


def train_step(batch):
    loss, gradients = compute_gradients(batch)
    last_loss.assign(loss)
    gradients = list(map(tf.convert_to_tensor, gradients))
    optimizer.apply(gradients, trainable_variables=model.trainable_variables)
    return loss * config.global_batch_size, tf.reduce_sum(batch[-1])
"""

CORRECT = {
    "unusual layers and steps": (UNUSUAL, CONTRACT),
    "a learned mask": (LEARNED_MASK, CONTRACT),
    "end_epoch that reads its checkpoint": (READS_CHECKPOINT, CONTRACT),
    "gradients that overflow at first": (OVERFLOWS, CONTRACT),
    "a loss that draws": (SAMPLED, f"{CONTRACT} or {REPLICAS} or {KILLED}"),
    "adjacent views": (ADJACENT_VIEWS, f"{CONTRACT} or {REPLICAS}"),
    "a list of checkpoints that is older": (OLD_LIST, KILLED),
    "labels that preprocess pops": (POPS_LABELS, f"{CONTRACT} or {EXPORT}"),
    "a loss of one output": (ONE_OUTPUT, f"{CONTRACT} or {EVALUATION}"),
    "a loss of the batch alone": (BATCH_LOSS + BY_ACCURACY, CONTRACT),
    "another compute_gradients": (OWN_STEP, CONTRACT),
    "compute_gradients of another batch": (OTHER_BATCH, CONTRACT),
    "no compute_gradients": (WITHOUT_GRADIENTS, CONTRACT),
    "labels that compute_losses changes": (ONE_HOT, CONTRACT),
    "losses of pairs": (PAIRS, CONTRACT),
    "splits of a generator": (GENERATED_SPLITS, f"{CONTRACT} or {KILLED} or {EXPORT}"),
    "random numbers in evaluation": (MASKS, f"{CONTRACT} or {EVALUATION} or {EXPORT}"),
    "a schedule of the run's length": (OWN_SCHEDULE, f"{CONTRACT} or {EVALUATION}"),
    "decoded in create_datasets": (DECODED_IN_DATASETS, f"{CONTRACT} or {KILLED}"),
    "decoded in fetch": (DECODED_IN_FETCH, f"{CONTRACT} or {KILLED}"),
    "weights without labels": (NO_LABELS_BUT_WEIGHTS, f"{CONTRACT} or {EVALUATION}"),
    "other arguments": (OTHER_ARGUMENTS, f"{CONTRACT} or {REPLICAS} or {EXPORT}"),
    "named elements": (NAMED_ELEMENTS, CONTRACT),
    "a metric that is NaN": (NAN_METRIC, f"{CONTRACT} or {REPLICAS} or {KILLED}"),
    "a metric with a network": (NETWORK_METRIC, f"{CONTRACT} or {EVALUATION}"),
    "reads the log": (READS_THE_LOG, CONTRACT),
    "texts and a Lambda layer": (TEXTS, f"{CONTRACT} or {EXPORT}"),
    "a loss that starts later": (LATE_LOSS, CONTRACT),
    "crops in the model": (CROPS, f"{CONTRACT} or {KILLED}"),
    "no loss object": (NO_LOSS_OBJECT, CONTRACT),
    "losses in the steps alone": (LOSSES_IN_STEPS, CONTRACT),
    "losses in the steps alone, of other features": (OTHER_FEATURES, CONTRACT),
    "normalization of a replica's batch": (normalize(""), f"{CONTRACT} or {REPLICAS}"),
    "normalization and a generator": (DRAWING, CONTRACT),
    "losses of tokens": (TOKENS, CONTRACT),
    "autoencoder": (AUTOENCODER, ""),
    "masked tokens": (MASKED_TOKENS, f"{CONTRACT} or {EVALUATION}"),
    "a learned scale": (LEARNED_SCALE, f"{CONTRACT} or {REPLICAS}"),
    "compute_gradients with more results": (MORE_RESULTS, CONTRACT),
    "layer with state of its own": (SPECTRAL, f"{CONTRACT} or {REPLICAS}"),
    "reads the training lines of the log": (READS_TRAINING_LINES, CONTRACT),
    "other features in evaluation": (TWO_STRUCTURES, CONTRACT),
    "views in training": (VIEWS, f"{CONTRACT} or {EVALUATION}"),
    "losses of regions": (REGIONS, CONTRACT),
    "loss over the global batch": (GLOBAL_LOSS, CONTRACT),
    "loss divided by replicas": (DIVIDED_BY_REPLICAS, f"{CONTRACT} or {REPLICAS}"),
    "an added loss over the global batch": (GLOBAL_ADDED_LOSS, f"{CONTRACT} or {REPLICAS}"),
    "frozen teacher": (TEACHER, f"{CONTRACT} or {KILLED} or {EXPORT}"),
    "rate on a plateau": (PLATEAU, f"{CONTRACT} or {KILLED}"),
    "back to the best weights": (BACK_TO_THE_BEST, f"{CONTRACT} or {KILLED}"),
}
SHORT_CORRECT = ("no loss object", "losses of tokens", "labels that preprocess pops")


@pytest.mark.parametrize(
    "name",
    [name if name in SHORT_CORRECT else pytest.param(name, marks=LONG) for name in CORRECT],
)
def test_correct_hooks_pass(name, run_tests):
    code, tests = CORRECT[name]
    report = run_tests(code, only=tests)
    assert not report.failed, report.output


RESNET = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        inputs = keras.Input([8, 8, 1])
        images = keras.layers.UpSampling2D(4)(keras.layers.Rescaling(1 / 16)(inputs))
        backbone = keras.applications.ResNet50(
            include_top=False, weights=None, input_shape=[32, 32, 3], pooling="avg"
        )
        features = backbone(keras.layers.Concatenate()([images, images, images]))
        model = keras.Model(inputs, keras.layers.Dense(10)(features))
        return model, Adam(config.learning_rate)
"""


@pytest.mark.skipif(os.environ.get("RESNET") != "yes", reason="takes 10 minutes; see docs/tests.md")
def test_resnet50_passes(run_tests):
    assert_all_pass(run_tests(RESNET))


OTHER_DEFAULTS = """
for name, value in (("warmup_steps", 500), ("accumulation_steps", 32), ("strategy", "mirrored")):
    Config.__dataclass_fields__[name].default = value
"""


@pytest.mark.long
def test_defaults_that_do_not_fit_the_tests_pass(run_tests):
    report = run_tests(OTHER_DEFAULTS, only=f"{REPLICAS} or {WORKERS}", script="complete")
    assert not report.failed, report.output


UNUSED_OUTPUT = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        inputs = keras.Input([8, 8, 1])
        code = keras.layers.Dense(8)(keras.layers.Flatten()(inputs))
        pooled = keras.layers.Dense(3, name="pooled")(code)
        backbone = keras.Model(inputs, {"code": code, "pooled": pooled})
        outputs = keras.layers.Dense(10)(backbone(inputs)["code"])
        return keras.Model(inputs, outputs), Adam(1e-3)
"""


@pytest.mark.long
def test_output_that_the_loss_does_not_use_is_a_warning(run_tests):
    report = run_tests(UNUSED_OUTPUT, only=CONTRACT)
    assert not report.failed, report.output
    assert "the loss doesn't depend on these variables" in report.output
    assert "pooled/kernel and " in report.output


DECODER = """
def create_serving_function(models, example):
    decoder = models[0].layers[-1]

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32)])
    def decode(codes):
        return decoder(codes)

    return decode
"""


@pytest.mark.long
def test_another_function_to_serve_passes(run_tests):
    report = run_tests(DECODER, only=EXPORT)
    assert not report.failed, report.output


ANY_SIZE = replace_image_model(
    "keras.layers.Rescaling(1 / 16)",
    "keras.layers.Conv2D(8, 3)",
    "keras.layers.GlobalAveragePooling2D()",
    "keras.layers.Dense(10)",
).replace("[8, 8, 1]", "[None, None, 1]")
SERVE_ONE_SIZE = """
def create_serving_function(models, example):
    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.uint8)])
    def serve(images):
        return models[0](images, training=False)

    return serve
"""


@pytest.mark.long
@pytest.mark.parametrize("code", [[ANY_SIZE], [ANY_SIZE, SERVE_ONE_SIZE]], ids=["any", "fixed"])
def test_size_that_the_export_fixes_is_a_warning(code, run_tests):
    report = run_tests(*code, only=EXPORT)
    assert report.outcomes == {EXPORT: "PASSED"}, report.output
    warning = "takes shape (None, 8, 8, 1), but the model takes (None, None, None, 1)"
    assert (warning in report.output) == (SERVE_ONE_SIZE in code)


UPDATE_BY_INDEX = "train_metrics[0].update_state(labels, predictions, sample_weight)"


@pytest.mark.long
def test_metric_by_its_index_passes(run_tests):
    report = run_tests(use_steps(update=UPDATE_BY_INDEX), only=CONTRACT)
    assert not report.failed, report.output


LONG_EXCEPTION = """
def end_epoch(history):
    raise LookupError("the reason" + "\\nan example" * 30)
"""


@pytest.mark.long
def test_long_exception_keeps_its_first_line(run_tests):
    report = run_tests(LONG_EXCEPTION, only=REPLICAS)
    assert report.outcomes == {REPLICAS: "FAILED"}
    assert "LookupError: the reason" in report.output


@pytest.mark.long
def test_exception_in_a_run_reports_the_hook(run_tests):
    # It accepts a batch of 4, and fails in the batches of a run.
    statement = "images = tf.ensure_shape(images, [4, 8, 8, 1])"
    report = run_tests(return_batch(before=statement), only=REPLICAS)
    assert report.outcomes == {REPLICAS: "FAILED"}
    lines = (report.project / "train.py").read_text(encoding="utf-8").splitlines()
    [line] = [number for number, line in enumerate(lines, start=1) if statement in line]
    message = f"ended with exit code 1. The error comes from preprocess (train.py, line {line})"
    assert message in report.output


# The batch normalization of each step of a recurrent network.
NORMALIZED_CELL = """
class Cell(keras.layers.SimpleRNNCell):
    def __init__(self, units):
        super().__init__(units)
        self.normalization = keras.layers.BatchNormalization()

    def build(self, shape):
        super().build(shape)
        self.normalization.build([None, self.units])

    def call(self, inputs, states, training=False):
        _, [state] = super().call(inputs, states, training=training)
        state = self.normalization(state, training=training)
        return state, [state]
""" + replace_image_model(
    "keras.layers.Reshape([8, 8])", "keras.layers.RNN(Cell(8))", "keras.layers.Dense(10)"
)
DRAWS_WITHOUT_A_SEED = """
class Noise(keras.layers.Layer):
    def call(self, inputs, training=False):
        if training:
            return inputs + keras.random.normal(keras.ops.shape(inputs))
        return inputs
""" + replace_image_model("keras.layers.Flatten()", "Noise()", "keras.layers.Dense(10)")

# By name: the code, and the advice.
CRASHES = {
    "normalization-in-a-loop": (NORMALIZED_CELL, "Replicas can't sum in a loop, a branch"),
    "random-numbers-without-a-seed": (
        DRAWS_WITHOUT_A_SEED,
        "Or a layer draws by keras.random without a seed; give it a keras.random.SeedGenerator",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("size", ["essential", "complete"])
@pytest.mark.parametrize("name", CRASHES)
def test_exception_of_tensorflow_has_advice(name, size, run_tests):
    code, advice = CRASHES[name]
    report = run_tests(code, only=REPLICAS, script=size)
    assert report.outcomes == {REPLICAS: "FAILED"}
    assert advice in report.output


@pytest.mark.long
def test_exception_in_all_runs_is_printed_once(run_tests):
    report = run_tests(LONG_EXCEPTION, only="do_not_depend or evaluation")
    assert set(report.outcomes.items()) == {
        (name, "FAILED") for name in (REPLICAS, MORE_REPLICAS, EVALUATION)
    }
    assert report.output.count("LookupError: the reason") == 1
    assert report.output.count(f"The report is the same as in test_{REPLICAS}, above.") == 2


@pytest.mark.long
def test_workers_connect_despite_a_proxy(run_tests, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    begin = functools.partial(run_project_tests, in_forks=False)
    report = run_tests(only=WORKERS, begin=begin)
    assert report.outcomes == {WORKERS: "PASSED"}


def list_session(leader):
    """Return the processes of the session of a process."""
    members = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getsid(int(name)) == leader:
                members.append(int(name))
        except ProcessLookupError:
            continue  # it ended meanwhile
    return members


@pytest.mark.long
def test_sigterm_ends_all_processes(render, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", REPLICAS],
        cwd=render(tmp_path),
        env=environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: len(list_session(process.pid)) > 1, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    wait_until(lambda: not list_session(process.pid), timeout=10)
