def update(optimizer, gradients, variables):
    """Apply the gradients of a batch.

    All workers overwrite the counter of steps, so the learning rate is computed in a scope that has
    the number of this step. The scope keeps what is assigned to Keras's variables, such as an EMA,
    until the end. On a cluster, TensorFlow calls `update_step` in another thread, outside the
    scope, and also computes the rate of `weight_decay` there.
    """
    with keras.StatelessScope([(optimizer.iterations, traced["step"])]) as scope:
        optimizer.apply([sum_slices(gradient) for gradient in gradients], variables)
    for variable in variables + optimizer.variables:
        value = scope.get_current_value(variable)
        if value is not None:
            variable.assign(value)


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
