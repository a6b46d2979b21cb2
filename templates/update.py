def update(optimizer, gradients, variables):
    """Apply the sums of all replicas' gradients.

    The gradient of an embedding has an index once for each use of the row. Keras's Adam would
    square each part instead of their sum (keras#19992), so the parts are added up here.
    """
    optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)
