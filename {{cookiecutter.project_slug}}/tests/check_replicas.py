"""Checks that look for what makes results depend on the number of replicas."""

# {% if cookiecutter.distribution == "synchronous" %}
import functools
import threading

# {% endif %}
from check_losses import record_gathering
from check_models import (
    depends_on_batch,
    draws_in_evaluation,
    find_batch_normalization,
    has_hidden_randomness,
)
from check_steps import (
    # {% if cookiecutter.distribution == "synchronous" %}
    build_optimizers,
    # {% endif %}
    list_gradients,
    list_trainable_variables,
)
from check_tools import (
    # {% if cookiecutter.distribution == "synchronous" %}
    Hint,
    can_run,
    create_mirrored_strategy,
    # {% endif %}
    create_training_state,
    cut_batch,
    disable_randomness,
    find_layers,
    has_compute_gradients,
    is_close,
    is_plain_model,
    join,
    list_first,
    # {% if cookiecutter.distribution == "synchronous" %}
    replace,
    # {% endif %}
    replace_calls,
    restore_variables,
)

import train
from train import np, tf


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
    """Return the draws of `compute_gradients`, each as (what draws, first dimension)."""
    # Names of the layers that are being called, the innermost last.
    names = ["a loss or a step"]
    draws = []

    def record(draw, shape, **options):
        shape = tf.convert_to_tensor(shape)
        if len(shape) > 0:
            draws.append((names[-1], int(shape[0])))
        return draw(shape=shape, **options)

    def note_name(layer, call):
        def call_and_note(*args, **kwargs):
            names.append(layer.name)
            try:
                return call(*args, **kwargs)
            finally:
                names.pop()

        return call_and_note

    with replace(train, "draw_part", record):
        train.share_random_numbers()
    with replace_calls(find_layers(train.model), note_name), restore_variables(train.model):
        train.compute_gradients(batch)
    train.share_random_numbers()  # one replica draws all numbers
    return draws


@functools.cache
def compare_replica_gradients(is_random=True):
    """Return by path the ratio of a gradient on two replicas to the gradient on one.

    A replica's gradients are its share, and the shares should add up to the gradient of the whole
    batch. Only those that don't are returned, so the ratio may be 1. Unless `is_random`, random
    layers behave as in evaluation.
    """
    batch = create_training_state()
    if any(layer.compute_dtype in ("bfloat16", "float16") for layer in find_layers(train.model)):
        return {}  # the rounding errors may be large
    try:
        if not is_random:
            disable_randomness(train.model)
        expected = sum_gradients([batch])
        create_training_state(create_mirrored_strategy())
        if not is_random:
            disable_randomness(train.model)
        train.prepare_layers_for_replicas()
        found = sum_gradients(cut_batch(batch, 2))
    except Exception:  # hooks can raise any type; an update in a tf.while_loop can't be recorded
        return {}
    largest = max(map(np.linalg.norm, expected.values()), default=0)
    ratios = {}
    for path in sorted(expected.keys() & found.keys()):
        whole = expected[path]
        size = np.linalg.norm(whole)
        error = np.linalg.norm(found[path] - whole)
        # Rounding errors may be several percent, and all of a gradient that is 1e-5 of the largest.
        if size > 1e-5 * largest and error > 0.1 * size:
            ratios[path] = np.vdot(whole, found[path]) / size**2
    return ratios


def sum_gradients(batches):
    """Return by path the gradients that optimizers get in a step, summed over replicas.

    `batches` has a batch for each replica. The optimizers change no weights.
    """
    gradients = {}  # by thread, since each replica runs in its own

    def record(variables, grads, trainable_variables=None):
        own = gradients.setdefault(threading.get_ident(), {})
        for value, variable in zip(grads, trainable_variables or variables, strict=True):
            if value is not None:
                own[variable.path] = tf.convert_to_tensor(value)

    def step(batch):
        train.train_step(batch)
        return gradients.pop(threading.get_ident())

    @tf.function
    def compute_sums(batch):
        results = train.strategy.run(step, args=(batch,))
        return {path: train.strategy.reduce("SUM", x, axis=None) for path, x in results.items()}

    with train.strategy.scope():
        for model, optimizer in build_optimizers():
            optimizer.apply = functools.partial(record, model.trainable_variables)
    train.share_random_numbers()
    batch = train.strategy.experimental_distribute_values_from_function(
        lambda context: batches[context.replica_id_in_sync_group]
    )
    return {path: np.float64(total) for path, total in compute_sums(batch).items()}


def check_replica_gradients():
    """Yield a hint about gradients of a mean over a replica's own examples."""
    doubled = [name for name, ratio in compare_replica_gradients().items() if abs(ratio - 2) < 1e-2]
    if doubled:
        yield Hint(
            f"the gradients of {list_first(doubled)} are twice as large on two replicas. Adam "
            "hides this; other optimizers and clipping don't. Divide by GLOBAL_BATCH_SIZE, not "
            "by the number of a replica's own examples (tf.reduce_mean?), or look for a penalty or "
            "noise that each replica adds"
        )


# {% endif %}
def check_suspects():
    """Yield sentences about what may make results differ between replicas."""
    # {% if cookiecutter.distribution == "synchronous" %}
    for hint in check_draws():
        yield f"create_model_and_optimizer: {hint}"
    differing = list(compare_replica_gradients())
    if differing:
        yield (
            f"train_step: the gradients of {list_first(differing)} differ on two replicas; "
            f"{explain_gradients()}"
        )
    # {% endif %}
    batch = create_training_state()
    yield from check_mixing_layers()
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


# {% if cookiecutter.distribution == "synchronous" %}
def explain_gradients():
    """Return what to look for if gradients differ on two replicas."""
    if not compare_replica_gradients(is_random=False):
        return (
            "they agree without random layers, so look for random numbers that replicas can't "
            "share, and for rows of an example that are not adjacent: instead of tf.concat of two "
            "views, use tf.reshape(tf.stack(views, axis=1), [-1, *views[0].shape[1:]])"
        )
    return (
        "look for a mean or a statistic of a replica's own examples, a layer that uses other "
        "examples of the batch, clipping or noise of one replica's gradients (change them in the "
        "optimizer's `update_step`, which gets their sum), or random numbers that replicas can't "
        "share"
    )


# {% endif %}
def check_mixing_layers():
    """Yield a sentence if the models have layers of Keras that combine the images of a batch."""
    names = []
    for layer in find_layers(train.model):
        # RandAugment may apply an Equalization, which has one histogram for all images.
        if type(layer).__name__ in ("AugMix", "CutMix", "Equalization", "MixUp", "RandAugment"):
            names.append(layer.name)
    if names:
        yield (
            f"create_model_and_optimizer: {join(names)} combines the images of a replica's batch; "
            "use another layer, or accept that results depend on the number of replicas"
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
            "not the mean of the losses for its halves; let add_loss take the mean of one value "
            "per example, and an activity regularizer their sum, which Keras 3.15 divides by the "
            "batch size. For a loss of the whole batch, take the means over replicas, too, by "
            'tf.distribute.get_replica_context().all_reduce("MEAN", value); the context is None '
            "while the model is built"
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
        for variable in train.model.trainable_variables:  # which may begin at 0
            variable.assign_add(0.1 * tf.ones_like(variable))
        train.model(features, training=training)
        return np.array([float(sum(layer.losses)) for layer in find_layers(train.model)])


def find_masked(layers, features):
    """Return the names of the layers that get a mask when the model is called."""
    names = []

    def note_mask(layer, call):
        def call_and_note(*args, **kwargs):
            if kwargs.get("mask") is not None:
                names.append(layer.name)
            return call(*args, **kwargs)

        return call_and_note

    with replace_calls(layers, note_mask):
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
        # Fewer may be close to 0 by chance.
        if np.mean(is_rounding) > 0.02 and has_effect(variable, batch):
            shares[variable.path] = np.mean(is_rounding)
    paths = sorted(shares, key=shares.get, reverse=True)
    if paths:
        yield (
            f"- create_model_and_optimizer: elements of {list_first(paths)} have gradients that "
            "are rounding errors, which Adam scales up; if a later layer cancels such a bias or "
            "beta, set use_bias=False or center=False in its layer"
        )


def has_effect(variable, batch):
    """Return whether another value of a variable changes the predictions of a plain model.

    The bias of the keys of an attention layer has no effect. Of other models, assume one.
    """
    if not is_plain_model(batch):
        return True
    features, _, _ = batch
    before = predict_in_both_modes(features)
    with restore_variables(train.model):
        noise = np.random.default_rng(0).normal(size=variable.shape)
        variable.assign_add(tf.cast(noise, variable.dtype))
        after = predict_in_both_modes(features)
    size = get_largest_difference(before, tf.nest.map_structure(tf.zeros_like, before))
    return get_largest_difference(before, after) > 1e-4 * size


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
