@tf.function
def run_steps(distributed_step, iterator, steps):
    """Runs many steps in one graph, without a return to Python between them.

    Args:
        distributed_step: of training, of validation or of the test.
        iterator: of `distribute`.
        steps: [] int32, a tensor: a Python number would trace a new graph for each value.

    Returns:
        The sums of the losses and of their weights, [2] float64, and the seconds spent waiting
        for data, [] float64.
    """
    sums, waited = tf.zeros([2], tf.float64), tf.zeros([], tf.float64)
    first_weights = tf.nest.flatten(model)[0].trainable_variables[0]
    for _ in tf.range(steps):
        # The first weights get their gradients last: once they are updated, the step is done.
        with tf.control_dependencies([tf.convert_to_tensor(first_weights.value)]):
            ready = clock()
        batch = next_batch(iterator)
        parts = [x for x in tf.nest.flatten(batch, expand_composites=True) if x is not None]
        with tf.control_dependencies(parts):
            waited += tf.maximum(clock() - ready, 0.0)
        sums += tf.cast(distributed_step(batch), tf.float64)
    with tf.control_dependencies([tf.convert_to_tensor(first_weights.value)]):
        return tf.identity(sums), waited  # whoever fetches them, waits for the last update too


def train(iterator, steps):
    """Runs a loop of training. Returns the values of its line in the log, means over the loop."""
    for metric in train_metrics:
        metric.reset_state()
    started = time.perf_counter()
    sums, waited = run_steps(distributed_train_step, iterator, tf.constant(steps))
    values = results(sums, train_metrics)  # which waits for a GPU that is still at it
    seconds = time.perf_counter() - started
    return {
        **values,
        "learning_rate": float(tf.nest.flatten(optimizer)[0].learning_rate.numpy()),
        **({"gradient_norm": float(gradient_norm.read_value())} if CLIP_NORM else {}),
        "examples_per_second": steps * GLOBAL_BATCH_SIZE / seconds,
        "input_wait": float(waited) / seconds,
    }


def validate(dataset, steps):
    """Returns the loss and the metrics of the validation split."""
    exchange_averages()  # of no effect without --ema-momentum
    values = evaluate(distributed_validation_step, validation_metrics, dataset, steps)
    exchange_averages()
    return values


def test(dataset, steps):
    """Returns the loss and the metrics of the test split."""
    return evaluate(distributed_test_step, test_metrics, dataset, steps)


def evaluate(distributed_step, metrics, dataset, steps):
    for metric in metrics:
        metric.reset_state()
    sums, _ = run_steps(distributed_step, iter(dataset), tf.constant(steps))
    return results(sums, metrics)


def results(sums, metrics):
    loss, weight = sums.numpy()
    values = {metric.name: float(metric.result()) for metric in metrics}
    return {"loss": float(loss / weight) if weight else 0.0, **values}
