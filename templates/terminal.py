def print_status(line, end="\n"):
    # {% if cookiecutter.__size == "parameter_server" %}
    """Print a line. On a terminal, it replaces the progress bar."""
    # {% else %}
    """Print a line on the chief. On a terminal, it replaces the progress bar."""
    if config.worker_index > 0:
        return
    # {% endif %}
    if sys.stdout.isatty():
        line = f"\r\x1b[K{line}"
    # {% if cookiecutter.__size == "complete" %}
    with contextlib.suppress(BrokenPipeError):  # nobody reads the output: Ctrl-C ends `tee` too
        print(line, end=end)
    # {% else %}
    print(line, end=end)
    # {% endif %}


def format_metrics(values):
    """Return the loss and the metrics of a log line as text."""
    # {% if cookiecutter.__size == "complete" %}
    others = "step epoch split examples_per_second gradient_norm input_wait".split()
    return " ".join(f"{name} {value:.4f}" for name, value in values.items() if name not in others)
    # {% elif cookiecutter.__size == "parameter_server" %}
    others = "step epoch split examples_per_second".split()
    return " ".join(f"{name} {value:.4f}" for name, value in values.items() if name not in others)
    # {% else %}
    return " ".join(
        f"{name} {value:.4f}" for name, value in values.items() if name != "examples_per_second"
    )
    # {% endif %}


def print_progress(trained):
    """Show a progress bar on a terminal. It fits 60 columns, unlike Keras's."""
    if sys.stdout.isatty():
        examples_left = (config.last_step - state.step) * config.global_batch_size
        left = datetime.timedelta(seconds=examples_left // trained["examples_per_second"])
        bar = "█" * (10 * state.step // config.last_step)
        print_status(f"step {state.step:,}/{config.last_step:,} {bar:░<10} {left} left", end="\r")
