def print_epoch(validated, trained, is_best):
    """Print a line about an epoch. On a terminal, the last loop's metrics are shown if they fit."""
    epoch = state.step // config.steps_per_epoch
    mark = "*" if is_best else " "
    line = f"epoch {epoch:3}/{config.epochs} {mark}  validation {format_metrics(validated)}"
    longer = f"{line}  train {format_metrics(trained)}"
    has_room = len(longer) < shutil.get_terminal_size((1000, 0)).columns
    print_status(longer if trained and has_room else line)
