def update_metrics(metrics, labels, predictions, sample_weight):
    # TODO(you): what each of them looks at, where labels or predictions have several parts.
    for metric in metrics:
        metric.update_state(labels, predictions, sample_weight)


def count(metrics, labels, predictions, sample_weight):
    """Returns what a batch adds to the variables of the metrics, which are left as they are: two
    workers that add to one variable at a time would lose a sum, and a step done again add twice."""
    zeros = [(x, tf.zeros(x.shape, x.dtype)) for metric in metrics for x in metric.variables]
    with keras.StatelessScope(zeros) as scope:
        update_metrics(metrics, labels, predictions, sample_weight)
    return [scope.get_current_value(x) for x, _ in zeros]


def compute_gradients(batch):
    """Returns the loss of a batch, [], what it adds to the metrics, and its gradients."""
    # TODO(you): of several models, `generator, discriminator = model`, a tuple of gradients.
    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = compute_loss(labels, predictions, sample_weight)
        scaled_loss = optimizer.scale_loss(loss)  # by a LossScaleOptimizer; else the loss
    counts = count(train_metrics, labels, predictions, sample_weight)
    weights = model.trainable_variables  # of what gets no gradient it is 0: None has no sum
    return loss, counts, tape.gradient(scaled_loss, weights, unconnected_gradients="zero")


def train_step(batch):
    """Updates the model with a batch. Returns the sums of its losses and weights, [2], and what it
    adds to the metrics."""
    loss, counts, gradients = compute_gradients(batch)
    # TODO(you): once for each model, its optimizer and its gradients, if you have several.
    update(optimizer, gradients, model.trainable_variables)
    return [tf.stack([loss * GLOBAL_BATCH_SIZE, tf.reduce_sum(batch[-1])]), *counts]


def evaluation_step(batch, metrics):
    """Returns the sums of a batch's losses and of their weights, [2], and what it adds to the
    metrics. Sums, because the last batch is filled up with examples of weight 0."""
    # TODO(you): as in compute_gradients.
    features, labels, sample_weight = batch
    predictions = model(features, training=False)
    counts = count(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions)
    sums = tf.stack([tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)])
    return [sums, *counts]


def validation_step(batch):
    return evaluation_step(batch, validation_metrics)


def test_step(batch):
    return evaluation_step(batch, test_metrics)


@tf.function
def distributed_train_step(examples, step, index):
    """Runs on the worker that comes first, as the next two do: a step by its number, [], on the
    examples of these indexes, [batch], all int32. Done again elsewhere, it takes the same ones."""
    for each in tf.nest.flatten(optimizer):
        each.iterations.assign(tf.cast(step, each.iterations.dtype))  # increments of many get lost
    batch = create_batch(examples, step, index, training=True)
    return pack(strategy.run(train_step, args=(batch,)))


@tf.function
def distributed_validation_step(examples, step, index):
    batch = create_batch(examples, step, index, training=False)
    return pack(strategy.run(validation_step, args=(batch,)))


@tf.function
def distributed_test_step(examples, step, index):
    batch = create_batch(examples, step, index, training=False)
    return pack(strategy.run(test_step, args=(batch,)))
