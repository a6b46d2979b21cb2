@tf.function
def run_steps(distributed_step, iterator, steps):
    """Runs many steps in one graph. Their number is a tensor: a Python number would trace a graph
    for each value. Returns the sums of the losses and of their weights, [2] float64."""
    sums = tf.zeros([2], tf.float64)
    for _ in tf.range(steps):
        sums += tf.cast(distributed_step(next_batch(iterator)), tf.float64)
    return sums


def run_loop(distributed_step, metrics, iterator, steps):
    """Returns the loss and the metrics, means over the steps."""
    for metric in metrics:
        metric.reset_state()
    loss, weight = run_steps(distributed_step, iterator, tf.constant(steps)).numpy()
    values = {metric.name: float(metric.result()) for metric in metrics}
    return {"loss": float(loss / weight) if weight else 0.0, **values}


def train(iterator, steps):
    """Runs a loop of training. Returns the values of its line in the log."""
    started = time.perf_counter()
    values = run_loop(distributed_train_step, train_metrics, iterator, steps)
    rate = tf.nest.flatten(optimizer)[0].learning_rate.numpy()  # waits for a GPU still at it
    speed = steps * GLOBAL_BATCH_SIZE / (time.perf_counter() - started)
    return {**values, "learning_rate": float(rate), "examples_per_second": speed}


def validate(iterator, steps):
    return run_loop(distributed_validation_step, validation_metrics, iterator, steps)


def test(iterator, steps):
    return run_loop(distributed_test_step, test_metrics, iterator, steps)
