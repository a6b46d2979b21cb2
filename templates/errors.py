class WrongInput(Exception):
    """A flag, a file or an environment variable can't be used."""

    exit_code = 2
    label = "error"


class RunFailed(Exception):
    """The run can't continue until the cause is removed."""

    exit_code = 1
    label = "stopped"


# {% if cookiecutter.__size != "essential" %}
class RunFinished(Exception):
    """There is nothing left to do."""

    exit_code = 0
    # {% if cookiecutter.__size == "parameter_server" %}
    label = "finished"
    # {% endif %}


# {% endif %}
class RunInterrupted(RunFailed):
    # {% if cookiecutter.__size == "parameter_server" %}
    """The run was interrupted, or the chief or a server failed: the same command resumes it."""

    # {% else %}
    """The run was interrupted or a worker failed: the same command resumes it."""

    # {% endif %}
    exit_code = 143
