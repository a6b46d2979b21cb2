state: dict[str, float]  # where the run stands, beside its variables
snapshot: dict = {}  # on the chief: a copy of it all, in host memory, as the last loop left it
copies: dict  # the variables that checkpoints are written from
managers: dict[str, tf.train.CheckpointManager]  # of checkpoints/last and checkpoints/best
saved_step: int = 0  # of the newest checkpoint
writer = concurrent.futures.ThreadPoolExecutor(max_workers=1)  # of checkpoints
writing: concurrent.futures.Future | None = None  # the checkpoint that it writes


def variables():
    """Returns all that training changes, as lists by position: two layers may have one name. All
    of it is the same on every worker, but for the random state of its replicas' layers."""
    models, optimizers = tf.nest.flatten(model), tf.nest.flatten(optimizer)
    return {
        "model": [x.value for each in models for x in each.variables],
        "optimizer": [x.value for each in optimizers for x in each.variables],
        "averages": averages,
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
    if is_finite and WORKER == 0:
        counters = {name: tf.constant(value) for name, value in state.items()}
        snapshot = {**values, **counters, "step": tf.constant(state["step"], tf.int64)}
    return bool(is_finite)


def broadcast(arrays):
    """Returns the chief's arrays, on every worker: all bits, as the sum of numbers of which only
    its own aren't 0."""
    if WORKERS == 1:
        return arrays
    content = b"".join(array.tobytes() for array in arrays)
    numbers = np.frombuffer(content + bytes(-len(content) % 8), np.int64)

    @tf.function
    def share(numbers):
        context = tf.distribute.get_replica_context()
        own = numbers * tf.cast(context.replica_id_in_sync_group == 0, numbers.dtype)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    shared = strategy.run(share, args=(tf.constant(numbers),))
    content, start, result = strategy.experimental_local_results(shared)[0].numpy().data, 0, []
    content = memoryview(content).cast("B")
    for array in arrays:
        values = np.frombuffer(content[start : start + array.nbytes], array.dtype)
        result.append(values.reshape(array.shape))
        start += array.nbytes
    return result


def put(values, *kinds):
    """Gives the variables of some kinds the values of the chief, on all workers: of a snapshot, or
    of a checkpoint, which others needn't be able to read. Then each replica its random state."""
    targets = [x for kind in kinds for x in variables()[kind]]
    values = variables() if WORKER else values  # of the same shapes
    values = [x for kind in kinds for x in values[kind]]
    arrays = broadcast([np.asarray(x.numpy() if tf.is_tensor(x) else x) for x in values])
    with strategy.scope():
        for target, array in zip(targets, arrays, strict=True):
            target.assign(array)
    seed_replicas()


def save(is_best=False):
    """Writes the snapshot, while training goes on."""
    global writing
    wait_for_save()
    if WORKER == 0:
        writing = writer.submit(write_checkpoint, snapshot, is_best)


def write_checkpoint(snapshot, is_best=False):
    """Writes to checkpoints/best and checkpoints/last. The last one last: a run that is killed
    between the two goes on from before both."""
    global saved_step
    for copy, value in zip(tf.nest.flatten(copies), tf.nest.flatten(snapshot), strict=True):
        copy.assign(value)
    step = int(snapshot["step"])
    for name in ("best", "last") if is_best else ("last",):
        # Counted by the step, so that files don't differ by how often a run was stopped.
        managers[name].checkpoint.save_counter.assign(step - 1)
        managers[name].save(checkpoint_number=step)
    for copy in tf.nest.flatten(copies):
        copy.assign(tf.zeros([0], copy.dtype))  # else it would keep the memory of the snapshot
    saved_step = step


def wait_for_save():
    """Returns when the last checkpoint is whole. Raises what its writing raised."""
    if writing:
        writing.result()


def read_checkpoint(path):
    """Returns what a checkpoint holds: arrays, and lists of them, by name. Raises if it is damaged:
    reading all of it verifies its checksums."""
    reader, values = tf.train.load_checkpoint(str(path)), {}
    for name in sorted(reader.get_variable_to_shape_map()):
        kind, *position = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        if position:
            values.setdefault(kind, {})[int(position[0])] = reader.get_tensor(name)
        elif kind != "_CHECKPOINTABLE_OBJECT_GRAPH":
            values[kind] = reader.get_tensor(name)
    lists = {kind: [x[i] for i in sorted(x)] for kind, x in values.items() if isinstance(x, dict)}
    return {"averages": [], **values, **lists}


def check_fit(path, values, *kinds):
    """Refuses a checkpoint of another model or optimizer."""
    for kind in kinds:
        shapes = [tuple(x.shape) for x in variables()[kind]]
        theirs = [x.shape for x in values.get(kind, [])]
        if shapes != theirs:
            refuse(
                f"{path} is of another {kind}: it has {len(theirs)} variables, train.py "
                f"{len(shapes)}, and their shapes are not the same; name another --run-dir"
            )


def recover(first, last):
    """Goes back to where a loop began, whose loss is not finite, and on with the data that follow
    its own; or stops, unless --recover-from-nan allows it once more."""
    problem = f"the loss or a weight is not finite between steps {first} and {last}"
    if state["recoveries"] >= args.recover_from_nan:
        fail(
            f"{problem}, and nothing of it was saved; the usual cures are a --learning-rate below "
            f"{LEARNING_RATE:g}, --clip-norm and --precision float32"
        )
    state["recoveries"] += 1
    state["skipped"] += last - first
    put(snapshot, "model", "optimizer", "averages")
    say(
        f"{problem}; recovery {state['recoveries']} of {args.recover_from_nan}: back at step "
        f"{first}, and on with other data"
    )


@tf.function
def seed_replicas():
    """Gives each replica random numbers of its own: Keras starts all with one state, and they
    would drop the same units. The first keeps the state, which is what checkpoints hold."""

    def shift():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for variable in (x for each in tf.nest.flatten(model) for x in each.variables):
            if variable.path.endswith("seed_generator_state"):  # [seed, counter]
                # Seeds are drawn below 1e9: a large odd factor keeps all of them apart.
                offset = tf.cast(replica, variable.dtype) * 0x9E3779B1
                variable.assign(variable + tf.stack([offset, tf.zeros_like(offset)]))

    strategy.run(shift)
