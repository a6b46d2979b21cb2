"""What the checks of the hooks share: comparisons, batches of the user's data, and the models."""

import contextlib
import functools
import inspect
import re

import train
from train import keras, np, tf  # train.py imports them without TensorFlow's messages

SPLITS = ("train", "validation", "test")
PARTS = ("features", "labels", "sample_weight")  # returned by `preprocess`
SAVING_ADVICE = (
    "give each class of your own @keras.saving.register_keras_serializable(), a get_config with "
    "all arguments, and a build that creates its variables and builds its layers; call a backbone "
    "of KerasHub as a layer: backbone(backbone.input)"
)


class Hint(str):
    """What a check finds that may be intended."""


# ----------------------------------------------------------------------------------------------
# Comparisons
# ----------------------------------------------------------------------------------------------


def is_same(one, other):
    """Return whether two arrays are bit-identical."""
    one = np.asarray(one)
    other = np.asarray(other)
    if one.shape != other.shape:
        return False
    if one.dtype.kind == "O":  # strings
        return np.array_equal(one, other)
    return one.tobytes() == other.tobytes()


def is_close(one, other):
    """Return whether two structures of tensors are equal up to rounding."""
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    return all(is_array_close(np.asarray(a), np.asarray(b)) for a, b in pairs)


def is_array_close(one, other):
    is_half = one.dtype in ("bfloat16", "float16")
    tolerance = 3e-2 if is_half else 1e-3
    if is_half:  # np.allclose doesn't know bfloat16
        one = one.astype("float32")
        other = other.astype("float32")
    return one.shape == other.shape and np.allclose(
        one, other, rtol=tolerance, atol=tolerance / 100, equal_nan=True
    )


def is_same_or_close(one, other):
    """Return whether floating-point arrays are close, or others are the same."""
    if one.dtype.kind in "fc":
        return is_close(one, other)
    return is_same(one, other)


def differs_from_call_to_call(function, *arguments):
    """Return whether a function returns something else for the same arguments, as if it draws."""
    result = function(*arguments)
    again = function(*arguments)
    return not is_close(result, again)


def find_differences(batches, others, are_equal=is_same):
    """Return which of features, labels and sample weights differ between the same examples."""
    differences = []
    for name in batches[0]:
        pairs = zip(join_batches(batches, name), join_batches(others, name), strict=True)
        if not all(are_equal(one, other) for one, other in pairs):
            differences.append(name)
    return differences


def join_batches(batches, name):
    """Return the arrays of a part, each with the examples of all batches."""
    columns = zip(*[batch[name] for batch in batches], strict=True)
    return [np.concatenate(column) for column in columns]


def join(texts):
    """Return texts as a list in a sentence."""
    *others, last = texts
    if others:
        return f"{', '.join(others)} and {last}"
    return last


def list_first(texts):
    """Return the first three texts as a list in a sentence, and how many more there are."""
    if len(texts) > 4:
        texts = [*texts[:3], f"{len(texts) - 3} more"]
    return join(texts)


def describe_error(error):
    """Return the type of an exception, and the first lines of its message that give a reason.

    TensorFlow's message may have pages, and begin with a heading and a traceback.
    """
    nodes_and_bold = r"\[\[\{\{node.*|\x1b\[\dm"
    text = re.sub(nodes_and_bold, "", str(error))
    values = r"<tf\.Tensor.*?>|tf\.Tensor\(.*?\)|\[\[.*\]\]"
    text = re.sub(values, "a tensor", text, flags=re.DOTALL)
    frames = r'^ *File ".*\n.*$'
    text = re.sub(frames, "", text, flags=re.MULTILINE)
    headings = "in user code:|Graph execution error:|Detected at .*|<stack traces.*"
    text = re.sub(headings, "", text)
    text = text.rpartition("Exception encountered: ")[2]  # after Keras's dump of a config
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and "traceback" not in line]
    kind = f"{type(error).__name__}: "
    text = " ".join(lines[:3])[:500]
    return text if text.startswith(kind) else kind + text  # AutoGraph's text has it


# ----------------------------------------------------------------------------------------------
# Data
# ----------------------------------------------------------------------------------------------


@functools.cache
def read_examples(split):
    """Return up to 32 examples of a split, as a dataset that is the same for all checks."""
    splits = list(train.create_datasets())
    examples = splits[split].take(32).batch(32).get_single_element()
    return tf.data.Dataset.from_tensor_slices(examples)


def fetch_batches(batches):
    """Return what the hook `fetch` returns for batches of examples."""
    if type(batches.element_spec) is tuple:  # `map` passes its components as arguments
        return batches.map(lambda *batch: train.fetch(batch))
    return batches.map(train.fetch)


def read_fetched(split):
    """Return fetched batches of 4 examples."""
    return fetch_batches(read_examples(split).repeat().batch(4, drop_remainder=True))


def create_batches(split, size, training):
    """Return a dataset of 32 preprocessed examples in batches."""
    examples = read_examples(split).repeat().take(32)
    positions = tf.data.Dataset.range(32, output_type=tf.int32)

    def preprocess(batch, position):
        seeds = tf.stack([tf.fill([size], 1), position], axis=1)
        return train.preprocess(train.fetch(batch), seeds, training)

    batches = tf.data.Dataset.zip((examples, positions)).batch(size, drop_remainder=True)
    return batches.map(preprocess)


def read_batches(split, size, training):
    """Return 32 preprocessed examples in batches. A batch is a dict of lists of arrays."""
    return [name_parts(batch) for batch in create_batches(split, size, training)]


@functools.cache
def read_first_batches(split, training):
    """Return the batches of 4 that others are compared with."""
    return read_batches(split, 4, training)


def name_parts(batch):
    """Return a dict of the features, labels and sample weights, each a list of arrays."""
    parts = {}
    for name, part in zip(PARTS, batch, strict=False):
        tensors = tf.nest.flatten(part, expand_composites=True)
        parts[name] = [tensor.numpy() for tensor in tensors if tensor is not None]
    return parts


def unpack(preprocessed, size):
    """Return (features, labels, sample_weight), as the steps get them."""
    features, labels, weight = keras.utils.unpack_x_y_sample_weight(preprocessed)
    if weight is None:
        weight = tf.ones([size])
    return features, labels, weight


def cut_batch(structure, size):
    """Cut [4, …] tensors into batches of a smaller size."""
    batches = []
    for start in range(0, 4, size):
        places = list(range(start, start + size))
        batches.append(select_examples(structure, places))
    return batches


def select_examples(structure, places):
    """Return the examples at some places of [4, …] tensors.

    None and tensors without a batch dimension, such as a learned scale, remain as they are.
    """

    def select(tensor):
        if not has_batch_dimension(tensor):
            return tensor
        part = tf.gather(tensor, places)
        mask = getattr(tensor, "_keras_mask", None)
        if mask is not None:  # Keras's losses leave out the tokens that it masks
            part._keras_mask = tf.gather(mask, places)
        return part

    return tf.nest.map_structure(select, structure)


def has_batch_dimension(tensor):
    return tensor is not None and tensor.shape[:1] == (4,)


def flatten_tensors(structure):
    """Return the tensors of a structure, without None."""
    return [tensor for tensor in tf.nest.flatten(structure) if tensor is not None]


# ----------------------------------------------------------------------------------------------
# Models
# ----------------------------------------------------------------------------------------------


def find_layers(models):
    """Return all layers, nested ones too. Keras has no public function for it."""
    return [layer for model in tf.nest.flatten(models) for layer in model._flatten_layers()]


def is_random(layer):
    return any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())


def has_training_argument(layer):
    return "training" in inspect.signature(layer.call).parameters


def disable_randomness(models):
    """Make random layers behave as in evaluation, except RandomCrop, which would not crop then."""
    for layer in find_layers(models):
        is_crop = isinstance(layer, keras.layers.RandomCrop)
        if is_random(layer) and has_training_argument(layer) and not is_crop:
            layer.call = call_as_in_evaluation(layer.call)


def call_as_in_evaluation(call):
    @functools.wraps(call)
    def call_without_training(*args, **kwargs):
        kwargs["training"] = False
        return call(*args, **kwargs)

    return call_without_training


def set_globals(batch_size, strategy=None):
    """Set what `main` sets before it calls the hooks that create the model, losses and metrics."""
    if strategy is None:
        strategy = tf.distribute.get_strategy()
    train.strategy = strategy
    train.config.global_batch_size = batch_size
    train.config.replicas = strategy.num_replicas_in_sync
    train.GLOBAL_BATCH_SIZE = batch_size
    train.reset_keras()
    train.state.step_in_graph = tf.Variable(0.0)  # an edited step may read it
    # Only the complete script uses this metric.
    train.gradient_norm = keras.metrics.Mean(name="gradient_norm")


def create_training_state(strategy=None):
    """Create the model and all that belongs to it, for batches of 4. Return a batch."""
    set_globals(4, strategy)
    strategy = train.strategy
    train.model, train.optimizer = train.create_model_and_optimizer(strategy)
    train.loss_object = train.create_loss_objects(strategy)
    metrics = train.create_metrics(strategy)
    train.train_metrics, train.validation_metrics, train.test_metrics = metrics
    fetched = next(iter(read_fetched(0)))
    seeds = tf.reshape(tf.range(8), [4, 2])
    return unpack(train.preprocess(fetched, seeds, training=True), 4)


def read_validation_batches(count):
    """Return batches of the validation split, as `validation_step` gets them."""
    seeds = tf.zeros([4, 2], tf.int32)
    batches = [train.preprocess(x, seeds, training=False) for x in read_fetched(1).take(count)]
    return [unpack(batch, 4) for batch in batches]


def run_validation_step():
    """Run `validation_step` on a batch of the validation split."""
    [batch] = read_validation_batches(1)
    train.validation_step(batch)


@functools.cache
def create_mirrored_strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def find_unmirrored(variables):
    """Return the paths of the variables that are not on both replicas."""
    paths = []
    for variable in variables:
        if not isinstance(variable.value, tf.distribute.DistributedValues):
            paths.append(variable.path)
    return paths


def is_plain_model(batch):
    """Return whether there is one model that takes the features of a training batch.

    How another model is called, or several, only the steps know. If they fail too, the model is
    called as a plain one, so that its error is reported.
    """
    if not isinstance(train.model, keras.Model):
        return False
    features, _, _ = batch
    if can_run(train.model, features, training=False):
        return True
    # Evaluation may have features of another structure.
    can_train = has_compute_gradients(batch) and can_run(train.compute_gradients, batch)
    return not can_train and not can_run(run_validation_step)


def has_compute_gradients(batch):
    """Return whether `compute_gradients` takes a batch.

    After an edit, it may be gone, or `train_step` may call it with something else.
    """
    try:
        inspect.signature(train.compute_gradients).bind(batch)
    except (AttributeError, TypeError):
        return False
    # If both fail, the error of the step is reported.
    takes_batch = can_run(train.compute_gradients, batch)
    return takes_batch or not can_run(train.train_step, batch)


def can_run(function, *args, **kwargs):
    """Return whether a function can be called. Restore the model's state."""
    with restore_variables(train.model):
        try:
            function(*args, **kwargs)
        except Exception:  # hooks can raise any type
            return False
    return True


@contextlib.contextmanager
def restore_variables(model, others=()):
    """Restore the state of a model, or of a tuple of models, and of other variables after calls."""
    variables = [*train.list_variables(model), *others]
    values = [variable.numpy() for variable in variables]
    yield
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


@contextlib.contextmanager
def replace(owner, name, value):
    """Replace an attribute for a while."""
    replaced = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, replaced)


@contextlib.contextmanager
def replace_calls(layers, wrap):
    """Replace the `call` of each layer for a while by what wrap(layer, call) returns."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            call = functools.wraps(layer.call)(wrap(layer, layer.call))
            stack.enter_context(replace(layer, "call", call))
        yield


def without_regularization():
    """Set regularization losses to 0: they are the same on all replicas, and count once."""
    return replace(tf.nn, "scale_regularization_loss", tf.zeros_like)


@contextlib.contextmanager
def pretend_two_replicas():
    """Have hooks read two replicas, by which they may divide a loss of no example."""
    two = property(lambda self: 2)
    with (
        replace(train.config, "replicas", 2),
        replace(type(train.strategy), "num_replicas_in_sync", two),
    ):
        yield
