def print_epoch(validated, trained, is_best):
    """Print a line about an epoch, with a * for a new best checkpoint.

    On a narrow terminal, leave out the last loop's metrics, or cut the line.
    """
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    epoch = f"{state.step // config.steps_per_epoch:3}/{config.epochs}"
    line = f"epoch {epoch} {'*' if is_best else ' '}  validation {format_metrics(validated)}"
    longer = f"{line}{'  train ' if trained else ''}{format_metrics(trained)}"
    # The precision of a text is its largest length.
    print_status(longer if len(longer) < columns else f"{line:.{columns - 1}}")
