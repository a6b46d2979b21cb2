strategy: tf.distribute.Strategy  # where the replicas are, and how they sum
# {% if cookiecutter.__size != "parameter_server" %}
DEVICE: str = "CPU"  # or GPU or TPU: the kind of theirs
# {% endif %}
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

# {% if cookiecutter.__size == "complete" %}
# {% include "complete/globals.py" %}

# {% elif cookiecutter.__size == "parameter_server" %}
# {% include "parameter_server/globals.py" %}

# {% endif %}
STEPS_PER_EPOCH: int = 1  # known once the data are loaded
run_dir: Path = Path()
WORKER: int = 0  # the index of this worker; 0 is the chief, who alone writes files
WORKERS: int = 1

# 3. Hooks: yours to edit --------------------------------------------------------------------------


# {% block reading %}
# {% endblock %}
def create_datasets() -> list[tf.data.Dataset]:
    """Returns the train, validation and test `tf.data.Dataset` of single examples, in fixed order,
    of known number: structures of tensors of constant shapes. They stay in memory: see `fetch`."""
    # {% block create_datasets %}
    # {% endblock %}


def fetch(batch: tuple) -> tuple:
    """Reads what the examples point to. The first part of it is what the exported model takes."""
    # TODO(you): read what doesn't fit in memory: `tf.map_fn(tf.io.read_file, paths), labels`, say.
    return batch


# {% block preprocessor %}
# {% endblock %}
def preprocess(batch: tuple, seeds: tf.Tensor, training: bool) -> tuple:
    """Turns what `fetch` returns into (features,), (features, labels) or (features, labels, sample
    weights), tensors or structures of them, [batch, …]; weights are [batch] float32. `seeds`,
    [batch, 2] int32, depend on SEED, epoch (0 in evaluation) and position: draw from them alone."""
    # {% block preprocess %}
    # {% endblock %}


def create_model_and_optimizer(strategy: tf.distribute.Strategy) -> tuple:
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


def create_loss_objects(strategy: tf.distribute.Strategy) -> keras.losses.Loss:
    """Returns the loss, of (labels, predictions), one value an example: `compute_loss` divides."""
    with strategy.scope():
        # TODO(you): your loss; or several, which compute_losses adds up.
        # {% block loss %}
        ...  # the task's
        # {% endblock %}


def create_metrics(strategy: tf.distribute.Strategy) -> tuple[list[keras.metrics.Metric], ...]:
    """Returns three lists, of the metrics of the train, validation and test split."""
    with strategy.scope():
        # TODO(you): your metrics, each with a name of its own.
        # {% block metrics %}
        ...  # the task's
        # {% endblock %}


def compute_losses(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """Returns the loss of each example, [batch]. Labels are None where there are none."""
    # TODO(you): a weighted sum, where there are several losses or outputs.
    return loss_object(labels, predictions)


def compute_loss(labels: tf.Tensor, predictions: tf.Tensor, sample_weight: tf.Tensor) -> tf.Tensor:
    """Returns one replica's part of the training loss, []: all sum to the mean over the global
    batch, plus the regularization losses, once. Without weights of `preprocess`, they are ones."""
    losses = compute_losses(labels, predictions)
    loss = tf.nn.compute_average_loss(losses, sample_weight, global_batch_size=GLOBAL_BATCH_SIZE)
    if regularization := [x for each in tf.nest.flatten(model) for x in each.losses]:
        loss += tf.nn.scale_regularization_loss(tf.add_n(regularization))  # its share
    return loss
