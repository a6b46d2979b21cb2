def create_batch(examples, size, training, places):
    # {% if cookiecutter.__size == "parameter_server" %}
    """Return (features, labels, weight) of places, [batch, 3] int32: epoch, position, index.

    Labels may be None. `weight`, [batch] float32, is 0 for the examples that fill up the last batch
    of an evaluation.
    """
    epoch, position, index = tf.unstack(places, axis=1)
    # All examples of a batch are of one epoch.
    key = tf.random.stateless_uniform([], [config.seed, epoch[0]], None, None, "int32")
    seeds = tf.stack([tf.fill(position.shape, key), position], axis=1)
    index = tf.minimum(index, size - 1)  # the last example fills up the last batch
    # {% else %}
    """Return (features, labels, weight) of places, [batch, 3] int32; see create_input.

    Labels may be None. `weight`, [batch] float32, is 0 for the examples that fill up the last batch
    of an evaluation.
    """
    seeds = places[:, :2]
    position = places[:, 1]
    index = tf.minimum(places[:, 2], size - 1)  # the last example fills up the last batch
    # {% endif %}
    # {% if cookiecutter.__size == "parameter_server" %}
    # The worker's CPU. Otherwise, each step would copy all examples to its GPU.
    with tf.device("CPU:0"):
        batch = tf.nest.map_structure(lambda values: tf.gather(values, index), examples)
    # {% else %}
    batch = tf.nest.map_structure(lambda values: tf.gather(values, index), examples)
    # {% endif %}
    batch = preprocess(fetch(batch), seeds, training)
    features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    weight = tf.cast(position < size, "float32")
    if sample_weight is not None:
        weight *= sample_weight  # [batch]: put weights of tokens or pixels among the labels
    return features, labels, weight
