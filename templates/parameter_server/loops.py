# A worker takes so many steps per call, since each call takes messages. If it fails, another worker
# repeats the call. Use 1 if a step takes seconds: a worker that gets a signal ends after
# GRACE_SECONDS, which have to be enough for two calls.
STEPS_PER_CALL = 4


def run_steps(distributed_step, arguments, stops=()):
    """Have the workers take the steps of each of `arguments`, until `stops` has an element.

    Return the result of each call, [n] float64.
    """
    futures = []
    pending = set()
    limit = 2 * config.workers  # these calls are finished after a signal
    pool = concurrent.futures.ThreadPoolExecutor(limit)  # a slow worker delays only its own calls
    for each in arguments:
        while len(pending) == limit:
            pending = wait_for_any(pending)
        if futures and stops:
            break
        futures.append(pool.submit(fetch_result, schedule(distributed_step, each)))
        pending.add(futures[-1])
    while pending:
        pending = wait_for_any(pending)
    return [future.result() for future in futures]


def wait_for_any(pending):
    """Wait up to GRACE_SECONDS for a call to end, and return the calls that are left.

    Raise the error of a failed server. Raise RunInterrupted if no call ends, and a signal is older
    than that: the workers are gone.
    """
    ended, pending = concurrent.futures.wait(pending, GRACE_SECONDS, "FIRST_COMPLETED")
    if signals and not ended and time.monotonic() > signals[0] + GRACE_SECONDS:
        raise RunInterrupted(
            "no worker has finished its steps; the same command resumes from the last checkpoint"
        )
    for future in ended:
        future.result()
    return pending


def add_up(results, metrics):
    """Return the mean loss and the metrics of the results of `run_in_turn`.

    If sample weights sum to 0, the loss is 0.
    """
    loss_sum, weight_sum, *counts = sum(results)  # pyright: ignore[reportGeneralTypeIssues]
    for metric in metrics:
        for variable in metric.variables:
            size = variable.shape.num_elements()
            variable.assign(np.reshape(counts[:size], variable.shape))
            del counts[:size]
    loss = float(loss_sum / weight_sum) if weight_sum else 0.0
    return {"loss": loss, **{metric.name: float(metric.result()) for metric in metrics}}


def train(list_arguments, steps):
    """Run a loop of training, which a signal ends early, and advance `state.step`.

    Return the values of its log line, without learning rates.
    """
    started_at = time.perf_counter()
    results = run_steps(distributed_train_step, list_arguments(state.step, steps), signals)
    seconds = time.perf_counter() - started_at
    # Fewer after a signal. Only the last call of a loop may have fewer than STEPS_PER_CALL.
    steps = min(steps, STEPS_PER_CALL * len(results))
    state.step += steps
    for each in filter(None, tf.nest.flatten(optimizer)):
        each.iterations.assign(state.step)
    values = add_up(results, train_metrics)
    values["examples_per_second"] = steps * config.global_batch_size / seconds
    return values


def validate(list_arguments, steps):
    # A signal ends it early.
    results = run_steps(distributed_validation_step, list_arguments(0, steps), signals)
    return add_up(results, validation_metrics)


def test(list_arguments, steps):
    results = run_steps(distributed_test_step, list_arguments(0, steps))
    return add_up(results, test_metrics)
