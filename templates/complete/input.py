# {% extends "input.py" %}
# {% block load %}
def load(dataset, split):
    """Returns all examples of a dataset, stacked, and their number. With all at hand, the order of
    an epoch is computed, not drawn from a buffer, so that a run resumes at any step at once."""
    size, stacks = int(dataset.cardinality()), None
    if size <= 0:
        refuse(f"create_datasets: {split} is empty, or of unknown size: see assert_cardinality")
    with tf.device("CPU:0"):
        # Piece by piece, into variables: `batch(size)` would hold all of them twice, and so would
        # tensors, of which each iterator takes a copy.
        for piece, index in tf.data.Dataset.zip(dataset, tf.data.Dataset.range(size)).batch(128):
            if stacks is None:
                create = lambda x: tf.Variable(tf.zeros([size, *x.shape[1:]], x.dtype))  # noqa: E731
                stacks = tf.nest.map_structure(create, piece)
            for stack, part in zip(*map(tf.nest.flatten, (stacks, piece)), strict=True):
                stack.scatter_update(tf.IndexedSlices(part, index))
    return stacks, size


# {% endblock %}
# {% block clock %}
def clock(tensors):
    """Returns the time at which tensors are there, in seconds, [] float64."""
    with tf.control_dependencies(tensors):
        if args.deterministic:  # which tf.timestamp refuses
            return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
        return tf.timestamp()


# {% endblock %}
