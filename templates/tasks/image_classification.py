# {% extends "hooks.py" %}
# {% block defaults %}
GLOBAL_BATCH_SIZE: int = 64  # examples a step, of all replicas together
EPOCHS: int = 30
LEARNING_RATE: float = 2e-3
# {% endblock %}


def create_datasets():
    # {% block create_datasets %}
    # TODO(you): your data. Here: 1797 handwritten digits, [8, 8, 1] uint8 from 0 to 16.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = images.reshape(-1, 8, 8, 1).astype("uint8"), labels.astype("int32")
    # The file is sorted by writer, so shuffle before the split; whatever --seed, the same way.
    order = np.random.default_rng(0).permutation(len(images))
    splits = np.split(order, [1257, 1527])  # 70 %, 15 %, 15 %
    return [tf.data.Dataset.from_tensor_slices((images[i], labels[i])) for i in splits]
    # {% endblock %}


def preprocess(batch, seeds, training):
    # {% block preprocess %}
    images, labels = batch
    # TODO(you): decode, resize, augment; tf.map_fn takes what can't be done to a batch at once:
    #     if training:
    #         contrast = lambda x: tf.image.stateless_random_contrast(x[0], 0.5, 1.5, seed=x[1])
    #         images = tf.cast(images, tf.float32)
    #         images = tf.map_fn(contrast, (images, seeds), fn_output_signature=images.dtype)
    return tf.cast(images, tf.float32), labels
    # {% endblock %}


def create_model_and_optimizer(strategy):
    with strategy.scope():
        # {% block model %}
        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                keras.layers.Rescaling(1 / 16),
                keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="silu"),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="silu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(10, dtype="float32"),  # in mixed precision too
            ]
        )
        optimizer = Adam(LEARNING_RATE)  # of section 6; any of Keras's would do
        # {% endblock %}
    return model, optimizer


def create_loss_objects(strategy):
    with strategy.scope():
        # {% block loss %}
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        # {% endblock %}


def create_metrics(strategy):
    with strategy.scope():
        # {% block metrics %}
        return tuple([keras.metrics.SparseCategoricalAccuracy(name="accuracy")] for _ in range(3))
        # {% endblock %}
