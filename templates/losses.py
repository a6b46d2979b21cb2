def compute_losses(labels, predictions):
    """Return the loss of each example, [batch], such as the mean over its tokens or pixels.

    `labels` is None if `preprocess` returns none. If a loss needs features, return them as labels,
    too, or as an output of the model.
    """
    # TODO(you): with several losses or outputs, return a weighted sum. With a shape of [batch, 1],
    # the validation loss would be wrong.
    return loss_object(labels, predictions)


def compute_loss(labels, predictions, sample_weight):
    # {% if cookiecutter.distribution == "parameter_server" %}
    """Return the training loss of a worker's batch, [].

    It is sum(losses * sample_weight) / GLOBAL_BATCH_SIZE plus the regularization losses.
    `sample_weight`, [batch] float32, is 1 unless `preprocess` returns it.
    """
    # {% else %}
    """Return one replica's share of the training loss, [].

    The shares of all replicas add up to sum(losses * sample_weight) / GLOBAL_BATCH_SIZE plus the
    regularization losses. `sample_weight`, [batch] float32, is 1 unless `preprocess` returns it.
    """
    # {% endif %}
    # {% if cookiecutter.distribution == "parameter_server" %}
    # TODO(you): other terms or another divisor, such as the number of tokens. The log multiplies
    # the result by GLOBAL_BATCH_SIZE, and divides it by the sum of the sample weights.
    # {% else %}
    # TODO(you): other terms, or another divisor, such as the number of tokens on all replicas. The
    # shares of the replicas have to add up to the training loss. The log multiplies that by
    # GLOBAL_BATCH_SIZE, and divides it by the sum of the sample weights.
    # {% endif %}
    losses = compute_losses(labels, predictions)
    loss = tf.nn.compute_average_loss(losses, sample_weight, GLOBAL_BATCH_SIZE)
    for each in tf.nest.flatten(model):
        for regularization in each.losses:
            # In mixed precision, the loss of an activity regularizer has half precision.
            loss += tf.nn.scale_regularization_loss(tf.cast(regularization, loss.dtype))
    return loss
