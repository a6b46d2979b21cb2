@tf.function
def run_steps(distributed_step, iterator, steps):
    """Runs many steps in one graph. Their number is a tensor: a Python number would trace a graph
    for each value. Returns the sums of the losses and of their weights, [2] float64, and the
    seconds spent waiting for data, [] float64."""
    sums, waited = tf.zeros([2], tf.float64), tf.zeros([], tf.float64)
    for _ in tf.range(steps):
        with after_last_update():
            ready = clock()
        batch = next_batch(iterator)
        parts = [x for x in tf.nest.flatten(batch, expand_composites=True) if x is not None]
        with tf.control_dependencies(parts):
            waited += tf.maximum(clock() - ready, 0.0)
        sums += tf.cast(distributed_step(batch), tf.float64)
    with after_last_update():  # a loop that returns has not finished on a GPU; whoever reads has
        return tf.identity(sums), waited


def run_loop(distributed_step, metrics, iterator, steps):
    """Returns the loss and the metrics, means over the steps, and the seconds waited for data."""
    for metric in metrics:
        metric.reset_state()
    sums, waited = run_steps(distributed_step, iterator, tf.constant(steps))
    loss, weight = sums.numpy()
    values = {metric.name: float(metric.result()) for metric in metrics}
    return {"loss": float(loss / weight) if weight else 0.0, **values}, float(waited)


def train(iterator, steps):
    """Runs a loop of training. Returns the values of its line in the log."""
    started = time.perf_counter()
    values, waited = run_loop(distributed_train_step, train_metrics, iterator, steps)
    seconds = time.perf_counter() - started
    values["learning_rate"] = float(tf.nest.flatten(optimizer)[0].learning_rate.numpy())
    if CLIP_NORM:
        values["gradient_norm"] = float(gradient_norm.read_value())
    speed = steps * GLOBAL_BATCH_SIZE / seconds
    return {**values, "examples_per_second": speed, "input_wait": waited / seconds}


def validate(dataset, steps):
    return run_loop(distributed_validation_step, validation_metrics, iter(dataset), steps)[0]


def test(dataset, steps):
    return run_loop(distributed_test_step, test_metrics, iter(dataset), steps)[0]
