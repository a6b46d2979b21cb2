def add(sums, results):
    """Add a replica's losses and sample weights of one step to its sums, [2] float64."""
    return sums + tf.cast(results, "float64")


@tf.function
def run_steps(distributed_step, iterator, steps):
    """Run many steps in one graph. Return the mean loss, [] float64.

    It is 0 if sample weights sum to 0. `steps` is a tensor, since a Python number would trace a
    graph for each value.
    """
    # Each replica adds up its own losses, since a sum over workers takes messages.
    sums = strategy.run(lambda: tf.zeros([2], "float64"))
    for _ in tf.range(steps):
        sums = strategy.run(add, args=(sums, distributed_step(next_batch(iterator))))
    return tf.math.divide_no_nan(*tf.unstack(strategy.reduce("SUM", sums, axis=None)))


def run_loop(distributed_step, metrics, iterator, steps):
    """Return the mean loss and the metrics of some steps."""
    if config.deterministic:
        # Enabled earlier, this would make the input pipelines serial, because they read variables.
        # Nothing writes these variables, so parallel pipelines are deterministic too.
        tf.config.experimental.enable_op_determinism()
    for metric in metrics:
        metric.reset_state()
    loss = float(run_steps(distributed_step, iterator, tf.constant(steps)))
    # `+ 0` reads a variable: the result of a metric may be one.
    return {"loss": loss, **{metric.name: float(metric.result() + 0) for metric in metrics}}


# {% if cookiecutter.__schedule %}
def count_train_step(batch):
    """Take a training step, and count it for schedules."""
    results = distributed_train_step(batch)
    state.step_in_graph.assign_add(1)
    return results


# {% endif %}
def train(iterator, steps):
    """Run a loop of training. Return the values of its log line, without learning rates."""
    # {% if cookiecutter.__schedule %}
    state.step_in_graph.assign(state.step)
    # {% endif %}
    started_at = time.perf_counter()
    # {% if cookiecutter.__schedule %}
    values = run_loop(count_train_step, train_metrics, iterator, steps)
    # {% else %}
    values = run_loop(distributed_train_step, train_metrics, iterator, steps)
    # {% endif %}
    seconds = time.perf_counter() - started_at
    return {**values, "examples_per_second": steps * config.global_batch_size / seconds}


def validate(iterator, steps):
    return run_loop(distributed_validation_step, validation_metrics, iterator, steps)


def test(iterator, steps):
    return run_loop(distributed_test_step, test_metrics, iterator, steps)
