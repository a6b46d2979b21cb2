strategy: tf.distribute.Strategy  # where the replicas are, and how they sum
DEVICE: str = "CPU"  # or GPU or TPU: the kind of theirs
model: keras.Model  # or a tuple of several, and one of as many optimizers
optimizer: keras.optimizers.Optimizer
loss_object: keras.losses.Loss
train_metrics: list[keras.metrics.Metric]
validation_metrics: list[keras.metrics.Metric]
test_metrics: list[keras.metrics.Metric]

# What the flags of these names are where they are left out:
# {% block defaults %}
# {% endblock %}
SEED: int = 0  # of weights, data order, augmentation and dropout
args: argparse.Namespace  # the other flags

# {% if cookiecutter.script == "complete" %}
# {% include "complete/globals.py" %}

# {% endif %}
STEPS_PER_EPOCH: int = 1  # known once the data are loaded
run_dir: Path = Path()
WORKER: int = 0  # the index of this worker; 0 is the chief, who alone writes files
WORKERS: int = 1

# 3. Hooks: yours to edit --------------------------------------------------------------------------


# {% block reading %}
# {% endblock %}
def create_datasets():
    """Returns the train, validation and test `tf.data.Dataset` of single examples, in fixed order,
    of known number. An example is any structure of tensors of constant shapes; of a tuple, the
    first part is what the exported model takes. All stay in memory: of large ones give the path."""
    # {% block create_datasets %}
    # {% endblock %}


# {% block preprocessor %}
# {% endblock %}
def preprocess(batch, seeds, training):
    """Turns examples of `create_datasets`, all tensors [batch, …], into (features,), (features,
    labels) or (features, labels, sample_weight): tensors or structures of them, [batch, …], the
    weights [batch] float32. `seeds`, [batch, 2] int32, are a function of SEED, the epoch (0 in
    evaluation) and the position in it: draw from them alone, and a resumed run draws the same."""
    # {% block preprocess %}
    # {% endblock %}


def create_model_and_optimizer(strategy):
    """Returns the model, built, and its optimizer; or a tuple of models and one of as many
    optimizers, which `model` and `optimizer` are then. The scope puts them on all replicas."""
    # {% block before_the_model %}
    # {% endblock %}
    with strategy.scope():
        # TODO(you): your model. BatchNormalization with synchronized=True, or replicas matter.
        # {% block model %}
        ...  # the task's
        # {% endblock %}
    return model, optimizer


def create_loss_objects(strategy):
    """Returns the loss, of (labels, predictions), one value an example: `compute_loss` divides."""
    with strategy.scope():
        # TODO(you): your loss; or several, which compute_losses adds up.
        # {% block loss %}
        ...  # the task's
        # {% endblock %}


def create_metrics(strategy):
    """Returns three lists, of the metrics of the train, validation and test split."""
    with strategy.scope():
        # TODO(you): your metrics, each with a name of its own.
        # {% block metrics %}
        ...  # the task's
        # {% endblock %}


def compute_losses(labels, predictions):
    """Returns the loss of each example, [batch]. Labels are None where there are none."""
    # TODO(you): a weighted sum, where there are several losses or outputs.
    return loss_object(labels, predictions)


def compute_loss(labels, predictions, sample_weight):
    """Returns one replica's part of the training loss, []: all sum to the mean over the global
    batch, plus the regularization losses, once. Without weights of `preprocess`, they are ones."""
    losses = compute_losses(labels, predictions)
    loss = tf.nn.compute_average_loss(losses, sample_weight, global_batch_size=GLOBAL_BATCH_SIZE)
    regularization = [loss for each in tf.nest.flatten(model) for loss in each.losses]
    if regularization:  # of kernel_regularizer and the like: each replica has the whole of them
        loss += tf.nn.scale_regularization_loss(tf.add_n(regularization))
    return loss
