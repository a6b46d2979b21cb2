def create_datasets():
    # {% include "docstrings/create_datasets.txt" %}
    # TODO(you): your data. Here: ten measurements of 442 people with diabetes (age, blood pressure,
    # …), [10] float32, and the progress of the disease after a year, [1] float32 from 25 to 346.
    from sklearn.datasets import load_diabetes

    features, targets = map(np.float32, load_diabetes(return_X_y=True, scaled=False))
    order = np.random.default_rng(0).permutation(len(features))  # doesn't depend on --seed
    return [
        tf.data.Dataset.from_tensor_slices((features[part], targets[part, None]))
        for part in np.split(order, [310, 376])  # 70 %, 15 %, 15 %
    ]


def adapt(train):
    # {% include "docstrings/adapt.txt" %}
    # TODO(you): what your model or `preprocess` has to know about the training split.
    features = np.array([features for features, _ in train])
    return {"mean": features.mean(0).tolist(), "variance": features.var(0).tolist()}


def fetch(batch):
    # {% include "docstrings/fetch.txt" %}
    # TODO(you): read data that don't fit in memory, with `tf.map_fn(tf.io.read_file, paths)` say.
    return batch


def preprocess(batch, seeds, training):
    # {% include "docstrings/preprocess.txt" %}
    # TODO(you): parse, add noise. For an operation on single examples use tf.map_fn:
    #     features, targets = batch
    #     if training:
    #         noise = lambda seed: tf.random.stateless_normal([10], seed, stddev=0.1)
    #         features += tf.map_fn(noise, seeds, fn_output_signature=tf.float32)
    return batch


def create_model_and_optimizer(strategy):
    # {% include "docstrings/create_model_and_optimizer.txt" %}
    with strategy.scope():
        # TODO(you): your model.
        model = keras.Sequential(
            [
                keras.Input([10]),
                keras.layers.Normalization(**adapted),
                keras.layers.Dense(
                    64, activation="silu", kernel_regularizer=keras.regularizers.L2(3.0)
                ),
                keras.layers.Dense(1, dtype="float32"),  # float32 in mixed precision too
                keras.layers.Rescaling(100.0, dtype="float32"),  # the progress is 152 on average
            ]
        )
        optimizer = Adam(config.learning_rate)  # from section 6; or Keras's, except MultiOptimizer
    return model, optimizer


def create_loss_objects(strategy):
    # {% include "docstrings/create_loss_objects.txt" %}
    with strategy.scope():
        # TODO(you): your loss, or several that `compute_losses` adds up.
        return keras.losses.Huber(50.0, reduction="none")  # linear for errors above 50


def create_metrics(strategy):
    # {% include "docstrings/create_metrics.txt" %}
    with strategy.scope():
        # TODO(you): your metrics. Each has a scalar result, unlike F1Score with its defaults, and a
        # name of its own, which is not "loss".
        return [[keras.metrics.MeanAbsoluteError()] for _ in range(3)]
