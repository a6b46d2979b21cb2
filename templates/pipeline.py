# {% if cookiecutter.__size == "essential" %}
# {% include "input_options.py" %}


# {% endif %}
def create_input(examples, size, training=False, first_step=0):
    """Return an endless iterator of batches of one shape, and the steps of an epoch.

    Training leaves out the incomplete last batch. Evaluation fills the last batch with examples of
    weight 0: a replica without examples would make the mean NaN (tensorflow#41657). An iterator
    is created once per run, since it costs as much time as many steps.
    """
    steps = config.steps_per_epoch if training else math.ceil(size / config.global_batch_size)

    def list_places(epoch):
        """Return the places of an epoch on all replicas, [steps, replicas, batch, 3] int32.

        A place is [key, position, index]: the example at `index` in memory has this position in the
        epoch. The key is a random number for the epoch. Key and position are the example's seed.
        """
        position = tf.range(steps * config.global_batch_size)
        # `index_shuffle` would need no memory, but its orders of two epochs are correlated.
        order = tf.random.experimental.stateless_shuffle(tf.range(size), [config.seed, epoch])
        index = order[: len(position)] if training else position
        key = tf.random.stateless_uniform([], [config.seed, epoch], minval=None, dtype="int32")
        places = tf.transpose([tf.fill(position.shape, key), position, index])
        return tf.reshape(places, [steps, config.replicas, -1, 3])

    def create_dataset(context):
        """Return this worker's batches. An element is the batch of one replica in one step."""
        workers = context.num_input_pipelines
        # In evaluation, this counts 0, 0, …: each validation draws the same random numbers.
        epochs = tf.data.Dataset.counter(first_step // steps, step=int(training), dtype="int32")
        # A worker takes the places of its own replicas, in each step.
        places = epochs.map(
            lambda epoch: tf.split(list_places(epoch), workers, axis=1)[context.input_pipeline_id]
        )
        places = places.unbatch().skip(first_step % steps).unbatch()  # an element is [batch, 3]
        # Each parallel call holds a batch. Without autotuning, AUTOTUNE is the number of cores, at
        # most 16. `repeat` declares the dataset infinite. Else workers would send messages at each
        # step to agree on its end.
        return (
            places.map(functools.partial(create_batch, examples, size, training), tf.data.AUTOTUNE)
            .repeat()
            .prefetch(2 * context.num_replicas_in_sync // workers)
            .with_options(INPUT_OPTIONS)
        )

    if config.device_kind == "CPU":  # see next_batch
        batches = create_dataset(
            tf.distribute.InputContext(config.workers, config.worker_index, config.replicas)
        )
    else:
        batches = strategy.distribute_datasets_from_function(create_dataset)
    return iter(batches), steps


# {% include "create_batch.py" %}


# {% if cookiecutter.__size == "complete" %}
def read_clock(tensors):
    """Return the time at which tensors have been computed, in seconds, [] float64."""
    with tf.control_dependencies(tensors):
        if config.deterministic:  # which rejects tf.timestamp
            return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
        return tf.timestamp()


# {% endif %}
def next_batch(iterator):
    """Return the next batch of each replica of this worker.

    A DistributedIterator copies batches to their devices ahead of time. On CPUs there is nothing to
    copy, and it would cost a fifth of the speed.
    """
    if config.device_kind != "CPU":
        return next(iterator)

    def read():
        # A copy on the replica's device. Without it, if a model begins with a convolution,
        # TensorFlow fuses that with its bias on the first replica only (mkl_layout_pass.cc). Then
        # replicas would not be bit-identical to workers. Labels may be None.
        return tf.nest.map_structure(lambda x: x if x is None else tf.identity(x), next(iterator))

    return strategy.run(read)
