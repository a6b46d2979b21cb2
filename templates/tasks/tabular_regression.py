# {% extends "hooks.py" %}
# {% block defaults %}
GLOBAL_BATCH_SIZE: int = 32  # examples a step, of all replicas together
EPOCHS: int = 40
LEARNING_RATE: float = 3e-3
# {% endblock %}


def create_datasets():
    # {% block create_datasets %}
    # TODO(you): your data. Here: 442 people with diabetes, of whom ten numbers are known (age,
    # blood pressure, …), [10] float32, and how far the illness got in a year, [1], from 25 to 346.
    from sklearn.datasets import load_diabetes

    features, targets = load_diabetes(return_X_y=True, scaled=False)
    features, targets = features.astype("float32"), targets[:, None].astype("float32")
    order = np.random.default_rng(0).permutation(len(features))
    splits = np.split(order, [310, 376])  # 70 %, 15 %, 15 %
    return [tf.data.Dataset.from_tensor_slices((features[i], targets[i])) for i in splits]
    # {% endblock %}


def preprocess(batch, seeds, training):
    # {% block preprocess %}
    features, targets = batch
    # TODO(you): parse, add noise; tf.map_fn takes what can't be done to a whole batch at once:
    #     if training:
    #         noise = lambda seed: tf.random.stateless_normal([10], seed, stddev=0.1)
    #         features += tf.map_fn(noise, seeds, fn_output_signature=tf.float32)
    return features, targets
    # {% endblock %}


def create_model_and_optimizer(strategy):
    with strategy.scope():
        # {% block model %}
        features, targets = next(iter(create_datasets()[0].batch(1000)))  # of training alone
        features, targets = features.numpy(), targets.numpy()
        regularizer = keras.regularizers.L2(3.0)
        model = keras.Sequential(
            [
                keras.Input([10]),
                keras.layers.Normalization(mean=features.mean(0), variance=features.var(0)),
                keras.layers.Dense(64, activation="silu", kernel_regularizer=regularizer),
                keras.layers.Dense(1, dtype="float32"),  # in mixed precision too
                keras.layers.Rescaling(targets.std(), offset=targets.mean(), dtype="float32"),
            ]
        )
        optimizer = Adam(LEARNING_RATE)  # of section 6; any of Keras's would do
        # {% endblock %}
    return model, optimizer


def create_loss_objects(strategy):
    with strategy.scope():
        # {% block loss %}
        return keras.losses.Huber(delta=50.0, reduction="none")
        # {% endblock %}


def create_metrics(strategy):
    with strategy.scope():
        # {% block metrics %}
        return tuple([keras.metrics.MeanAbsoluteError("mean_absolute_error")] for _ in range(3))
        # {% endblock %}
