"""Checks of create_model_and_optimizer, and of what the model does with a batch."""

import contextlib
import tempfile
from pathlib import Path

from check_tools import (
    SAVING_ADVICE,
    Hint,
    create_mirrored_strategy,
    create_training_state,
    cut_batch,
    describe_error,
    find_layers,
    find_unmirrored,
    has_batch_dimension,
    is_close,
    is_plain_model,
    join,
    list_first,
    replace,
    restore_variables,
    set_globals,
)

import train
from train import keras, tf

EARLY_POLICY = keras.config.dtype_policy().name  # as train.py leaves it when it is imported


def check_model():
    set_globals(batch_size=4)
    with record_constant_calls() as called:
        created = train.create_model_and_optimizer(create_mirrored_strategy())
    policy = keras.config.dtype_policy().name
    if EARLY_POLICY not in ("float32", policy):
        yield (
            f"train.py sets the dtype policy {EARLY_POLICY} outside of its functions, but "
            f"`reset_keras` replaces it by {policy}; set it in this hook"
        )
    if not are_models_and_optimizers(created):
        yield (
            "doesn't return a model and an optimizer, or a tuple of each, equally long, with None "
            "for a model that isn't trained"
        )
        return
    models, optimizers = map(tf.nest.flatten, created)
    unbuilt = [model.name for model in models if not model.built]
    if unbuilt:
        yield f"{list_first(unbuilt)} isn't built; add keras.Input, or call the model"
        return
    yield from check_scope("the model", models)
    yield from check_tracking(models)
    yield from check_stateful_layers(models)
    yield from check_constant_calls(called, models)
    yield from check_saving(models[0])
    optimizers = [optimizer for optimizer in optimizers if optimizer]
    yield from check_scope("the optimizer", optimizers)
    yield from check_optimizer_tracking(models, created[1])
    # The outer one may be a LossScaleOptimizer.
    inner = [each.inner_optimizer for each in optimizers if hasattr(each, "inner_optimizer")]
    yield from check_settings([*optimizers, *inner])
    # {% if cookiecutter.distribution == "parameter_server" %}
    yield from check_embeddings(models)
    # {% endif %}
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


def check_stateful_layers(models):
    layers = [layer for layer in find_layers(models) if isinstance(layer, keras.layers.RNN)]
    names = [layer.name for layer in layers if layer.stateful]
    if names:
        yield (
            f"{list_first(names)} is stateful, and Keras doesn't list its states among the "
            "variables, so no checkpoint contains them; leave out stateful=True"
        )


@contextlib.contextmanager
def record_constant_calls():
    """Record the layers that are called on tensors, not on a keras.Input."""
    called = []
    call = keras.Layer.__call__

    def call_and_record(layer, *args, **kwargs):
        inputs = keras.tree.flatten((args, kwargs))
        if not any(isinstance(part, keras.KerasTensor) for part in inputs):
            called.append(layer)
        return call(layer, *args, **kwargs)

    with replace(keras.Layer, "__call__", call_and_record):
        yield called


def check_constant_calls(called, models):
    """Yield a hint if layers outside the models were called on tensors."""
    known = {id(variable) for model in models for variable in model.variables}
    paths = []
    for layer in called:
        weights = layer.trainable_variables
        paths += [weight.path for weight in weights if id(weight) not in known]
    if paths:
        names = list_first(sorted(set(paths)))
        yield Hint(
            f"neither trained nor saved, since no model contains it: {names}; if its layer was "
            "called on a constant, such as keras.ops.arange(n), call it in the `call` of a layer "
            "of your own; if it belongs to a frozen network, set trainable=False there"
        )


def check_saving(model):
    """Yield a hint if model.keras can't be written, or can't be loaded with all weights."""
    with tempfile.TemporaryDirectory() as folder, tf.device("CPU:0"):
        path = Path(folder, "model.keras")
        try:
            model.save(path)
            # The file is the project's own, so a Lambda layer in it may be loaded.
            loaded = keras.saving.load_model(path, compile=False, safe_mode=False)
            if len(loaded.weights) < len(model.weights):
                raise ValueError("the loaded model has fewer weights")
        except OSError:  # the folder for temporary files is full
            return
        except Exception as error:  # layers can raise any type
            yield Hint(
                f"model.keras can't be written or loaded ({describe_error(error)}); {SAVING_ADVICE}"
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


# {% if cookiecutter.distribution == "parameter_server" %}
def check_embeddings(models):
    """Yield a hint for each large table that Keras reads as a whole."""
    for layer in find_layers(models):
        if isinstance(layer, keras.layers.Embedding):
            size = 4 * layer.count_params()
            if size > 1e7:
                yield Hint(
                    f"{layer.name} sends its table of {size / 1e6:.0f} MB to a worker at each "
                    "step; use SplitEmbedding, as in the README"
                )


# {% endif %}
def check_settings(optimizers):
    """Yield a sentence for each setting of an optimizer that fails or is wrong."""
    # {% if cookiecutter.distribution == "parameter_server" %}
    problem = "raises an error with parameter servers; leave it out"
    settings = dict.fromkeys(
        ["gradient_accumulation_steps", "ema_overwrite_frequency", "inner_optimizer"], problem
    )
    # {% else %}
    problem = "raises an error on several replicas; use {} of the complete script instead"
    settings = {
        "gradient_accumulation_steps": problem.format("--accumulation-steps"),
        "ema_overwrite_frequency": problem.format("--ema-momentum"),
        "clipnorm": problem.format("--clip-norm"),
        "global_clipnorm": problem.format("--clip-norm"),
        "clipvalue": problem.format("--clip-norm"),
    }
    # {% endif %}
    for optimizer in optimizers:
        for setting, problem in settings.items():
            if getattr(optimizer, setting, None):
                yield f"{type(optimizer).__name__} with {setting} {problem}"
        # {% if cookiecutter.distribution == "parameter_server" %}
        if type(optimizer).__name__ == "Muon" and optimizer.weight_decay:
            yield "Muon with weight_decay raises an error; set it, and adam_weight_decay, to None"
        # {% endif %}
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
    halves = [predict(half) for half in cut_batch(features, 2)]
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
