strategy: tf.distribute.Strategy  # where the replicas are, and how they sum
model: keras.Model  # or several, and as many optimizers: what create_model_and_optimizer returns
optimizer: keras.optimizers.Optimizer
loss_object: keras.losses.Loss
train_metrics: list[keras.metrics.Metric]
validation_metrics: list[keras.metrics.Metric]
test_metrics: list[keras.metrics.Metric]

args: argparse.Namespace  # the flags
# What the flags are if they are left out:
# {% block defaults %}
# {% endblock %}
ACCUMULATION_STEPS: int = 1  # --accumulation-steps: the parts in which a replica takes its batch
CLIP_NORM: float | None = None  # --clip-norm
PRECISION: str = "float32"  # --precision
SEED: int = 0  # --seed: of weights, data order, augmentation and dropout
INIT_CHECKPOINT: str | None = None  # --init-checkpoint: where the first weights come from

STEPS_PER_EPOCH: int = 1  # known once the data are loaded
run_dir: Path = Path()  # --run-dir
WORKER: int = 0  # the index of this worker; 0 is the chief, who alone writes files
WORKERS: int = 1

# ----------------------------------------------------------------------------------------------
# 3. Hooks: yours to edit
# ----------------------------------------------------------------------------------------------


# {% block reading %}
# {% endblock %}
def create_datasets():
    """Says where the examples come from.

    Returns:
        The train, validation and test `tf.data.Dataset`, of single examples, unbatched, in a
        fixed order. An example is any structure of tensors of constant shapes; of a tuple, the
        first part is what the exported model takes. Each worker holds all of them in memory, so
        let them be cheap (a path, an id, a serialized record, a row of an array) and leave what
        is dear to `preprocess`. Their number has to be known:
        `tf.data.experimental.assert_cardinality` says it where TensorFlow can't tell.
    """
    # {% block create_datasets %}
    # {% endblock %}


# {% block preprocessor %}
# {% endblock %}
def preprocess(batch, seeds, training):
    """Turns examples into what the model reads. Runs on the worker whose share they are, several
    batches at a time.

    Args:
        batch: examples of `create_datasets`, shuffled in training; each tensor is [batch, …].
        seeds: [batch, 2] int32, one for each example: a function of SEED, the epoch and the
            position in it. Draw from nothing else, and a resumed run draws the same.
        training: a Python bool.

    Returns:
        (features,), (features, labels) or (features, labels, sample_weight), each a tensor or a
        structure of them, [batch, …]; the weights [batch] float32.
    """
    # {% block preprocess %}
    # {% endblock %}


def create_model_and_optimizer(strategy):
    """Returns the model, built, and its optimizer; the scope puts a copy of each of their
    variables on every replica. Or a tuple of models, and one of as many optimizers, in the same
    order: `model` and `optimizer` are those tuples then, in compute_gradients and train_step."""
    # {% block before_the_model %}
    # {% endblock %}
    with strategy.scope():
        # TODO(you): your model. Scaling that is part of it is part of the export too.
        # BatchNormalization needs synchronized=True, or the result depends on how many replicas
        # share a batch. Smooth activations keep such runs together for longer: a kink, relu's
        # say, magnifies a difference in rounding.
        # {% block model %}
        ...  # the task's
        # {% endblock %}
    return model, optimizer


def create_loss_objects(strategy):
    """Returns the loss, of (labels, predictions), one value an example: [batch]. Where there are
    several, return them all, and have compute_losses add them up.

    Not reduced, because a replica that takes the mean of its own examples doesn't know how many
    the others have: `compute_loss` divides (tensorflow.org/tutorials/distribute/custom_training).
    """
    with strategy.scope():
        # TODO(you): your loss.
        # {% block loss %}
        ...  # the task's
        # {% endblock %}


def create_metrics(strategy):
    """Returns three lists, the metrics of the train, validation and test split. Made in the
    scope, their values span the replicas. The loss is logged anyway."""

    def metrics():
        # TODO(you): your metrics, each with a name of its own.
        # {% block metrics %}
        ...  # the task's
        # {% endblock %}

    with strategy.scope():
        return metrics(), metrics(), metrics()


def compute_losses(labels, predictions):
    """Returns the loss of each example, [batch], in training as in evaluation.

    Args:
        labels, predictions: of a replica, [batch, …]; labels are None where there are none.
    """
    # TODO(you): a weighted sum, where there are several losses or outputs.
    return loss_object(labels, predictions)


def compute_loss(labels, predictions, sample_weight):
    """Returns one replica's part of the training loss, []. The parts, of all replicas and of all
    --accumulation-steps, sum to the mean over the global batch, plus the regularization losses,
    once.

    Args:
        labels, predictions: of this replica, [batch, …].
        sample_weight: [batch] float32, of ones where `preprocess` gives none.
    """
    losses = compute_losses(labels, predictions)
    loss = tf.nn.compute_average_loss(losses, sample_weight, global_batch_size=GLOBAL_BATCH_SIZE)
    regularization = [loss for each in tf.nest.flatten(model) for loss in each.losses]
    if regularization:  # of kernel_regularizer and the like: each part has the whole of them
        loss += tf.nn.scale_regularization_loss(tf.add_n(regularization)) / ACCUMULATION_STEPS
    return loss
