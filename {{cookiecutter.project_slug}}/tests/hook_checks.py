"""Separate checks of each hook of train.py. train_runs.py runs them in a process of their own.

A check is a generator. It yields problems: what is wrong with the hook, and what to do.
"""

import contextlib
import functools
import gc
import inspect
import json
import math
import numbers
import re
import tempfile
import traceback

from hook_names import HOOKS, STEPS, TOO_EARLY, find_frames, find_hook

import train
from train import keras, np, tf  # train.py imports them without TensorFlow's messages

SPLITS = ("train", "validation", "test")
PARTS = ("features", "labels", "sample_weight")  # returned by `preprocess`

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
    examples = train.create_datasets()[split].take(32).batch(32).get_single_element()
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
    """Cut [4, …] tensors into batches of a smaller size.

    None and tensors without a batch dimension, such as a learned scale, remain as they are.
    """

    def select(first):
        def cut(tensor):
            if not has_batch_dimension(tensor):
                return tensor
            part = tensor[first : first + size]
            mask = getattr(tensor, "_keras_mask", None)
            if mask is not None:  # Keras's losses leave out the tokens that it masks
                part._keras_mask = mask[first : first + size]
            return part

        return tf.nest.map_structure(cut, structure)

    return [select(first) for first in range(0, 4, size)]


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


def set_globals(batch_size):
    """Set what `main` sets before it calls the hooks that create the model, losses and metrics."""
    train.strategy = tf.distribute.get_strategy()
    train.config.global_batch_size = batch_size
    train.config.replicas = 1
    train.GLOBAL_BATCH_SIZE = batch_size
    train.reset_keras()
    train.state.step_in_graph = tf.Variable(0.0)  # an edited step may read it
    # Only the complete script uses this metric.
    train.gradient_norm = keras.metrics.Mean(name="gradient_norm")


def create_training_state():
    """Create the model and all that belongs to it, for batches of 4. Return a batch."""
    set_globals(batch_size=4)
    strategy = train.strategy
    train.loss_object = train.create_loss_objects(strategy)
    train.model, train.optimizer = train.create_model_and_optimizer(strategy)
    metrics = train.create_metrics(strategy)
    train.train_metrics, train.validation_metrics, train.test_metrics = metrics
    fetched = next(iter(read_fetched(0)))
    seeds = tf.reshape(tf.range(8), [4, 2])
    return unpack(train.preprocess(fetched, seeds, training=True), 4)


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
    return not can_train and not can_run(train.validation_step, batch)


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
def restore_variables(model):
    """Restore the state of a model, or of a tuple of models, after calls of it."""
    variables = train.list_variables(model)
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


# ----------------------------------------------------------------------------------------------
# create_datasets, adapt, fetch
# ----------------------------------------------------------------------------------------------


def check_datasets():
    splits = train.create_datasets()
    if len(splits) != 3:
        yield f"returns {len(splits)} datasets; return 3: train, validation and test"
        return
    yield from check_sizes(splits)
    yield from check_element_specs(splits)
    yield from check_order(splits)


def check_sizes(splits):
    problems = {
        tf.data.UNKNOWN_CARDINALITY: (
            "the number of examples in {} is unknown, as after .filter or from_generator; "
            "add .apply(tf.data.experimental.assert_cardinality(n))"
        ),
        tf.data.INFINITE_CARDINALITY: (
            "the examples of {} repeat forever; remove .repeat(), since train.py counts epochs"
        ),
        0: "there are no examples in {}; each split needs some",
    }
    sizes = [int(split.cardinality()) for split in splits]
    for size, problem in problems.items():
        names = [name for name, each in zip(SPLITS, sizes, strict=True) if each == size]
        if names:
            yield problem.format(join(names))


def check_element_specs(splits):
    first = splits[0].element_spec
    for spec in tf.nest.flatten(first):
        is_ragged = isinstance(spec, tf.RaggedTensorSpec)
        if is_ragged or (has_unknown_shape(spec) and not can_be_stacked(splits[0])):
            yield (
                f"examples have no common shape, {spec}; pad them, or return places, such as file "
                "names, and read and pad in `fetch`"
            )
            return
    for split, name in zip(splits, SPLITS, strict=True):
        if split.element_spec != first:
            yield (
                f"the elements of {name} are {split.element_spec}, but train has {first}; "
                "return the same structure, shapes and dtypes"
            )


def has_unknown_shape(spec):
    return spec.shape.rank is None or None in spec.shape


def can_be_stacked(split):
    """Return whether the first examples have the same shapes, as images decoded by `map` may."""
    try:
        split.take(32).batch(32).get_single_element()
    except tf.errors.InvalidArgumentError:
        return False
    return True


def check_order(splits):
    names = []
    for name, split, again in zip(SPLITS, splits, train.create_datasets(), strict=True):
        if not start_with_same_examples(split, again):
            names.append(name)
    if names:
        yield (
            f"the order or the examples of {join(names)} change when it is called again; draw "
            "from a generator with a fixed seed, such as np.random.default_rng(0) (train.py "
            "shuffles each epoch)"
        )


def start_with_same_examples(split, other):
    for pair in tf.data.Dataset.zip((split, other)).take(32):
        values = zip(*map(tf.nest.flatten, pair), strict=True)
        if not all(is_same(a, b) for a, b in values):
            return False
    return True


def check_adapt():
    """Check the result of `adapt`, and fill `adapted` with it for the other hooks."""
    split, _, _ = train.create_datasets()
    result = train.adapt(split)
    if not isinstance(result, dict):
        yield f"returns {type(result).__name__}; return a dict, which may be empty"
        return
    train.adapted.update(result)
    try:
        loaded = json.loads(json.dumps(result))
    except (TypeError, ValueError) as error:
        yield f"returns what JSON can't store ({error}); use float(x), array.tolist() and the like"
        return
    train.adapted.update(loaded)
    changed = [str(key) for key in result if key not in loaded or loaded[key] != result[key]]
    if changed:
        yield f"JSON changes its {join(changed)}; use str keys and lists (no tuples), and no NaN"
    elif train.adapt(split) != result:
        yield (
            "returns something else when it is called again; sort sets, and draw from a "
            "generator with a fixed seed, such as np.random.default_rng(0)"
        )


UNKNOWN_RANK = (
    "a tensor of unknown shape, as after tf.numpy_function; set it with "
    "tf.ensure_shape(x, [None, …])"
)


def has_unknown_rank(batches):
    """Return whether TensorFlow doesn't know the rank of a tensor when it traces a step."""
    specs = tf.nest.flatten(batches.element_spec)
    return any(getattr(spec, "shape", tf.TensorShape([])).rank is None for spec in specs)


def check_fetch():
    for split in (0, 1):
        fetched = read_fetched(split)
        if has_unknown_rank(fetched) and has_unknown_rank(create_batches(split, 4, split == 0)):
            yield f"returns {UNKNOWN_RANK}"
            return
        for tensor in tf.nest.flatten(next(iter(fetched))):
            if tensor.shape[:1] != (4,):
                yield f"returns shape {tensor.shape} for 4 examples; return [4, …]"
                return


# ----------------------------------------------------------------------------------------------
# preprocess
# ----------------------------------------------------------------------------------------------


def check_preprocess():
    """Check `preprocess` in training and in evaluation, up to the first problem."""
    checks = (
        check_ranks,  # first, because a lookup table must not be created in the graph
        check_parts,
        check_shapes,
        check_weights,
        check_seeds,
        check_batch_sizes,
    )
    for split, training in ((0, True), (1, False)):
        for check in checks:
            for problem in check(split, training):
                yield f"with training={training}, {problem}"
                return
    yield from check_evaluation_weights(split=1)


def check_parts(split, training):
    fetched = next(iter(read_fetched(split)))
    returned = train.preprocess(fetched, tf.ones([4, 2], tf.int32), training)
    if not isinstance(returned, tuple) or len(returned) not in (1, 2, 3):
        yield (
            f"it returns {type(returned).__name__}; return the tuple (features,), "
            "(features, labels) or (features, labels, sample_weight)"
        )


def check_ranks(split, training):
    if has_unknown_rank(read_fetched(split)):
        return  # the check of `fetch` reports it
    if has_unknown_rank(create_batches(split, 4, training)):
        yield f"it returns {UNKNOWN_RANK}"


def check_shapes(split, training):
    batches = read_first_batches(split, training)
    for name, arrays in batches[0].items():
        shapes = {", ".join(str(array.shape) for array in batch[name]) for batch in batches}
        if len(shapes) > 1:
            some = join(sorted(shapes)[:2])
            yield f"the shapes of {name} differ between batches, {some}; pad or cut them"
        for array in arrays:
            if array.shape[:1] != (4,):
                yield (
                    f"the shape of {name} is {array.shape} for 4 examples; return [4, …]. tf.data "
                    "stacks the tensors of a list: return a tuple or a dict"
                )


def check_weights(split, training):
    weights = read_first_batches(split, training)[0].get("sample_weight", [])
    if len(weights) > 1:
        yield (
            f"each example has {len(weights)} sample weights; return one, [batch]. Put weights of "
            "parts of the labels among the labels, and use them in compute_losses"
        )
    for weight in weights:
        if weight.shape != (4,) or weight.dtype != np.float32:
            yield (
                f"sample_weight is {weight.dtype} of shape {weight.shape} for 4 examples; return "
                "float32 of shape (4,). Put weights of tokens or pixels among the labels, and use "
                "them in compute_losses"
            )


def check_seeds(split, training):
    batches = read_first_batches(split, training)
    changed = find_differences(batches, read_batches(split, 4, training))
    if changed:
        yield (
            f"{join(changed)} change when it is called again with the same seeds; draw from "
            "`seeds` (tf.random.stateless_…, tf.image.stateless_random_…), not from tf.random, "
            "np.random or random"
        )


def check_batch_sizes(split, training):
    """Check that examples don't depend on others of the batch, which replicas share."""
    batches = read_first_batches(split, training)
    halves = read_batches(split, 2, training)
    changed = find_differences(batches, halves, is_same_or_close)
    if changed:
        yield (
            f"{join(changed)} of an example differ between a batch of 2 and a batch of 4; handle "
            "each example separately, with its own seed"
        )


def check_evaluation_weights(split):
    batches = read_first_batches(split, False)
    if batches[0].get("sample_weight") and not has_weight(split):
        yield (
            "all examples of the validation split have weight 0, so their loss is always 0; give "
            "some a weight above 0"
        )


def has_weight(split):
    """Return whether any example of a split has a weight above 0 in evaluation."""
    for fetched in fetch_batches(train.create_datasets()[split].batch(128)):
        count = len(tf.nest.flatten(fetched)[0])
        seeds = tf.zeros([count, 2], tf.int32)
        *_, weight = train.preprocess(fetched, seeds, training=False)
        if tf.reduce_any(weight > 0):
            return True
    return False


# ----------------------------------------------------------------------------------------------
# create_model_and_optimizer
# ----------------------------------------------------------------------------------------------


def check_model():
    set_globals(batch_size=4)
    created = train.create_model_and_optimizer(create_mirrored_strategy())
    if not are_models_and_optimizers(created):
        yield (
            "doesn't return a model and an optimizer, or a tuple of each, equally long, with None "
            "for a model that isn't trained"
        )
        return
    models, optimizers = map(tf.nest.flatten, created)
    if not all(model.built for model in models):
        yield "returns a model that isn't built; add keras.Input, or call the model"
        return
    yield from check_scope("the model", models)
    yield from check_tracking(models)
    optimizers = [optimizer for optimizer in optimizers if optimizer]
    yield from check_scope("the optimizer", optimizers)
    yield from check_optimizer_tracking(models, created[1])
    # The outer one may be a LossScaleOptimizer.
    yield from check_settings([getattr(each, "inner_optimizer", each) for each in optimizers])
    yield from check_predictions()


def are_models_and_optimizers(created):
    if not isinstance(created, tuple | list) or len(created) != 2:
        return False
    models, optimizers = map(tf.nest.flatten, created)
    if len(models) != len(optimizers):
        return False
    optimizers = [optimizer for optimizer in optimizers if optimizer is not None]
    are_models = all(isinstance(model, keras.Model) for model in models)
    are_optimizers = all(isinstance(x, keras.optimizers.Optimizer) for x in optimizers)
    return are_models and are_optimizers and len(optimizers) > 0


def find_batch_normalization(models):
    layers = find_layers(models)
    return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]


def check_scope(subject, owners):
    paths = find_unmirrored([variable for owner in owners for variable in owner.variables])
    if paths:
        yield (
            f"variables of {subject} are created outside strategy.scope(), so they are not on all "
            f"replicas: {list_first(paths)}; indent the code below `with strategy.scope():`"
        )


def check_tracking(models):
    """Yield a sentence if layers have variables that Keras doesn't know."""
    names = set()
    # Keras's lookup layers save their variables themselves.
    layers = [x for x in find_layers(models) if not type(x).__module__.startswith("keras")]
    for layer in layers:
        for name, value in vars(layer).items():
            if isinstance(value, tf.Variable) and not isinstance(value, keras.Variable):
                names.add(f"{layer.name}.{name.removeprefix('_')}")
    if names:
        yield (
            "Keras neither trains nor saves a tf.Variable of a layer: "
            f"{list_first(sorted(names))}; create it with self.add_weight"
        )


def check_optimizer_tracking(models, optimizers):
    """Yield a sentence if optimizers have variables that Keras doesn't know."""
    names = set()
    for model, optimizer in zip(models, tf.nest.flatten(optimizers), strict=True):
        if not optimizer or type(optimizer).__module__.startswith("keras"):
            continue
        with create_mirrored_strategy().scope():
            optimizer.build(model.trainable_variables)
        known = {id(variable) for variable in (*optimizer.variables, *model.variables)}
        for name, values in vars(optimizer).items():
            if name.startswith("_self_"):
                continue  # TensorFlow's
            parts = tf.nest.flatten(values)
            if any(is_unknown_variable(part, known) for part in parts):
                names.add(f"{type(optimizer).__name__}.{name}")
    if names:
        yield (
            f"checkpoints don't contain {list_first(sorted(names))}; create the variables in "
            "`build`, with self.add_variable_from_reference"
        )


def is_unknown_variable(value, known_ids):
    return isinstance(value, tf.Variable | keras.Variable) and id(value) not in known_ids


def check_settings(optimizers):
    """Yield a sentence for each setting of an optimizer that is wrong on several replicas."""
    raises = "raises an error on several replicas"
    settings = {
        "gradient_accumulation_steps": (raises, "--accumulation-steps"),
        "ema_overwrite_frequency": (raises, "--ema-momentum"),
        # {% if cookiecutter.distribution == "synchronous" %}
        "clipnorm": (raises, "--clip-norm"),
        "global_clipnorm": (raises, "--clip-norm"),
        "clipvalue": (raises, "--clip-norm"),
        # {% endif %}
    }
    for setting, (problem, flag) in settings.items():
        if any(getattr(optimizer, setting, None) for optimizer in optimizers):
            yield (
                f"the optimizer's {setting} {problem}; use {flag} of the complete script instead"
            )
    if any(type(optimizer).__name__ == "MultiOptimizer" for optimizer in optimizers):
        yield (
            "a MultiOptimizer has no learning rate for the log; return a tuple of models, with an "
            "optimizer each"
        )


def check_predictions():
    batch = create_training_state()
    if creates_variables(train.model, batch):
        yield (
            "the model creates variables when it is called, which is too late in a traced step; "
            "call it in the hook, inside the scope"
        )
        return
    if not is_plain_model(batch):
        return
    features, _, _ = batch
    predictions = tf.nest.flatten(train.model(features, training=False))
    shapes = [str(prediction.shape) for prediction in predictions]
    if not any(map(has_batch_dimension, predictions)):
        yield f"the model predicts shape {join(shapes)} for 4 examples; return [4, …]"
        return
    if not draws_in_evaluation(features) and depends_on_batch(features, training=False):
        yield (
            "the prediction for an example depends on the other examples of the batch in "
            "evaluation, so results depend on the batch size; use statistics of training there, "
            "pad to a fixed length, not to the longest example of the batch, and limit what an "
            "expert of a mixture takes from each example, not from the batch"
        )
    if has_hidden_randomness(features):
        yield (
            "the model draws random numbers that no checkpoint contains (tf.random, np.random?) "
            "or counts in Python, so a killed run can't resume bit-identical; in a layer, use "
            "keras.random with a keras.random.SeedGenerator of the layer, and count in add_weight"
        )


def creates_variables(model, batch):
    """Return whether a model has more variables after a call, as after `build` of a subclass."""
    if not isinstance(model, keras.Model):
        return False
    count = len(model.variables)
    features, _, _ = batch
    with contextlib.suppress(Exception):  # the other checks report it
        model(features, training=False)
    return len(model.variables) > count


def depends_on_batch(features, training):
    """Return whether the prediction for an example depends on the rest of its batch."""

    def predict(part):
        with restore_variables(train.model):  # such as a SpectralNormalization's
            return train.model(part, training=training)

    def join_halves(prediction, one, other):
        return tf.concat([one, other], axis=0) if has_batch_dimension(prediction) else one

    predictions = predict(features)
    halves = map(predict, cut_batch(features, 2))
    try:
        joined = tf.nest.map_structure(join_halves, predictions, *halves)
    except tf.errors.InvalidArgumentError:  # their other dimensions differ
        return True
    return not is_close(predictions, joined)


def draws_in_evaluation(features):
    """Return whether two calls in evaluation differ, as with the sampling layer of a VAE."""
    predictions = [train.model(features, training=False) for _ in range(2)]
    return not is_close(*predictions)


def has_hidden_randomness(features):
    """Return whether two calls in training differ though they start from the same state."""
    predictions = []
    for _ in range(2):
        with restore_variables(train.model):
            predictions.append(train.model(features, training=True))
    return not is_close(*predictions)


# ----------------------------------------------------------------------------------------------
# The losses
# ----------------------------------------------------------------------------------------------


def record_calls(function):
    """Return a function that calls another one, and the list of the arguments of each call."""
    calls = []

    @functools.wraps(function)
    def record(*arguments, **options):
        calls.append((*arguments, *options.values()))
        return function(*arguments, **options)

    return record, calls


def record_arguments(hook, batch):
    """Return the first two arguments of the first call of a hook in a step, or None.

    Calls without a tensor [4, …] don't count, such as for two views of each example. Later calls of
    the model, as in a loss, are made without randomness: two of them are compared.
    """
    record, calls = record_calls(getattr(train, hook))
    with restore_variables(train.model), replace(train, hook, record):
        for step in ("compute_gradients", "validation_step"):
            if not calls:
                with contextlib.suppress(Exception):  # the checks of the other hooks report it
                    getattr(train, step)(batch)
    disable_randomness(train.model)
    pairs = [arguments[:2] for arguments in calls if len(arguments) >= 2]
    for pair in pairs:
        if any(map(has_batch_dimension, flatten_tensors(pair))):
            return pair
    return None


def is_called(hook, batch):
    """Return whether a step calls a hook. If a step fails, assume that it does."""
    record, calls = record_calls(getattr(train, hook))
    with restore_variables(train.model), replace(train, hook, record):
        try:
            train.compute_gradients(batch)
            train.validation_step(batch)
        except Exception:  # the checks of the other hooks report it
            return True
    return bool(calls)


def get_arguments(batch, *hooks):
    """Return the labels and predictions that a step passes to the first of some hooks, or None.

    The predictions may be more than the model's, such as a teacher's, and the labels may be the
    features. If the steps fail before, or call none of the hooks, these are the batch's labels and
    the predictions of a plain model. Of other models, only tensors [4, …] can be checked.
    """
    arguments = None
    for hook in hooks:
        arguments = arguments or record_arguments(hook, batch)
    if is_plain_model(batch):
        features, labels, _ = batch
        return arguments or (labels, train.model(features, training=False))
    if arguments and all(map(has_batch_dimension, flatten_tensors(arguments))):
        return arguments
    return None


def get_loss_arguments(batch):
    return get_arguments(batch, "compute_loss")


def get_losses_arguments(batch):
    """Return the arguments of `compute_losses`. `compute_loss` may get more."""
    return get_arguments(batch, "compute_losses", "compute_loss")


def check_loss_objects():
    batch = create_training_state()
    arguments = get_losses_arguments(batch)
    if not arguments:
        return
    labels, predictions = arguments
    are_means_taken = returns_one_value_per_example(labels, predictions)
    for subject, *arguments in list_losses(labels, predictions):
        yield from check_loss(subject, *arguments, are_means_taken)


def list_losses(labels, predictions):
    """Return (name, loss, its labels, its predictions) of each loss that `compute_losses` calls.

    Losses of other tensors than [4, …] are left out: only `compute_losses` knows what they are.
    """
    losses = train.loss_object
    if callable(losses):
        return [("the loss", losses, *pair) for pair in record_pairs(losses, labels, predictions)]
    found = []
    for key, loss in list_items(losses):
        pairs = record_pairs(loss, labels, predictions, key)
        found += [(f"the loss {key!r}", loss, *pair) for pair in pairs]
    return found


def list_items(losses):
    """Return the keys and losses of a dict or list. Others are not checked."""
    if isinstance(losses, dict):
        return list(losses.items())
    return list(enumerate(losses)) if isinstance(losses, list | tuple) else []


def record_pairs(loss, labels, predictions, key=None):
    """Return the labels and predictions, [4, …] tensors, with which a loss object is called."""
    record, calls = record_calls(loss)
    losses = record
    if isinstance(train.loss_object, dict):
        losses = {**train.loss_object, key: record}
    elif not callable(train.loss_object):
        losses = [record if i == key else x for i, x in enumerate(train.loss_object)]
    with replace(train, "loss_object", losses), contextlib.suppress(Exception):
        train.compute_losses(labels, predictions)  # its own check reports exceptions
    pairs = [arguments[:2] for arguments in calls]
    return [pair for pair in pairs if len(pair) == 2 and all(map(is_tensor_of_batch, pair))]


def is_tensor_of_batch(value):
    return tf.is_tensor(value) and value.shape[:1] == (4,)


@contextlib.contextmanager
def record_gathering():
    """Yield a list that is not empty if a loss reads the batches of all replicas.

    Such a loss may depend on other examples: it is the same on any number of replicas.
    """
    calls = []

    def gather(self, value, axis, options=None):
        calls.append(value)
        return value

    def reduce(self, reduce_op, value, options=None):
        calls.append(value)
        return value

    context = tf.distribute.ReplicaContext
    with replace(context, "all_gather", gather), replace(context, "all_reduce", reduce):
        yield calls


def returns_one_value_per_example(labels, predictions):
    """Return whether `compute_losses` does. Its own check reports exceptions."""
    try:
        return train.compute_losses(labels, predictions).shape == [4]
    except Exception:
        return False


def check_losses():
    batch = create_training_state()
    arguments = get_losses_arguments(batch)
    if not arguments or not is_called("compute_losses", batch):
        return
    labels, predictions = arguments
    yield from check_loss("the result", train.compute_losses, labels, predictions)
    is_zero = not np.any(train.compute_losses(labels, predictions))
    if is_zero and is_trained_by_another_loss(batch) and depends_on_loss(train.score):
        yield (
            "the result is 0 for each example, so all validation losses are 0, and the first epoch "
            "counts as the best: evaluation leaves out what only compute_loss or add_loss adds; "
            "return the model's loss here, or use a metric in `score`"
        )


def is_trained_by_another_loss(batch):
    """Return whether a step has a loss that is not 0, without the regularization of weights."""
    if not has_compute_gradients(batch):
        return False
    with without_regularization(), restore_variables(train.model):
        loss, *_ = train.compute_gradients(batch)
    # Keras has no public way to list only the losses of add_loss.
    has_own_losses = any(layer._losses for layer in find_layers(train.model))
    return has_own_losses or any(map(np.any, flatten_tensors(loss)))


def depends_on_loss(score):
    """Return whether another validation loss changes the score."""
    validation = invent_validation()
    return score(validation) != score({**validation, "loss": 2.0})


def check_loss(subject, loss, labels, predictions, are_means_taken=False):
    """Yield what is wrong with a function that returns the loss of each example.

    A loss object may return losses of parts, such as tokens or pixels. If `compute_losses` doesn't
    take their mean, the check of `compute_losses` reports it.
    """
    with record_gathering() as gathered:
        losses = loss(labels, predictions)
    hint = describe_shapes(labels, predictions)
    axes = find_part_axes(losses, labels, are_means_taken)
    if gathered or (axes and loss is not train.compute_losses):
        return
    if axes:
        hint += f"; take the mean of each example's parts: tf.reduce_mean(losses, axis={axes})"
    if losses.shape == []:
        yield (
            f"{subject} is reduced to one number; for shape [4] here, take no mean over the batch, "
            'and create a loss of Keras with reduction="none"'
        )
    elif losses.shape != [4]:
        yield (
            f"{subject} has shape {tuple(losses.shape)} for 4 examples; return one value for each, "
            f"(4,) ({hint})"
        )
    elif mixes_examples(loss, labels, predictions):
        yield (
            f"{subject} of an example depends on the other examples of the batch; compute each by "
            f"itself ({hint}). To divide by a sum over the batch, such as the number of positives, "
            "divide in compute_loss by the sum over all replicas: "
            'tf.distribute.get_replica_context().all_reduce("SUM", number). A loss that compares '
            "the examples of a batch, such as for retrieval, also belongs in compute_loss"
        )


def describe_shapes(labels, predictions):
    """Return the shapes of labels and predictions as text, with a likely mistake."""
    label_shapes = [tuple(tensor.shape) for tensor in flatten_tensors(labels)]
    shapes = [tuple(tensor.shape) for tensor in flatten_tensors(predictions)]
    text = f"labels are {join(map(str, label_shapes or [None]))}, "
    text += f"predictions {join(map(str, shapes))}"
    for one, other in zip(label_shapes, shapes, strict=False):
        if one != other and math.prod(one) == math.prod(other):
            text += "; their difference broadcasts to all pairs of examples"
    return text


def find_part_axes(losses, labels, are_means_taken):
    """Return the axes of losses that are parts of an example, such as the rows of an image.

    Parts have the labels' shape or, if means of losses with more than two dimensions are taken,
    another resolution. Other losses of two dimensions may be all pairs of examples, by mistake.
    """
    rank = len(losses.shape)
    axes = list(range(1, rank))
    if are_means_taken and rank > 2:
        return axes
    if any(tensor.shape[:rank] == losses.shape for tensor in flatten_tensors(labels)):
        return axes
    return []


def mixes_examples(loss, labels, predictions):
    """Return whether the loss of an example differs between a batch and alone."""
    pairs = zip(cut_batch(labels, 1), cut_batch(predictions, 1), strict=True)
    alone = [tf.reshape(loss(*pair), [1]) for pair in pairs]
    return not is_close(loss(labels, predictions), tf.concat(alone, axis=0))


def check_replica_losses():
    """Check that the losses of two replicas add up to the loss of one."""
    batch = create_training_state()
    arguments = get_loss_arguments(batch)
    if not arguments or not is_called("compute_loss", batch):
        return
    _, _, weight = batch
    labels, predictions = arguments
    with without_regularization(), record_gathering() as gathered:
        whole = train.compute_loss(labels, predictions, weight)
        if whole.shape != []:
            yield f"returns shape {tuple(whole.shape)}; return one number, ()"
            return
        halves = [cut_batch(part, 2) for part in (labels, predictions, weight)]
        with pretend_two_replicas():
            total = float(sum(map(train.compute_loss, *halves)))
    whole = float(whole)
    if gathered or is_close(whole, total):
        return
    numbers = f"the losses of two replicas add up to {total:.6g}, the loss of one is {whole:.6g}"
    if is_close(2 * whole, total):
        yield (
            f"takes the mean over a replica's own examples (tf.reduce_mean?): {numbers}; divide by "
            "GLOBAL_BATCH_SIZE, as tf.nn.compute_average_loss does"
        )
    else:
        yield (
            f"{numbers}; look for a statistic of a replica's own examples, or a regularization "
            "loss without tf.nn.scale_regularization_loss"
        )


# ----------------------------------------------------------------------------------------------
# create_metrics
# ----------------------------------------------------------------------------------------------


def check_metrics():
    set_globals(batch_size=4)
    lists = train.create_metrics(create_mirrored_strategy())
    if len(lists) != 3:
        yield f"returns {len(lists)} lists; return 3: for the train, validation and test split"
    metrics = [metric for each in lists for metric in each]
    if len({id(metric) for metric in metrics}) < len(metrics):
        yield "returns the same metric twice; create one for each list"
    yield from check_names(lists)
    yield from check_scope("metrics", metrics)
    yield from check_updates()


def check_names(lists):
    taken = {"step", "epoch", "split", "loss", "learning_rate", "gradient_norm"}
    taken |= {"examples_per_second", "input_wait"}
    problems = set()
    for metrics in lists:
        names = [metric.name for metric in metrics]
        problems |= {name for name in names if name in taken or names.count(name) > 1}
    for name in sorted(problems):
        yield (
            f"two values of a split are named {name!r}; choose another name (the log has its own "
            f"{', '.join(sorted(taken))})"
        )


def invent_validation():
    """Return a loss and metrics as validation gives them."""
    return {"loss": 1.0, **{metric.name: 1.0 for metric in train.validation_metrics}}


def check_score():
    create_training_state()
    value = train.score(invent_validation())
    if not isinstance(value, numbers.Real):
        yield f"returns {type(value).__name__}; return a number, of which the lowest is the best"


def save_checkpoints(step):
    """Write both checkpoints of a step, which `end_epoch` may read."""
    with replace(train.state, "step", step):
        if hasattr(train, "take_snapshot"):  # in the complete script
            train.take_snapshot()
            best = {kind: x for kind, x in train.state.snapshot.items() if kind != "optimizer"}
            train.write_checkpoints(train.state.snapshot, best)
        else:
            train.create_checkpoints()
            train.save("best")
            train.save("last")


def check_end_epoch():
    create_training_state()
    values = invent_validation()
    history = [{"step": i, "epoch": i, "split": "validation", **values} for i in range(1, 21)]
    stops = []
    states = []
    # What the hook writes goes to a folder of its own, with files that it may read.
    with tempfile.TemporaryDirectory() as folder, replace(train.config, "run_dir", folder):
        lines = [{**line, "split": split} for line in history for split in ("train", "validation")]
        train.run_path("metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        train.run_path("adapted.json").write_text(json.dumps(train.adapted))
        save_checkpoints(len(history))
        for _ in range(2):
            stops.append(bool(train.end_epoch(list(history))))
            variables = train.list_variables((train.model, train.optimizer))
            states.append([variable.numpy() for variable in variables])
    if stops[0] != stops[1] or not all(map(is_same, *states)):
        yield (
            "returns or changes something else when it is called again with the same history, as a "
            "resumed run calls it; compute it from `history` and `config`, not from the last "
            "value, and draw samples inside keras.StatelessScope()"
        )


def check_updates():
    create_training_state()
    fetched = next(iter(read_fetched(1)))
    batch = unpack(train.preprocess(fetched, tf.zeros([4, 2], tf.int32), training=False), 4)
    metrics = train.validation_metrics
    counts = [len(metric.variables) for metric in metrics]
    train.validation_step(batch)
    for metric, count in zip(metrics, counts, strict=True):
        if len(metric.variables) > count:
            yield (
                f"the metric {metric.name!r} creates variables in its first update, which is too "
                "late in a traced step; update it in the hook, inside the scope, and reset it"
            )
        shape = tuple(tf.convert_to_tensor(metric.result()).shape)
        if shape != ():
            yield f"the result of {metric.name!r} has shape {shape}; return one number, ()"


# ----------------------------------------------------------------------------------------------
# train_step
# ----------------------------------------------------------------------------------------------


def list_trainable_variables():
    models = tf.nest.flatten(train.model)
    return [variable for model in models for variable in model.trainable_variables]


def list_gradients(results):
    """Return the gradients in the results of `compute_gradients`, or [] if it has others, too."""
    return tf.nest.flatten(results[1]) if len(results) == 2 else []


def check_gradients():
    """Check that all trainable variables get a gradient."""
    batch = create_training_state()
    if not has_compute_gradients(batch):
        return
    compute = tf.GradientTape.gradient

    def compute_or_none(*args, unconnected_gradients=None, **kwargs):
        """Return None, not zeros, for variables without a path to the loss."""
        return compute(*args, **kwargs)

    # In a graph, as in a run: there, both branches of tf.cond count.
    with replace(tf.GradientTape, "gradient", compute_or_none):
        function = tf.function(train.compute_gradients).get_concrete_function(batch)
    results = function.structured_outputs
    gradients = list_gradients(results)
    variables = list_trainable_variables()
    if len(gradients) != len(variables):
        return  # an edited compute_gradients
    pairs = zip(variables, gradients, strict=True)
    untrained = [variable for variable, gradient in pairs if gradient is None]
    idle = find_idle(untrained, function.graph, results[0])
    idle_ids = set(map(id, idle))
    paths = [variable.path for variable in untrained if id(variable) not in idle_ids]
    if paths:
        yield (
            f"these variables get no gradient, so they are never trained: {list_first(paths)}; use "
            "their layer, look for what cuts the loss off (stop_gradient, tf.argmax, a cast to "
            "integers), or set trainable=False"
        )
    if idle:
        yield Hint(
            "the loss doesn't depend on these variables, so they are never trained: "
            f"{list_first([variable.path for variable in idle])}; if that is not intended, use "
            "the output of their layer"
        )


def find_idle(variables, graph, loss):
    """Return the variables that a graph reads, but from which it doesn't compute the loss.

    They belong to an output of a layer that the loss doesn't use, such as the pooled one of BERT.
    """
    reads = {id(outer): inner.name for outer, inner in graph.captures}
    names = {tensor.name for tensor in list_sources(loss)}
    idle = []
    for variable in variables:
        name = reads.get(id(variable.value.handle))
        if name and name not in names:
            idle.append(variable)
    return idle


def list_sources(tensors):
    """Return all tensors of a graph from which some tensors are computed."""
    sources = {}
    pending = flatten_tensors(tensors)
    while pending:
        tensor = pending.pop()
        if tensor.name not in sources:
            sources[tensor.name] = tensor
            pending += tensor.op.inputs
    return list(sources.values())


def check_step_randomness():
    """Check that random numbers of a step come from variables of the model."""
    batch = create_training_state()
    if not has_compute_gradients(batch):
        return
    results = []
    for _ in range(2):
        with restore_variables(train.model):
            tensors = flatten_tensors(train.compute_gradients(batch))
            results.append([tf.convert_to_tensor(x) for x in tensors])  # not tf.IndexedSlices
    if is_close(*results):
        return
    features, _, _ = batch
    if is_plain_model(batch) and has_hidden_randomness(features):
        return  # its own check reports it
    yield (
        "compute_gradients or a model draws random numbers that no checkpoint contains (tf.random, "
        "np.random?), so a killed run can't resume bit-identical; draw from `seeds` in "
        "`preprocess`, or by keras.random with a keras.random.SeedGenerator of a layer"
    )


def check_slices():
    """Check that no optimizer gets a gradient in which an index may occur twice."""
    batch = create_training_state()
    paths = []
    models = tf.nest.flatten(train.model)
    for model, optimizer in zip(models, tf.nest.flatten(train.optimizer), strict=True):
        if optimizer:
            optimizer.build(model.trainable_variables)
            record_slices(optimizer, paths)
    # {% if cookiecutter.distribution == "parameter_server" %}
    train.train_step(batch)
    # {% else %}
    tf.function(train.train_step)(batch)  # in a graph, as in a run
    # {% endif %}
    if paths:
        yield (
            f"an optimizer gets the gradients of {list_first(paths)} as tf.IndexedSlices. Keras's "
            "Adam squares each slice instead of the sum of those with one index; call `update` of "
            "train.py, or sum them with tf.convert_to_tensor"
        )


def record_slices(optimizer, paths):
    """Make an optimizer add the paths of variables to a list if their gradients are slices."""
    apply = optimizer.apply

    def record_and_apply(gradients, variables=None):
        gradients = list(gradients)
        for variable, gradient in zip(variables or [], gradients, strict=False):
            if isinstance(gradient, tf.IndexedSlices) and may_repeat(gradient.indices):
                paths.append(variable.path)
        return apply(gradients, variables)

    optimizer.apply = record_and_apply


def may_repeat(indices):
    # {% if cookiecutter.distribution == "parameter_server" %}
    """Return whether an index occurs twice."""
    return len(set(indices.numpy())) < len(indices)
    # {% else %}
    """Return whether an index may occur twice. In the sum over replicas it always may."""
    return True
    # {% endif %}


# ----------------------------------------------------------------------------------------------
# create_serving_function
# ----------------------------------------------------------------------------------------------


def check_serving_function():
    """Check that the function can be traced, and its lookup tables exist when it is exported."""
    create_training_state()
    models = tf.nest.flatten(train.model)
    example = next(iter(fetch_batches(read_examples(2).batch(1))))
    archive = keras.export.ExportArchive()
    try:
        archive.add_endpoint("serve", train.create_serving_function(models, example))
        for each in gc.get_objects():
            if issubclass(type(each), tf.saved_model.experimental.TrackableResource):
                archive.track(each)
        with tempfile.TemporaryDirectory() as folder:
            archive.write_out(folder, verbose=False)
    except Exception as error:  # others are found by the test of the export
        if re.search("untracked|not reachable from root", str(error)):
            yield (
                "uses a lookup table or another resource that can't be exported, because it was "
                "created in the function; create it once, such as in a function with "
                "@functools.cache"
            )


# ----------------------------------------------------------------------------------------------
# What makes results depend on the replicas
# ----------------------------------------------------------------------------------------------


# {% if cookiecutter.distribution == "synchronous" %}
def check_draws():
    """Yield a hint if layers draw random numbers that replicas may divide wrongly."""
    batch = create_training_state()
    half = cut_batch(batch, 2)[0]
    if not has_compute_gradients(batch) or not can_run(train.compute_gradients, half):
        return
    draws, others = record_draws(batch), record_draws(half)
    # Replicas draw parts if the rows are a multiple of a replica's examples. On up to 8 replicas,
    # fewer rows than this are no multiple.
    least = max(2, train.Config().global_batch_size // 8)
    names = {name for name, rows in draws if rows >= least and (name, rows) in others}
    if names:
        yield Hint(
            f"{list_first(sorted(names))} draws random numbers for a tensor whose first dimension "
            "is not the batch, so they may depend on the number of replicas; put the batch first "
            "or, if all examples share the numbers, make the first dimension 1"
        )


def record_draws(batch):
    """Return the draws of `compute_gradients`, each as (name of its layer, first dimension)."""
    # Names of the layers that are being called, the innermost last.
    names = [""]
    draws = []

    def record(draw, shape, **options):
        shape = tf.convert_to_tensor(shape)
        if len(shape) > 0:
            draws.append((names[-1], int(shape[0])))
        return draw(shape=shape, **options)

    def note_name(layer, call):
        @functools.wraps(call)
        def call_and_note(*args, **kwargs):
            names.append(layer.name)
            try:
                return call(*args, **kwargs)
            finally:
                names.pop()

        return replace(layer, "call", call_and_note)

    with contextlib.ExitStack() as stack:
        for layer in find_layers(train.model):
            stack.enter_context(note_name(layer, layer.call))
        stack.enter_context(restore_variables(train.model))
        with replace(train, "draw_part", record):
            train.share_random_numbers()
        train.compute_gradients(batch)
    train.share_random_numbers()  # one replica draws all numbers
    return draws


# {% endif %}
def check_suspects():
    """Yield sentences about what may make results differ between replicas."""
    # {% if cookiecutter.distribution == "synchronous" %}
    for hint in check_draws():
        yield f"create_model_and_optimizer: {hint}"
    # {% endif %}
    batch = create_training_state()
    disable_randomness(train.model)
    if not is_plain_model(batch):
        return
    features, _, _ = batch
    normalizations = find_batch_normalization(train.model)
    masked = find_masked(normalizations, features)
    if masked:
        yield (
            f"create_model_and_optimizer: {join(masked)} gets a mask, and then Keras uses the "
            "statistics of each replica's own examples; use LayerNormalization, or remove the mask"
        )
    # With BatchNormalization, losses depend on the whole batch in training.
    yield from check_added_losses(features, training=not normalizations)
    if normalizations or draws_in_evaluation(features) or has_hidden_randomness(features):
        return
    if depends_on_batch(features, training=True):
        yield (
            "create_model_and_optimizer: the prediction for an example depends on the other "
            "examples of the batch in training; look for statistics of a replica's own examples"
        )


def check_added_losses(features, training):
    """Yield a sentence if losses that layers add are not a mean of one value per example."""
    with record_gathering() as gathered:
        whole = compute_added_losses(features, training)
        again = compute_added_losses(features, training)
    if gathered or not is_close(whole, again):
        return  # losses of the global batch, or random numbers change them
    halves = [compute_added_losses(part, training) for part in cut_batch(features, 2)]
    triples = zip(find_layers(train.model), whole, np.mean(halves, axis=0), strict=True)
    names = find_innermost([layer for layer, loss, mean in triples if not is_close(loss, mean)])
    if names:
        yield (
            f"create_model_and_optimizer: the loss that {list_first(names)} adds for a batch is "
            "not the mean of the losses for its halves; let activity regularizers and add_loss "
            "take the mean of one value per example. For a loss of the whole batch, take the means "
            'over replicas, too, by tf.distribute.get_replica_context().all_reduce("MEAN", value); '
            "the context is None while the model is built"
        )


def find_innermost(layers):
    """Return the names of the layers that contain none of the others."""
    names = []
    for layer in layers:
        contained = layer._flatten_layers(include_self=False)
        if not any(each in layers for each in contained):
            names.append(layer.name)
    return names


def compute_added_losses(features, training):
    """Return the sum of the losses of each layer after a call of the model, as an array."""
    with restore_variables(train.model):
        train.model(features, training=training)
        return np.array([float(sum(layer.losses)) for layer in find_layers(train.model)])


def find_masked(layers, features):
    """Return the names of the layers that get a mask when the model is called."""
    names = []

    def note_mask(layer):
        call = layer.call

        @functools.wraps(call)
        def call_and_note(*args, **kwargs):
            if kwargs.get("mask") is not None:
                names.append(layer.name)
            return call(*args, **kwargs)

        layer.call = call_and_note

    for layer in layers:
        note_mask(layer)
    train.model(features, training=False)
    return sorted(set(names))


def check_idle_biases(features):
    paths = find_idle_biases(features)
    if paths:
        yield (
            f"- create_model_and_optimizer: a BatchNormalization cancels {list_first(paths)}, so "
            "their gradients are rounding errors, which Adam scales up; set use_bias=False in "
            "their layers"
        )


def find_idle_biases(features):
    """Return the biases that have no effect in training, though they have one in evaluation."""
    evaluated, trained = predict_in_both_modes(features)
    paths = []
    for variable in train.model.trainable_variables:
        if variable.path.endswith("bias"):
            with restore_variables(train.model):
                variable.assign_add(tf.ones_like(variable))
                other_evaluated, other_trained = predict_in_both_modes(features)
            change = get_largest_difference(evaluated, other_evaluated)
            change_in_training = get_largest_difference(trained, other_trained)
            if change_in_training < 1e-3 * change:  # rounding errors
                paths.append(variable.path)
    return paths


def check_rounding():
    """Yield sentences about variables whose gradients are rounding errors.

    The order of the examples and the number of replicas change a gradient by rounding errors only.
    Adam divides a gradient by its size, so it turns even rounding errors into full steps.
    """
    batch = create_training_state()
    disable_randomness(train.model)
    if not has_compute_gradients(batch):
        return
    if is_plain_model(batch) and find_batch_normalization(train.model):
        features, _, _ = batch
        yield from check_idle_biases(features)
    one, again, other = compute_gradients_in_both_orders(batch)
    variables = list_trainable_variables()
    if len(one) != len(variables) or not is_close(one, again):
        return  # an edited compute_gradients, or random numbers, which change with the order, too
    shares = {}
    for variable, gradient, other_gradient in zip(variables, one, other, strict=True):
        is_rounding = np.abs(gradient - other_gradient) > 0.1 * np.abs(gradient)
        if np.mean(is_rounding) > 0.02:  # fewer may be close to 0 by chance
            shares[variable.path] = np.mean(is_rounding)
    if shares:
        paths = sorted(shares, key=shares.get, reverse=True)
        yield (
            f"- create_model_and_optimizer: elements of {list_first(paths)} have gradients that "
            "are rounding errors, which Adam scales up; if a later layer cancels such a bias or "
            "beta, set use_bias=False or center=False in its layer"
        )


def compute_gradients_in_both_orders(batch):
    """Return the gradients for a batch, again, and for the batch in the reverse order, as arrays.

    If `compute_gradients` draws random numbers, the first two differ: each call draws new numbers.
    """

    def reverse(tensor):
        return None if tensor is None else tf.reverse(tensor, [0])

    # Only in a graph, variables without a path to the loss get zeros.
    compute_gradients = tf.function(train.compute_gradients)
    results = []
    with restore_variables(train.model):
        for each in (batch, batch, tf.nest.map_structure(reverse, batch)):
            gradients = list_gradients(compute_gradients(each))
            results.append([tf.convert_to_tensor(x).numpy() for x in gradients])
    return results


def get_largest_difference(one, other):
    """Return the largest difference between numbers of two structures of tensors."""
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    return max(np.max(np.abs(np.float64(a) - np.float64(b))) for a, b in pairs)


def predict_in_both_modes(features):
    """Return the predictions in evaluation and in training."""
    with restore_variables(train.model):
        evaluated = train.model(features, training=False)
        trained = train.model(features, training=True)
    return evaluated, trained


# ----------------------------------------------------------------------------------------------
# All checks
# ----------------------------------------------------------------------------------------------

# Beside the hooks: what may make results differ between replicas, probably or possibly.
SUSPECTS = "suspects"
ROUNDING = "rounding"
HINTS = "hints"  # pairs of a hook and a text

CHECKS = (
    ("create_datasets", check_datasets),
    ("adapt", check_adapt),
    ("fetch", check_fetch),
    ("preprocess", check_preprocess),
    ("create_model_and_optimizer", check_model),
    ("create_loss_objects", check_loss_objects),
    ("compute_losses", check_losses),
    ("compute_loss", check_replica_losses),
    ("create_metrics", check_metrics),
    ("score", check_score),
    ("end_epoch", check_end_epoch),
    ("create_model_and_optimizer", check_gradients),
    # {% if cookiecutter.distribution == "synchronous" %}
    ("create_model_and_optimizer", check_draws),
    # {% endif %}
    ("train_step", check_step_randomness),
    ("train_step", check_slices),
    ("create_serving_function", check_serving_function),
    (SUSPECTS, check_suspects),
    (ROUNDING, check_rounding),
)

# A hook can't be checked before the problems of these are solved.
NEEDED = {
    "compute_losses": ["create_loss_objects"],
    "compute_loss": ["create_loss_objects", "compute_losses"],
}


def check_hooks():
    """Return the problems of each hook, None for a hook that can't be checked, and hints."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    replicas = [tf.config.LogicalDeviceConfiguration()] * 2
    try:
        tf.config.set_logical_device_configuration(cpu, replicas)
    except RuntimeError:  # the devices are initialized
        return report_early_objects()
    report = {key: [] for key in (*HOOKS, SUSPECTS, ROUNDING, HINTS)}
    for hook, check in CHECKS:
        if any(report[needed] for needed in NEEDED.get(hook, ())):
            report[hook] = None
        else:
            run_check(hook, check, report)
    return report


def report_early_objects():
    """Return a report about objects that train.py has created before its strategy."""
    names = [name for name, value in vars(train).items() if holds_tensors(value)]
    found = f"{TOO_EARLY}. Look at {list_first(names)}" if names else TOO_EARLY
    report = {hook: None for hook in HOOKS}
    report |= {SUSPECTS: [], ROUNDING: [], HINTS: []}
    report["create_model_and_optimizer"] = [found]
    return report


def holds_tensors(value):
    """Return whether a value may hold tensors or variables, as a layer does, or a list of them."""
    kinds = (tf.Tensor, tf.Variable, keras.Variable, keras.Layer, keras.optimizers.Optimizer)
    return any(isinstance(part, kinds) for part in tf.nest.flatten(value))


class Hint(str):
    """What a check finds that may be intended."""


def run_check(hook, check, report):
    """Add the problems and hints that a check finds to the report."""
    problems = []
    try:
        for problem in check():
            if isinstance(problem, Hint):
                report[HINTS].append((hook, problem))
            else:
                problems.append(problem)
    except (Exception, SystemExit) as error:  # hooks can raise any type
        if not problems:
            report_exception(error, hook, report)
    if problems:
        report[hook] = (report[hook] or []) + problems


# Advice by a pattern in the message about an exception.
ADVICE = {
    "^fails in update_metrics": (
        "a metric of tokens or pixels needs a weight for each of them: for labels [batch, tokens], "
        "`tf.ones_like(labels, tf.float32) * sample_weight[:, None]`, with one more None for each "
        "further dimension. Another metric needs one value per example"
    ),
    "^fails in .*values to unpack": (
        "the batch of a step is always (features, labels, sample_weight)"
    ),
    "no attribute 'numpy'|'SymbolicTensor' object cannot be": (
        "this runs in a graph, so use TensorFlow operations, or Python code in tf.numpy_function"
    ),
    "out of scope|Symbolic.*[Rr]esource": (
        "create a lookup table once, in a function with @functools.cache, and there inside "
        "tf.init_scope()"
    ),
}


def has_problems(report):
    return any(problems for key, problems in report.items() if key != HINTS)


def describe_place(line, frames):
    """Return the line of a hook and, if it called another function of train.py, its line, too."""
    inner_line, function = frames[-1]
    if int(inner_line) == line:
        return f"line {line}"
    return f"line {line}, and line {inner_line} in {function}"


def report_exception(error, hook, report):
    """Add an exception to the report, unless it may follow from an earlier problem."""
    if has_problems(report):
        if hook in HOOKS:
            report[hook] = report[hook] or None
        return
    text = "".join(traceback.format_exception(error))
    name, line = find_hook(text)
    place = f" (train.py, {describe_place(line, find_frames(text))})" if line else ""
    if name in (*STEPS, "train_step"):
        place = f" in {name}{place}"
        name = "train_step"
    problem = f"fails{place}: {describe_error(error)}"
    advice = [text for pattern, text in ADVICE.items() if re.search(pattern, problem)]
    report[name or hook] = ["; ".join([problem, *advice])]
