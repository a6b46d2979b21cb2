def update(optimizer, gradients, variables):
    """Apply one replica's gradients. The optimizer sums them over all replicas.

    The gradient of an embedding lists a row once for each use. Keras's Adam would square each part
    instead of their sum (keras#19992), so `convert_to_tensor` adds the parts up.
    """
    optimizer.apply([*map(tf.convert_to_tensor, gradients)], variables)
