"""Checks of the hooks for data: create_datasets, adapt, fetch, preprocess."""

import json

from check_tools import (
    SPLITS,
    create_batches,
    fetch_batches,
    find_differences,
    is_same,
    is_same_or_close,
    join,
    read_batches,
    read_fetched,
    read_first_batches,
)

import train
from train import np, tf

# ----------------------------------------------------------------------------------------------
# create_datasets, adapt, fetch
# ----------------------------------------------------------------------------------------------


def check_datasets():
    splits = list(train.create_datasets())
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
            yield (
                f"the shapes of {name} differ between batches, {some}; pad or cut them, here or in "
                "`fetch`, to one shape for all batches"
            )
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
    splits = list(train.create_datasets())
    for fetched in fetch_batches(splits[split].batch(128)):
        count = len(tf.nest.flatten(fetched)[0])
        seeds = tf.zeros([count, 2], tf.int32)
        *_, weight = train.preprocess(fetched, seeds, training=False)
        if tf.reduce_any(weight > 0):
            return True
    return False
