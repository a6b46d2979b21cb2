def load(dataset, split):
    """Returns all examples of a dataset, stacked in variables in host memory, and their number.
    With all at hand, the order of an epoch is computed instead of drawn from a buffer: a run
    resumes at any step at once, and each worker knows its share."""
    size = int(dataset.cardinality())
    if size <= 0:
        refuse(
            f"create_datasets: the {split} dataset is empty, or doesn't know its size, which "
            ".apply(tf.data.experimental.assert_cardinality(size)) tells it"
        )
    stacks, start = None, 0
    with tf.device("CPU:0"):
        # Piece by piece, into its place: `batch(size)` would hold all of them twice, and so would
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


def shuffle(size, epoch):
    """Returns the order of an epoch, [size] int32: a permutation drawn from SEED and the epoch
    alone. Not tf.random.experimental.index_shuffle, whose orders of two epochs are alike."""
    return tf.random.experimental.stateless_shuffle(tf.range(size), tf.stack([SEED, epoch]))


def distribute(examples, size, training, first_step=0):
    """Returns a dataset whose iterators `next_batch` takes, endless, of the replicas' batches in
    turn, all of one shape.

    In training it starts at `first_step`, and leaves out the last examples of each epoch's order
    that don't fill a batch. In evaluation the split repeats in its own order, filled up to whole
    batches by examples of weight 0: a replica with none at all would give NaN (tensorflow#41657).
    """
    steps = STEPS_PER_EPOCH if training else count_steps(size)

    def create_dataset(context):
        batch_size = context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
        replicas = context.num_replicas_in_sync // context.num_input_pipelines  # of this worker
        first = context.input_pipeline_id * replicas

        def order_epoch(epoch):
            """Returns (epoch, positions, examples) of each batch of this worker's replicas."""
            position = tf.range(steps * GLOBAL_BATCH_SIZE)
            order = shuffle(size, epoch)[: len(position)] if training else position
            shares = [tf.reshape(x, [steps, -1, batch_size]) for x in (position, order)]
            shares = [tf.reshape(x[:, first : first + replicas], [-1, batch_size]) for x in shares]
            epochs = tf.repeat(epoch, steps * replicas)
            return tf.data.Dataset.from_tensor_slices((epochs, *shares))

        def create_batch(epoch, position, index):
            key = tf.random.stateless_uniform([], [SEED, epoch], None, None, tf.int32)
            seeds = tf.stack([tf.fill([batch_size], key), position], axis=1)
            index = tf.minimum(index, size - 1)  # of what fills up the last batch
            batch = tf.nest.map_structure(lambda values: tf.gather(values, index), examples)
            batch = preprocess(batch, seeds, training)
            features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            real = tf.cast(position < size, tf.float32)
            return features, labels, real if sample_weight is None else real * sample_weight

        if training:
            first_epoch, first_position = divmod(first_step, steps)
            epochs = tf.data.Dataset.counter(first_epoch, dtype=tf.int32)
            order = epochs.flat_map(order_epoch).skip(first_position * replicas)
        else:
            order = order_epoch(tf.constant(-1))
        threads = available_cores()
        if device_type() == "CPU":  # leave cores to the steps
            threads = max(1, threads // 2)
        options = tf.data.Options()
        options.autotune.enabled = False  # its thread sleeps, and the end of the run waits for it
        options.threading.private_threadpool_size = threads
        batches = order.map(create_batch, num_parallel_calls=threads)
        # Endless to TensorFlow too, or all workers agree at each step on whether there is more.
        return batches.repeat().prefetch(2 * replicas).with_options(options)

    if device_type() == "CPU":
        context = tf.distribute.InputContext(WORKERS, WORKER, strategy.num_replicas_in_sync)
        return create_dataset(context)
    return strategy.distribute_datasets_from_function(create_dataset)


def count_steps(size):
    """Returns the steps of an evaluation."""
    return math.ceil(size / GLOBAL_BATCH_SIZE)


def available_cores():
    """Returns how many cores this process may use, of a job that was given a few of many."""
    cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return len(cores(0))


def next_batch(iterator):
    """Returns the next batch of each replica of this worker."""
    if device_type() != "CPU":
        return next(iterator)
    # A DistributedIterator copies batches to their devices ahead of time. A CPU has nothing to
    # gain by that, and loses a fifth of its speed.
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


def clock():
    """Returns the time in seconds, [] float64."""
    if args.deterministic:  # which tf.timestamp refuses
        return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
    return tf.timestamp()
