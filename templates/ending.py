def report_error(error):
    """Print why the run ends, or the traceback of a bug. Return the exit code."""
    # {% if cookiecutter.__size == "parameter_server" %}
    failures = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    if isinstance(error, (*failures, tf.errors.DeadlineExceededError)):
        error = RunInterrupted("a parameter server failed; start all tasks again")
    # {% else %}
    failures = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
    if isinstance(error, failures):
        error = RunInterrupted("a worker failed; start all workers again")
    if "gRPC server" in str(error):
        error = WrongInput(f"TF_CONFIG: {error}; use a free port")
    # {% endif %}
    # Other files are read by hooks: their errors keep the traceback.
    if isinstance(error, OSError) and Path(str(error.filename)).is_relative_to(run_path()):
        error = WrongInput(f"--run-dir {config.run_dir}: {error}; use another folder")
    if not hasattr(error, "exit_code"):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    # {% if cookiecutter.__size == "parameter_server" %}
    stream = sys.stderr if error.exit_code else sys.stdout
    print(f"train.py: {error.label}:", *str(error).split(), file=stream)
    # {% else %}
    print(f"train.py: {error.label}:", *str(error).split(), file=sys.stderr)
    # {% endif %}
    return error.exit_code
