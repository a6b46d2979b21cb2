def update_metrics(metrics, labels, predictions, sample_weight):
    # TODO(you): if labels or predictions have several parts, pass each metric its own. Many metrics
    # need a weight for each token or pixel; with a Keras mask, all metrics do. For tokens, this is
    # `tf.ones_like(labels, tf.float32) * sample_weight[:, None]`. Without a Keras mask, multiply
    # it by your own mask of the padding, which would count otherwise.
    for metric in metrics:
        metric.update_state(labels, predictions, sample_weight)


def compute_gradients(batch):
    """Return one replica's share of the loss, [], and the gradients. Update the metrics.

    # {% if cookiecutter.__size == "parameter_server" %}
    Keep its name and argument: --jit-compile of the synchronous script compiles this function.
    # {% else %}
    Compute all gradients of a step here, and keep the name and the argument: --jit-compile compiles
    this function, and --accumulation-steps of the complete script splits its batch.
    # {% endif %}
    """
    # TODO(you): with several models, return a tuple of their gradients. Use a tape for each, or a
    # persistent one.
    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = compute_loss(labels, predictions, sample_weight)
        scaled_loss = optimizer.scale_loss(loss)  # differs if the optimizer scales losses
    update_metrics(train_metrics, labels, predictions, sample_weight)
    # Weights without a gradient get zeros, since replicas can't sum None. The tape can't compute
    # these zeros for Keras's variables, only for TensorFlow's, which are their `value`.
    return loss, tape.gradient(
        scaled_loss, [x.value for x in model.trainable_variables], unconnected_gradients="zero"
    )


def train_step(batch):
    """Update the model with a replica's batch.

    Return the sums of the batch's losses and sample weights, [] each.
    """
    loss, gradients = compute_gradients(batch)
    # TODO(you): with several models, call `update` for each.
    update(optimizer, gradients, model.trainable_variables)
    return loss * config.global_batch_size, tf.reduce_sum(batch[-1])


def evaluation_step(batch, metrics):
    """Return the sums of one replica's losses and sample weights, [] each. Update the metrics.

    Sums, because a mean would be NaN on a replica whose examples only fill up the last batch. The
    losses lack the regularization losses, unlike in `train_step`.
    """
    # TODO(you): the same changes as in compute_gradients. If your model's `training` does more than
    # switch random layers and BatchNormalization, pass the value that evaluation needs.
    features, labels, sample_weight = batch
    # Without this scope, random layers would change their seeds. With it, a layer that draws in
    # evaluation draws the same numbers for each batch.
    with keras.StatelessScope():
        predictions = model(features, training=False)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions)
    return tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)


def validation_step(batch):
    return evaluation_step(batch, validation_metrics)


def test_step(batch):
    return evaluation_step(batch, test_metrics)
