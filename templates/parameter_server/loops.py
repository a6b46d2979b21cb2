def run_loop(distributed_step, metrics, data, first_step, steps, stops=()):
    """Has the workers do the steps from the first on, until `stops` has a signal. Returns how many
    they did, and the loss and the metrics, means over these."""
    waiting, sums, done = collections.deque(), 0.0, 0
    for step in range(first_step, first_step + steps):
        if len(waiting) == 4 * max(1, WORKERS):  # at a worker or next: so many end on a signal
            sums, done = sums + wait_for(waiting.popleft()), done + 1
        if stops and step > first_step:
            break
        waiting.append(schedule(distributed_step, *data(step)))
    for each in waiting:
        sums, done = sums + wait_for(each), done + 1
    (loss, weight), sums = sums[:2], sums[2:]
    for metric in metrics:
        for variable in metric.variables:
            part, sums = np.split(sums, [variable.shape.num_elements()])
            variable.assign(part.reshape(variable.shape))
    values = {metric.name: float(metric.result()) for metric in metrics}
    return done, {"loss": float(loss / weight) if weight else 0.0, **values}


def train(data, first_step, steps):
    """Runs a loop of training. Returns how many steps it made, and the values of its log line."""
    started = time.perf_counter()
    done, values = run_loop(distributed_train_step, train_metrics, data, first_step, steps, signals)
    speed = done * GLOBAL_BATCH_SIZE / (time.perf_counter() - started)
    for each in tf.nest.flatten(optimizer):
        each.iterations.assign(first_step + done)
    rate = tf.nest.flatten(optimizer)[0].learning_rate.numpy()
    return done, {**values, "learning_rate": float(rate), "examples_per_second": speed}


def validate(data, steps):
    return run_loop(distributed_validation_step, validation_metrics, data, 0, steps)[1]


def test(data, steps):
    return run_loop(distributed_test_step, test_metrics, data, 0, steps)[1]
