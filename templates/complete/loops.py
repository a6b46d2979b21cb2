def add(sums, results):
    """Add a replica's losses and sample weights of one step to its sums, [2] float64."""
    return sums + tf.cast(results, "float64")


@tf.function
def run_steps(distributed_step, iterator, steps):
    """Run many steps in one graph.

    `steps` is a tensor, since a Python number would trace a graph for each value. Return the mean
    loss, or 0 if sample weights sum to 0, and the seconds spent waiting for data, [] float64 each.
    """
    # Each replica adds up its own losses, since a sum over workers takes messages.
    sums = strategy.run(lambda: tf.zeros([2], "float64"))
    waited = tf.zeros([], "float64")
    # A step updates the weights of the first layers last: they get their gradients last.
    trained_model = next(each for each, its_optimizer in pair_optimizers() if its_optimizer)
    first_layer_weights = trained_model.trainable_variables[0].value
    for _ in tf.range(steps):
        step_ended_at = read_clock([tf.convert_to_tensor(first_layer_weights)])
        batch = next_batch(iterator)
        # All parts of a batch arrive at once. The sample weights are never None.
        batch_arrived_at = read_clock(tf.nest.flatten(batch[-1], expand_composites=True))
        waited += tf.maximum(batch_arrived_at - step_ended_at, 0.0)
        sums = strategy.run(add, args=(sums, distributed_step(batch)))
    sums = strategy.reduce("SUM", sums, axis=None)
    # A GPU may still be at work: wait for the last update.
    with tf.control_dependencies([tf.convert_to_tensor(first_layer_weights)]):
        return tf.math.divide_no_nan(*tf.unstack(sums)), waited


def run_loop(distributed_step, metrics, iterator, steps):
    """Return the mean loss and the metrics of some steps, and the seconds waited for data."""
    if config.deterministic:
        # Enabled earlier, this would make the input pipelines serial, because they read variables.
        # Nothing writes these variables, so parallel pipelines are deterministic too.
        tf.config.experimental.enable_op_determinism()
    for metric in metrics:
        metric.reset_state()
    loss, waited = run_steps(distributed_step, iterator, tf.constant(steps))
    # `+ 0` reads a variable: the result of a metric may be one.
    values = {metric.name: float(metric.result() + 0) for metric in metrics}
    return {"loss": float(loss), **values}, float(waited)


def count_train_step(batch):
    """Take a training step, and count it for schedules."""
    results = distributed_train_step(batch)
    state.step_in_graph.assign_add(1)
    return results


def train(iterator, steps):
    """Run a loop of training. Return the values of its log line, without learning rates."""
    metrics = [*train_metrics, gradient_norm] if config.clip_norm else train_metrics
    state.step_in_graph.assign(state.step)
    started_at = time.perf_counter()
    values, waited = run_loop(count_train_step, metrics, iterator, steps)
    seconds = time.perf_counter() - started_at
    values["examples_per_second"] = steps * config.global_batch_size / seconds
    values["input_wait"] = waited / seconds
    return values


def validate(iterator, steps):
    return run_loop(distributed_validation_step, validation_metrics, iterator, steps)[0]


def test(iterator, steps):
    return run_loop(distributed_test_step, test_metrics, iterator, steps)[0]
