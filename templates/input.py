# {% block load %}
def load(dataset, split):
    """Returns all examples of a dataset, stacked, and their number. With all at hand, the order of
    an epoch is computed, not drawn from a buffer, so that a run resumes at any step at once."""
    size = int(dataset.cardinality())
    if size <= 0:
        refuse(f"create_datasets: {split} is empty, or of unknown size: see assert_cardinality")
    with tf.device("CPU:0"):  # as variables: of a tensor, each iterator would take a copy
        return tf.nest.map_structure(tf.Variable, next(iter(dataset.batch(size)))), size


# {% endblock %}
def shuffle(size, epoch):
    """Returns the order of an epoch, [size] int32, drawn from SEED and the epoch alone. Not by
    tf.random.experimental.index_shuffle, whose orders of two epochs are alike."""
    return tf.random.experimental.stateless_shuffle(tf.range(size), tf.stack([SEED, epoch]))


# {% block distribute %}
def distribute(examples, size, training, first_step=0):
    """Returns an endless iterator of batches of one shape, and the steps of an epoch. Training
    leaves out what fills no batch. Evaluation fills up with examples of weight 0: a replica without
    any would give NaN (tensorflow#41657). Its iterator is kept: a new one costs many steps."""
    steps = STEPS_PER_EPOCH if training else math.ceil(size / GLOBAL_BATCH_SIZE)
    cores = len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))

    def create_dataset(context):
        batch_size = context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
        replicas = context.num_replicas_in_sync // context.num_input_pipelines  # of this worker

        def order_epoch(epoch):  # the epoch (see preprocess), positions and examples, by batches
            position = tf.range(steps * GLOBAL_BATCH_SIZE)
            order = shuffle(size, epoch)[: steps * GLOBAL_BATCH_SIZE] if training else position
            batches = tf.reshape(tf.stack([position, order], axis=1), [steps, -1, batch_size, 2])
            own = batches[:, context.input_pipeline_id * replicas :][:, :replicas]
            own = tf.reshape(own, [-1, batch_size, 2])
            return tf.data.Dataset.from_tensor_slices((tf.repeat(epoch * training, len(own)), own))

        def create_batch(epoch, batch):
            position, index = tf.unstack(batch, axis=1)
            key = tf.random.stateless_uniform([], [SEED, epoch], None, None, tf.int32)
            seeds = tf.stack([tf.fill([batch_size], key), position], axis=1)
            index = tf.minimum(index, size - 1)  # of what fills up the last batch
            batch = tf.nest.map_structure(lambda values: tf.gather(values, index), examples)
            batch = preprocess(fetch(batch), seeds, training)
            features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            real = tf.cast(position < size, tf.float32)
            return features, labels, real if sample_weight is None else real * sample_weight

        epochs = tf.data.Dataset.counter(first_step // steps, dtype=tf.int32)
        places = epochs.flat_map(order_epoch).skip(first_step % steps * replicas)
        options = tf.data.Options()
        options.threading.private_threadpool_size = cores
        options.autotune.enabled = False  # its thread sleeps, and the end of the run waits for it
        # Endless to TensorFlow too, or all workers agree at each step on whether there is more.
        return places.map(create_batch, cores).repeat().prefetch(2 * replicas).with_options(options)

    context = tf.distribute.InputContext(WORKERS, WORKER, strategy.num_replicas_in_sync)
    spread = strategy.distribute_datasets_from_function  # a CPU can do without: see next_batch
    return iter(create_dataset(context) if DEVICE == "CPU" else spread(create_dataset)), steps


# {% block clock %}
# {% endblock %}
def next_batch(iterator):
    """Returns the next batch of each replica of this worker. A DistributedIterator copies it to its
    device ahead of time. A CPU has nothing to gain by that, and loses a fifth of its speed."""
    if DEVICE != "CPU":
        return next(iterator)
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


# {%- endblock +%}
