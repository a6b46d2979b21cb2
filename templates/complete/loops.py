@tf.function
def run_steps(distributed_step, iterator, steps):
    """Runs many steps in one graph. Their number is a tensor: a Python number would trace a graph
    for each value. Returns the sums of the losses and of their weights, [2] float64, and the
    seconds spent waiting for data, [] float64."""
    sums, waited = tf.zeros([2], tf.float64), tf.zeros([], tf.float64)
    weights = tf.nest.flatten(model)[0].trainable_variables[0].value  # they get their gradient last
    for _ in tf.range(steps):
        ready = clock([tf.convert_to_tensor(weights)])
        batch = next_batch(iterator)
        parts = [x for x in tf.nest.flatten(batch, expand_composites=True) if x is not None]
        waited += tf.maximum(clock(parts) - ready, 0.0)
        sums += tf.cast(distributed_step(batch), tf.float64)
    with tf.control_dependencies([tf.convert_to_tensor(weights)]):  # a GPU may still be at work
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
    metrics = [*train_metrics, gradient_norm] if CLIP_NORM else train_metrics
    values, waited = run_loop(distributed_train_step, metrics, iterator, steps)
    seconds = time.perf_counter() - started
    values["learning_rate"] = float(tf.nest.flatten(optimizer)[0].learning_rate.numpy())
    speed = steps * GLOBAL_BATCH_SIZE / seconds
    return {**values, "examples_per_second": speed, "input_wait": waited / seconds}


def validate(iterator, steps):
    return run_loop(distributed_validation_step, validation_metrics, iterator, steps)[0]


def test(iterator, steps):
    return run_loop(distributed_test_step, test_metrics, iterator, steps)[0]
