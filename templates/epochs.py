def end_of_next_loop(step):
    """Return the step at which the loop that begins at a step ends.

    The loops of an epoch have nearly equal lengths, up to the smaller of --steps-per-loop and
    --checkpoint-every-steps.
    """
    steps_left = config.steps_per_epoch - step % config.steps_per_epoch
    loops_left = math.ceil(steps_left / min(config.steps_per_loop, config.checkpoint_every_steps))
    return step + steps_left // loops_left


def is_end_of_epoch():
    return not state.step % config.steps_per_epoch


def is_checkpoint_due(loop_start):
    """Return whether the loop from `loop_start` passed a multiple of --checkpoint-every-steps."""
    every = config.checkpoint_every_steps
    return state.step // every > loop_start // every
