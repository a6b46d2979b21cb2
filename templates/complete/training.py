def train_epochs(iterator, validation_set):
    """Train to the last step, in loops of nearly equal length."""
    if state.step and is_end_of_epoch():
        finish_epoch(validation_set, {})  # resumed there
    while state.step < config.last_step:
        loop_start = state.step
        loop_end = end_of_next_loop(loop_start)
        set_profiling(is_profiled(loop_start, loop_end))
        trained = train(iterator, loop_end - loop_start)
        state.step = loop_end
        with ending_lock:  # a signal waits until the snapshot's loop is logged
            is_finite = math.isfinite(trained["loss"]) and take_snapshot()
            if is_finite:
                log("train", {**trained, **read_learning_rates()})
        if not is_finite:
            recover(loop_start)
            continue
        print_progress(trained)
        if is_end_of_epoch():
            finish_epoch(validation_set, trained)
        elif is_checkpoint_due(loop_start):
            save()
    set_profiling(False)


def is_profiled(loop_start, loop_end):
    """Return whether to profile a loop: on the chief, if it contains steps of --profile.

    Its steps are `loop_start` + 1 to `loop_end`, counted from 1.
    """
    first_profiled, last_profiled = config.profile
    return config.worker_index == 0 and loop_start < last_profiled and first_profiled <= loop_end


def set_profiling(is_wanted):
    """Start or stop the profiler if it doesn't run as wanted."""
    if is_wanted == state.is_profiling:
        return
    state.is_profiling = is_wanted
    if is_wanted:
        tf.profiler.experimental.start(f"{run_path()}/tensorboard/train")
    else:
        tf.profiler.experimental.stop()


def recover(loop_start):
    """Go back to the start of a loop whose loss is not finite. The input continues where it is.

    Raise RunFailed if --recover-from-nan doesn't allow it.
    """
    problem = f"the loss or a weight is not finite between steps {loop_start} and {state.step}"
    if state.recoveries >= config.recover_from_nan:
        raise RunFailed(
            f"{problem}; raise --recover-from-nan or, in another --run-dir, use a --learning-rate "
            f"below {config.learning_rate:g}, --clip-norm or --precision float32"
        )
    state.skipped += state.step - loop_start
    state.recoveries += 1
    state.step = loop_start
    values = {"names": [], "step": loop_start}  # the names of this run's model need no check
    for kind in get_variables():
        for position, value in enumerate(state.snapshot[kind]):
            values[f"{kind}/{position}"] = value.numpy()
    # All workers continue from the chief's snapshot, so that they stay bit-identical.
    restore(broadcast(values))
    print_status(
        f"{problem}; recovery {state.recoveries} of {config.recover_from_nan}: "
        f"back at step {loop_start}, with other batches"
    )


def finish_epoch(validation_set, trained):
    """Validate, save and log. Stop the run if `end_epoch` or --patience asks for it.

    Raise RunFailed if the loss or the score is not finite.
    """
    # Validate with the EMA, if there is one.
    swap_ema_weights()
    validated = validate(*validation_set)
    best = {**state.snapshot, **copy_variables()[0]}  # the model with its EMA
    del best["optimizer"]  # only "last" has one
    swap_ema_weights()
    if not math.isfinite(validated["loss"] + score(validated)):
        raise RunFailed(
            f"the validation loss or score is not finite at step {state.step}; in another "
            "--run-dir, try a lower --learning-rate"
        )
    is_best = score(validated) < min(map(score, state.history), default=math.inf)
    # "last" is without this validation, which a resumed run repeats.
    save(best if is_best else None)
    # From here on, the history contains this validation.
    validation = log("validation", validated)
    state.history.append(validation)
    print_epoch(validated, trained, is_best)
    epochs_since_best = validation["epoch"] - min(state.history, key=score)["epoch"]
    wait_for_write()
    sum_over_workers(0)  # wait for the chief: `end_epoch` may read the checkpoints
    if end_epoch(state.history) or epochs_since_best >= (config.patience or math.inf):
        config.last_step = state.step
        print_status(f"stopped at step {state.step} by `end_epoch` or --patience")
    take_snapshot()  # with what `end_epoch` has changed


# {% include "print_epoch.py" %}


def test_best_checkpoint(test_set):
    """Test the best checkpoint, or the last with --export last, and log the result."""
    log("test", test_checkpoint(run_on_chief(find_checkpoint, config.export), test_set))


def test_checkpoint(checkpoint, test_set):
    """Restore a checkpoint of the kind --export, and test it with the EMA, if there is one."""
    if config.export == "best":  # has the EMA as its weights, and no optimizer
        restore(checkpoint, ["model"])
    else:
        restore(checkpoint)
        swap_ema_weights()
    tested = test(*test_set)
    print_status(f"test {format_metrics(tested)}  of {checkpoint['path']}")
    return tested


def evaluate(checkpoint, validation_set, test_set):
    """Test a checkpoint, or validate the newest repeatedly. The run's own files don't change."""
    if config.mode == "continuous_evaluate":
        evaluate_continuously(validation_set)
    else:
        test_checkpoint(checkpoint, test_set)


def evaluate_continuously(validation_set):
    """Validate the newest checkpoint of a run repeatedly. RunFinished ends this."""
    trained_dir = run_path()
    config.run_dir = f"{run_path()}/evaluator"
    state.step = max((line["step"] for line in read_log()), default=0)
    while True:
        checkpoint = wait_for_checkpoint(trained_dir)
        restore(checkpoint)
        swap_ema_weights()
        state.step = int(checkpoint["step"])
        validated = validate(*validation_set)
        run_path().mkdir(exist_ok=True)
        log("validation", validated)
        print_status(f"validation {format_metrics(validated)}  of {checkpoint['path']}")


def wait_for_checkpoint(trained_dir):
    """Return the newest checkpoint of a run as soon as it is later than `state.step`.

    Raise RunFinished if the run is finished and has no later one, or after --timeout.
    """
    waiting_since = time.monotonic()
    while True:
        lines = read_log(trained_dir)
        if checkpoint := find_new_checkpoint(trained_dir):
            return checkpoint
        if lines and lines[-1]["split"] == "test":
            raise RunFinished(f"{trained_dir} is finished")
        if config.timeout and time.monotonic() - waiting_since > config.timeout:
            raise RunFinished(f"no new checkpoint in {trained_dir} for {config.timeout:g} seconds")
        time.sleep(0.5)


def find_new_checkpoint(trained_dir):
    """Return the newest checkpoint of a run if it is later than `state.step`, or None."""
    paths = trained_dir.glob("checkpoints/last/ckpt-[0-9]*.index")
    newest = max(paths, key=get_step, default=None)
    if newest and get_step(newest) > state.step:
        try:
            return read_checkpoint(newest.with_suffix(""))
        except Exception:
            # IndexError, OpError and others, if the files are being written or were replaced.
            pass
    return None
