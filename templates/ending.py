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
    if not hasattr(error, "exit_code"):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    stream = sys.stderr if error.exit_code else sys.stdout
    print(f"train.py: {error.label}:", *str(error).split(), file=stream)
    return error.exit_code
