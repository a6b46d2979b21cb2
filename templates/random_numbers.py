def share_random_numbers():
    """Have each replica draw its part of the random numbers that one device draws for a batch.

    All replicas have the same seeds. TensorFlow's generator, Philox, computes four numbers from a
    seed and a counter, so a replica skips the counters of the others. The public functions, such
    as tf.random.stateless_uniform, take no counter; they and Keras call these private ones.
    """
    for name in """
        stateless_random_uniform_v2 stateless_random_uniform_int_v2 stateless_random_normal_v2
    """.split():
        draw = getattr(tf.raw_ops, name.title().replace("_", ""))
        setattr(gen_stateless_random_ops_v2, name, functools.partial(draw_part, draw))


def draw_part(draw, shape, **options):
    """Draw this replica's part of the random numbers that one device would draw for the batch.

    `shape` is the shape of the part. The parts of all replicas follow each other. If the first
    dimension is no multiple of the replica's batch, all examples share the numbers, so all replicas
    draw the same. In four cases, the numbers depend on the number of replicas:
    - They are neither uniform nor normal, such as keras.random.truncated_normal. Then TensorFlow
      doesn't call this function, and all replicas draw the same.
    - All examples share the numbers, and the first dimension is a multiple of the replica's batch.
    - The rows of an example are not adjacent, such as after tf.concat of two batches.
    - The numbers have 64 bits. A counter has four numbers of 32 bits, so the parts overlap.
    """
    context = tf.distribute.get_replica_context()
    if not context or shape.shape[0] == 0:  # not on a replica, or a scalar
        return draw(shape=shape, **options)
    # {% if cookiecutter.__size == "complete" %}
    index, micro_batches = state.micro_batch
    own_part = context.replica_id_in_sync_group * micro_batches + index
    batch_size = config.global_batch_size // (config.replicas * micro_batches)
    part = tf.where(shape[0] % batch_size == 0, own_part, 0)
    # {% else %}
    batch_size = config.global_batch_size // config.replicas
    part = tf.where(shape[0] % batch_size == 0, context.replica_id_in_sync_group, 0)
    # {% endif %}
    size = tf.reduce_prod(tf.cast(shape, "int64"))
    first = tf.cast(part, "int64") * size
    # Start at the counter of this part's first number, and skip up to three numbers before it.
    options["counter"] += tf.cast([first // 4, 0], "uint64")
    numbers = draw(shape=[size + 3], **options)  # the length is constant, as TPUs need
    return tf.reshape(tf.slice(numbers, [first % 4], [size]), shape)
