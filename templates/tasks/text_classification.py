# {% extends "hooks.py" %}
# {% block defaults %}
GLOBAL_BATCH_SIZE: int = 128  # --global-batch-size: examples a step, of all replicas together
EPOCHS: int = 6  # --epochs
LEARNING_RATE: float = 1e-3  # --learning-rate, at its highest; 3e-5 is usual for a preset
SCHEDULE: str = "linear"  # --schedule
WARMUP_STEPS: int = 0  # --warmup-steps; `main` makes it a tenth of all steps
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
def is_preset():
    """Returns whether --init-checkpoint is a preset of KerasHub: a name, or a folder of one."""
    path = INIT_CHECKPOINT
    if path is None or Path(f"{path}.index").exists():  # nothing, or a checkpoint
        return False
    return not Path(path).exists() or Path(path, "tokenizer.json").exists()


@functools.cache
def create_preprocessor():
    """Returns the layer that turns texts, or pairs of them, into what BERT reads. Its vocabulary
    is that of a preset, or of the run in --run-dir, or of the one that --init-checkpoint names; or
    else the words of the training texts, and [UNK] for others."""
    import collections

    import keras_hub

    create = keras_hub.models.BertTextClassifierPreprocessor
    if is_preset():
        length, config = SEQUENCE_LENGTH, Path(INIT_CHECKPOINT, "config.json")
        if config.exists():  # one in a folder may have been made for less
            length = min(length, json.loads(config.read_text())["config"]["max_sequence_length"])
        return create.from_preset(INIT_CHECKPOINT, sequence_length=length)
    folders = [Path(args.run_dir)] if list_checkpoints("last") else []  # not today's texts
    if INIT_CHECKPOINT:  # a run, or a checkpoint or an export in one
        folders += [Path(INIT_CHECKPOINT), *Path(INIT_CHECKPOINT).parents]
    kept = [folder / "vocabulary.txt" for folder in folders if (folder / LOG).exists()]
    if kept and kept[0].exists():
        vocabulary = kept[0].read_text("utf-8").split("\n")
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
        if is_preset():
            backbone = keras_hub.models.BertBackbone.from_preset(INIT_CHECKPOINT)
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
        logits = keras.layers.Dense(26, dtype="float32")(pooled)  # whatever --precision
        model = keras.Model(backbone.input, logits)
        optimizer = keras.optimizers.AdamW(learning_rate(), weight_decay=0.01)
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
    def metrics():
        # {% block metrics %}
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        # {% endblock %}

    return metrics(), metrics(), metrics()
