def create_datasets():
    # {% include "docstrings/create_datasets.txt" %}
    # TODO(you): your data. Here: 1797 handwritten digits, [8, 8, 1] uint8 from 0 to 16.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("uint8")
    labels = labels.astype("int32")
    # The file is sorted by writer. The split doesn't depend on --seed.
    order = np.random.default_rng(0).permutation(len(images))
    return [
        tf.data.Dataset.from_tensor_slices((images[part], labels[part]))
        for part in np.split(order, [1257, 1527])  # 70 %, 15 %, 15 %
    ]


def adapt(train):
    # {% include "docstrings/adapt.txt" %}
    # TODO(you): what your model or `preprocess` has to know about the training split.
    return {}


def fetch(batch):
    # {% include "docstrings/fetch.txt" %}
    # TODO(you): read data that don't fit in memory, with `tf.map_fn(tf.io.read_file, paths)` say.
    return batch


def preprocess(batch, seeds, training):
    # {% include "docstrings/preprocess.txt" %}
    # TODO(you): decode, resize, augment. For an operation on single examples use tf.map_fn:
    #     images, labels = batch
    #     if training:
    #         contrast = lambda x: tf.image.stateless_random_contrast(x[0], 0.5, 1.5, seed=x[1])
    #         images = tf.cast(images, tf.float32)
    #         images = tf.map_fn(contrast, (images, seeds), fn_output_signature=images.dtype)
    #     return images, labels
    return batch


def create_model_and_optimizer(strategy):
    # {% include "docstrings/create_model_and_optimizer.txt" %}
    with strategy.scope():
        # TODO(you): your model.
        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                keras.layers.Rescaling(1 / 16),
                keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="silu"),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="silu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(10, dtype="float32"),  # float32 in mixed precision too
            ]
        )
        optimizer = Adam(config.learning_rate)  # from section 6; or Keras's, except MultiOptimizer
    return model, optimizer


def create_loss_objects(strategy):
    # {% include "docstrings/create_loss_objects.txt" %}
    with strategy.scope():
        # TODO(you): your loss, or several that `compute_losses` adds up.
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def create_metrics(strategy):
    # {% include "docstrings/create_metrics.txt" %}
    with strategy.scope():
        # TODO(you): your metrics. Each has a scalar result, unlike F1Score with its defaults, and a
        # name of its own, which is not "loss".
        return [[keras.metrics.SparseCategoricalAccuracy(name="accuracy")] for _ in range(3)]
