# {% extends "hooks.py" %}
# {% block defaults %}
GLOBAL_BATCH_SIZE: int = 128  # examples a step, of all replicas together
EPOCHS: int = 6
LEARNING_RATE: float = 1e-3  # at its highest; 3e-5 is usual for a preset
SCHEDULE: str = "linear"  # from there to 0 at the end; see Schedule
WARMUP_STEPS: int | None = None  # up to there; None is a tenth of all steps
PRESET: str | None = None  # TODO(you): of KerasHub, "bert_base_en_uncased" say, or its folder
SEQUENCE_LENGTH: int = 16  # pieces of words that the model reads; what is longer is cut
# {% endblock %}


# {% block reading %}
@functools.cache
def read_splits():
    """Returns (texts, labels) of the train, validation and test split, as arrays."""
    # TODO(you): your data. Pairs of sentences, say, from a file as MRPC has them (then two classes
    # in the model, and more pieces in SEQUENCE_LENGTH):
    #     import csv
    #
    #     with open("msr_paraphrase.txt", encoding="utf-8-sig", newline="") as file:
    #         rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    #     texts = tuple(np.array([row[f"#{i} String"] for row in rows]) for i in (1, 2))
    #     labels = np.array([row["Quality"] for row in rows], "int32")
    # Here: the names of 31,567 characters, "SNOWMAN" say, and their categories, from 0 to 25.
    # Left out are those made of the character's number, and scripts whose names count up.
    import unicodedata

    scripts = ("HANGUL SYLLABLE", "EGYPTIAN HIEROGLYPH")
    names = [(unicodedata.name(chr(code), ""), code) for code in range(sys.maxunicode + 1)]
    names = [
        (name, unicodedata.category(chr(code)))
        for name, code in names
        if name and not name.endswith(f"-{code:04X}") and not name.startswith(scripts)
    ]
    texts, categories = np.array(names).T
    labels = np.unique(categories, return_inverse=True)[1].astype("int32")

    # Neighbours are alike, so shuffle before the split; whatever --seed, the same way.
    order = np.random.default_rng(0).permutation(len(labels))
    splits = np.split(order, [len(order) * 8 // 10, len(order) * 9 // 10])
    return [tf.nest.map_structure(lambda x, i=i: x[i], (texts, labels)) for i in splits]


# {% endblock %}


def create_datasets():
    # {% block create_datasets %}
    return [tf.data.Dataset.from_tensor_slices(split) for split in read_splits()]
    # {% endblock %}


# {% block preprocessor %}
@functools.cache
def create_preprocessor():
    """Returns the layer that turns texts, or pairs of them, into what BERT reads. Its vocabulary
    is that of PRESET; or that of the run in --run-dir, whatever today's texts are; or else the
    words of the training texts, and [UNK] for others."""
    import collections

    import keras_hub

    create = keras_hub.models.BertTextClassifierPreprocessor
    if PRESET:
        return create.from_preset(PRESET, sequence_length=SEQUENCE_LENGTH)
    kept = Path(args.run_dir, "vocabulary.txt")
    if kept.exists():
        vocabulary = kept.read_text("utf-8").split("\n")
    else:
        texts, _ = read_splits()[0]
        text = " ".join(np.concatenate(tf.nest.flatten(texts))).lower()
        counts = collections.Counter(re.findall(r"[^\W_]+|[^\w\s]|_", text))
        # Words that came once stay out: else nothing would train [UNK].
        words = [word for word, count in counts.most_common(30_000) if count > 1]
        # Chinese is split into characters. Sorted, since the order of a set differs each time.
        words = dict.fromkeys([*words, *sorted(set("".join(counts)))])
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    tokenizer = keras_hub.models.BertTokenizer(vocabulary, lowercase=True)
    return create(tokenizer, sequence_length=SEQUENCE_LENGTH)


# {% endblock %}


def preprocess(batch, seeds, training):
    # {% block preprocess %}
    # TODO(you): clean up, augment. What can't be done to a whole batch at once goes through
    # tf.map_fn, which beats a map of single examples.
    texts, labels = batch
    with tf.init_scope():  # its table must outlive the graph that this may be called in
        preprocessor = create_preprocessor()
    features = preprocessor(x=texts)  # by name: a pair without one is taken for (x, y)
    # The mask comes as bool, but all inputs of the model, and of its export, are int32.
    return {name: tf.cast(values, tf.int32) for name, values in features.items()}, labels
    # {% endblock %}


def create_model_and_optimizer(strategy):
    # {% block before_the_model %}
    import keras_hub

    vocabulary_size = create_preprocessor().tokenizer.vocabulary_size()
    # {% endblock %}
    with strategy.scope():
        # {% block model %}
        # This one has the shape of keras_hub.models.BertTextClassifier.
        if PRESET:
            backbone = keras_hub.models.BertBackbone.from_preset(PRESET)
        else:
            backbone = keras_hub.models.BertBackbone(
                vocabulary_size,
                num_layers=2,
                num_heads=4,
                hidden_dim=128,
                intermediate_dim=512,
                max_sequence_length=SEQUENCE_LENGTH,
            )
        pooled = keras.layers.Dropout(0.1)(backbone.output["pooled_output"])
        logits = keras.layers.Dense(26, dtype="float32")(pooled)  # in mixed precision too
        model = keras.Model(backbone.input, logits)
        optimizer = Adam(LEARNING_RATE, weight_decay=0.01)  # of section 6; or any of Keras's
        # As BERT was trained: the biases, and the scales and shifts of LayerNormalization.
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
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
