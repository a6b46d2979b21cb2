def create_input(examples, size, training=False, first_step=0):
    """Return a function that lists the arguments of calls, and the steps of an epoch.

    Each worker gets all examples once, when it connects. For each step, the chief sends the places
    of its batch: they are the same for any worker, also when a step is repeated. `first_step` has
    no effect, since the function takes any step.
    """
    steps = config.steps_per_epoch if training else math.ceil(size / config.global_batch_size)

    def create_dataset():
        """Return all examples as one element, again and again, which makes no copy."""
        tensors = tf.nest.map_structure(tf.convert_to_tensor, examples)
        return tf.data.Dataset.from_tensors((tensors, size)).repeat()

    if coordinator:
        iterator = iter(coordinator.create_per_worker_dataset(create_dataset))
    else:
        iterator = iter(create_dataset())

    @functools.lru_cache(maxsize=1)
    def list_places(epoch):
        """Return the places of each step of an epoch, [steps, batch, 3] int32."""
        position = tf.range(steps * config.global_batch_size)
        # `index_shuffle` would need no memory, but its orders of two epochs are correlated.
        order = tf.random.experimental.stateless_shuffle(tf.range(size), [config.seed, epoch])
        index = order[: len(position)] if training else position
        # In evaluation the epoch is 0: each validation draws the same random numbers.
        places = tf.stack([tf.fill(position.shape, epoch), position, index], axis=1)
        return tf.reshape(places, [steps, -1, 3])

    def list_arguments(step, count):
        """Return the arguments of calls that take `count` steps of one epoch, from `step` on."""
        epoch, step_in_epoch = divmod(step, steps)
        places = list_places(epoch)[step_in_epoch : step_in_epoch + count]
        starts = range(0, len(places), STEPS_PER_CALL)
        return [(iterator, places[start : start + STEPS_PER_CALL]) for start in starts]

    return list_arguments, steps


# {% include "create_batch.py" %}
