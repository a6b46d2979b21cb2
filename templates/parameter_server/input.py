# {% extends "input.py" %}
# {% block distribute %}
def distribute(examples, size, training):
    """Returns the arguments of the step of a number, as a function, and the steps of an epoch. The
    chief deals out places in the order of the epoch; the examples of these are the same whoever
    takes the step, and each worker holds all examples: it gets them once, when it comes."""
    steps = STEPS_PER_EPOCH if training else math.ceil(size / GLOBAL_BATCH_SIZE)

    def create_dataset():  # of one element, all examples, again and again: no copy is made
        tensors = tf.nest.map_structure(tf.convert_to_tensor, examples)
        return tf.data.Dataset.from_tensors((tensors, size)).repeat()

    spread = coordinator.create_per_worker_dataset if coordinator else lambda create: create()
    iterator, epochs = iter(spread(create_dataset)), {}

    def place(step):
        epoch, place = divmod(step, steps) if training else (0, step)
        if epoch not in epochs:  # of one epoch at a time
            epochs.clear()
            epochs[epoch] = (shuffle(size, epoch) if training else tf.range(size)).numpy()
        index = epochs[epoch][place * GLOBAL_BATCH_SIZE :][:GLOBAL_BATCH_SIZE]
        index = np.pad(index, (0, GLOBAL_BATCH_SIZE - len(index)), "edge")  # the last batch's
        return iterator, tf.constant(step), tf.constant(index)

    return place, steps


def create_batch(examples, step, index, training):
    """Returns (features, labels, sample_weight) of a step, on the worker that takes it. What fills
    up the last batch of an evaluation has weight 0."""
    epoch, place = (step // STEPS_PER_EPOCH, step % STEPS_PER_EPOCH) if training else (0, step)
    key = tf.random.stateless_uniform([], [SEED, epoch], None, None, tf.int32)
    position = place * GLOBAL_BATCH_SIZE + tf.range(GLOBAL_BATCH_SIZE)
    seeds = tf.stack([tf.fill([GLOBAL_BATCH_SIZE], key), position], axis=1)
    batch, size = next(examples)
    batch = tf.nest.map_structure(lambda values: tf.gather(values, index), batch)
    batch = preprocess(fetch(batch), seeds, training)
    features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    real = tf.cast(position < size, tf.float32)
    return features, labels, real if sample_weight is None else real * sample_weight


# {%- endblock +%}
