"""Checks of the hooks for losses: create_loss_objects, compute_losses, compute_loss."""

import contextlib
import functools
import math

from check_steps import invent_validation, list_trainable_variables
from check_tools import (
    Hint,
    create_training_state,
    cut_batch,
    differs_from_call_to_call,
    disable_randomness,
    find_layers,
    flatten_tensors,
    has_batch_dimension,
    has_compute_gradients,
    is_close,
    is_plain_model,
    is_same,
    join,
    pretend_two_replicas,
    replace,
    restore_variables,
    run_validation_step,
    select_examples,
    without_regularization,
)

import train
from train import np, tf


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
        for run_step in (
            lambda: train.compute_gradients(batch),
            lambda: train.train_step(batch),
            run_validation_step,
        ):
            if not calls:
                with contextlib.suppress(Exception):  # the checks of the other hooks report it
                    run_step()
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
            run_validation_step()
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
    if not arguments and is_plain_model(batch):
        features, labels, _ = batch
        arguments = (labels, train.model(features, training=False))
    # A softmax's output remembers its inputs, which Keras's losses use. A part of it forgets them.
    [arguments] = cut_batch(arguments, 4)
    if is_plain_model(batch):
        return arguments
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
    for subject, loss, *arguments in list_losses(labels, predictions):
        yield from check_logits(subject, loss, arguments[1])
        yield from check_loss(subject, loss, *arguments, are_means_taken)


def has_sum_1(values):
    """Return whether the last dimension of a tensor adds up to 1 everywhere."""
    return is_close(tf.reduce_sum(values, axis=-1), tf.ones(values.shape[:-1]))


def check_logits(subject, loss, predictions):
    """Yield what is wrong if a loss of Keras expects logits but gets probabilities, or not."""
    expects_logits = getattr(loss, "from_logits", None)
    if expects_logits is None or not predictions.dtype.is_floating:
        return
    values = tf.cast(predictions, "float32")
    are_probabilities = tf.reduce_all((values > -1e-3) & (values < 1.001))
    if not expects_logits and not are_probabilities:
        yield (
            f"{subject} expects probabilities, but predictions are not between 0 and 1; create it "
            "with from_logits=True"
        )
    if expects_logits and are_probabilities and has_sum_1(values):
        yield Hint(
            f"{subject} expects logits, but predictions add up to 1, as after a softmax; create it "
            "with from_logits=False"
        )


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
            'and create a loss of Keras with reduction="none" and, if it is Dice or Tversky, with '
            "axis=(1, 2, 3), say"
        )
    elif losses.shape != [4]:
        yield (
            f"{subject} has shape {tuple(losses.shape)} for 4 examples; return one value for each, "
            f"(4,) ({hint})"
        )
    elif differs_from_call_to_call(loss, labels, predictions):
        yield (
            f"{subject} differs from call to call, so a validation can't be repeated; draw random "
            "numbers in compute_loss only, and return a loss without them in compute_losses"
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
            text += "; labels - predictions would broadcast to all pairs of examples"
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


# The halves of one of these orders may by chance have equally many tokens, say.
ORDERS = ([0, 1, 2, 3], [0, 2, 1, 3])


def compare_losses(arguments, order):
    """Return the loss of one replica, and the sum of the losses of two that have halves of it.

    Each starts from the same seeds, and so draws the same numbers if all examples share them.
    """
    with restore_variables(train.model):
        whole = train.compute_loss(*select_examples(arguments, order))
    halves = []
    for places in (order[:2], order[2:]):
        half = select_examples(arguments, places)
        with restore_variables(train.model), pretend_two_replicas():
            halves.append(train.compute_loss(*half))
    return float(whole), float(sum(halves))


def check_step_of_loss():
    """Check that the loss doesn't read the Python value `state.step`."""
    batch = create_training_state()
    arguments = get_loss_arguments(batch)
    if not arguments or not is_called("compute_loss", batch):
        return
    losses = []
    for step in (0, 0, 1_000_000):  # the second shows whether it draws random numbers
        with replace(train.state, "step", step):
            losses.append(train.compute_loss(*arguments, batch[-1]))
    first, again, other = losses
    if is_same(first, again) and not is_same(first, other):
        yield (
            "depends on state.step, of which a graph keeps the value of its trace; read "
            "optimizer.iterations instead, in compute_loss only"
        )


def check_replica_losses():
    """Check that the losses of two replicas add up to the loss of one."""
    batch = create_training_state()
    arguments = get_loss_arguments(batch)
    if not arguments or not is_called("compute_loss", batch):
        return
    arguments = (*arguments, batch[-1])
    with (
        restore_variables(train.model),
        without_regularization(),
        record_gathering() as gathered,
    ):
        for variable in list_trainable_variables():  # a term may be 0 for their initial values
            variable.assign_add(0.1 * tf.ones_like(variable))
        shape = train.compute_loss(*arguments).shape
        if shape != []:
            yield f"returns shape {tuple(shape)}; return one number, ()"
            return
        results = [compare_losses(arguments, order) for order in ORDERS]
    wrong = [(whole, total) for whole, total in results if not is_close(whole, total)]
    if wrong and not gathered:
        yield from explain_replica_losses(arguments, *wrong[0])


def explain_replica_losses(arguments, whole, total):
    """Yield what to change if the losses of two replicas don't add up to the loss of one."""
    numbers = f"the losses of two replicas add up to {total:.6g}, the loss of one is {whole:.6g}"
    if is_close(2 * whole, total):
        yield (
            f"takes the mean over a replica's own examples (tf.reduce_mean?): {numbers}; divide by "
            "GLOBAL_BATCH_SIZE, as tf.nn.compute_average_loss does"
        )
    # If it draws numbers for each example, both halves got the first ones.
    elif not differs_from_call_to_call(train.compute_loss, *arguments):
        yield (
            f"{numbers}; look for a regularization loss without "
            "tf.nn.scale_regularization_loss, or a statistic of a replica's own examples, such as "
            "the number of its positives: instead, divide by the sum over all replicas, "
            'tf.distribute.get_replica_context().all_reduce("SUM", number), as in the template\'s '
            "docs/recipes/global_mean.md. To compare examples, gather all replicas', as in "
            "contrastive.md there"
        )
