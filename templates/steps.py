# {% block count %}
# {% endblock %}
def update_metrics(metrics, labels, predictions, sample_weight):
    # TODO(you): what each of them looks at, where labels or predictions have several parts.
    for metric in metrics:
        metric.update_state(labels, predictions, sample_weight)


def compute_gradients(batch):
    """Returns one replica's part of the loss, [], and its gradients; counts it in the metrics."""
    # TODO(you): with several models, a tape for each; return a tuple of their gradients.
    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = compute_loss(labels, predictions, sample_weight)
        scaled_loss = optimizer.scale_loss(loss)  # by a LossScaleOptimizer; else the loss
    update_metrics(train_metrics, labels, predictions, sample_weight)
    weights = model.trainable_variables  # some may get no gradient, and replicas can't sum None
    return loss, tape.gradient(scaled_loss, weights, unconnected_gradients="zero")


def train_step(batch):
    """Updates the model with a replica's batch. Returns the sums of its losses and weights, [2]."""
    loss, gradients = compute_gradients(batch)
    # TODO(you): once for each model, its optimizer and its gradients, if you have several.
    update(optimizer, gradients, model.trainable_variables)
    return tf.stack([loss * GLOBAL_BATCH_SIZE, tf.reduce_sum(batch[-1])])


def evaluation_step(batch, metrics):
    """Returns the sums of a replica's losses and weights, [2]: with no weight, a mean is NaN."""
    # TODO(you): as in compute_gradients.
    features, labels, sample_weight = batch
    predictions = model(features, training=False)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions)
    return tf.stack([tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)])


def validation_step(batch):
    return evaluation_step(batch, validation_metrics)


def test_step(batch):
    return evaluation_step(batch, test_metrics)


# {% block distributed_steps %}
def distributed_train_step(batch):
    return strategy.reduce("SUM", strategy.run(train_step, args=(batch,)), axis=None)


def distributed_validation_step(batch):
    return strategy.reduce("SUM", strategy.run(validation_step, args=(batch,)), axis=None)


def distributed_test_step(batch):
    return strategy.reduce("SUM", strategy.run(test_step, args=(batch,)), axis=None)


# {%- endblock +%}
