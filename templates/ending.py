# {% include "is_in_run_dir.py" %}


def report_error(error):
    """Print why the run ends, or the traceback of a bug. Return the exit code."""
    # {% if cookiecutter.__size == "parameter_server" %}
    if config.servers and is_task_failure(error):
        error = RunInterrupted(
            "a server or worker failed, or the chief's port is in use; start all tasks again"
        )
    # {% else %}
    # The type or the text of an error: `!r` is its repr, which begins with the type. A failure of
    # NCCL is an UnknownError, like an exception of a hook's Python code. Only its text differs.
    failures = "^(Unavailable|Aborted|DeadlineExceeded)Error|invoking NCCL|start gRPC|incarnation"
    if config.workers > 1 and re.search(failures, f"{error!r}{error}"):
        error = RunInterrupted("a worker failed, or its port is in use; start all workers again")
    # {% endif %}
    if re.search("No space left|Disk quota exceeded|; Permission denied", f"{error}"):
        error = RunFailed(
            f"the disk is full, its quota is used up, or a file has another owner ({error}); "
            "make room, or change the owner, and start again"
        )
    if is_in_run_dir(error):
        error = WrongInput(
            f"--run-dir {config.run_dir}: {error}; fix the path or the hook, or use another folder"
        )
    if not hasattr(error, "exit_code"):
        traceback.print_exception(error)
        return 1
    # {% if cookiecutter.__size == "parameter_server" %}
    print(
        f"train.py: {error.label}: {' '.join(str(error).split())}",
        file=sys.stderr if error.exit_code else sys.stdout,
    )
    # {% else %}
    # `split` removes line breaks.
    print(f"train.py: {error.label}: {' '.join(str(error).split())}", file=sys.stderr)
    # {% endif %}
    return error.exit_code
