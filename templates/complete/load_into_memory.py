def load_into_memory(dataset, split):
    """Return all examples of a dataset, stacked in variables, and their number.

    With all examples in memory, the order of an epoch is computed, and not drawn from a buffer, so
    a run resumes at any step at once. `batch(size)` would hold all examples twice. So would
    tensors: each iterator copies them.
    """
    size = int(dataset.cardinality())
    if size <= 0:
        raise WrongInput(
            f"create_datasets: {split} is empty or of unknown size; see Dataset.assert_cardinality"
        )
    stacks = None
    try:
        with tf.device("CPU:0"):
            # Many pieces are slow. A large piece needs memory for a second copy of its examples.
            for index, piece in dataset.enumerate().batch(max(128, size // 64)):
                if stacks is None:
                    stacks = tf.nest.map_structure(
                        lambda x: tf.Variable(tf.zeros([size, *x.shape[1:]], x.dtype)), piece
                    )
                for stack, part in zip(*map(tf.nest.flatten, (stacks, piece)), strict=True):
                    stack.scatter_update(tf.IndexedSlices(part, index))
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        if "Traceback" in f"{error}":  # an exception of the user's own Python code
            raise
        raise WrongInput(
            f"create_datasets: the examples of {split} can't be stacked; if their shapes differ, "
            f"pad them, or return places, such as file names, and read in `fetch`: {error}"
        ) from error
    return stacks, size
