def update(optimizer, gradients, variables):
    """Apply the gradients of a batch."""
    optimizer.apply([sum_slices(gradient) for gradient in gradients], variables)


def sum_slices(gradient):
    """Return the gradient of an embedding with each index once. Return others unchanged.

    It has an index once for each use of the row. Keras's Adam would square each part instead of
    their sum (keras#19992), so the parts are added up here.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    index, place = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(index))
    return tf.IndexedSlices(rows, index, gradient.dense_shape)
