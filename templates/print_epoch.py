def print_epoch(validated, trained, is_best):
    """Print a line about an epoch. On a terminal, the last loop's metrics are shown if they fit."""
    epoch = f"{state.step // config.steps_per_epoch:3}/{config.epochs}"
    line = f"epoch {epoch} {'*' if is_best else ' '}  validation {format_metrics(validated)}"
    longer = f"{line}  train {format_metrics(trained)}"
    if trained and len(longer) < shutil.get_terminal_size((1000, 0)).columns:
        line = longer
    print_status(line)
