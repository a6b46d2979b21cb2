# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "tensorflow>=2.18",
#     "keras>=3.10",
#     "tensorboard>=2.18",
#     "{{ 'keras-hub>=0.21' if 'text' in cookiecutter.task else 'scikit-learn>=1.4' }}",
# ]
# ///

# Project: {{ cookiecutter.project_name }}
"""Trains a model on one device, on many, or on many machines: the same job, the same numbers.

    uv run train.py                     train, or go on where the last checkpoint stands
    uv run train.py --smoke             a few steps of everything: does it work?
    uv run train.py --replicas 4        rehearse four replicas on this machine's CPU
    uv run train.py --mode evaluate     the best checkpoint of a run, on the test split
    TF_CONFIG='{"cluster": ...}' uv run train.py     be one worker of several: see README.md

`python train.py` does the same where the packages above are installed. Edit section 3, and
section 4 if your step is another; each place is marked TODO(you).
"""

import argparse
import atexit
import concurrent.futures
import contextlib
import functools
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):  # until `main` listens: no traceback of the imports
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(143))  # NumPy would catch an exception

os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever ~/.keras/keras.json prefers
stderr = os.dup(2)
if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
    # TensorFlow's import writes to stderr whatever the level (abseil-cpp#1957). 0 shows it all.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
try:
    import keras
    import numpy as np
    import tensorflow as tf
finally:
    os.dup2(stderr, 2)

# ----------------------------------------------------------------------------------------------
# 2. Globals: assigned in `main`, read everywhere
# ----------------------------------------------------------------------------------------------

strategy: tf.distribute.Strategy  # where the replicas are, and how they sum
model: keras.Model
optimizer: keras.optimizers.Optimizer
loss_object: keras.losses.Loss
train_metrics: list[keras.metrics.Metric]
validation_metrics: list[keras.metrics.Metric]
test_metrics: list[keras.metrics.Metric]

args: argparse.Namespace  # the flags
# What the flags are if they are left out:
# {% if cookiecutter.task == "image_classification" %}
GLOBAL_BATCH_SIZE: int = 64  # --global-batch-size: examples a step, of all replicas together
EPOCHS: int = 30  # --epochs
LEARNING_RATE: float = 2e-3  # --learning-rate, at its highest
SCHEDULE: str = "constant"  # --schedule
WARMUP_STEPS: int = 0  # --warmup-steps
# {% elif cookiecutter.task == "text_classification" %}
GLOBAL_BATCH_SIZE: int = 128  # --global-batch-size: examples a step, of all replicas together
EPOCHS: int = 6  # --epochs
LEARNING_RATE: float = 1e-3  # --learning-rate, at its highest; 3e-5 is usual for a preset
SCHEDULE: str = "linear"  # --schedule
WARMUP_STEPS: int = 0  # --warmup-steps; `main` makes it a tenth of all steps
SEQUENCE_LENGTH: int = 16  # pieces of words that the model reads; what is longer is cut
# {% else %}
GLOBAL_BATCH_SIZE: int = 32  # --global-batch-size: examples a step, of all replicas together
EPOCHS: int = 40  # --epochs
LEARNING_RATE: float = 3e-3  # --learning-rate, at its highest
SCHEDULE: str = "constant"  # --schedule
WARMUP_STEPS: int = 0  # --warmup-steps
# {% endif %}
ACCUMULATION_STEPS: int = 1  # --accumulation-steps: the parts in which a replica takes its batch
CLIP_NORM: float | None = None  # --clip-norm
PRECISION: str = "float32"  # --precision
SEED: int = 0  # --seed: of weights, data order, augmentation and dropout
INIT_CHECKPOINT: str | None = None  # --init-checkpoint: where the first weights come from

STEPS_PER_EPOCH: int = 1  # known once the data are loaded
state: dict[str, tf.Variable]  # where the run stands
run_dir: Path = Path()  # --run-dir on the chief; on other workers a folder that goes with them
WORKER: int = 0  # the index of this worker; 0 is the chief
WORKERS: int = 1

# ----------------------------------------------------------------------------------------------
# 3. Hooks: yours to edit
# ----------------------------------------------------------------------------------------------


# {% if cookiecutter.task == "text_classification" %}
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


# {% endif %}
def create_datasets():
    """Says where the examples come from.

    Returns:
        The train, validation and test `tf.data.Dataset`, of single examples, unbatched, in a
        fixed order. An example is any structure of tensors of constant shapes; of a tuple, the
        first part is what the exported model takes. Each worker holds all of them in memory, so
        let them be cheap (a path, an id, a serialized record, a row of an array) and leave what
        is dear to `preprocess`. Their number has to be known:
        `tf.data.experimental.assert_cardinality` says it where TensorFlow can't tell.
    """
    # {% if cookiecutter.task == "image_classification" %}
    # TODO(you): your data. Here: 1797 handwritten digits, [8, 8, 1] uint8 from 0 to 16. For
    # Fashion-MNIST, [28, 28, 1] uint8 from 0 to 255, which is downloaded:
    #     (images, labels), test = keras.datasets.fashion_mnist.load_data()
    #     splits = (images[5000:], labels[5000:]), (images[:5000], labels[:5000]), test
    #     return [tf.data.Dataset.from_tensor_slices((x[..., None], y)) for x, y in splits]
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = images.reshape(-1, 8, 8, 1).astype("uint8"), labels.astype("int32")
    # The file is sorted by writer, so shuffle before the split; whatever --seed, the same way.
    order = np.random.default_rng(0).permutation(len(images))
    splits = np.split(order, [1257, 1527])  # 70 %, 15 %, 15 %
    return [tf.data.Dataset.from_tensor_slices((images[i], labels[i])) for i in splits]
    # {% elif cookiecutter.task == "text_classification" %}
    return [tf.data.Dataset.from_tensor_slices(split) for split in read_splits()]
    # {% else %}
    # TODO(you): your data. Here: 442 people with diabetes, of whom ten numbers are known (age,
    # blood pressure, …), [10] float32, and how far the illness got in a year, [1], from 25 to 346.
    from sklearn.datasets import load_diabetes

    features, targets = load_diabetes(return_X_y=True, scaled=False)
    features, targets = features.astype("float32"), targets[:, None].astype("float32")
    order = np.random.default_rng(0).permutation(len(features))
    splits = np.split(order, [310, 376])  # 70 %, 15 %, 15 %
    return [tf.data.Dataset.from_tensor_slices((features[i], targets[i])) for i in splits]
    # {% endif %}


# {% if cookiecutter.task == "text_classification" %}
def is_preset():
    """Returns whether --init-checkpoint is a preset of KerasHub: a name, or a folder of one."""
    path = INIT_CHECKPOINT
    if path is None or Path(f"{path}.index").exists():  # nothing, or a checkpoint
        return False
    return not Path(path).exists() or Path(path, "tokenizer.json").exists()


@functools.cache
def create_preprocessor():
    """Returns the layer that turns texts, or pairs of them, into what BERT reads. Its vocabulary
    is that of a preset, or of the run that --init-checkpoint names; or else the words of the
    training texts, and [UNK] for others."""
    import collections

    import keras_hub

    create = keras_hub.models.BertTextClassifierPreprocessor
    if is_preset():
        length, config = SEQUENCE_LENGTH, Path(INIT_CHECKPOINT, "config.json")
        if config.exists():  # one in a folder may have been made for less
            length = min(length, json.loads(config.read_text())["config"]["max_sequence_length"])
        return create.from_preset(INIT_CHECKPOINT, sequence_length=length)
    kept = []
    if INIT_CHECKPOINT:  # a run, or a checkpoint or an export in one
        folders = [Path(INIT_CHECKPOINT), *Path(INIT_CHECKPOINT).parents]
        kept = [x / "vocabulary.txt" for x in folders if (x / LOG).exists()]
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


# {% endif %}
def preprocess(batch, seeds, training):
    """Turns examples into what the model reads. Runs on the worker whose share they are, several
    batches at a time.

    Args:
        batch: examples of `create_datasets`, shuffled in training; each tensor is [batch, …].
        seeds: [batch, 2] int32, one for each example: a function of SEED, the epoch and the
            position in it. Draw from nothing else, and a resumed run draws the same.
        training: a Python bool.

    Returns:
        (features, labels) or (features, labels, sample_weight), each [batch, …], the weights
        [batch] float32.
    """
    # {% if cookiecutter.task == "image_classification" %}
    images, labels = batch
    # TODO(you): decode, resize, augment. What can't be done to a whole batch at once goes
    # through tf.map_fn, which beats a map of single examples:
    #     if training:
    #         images = tf.map_fn(
    #             lambda one: tf.image.stateless_random_contrast(one[0], 0.5, 1.5, seed=one[1]),
    #             (tf.cast(images, tf.float32), seeds),
    #             fn_output_signature=tf.float32,
    #         )
    return tf.cast(images, tf.float32), labels
    # {% elif cookiecutter.task == "text_classification" %}
    # TODO(you): clean up, augment. What can't be done to a whole batch at once goes through
    # tf.map_fn, which beats a map of single examples.
    texts, labels = batch
    with tf.init_scope():  # its table must outlive the graph that this may be called in
        preprocessor = create_preprocessor()
    features = preprocessor(x=texts)  # by name: a pair without one is taken for (x, y)
    # The mask comes as bool, but all inputs of the model, and of its export, are int32.
    return {name: tf.cast(values, tf.int32) for name, values in features.items()}, labels
    # {% else %}
    features, targets = batch
    # TODO(you): parse, fill in what is missing, add noise. What can't be done to a whole batch at
    # once goes through tf.map_fn, which beats a map of single examples:
    #     if training:
    #         noise = lambda seed: tf.random.stateless_normal([10], seed, stddev=0.1)
    #         features += tf.map_fn(noise, seeds, fn_output_signature=tf.float32)
    return features, targets
    # {% endif %}


def create_model_and_optimizer(strategy):
    """Returns the model, built, and its optimizer; the scope puts a copy of each of their
    variables on every replica."""
    # {% if cookiecutter.task == "text_classification" %}
    import keras_hub

    vocabulary_size = create_preprocessor().tokenizer.vocabulary_size()
    # {% endif %}
    with strategy.scope():
        # TODO(you): your model. Scaling that is part of it is part of the export too.
        # BatchNormalization needs synchronized=True, or the result depends on how many replicas
        # share a batch. Smooth activations keep such runs together for longer: a kink, relu's
        # say, magnifies a difference in rounding.
        # {% if cookiecutter.task == "image_classification" %}
        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                keras.layers.Rescaling(1 / 16),
                keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="silu"),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="silu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(10, dtype="float32"),  # whatever --precision
            ]
        )
        # For Fashion-MNIST, the network of tensorflow.org/tutorials/distribute/custom_training,
        # with --epochs 10 --learning-rate 1e-3:
        #     model = keras.Sequential([keras.Input([28, 28, 1]), keras.layers.Rescaling(1 / 255)])
        #     for filters in (32, 64):
        #         model.add(keras.layers.Conv2D(filters, 3, activation="relu"))
        #         model.add(keras.layers.MaxPooling2D())
        #     model.add(keras.layers.Flatten())
        #     model.add(keras.layers.Dense(64, activation="relu"))
        #     model.add(keras.layers.Dense(10, dtype="float32"))
        optimizer = keras.optimizers.Adam(learning_rate())
        # {% elif cookiecutter.task == "text_classification" %}
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
        # {% else %}
        features, targets = next(iter(create_datasets()[0].batch(1000)))  # of training alone
        features, targets = features.numpy(), targets.numpy()
        regularizer = keras.regularizers.L2(3.0)
        model = keras.Sequential(
            [
                keras.Input([10]),
                keras.layers.Normalization(mean=features.mean(0), variance=features.var(0)),
                keras.layers.Dense(64, activation="silu", kernel_regularizer=regularizer),
                keras.layers.Dense(1, dtype="float32"),  # whatever --precision
                keras.layers.Rescaling(targets.std(), offset=targets.mean(), dtype="float32"),
            ]
        )
        optimizer = keras.optimizers.Adam(learning_rate())
        # {% endif %}
    return model, optimizer


def create_loss_objects(strategy):
    """Returns the loss, of (labels, predictions), one value an example: [batch].

    Not reduced, because a replica that takes the mean of its own examples doesn't know how many
    the others have: `compute_loss` divides (tensorflow.org/tutorials/distribute/custom_training).
    """
    with strategy.scope():
        # TODO(you): your loss.
        # {% if cookiecutter.task == "tabular_regression" %}
        return keras.losses.Huber(delta=50.0, reduction="none")
        # {% else %}
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        # {% endif %}


def create_metrics(strategy):
    """Returns three lists, the metrics of the train, validation and test split. Made in the
    scope, their values span the replicas. The loss is logged anyway."""

    def metrics():
        # TODO(you): your metrics, each with a name of its own.
        # {% if cookiecutter.task == "tabular_regression" %}
        return [keras.metrics.MeanAbsoluteError(name="mean_absolute_error")]
        # {% else %}
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        # {% endif %}

    with strategy.scope():
        return metrics(), metrics(), metrics()


def compute_loss(labels, predictions, sample_weight):
    """Returns one replica's part of the training loss, []. The parts, of all replicas and of all
    --accumulation-steps, sum to the mean over the global batch, plus the regularization losses,
    once.

    Args:
        labels, predictions: of this replica, [batch, …].
        sample_weight: [batch] float32, or None.
    """
    # TODO(you): a weighted sum, where there are several losses.
    loss = tf.nn.compute_average_loss(
        loss_object(labels, predictions), sample_weight, global_batch_size=GLOBAL_BATCH_SIZE
    )
    if model.losses:  # of kernel_regularizer and the like: each part has the whole of them
        loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses)) / ACCUMULATION_STEPS
    return loss


# ----------------------------------------------------------------------------------------------
# 4. Steps: one batch, on one replica and on all
# ----------------------------------------------------------------------------------------------


def compute_gradients(batch):
    """Returns one replica's part of the loss, [], and its gradients; counts the batch in the
    metrics. This is what --jit-compile compiles: XLA can't sum over replicas on CPUs."""
    # TODO(you): another unpacking; a second model and optimizer, of a GAN say.
    features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = compute_loss(labels, predictions, sample_weight)
        scaled_loss = optimizer.scale_loss(loss)  # for mixed_float16; otherwise the loss
    for metric in train_metrics:
        metric.update_state(labels, predictions, sample_weight)
    return loss, tape.gradient(scaled_loss, model.trainable_variables)


def train_step(batch):
    """Updates the model with one replica's batch. Returns its part of the loss, []."""
    loss, gradients = compute_gradients(batch) if ACCUMULATION_STEPS == 1 else accumulate(batch)
    if CLIP_NORM or PRECISION == "mixed_float16":
        gradients = sum_and_clip(gradients)
    optimizer.apply(gradients, model.trainable_variables)  # of all replicas, summed
    return loss


def validation_step(batch):
    """Returns the sums of one replica's losses and of its weights, each []. Sums, because the
    last batch is filled up with examples of weight 0, and a replica may have no others."""
    # TODO(you): as in compute_gradients; and in test_step.
    features, labels, sample_weight = batch
    predictions = model(features, training=False)
    for metric in validation_metrics:
        metric.update_state(labels, predictions, sample_weight)
    losses = loss_object(labels, predictions)
    return tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)


def test_step(batch):
    """Returns what validation_step does, of the test split."""
    features, labels, sample_weight = batch
    predictions = model(features, training=False)
    for metric in test_metrics:
        metric.update_state(labels, predictions, sample_weight)
    losses = loss_object(labels, predictions)
    return tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)


def distributed_train_step(batch):
    """Runs train_step on all replicas. Returns the loss of the global batch, []."""
    loss = strategy.run(train_step, args=(batch,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)


def distributed_validation_step(batch):
    """Runs validation_step on all replicas. Returns the sums over all."""
    sums = strategy.run(validation_step, args=(batch,))
    return [strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None) for value in sums]


def distributed_test_step(batch):
    """Runs test_step on all replicas. Returns the sums over all."""
    sums = strategy.run(test_step, args=(batch,))
    return [strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None) for value in sums]


# ----------------------------------------------------------------------------------------------
# 5. Loops: many steps
# ----------------------------------------------------------------------------------------------


@tf.function
def run_train_steps(iterator, steps):
    """Runs many steps in one graph, without a return to Python between them; fewer, if a signal
    comes. Adds their losses to state["loss_sum"].

    Args:
        steps: [] int32, a tensor: a Python number would trace a new graph for each value.

    Returns:
        The seconds spent waiting for data, [] float64, and whether a signal came, [] bool.
    """
    waited = tf.zeros([], tf.float64)
    stopped = tf.constant(False)
    for _ in tf.range(steps):
        # The first weights get their gradients last: once they are updated, the step is done.
        with tf.control_dependencies([tf.convert_to_tensor(model.trainable_variables[0].value)]):
            ready = clock()
        batch = next_batch(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            waited += tf.maximum(clock() - ready, 0.0)
        # One by one: sums of sums would round by where the loops of a run happen to end.
        state["loss_sum"].assign_add(tf.cast(distributed_train_step(batch), tf.float64))
        update_averages()
        state["step"].assign_add(1)
        stopped = is_stopped()
        if stopped:
            break
    return waited, stopped


@tf.function
def run_evaluation_steps(distributed_step, iterator, steps):
    """Returns the weighted mean of the losses of many batches, [] float64, and whether a signal
    came before the end, [] bool."""
    loss_sum = weight_sum = tf.zeros([], tf.float64)
    stopped = tf.constant(False)
    for _ in tf.range(steps):
        losses, weights = distributed_step(next_batch(iterator))
        loss_sum += tf.cast(losses, tf.float64)
        weight_sum += tf.cast(weights, tf.float64)
        stopped = is_stopped()
        if stopped:
            break
    return loss_sum / weight_sum, stopped


def train(iterator, epoch):
    """Trains to the end of an epoch from where the run stands; logs and saves on the way.

    A loop ends at each multiple of --steps-per-loop in the epoch, where it logs a line, and at
    each multiple of --checkpoint-every-steps. Returns the values of the whole epoch.
    """
    step = logged = int(state["step"].numpy())
    first_step, last_step = (epoch - 1) * STEPS_PER_EPOCH, epoch * STEPS_PER_EPOCH
    if step == first_step:
        state["loss_sum"].assign(0.0)
        for metric in train_metrics:
            metric.reset_state()
    seconds = waited = 0.0
    profile_first, profile_last = args.profile or (0, 0)
    while step < last_step:
        ends = [
            last_step,
            step + args.steps_per_loop - (step - first_step) % args.steps_per_loop,
            step + args.checkpoint_every_steps - step % args.checkpoint_every_steps,
            *(end for end in (profile_first - 1, profile_last) if end > step),
        ]
        profile(step)
        started = time.perf_counter()
        loop_waited, stopped = run_train_steps(iterator, tf.constant(min(ends) - step))
        stopped = bool(stopped)  # waits for the loop
        seconds, waited = seconds + time.perf_counter() - started, waited + float(loop_waited)
        loop_start, step = step, int(state["step"].numpy())
        profile(step)
        saves = stopped or step == last_step or step % args.checkpoint_every_steps == 0
        if not math.isfinite(state["loss_sum"].numpy()) or (saves and not weights_are_finite()):
            step = logged = recover(loop_start, step)
            seconds = waited = 0.0
            continue
        if step == last_step or (step - first_step) % args.steps_per_loop == 0:
            values = {
                **results(state["loss_sum"].numpy() / (step - first_step), train_metrics),
                "learning_rate": float(optimizer.learning_rate.numpy()),
                **({"gradient_norm": float(gradient_norm.read_value())} if CLIP_NORM else {}),
                "examples_per_second": (step - logged) * GLOBAL_BATCH_SIZE / seconds,
                "input_wait": waited / seconds,
            }
            log("train", step, epoch, values)
            show_progress(epoch, (step - first_step) / STEPS_PER_EPOCH, values)
            advise_on_input(seconds, waited)
            if step == last_step:
                return values
            logged, seconds, waited = step, 0.0, 0.0
        if stopped:
            end_on_signal()
        if saves and step < last_step:
            save("last")
    # Of an epoch whose end was restored:
    return results(state["loss_sum"].numpy() / STEPS_PER_EPOCH, train_metrics)


def validate(iterator, steps):
    """Returns the loss and metrics of the validation split, or None if a signal came."""
    exchange_averages()  # of no effect without --ema-momentum
    values = evaluate(distributed_validation_step, validation_metrics, iterator, steps)
    exchange_averages()
    return values


def test(iterator, steps):
    """Returns the loss and metrics of the test split, or None if a signal came."""
    return evaluate(distributed_test_step, test_metrics, iterator, steps)


def evaluate(distributed_step, metrics, iterator, steps):
    for metric in metrics:
        metric.reset_state()
    loss, stopped = run_evaluation_steps(distributed_step, iterator, tf.constant(steps))
    return None if stopped else results(loss, metrics)


def results(loss, metrics):
    return {"loss": float(loss), **{metric.name: float(metric.result()) for metric in metrics}}


# ----------------------------------------------------------------------------------------------
# 6. Machinery: seldom edited
# ----------------------------------------------------------------------------------------------


def refuse(message):
    """Ends for wrong input: one line, exit code 2."""
    print(f"train.py: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def fail(message, code=1):
    """Ends a run that can't go on, for no fault of the input: one line."""
    print(f"train.py: stopped: {message}", file=sys.stderr)
    raise SystemExit(code)


# What it says ---------------------------------------------------------------------------------


def say(text, end="\n"):
    """Prints on the chief; on a terminal, over the progress bar."""
    if WORKER == 0:
        print("\r\x1b[K" * sys.stdout.isatty() + text, end=end, flush=True)


def show_progress(epoch, share, values):
    if sys.stdout.isatty():
        bar = f"{'█' * round(30 * share):░<30}"
        speed = f"{values['examples_per_second']:,.0f} examples/s"
        say(f"epoch {epoch:3}/{EPOCHS}  {bar}  {describe(values)}  {speed}", end="")


def say_epoch(epoch, trained, validated, is_best):
    speed = trained.get("examples_per_second")  # unknown of an epoch whose end was restored
    say(
        f"epoch {epoch:3}/{EPOCHS}  train {describe(trained)}  validation {describe(validated)}"
        + (f"  {speed:,.0f} examples/s" if speed else "")
        + "  best" * is_best
    )


times = {"all": 0.0, "waiting": 0.0}  # seconds, in the loops of this process


def advise_on_input(seconds, waited):
    """Says it when data become what training waits for."""
    was_told = times["waiting"] > max(1, times["all"] / 5)
    times["all"] += seconds
    times["waiting"] += waited
    if not was_told and times["waiting"] > max(1, times["all"] / 5):
        say(
            "more than a fifth of the time goes into waiting for data (input_wait in the log): let "
            "preprocess do less, and on whole batches, or give it more CPU cores"
        )


profiling: bool = False


def profile(step):
    """Begins the profile of --profile at its first step, and ends it at its last."""
    global profiling
    first, last = args.profile or (0, 0)
    if (first <= step + 1 <= last) != profiling:
        profiling = not profiling
        if profiling:
            tf.profiler.experimental.start(str(run_dir / "tensorboard" / "train"))
        else:
            tf.profiler.experimental.stop()


def describe(values):
    """Returns the loss and the metrics of a line of the log as text."""
    others = {"step", "epoch", "split", "learning_rate", "gradient_norm"}
    others |= {"examples_per_second", "input_wait"}
    return " ".join(f"{name} {value:.4f}" for name, value in values.items() if name not in others)


# How a run ends -------------------------------------------------------------------------------

stop: tf.Variable  # [] bool: SIGTERM or Ctrl-C has come
in_training: bool = False  # so there is something to save before the end
scratch: str | None = None  # a folder that goes with the process


def listen_for_signals():
    """Ends the run on SIGTERM or Ctrl-C: in training after the step in hand, otherwise at once.
    A second Ctrl-C ends it at once in any case.

    Python calls a signal's handler when the loop in the graph returns, which may take minutes.
    So a thread reads the byte that Python writes as the signal comes (signal.set_wakeup_fd).
    """
    reader, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    catch_signals()

    def listen():
        os.read(reader, 1)
        if not in_training:
            leave(143)
        first = time.monotonic()
        stop.assign(True)
        say("stopping after this step; Ctrl-C again ends at once")
        # `uv run` and others pass on a signal that has reached this process already.
        while os.read(reader, 1)[0] != signal.SIGINT or time.monotonic() - first < 1:
            pass
        leave(143, wait=False)

    threading.Thread(target=listen, daemon=True).start()


def catch_signals():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def is_stopped():
    """Returns whether a signal came to any worker, [] bool: the same on all, so that they stop
    after the same step."""
    if WORKERS == 1:
        return stop.read_value()
    flags = strategy.run(lambda: tf.cast(stop, tf.float32))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, flags, axis=None) > 0


def end_on_signal():
    """Ends between two steps, or between two batches of an evaluation."""
    if in_training:
        save("last")
        wait_for_save()
        say(f"stopped and saved at step {state['step'].numpy()}; the same command goes on")
    leave(143)


def leave(code, wait=True):
    """Ends the process, once the checkpoint that is being written is whole. Not as Python ends
    by itself, for then TensorFlow waits for the other workers."""
    if wait and writing:
        concurrent.futures.wait([writing])
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def explain(error):
    """Ends a run that an exception has ended, with one line unless it is the hooks' doing."""
    text = str(error)
    if "No space left on device" in text:
        size = sum(x.numpy().nbytes for x in tf.nest.flatten(snapshot))
        fail(
            f"the disk of {run_dir.resolve()} is full: it has {shutil.disk_usage(run_dir).free:,} "
            f"bytes left, and a checkpoint takes {size:,}. The last whole one is kept; make room, "
            "and the same command goes on"
        )
    if args.jit_compile and "XLA" in text:
        operations = sorted(set(re.findall(r"(\w+) \(No registered", text))) or ["this step"]
        refuse(
            f"--jit-compile: XLA can't compile {', '.join(operations)}; leave the flag out, or do "
            "without that in the model, its loss and its metrics"
        )
    # What a collective operation ends in when a worker is gone.
    lost = isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)
    if WORKERS > 1 and (lost or "coordination" in text.lower()):
        # The error names it among others, as /job:worker/task:1 or /job:worker/replica:0/task:1.
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        tasks = re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", text)
        names = {f"{job} {index}" for job, index in tasks} - {f"{task['type']} {task['index']}"}
        names = " and ".join(sorted(names)) or "another worker"
        fail(f"{names} is lost; start all workers again", code=143)
    traceback.print_exception(error)
    raise SystemExit(1)


# Where the replicas are -----------------------------------------------------------------------


def read_tf_config():
    """Returns this worker's index and the number of workers, from TF_CONFIG. The chief is 0."""
    example = (
        '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
    )
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        if config == {}:
            return 0, 1
        cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
        if job == "evaluator":  # alone, beside the cluster
            args.mode = "continuous_evaluate"
            return 0, 1
        for name, addresses in cluster.items():
            if name not in ("chief", "worker", "evaluator") or not isinstance(addresses, list):
                raise ValueError(
                    "synchronous training has the jobs chief and worker, each a list of addresses, "
                    f'not "{name}": {addresses!r}'
                )
        if index not in range(len(cluster.get(job, []))):
            raise ValueError(f"the cluster has no {job} {index}, which the task says this is")
    except KeyError as key:
        refuse(f"TF_CONFIG has no {key}; it should be like {example}")
    except (ValueError, TypeError, AttributeError) as error:
        refuse(f"TF_CONFIG: {error}; it should be like {example}")
    chiefs = len(cluster.get("chief", []))
    return index + chiefs * (job == "worker"), chiefs + len(cluster.get("worker", []))


def check_batch(replicas):
    """Refuses a batch that can't be shared out equally, with the nearest that can."""
    batch, parts = GLOBAL_BATCH_SIZE, replicas * ACCUMULATION_STEPS
    below, counts = batch // parts * parts, [n for n in range(1, batch + 1) if batch % n == 0]
    sharers = f"{replicas} replica{'s' * (replicas > 1)}"
    sharers += f" in {ACCUMULATION_STEPS} parts each" * (ACCUMULATION_STEPS > 1)
    if batch % parts:
        refuse(
            f"--global-batch-size {batch} can't be shared equally by {sharers}; "
            f"{f'{below} or ' * (below > 0)}{below + parts} can. A run that has begun keeps its "
            f"batch, which {', '.join(map(str, counts))} replicas can share"
        )


def create_strategy():
    """Returns the strategy of --strategy, and the name that `auto` stands for."""
    name, replicas = args.strategy, args.replicas
    gpus = tf.config.list_physical_devices("GPU")
    if name == "auto" and WORKERS > 1:
        name = "multi_worker"
    elif name == "auto" and (os.environ.get("TPU_NAME") or tf.config.list_physical_devices("TPU")):
        name = "tpu"
    elif name == "auto":
        name = "mirrored" if (replicas or len(gpus)) > 1 else "one_device"

    if WORKERS > 1 and name != "multi_worker":
        refuse(f"--strategy {name} is for one worker, but TF_CONFIG has {WORKERS}; unset either")
    if name == "multi_worker" and os.environ.get("TF_CONFIG", "") in ("", "{}"):
        refuse("--strategy multi_worker reads TF_CONFIG, which is not set; README.md shows how")
    if replicas and name in ("multi_worker", "tpu"):
        refuse(f"--replicas shares out one machine's CPU; with --strategy {name}, leave it out")
    if name == "one_device" and (replicas or 1) > 1:
        refuse(f"--strategy one_device has one replica, not {replicas}; mirrored has more")

    if replicas:
        gpus = []
        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        shares = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(cpu, shares)
    if not gpus:
        # They merge sums over losses with sums over replicas, where these are in one process, and
        # fuse operations: then replicas round otherwise than workers. On GPUs they stay.
        off = {"arithmetic_optimization": False, "remapping": False}
        tf.config.optimizer.set_experimental_options(off)
    if name == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy(), name
    if name == "tpu":
        try:
            tpu = os.environ.get("TPU_NAME", "local")
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu)
        except Exception as error:  # of a dozen kinds, which all mean that there is none
            reason = str(error).partition("\n")[0]
            refuse(f"--strategy tpu finds no TPU ({reason}); set TPU_NAME, or take another")
        return tf.distribute.TPUStrategy(resolver), name
    if name == "mirrored":
        kind, count = ("GPU", len(gpus)) if gpus else ("CPU", replicas or 1)
        return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(count)]), name
    return tf.distribute.OneDeviceStrategy("GPU:0" if gpus else "CPU:0"), name


def device_type():
    """Returns CPU, GPU or TPU."""
    return tf.DeviceSpec.from_string(strategy.extended.worker_devices[0]).device_type


# The update -----------------------------------------------------------------------------------

averages: dict[str, tf.Variable] = {}  # with --ema-momentum: of the trainable weights, by path
gradient_norm: tf.Variable  # with --clip-norm: [] float32, of the last step, before clipping


def learning_rate():
    """Returns what an optimizer takes: LEARNING_RATE, or the way up to it and down from it."""
    return LEARNING_RATE if SCHEDULE == "constant" and not WARMUP_STEPS else Schedule()


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Rises from 0 to LEARNING_RATE in WARMUP_STEPS; then stays, or falls to 0 at the end of the
    last epoch, in a line or in half a wave of the cosine (arxiv.org/abs/1608.03983)."""

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        steps = max(1, EPOCHS * STEPS_PER_EPOCH - WARMUP_STEPS)
        left = 1 - tf.clip_by_value((step - WARMUP_STEPS) / steps, 0, 1)
        share = {"constant": 1.0, "linear": left, "cosine": (1 - tf.cos(math.pi * left)) / 2}
        rising = step / max(1, WARMUP_STEPS)
        return LEARNING_RATE * tf.where(step < WARMUP_STEPS, rising, share[SCHEDULE])


def accumulate(batch):
    """Returns the sums of the losses and of the gradients of the parts of a batch, which take the
    memory of one part: those of the whole batch, to rounding."""

    def compute_gradients_of_part(i):
        parts = [ACCUMULATION_STEPS, -1]
        part = tf.nest.map_structure(lambda x: tf.reshape(x, [*parts, *x.shape[1:]])[i], batch)
        loss, gradients = compute_gradients(part)
        # Those of an embedding are IndexedSlices, which a loop in the graph can't sum.
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    sums = compute_gradients_of_part(0)
    for i in tf.range(1, ACCUMULATION_STEPS):
        sums = tf.nest.map_structure(tf.add, sums, compute_gradients_of_part(i))
    return sums


def sum_and_clip(gradients):
    """Returns a replica's share of the gradients summed over all of them, which the optimizer sums
    once more, shrunk to a norm of at most CLIP_NORM. The norm of one replica's own gradients is not
    the batch's (tensorflow#33929), and an overflow on one, in mixed_float16, all have to see."""
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    if CLIP_NORM:
        scale = optimizer.scale_loss(1.0)  # of the gradients, with mixed_float16; otherwise 1
        norm = tf.linalg.global_norm(gradients)
        gradient_norm.assign(norm / scale)
        gradients, _ = tf.clip_by_global_norm(gradients, CLIP_NORM * scale, use_norm=norm)
    return [gradient / context.num_replicas_in_sync for gradient in gradients]


def update_averages():
    """Moves the averages, after each step, on towards the weights."""
    momentum = args.ema_momentum

    def move(average, weight):
        average.assign(momentum * average + (1 - momentum) * weight)

    for weight in model.trainable_variables if averages else []:
        strategy.extended.update(averages[weight.path], move, args=(weight.value,))


def exchange_averages():
    """Puts the averages where the weights are, and the weights where the averages are."""
    for weight in model.trainable_variables if averages else []:
        raw, average = weight.numpy(), averages[weight.path]
        with strategy.scope():
            weight.assign(average.numpy())
            average.assign(raw)


# Input ----------------------------------------------------------------------------------------


def load(dataset, split):
    """Returns all examples of a dataset, stacked in host memory, and their number. With all at
    hand, the order of an epoch is computed instead of drawn from a buffer: a run resumes at any
    step at once, and each worker knows its share."""
    size = int(dataset.cardinality())
    if size <= 0:
        refuse(
            f"create_datasets: the {split} dataset is empty, or doesn't know its size, which "
            ".apply(tf.data.experimental.assert_cardinality(size)) tells it"
        )
    with tf.device("CPU:0"):
        return dataset.batch(size).get_single_element(), size


def distribute(examples, size, training, first_step=0):
    """Returns an iterator for `next_batch`, and the number of steps in an epoch.

    Its elements are the replicas' batches in turn, of constant shapes. In training they start at
    `first_step` and never end; the order of an epoch is a permutation that depends on SEED and
    the epoch alone. In evaluation the split repeats in its order, filled up to whole batches by
    examples of weight 0: a replica with none at all would give NaN (tensorflow#41657).
    """
    steps = STEPS_PER_EPOCH if training else math.ceil(size / GLOBAL_BATCH_SIZE)

    def create_dataset(context):
        replicas = context.num_replicas_in_sync // context.num_input_pipelines  # of this worker
        batch_size = context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)

        def create_batch(i):
            step, replica = i // replicas, context.input_pipeline_id * replicas + i % replicas
            epoch = step // steps if training else tf.constant(-1, tf.int64)
            start = step % steps * GLOBAL_BATCH_SIZE + replica * batch_size
            position = start + tf.range(batch_size, dtype=tf.int64)
            if training:
                index = tf.random.experimental.index_shuffle(position, [SEED, epoch], size - 1)
            else:
                index = tf.minimum(position, size - 1)
            key = tf.random.stateless_uniform([], [SEED, epoch], None, None, tf.int32)
            seeds = tf.stack([tf.fill([batch_size], key), tf.cast(position, tf.int32)], axis=1)
            batch = tf.nest.map_structure(lambda values: tf.gather(values, index), examples)
            batch = preprocess(batch, seeds, training)
            if training:
                return batch
            features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            real = tf.cast(position < size, tf.float32)
            return features, labels, real if sample_weight is None else real * sample_weight

        order = tf.data.Dataset.range(first_step * replicas, 2**62)
        if not training:
            order = tf.data.Dataset.range(steps * replicas).repeat()
        threads = os.cpu_count() or 1
        if device_type() == "CPU":  # leave cores to the steps
            threads = max(1, threads // 2)
        options = tf.data.Options()
        options.autotune.enabled = False  # its thread sleeps, and the end of the run waits for it
        options.threading.private_threadpool_size = threads
        batches = order.map(create_batch, num_parallel_calls=threads)
        return batches.prefetch(4 * replicas).with_options(options)

    if device_type() == "CPU":
        context = tf.distribute.InputContext(WORKERS, WORKER, strategy.num_replicas_in_sync)
        return iter(create_dataset(context)), steps
    return iter(strategy.distribute_datasets_from_function(create_dataset)), steps


def next_batch(iterator):
    """Returns the next batch of each replica of this worker."""
    if device_type() != "CPU":
        return next(iterator)
    # A DistributedIterator copies batches to their devices ahead of time. A CPU has nothing to
    # gain by that, and loses a fifth of its speed.
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


def clock():
    """Returns the time in seconds, [] float64."""
    if args.deterministic:  # which tf.timestamp refuses
        return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
    return tf.timestamp()


# State ----------------------------------------------------------------------------------------

snapshot: dict = {}  # copies, in host memory, of all that a checkpoint holds
checkpoints: dict[str, tf.train.CheckpointManager]  # last and best
writer = concurrent.futures.ThreadPoolExecutor(max_workers=1)  # of checkpoints
writing: concurrent.futures.Future | None = None  # the checkpoint that it writes


def create_state():
    """Returns what a run has to remember beside the model, the optimizer and the metrics."""
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA
    with strategy.scope():
        step = tf.Variable(0, trainable=False, dtype=tf.int64, aggregation=first)
    return {
        "step": step,
        "loss_sum": tf.Variable(0.0, dtype=tf.float64),  # of the steps of this epoch
        "best_loss": tf.Variable(math.inf, dtype=tf.float64),  # of the epochs before
        "best_epoch": tf.Variable(0, dtype=tf.int64),  # for --patience
        "recoveries": tf.Variable(0, dtype=tf.int64),  # --recover-from-nan: how many there were
        "skipped": tf.Variable(0, dtype=tf.int64),  # and the steps whose data were left out
    }


def model_values():
    """Returns the variables by path: as a Keras object, the model would be saved without the
    random state of its layers."""
    return {variable.path: variable.value for variable in model.variables}


def run_values():
    """Returns all that the next step depends on, but for the metrics."""
    optimizer_values = [variable.value for variable in optimizer.variables]
    values = {**state, "model": model_values(), "optimizer": optimizer_values}
    return {**values, "averages": averages} if averages else values


def metric_values():
    return [variable.value for metric in train_metrics for variable in metric.variables]


def create_snapshot():
    """Returns variables for the copies that are saved, so that training goes on meanwhile. Of the
    metrics they hold what each replica has summed up: [replicas, …]."""
    replicas = strategy.num_replicas_in_sync
    with tf.device("CPU:0"):
        copies = tf.nest.map_structure(lambda x: tf.Variable(tf.zeros_like(x)), run_values())
        parts = [
            tf.Variable(tf.zeros([replicas, *x.shape], x.dtype), shape=[None, *x.shape])
            for x in metric_values()
        ]
    return {**copies, "metrics": parts}


@tf.function
def take_snapshot():
    """Copies the run's variables, which costs little: on a CPU, buffers are shared until the next
    step writes to them."""
    values = tf.nest.flatten(run_values())
    copies = tf.nest.flatten({name: x for name, x in snapshot.items() if name != "metrics"})
    for copy, value in zip(copies, values, strict=True):
        copy.assign(value)
    parts = strategy.run(lambda: [tf.expand_dims(x, 0) for x in metric_values()])
    for copy, part in zip(snapshot["metrics"], parts, strict=True):
        copy.assign(strategy.gather(part, axis=0))


@tf.function
def weights_are_finite():
    """Returns [] bool, of the weights and of what the optimizer keeps of them."""
    values = [x.value for x in model.variables + optimizer.variables]
    sums = [tf.reduce_sum(x) for x in values if x.dtype.is_floating]
    return tf.reduce_all([tf.math.is_finite(x) for x in sums])


def save(*folders):
    """Saves to checkpoints/last, and checkpoints/best if named: a thread writes the copies. All
    workers take part, since the metrics are on all of them; the chief's files stay."""
    global writing
    wait_for_save()
    take_snapshot()
    step = int(state["step"].numpy())

    def write():
        for name in folders:
            # Counted by the step, so that files don't differ by how often a run was stopped.
            checkpoints[name].checkpoint.save_counter.assign(step - 1)
            checkpoints[name].save(checkpoint_number=step)

    writing = writer.submit(write)


def wait_for_save():
    """Returns when the last checkpoint is whole. Raises what its writing raised."""
    if writing:
        writing.result()


def restore(values, path):
    """Loads a structure of variables from a checkpoint, which may hold more."""
    try:
        checkpoint = tf.train.Checkpoint(**values)
        checkpoint.restore(path).assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError) as error:
        tf.get_logger().setLevel("ERROR")  # it would warn of each variable by itself
        reason = str(error).partition("\n")[0]
        refuse(f"{path} is of another model or optimizer ({reason}); name another --run-dir")


def restore_run(path):
    """Puts the run where a checkpoint stood, whose replicas may have been more or fewer."""
    restore({**run_values(), "metrics": snapshot["metrics"]}, path)
    parts = [part.numpy() for part in snapshot["metrics"]]
    replicas = strategy.num_replicas_in_sync
    if parts and len(parts[0]) != replicas:  # the first gets the sum, the others nothing
        parts = [np.stack([x.sum(0)] + [0 * x[0]] * (replicas - 1)) for x in parts]

    @tf.function
    def assign():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for value, part in zip(metric_values(), parts, strict=True):
            value.assign(tf.gather(part, replica))

    strategy.run(assign)
    seed_replicas()


def recover(first, last):
    """Goes back to the last checkpoint, and on with the data that follow those which led to a
    loss that is not finite; or stops, unless --recover-from-nan allows it once more. Returns the
    step."""
    problem = f"the loss or a weight is not finite between steps {first} and {last}"
    recoveries = int(state["recoveries"].numpy())
    if recoveries >= args.recover_from_nan:
        fail(
            f"{problem}, and nothing of it was saved; the usual cures are a --learning-rate below "
            f"{LEARNING_RATE:g}, --clip-norm and --precision float32"
        )
    wait_for_save()
    skipped = int(state["skipped"].numpy())
    # A worker reads its own copy if it has one: the chief may still be writing.
    path = checkpoints["last"].latest_checkpoint or find_checkpoint("last")
    restore_run(path)
    step = int(state["step"].numpy())
    state["recoveries"].assign(recoveries + 1)
    state["skipped"].assign(skipped + last - step)
    write_log(line for line in read_log(run_dir) if line["step"] <= step)
    say(
        f"{problem}; recovery {recoveries + 1} of {args.recover_from_nan}: back at step {step}, "
        f"from {path}, and on with other data"
    )
    return step


@tf.function
def seed_replicas():
    """Gives each replica random numbers of its own: Keras starts all with one state, and they
    would drop the same units. The first keeps the state, which is what checkpoints hold."""

    def shift():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for variable in model.variables:
            if variable.path.endswith("seed_generator_state"):  # [seed, counter]
                # Seeds are drawn below 1e9: a large odd factor keeps all of them apart.
                offset = tf.cast(replica, variable.dtype) * 0x9E3779B1
                variable.assign(variable + tf.stack([offset, tf.zeros_like(offset)]))

    strategy.run(shift)


# The run directory ----------------------------------------------------------------------------

LOG = "metrics.jsonl"


def read_log(folder):
    """Returns the lines of the log, less one that a kill cut short."""
    path = folder / LOG
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def log(split, step, epoch, values):
    """Adds a line to the log, and points to TensorBoard's curves."""
    line = {"step": step, "epoch": epoch, "split": split, **values}
    with open(run_dir / LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if importlib.util.find_spec("tensorboard"):  # TensorFlow 2.21 no longer brings it
        with summary_writer(run_dir / "tensorboard" / split).as_default(step):
            for name, value in values.items():
                tf.summary.scalar(name, value)


@functools.cache
def summary_writer(folder):
    return tf.summary.create_file_writer(str(folder))


def write_log(lines):
    replace_file(LOG, "".join(json.dumps(line) + "\n" for line in lines))


def replace_file(name, text):
    """Writes a file of the run so that a kill leaves the old one or the new one."""
    part = run_dir / f"{name}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(run_dir / name)


def list_checkpoints(which):
    """Returns the steps of the checkpoints in --run-dir, whole or not, the newest first."""
    paths = Path(args.run_dir, "checkpoints", which).glob("ckpt-*")
    names = [re.fullmatch(r"ckpt-(\d+)\.(index|data-.*)", path.name) for path in paths]
    return sorted({int(name[1]) for name in names if name}, reverse=True)


def find_damage(path):
    """Returns what is wrong with a checkpoint, or None. Reading it verifies its checksums."""
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except Exception as error:  # of half a dozen kinds, by what is cut short or flipped
        return str(error).partition("\n")[0] or type(error).__name__


def find_checkpoint(which, last_step=math.inf):
    """Returns the path of the newest whole checkpoint in --run-dir, or None if there never was
    one. Names the damaged ones that it passes over."""
    folder = Path(args.run_dir, "checkpoints", which)
    steps = [step for step in list_checkpoints(which) if step <= last_step]
    for step in steps:
        path = str(folder / f"ckpt-{step}")
        damage = find_damage(path)
        if not damage:
            return path
        say(f"{path} is damaged, and passed over: {damage}")
    if list_checkpoints("last") + list_checkpoints("best"):
        refuse(
            f"{folder} has no whole checkpoint to go on from; put one back, or name another "
            "--run-dir to start anew"
        )
    return None


def find_start():
    """Returns the path of the checkpoint to resume from, or None."""
    for best in list_checkpoints("best")[:1]:
        path = f"{args.run_dir}/checkpoints/best/ckpt-{best}"
        damage = find_damage(path)
        if damage:
            say(f"{path} is damaged, and will be made again: {damage}")
            return find_checkpoint("last", best)
    return find_checkpoint("last")


def create_managers():
    """Returns the managers of checkpoints/last and checkpoints/best."""
    best = {**snapshot, "model": snapshot["model"] | snapshot.get("averages", {})}
    best.pop("averages", None)
    if WORKER == 0:
        list_anew("last", [x for x in list_checkpoints("last") if x <= state["step"].numpy()])
        list_anew("best", list_checkpoints("best"))
    folder, manager = run_dir / "checkpoints", tf.train.CheckpointManager
    return {
        "last": manager(tf.train.Checkpoint(**snapshot), folder / "last", max_to_keep=3),
        "best": manager(tf.train.Checkpoint(**best), folder / "best", max_to_keep=1),
    }


def list_anew(which, steps):
    """Writes the list that TensorFlow keeps of the checkpoints: it may be lost, cut short or of
    damaged ones. Removes what a kill or a full disk left unfinished."""
    folder = run_dir / "checkpoints" / which
    for unfinished in folder.glob("ckpt-*_temp"):
        shutil.rmtree(unfinished)
    (folder / "checkpoint").unlink(missing_ok=True)
    if steps:
        path = 'all_model_checkpoint_paths: "ckpt-{}"\nall_model_checkpoint_timestamps: 1.0\n'
        lines = [path.format(step) for step in sorted(steps)]
        lines.append(f'model_checkpoint_path: "ckpt-{steps[0]}"\n')
        replace_file(f"checkpoints/{which}/checkpoint", "".join(lines))


def read_config():
    path = Path(args.run_dir, "config.json")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refuse(f"{path} can't be read ({error}), so whose checkpoints are these? Restore it")


def check_run_dir(config):
    """Returns the last line of the log of the run in --run-dir. Refuses a folder that isn't a
    run's, and a flag that would change the numbers of the run."""
    folder = Path(args.run_dir)
    if folder.exists() and not folder.is_dir():
        refuse(f"--run-dir {folder} is a file; name a folder")
    files = {path.name for path in folder.glob("*")}
    if files & {"config.json", "train.py", "export"} and not files & {LOG, f"{LOG}.part"}:
        refuse(f"--run-dir {folder} is no run, but has files of the same names; name another")
    end = [{"split": None, "epoch": 0}, *read_log(folder)][-1]
    if not list_checkpoints("last"):
        return end
    before = read_config()
    keys = ["seed", "global_batch_size", "learning_rate", "schedule", "warmup_steps", "clip_norm"]
    keys += ["ema_momentum", "precision", "init_checkpoint", "train_examples"]
    keys += ["epochs"] * (SCHEDULE != "constant")  # at whose end the learning rate is 0
    for key in keys:
        if before.get(key) != config[key]:
            refuse(
                f"--run-dir {folder} holds a run with {key} {before.get(key)}, not "
                f"{config[key]}; keep to that, or name another folder"
            )
    if end["epoch"] > EPOCHS:
        refuse(f"--run-dir {folder} is at epoch {end['epoch']}, past --epochs {EPOCHS}")
    same_end = all(before.get(key) == config[key] for key in ("epochs", "patience"))
    if end["split"] == "test" and (same_end or end["epoch"] == EPOCHS):
        say(f"{folder} is finished: test {describe(end)}; more --epochs would go on")
        raise SystemExit(0)
    return end


def open_run_dir(config, step):
    """Writes config.json and the copy of this script, and drops the lines of the log that the run
    will write again from `step` on; at the end of an epoch, that of its validation too."""
    lines = read_log(run_dir)
    lines = [x for x in lines if x["step"] < step or (x["step"] == step and x["split"] == "train")]
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_log(lines)  # first: it marks a run
        replace_file("config.json", json.dumps(config, indent=2) + "\n")
        replace_file("train.py", Path(__file__).read_text(encoding="utf-8"))
        # {% if cookiecutter.task == "text_classification" %}
        vocabulary = create_preprocessor().tokenizer.get_vocabulary()
        replace_file("vocabulary.txt", "\n".join(vocabulary))
        # {% endif %}
    except OSError as error:
        refuse(f"--run-dir {run_dir} can't be written ({error.strerror}); name another folder")


# Weights out and in, and other ways to run -----------------------------------------------------


def export(examples):
    """Writes export/: a SavedModel that takes what stands first in an example, as create_datasets
    gives it, [batch, …]; and model.keras, which takes the features of `preprocess`."""
    # A copy, made without a strategy, loads anywhere; Keras is to count its layers from 1 again.
    keras.utils.clear_session()
    keras.config.set_dtype_policy(PRECISION)
    copy, _ = create_model_and_optimizer(tf.distribute.get_strategy())
    copy.set_weights(model.get_weights())
    inputs, *others = examples if isinstance(examples, tuple) else (examples,)
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), inputs)

    @tf.function(input_signature=[spec])
    def serve(inputs):
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        blank = tf.nest.map_structure(lambda x: tf.zeros([size, *x.shape[1:]], x.dtype), others)
        batch = (inputs, *blank) if isinstance(examples, tuple) else inputs
        batch = preprocess(batch, tf.zeros([size, 2], tf.int32), training=False)
        return copy(batch[0], training=False)

    part = run_dir / "export.part"
    shutil.rmtree(part, ignore_errors=True)
    archive = keras.export.ExportArchive()
    archive.track(copy)
    archive.add_endpoint("serve", serve)
    archive.write_out(part, verbose=False)
    copy.save(part / "model.keras")
    shutil.rmtree(run_dir / "export", ignore_errors=True)
    part.rename(run_dir / "export")


# {% if cookiecutter.task == "text_classification" %}
def check_preset():
    """Refuses a preset that can't be loaded."""
    try:
        create_preprocessor()
    except Exception as error:  # of any kind, from the network or a file
        if not is_preset():
            raise
        reason = str(error).partition("\n")[0]
        refuse(
            f"--init-checkpoint {INIT_CHECKPOINT} is no run, .keras file or SavedModel, and no "
            f"preset that KerasHub can load ({reason})"
        )


# {% endif %}
def load_weights(path):
    """Gives the model the weights of a run (its best), of one of its checkpoints, of a .keras file
    or of a SavedModel, where path and shape are the same. Says which."""
    # {% if cookiecutter.task == "text_classification" %}
    if is_preset():  # the hook has loaded it
        say(f"{path}: loaded all weights of the preset; left new: {model.layers[-1].name}")
        return
    # {% endif %}
    folder, outer, values = Path(path), f"{model.name}/", {}
    try:
        if (folder / "checkpoints").is_dir() or Path(f"{path}.index").exists():
            best, last = folder / "checkpoints" / "best", folder / "checkpoints" / "last"
            newest = tf.train.latest_checkpoint(best) or tf.train.latest_checkpoint(last)
            reader = tf.train.load_checkpoint(newest or path)
            for weight in model.weights:  # their names: see tf.train.Checkpoint's object graph
                name = weight.path.replace(".", "..").replace("/", ".S")
                name = f"model/{name}/.ATTRIBUTES/VARIABLE_VALUE"
                if reader.has_tensor(name):
                    values[weight.path] = reader.get_tensor(name)
        elif (folder / "saved_model.pb").exists():
            variables = tf.saved_model.load(path).variables
            values = {x.name.removesuffix(":0"): x.numpy() for x in variables}
        else:
            variables = keras.saving.load_model(path, compile=False).variables
            # Keras leaves out the name of a Sequential model when it loads one.
            values = {x.path.removeprefix(outer): x.numpy() for x in variables}
            values |= {outer + name: value for name, value in values.items()}
    except Exception as error:  # of a dozen kinds, by what is missing or damaged
        reason = str(error).partition("\n")[0]
        refuse(f"--init-checkpoint {path} is no run, .keras file or SavedModel ({reason})")
    fit = [x for x in model.weights if x.path in values and values[x.path].shape == x.shape]
    if not fit:
        refuse(f"--init-checkpoint {path} has no weight that fits, of {model.weights[0].path}, …")
    say(f"{path}: loaded {len(fit)} of {len(model.weights)} weights")
    for weight in model.weights:
        name, value = weight.path, values.get(weight.path)
        if value is None:
            say(f"  left new: {name}")
        elif value.shape != weight.shape:
            say(f"  skipped for its shape: {name} {value.shape}, here {weight.shape}")
        else:
            say(f"  loaded: {name}")
            with strategy.scope():
                weight.assign(value)


def evaluate_continuously(iterator, steps):
    """Evaluates the newest checkpoint of a run under way on the validation split, and each one that
    comes, but for those that come meanwhile; until the run is finished, or none has come for
    --timeout seconds."""
    folder = Path(args.run_dir)
    seen = max((line["step"] for line in read_log(run_dir)), default=0)
    since = time.monotonic()
    while True:
        finished = any(line["split"] == "test" for line in read_log(folder)[-1:])
        step = max(list_checkpoints("last"), default=0)
        path = str(folder / "checkpoints" / "last" / f"ckpt-{step}")
        if step > seen and not find_damage(path):
            try:
                restore({"model": model_values()}, path)
                if any(x.startswith("averages/") for x, _ in tf.train.list_variables(path)):
                    weights = {x.path: x.value for x in model.trainable_variables}
                    restore({"averages": weights}, path)
            except tf.errors.NotFoundError:  # removed meanwhile, since there are newer ones
                continue
            values = evaluate(distributed_validation_step, validation_metrics, iterator, steps)
            run_dir.mkdir(exist_ok=True)
            log("validation", step, math.ceil(step / STEPS_PER_EPOCH), values)
            say(f"validation {describe(values)}  of {path}")
            seen, since = step, time.monotonic()
        elif finished:
            return
        elif args.timeout and time.monotonic() - since > args.timeout:
            say(f"no new checkpoint in {folder} for {args.timeout:g} seconds")
            return
        else:
            time.sleep(0.5)


def smoke(argv):
    """Trains, validates, saves, resumes, tests, exports, reloads and predicts, a few steps of
    each, in a folder that it removes. Returns the exit code."""
    folder = Path(f"{args.run_dir}-smoke")
    if folder.exists():
        refuse(f"--smoke would work in {folder} and remove it, but it exists; remove it first")
    # The last of a flag counts: there are six steps.
    argv += ["--run-dir", str(folder), "--epochs", "2", "--checkpoint-every-steps", "2"]
    argv += ["--warmup-steps", str(min(2, args.warmup_steps or 0))]
    argv += ["--profile", "1,2"] if args.profile else []
    try:
        for breaks_off in (True, False):  # each in a process of its own, like a run that was killed
            process = multiprocessing.get_context("spawn").Process(
                target=train_a_little, args=(argv, breaks_off)
            )
            process.start()
            process.join()
            if process.exitcode:
                return process.exitcode
        if WORKER == 0:
            batch = next(iter(create_datasets()[2].batch(2)))
            inputs = batch[0] if isinstance(batch, tuple) else batch
            features = preprocess(batch, tf.zeros([2, 2], tf.int32), training=False)[0]
            expected = keras.saving.load_model(folder / "export" / "model.keras")(features)
            served = tf.saved_model.load(str(folder / "export"))  # must outlive its `serve`
            np.testing.assert_allclose(served.serve(inputs), expected, rtol=1e-4, atol=1e-5)
    finally:
        for process in multiprocessing.active_children():  # when a signal came
            process.kill()
            process.join()
        if WORKER == 0:
            shutil.rmtree(folder, ignore_errors=True)
    say("smoke: trained, validated, saved, resumed, tested, exported, reloaded, predicted")
    return 0


def train_a_little(argv, breaks_off):
    """Runs `main` on three batches of each split; if told so, up to the first validation."""
    global create_datasets, validate
    whole = create_datasets
    create_datasets = lambda: [split.take(3 * GLOBAL_BATCH_SIZE) for split in whole()]  # noqa: E731
    if breaks_off:
        validate = lambda *_: leave(0)  # noqa: E731
    run(argv)


# ----------------------------------------------------------------------------------------------
# 7. main
# ----------------------------------------------------------------------------------------------


def whole_number(text, minimum=1):
    if not text.isdecimal() or not minimum <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} up")
    return int(text)


def positive_number(text, limit=math.inf):
    with contextlib.suppress(ValueError):
        if 0 < float(text) < limit:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and {limit}")


def step_range(text):
    steps = re.fullmatch(r"(\d+),(\d+)", text)
    if not steps or not 1 <= int(steps[1]) <= int(steps[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST,LAST: two steps from 1 up")
    return int(steps[1]), int(steps[2])


def parse_arguments(argv):
    modes = ["train", "evaluate", "continuous_evaluate"]
    precisions = ["float32", "mixed_bfloat16", "mixed_float16"]
    strategies = ["auto", "one_device", "mirrored", "multi_worker", "tpu"]
    natural_number = functools.partial(whole_number, minimum=0)
    fraction = functools.partial(positive_number, limit=1)
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.error = refuse  # argparse's own prints the usage first
    add = parser.add_argument
    add("--mode", choices=modes, default="train", help="[train]")
    add("--run-dir", default="run", help="what the run writes, and resumes from [%(default)s]")
    add("--strategy", choices=strategies, default="auto", help="[%(default)s]")
    add("--replicas", type=whole_number, help="share out the CPU among as many, to rehearse")
    add("--epochs", type=whole_number, default=EPOCHS, help="[%(default)s]")
    add("--global-batch-size", type=whole_number, default=GLOBAL_BATCH_SIZE, help="[%(default)s]")
    add("--steps-per-loop", type=whole_number, default=100, help="to a line of the log [100]")
    add("--learning-rate", type=positive_number, default=LEARNING_RATE, help="[%(default)s]")
    # {% if cookiecutter.task == "text_classification" %}
    add("--warmup-steps", type=natural_number, help="steps that it rises [a tenth of all]")
    # {% else %}
    add("--warmup-steps", type=natural_number, default=WARMUP_STEPS, help="steps that it rises [0]")
    # {% endif %}
    add("--schedule", choices=["constant", "cosine", "linear"], default=SCHEDULE, help="after that")
    add("--seed", type=natural_number, default=SEED, help="[%(default)s]")
    add("--precision", choices=precisions, default=PRECISION, help="of the layers [%(default)s]")
    add("--jit-compile", action=argparse.BooleanOptionalAction, default=False, help="use XLA")
    add("--accumulation-steps", type=whole_number, default=1, help="parts of a step's batch [1]")
    add("--clip-norm", type=positive_number, help="of the gradients of the whole batch, at most")
    add("--ema-momentum", type=fraction, help="evaluate and export averages of the weights")
    add("--patience", type=whole_number, help="epochs without a lower validation loss, to stop")
    add("--checkpoint-every-steps", type=whole_number, default=1000, help="and each epoch [1000]")
    add(
        "--recover-from-nan",
        type=natural_number,
        default=0,
        metavar="N",
        help="go back to the last checkpoint and on with other data, N times at most [0]",
    )
    add("--init-checkpoint", metavar="PATH", help="of the first weights: see README.md")
    add("--timeout", type=positive_number, help="seconds, of --mode continuous_evaluate")
    add("--profile", type=step_range, metavar="FIRST,LAST", help="steps, for TensorBoard")
    add("--deterministic", action="store_true", help="the same bits on GPUs too, but slower")
    add("--smoke", action="store_true", help="a few steps of everything; keeps nothing")
    return parser.parse_args(argv)


def main(argv=None):
    """Returns the exit code: 0. Wrong input (2) and a failed run (1) end by SystemExit."""
    global args, strategy, model, optimizer, loss_object, compute_gradients
    global train_metrics, validation_metrics, test_metrics, averages, gradient_norm
    global state, snapshot, checkpoints, stop, in_training, run_dir, scratch
    global GLOBAL_BATCH_SIZE, ACCUMULATION_STEPS, CLIP_NORM, PRECISION, SEED, INIT_CHECKPOINT
    global LEARNING_RATE, SCHEDULE, WARMUP_STEPS, EPOCHS, STEPS_PER_EPOCH, WORKER, WORKERS

    # 1. Read the flags, and find out where to run.
    argv = sys.argv[1:] if argv is None else argv
    args = parse_arguments(argv)
    GLOBAL_BATCH_SIZE, ACCUMULATION_STEPS = args.global_batch_size, args.accumulation_steps
    LEARNING_RATE, SCHEDULE, WARMUP_STEPS = args.learning_rate, args.schedule, args.warmup_steps
    CLIP_NORM, PRECISION, EPOCHS, SEED = args.clip_norm, args.precision, args.epochs, args.seed
    INIT_CHECKPOINT = args.init_checkpoint
    WORKER, WORKERS = read_tf_config()
    if args.mode == "continuous_evaluate" and WORKERS > 1:
        refuse("--mode continuous_evaluate is for one worker; unset TF_CONFIG for it")
    if args.smoke:
        return smoke([argument for argument in argv if argument != "--smoke"])
    # AutoGraph's files go there too: an end by a signal leaves it no time to remove them.
    tempfile.tempdir = scratch = tempfile.mkdtemp(prefix="train-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    listen_for_signals()
    keras.utils.set_random_seed(SEED)
    keras.config.set_dtype_policy(PRECISION)
    if args.deterministic:
        tf.config.experimental.enable_op_determinism()
    strategy, strategy_name = create_strategy()
    catch_signals()  # again: a strategy of several workers takes SIGTERM for itself
    replicas = strategy.num_replicas_in_sync
    check_batch(replicas)

    # 2. Load the data.
    splits = zip(create_datasets(), ("train", "validation", "test"), strict=True)
    train_set, validation_set, test_set = [load(dataset, split) for dataset, split in splits]
    examples = train_set[1]
    if GLOBAL_BATCH_SIZE > examples:
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} is above the {examples} training examples")
    STEPS_PER_EPOCH = examples // GLOBAL_BATCH_SIZE
    all_steps = EPOCHS * STEPS_PER_EPOCH
    # {% if cookiecutter.task == "text_classification" %}
    WARMUP_STEPS = all_steps // 10 if args.warmup_steps is None else args.warmup_steps
    # {% endif %}
    for flag, last in (("warmup-steps", WARMUP_STEPS), ("profile", max(args.profile or [0]))):
        if last > all_steps:
            refuse(f"--{flag}: step {last} is past the last one of {EPOCHS} epochs, {all_steps}")

    # 3. See what --run-dir holds.
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    has_git = shutil.which("git")
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() if has_git else ""
    config = {
        **vars(args),
        "strategy": strategy_name,
        "replicas": replicas,
        "workers": WORKERS,
        "train_examples": examples,
        "versions": {"python": platform.python_version()}
        | {package.__name__: package.__version__ for package in (tf, keras, np)},
        "git_commit": commit or None,
    }
    if args.mode == "train":
        last_line = check_run_dir(config)
        checkpoint_path = find_start()
    elif args.mode == "evaluate":
        checkpoint_path = find_checkpoint("best")
        if not checkpoint_path:
            refuse(f"--run-dir {args.run_dir} has no checkpoint to evaluate; train it first")
    # {% if cookiecutter.task == "text_classification" %}
    if args.mode != "train" and Path(args.run_dir, "config.json").exists():
        INIT_CHECKPOINT = INIT_CHECKPOINT or read_config()["init_checkpoint"]
    check_preset()
    # {% endif %}

    # 4. Create the model and what belongs to it; restore it.
    loss_object = create_loss_objects(strategy)
    train_metrics, validation_metrics, test_metrics = create_metrics(strategy)
    model, optimizer = create_model_and_optimizer(strategy)
    if args.mode == "train" and INIT_CHECKPOINT and not checkpoint_path:
        load_weights(INIT_CHECKPOINT)
    with strategy.scope():  # in a traced step it is too late to create variables (keras#23085)
        if PRECISION == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
        if CLIP_NORM:
            gradient_norm = tf.Variable(  # which each replica assigns for itself
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        if args.ema_momentum:
            averages = {x.path: tf.Variable(x.value) for x in model.trainable_variables}
    if args.jit_compile:
        compute_gradients = tf.function(compute_gradients, jit_compile=True)
    with tf.device("CPU:0"):  # a loop in the graph asks it at each step
        stop = tf.Variable(False)
    validation_iterator, validation_steps = distribute(*validation_set, training=False)
    test_iterator, test_steps = distribute(*test_set, training=False)
    if args.mode == "evaluate":
        restore({"model": model_values()}, checkpoint_path)
        say(f"test {describe(test(test_iterator, test_steps))}  of {checkpoint_path}")
        return 0
    if args.mode == "continuous_evaluate":
        run_dir = Path(args.run_dir, "evaluator")
        evaluate_continuously(validation_iterator, validation_steps)
        return 0
    state = create_state()
    snapshot = create_snapshot()
    if checkpoint_path:
        restore_run(checkpoint_path)
    else:
        seed_replicas()
    step = int(state["step"].numpy())
    first_step = step + int(state["skipped"].numpy())
    train_iterator, _ = distribute(*train_set, training=True, first_step=first_step)
    run_dir = Path(args.run_dir if WORKER == 0 else scratch)
    open_run_dir(config, step)
    checkpoints = create_managers()
    say(
        f"{strategy_name} on {replicas} × {device_type()}, TensorFlow {tf.__version__}\n"
        f"global batch of {GLOBAL_BATCH_SIZE} = {replicas} replica{'s' * (replicas > 1)} × "
        f"{GLOBAL_BATCH_SIZE // replicas} examples; {STEPS_PER_EPOCH} steps an epoch, which drops "
        f"{examples % GLOBAL_BATCH_SIZE} of {examples} examples, others each time"
    )
    if checkpoint_path:
        say(f"resumed at step {step}, from {checkpoint_path}")
    elif last_line["split"]:
        say("started anew, since nothing was saved yet")

    # 5. Train and validate, epoch by epoch. A checkpoint of an epoch's end is of before its
    # validation, whether the run was stopped in it or not: a resumed run validates again.
    in_training = True
    if args.recover_from_nan and not checkpoint_path:
        save("last")
    for epoch in range(max(1, math.ceil(step / STEPS_PER_EPOCH)), EPOCHS + 1):
        trained = train(train_iterator, epoch)
        step = epoch * STEPS_PER_EPOCH
        validated = validate(validation_iterator, validation_steps)
        if not validated:
            end_on_signal()
        if not math.isfinite(validated["loss"]):
            fail(
                f"the validation loss is not finite after step {step}, which was not saved; "
                f"a --learning-rate below {LEARNING_RATE:g} is the usual cure"
            )
        is_best = validated["loss"] < float(state["best_loss"].numpy())
        save(*(["last", "best"] if is_best else ["last"]))
        if is_best:
            state["best_loss"].assign(validated["loss"])
            state["best_epoch"].assign(epoch)
        log("validation", step, epoch, validated)
        say_epoch(epoch, trained, validated, is_best)
        best_epoch = int(state["best_epoch"].numpy())
        if args.patience and epoch - best_epoch >= args.patience:
            say(f"stopped: no lower validation loss than epoch {best_epoch}'s since")
            break
    profile(math.inf)  # has ended, unless --patience has ended the run in it
    wait_for_save()
    in_training = False
    if stop.numpy():
        end_on_signal()

    # 6. Test the best checkpoint.
    # A worker reads its own copy if it has one: the chief may still be writing.
    best = checkpoints["best"].latest_checkpoint or find_checkpoint("best")
    restore({"model": model_values()}, best)
    tested = test(test_iterator, test_steps)

    # 7. Export it. The test line comes last: a log that ends in one is of a finished run.
    if WORKER == 0:
        export(test_set[0])
    log("test", step, epoch, tested)
    say(f"test {describe(tested)}  of {best}")
    say(f"written to {run_dir}: checkpoints, export, metrics.jsonl, tensorboard")
    return 0


def run(argv=None):
    """Runs `main`, and ends the process with its exit code."""
    try:
        try:
            code = main(argv)
        except Exception as error:
            explain(error)
    except SystemExit as end:
        code = end.code
    if code:
        leave(code)
    sys.exit(0)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # of × and █, on a terminal without them
    run()
