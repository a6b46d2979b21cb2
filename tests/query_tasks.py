"""What the worked examples are compared with, and what they make of presets. See tf_queries.py."""

import string

import numpy as np
import tensorflow as tf
from tf_queries import begin, create_model, load_script

ALL = 10**6  # examples, more than any split has


def read_arrays(path):
    """Return the inputs and labels of the train and the test split of a script."""
    train, _, test = load_script(path).create_datasets()
    splits = []
    for split in (train, test):
        batch = next(iter(split.batch(ALL)))
        splits.append([np.asarray(part) for part in batch])
    return splits


def read_batch_types(path):
    """Return the names of the dtypes of a training batch: features, labels and weights."""
    script = begin(path)
    datasets = script.load_datasets()
    iterator, _ = script.create_input(*datasets["train"], training=True)
    return [each.dtype.name for each in iterator.element_spec]


def compute_baseline(path, task):
    """Return what a simple model reaches on the test split: accuracy, or mean absolute error."""
    functions = {
        "image_classification": score_svm,
        "text_classification": score_bag_of_words,
        "tabular_regression": measure_ridge_error,
    }
    (inputs, labels), (test_inputs, test_labels) = read_arrays(path)
    return functions[task](inputs, labels, test_inputs, test_labels)


def score_svm(inputs, labels, test_inputs, test_labels):
    from sklearn.svm import SVC

    model = SVC().fit(
        inputs.reshape(len(inputs), -1),
        labels,
    )
    return model.score(test_inputs.reshape(len(test_inputs), -1), test_labels)


def score_bag_of_words(inputs, labels, test_inputs, test_labels):
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words = CountVectorizer(token_pattern=r"\w+")
    model = make_pipeline(words, LogisticRegression(C=10, max_iter=1000))
    return model.fit(inputs, labels).score(test_inputs, test_labels)


def measure_ridge_error(inputs, labels, test_inputs, test_labels):
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), Ridge()).fit(inputs, labels.ravel())
    errors = np.abs(model.predict(test_inputs) - test_labels.ravel())
    return float(np.mean(errors))


def write_preset(folder):
    """Save a tiny preset. Return the sum of absolute values of each of its weights, by path."""
    import keras_hub

    words = ["latin", "letter", "small", "capital", "sign", "with", "and"]
    letters = list(string.ascii_lowercase)
    endings = [f"##{letter}" for letter in letters]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *words, *letters, *endings]
    tokenizer = keras_hub.models.BertTokenizer(vocabulary, lowercase=True)
    backbone = keras_hub.models.BertBackbone(
        tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=12,
    )
    backbone.save_to_preset(folder)
    tokenizer.save_to_preset(folder)
    return {weight.path: float(np.sum(np.abs(weight.numpy()))) for weight in backbone.weights}


def save_backbone(is_called, folder):
    """Return whether a model on KerasHub's DeBERTa can be loaded, and its variables' paths."""
    import keras
    import keras_hub

    keras.utils.clear_session()
    backbone = keras_hub.models.DebertaV3Backbone(
        vocabulary_size=20,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=12,
        bucket_size=4,
    )
    outputs = backbone(backbone.input) if is_called else backbone.output
    model = keras.Model(backbone.input, keras.layers.Dense(3)(outputs[:, 0]))
    model.save(f"{folder}/model.keras")
    try:
        keras.saving.load_model(f"{folder}/model.keras").set_weights(model.get_weights())
        is_loaded = True
    except ValueError:
        is_loaded = False
    return is_loaded, [variable.path for variable in model.variables]


def predict_pairs(export):
    """Return the shape of what an export predicts for two pairs of texts."""
    import tensorflow_text  # noqa: F401 (registers operations)

    model = tf.saved_model.load(export)
    pairs = (
        tf.constant(["a", "b"]),
        tf.constant(["c", "d"]),
    )
    return list(model.serve(pairs).shape)


def find_decayed_weights(path):
    """Return the weights that an update without gradients shrinks, and those that it keeps."""
    script = begin(path, "--learning-rate", "0.1")
    create_model(script)
    optimizer = script.optimizer
    weights = script.model.trainable_variables
    with script.strategy.scope():
        optimizer.build(weights)
        for weight in weights:
            weight.assign(tf.ones_like(weight.value))
    zeros = [tf.zeros_like(weight.value) for weight in weights]
    script.strategy.run(lambda: optimizer.apply(zeros, weights))
    shrunk = [weight.path for weight in weights if np.max(weight.numpy()) < 1]
    kept = [weight.path for weight in weights if np.min(weight.numpy()) == 1]
    return shrunk, kept


def write_mobile_net(path):
    """Write weights of a small MobileNet whose BatchNormalizations have statistics of noise."""
    import keras

    model = keras.applications.MobileNet(
        [128, 128, 3],
        alpha=0.25,
        include_top=False,
        weights=None,
        pooling="avg",
    )
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
    noise = np.random.default_rng(0).uniform(-1, 1, (64, 8, 8, 3))
    model(tf.image.resize(noise, [128, 128]), training=True)
    model.save_weights(path)
