# After each loop, `take_snapshot` copies the run to host memory. When a checkpoint is due, `save`
# has this thread write the snapshot, while training continues. Before an interrupted process exits,
# `save_snapshot` writes the last snapshot.
writer = concurrent.futures.ThreadPoolExecutor(max_workers=1)


def get_variables():
    """Return the variables that training changes, in lists: two layers may have one name."""
    return {
        "model": [variable.value for variable in list_variables(model)],
        "optimizer": [variable.value for variable in list_variables(optimizer)],
    }


@tf.function
def copy_variables():
    """Return the values of all variables in host memory, and whether all are finite, [] bool.

    Workers other than the chief get no values.

    On a CPU the copy is cheap: the buffers are shared until the next step writes to them.
    """
    variables = get_variables()
    are_finite = tf.reduce_all(
        [
            tf.math.is_finite(tf.reduce_sum(tf.cast(value, "float32")))  # float16 may overflow
            for value in tf.nest.flatten(variables)
        ]
    )
    if config.worker_index > 0:  # only the chief writes checkpoints
        variables = dict.fromkeys(variables, [])
    with tf.device("CPU:0"):
        return tf.nest.map_structure(tf.identity, variables), are_finite


def take_snapshot():
    """Keep a copy of the run, unless a variable is not finite. Return whether all are finite."""
    values, are_finite = copy_variables()
    if are_finite:
        values["names"] = tf.constant([variable.path for variable in list_variables(model)])
        values["step"] = np.int64(state.step)
        values["history"] = tf.constant([json.dumps(state.history)])
        if state.recoveries:
            values["recoveries"] = np.int64(state.recoveries)
            values["skipped"] = np.int64(state.skipped)
        state.snapshot = values
    return are_finite


def save(best=None):
    """Write the snapshot, and the best checkpoint if given, while training continues."""
    wait_for_write()
    if config.worker_index == 0:
        state.pending_write = writer.submit(write_checkpoints, state.snapshot, best)


def wait_for_write():
    """Wait until checkpoints are written. Raise the error if that has failed."""
    if state.pending_write:
        state.pending_write.result()


def write_checkpoints(last, best=None):
    """Write checkpoints/last and then checkpoints/best.

    A run that is killed between the two repeats the validation when it resumes, and writes "best".
    """
    write_checkpoint("last", last, max_to_keep=3)
    state.saved_step = int(last["step"])
    if best:
        write_checkpoint("best", best, max_to_keep=1)


def write_checkpoint(kind, content, max_to_keep):
    """Write a checkpoint. Keep the newest `max_to_keep` up to its step, complete or not.

    Remove older ones, TensorFlow's temporary folders, and later ones. There are later ones if the
    newest was corrupt, so that the run has resumed from an older one.
    """
    with tf.device("CPU:0"):
        checkpoint = tf.train.Checkpoint(**tf.nest.map_structure(tf.Variable, content))
    step = int(content["step"])
    checkpoint.save_counter.assign(step)  # doesn't depend on the number of restarts
    folder = run_path(f"checkpoints/{kind}")
    # The "last" from which a run has resumed isn't written again, since a kill would corrupt it. A
    # corrupt "best" is made again; see `find_checkpoint`.
    if kind == "best" or step > state.saved_step:
        checkpoint.write(folder / f"ckpt-{step}")
    steps = [each for each in list_checkpoints(kind) if each <= step][-max_to_keep:]
    paths = [f"ckpt-{each}" for each in steps]
    # TensorFlow's list of checkpoints, for tf.train.latest_checkpoint. There is no other function
    # for it. The folder "/" leaves the paths relative, so that a run can be moved.
    listed = tf.compat.v1.train.generate_checkpoint_state_proto("/", paths[-1], paths)
    write_file(f"checkpoints/{kind}/checkpoint", f"{listed}")
    for path in folder.glob("ckpt-[0-9]*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif get_step(path) not in steps:
            path.unlink()


def list_checkpoints(kind):
    """Return the steps of all checkpoints of a kind, complete or not.

    tf.train.latest_checkpoint reads TensorFlow's list. A kill may leave the list older than the
    files, and without the list it finds nothing.
    """
    return sorted(set(map(get_step, run_path(f"checkpoints/{kind}").glob("ckpt-[0-9]*.*"))))


def get_step(path):
    """Return the step of a checkpoint's file."""
    return int(re.search(r"\d+", path.name)[0])


def read_checkpoint(path):
    """Return the arrays in a checkpoint by name, such as step or model/0, and its path.

    Reading all arrays verifies their checksums.
    """
    reader = tf.train.load_checkpoint(path)
    checkpoint = {"path": f"{path}"}
    for name in reader.get_variable_to_shape_map():
        checkpoint[name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")] = reader.get_tensor(name)
    return checkpoint


def read_newest(kind, steps):
    """Return the newest checkpoint that is not corrupt, or None."""
    for step in reversed(steps):
        path = run_path(f"checkpoints/{kind}/ckpt-{step}")
        try:
            return read_checkpoint(path)
        except Exception as error:
            # IndexError, DataLossError, OpError or ValueError, by what is cut short or flipped.
            print_status(f"{path} is incomplete or corrupt, and left out: {get_reason(error)}")
    return None


def find_checkpoint(kind):
    """Return the newest checkpoint, or None if the run has never saved one.

    If the best checkpoint is corrupt, the run resumes from its step or before, and makes it again.
    Raise WrongInput if no checkpoint of the run can be used, or if a new run would replace what
    another one left.
    """
    may_resume = config.mode == "train" and not state.step  # not in the test at the end
    steps = list_checkpoints(kind)
    if may_resume:
        best_steps = list_checkpoints("best")
        if best_steps and not read_newest("best", best_steps):
            steps = [step for step in steps if step <= best_steps[-1]]
    checkpoint = read_newest(kind, steps)
    # The files are TensorFlow's lists of complete checkpoints.
    leftovers = ["checkpoints/last/checkpoint", "checkpoints/best/checkpoint", "export"]
    is_new_run = may_resume and not any(map(Path.exists, map(run_path, leftovers)))
    if checkpoint or is_new_run:
        return checkpoint
    raise WrongInput(
        f"--run-dir {config.run_dir}: no checkpoint in checkpoints/{kind} can be used; use another "
        "or new folder, or restore the files. If a run is writing them, try again. If only "
        "checkpoints/best is corrupt, remove it and use --export last"
    )


def restore(checkpoint, kinds=("model", "optimizer")):
    """Assign the arrays of a checkpoint to the variables, and remove them from it to free memory.

    Raise WrongInput if the checkpoint is of another model or optimizer.
    """
    try:
        for name, variable in zip(checkpoint["names"], list_variables(model), strict=False):
            if name.decode() != variable.path:
                raise ValueError(f"it has {name.decode()}, train.py has {variable.path}")
        for kind in kinds:
            variables = get_variables()[kind]
            count = sum(name.startswith(f"{kind}/") for name in checkpoint)
            if count != len(variables):
                raise ValueError(f"it has {count} {kind} variables, train.py has {len(variables)}")
            for position, variable in enumerate(variables):
                variable.assign(checkpoint.pop(f"{kind}/{position}"))
        state.step_in_graph.assign(checkpoint["step"])  # hooks may read it in an evaluation
    except ValueError as error:
        raise WrongInput(
            f"{checkpoint['path']} is of another model or optimizer ({get_reason(error)}); "
            "use the same hooks and flags"
        ) from error


def restore_run(checkpoint):
    """Restore the run from a checkpoint, if there is one, and take the first snapshot.

    Raise WrongInput if a weight is not finite.
    """
    if checkpoint:
        restore(checkpoint)
        state.step = state.saved_step = int(checkpoint["step"])
        state.history = json.loads(checkpoint["history"][0])
        state.recoveries = int(checkpoint.get("recoveries", 0))
        state.skipped = int(checkpoint.get("skipped", 0))
    if not take_snapshot():
        raise WrongInput(
            "a weight is not finite before the first step; use another --init-checkpoint, or mend "
            "create_model_and_optimizer"
        )
