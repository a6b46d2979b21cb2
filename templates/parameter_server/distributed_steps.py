traced: dict = {"step": 0}  # the number of the step that is being traced, [] int32
# By the id of a metric's variable: what the step that is being traced adds to it.
metric_counts: dict[int, tf.Tensor] = {}


def get_count(variable):
    """Return what the step has added to a metric's variable so far."""
    return metric_counts.get(id(variable), tf.zeros(variable.shape, variable.dtype))


def redirect_updates(metric):
    """Make the updates of a metric add to `metric_counts` instead of its variables.

    If two workers added to a variable at the same time, one of the sums would be lost. A step
    that is repeated after a worker failure would be counted twice.
    """
    update_state = metric.update_state

    def update_counts(*args, **kwargs):
        start = [(variable, get_count(variable)) for variable in metric.variables]
        with keras.StatelessScope(start) as scope:
            update_state(*args, **kwargs)
        for variable in metric.variables:
            metric_counts[id(variable)] = scope.get_current_value(variable)

    metric.update_state = update_counts


def run_in_turn(step_function, metrics, iterator, places, training=False):
    """Run a step for each element of `places`, [steps, batch, 3], on one worker.

    Return the sums of losses and weights, and the metrics' counts. The result is one tensor,
    [n] float64: each tensor would take a message to the chief.
    """

    def run_step(places_of_step):
        epoch, position, _ = tf.unstack(places_of_step[0])
        step_in_epoch = position // config.global_batch_size
        traced["step"] = epoch * config.steps_per_epoch + step_in_epoch  # read by `update`
        metric_counts.clear()
        batch = create_batch(*next(iterator), training, places_of_step)
        tensors = [strategy.run(step_function, args=(batch,))]
        for metric in metrics:
            tensors += [get_count(variable) for variable in metric.variables]
        flat = [tf.reshape(tf.cast(tensor, "float64"), [-1]) for tensor in tensors]
        return tf.concat(flat, axis=0)

    # One after the other: TensorFlow keeps the order of steps that assign variables.
    return tf.reduce_sum(tf.map_fn(run_step, places, fn_output_signature=tf.float64), axis=0)


# The last call of a loop may have fewer steps. `reduce_retracing` traces a second graph, for any
# number of steps, instead of a graph for each number.
@tf.function(reduce_retracing=True)
def distributed_train_step(iterator, places):
    """Take training steps on the worker that is free first.

    `iterator` is the worker's, and `places`, [steps, batch, 3], are as in `create_batch`.
    """
    return run_in_turn(train_step, train_metrics, iterator, places, training=True)


@tf.function
def distributed_validation_step(iterator, places):
    return run_in_turn(validation_step, validation_metrics, iterator, places)


@tf.function
def distributed_test_step(iterator, places):
    return run_in_turn(test_step, test_metrics, iterator, places)
