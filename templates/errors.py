def refuse(message):
    """Ends for wrong input: one line, exit code 2."""
    print(f"train.py: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def fail(message, code=1):
    """Ends a run that can't go on, for no fault of the input: one line."""
    print(f"train.py: stopped: {message}", file=sys.stderr)
    raise SystemExit(code)
