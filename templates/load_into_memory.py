def load_into_memory(dataset, split):
    """Return all examples of a dataset, stacked in variables, and their number.

    With all examples in memory, the order of an epoch is computed, and not drawn from a buffer. So
    a run resumes at any step at once. They are variables: each iterator would copy tensors.
    """
    size = int(dataset.cardinality())
    if not 0 < size < 2e9:  # positions in an epoch are int32
        raise WrongInput(
            f"create_datasets: {split} has cardinality {size}, not 1 to 2e9; if infinite (-1), "
            "remove `repeat`; if unknown (-2), use assert_cardinality"
        )
    try:
        with tf.device("CPU:0"):
            # With one `batch(size)`, small examples would need 14 times their size.
            examples = dataset.batch(512).rebatch(size).get_single_element()
            return tf.nest.map_structure(tf.Variable, examples), size
    except (ValueError, tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
        if "Traceback" in f"{error}":  # an exception of the user's own Python code
            raise
        raise WrongInput(
            f"create_datasets: the examples of {split} can't be stacked; if their shapes differ, "
            f"pad them, or return places, such as file names, and read in `fetch`: {error}"
        ) from error
