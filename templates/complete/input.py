# {% extends "input.py" %}
# {% block load %}
def load(dataset, split):
    """Returns all examples of a dataset, stacked, and their number. With all at hand, the order of
    an epoch is computed, not drawn from a buffer, so that a run resumes at any step at once."""
    size, stacks, start = int(dataset.cardinality()), None, 0
    if size <= 0:
        refuse(f"create_datasets: {split} is empty, or of unknown size: see assert_cardinality")
    with tf.device("CPU:0"):
        # Piece by piece, into variables: `batch(size)` would hold all of them twice, and so would
        # tensors, of which each iterator takes a copy.
        for piece in dataset.batch(128):
            if stacks is None:
                create = lambda x: tf.Variable(tf.zeros([size, *x.shape[1:]], x.dtype))  # noqa: E731
                stacks = tf.nest.map_structure(create, piece)
            parts = list(zip(tf.nest.flatten(stacks), tf.nest.flatten(piece), strict=True))
            end = start + len(parts[0][1])
            for stack, part in parts:  # `stack[start:end].assign(part)` would copy the whole of it
                tf.raw_ops.ResourceStridedSliceAssign(
                    ref=stack.handle, begin=[start], end=[end], strides=[1], value=part
                )
            start = end
    if start != size:
        refuse(f"create_datasets: the {split} dataset has {start} examples, but says {size}")
    return stacks, size


# {% endblock %}
# {% block clock %}
def after_last_update():
    """Returns a context in which a graph waits for the end of the step before: the first weights
    get their gradients last."""
    first_weights = tf.nest.flatten(model)[0].trainable_variables[0]
    return tf.control_dependencies([tf.convert_to_tensor(first_weights.value)])


def clock():
    """Returns the time in seconds, [] float64."""
    if args.deterministic:  # which tf.timestamp refuses
        return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
    return tf.timestamp()


# {% endblock %}
