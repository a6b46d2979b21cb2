"""What the conditions of train.py answer. See tf_queries.py."""

from tf_queries import load_script


def load_with_config(path, settings):
    """Return a script whose `config` has some settings."""
    script = load_script(path)
    script.config = script.Config(**settings)
    return script


def list_loop_ends(path, settings, last_step):
    """Return the steps at which loops end, from the first step to the last one."""
    script = load_with_config(path, settings)
    ends = [0]
    while ends[-1] < last_step:
        ends.append(script.end_of_next_loop(ends[-1]))
    return ends[1:]


def list_due_checkpoints(path, settings, ends):
    """Return the ends of loops at which a checkpoint within the epoch is due."""
    script = load_with_config(path, settings)
    due = []
    for first_step, end in zip([0, *ends], ends, strict=False):
        script.state.step = end
        if script.is_checkpoint_due(first_step):
            due.append(end)
    return due


def filter_log(path, lines, step):
    """Return the lines that a run keeps when it resumes at a step."""
    script = load_script(path)
    return [line for line in lines if script.is_kept_on_resume(line, step)]


def list_valid_lines(path, lines):
    script = load_script(path)
    return [line for line in lines if script.is_valid_log_line(line)]


def check_batch_size(path, settings):
    """Return the error about the batch size, or None."""
    script = load_with_config(path, settings)
    try:
        script.check_batch_size()
    except script.WrongInput as error:
        return str(error)
    return None
