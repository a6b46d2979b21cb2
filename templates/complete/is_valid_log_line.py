def is_valid_log_line(line):
    """Return whether a JSON value is a line of metrics.jsonl."""
    if not isinstance(line, dict) or not {"step", "epoch", "split", "loss"} <= line.keys():
        return False
    return all(isinstance(value, int | float) for name, value in line.items() if name != "split")
