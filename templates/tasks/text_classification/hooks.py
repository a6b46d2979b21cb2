PRESET: str | None = None  # TODO(you): "bert_base_en_uncased" of KerasHub, say, or a folder
SEQUENCE_LENGTH = 16  # word pieces per text; longer texts are cut


def create_datasets():
    # {% include "docstrings/create_datasets.txt" %}
    # TODO(you): your data. For pairs of sentences in the format of MRPC (two classes, a larger
    # SEQUENCE_LENGTH):
    #     import csv
    #
    #     with open("msr_paraphrase.txt", encoding="utf-8-sig", newline="") as file:
    #         rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    #     texts = tuple(np.array([row[f"#{i} String"] for row in rows]) for i in (1, 2))
    #     labels = np.array([row["Quality"] for row in rows], "int32")
    # Here: the names of 31,567 Unicode characters, such as "SNOWMAN", and their 26 categories,
    # without names that contain the character's number or count through a script.
    import unicodedata

    scripts = ("HANGUL SYLLABLE", "EGYPTIAN HIEROGLYPH")
    names = [(unicodedata.name(chr(code), ""), code) for code in range(sys.maxunicode + 1)]
    examples = [
        (name, unicodedata.category(chr(code)))
        for name, code in names
        if name and not name.endswith(f"-{code:04X}") and not name.startswith(scripts)
    ]
    texts, categories = np.array(examples).T
    labels = np.unique(categories, return_inverse=True)[1].astype("int32")

    # Neighbors are alike, so shuffle before the split, which doesn't depend on --seed.
    order = np.random.default_rng(0).permutation(len(labels))
    splits = np.split(order, [len(order) * 8 // 10, len(order) * 9 // 10])
    data = [tf.nest.map_structure(lambda x, i=i: x[i], (texts, labels)) for i in splits]
    return [tf.data.Dataset.from_tensor_slices(split) for split in data]


def adapt(train):
    # {% include "docstrings/adapt.txt" %}
    # TODO(you): what your model or `preprocess` has to know about the training split.
    import collections
    import re

    if PRESET:
        return {}
    texts, _ = train.batch(len(train)).get_single_element()
    words = collections.Counter()
    for text in np.concatenate(tf.nest.flatten(tf.nest.map_structure(np.array, texts))):
        words.update(re.findall(r"[^\W_]+|[^\w\s]|_", text.decode().lower()))
    # Words that occur once are left out, so that [UNK] is trained too.
    frequent = [word for word, count in words.most_common(30_000) if count > 1]
    # Single characters are needed for Chinese. Sorted, since the order of a set varies.
    vocabulary = dict.fromkeys([*frequent, *sorted(set("".join(words)))])
    return {"vocabulary": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *vocabulary]}


def fetch(batch):
    # {% include "docstrings/fetch.txt" %}
    # TODO(you): read data that don't fit in memory, with `tf.map_fn(tf.io.read_file, paths)` say.
    return batch


@functools.cache
def create_preprocessor():
    """Return the layer that turns texts, or pairs of texts, into the inputs of BERT."""
    import keras_hub

    create = keras_hub.models.BertTextClassifierPreprocessor
    if PRESET:
        return create.from_preset(PRESET, sequence_length=SEQUENCE_LENGTH)
    tokenizer = keras_hub.models.BertTokenizer(adapted["vocabulary"], lowercase=True)
    return create(tokenizer, sequence_length=SEQUENCE_LENGTH)


def preprocess(batch, seeds, training):
    # {% include "docstrings/preprocess.txt" %}
    # TODO(you): clean up, augment. For an operation on single examples use tf.map_fn.
    texts, labels = batch
    with tf.init_scope():  # the lookup table must outlive the graph that this is traced in
        preprocessor = create_preprocessor()
    features = preprocessor(x=texts)  # by name: a pair of texts would be taken for (x, y)
    # The mask is bool, but all inputs of the model and its export are int32.
    features = {name: tf.cast(values, tf.int32) for name, values in features.items()}
    # The preprocessor's shapes lack the batch size. With it, graphs are simpler and faster.
    shape = [seeds.shape[0], SEQUENCE_LENGTH]
    return {name: tf.ensure_shape(values, shape) for name, values in features.items()}, labels


def create_model_and_optimizer(strategy):
    # {% include "docstrings/create_model_and_optimizer.txt" %}
    import keras_hub

    with strategy.scope():
        # TODO(you): your model. This one has the shape of keras_hub.models.BertTextClassifier.
        if PRESET:
            backbone = keras_hub.models.BertBackbone.from_preset(PRESET)
        else:
            backbone = keras_hub.models.BertBackbone(
                create_preprocessor().tokenizer.vocabulary_size(),
                num_layers=2,
                num_heads=4,
                hidden_dim=128,
                intermediate_dim=512,
                max_sequence_length=SEQUENCE_LENGTH,
            )
        # The backbone is one layer of the model. If the model had the backbone's layers one by one,
        # Keras couldn't load model.keras with some other backbones, such as DeBERTa's.
        pooled = keras.layers.Dropout(0.1)(backbone(backbone.input)["pooled_output"])
        # 26 is the number of classes.
        logits = keras.layers.Dense(26, dtype="float32")(pooled)  # float32 in mixed precision too
        model = keras.Model(backbone.input, logits)
        optimizer = Adam(config.learning_rate, weight_decay=0.01)  # or Keras's, not MultiOptimizer
        # BERT was trained without weight decay of biases and LayerNormalization.
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
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
