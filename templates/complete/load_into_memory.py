# {% include "input_options.py" %}


def load_into_memory(dataset, split):
    """Return all examples of a dataset, stacked in variables, and their number.

    With all examples in memory, the order of an epoch is computed, and not drawn from a buffer. So
    a run resumes at any step at once. They are variables: each iterator would copy tensors. To hold
    them only once, they are copied in pieces.
    """
    size = int(dataset.cardinality())
    if not 0 < size < 2e9:  # positions in an epoch are int32
        raise WrongInput(
            f"create_datasets: {split} has cardinality {size}, not 1 to 2e9; if infinite (-1), "
            "remove `repeat`; if unknown (-2), use assert_cardinality"
        )
    piece_size = 512 + size // 256  # few pieces: each takes time
    stacks = None
    try:
        with tf.device("CPU:0"):
            pieces = dataset.batch(piece_size).with_options(INPUT_OPTIONS)
            for index, piece in enumerate(pieces):
                if stacks is None:
                    stacks = tf.nest.map_structure(
                        lambda x: tf.Variable(tf.zeros([size, *x.shape[1:]], x.dtype)), piece
                    )
                tf.nest.map_structure(
                    functools.partial(copy_rows, index * piece_size), stacks, piece
                )
    except (ValueError, tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
        if "Traceback" in f"{error}":  # an exception of the user's own Python code
            raise
        raise WrongInput(
            f"create_datasets: the examples of {split} can't be stacked; if their shapes differ, "
            f"pad them, or return places, such as file names, and read in `fetch`: {error}"
        ) from error
    return stacks, size


def copy_rows(start, stack, rows):
    """Copy rows to a variable, from row `start` on.

    Slice assignment would copy all rows each time. `scatter_update` would accept rows of another
    shape if they have only one number.
    """
    stack.scatter_nd_update(start + tf.range(len(rows))[:, None], rows)


def describe_examples(examples, size):
    """Return the number of examples and their checksum, as text."""
    # [examples, 8] each
    hashes = [tf.fingerprint(x.read_value_no_copy()) for x in tf.nest.flatten(examples)]
    return f"{size} examples, checksum {zlib.crc32(np.array(hashes))}"
