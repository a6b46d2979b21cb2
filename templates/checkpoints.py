checkpoints: dict = {}  # tf.train.Checkpoint objects by kind, "best" and "last"


def create_checkpoints():
    """Create what is saved in checkpoints/best and checkpoints/last.

    Variables are saved by position, because two layers may have the same name.
    """
    saved = {
        "step": tf.Variable(0, dtype="int64"),
        "model": [variable.value for variable in list_variables(model)],
        "names": tf.Variable([variable.path for variable in list_variables(model)]),
        "history": tf.Variable(["[]"]),  # as JSON
    }
    checkpoints["best"] = tf.train.Checkpoint(**saved)
    checkpoints["last"] = tf.train.Checkpoint(
        **saved, optimizer=[variable.value for variable in list_variables(optimizer)]
    )


@tf.function
def sum_variables():
    """Return the sum of all variables, [] float32. It is not finite if one of them isn't."""
    # {% if cookiecutter.__size == "parameter_server" %}
    total = 0.0
    for variable in list_variables((model, optimizer)):
        if "float" in variable.dtype:
            with tf.device(variable.value.device):  # sums are sent over the network, not weights
                part = tf.reduce_sum(tf.cast(variable, "float32"))
            total += part
    return total
    # {% else %}
    return sum(
        tf.reduce_sum(tf.cast(variable, "float32"))  # a sum of float16 may overflow
        for variable in list_variables((model, optimizer))
        if "float" in variable.dtype
    )
    # {% endif %}


def save(kind):
    # {% if cookiecutter.__size == "parameter_server" %}
    """Write a checkpoint, each server its part, and remove older ones.

    Raise RunFailed if a variable is not finite.
    """
    # {% else %}
    """Write a checkpoint on the chief, and remove older ones.

    Raise RunFailed, on each worker, if a variable is not finite.
    """
    # {% endif %}
    check_finite(sum_variables())
    # {% if cookiecutter.__size != "parameter_server" %}
    if config.worker_index > 0:
        return
    # {% endif %}
    checkpoint = checkpoints[kind]
    checkpoint.step.assign(state.step)
    checkpoint.history.assign([json.dumps(state.history)])
    # `save` adds 1, and names the file after this counter.
    checkpoint.save_counter.assign(state.step - 1)
    folder = run_path(f"checkpoints/{kind}")
    checkpoint.save(folder / "ckpt")
    for step in list_checkpoints(kind)[:-3]:  # the last three remain
        for path in folder.glob(f"ckpt-{step}.*"):
            path.unlink()


def list_checkpoints(kind):
    """Return the steps of all complete checkpoints of a kind. A kill may cut the index file short.

    tf.train.latest_checkpoint reads TensorFlow's list of checkpoints. A kill may leave the list
    older than the files, and without the list it finds nothing.
    """
    return sorted(
        int(path.stem[5:])  # the step in ckpt-38.index
        for path in run_path(f"checkpoints/{kind}").glob("ckpt-*[0-9].index")
        # A complete index file, an sstable, ends with this magic number.
        if path.read_bytes().endswith(b"W\xfb\x80\x8b$uG\xdb")
    )


def find_checkpoint(kind):
    """Return the path of the newest complete checkpoint, or None if the run has saved none yet.

    Raise WrongInput if "best" has none, or if a new run would replace what another one left.
    """
    if steps := list_checkpoints(kind):
        return run_path(f"checkpoints/{kind}/ckpt-{steps[-1]}")
    # TensorFlow lists complete checkpoints in a file named checkpoint.
    if (
        kind == "best"
        or any(run_path().glob("checkpoints/*/checkpoint"))
        or run_path("export").exists()
    ):
        raise WrongInput(
            f"--run-dir {config.run_dir}: no complete {kind} checkpoint; use another or new folder"
        )
    return None


def restore(kind, path):
    """Restore a checkpoint. Raise WrongInput if it is corrupt or of another model."""
    checkpoint = checkpoints[kind]
    try:
        checkpoint.restore(path).assert_consumed()
        for name, variable in zip(checkpoint.names.numpy(), list_variables(model), strict=True):
            if name.decode() != variable.path:
                raise ValueError(f"it has {name.decode()}, train.py has {variable.path}")
        # {% if cookiecutter.__schedule and cookiecutter.__size != "parameter_server" %}
        state.step_in_graph.assign(int(checkpoint.step))  # hooks may read it in an evaluation
        # {% endif %}
    except Exception as error:
        # IndexError, DataLossError, OpError, AssertionError or ValueError, by what is wrong.
        # {% if cookiecutter.__size == "parameter_server" %}
        os.stat(f"{path}.index")  # raises FileNotFoundError if the chief has removed it meanwhile
        # {% endif %}
        raise WrongInput(
            f"{path} is corrupt, or of another model or optimizer ({error!s:.200}). If corrupt, "
            "delete its files to use an older one; otherwise use another --run-dir"
        ) from error


def restore_run(checkpoint):
    """Restore the run from its last checkpoint, if there is one."""
    if checkpoint:
        restore("last", checkpoint)
        state.step = int(checkpoints["last"].step)
        state.history = json.loads(checkpoints["last"].history.numpy()[0])
