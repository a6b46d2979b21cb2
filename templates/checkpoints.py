def create_managers():
    """Returns the checkpoints' managers, of variables by position: two layers may have one name."""
    weights = [x for each in tf.nest.flatten(model) for x in each.variables]
    slots = [x.value for each in tf.nest.flatten(optimizer) for x in each.variables]
    kept = {"model": [x.value for x in weights], "names": tf.Variable([x.path for x in weights])}
    best = tf.train.Checkpoint(step=state["step"], **kept)
    last = tf.train.Checkpoint(**state, **kept, optimizer=slots)
    folder, keep = run_dir / "checkpoints", tf.train.CheckpointManager
    try:
        return {"best": keep(best, folder / "best", 1), "last": keep(last, folder / "last", 3)}
    except Exception as error:  # about TensorFlow's lists of what is there
        refuse(f"{folder}: best/checkpoint or last/checkpoint is damaged ({error}); remove it")


# {% block are_finite %}
@tf.function
def are_finite():
    kept = managers["last"].checkpoint
    sums = [tf.reduce_sum(tf.convert_to_tensor(x)) for x in (*kept.model, *kept.optimizer)]
    return tf.reduce_all([tf.math.is_finite(x) for x in sums if x.dtype.is_floating])


# {% endblock %}
# {% block save %}
def save(which):
    """Has the chief write a checkpoint."""
    if WORKER == 0:  # counted by the step: files don't differ by how often a run was stopped
        managers[which].checkpoint.save_counter.assign(state["step"] - 1)
        managers[which].save(checkpoint_number=state["step"].numpy())


# {% endblock %}
def find_checkpoint(which):
    """Returns the newest one's path, or None; not by TensorFlow's list: a kill leaves it behind."""
    paths = (x for x in run_dir.glob(f"checkpoints/{which}/ckpt-*.index") if x.stem[5:].isdigit())
    magic = b"W\xfb\x80\x8b$uG\xdb"  # at the end of an index that no kill has cut short
    whole = (x.with_suffix("") for x in paths if x.read_bytes().endswith(magic))
    return max(whole, key=lambda x: int(x.name[5:]), default=None)


# {% block restore %}
def restore(which):
    """Restores the newest checkpoint, if any, and each replica's random state. Returns the step."""
    # {% endblock %}
    path = find_checkpoint(which)
    if which == "best" and not path:
        refuse(f"--run-dir {run_dir} has no best checkpoint; train it first, or put it back")
    try:
        if path:
            managers[which].checkpoint.restore(str(path)).assert_consumed()
    except Exception as error:  # of half a dozen kinds, by what is cut short, flipped, or unlike
        reason = str(error).partition("\n")[0]
        refuse(f"{path} is damaged, or not of this model ({reason}); name another --run-dir")
    # {% block random_state %}
    seed_replicas()
    # {% endblock %}
    return int(state["step"].numpy())


# {%- block seed_replicas +%}


# {% include "random_state.py" %}
# {% endblock %}
