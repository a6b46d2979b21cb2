def is_valid_log_line(line):
    """Return whether a JSON value is a line of metrics.jsonl."""
    return (
        isinstance(line, dict)
        and {"step", "epoch", "split", "loss"} <= line.keys()
        and all(isinstance(value, int | float) for name, value in line.items() if name != "split")
    )
