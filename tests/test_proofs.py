"""The project's own tests: they pass as rendered, and catch what people get wrong in the hooks.

A test plants a mistake in the train.py of a project and runs the project's tests, or those that
are to catch it. They must fail, with a message that names the hook and the cause.
"""

import os
import re
import subprocess
import sys

import pytest
from conftest import TIMEOUT, edit, environment

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


@pytest.fixture
def prove(render, tmp_path):
    """Return a function that runs the tests of a project, after edits of its train.py.

    It returns the folder, what the tests printed, and the outcome of each by name.
    """

    def run_tests(*edits, only="", **answers):
        project_dir = render(tmp_path, **answers)
        edit(project_dir / "train.py", project_dir, *edits)
        finished = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-k", only],
            cwd=project_dir,
            env=environment(),
            capture_output=True,
            encoding="utf-8",
            timeout=3 * TIMEOUT,  # of up to a dozen processes
            check=False,
        )
        assert finished.stderr == ""
        summary = r"(?m)^(PASSED|FAILED|ERROR) tests/test_train\.py::test_(\S+)"
        outcomes = {name: outcome for outcome, name in re.findall(summary, finished.stdout)}
        assert finished.returncode == (set(outcomes.values()) != {"PASSED"}), finished.stdout
        # What a user reads of a failure, up to the summary.
        return project_dir, finished.stdout.partition("short test summary")[0], outcomes

    return run_tests


def contract_of(hook):
    return f"hook_keeps_its_contract[{hook}]"


REPLICAS = "numbers_do_not_depend_on_the_replicas"
EVALUATION = "evaluation_counts_every_example_once"
KILLED = "killed_run_resumes_to_the_same_bits"
WORKERS = "two_workers_equal_two_replicas"
EXPORT = "export_predicts_what_the_model_does"


def seconds_of_processor():
    """Return how long the processes that this one started, and has waited for, took to compute."""
    times = os.times()
    return times.children_user + times.children_system


# Of each task and each size: the hooks, the steps and the tests of both sizes are the same.
@pytest.mark.parametrize(
    ("task", "script"),
    [
        ("image_classification", "essential"),
        ("image_classification", "complete"),
        ("text_classification", "essential"),
        ("tabular_regression", "complete"),
    ],
)
def test_project_passes_as_rendered_and_lists_what_to_edit(task, script, prove):
    start = seconds_of_processor()
    project_dir, output, outcomes = prove(task=task, script=script)
    seconds = seconds_of_processor() - start
    assert set(outcomes) == {
        *map(contract_of, HOOKS),
        REPLICAS,
        EVALUATION,
        KILLED,
        WORKERS,
        EXPORT,
    }
    assert set(outcomes.values()) == {"PASSED"}, output
    assert seconds < 600  # Less by the clock, where there are two cores and nothing else runs.

    lines = (project_dir / "train.py").read_text(encoding="utf-8").splitlines()
    marks = [
        f"train.py:{number}: {line[line.index('TODO(you):') :]}"
        for number, line in enumerate(lines, start=1)
        if "# TODO(you):" in line
    ]
    assert len(marks) > len(HOOKS)
    assert [line for line in output.splitlines() if "TODO(you): " in line] == marks
    assert "TODO(you) still in train.py" in output


def test_what_is_done_is_not_listed(prove):
    mark = "        # TODO(you): your loss; or several, which compute_losses adds up.\n"
    _, output, _ = prove((mark, ""), only="nothing_at_all or compute_loss")
    assert "your loss" not in output
    assert "TODO(you): your data" in output


# --------------------------------------------------------------------------------------------------
# Mistakes that a check of the hooks by themselves finds
# --------------------------------------------------------------------------------------------------

RETURN_BATCH = "    return tf.cast(images, tf.float32), labels\n"
PREDICTIONS = '                keras.layers.Dense(10, dtype="float32"),  # in mixed precision too\n'
LOSS = 'keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")'
METRIC = 'keras.metrics.SparseCategoricalAccuracy(name="accuracy")'
MEAN_METRIC = (METRIC, 'keras.metrics.MeanAbsoluteError(name="error")')
SPLITS = "    return [tf.data.Dataset.from_tensor_slices((images[i], labels[i])) for i in splits]\n"
MODEL = """        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
"""
METRICS = """    with strategy.scope():
        # TODO(you): your metrics"""
SCOPE_OF_MODEL = """    with strategy.scope():
        # TODO(you): your model."""

RETURN_LOSSES = "    return loss_object(labels, predictions)\n"
SCALING = "                keras.layers.Rescaling(1 / 16),\n"
EMBEDDING = """                keras.layers.Embedding(17, 4),
                keras.layers.Reshape([8, 8, 4]),
"""
IMAGES = "keras.layers.Reshape([8, 8, 1]),\n"
UNPACK = """    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
"""
UPDATE = "    update(optimizer, gradients, model.trainable_variables)\n"

# To a hand-written loss, of labels [batch] and predictions [batch, 1] or the other way round.
SQUARES = "lambda labels, predictions: tf.reduce_mean(tf.square(labels - predictions), axis=-1)"
PAIRS = "lambda labels, predictions: tf.square(labels - predictions)"


def return_batch(images="tf.cast(images, tf.float32)", labels="labels"):
    """Return an edit: preprocess returns something else."""
    return RETURN_BATCH, f"    return {images}, {labels}\n"


def augment(expression):
    """Return an edit: preprocess changes its images in training."""
    return RETURN_BATCH, (
        "    images = tf.cast(images, tf.float32)\n"
        "    if training:\n"
        f"        images = {expression}\n"
        "    return images, labels\n"
    )


# A model of a class of its own, of whose layers one is not used.
FORGETFUL = """

class Forgetful(keras.Model):
    def __init__(self):
        super().__init__()
        self.used, self.unused = keras.layers.Dense(10), keras.layers.Dense(5, name="forgotten")
        self.unused.build([None, 64])

    def call(self, inputs):
        return self.used(keras.layers.Flatten()(inputs))


def create_model_and_optimizer(strategy):
    with strategy.scope():
        model, optimizer = Forgetful(), keras.optimizers.Adam(LEARNING_RATE)
        model(tf.zeros([1, 8, 8, 1]))
    return model, optimizer


def create_loss_objects("""

# As keras.metrics.R2Score and F1Score do.
LATE_METRIC = (
    "\n\ndef create_metrics(",
    """

class LateAccuracy(keras.metrics.SparseCategoricalAccuracy):
    late = None

    def update_state(self, *args):
        self.late = self.late or self.add_variable((), "zeros", name="late")
        super().update_state(*args)


def create_metrics(""",
)

# As Keras's own metrics never are: one number for each class.
EACH = (
    "\n\ndef create_metrics(",
    """

class Each(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="each")
        self.seen = self.add_variable([10], "zeros", name="seen")

    def update_state(self, labels, predictions, sample_weight):
        self.seen.assign_add(tf.reduce_sum(tf.one_hot(labels, 10) * sample_weight[:, None], axis=0))

    def result(self):
        return tf.convert_to_tensor(self.seen)


def create_metrics(""",
)

NOISE = """

class Noise(keras.layers.Layer):
    def call(self, inputs, training=False):
        return inputs + tf.random.normal(tf.shape(inputs)) if training else inputs


def create_model_and_optimizer("""

# A model that draws random numbers itself, and has other layers too.
DRAWING = """

class Drawing(keras.Model):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)
        self.norm = keras.layers.BatchNormalization(name="norm")
        self.flat, self.dense = keras.layers.Flatten(), keras.layers.Dense(10)

    def call(self, inputs, training=False):
        x = self.norm(self.flat(inputs), training=training)
        if training:
            x += keras.random.normal(tf.shape(x), seed=self.seeds)
        return self.dense(x)


def create_model_and_optimizer(strategy):
    with strategy.scope():
        model, optimizer = Drawing(), keras.optimizers.Adam(LEARNING_RATE)
        model(tf.zeros([1, 8, 8, 1]))
    return model, optimizer


def create_loss_objects("""

LOSES_SHAPES = """    images, labels = batch
    return tf.numpy_function(lambda x: x, [images], tf.uint8), labels
"""

# By name: the edits, the hook to blame, and what the message says of it.
MISTAKES = {
    "mean-in-the-loss": (
        [
            (
                "tf.nn.compute_average_loss(losses, sample_weight, "
                "global_batch_size=GLOBAL_BATCH_SIZE)\n",
                "tf.reduce_mean(losses)\n",
            )
        ],
        "compute_loss",
        ["takes the mean over a replica's own examples", "compute_average_loss"],
    ),
    "unscaled-regularization": (
        [
            (
                "tf.nn.scale_regularization_loss(tf.add_n(regularization))",
                "tf.add_n(regularization)",
            ),
            (PREDICTIONS, PREDICTIONS.replace("10", '10, kernel_regularizer="l2"')),
        ],
        "compute_loss",
        ["a regularization loss that doesn't go through tf.nn.scale_regularization_loss"],
    ),
    "reduced-loss": (
        [(LOSS, LOSS.replace(', reduction="none"', ""))],
        "create_loss_objects",
        ["a loss that gives one number, reduced already", 'reduction="none"'],
    ),
    "losses-of-all-examples": (
        [
            (
                RETURN_LOSSES,
                "    losses = loss_object(labels, predictions)\n"
                "    return losses + tf.reduce_mean(losses)\n",
            )
        ],
        "compute_losses",
        ["gives an example another value in a batch than alone: it mixes the examples"],
    ),
    "tf-random": (
        [augment("images + tf.random.normal([8, 8, 1])")],
        "preprocess",
        ["other features when it is called again with the same seeds", "not from tf.random"],
    ),
    "np-random": (
        [augment("images * np.random.uniform(0.5, 1.5)")],
        "preprocess",
        ["other features when it is called again with the same seeds", "np.random"],
    ),
    "one-seed-for-all": (
        [augment("tf.image.stateless_random_contrast(images, 0.5, 1.5, seed=seeds[0])")],
        "preprocess",
        ["for the same examples in a batch of 2 than in one of 4", "with its own seed"],
    ),
    "statistics-of-the-batch": (
        [
            return_batch(
                images="tf.cast(images, tf.float32) - tf.reduce_mean(tf.cast(images, tf.float32))"
            )
        ],
        "preprocess",
        ["for the same examples in a batch of 2 than in one of 4"],
    ),
    "unknown-size": (
        [(SPLITS, SPLITS.replace(") for i", ").filter(lambda _, label: label > 0) for i"))],
        "create_datasets",
        [
            "doesn't say how many examples the train and validation and test dataset",
            "assert_cardinality",
        ],
    ),
    "another-order-each-time": (
        [("np.random.default_rng(0)", "np.random.default_rng()")],
        "create_datasets",
        ["gives the train and validation and test dataset in another order", "a seed of its own"],
    ),
    "labels-that-broadcast": (
        [
            return_batch(labels="tf.cast(labels, tf.float32)"),
            (PREDICTIONS, PREDICTIONS.replace("10", "1")),
            (LOSS, SQUARES),
            MEAN_METRIC,
        ],
        "create_loss_objects",
        ["mixes the examples", "labels are (4,), predictions (4, 1)", "broadcasts"],
    ),
    "predictions-that-broadcast": (
        [
            return_batch(labels="tf.cast(labels, tf.float32)[:, None]"),
            (
                PREDICTIONS,
                PREDICTIONS.replace("10", "1") + " " * 16 + "keras.layers.Reshape([]),\n",
            ),
            (LOSS, PAIRS),
            MEAN_METRIC,
        ],
        "create_loss_objects",
        ["gives (4, 4) for 4 examples", "labels are (4, 1), predictions (4,)", "broadcasts"],
    ),
    "unused-layer": (
        [("\n\ndef create_loss_objects(", FORGETFUL)],
        "create_model_and_optimizer",
        ["get no gradient", "forgotten/kernel, ", "forgotten/bias. Is their layer used?"],
    ),
    "gradient-that-stops": (
        [
            (
                PREDICTIONS,
                PREDICTIONS + " " * 16 + "keras.layers.Lambda(tf.stop_gradient),\n"
                " " * 16 + "keras.layers.Dense(10),\n",
            )
        ],
        "create_model_and_optimizer",
        ["get no gradient", "conv2d", "stop_gradient"],
    ),
    "model-outside-the-scope": (
        [(SCOPE_OF_MODEL, SCOPE_OF_MODEL.replace("with strategy.scope()", "if True"))],
        "create_model_and_optimizer",
        ["makes variables of the model outside strategy.scope()", "Indent"],
    ),
    "metrics-outside-the-scope": (
        [(METRICS, METRICS.replace("with strategy.scope()", "if True"))],
        "create_metrics",
        ["makes variables of metrics outside strategy.scope()", "Indent"],
    ),
    "two-metrics-of-a-name": (
        [(METRIC, f"{METRIC}, {METRIC}")],
        "create_metrics",
        ["has two values named 'accuracy'"],
    ),
    "metric-that-is-built-late": (
        [
            (METRIC, METRIC.replace("keras.metrics.SparseCategoricalAccuracy", "LateAccuracy")),
            LATE_METRIC,
        ],
        "create_metrics",
        ["'accuracy', that makes variables when it is first updated"],
    ),
    "slices-to-the-optimizer": (
        [
            (SCALING, EMBEDDING),
            (UPDATE, "    optimizer.apply(gradients, model.trainable_variables)\n"),
        ],
        "train_step",
        ["the gradients of sequential/embedding/embeddings as tf.IndexedSlices", "`update`"],
    ),
    "loss-of-pixels": (
        [
            return_batch(labels="tf.cast(images, tf.float32) / 16"),
            (PREDICTIONS, PREDICTIONS.replace("10", "64") + " " * 16 + IMAGES),
            (LOSS, 'keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")'),
            MEAN_METRIC,
        ],
        "create_loss_objects",
        ["gives (4, 8, 8) for 4 examples", "tf.reduce_mean(losses, axis=[1, 2])"],
    ),
    "step-of-two": (
        [(UNPACK, UNPACK.replace("labels, sample_weight = batch", "labels = batch"))],
        "train_step",
        [
            "fails in compute_gradients (train.py, line ",
            "(features, labels, sample_weight), always",
        ],
    ),
    "unbuilt-model": (
        [("                keras.Input([8, 8, 1]),\n", "")],
        "create_model_and_optimizer",
        ["returns a model that isn't built: give it keras.Input"],
    ),
    "vector-for-a-metric": (
        [(METRIC, "Each()"), EACH],
        "create_metrics",
        ["has a metric, 'each', of shape (10,): the log takes one number"],
    ),
    "float64-weights": (
        [return_batch(labels="labels, tf.ones(tf.shape(labels), tf.float64)")],
        "preprocess",
        ["gives sample_weight float64 of shape (4,) for 4 examples: float32 of shape (4,) is due"],
    ),
    "weights-by-name": (
        [return_batch(labels="labels, {x: tf.ones(tf.shape(labels)) for x in ('a', 'b')}")],
        "preprocess",
        ["gives 2 sample_weights for each example, where one is due", "in compute_losses"],
    ),
    "weights-of-nothing": (
        [return_batch(labels="labels, tf.fill(tf.shape(labels), float(training))")],
        "preprocess",
        ["gives all examples of the validation split the weight 0"],
    ),
    "tf-random-in-a-layer": (
        [
            ("\n\ndef create_model_and_optimizer(", NOISE),
            (PREDICTIONS, " " * 16 + "Noise(),\n" + PREDICTIONS),
        ],
        "create_model_and_optimizer",
        ["draws random numbers which no checkpoint holds", "keras.random.SeedGenerator"],
    ),
    "normalization-beside-a-generator": (
        [("\n\ndef create_loss_objects(", DRAWING)],
        "create_model_and_optimizer",
        ["makes a BatchNormalization, 'norm', that is not synchronized", "synchronized=True"],
    ),
    "shape-that-is-lost": (
        [("    return batch\n", LOSES_SHAPES)],
        "fetch",
        ["returns a tensor of unknown shape", "tf.ensure_shape"],
    ),
    "exception": (
        [(RETURN_BATCH, "    images = tf.reshape(images, [-1, 7])\n" + RETURN_BATCH)],
        "preprocess",
        ["fails (train.py, line ", "reshape"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_contract_names_the_hook_and_the_cause(mistake, prove):
    edits, hook, words = MISTAKES[mistake]
    _, output, outcomes = prove(*edits, only="contract")
    # The others pass, or are skipped where this one leaves nothing to check.
    assert {name for name in outcomes if outcomes[name] != "PASSED"} == {contract_of(hook)}, output
    messages = "\n".join(line for line in output.splitlines() if line.startswith(f"{hook} "))
    for text in words:
        assert text in messages
    assert "Traceback" not in output


# --------------------------------------------------------------------------------------------------
# Mistakes that show in runs
# --------------------------------------------------------------------------------------------------

CONVOLVED = "                keras.layers.Flatten(),\n"
NORMALIZED = (CONVOLVED, "                keras.layers.BatchNormalization(),\n" + CONVOLVED)
SYNCHRONIZED = (NORMALIZED[0], NORMALIZED[1].replace("()", "(synchronized=True)", 1))

EVALUATION_METRICS = "    update_metrics(metrics, labels, predictions, sample_weight)\n"

# A layer that its configuration doesn't tell the factor of.
FORGETTING_LAYER = """
@keras.saving.register_keras_serializable()
class Times(keras.layers.Layer):
    def __init__(self, factor{default}, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, inputs):
        return self.factor * inputs

    def get_config(self):
        return super().get_config()


def create_model_and_optimizer("""
TIMES = (PREDICTIONS, PREDICTIONS + " " * 16 + "Times(2.0),\n")


def forget(default):
    """Return the edits: a layer with a factor, whose default is that of the saved model."""
    layer = FORGETTING_LAYER.replace("{default}", default)
    return [("\ndef create_model_and_optimizer(", layer), TIMES]


BARE = 'keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="silu"),\n'
IDLE_BIAS = (
    BARE,
    BARE.replace(', activation="silu"', "")
    + "                keras.layers.BatchNormalization(synchronized=True),\n"
    + '                keras.layers.Activation("silu"),\n',
)

# By name: the edits, the test that fails, and what the message says.
MISTAKES_IN_RUNS = {
    "batch-normalization": (
        [NORMALIZED],
        REPLICAS,
        [
            "gives other numbers on 2 replicas than on 1",
            "create_model_and_optimizer makes a BatchNormalization, 'batch_normalization', that ",
            "is not synchronized",
            "give it synchronized=True",
        ],
    ),
    "bias-before-normalization": (
        [IDLE_BIAS],
        REPLICAS,
        [
            "gives other numbers on 2 replicas than on 1",
            "what sequential/conv2d/bias adds, a BatchNormalization takes away again",
            "give its layer use_bias=False",
        ],
    ),
    "padding-that-counts": (
        [(EVALUATION_METRICS, EVALUATION_METRICS.replace("sample_weight", "None"))],
        EVALUATION,
        ["The accuracy of the test split is ", "evaluation_step", "doesn't count with sample_w"],
    ),
    "tf-random": (
        MISTAKES["tf-random"][0],
        KILLED,
        [
            "A run that was killed and started again gives other numbers than an undisturbed one",
            "preprocess gives other features when it is called again with the same seeds",
        ],
    ),
    "another-order-each-time": (
        MISTAKES["another-order-each-time"][0],
        WORKERS,
        [
            "Two workers give other numbers than two replicas in one process",
            "create_datasets gives the train and validation and test dataset in another order",
        ],
    ),
    "configuration-without-an-argument": (
        forget("=1.0"),
        EXPORT,
        [
            "create_model_and_optimizer: model.keras in export/ predicts something else",
            "get_config leaves out an argument",
        ],
    ),
    "configuration-that-does-not-load": (
        forget(""),
        EXPORT,
        ["create_model_and_optimizer: model.keras in export/ can't be loaded", "get_config"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES_IN_RUNS)
def test_run_names_the_hook_and_the_cause(mistake, prove):
    edits, test, words = MISTAKES_IN_RUNS[mistake]
    _, output, outcomes = prove(*edits, only=test)
    assert outcomes == {test: "FAILED"}, output
    for text in words:
        assert text in output
    assert "Traceback" not in output


def test_synchronized_normalization_is_no_mistake(prove):
    _, output, outcomes = prove(SYNCHRONIZED, only=f"contract or {REPLICAS}")
    assert len(outcomes) == len(HOOKS) + 1
    assert set(outcomes.values()) == {"PASSED"}, output


def test_metric_by_its_index_is_no_mistake(prove):
    shared = "    update_metrics(train_metrics, labels, predictions, sample_weight)\n"
    own = "    train_metrics[0].update_state(labels, predictions, sample_weight)\n"
    _, output, outcomes = prove((shared, own), only="contract")
    assert set(outcomes.values()) == {"PASSED"}, output


def test_exception_in_a_run_names_the_hook(prove):
    # It passes a batch of 4, and fails in the batches of a run.
    broken = "    images = tf.ensure_shape(images, [4, 8, 8, 1])\n"
    edits = [(RETURN_BATCH, broken + RETURN_BATCH)]
    project_dir, output, outcomes = prove(*edits, only=REPLICAS)
    assert outcomes == {REPLICAS: "FAILED"}
    lines = (project_dir / "train.py").read_text(encoding="utf-8").splitlines()
    line = lines.index(broken.rstrip()) + 1
    assert (
        f"broke off with exit code 1. It happened in preprocess (train.py, line {line})" in output
    )
