def run_loop(distributed_step, metrics, data, first_step, steps, stops=()):
    """Has the workers do the steps from the first on, until `stops` has a signal. Returns how many
    they did, and the loss and the metrics, means over these."""
    results, waiting, limit = [], set(), 4 * max(1, WORKERS)  # so many steps end on a signal
    pool = concurrent.futures.ThreadPoolExecutor(limit)  # no step waits for a slow worker's
    while (more := len(results) < steps and not (stops and results)) or waiting:
        if more and len(waiting) < limit:
            result = schedule(distributed_step, *data(first_step + len(results)))
            results.append(pool.submit(wait_for, result))
            waiting.add(results[-1])
        else:
            ended, waiting = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
            [each.result() for each in ended]  # raises the error of a lost server, once
    (loss, weight), sums = np.split(sum(each.result() for each in results), [2])
    for metric in metrics:
        for variable in metric.variables:
            part, sums = np.split(sums, [variable.shape.num_elements()])
            variable.assign(part.reshape(variable.shape))
    values = {metric.name: float(metric.result()) for metric in metrics}
    return len(results), {"loss": float(loss / weight) if weight else 0.0, **values}


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
