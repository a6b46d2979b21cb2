# {% extends "checkpoints.py" %}
# {% block are_finite %}
@tf.function
def are_finite():
    kept, finite = managers["last"].checkpoint, []
    for x in (*kept.model, *kept.optimizer):
        if x.dtype.is_floating:
            with tf.device(x.device):  # the server's: a sum goes over the network, not the weights
                finite.append(tf.math.is_finite(tf.reduce_sum(tf.convert_to_tensor(x))))
    return tf.reduce_all(finite)


# {% endblock %}
# {% block save %}
def save(which):
    """Has each server write its part of a checkpoint, and puts them together."""
    # Counted by the step: files don't differ by how often a run was stopped.
    managers[which].checkpoint.save_counter.assign(state["step"] - 1)
    managers[which].save(checkpoint_number=state["step"].numpy())


# {% endblock %}
# {% block restore %}
def restore(which):
    """Restores the newest checkpoint, if any. Returns the step."""
    # {% endblock %}


# {% block random_state %}
# {% endblock %}
# {% block seed_replicas +%}
# {% endblock %}
