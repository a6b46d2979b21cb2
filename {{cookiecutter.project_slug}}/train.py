# {% set size = cookiecutter.__size %}
# {% include "header.py" %}

# 2. Globals: assigned in `main`, read by hooks and steps ------------------------------------------

# {% include "globals.py" %}


# {% if size == "parameter_server" %}
# {% include "parameter_server/globals.py" %}


# {% endif %}
# {% include [size ~ "/state.py", "state.py"] %}

# 3. Hooks: edit these -----------------------------------------------------------------------------


# {% include "tasks/" ~ cookiecutter.task ~ "/hooks.py" %}


# {% include "losses.py" %}


# {% include "epoch_hooks.py" %}


# {% include "serving.py" %}


# 4. Steps: one batch, on one replica and on all ---------------------------------------------------


# {% include "steps.py" %}


# {% include [size ~ "/distributed_steps.py", "distributed_steps.py"] %}


# 5. Loops: many steps -----------------------------------------------------------------------------


# {% include [size ~ "/loops.py", "loops.py"] %}


# {% include "learning_rates.py" %}


# 6. Machinery: rarely edited ----------------------------------------------------------------------


# {% include "errors.py" %}


# {% include "terminal.py" %}


# {% include "command_line.py" %}


# {% if size == "complete" %}
# {% include "complete/flags.py" %}


# {% endif %}
# {% include [size ~ "/signals.py", "signals.py"] %}


# {% if size == "parameter_server" %}
# {% include "parameter_server/cluster.py" %}


# {% include "parameter_server/strategy.py" %}


# {% else %}
# {% include "cluster.py" %}


# {% if size == "complete" %}
# {% include "complete/cluster.py" %}


# {% endif %}
# {% include "strategy.py" %}


# {% include "set_up.py" %}


# {% endif %}
# {% include "input.py" %}


# {% include [size ~ "/load_into_memory.py", "load_into_memory.py"] %}


# {% include [size ~ "/pipeline.py", "pipeline.py"] %}


# {% include [size ~ "/adam.py", "adam.py"] %}


# {% if cookiecutter.__schedule %}
# {% include "schedule.py" %}


# {% endif %}
# {% include [size ~ "/update.py", "update.py"] %}


# {% include "model_state.py" %}


# {% include [size ~ "/checkpoints.py", "checkpoints.py"] %}


# {% if size != "parameter_server" %}
# {% include "random_numbers.py" %}


# {% include "batch_normalization.py" %}


# {% endif %}
# {% if size == "complete" %}
# {% include "complete/initial_weights.py" %}


# {% endif %}
# {% include "run_directory.py" %}


# {% include [size ~ "/resume.py", "resume.py"] %}


# {% include [size ~ "/export.py", "export.py"] %}


# {% include [size ~ "/training_state.py", "training_state.py"] %}


# {% include "epochs.py" %}


# {% include [size ~ "/training.py", "training.py"] %}


# {% include [size ~ "/ending.py", "ending.py"] %}


# 7. main ------------------------------------------------------------------------------------------


# {% include "main.py" %}


# {% include "run.py" %}
