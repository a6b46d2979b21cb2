def is_valid_log_line(line):
    """Return whether a JSON value is a line of metrics.jsonl."""
    if not isinstance(line, dict) or not {"step", "epoch", "split", "loss"} <= line.keys():
        return False
    numbers = [value for name, value in line.items() if name != "split"]
    return all(isinstance(number, int | float) for number in numbers)
