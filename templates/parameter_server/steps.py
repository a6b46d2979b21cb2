# {% extends "steps.py" %}
# {% block count %}
counts: dict[int, tf.Tensor] = {}  # what the step that is being traced adds to metrics' variables


def count(metric):
    """Has a metric's updates add to `counts`, not to its variables: two workers that add to one at
    a time would lose a sum, and a step that is done again would add twice."""

    def update_counts(*arguments, update=metric.update_state, **named):
        start = [(x, counts.get(id(x), tf.zeros(x.shape, x.dtype))) for x in metric.variables]
        with keras.StatelessScope(start) as scope:
            update(*arguments, **named)
        counts.update({id(x): scope.get_current_value(x) for x in metric.variables})

    metric.update_state = update_counts


# {% endblock %}
# {% block distributed_steps %}
def run_step(step, metrics, batch):
    """Returns the sums of the losses and weights, and what the metrics count, [n] float64."""
    counts.clear()
    sums, variables = strategy.run(step, args=(batch,)), (x for m in metrics for x in m.variables)
    return pack([sums, *(counts.get(id(x), tf.zeros(x.shape, x.dtype)) for x in variables)])


@tf.function
def distributed_train_step(examples, step, index):
    """Runs on the worker that comes first, as the next two do: a step by its number, [], on the
    examples of these indexes, [batch], all int32. Done again elsewhere, it takes the same ones."""
    for each in tf.nest.flatten(optimizer):
        each.iterations.assign(tf.cast(step, each.iterations.dtype))  # increments of many get lost
    batch = create_batch(examples, step, index, training=True)
    return run_step(train_step, train_metrics, batch)


@tf.function
def distributed_validation_step(examples, step, index):
    batch = create_batch(examples, step, index, training=False)
    return run_step(validation_step, validation_metrics, batch)


@tf.function
def distributed_test_step(examples, step, index):
    batch = create_batch(examples, step, index, training=False)
    return run_step(test_step, test_metrics, batch)


# {%- endblock +%}
