# {% include [cookiecutter.__size ~ "/header.py", "header.py"] %}

# 2. Globals: assigned in `main`, read everywhere --------------------------------------------------

# {# of 2 and 3: hooks.py, whose blocks the task fills #}
# {% include "tasks/" ~ cookiecutter.task ~ ".py" %}


# 4. Steps: one batch, on one replica and on all ---------------------------------------------------


# {% include [cookiecutter.__size ~ "/steps.py", "steps.py"] %}


# 5. Loops: many steps -----------------------------------------------------------------------------


# {% include [cookiecutter.__size ~ "/loops.py", "loops.py"] %}


# 6. Machinery: seldom edited ----------------------------------------------------------------------


# {% include "terminal.py" %}


# {% include [cookiecutter.__size ~ "/signals.py", "signals.py"] %}


# {% include [cookiecutter.__size ~ "/workers.py", "workers.py"] %}


# {% if cookiecutter.__size == "complete" %}
# {% include "complete/cluster.py" %}


# {% endif %}
# {% include [cookiecutter.__size ~ "/strategy.py", "strategy.py"] %}


# {% include [cookiecutter.__size ~ "/adam.py", "adam.py"] %}


# {% include [cookiecutter.__size ~ "/update.py", "update.py"] %}


# {% include [cookiecutter.__size ~ "/input.py", "input.py"] %}


# {% include [cookiecutter.__size ~ "/checkpoints.py", "checkpoints.py"] %}


# {% include [cookiecutter.__size ~ "/run_directory.py", "run_directory.py"] %}


# {% include [cookiecutter.__size ~ "/export.py", "export.py"] %}


# {% if cookiecutter.__size == "complete" %}
# {% include "complete/first_weights.py" %}


# {% include "complete/recovery.py" %}


# {% include "complete/evaluator.py" %}


# {% elif cookiecutter.__size == "parameter_server" %}
# {% include "parameter_server/evaluator.py" %}


# {% endif %}
# 7. main ------------------------------------------------------------------------------------------


# {% include [cookiecutter.__size ~ "/command_line.py", "command_line.py"] %}


# {% include [cookiecutter.__size ~ "/main.py", "main.py"] %}
