def print_epoch(validated, trained, is_best):
    """Print a line about an epoch. On a terminal, the training metrics are shown if they fit."""
    epoch = state.step // config.steps_per_epoch
    mark = "*" if is_best else " "
    line = f"epoch {epoch:3}/{config.epochs} {mark}  validation {format_metrics(validated)}"
    longer = f"{line}  train {format_metrics(trained)}"
    is_too_long = sys.stdout.isatty() and len(longer) >= shutil.get_terminal_size().columns
    print_status(longer if trained and not is_too_long else line)
