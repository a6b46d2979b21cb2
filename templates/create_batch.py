def order_epoch(epoch, size, training, steps):
    """Return the positions in an epoch and the indices of the examples there, [n, 2] int32."""
    position = tf.range(steps * config.global_batch_size)
    index = shuffle(size, epoch)[: len(position)] if training else position
    return tf.stack([position, index], axis=1)


def create_batch(examples, size, training, epoch, places):
    """Return (features, labels, sample_weight) of the places, [batch, 2], of an epoch."""
    position, index = tf.unstack(places, axis=1)
    if not training:
        epoch = 0  # each validation draws the same random numbers
    key = tf.random.stateless_uniform([], [config.seed, epoch], None, None, tf.int32)
    seeds = tf.stack([tf.fill([len(position)], key), position], axis=1)
    index = tf.minimum(index, size - 1)  # the last example fills up the last batch
    batch = tf.nest.map_structure(lambda values: tf.gather(values, index), examples)
    batch = preprocess(fetch(batch), seeds, training)
    features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    is_real = tf.cast(position < size, tf.float32)
    if sample_weight is None:
        return features, labels, is_real
    return features, labels, is_real * sample_weight
