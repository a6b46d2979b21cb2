"""Runs of train.py, and checks of what they have written.

test_train.py calls each function in a process of its own, and reads the result in its output:

    PYTHONPATH=. python tests/train_runs.py FUNCTION ARGUMENTS
"""

import dataclasses
import hashlib
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import hook_checks
from check_models import draws_in_evaluation
from check_tools import (
    SAVING_ADVICE,
    describe_error,
    fetch_batches,
    find_layers,
    is_random,
    set_globals,
    unpack,
)
from hook_names import RESULT, find_hook

import train
from train import keras, np, tf  # train.py imports them without TensorFlow's messages

# These flags replace defaults of train.py with which tests would fail. Half precision rounds more
# than the tests allow. A warm-up may be longer than the 20 steps of a run. Another strategy, or a
# batch in parts, may not allow four replicas or two workers. The tests read the best checkpoint.
NEUTRAL = {
    "export": "best",
    "precision": "float32",
    "warmup_steps": "0",
    "accumulation_steps": "1",
    "strategy": "auto",
}
FLAG_NAMES = {field.name for field in dataclasses.fields(train.Config) if field.metadata}
DEFAULTS = [
    f"--{name.replace('_', '-')}={value}" for name, value in NEUTRAL.items() if name in FLAG_NAMES
]
if "jit_compile" in FLAG_NAMES:
    DEFAULTS.append("--no-jit-compile")  # XLA takes seconds, and fails with BatchNormalization
FLAGS = ("--epochs", "2", "--steps-per-loop", "3", "--checkpoint-every-steps", "4", *DEFAULTS)
CHECKSUMS = "checksums.json"  # for the last checkpoint, in the run directory
UNEQUAL = "unequal.json"  # names of variables that differ between replicas

# ----------------------------------------------------------------------------------------------
# Runs
# ----------------------------------------------------------------------------------------------


def train_and_export(*flags):
    """Run train.py on ten batches of each split."""
    cut_datasets()
    note_unequal_variables()
    train.run([*FLAGS, *flags, "--global-batch-size", str(choose_batch_size())])
    worker_index = getattr(train.config, "worker_index", 0)  # only synchronous workers have one
    if worker_index == 0:
        write_checksums()


def note_unequal_variables():
    """Have the run write which variables differ between replicas when it has been trained."""
    test_best_checkpoint = train.test_best_checkpoint

    def note_and_test(*arguments):
        names = json.dumps(find_unequal_variables())
        train.run_path(UNEQUAL).write_text(names, encoding="utf-8")
        return test_best_checkpoint(*arguments)

    train.test_best_checkpoint = note_and_test


def find_unequal_variables():
    """Return the names of the model's variables that differ between replicas."""
    paths = []
    for variable in train.list_variables(train.model):
        values = getattr(variable.value, "values", [variable.value])
        if len({compute_checksum(value.numpy()) for value in values}) > 1:
            paths.append(variable.path)
    return paths


def train_only(*flags):
    """Run train.py on ten batches of each split, without exports, which take seconds."""
    train.export = lambda *arguments: None
    train_and_export(*flags)


def train_perturbed(seed, *flags):
    """Run train.py from weights that differ by rounding errors, which depend on a seed.

    If this changes the results, the model scales rounding errors up. The errors double with each
    seed: a sum over a batch rounds more than a single number.
    """
    create_model_and_optimizer = train.create_model_and_optimizer

    def create_perturbed(strategy):
        created = create_model_and_optimizer(strategy)
        signs = np.random.default_rng(int(seed))
        size = 2 ** int(seed) * np.finfo("float32").eps
        for model in tf.nest.flatten(created[0]):
            for variable in model.trainable_variables:
                value = variable.numpy()
                error = size * signs.choice([-1, 1], value.shape)
                variable.assign(value * (1 + error))
        return created

    train.create_model_and_optimizer = create_perturbed
    train_only(*flags)


def choose_batch_size():
    """Return a global batch size near the default that 4 replicas can share."""
    return max(4, train.Config().global_batch_size // 4 * 4)


def cut_datasets():
    """Cut each split to ten batches. In evaluation, the last batch is not full.

    The hook `adapt` still gets the whole training split: a part may lack words or classes.
    """
    create_datasets = train.create_datasets
    adapt = train.adapt

    def create_cut_datasets():
        first, *others = create_datasets()
        return [cut(first, is_training=True), *(cut(each, is_training=False) for each in others)]

    def adapt_to_all(_):
        all_examples, *_ = create_datasets()
        return adapt(all_examples)

    train.create_datasets = create_cut_datasets
    train.adapt = adapt_to_all


def cut(split, is_training):
    size = int(split.cardinality())
    if size <= 0:  # train.py rejects it
        return split
    batch_size = choose_batch_size()
    count = min(size, 10 * batch_size)
    is_last_batch_full = count % batch_size == 0
    if is_last_batch_full and not is_training:
        count -= 1
    return split.take(count)


# ----------------------------------------------------------------------------------------------
# Checkpoints
# ----------------------------------------------------------------------------------------------


def write_checksums():
    """Write a checksum of each tensor in the last checkpoint."""
    # After a kill, the list that tf.train.latest_checkpoint reads may be older than the files.
    step = max(train.list_checkpoints("last"))
    reader = tf.train.load_checkpoint(f"{train.run_path()}/checkpoints/last/ckpt-{step}")
    paths = reader.get_tensor("names/.ATTRIBUTES/VARIABLE_VALUE")
    checksums = {}
    for key in reader.get_variable_to_shape_map():
        if key != "_CHECKPOINTABLE_OBJECT_GRAPH":  # not a value
            name = name_tensor(key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"), paths)
            checksums[name] = compute_checksum(reader.get_tensor(key))
    train.run_path(CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")


def name_tensor(key, paths):
    """Return a tensor's name in messages. Weights are saved by position, such as model/0."""
    kind, _, position = key.partition("/")
    if kind == "model":
        return f"model: {paths[int(position)].decode()}"
    return key


def compute_checksum(value):
    array = np.asarray(value)
    content = array.tobytes()
    if array.dtype.kind == "O":  # strings
        content = repr(array.tolist()).encode()
    kind = f"{array.dtype} {array.shape}".encode()
    return hashlib.sha256(kind + content).hexdigest()


def restore_best(run_dir):
    """Create the model with the weights of a run's best checkpoint, the loss and the metrics."""
    train.config.run_dir = run_dir  # hooks may read files of it
    train.adapted.update(json.loads(Path(run_dir, "adapted.json").read_text("utf-8")))
    set_globals(choose_batch_size())
    # In the order of a run, since each hook may draw random numbers.
    train.model, train.optimizer = train.create_model_and_optimizer(train.strategy)
    train.loss_object = train.create_loss_objects(train.strategy)
    _, _, train.test_metrics = train.create_metrics(train.strategy)
    models = tf.nest.flatten(train.model)
    values = [variable.value for model in models for variable in model.variables]
    path = tf.train.latest_checkpoint(Path(run_dir, "checkpoints", "best"))
    status = tf.train.Checkpoint(model=values).restore(path)
    status.assert_existing_objects_matched().expect_partial()


# ----------------------------------------------------------------------------------------------
# Evaluation
# ----------------------------------------------------------------------------------------------


def read_test_split(size):
    """Yield the first component of `fetch`, and a batch for the steps. No batch is filled up."""
    _, _, split = train.create_datasets()
    first = 0
    for fetched in fetch_batches(split.batch(size)):
        inputs = fetched[0] if isinstance(fetched, tuple) else fetched
        count = len(tf.nest.flatten(fetched)[0])
        seeds = create_seeds(first, count)
        first += count
        copied = tf.nest.map_structure(tf.identity, fetched)  # `preprocess` may change it
        yield inputs, unpack(train.preprocess(copied, seeds, training=False), count)


def create_seeds(first, count):
    """Return the seeds of examples in evaluation, [count, 2], as in `create_input`."""
    key = tf.random.stateless_uniform([], [train.config.seed, 0], None, None, tf.int32)
    return tf.stack([tf.fill([count], key), tf.range(first, first + count)], axis=1)


def choose_evaluation_size():
    """Return another batch size than the run's, unless the model draws in evaluation.

    Such a model draws other numbers for an example if the batch size is another.
    """
    size = choose_batch_size()
    _, (features, _, _) = next(read_test_split(size))
    try:
        # The steps may draw from a generator of the model, too.
        draws = any(map(is_random, tf.nest.flatten(train.model))) or draws_in_evaluation(features)
    except Exception:  # only the steps know how to call the model, or several
        draws = any(map(is_random, find_layers(train.model)))
    return size if draws else size // 2 + 1


def evaluate(run_dir):
    """Return loss and metrics of a run's best checkpoint on the test split.

    The batches have another size than in the run, if possible.
    """
    cut_datasets()
    restore_best(run_dir)
    size = choose_evaluation_size()
    restore_best(run_dir)  # again: calls may have changed the seeds of random layers
    sums = [train.test_step(batch) for _, batch in read_test_split(size)]
    loss_sum, weight_sum = np.sum(sums, axis=0, dtype="float64")
    loss = float(loss_sum / weight_sum) if weight_sum else 0.0
    metrics = {metric.name: float(metric.result() + 0) for metric in train.test_metrics}
    return {"loss": loss, **metrics}


# ----------------------------------------------------------------------------------------------
# Exports
# ----------------------------------------------------------------------------------------------


def check_exports(run_dir):
    """Return what is wrong with a run's exports, and what could be better."""
    checks = {
        "the SavedModel": compare_saved_model,
        "model.keras": compare_keras_file,
    }
    cut_datasets()
    problems = []
    for name, compare in checks.items():
        restore_best(run_dir)  # again: calls may have changed the seeds of random layers
        problem = check_export(compare, Path(run_dir, "export"))
        if problem:
            hook, text = problem
            problems.append(f"{hook}: {name} in export/ {text}")
    hints = list(find_fixed_lengths())
    if not problems:
        problems += check_components()
        hints += find_draws()
        hints += find_other_predictions()
    return problems, hints


def call_serving_hook():
    """Return the hook's function of the best checkpoint, and the example that the hook got."""
    _, _, split = train.create_datasets()
    example = next(iter(fetch_batches(split.batch(1))))
    return train.create_serving_function(tf.nest.flatten(train.model), example), example


def find_fixed_lengths():
    """Yield a hint for each input of which the SavedModel takes one length and the model any.

    Only a `preprocess` that returns the features unchanged is known to take any length.
    """
    serve, example = call_serving_hook()
    batch = train.preprocess(example, create_seeds(0, 1), training=False)
    inputs = example[0] if isinstance(example, tuple) else example
    model_inputs = getattr(tf.nest.flatten(train.model)[0], "inputs", [])
    specs = tf.nest.flatten(serve.input_signature)
    if batch[0] is not inputs or len(specs) != len(model_inputs):
        return
    for spec, model_input in zip(specs, model_inputs, strict=True):
        shape = tuple(model_input.shape)
        if None in shape[1:] and None not in spec.shape[1:]:
            yield (
                f"create_serving_function: the SavedModel takes shape {tuple(spec.shape)}, but the "
                f"model takes {shape}; for sequences of any length, use None in its input_signature"
            )


def find_draws():
    """Yield a hint if two calls of the function to serve differ, as with samples of a text."""
    serve, example = call_serving_hook()
    arguments, *_ = list_arguments(serve, example)
    if not agree(serve(*arguments), serve(*arguments)):
        yield (
            "create_serving_function: predictions of the SavedModel differ from call to call; if "
            "that is not intended, pass training=False to the models, and look for a layer that "
            "draws random numbers without regard to it"
        )


def find_other_predictions():
    """Yield a hint if the function to serve orders classes and examples unlike the model.

    A softmax, another scale or a threshold keeps one of these orders. Also yield a hint if it
    predicts sequences of another length.
    """
    serve, example = call_serving_hook()
    if not takes_first_component(serve, example) or draws_in_preprocess(example):
        return
    for inputs, (features, _, _) in read_test_split(choose_batch_size()):
        if not takes_features(train.model, features) or draws_in_evaluation(features):
            return
        predictions = serve(inputs), train.model(features, training=False)
        if not all(map(tf.is_tensor, predictions)):
            return
        if have_other_lengths(*predictions):
            one, other = (tuple(each.shape) for each in predictions)
            yield (
                f"create_serving_function: predictions of the SavedModel have shape {one}, and of "
                f"the model {other}; if that is not intended, look for a layer that fails if the "
                "batch size and a length are None, such as Keras's TimeDistributed"
            )
            return
        if not have_same_order(*predictions):
            yield (
                "create_serving_function: the SavedModel orders classes and examples unlike the "
                "model; if that is not intended, compute the features by `preprocess`, as in "
                "evaluation"
            )
            return


def draws_in_preprocess(example):
    """Return whether features depend on the seeds in evaluation. A served function has none."""
    others = []
    for first in (0, 1):
        copied = tf.nest.map_structure(tf.identity, example)  # `preprocess` may change it
        features, *_ = train.preprocess(copied, create_seeds(first, 1), training=False)
        others.append(features)
    return not agree(*others)


def have_other_lengths(predictions, others):
    """Return whether predictions are sequences, and differ only in their length."""
    is_sequence = len(predictions.shape) > 2
    return (
        is_sequence
        and predictions.shape[1] != others.shape[1]
        and predictions.shape[2:] == others.shape[2:]
    )


def have_same_order(predictions, others):
    """Return whether predictions have mostly the same highest classes, or the same order.

    Predictions that can't be compared, of other shapes or types, are taken to have it.
    """
    one, other = np.asarray(predictions), np.asarray(others)
    kinds = {one.dtype.kind, other.dtype.kind}
    if one.shape != other.shape or one.ndim not in (1, 2) or kinds != {"f"}:
        return True
    one, other = (each.reshape([len(each), -1])[:16] for each in (one, other))
    if one.shape[1] > 1 and np.mean(one.argmax(axis=1) == other.argmax(axis=1)) > 0.9:
        return True
    # The signs of all differences between two examples. They are 0 for equal predictions.
    signs, other_signs = (np.sign(each[:, None] - each[None]) for each in (one, other))
    products = signs * other_signs
    return np.sum(products > 0) >= 9 * np.sum(products < 0)


def list_arguments(serve, example):
    """Return arguments of calls of the function to serve."""
    if takes_first_component(serve, example):
        return [(inputs,) for inputs, _ in read_test_split(choose_batch_size())]
    return [tf.nest.map_structure(create_input, serve.input_signature)]


def compare_saved_model(folder):
    """Compare the SavedModel's function with the hook's function of the best checkpoint."""
    loaded = tf.saved_model.load(str(folder))
    serve, example = call_serving_hook()
    for arguments in list_arguments(serve, example):
        compare_predictions(loaded.serve(*arguments), serve(*arguments))


def check_components():
    """Yield a problem if predictions need more than the component that the default hook serves."""
    _, _, split = train.create_datasets()
    predictions = []
    for example in fetch_batches(split.batch(1).take(4)):
        serve = train.create_serving_function(tf.nest.flatten(train.model), example)
        if not isinstance(example, tuple) or not takes_first_component(serve, example):
            return
        if not predictions:
            inputs = example[0]
            predictions.append(serve(inputs))  # twice: it may draw random numbers
        predictions.append(serve(inputs))
    first, again, *others = predictions
    # After a few steps, components may change predictions by less than rounding. On a CPU, the
    # results of a graph are bit-identical each time.
    has_gpu = tf.config.list_physical_devices("GPU")
    tolerance = 0 if not has_gpu and agree(first, again, 0) else 1
    are_equal = [agree(first, each, tolerance) for each in others]
    if agree(first, again) and not all(are_equal):
        yield (
            "create_serving_function: predictions of the SavedModel need more than `fetch`'s first "
            "component, and use the other components of one test example; return a dict from "
            "`fetch`, or edit the hook"
        )


def agree(predictions, others, tolerance=1):
    """Return whether predictions differ by no more than rounding or, with 0, not at all."""
    try:
        compare_predictions(predictions, others, tolerance)
    except AssertionError:
        return False
    return True


def takes_first_component(serve, example):
    """Return whether a function takes what `fetch` returns first, as the default hook does."""
    inputs = example[0] if isinstance(example, tuple) else example
    specs = serve.input_signature
    if len(specs) != 1:
        return False
    try:
        tf.nest.assert_same_structure(specs[0], inputs)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(specs[0]), tf.nest.flatten(inputs), strict=True)
    return all(spec.is_compatible_with(value) for spec, value in pairs)


def create_input(spec):
    """Return a tensor for a function that takes something else, such as a latent vector."""
    shape = [4 if size is None else size for size in spec.shape]
    value = "a" if spec.dtype == tf.string else 1
    return tf.fill(shape, tf.constant(value, spec.dtype))


def compare_keras_file(folder):
    """Compare the model in model.keras with the model of the best checkpoint."""
    # The file is the project's own, so a Lambda layer in it may be loaded.
    loaded = keras.saving.load_model(folder / "model.keras", safe_mode=False)
    model = tf.nest.flatten(train.model)[0]
    batches = [features for _, (features, _, _) in read_test_split(choose_batch_size())]
    # A .keras file lacks the seeds of layers that draw random numbers in evaluation.
    if not takes_features(train.model, batches[0]) or draws_in_evaluation(batches[0]):
        for weights, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
            compare_predictions(weights, expected)
        return
    for features in batches:
        predictions = loaded(features, training=False)
        compare_predictions(predictions, model(features, training=False))


def takes_features(model, features):
    """Return whether there is one model that takes the features. Otherwise, only the steps know."""
    try:
        model(features, training=False)
    except Exception:  # a tuple of models, or an exception of any type
        return False
    return True


def check_export(compare, folder):
    """Return the hook that is the likely cause and what is wrong with an export, or None."""
    try:
        compare(folder)
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if "ifference" in line]
        return "create_model_and_optimizer", (
            "and the best checkpoint predict different values. Look for a layer whose get_config "
            "omits an argument, or that keeps state or a random constant outside its variables. "
            + "; ".join(lines)
        )
    except Exception as error:  # hooks can raise any type
        hook, hint = LOADING_HINTS[compare]
        failed_hook, _ = find_hook("".join(traceback.format_exception(error)))
        reason = describe_error(error)
        return failed_hook or hook, f"can't be loaded and called ({reason}); {hint}"
    return None


# The hook that is the likely cause, and what to look for, if an export can't be loaded and called.
LOADING_HINTS = {
    compare_saved_model: (
        "create_serving_function",
        "look in it, in preprocess and in the model for Python code (tf.py_function), and for "
        "arguments that another call needs",
    ),
    compare_keras_file: (
        "create_model_and_optimizer",
        SAVING_ADVICE,
    ),
}


def compare_predictions(predictions, expected, tolerance=1):
    """Raise AssertionError if predictions differ by more than `tolerance` times rounding."""
    pairs = zip(tf.nest.flatten(predictions), tf.nest.flatten(expected), strict=True)
    for one, other in pairs:
        one = np.asarray(one)
        other = np.asarray(other)
        if one.dtype.kind == "O":  # strings
            np.testing.assert_array_equal(one, other)
        else:
            atol = 1e-5 * tolerance
            np.testing.assert_allclose(one, other, rtol=10 * atol, atol=atol)


FUNCTIONS: dict[str, Callable] = {
    "check_hooks": hook_checks.check_hooks,
    "train_and_export": train_and_export,
    "train_only": train_only,
    "train_perturbed": train_perturbed,
    "evaluate": evaluate,
    "check_exports": check_exports,
}

if __name__ == "__main__":
    # Hooks may read flags and the number of steps.
    train.config = train.parse_flags(DEFAULTS)
    train.config.steps_per_epoch = 10
    train.config.last_step = 20
    function, *arguments = sys.argv[1:]
    result = json.dumps(FUNCTIONS[function](*arguments))
    print(f"\n{RESULT}{result}")  # a hook may have printed a part of a line
