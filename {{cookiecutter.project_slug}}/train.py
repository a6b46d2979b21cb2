# {% include [cookiecutter.script ~ "/header.py", "header.py"] %}

# 2. Globals: assigned in `main`, read everywhere --------------------------------------------------

# {# of 2 and 3: hooks.py, whose blocks the task fills #}
# {% include "tasks/" ~ cookiecutter.task ~ ".py" %}


# 4. Steps: one batch, on one replica and on all ---------------------------------------------------


# {% include "steps.py" %}


# 5. Loops: many steps -----------------------------------------------------------------------------


# {% include [cookiecutter.script ~ "/loops.py", "loops.py"] %}


# 6. Machinery: seldom edited ----------------------------------------------------------------------


# {% include "terminal.py" %}


# {% include [cookiecutter.script ~ "/signals.py", "signals.py"] %}


# {% include [cookiecutter.script ~ "/workers.py", "workers.py"] %}


# {% if cookiecutter.script == "complete" %}
# {% include "complete/cluster.py" %}


# {% endif %}
# {% include [cookiecutter.script ~ "/strategy.py", "strategy.py"] %}


# {% include "adam.py" %}


# {% include [cookiecutter.script ~ "/update.py", "update.py"] %}


# {% include [cookiecutter.script ~ "/input.py", "input.py"] %}


# {% include [cookiecutter.script ~ "/checkpoints.py", "checkpoints.py"] %}


# {% include [cookiecutter.script ~ "/run_directory.py", "run_directory.py"] %}


# {% include [cookiecutter.script ~ "/export.py", "export.py"] %}


# {% if cookiecutter.script == "complete" %}
# {% include "complete/first_weights.py" %}


# {% include "complete/recovery.py" %}


# {% include "complete/evaluator.py" %}


# {% endif %}
# 7. main ------------------------------------------------------------------------------------------


# {% include [cookiecutter.script ~ "/command_line.py", "command_line.py"] %}


# {% include [cookiecutter.script ~ "/main.py", "main.py"] %}
