def train_epochs(iterator, validation_set):
    """Train to the last step, in loops of nearly equal length."""
    # {% if cookiecutter.__size == "parameter_server" %}
    # The same signal may arrive twice: `uv run` and the shell of a Slurm task pass it on.
    on_signals(lambda *_: signals.append(time.monotonic()))
    # {% else %}
    on_signals(lambda *received: signals.append(received))
    # {% endif %}
    if state.step and is_end_of_epoch():
        finish_epoch(validation_set, {})  # resumed there
    while state.step < config.last_step:
        loop_start = state.step
        loop_end = end_of_next_loop(loop_start)
        trained = train(iterator, loop_end - loop_start)
        # {% if cookiecutter.__size != "parameter_server" %}
        state.step = loop_end
        # {% endif %}
        check_finite(trained["loss"])
        log("train", {**trained, **read_learning_rates()})
        print_progress(trained)
        # {% if cookiecutter.__size == "parameter_server" %}
        if is_end_of_epoch() and not signals:
            finish_epoch(validation_set, trained)
        elif signals or is_checkpoint_due(loop_start):
            save("last")
        else:
            continue
        # Workers that got the signal end soon, so another loop may have none.
        if signals:
            raise RunInterrupted(f"saved at step {state.step}; the same command resumes")
        # {% else %}
        if sum_over_workers(len(signals)):
            save("last")
            raise RunInterrupted(f"saved at step {state.step}; the same command resumes")
        if is_end_of_epoch():
            finish_epoch(validation_set, trained)
        elif is_checkpoint_due(loop_start):
            save("last")
        # {% endif %}


def check_finite(number):
    """Raise RunFailed, before anything is saved, if a loss, score or sum is not finite."""
    if not math.isfinite(number):
        raise RunFailed(
            f"the loss, score or a weight is not finite at step {state.step}, which is not saved; "
            f"in another --run-dir, try a --learning-rate below {config.learning_rate:g}"
        )


def finish_epoch(validation_set, trained):
    """Validate, save and log at the end of an epoch. Stop the run if `end_epoch` returns True."""
    validated = validate(*validation_set)
    # {% if cookiecutter.__size == "parameter_server" %}
    if signals:  # the validation may be incomplete
        if trained:
            save("last")
        raise RunInterrupted(f"saved at step {state.step}; the same command resumes")
    # {% endif %}
    check_finite(validated["loss"] + score(validated))
    is_best = score(validated) < min(map(score, state.history), default=math.inf)
    # "last" is saved first, and without this validation. A run that resumes from it repeats the
    # validation and saves "best" again, since a kill may have come between the two.
    if trained:  # not when resumed here: a kill would corrupt the "last" from which the run resumed
        save("last")
    if is_best:
        save("best")
    state.history.append(log("validation", validated))
    print_epoch(validated, trained, is_best)
    # {% if cookiecutter.__size != "parameter_server" %}
    sum_over_workers(0)  # wait for the chief: `end_epoch` may read the checkpoints
    # {% endif %}
    if end_epoch(state.history):
        config.last_step = state.step
        print_status(f"stopped at step {state.step} by `end_epoch`")


# {% include "print_epoch.py" %}


def test_best_checkpoint(test_set):
    """Test the best checkpoint and log the result. The line has the last step of the run."""
    exit_on_signals()  # everything is saved
    log("test", test_checkpoint(find_checkpoint("best"), test_set))


def test_checkpoint(checkpoint, test_set):
    """Restore the best checkpoint and test it."""
    restore("best", checkpoint)
    tested = test(*test_set)
    print_status(f"test {format_metrics(tested)}  of {checkpoint}")
    return tested
