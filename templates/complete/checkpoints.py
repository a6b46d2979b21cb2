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
    if writing:
        writing.result()  # or the exception that ended it
    if WORKER == 0:
        writing = writer.submit(write_checkpoint, snapshot, best)


def write_checkpoint(last, best=None):
    """Writes to checkpoints/best, and then to checkpoints/last: a run that is killed between the
    two goes on from before both. Removes what is too old, and what a kill has left unfinished."""
    step = int(last["step"])
    for which, content, keep in (("best", best, 1), ("last", last, 3)):
        if content:
            with tf.device("CPU:0"):
                checkpoint = tf.train.Checkpoint(**tf.nest.map_structure(tf.Variable, content))
            checkpoint.save_counter.assign(step)  # whatever the number of restarts
            checkpoint.write(run_dir / "checkpoints" / which / f"ckpt-{step}")
            steps = [x for x in list_checkpoints(which) if x <= step][-keep:]
            paths = [f"ckpt-{x}" for x in steps]  # kept as they are, where the folder is absolute
            listed = tf.compat.v1.train.generate_checkpoint_state_proto("/", paths[-1], paths)
            replace_file(f"checkpoints/{which}/checkpoint", str(listed))  # TensorFlow's list
            for path in Path(run_dir, "checkpoints", which).glob("ckpt-[0-9]*"):
                if path.is_dir():
                    shutil.rmtree(path)
                elif int(re.findall(r"\d+", path.name)[0]) not in steps:
                    path.unlink()


def list_checkpoints(which):
    """Returns the steps of checkpoints, whole or not. A kill may leave TensorFlow's list behind."""
    paths = Path(run_dir, "checkpoints", which).glob("ckpt-[0-9]*.*")
    return sorted({int(re.findall(r"\d+", path.name)[0]) for path in paths})


def read_checkpoint(path):
    """Returns what a checkpoint holds: arrays by name, and by position those of a kind. Raises if
    it is damaged: reading all of it verifies its checksums."""
    reader, values = tf.train.load_checkpoint(path), {"model": {}, "optimizer": {}}
    for name in reader.get_variable_to_shape_map().keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:
        kind, *position = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        target, key = (values[kind], int(*position)) if position else (values, kind)
        target[key] = reader.get_tensor(name)
    return values


def read_newest(which, steps):
    """Returns the path and the content of the newest whole checkpoint, or None and nothing."""
    for step in reversed(steps):
        path = run_dir / "checkpoints" / which / f"ckpt-{step}"
        try:
            return path, read_checkpoint(path)
        except Exception as error:  # of half a dozen kinds, by what is cut short or flipped
            damage = str(error).partition("\n")[0] or type(error).__name__
            say(f"{path} is damaged, and passed over: {damage}")
    return None, {}


def find_checkpoint(which):
    """Returns what `read_newest` does: nothing only where no last one was ever saved. If the best
    is damaged, the last is one of before it, so that the best is made again."""
    steps, bests = list_checkpoints(which), list_checkpoints("best")
    if which == "last" and bests and not read_newest("best", bests)[0]:
        steps = [step for step in steps if step <= bests[-1]]
    (path, values), folder = read_newest(which, steps), run_dir / "checkpoints" / which
    if not path and (which == "best" or args.mode != "train" or (folder / "checkpoint").exists()):
        refuse(f"--run-dir {run_dir}: {folder} has no whole checkpoint; train, or put one back")
    return path, values


def restore(path, values, *kinds):
    """Gives the variables of some kinds the values of a checkpoint, if there is one, and then each
    replica its random state. Refuses one of another model or optimizer."""
    for kind in kinds if path else ():
        own, saved = variables()[kind], values[kind]
        if {i: tuple(x.shape) for i, x in enumerate(own)} != {i: x.shape for i, x in saved.items()}:
            counts = f"it has {len(saved)} variables, train.py {len(own)}"
            refuse(f"{path} is of another {kind}, by hooks or flags: {counts}, or other shapes")
        for i, variable in enumerate(own):
            with strategy.scope():
                variable.assign(saved[i])
    seed_replicas()


# {% include "random_state.py" %}
