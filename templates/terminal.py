def refuse(message, code=2):
    """Ends with one line: for wrong input, or with code 1 where the run itself can't go on."""
    print(f"train.py: {'error' if code == 2 else 'stopped'}:", *message.split(), file=sys.stderr)
    raise SystemExit(code)


def say(*parts, end="\n"):
    """Prints a line on the chief; on a terminal over the progress bar, and of several what fits."""
    line, width = "  ".join(parts), shutil.get_terminal_size().columns - 1
    if sys.stdout.isatty() and parts[1:] and len(line) > width:
        line = line[: width + 1].rpartition(" ")[0].rstrip()
    if WORKER == 0:
        print("\r\x1b[K" * sys.stdout.isatty() + line.replace("\0", " "), end=end, flush=True)


def describe(values):
    """Returns the loss and the metrics of a line of the log as text for `say`, to cut in pairs."""
    others = "step epoch split learning_rate gradient_norm examples_per_second input_wait".split()
    return " ".join(f"{name}\0{x:.4f}" for name, x in values.items() if name not in others)
