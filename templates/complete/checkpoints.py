state: dict[str, float]  # where the run stands, beside its variables
snapshot: dict = {}  # a copy of it all, in host memory, as the last loop left it
writer = concurrent.futures.ThreadPoolExecutor(max_workers=1)  # of checkpoints
writing: concurrent.futures.Future | None = None  # the checkpoint that it writes


def variables():
    """Returns all that training changes, by position, since two layers may have one name. It is
    the same on every worker, but for random states, of which the first replica's are kept."""
    models, optimizers = tf.nest.flatten(model), tf.nest.flatten(optimizer)
    return {
        "model": [x.value for each in models for x in each.variables],
        "optimizer": [x.value for each in optimizers for x in each.variables],
    }


@tf.function
def copy_variables():
    """Returns the values of `variables`, in host memory, and whether all are finite, [] bool. On a
    CPU it costs little: buffers are shared until the next step writes to them."""
    with tf.device("CPU:0"):
        values = tf.nest.map_structure(tf.identity, variables())
        sums = [tf.reduce_sum(x) for x in tf.nest.flatten(values) if x.dtype.is_floating]
        return values, tf.reduce_all([tf.math.is_finite(x) for x in sums])


def take_snapshot():
    """Keeps a copy of the run as it stands, unless it is not finite. Returns whether it is."""
    global snapshot
    values, is_finite = copy_variables()
    if is_finite:
        names = tf.constant([x.path for each in tf.nest.flatten(model) for x in each.variables])
        counters = {name: tf.constant(np.asarray(value)) for name, value in state.items()}
        snapshot = {**values, **counters, "names": names}
    return bool(is_finite)


def save(best=None):
    """Has the chief write the snapshot, and if given a best one, while training goes on."""
    global writing
    wait_for_save()
    if WORKER == 0:
        writing = writer.submit(write_checkpoint, snapshot, best)


def wait_for_save():
    """Returns when the last checkpoint is whole. Raises what its writing raised."""
    if writing:
        writing.result()


def write_checkpoint(last, best=None):
    """Writes to checkpoints/best, and then to checkpoints/last: a run that is killed between the
    two goes on from before both."""
    step = int(last["step"])
    best = best and {kind: best[kind] for kind in ("step", "names", "model")}
    for which, content, keep in (("best", best, 1), ("last", last, 3)):
        if content:
            list_anew(which, [x for x in list_checkpoints(which) if x < step])
            with tf.device("CPU:0"):
                checkpoint = tf.train.Checkpoint(**tf.nest.map_structure(tf.Variable, content))
            # Counted by the step, so that files don't differ by how often a run was stopped.
            checkpoint.save_counter.assign(step - 1)
            folder = run_dir / "checkpoints" / which
            manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=keep)
            manager.save(checkpoint_number=step)


def list_checkpoints(which):
    """Returns the steps of the checkpoints, whole or not, in their order."""
    paths = Path(run_dir, "checkpoints", which).glob("ckpt-*")
    names = [re.fullmatch(r"ckpt-(\d+)\.(index|data-.*)", path.name) for path in paths]
    return sorted({int(name[1]) for name in names if name})


def list_anew(which, steps):
    """Writes the list that TensorFlow keeps of the checkpoints, which may be lost, or left behind
    by a kill. Removes what that left unfinished."""
    folder = run_dir / "checkpoints" / which
    for unfinished in folder.glob("ckpt-*_temp"):
        shutil.rmtree(unfinished)
    (folder / "checkpoint").unlink(missing_ok=True)
    if steps:
        line = 'all_model_checkpoint_paths: "ckpt-{}" all_model_checkpoint_timestamps: 1.0\n'
        text = "".join(line.format(step) for step in steps)
        text += f'model_checkpoint_path: "ckpt-{steps[-1]}"\n'
        replace_file(f"checkpoints/{which}/checkpoint", text)


def read_checkpoint(path):
    """Returns what a checkpoint holds: arrays, and lists of them, by name. Raises if it is damaged:
    reading all of it verifies its checksums."""
    reader, values = tf.train.load_checkpoint(str(path)), {"model": {}, "optimizer": {}}
    for name in reader.get_variable_to_shape_map().keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:
        kind, *position = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        target, key = (values[kind], int(*position)) if position else (values, kind)
        target[key] = reader.get_tensor(name)
    return values


def read_whole(path):
    """Returns what a checkpoint holds, or None if it is damaged, which it says."""
    try:
        return read_checkpoint(path)
    except Exception as error:  # of half a dozen kinds, by what is cut short or flipped
        damage = str(error).partition("\n")[0] or type(error).__name__
        say(f"{path} is damaged, and passed over: {damage}")


def find_checkpoint(which, last_step=math.inf):
    """Returns the path and the content of the newest whole checkpoint, or None twice if no last one
    was ever saved: a best one may have been, just before a kill."""
    folder, was_saved = run_dir / "checkpoints" / which, list_checkpoints("last")
    for step in reversed(list_checkpoints(which)):
        path = folder / f"ckpt-{step}"
        if was_saved and step <= last_step and (values := read_whole(path)):
            return path, values
    if was_saved or (run_dir / "checkpoints" / "last" / "checkpoint").exists():
        refuse(f"{folder} has no whole checkpoint; put one back, or name another --run-dir")
    return None, None


def find_start():
    """Returns the path and the content of the checkpoint to resume from, or None twice. If the best
    is damaged, it is from before that, so that the best is made again."""
    for best in list_checkpoints("best")[-1:]:
        if not read_whole(run_dir / "checkpoints" / "best" / f"ckpt-{best}"):
            return find_checkpoint("last", best)
    return find_checkpoint("last")


def check_fit(path, values, *kinds):
    """Refuses a checkpoint of another model or optimizer."""
    for kind in kinds if path else ():
        shapes = {i: tuple(x.shape) for i, x in enumerate(variables()[kind])}
        if shapes != {i: x.shape for i, x in values[kind].items()}:
            counts = f"it has {len(values[kind])} variables, train.py {len(shapes)}"
            refuse(f"{path} is of another {kind}: {counts}, or their shapes differ")


def restore(values, *kinds):
    """Gives the variables of some kinds the chief's values, on all workers: others needn't be able
    to read its files. Then each replica its random state."""
    for kind in kinds:
        for i, variable in enumerate(variables()[kind]):
            value = values[kind][i] if values else variable.numpy()
            with strategy.scope():
                variable.assign(broadcast(np.asarray(value)))
    seed_replicas()


# {% include "random_state.py" %}
