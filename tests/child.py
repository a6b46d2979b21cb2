"""Answers questions about train.py and its runs that take TensorFlow: python child.py QUESTION ….

The tests start it as a process of its own. The last line that it prints is the answer, as JSON.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import tensorflow as tf


def load(path):
    """Return a script as a module, without a run of it. It shares nothing with earlier ones."""
    spec = importlib.util.spec_from_file_location("train", path)
    module = sys.modules["train"] = importlib.util.module_from_spec(spec)  # AutoGraph looks there.
    spec.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------------------------------
# What a run has written
# --------------------------------------------------------------------------------------------------


def tensors(*run_dirs):
    """Return the hash of every tensor of the newest checkpoint of each kind of each run."""
    return [
        {kind: hash_tensors(Path(run_dir, "checkpoints", kind)) for kind in ("last", "best")}
        for run_dir in run_dirs
    ]


def hash_tensors(folder):
    path = tf.train.latest_checkpoint(folder)
    reader = tf.train.load_checkpoint(path)
    hashes = {"file": Path(path).name}
    for name in reader.get_variable_to_shape_map():
        # The graph of the objects has no values.
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH":
            value = reader.get_tensor(name)
            # Of texts, an array has the addresses.
            content = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
            digest = hashlib.sha256(content).hexdigest()
            hashes[name] = f"{value.dtype} {value.shape} {digest}"
    return hashes


def evaluations(*run_dirs):
    """Return loss and accuracy of each run's two exports, by NumPy: per run, export and split."""
    return [evaluate_exports(Path(run_dir)) for run_dir in run_dirs]


def evaluate_exports(run_dir):
    script = load(run_dir / "train.py")  # The copy: as it was when the run began.
    saved_model = tf.saved_model.load(str(run_dir / "export"))  # It has to outlive its function.
    model = tf.keras.models.load_model(run_dir / "export" / "model.keras")
    exports = {
        "model.keras": lambda inputs, features: model(features),
        "SavedModel": lambda inputs, features: saved_model.serve(inputs),
    }
    splits = zip(("validation", "test"), script.create_datasets()[1:], strict=True)
    batches = {split: next(iter(dataset.batch(10**6))) for split, dataset in splits}
    return {
        name: {split: evaluate(script, predict, batch) for split, batch in batches.items()}
        for name, predict in exports.items()
    }


def evaluate(script, predict, batch):
    seeds = tf.zeros([len(batch[0]), 2], tf.int32)
    features, labels, *weights = script.preprocess(batch, seeds, training=False)
    logits = np.asarray(predict(batch[0], features), "float64")
    logits -= logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
    right = logits.argmax(axis=1) == labels
    weights = np.asarray(weights[0], "float64") if weights else np.ones(len(labels))
    return {
        "examples": len(labels),
        "loss": float(np.average(losses, weights=weights)),
        "accuracy": float(np.average(right, weights=weights)),
    }


def values(path):
    """Return the tensors of a checkpoint by kind: "model", "optimizer" and the like are lists of
    them by position, the others are numbers, and "names" are the paths of the model's."""
    reader, values, lists = tf.train.load_checkpoint(path), {}, {}
    for key in reader.get_variable_to_shape_map().keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:
        kind, *position = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        value = reader.get_tensor(key)
        if position:
            lists.setdefault(kind, {})[int(position[0])] = np.asarray(value, "float64").tolist()
        else:
            is_text = reader.get_variable_to_dtype_map()[key] == tf.string
            values[kind] = [x.decode() for x in value] if is_text else float(value)
    return values | {kind: [x[i] for i in range(len(x))] for kind, x in lists.items()}


# --------------------------------------------------------------------------------------------------
# Tasks
# --------------------------------------------------------------------------------------------------


def baseline(path, task):
    """Return what a plain model reaches on the test split: accuracy, or mean absolute error."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    splits = [next(iter(split.batch(10**6))) for split in load(path).create_datasets()]
    (inputs, labels), _, (test_inputs, test_labels) = [
        [np.asarray(x) for x in split] for split in splits
    ]
    if task == "tabular_regression":
        model = make_pipeline(StandardScaler(), Ridge()).fit(inputs, labels.ravel())
        return float(np.mean(np.abs(model.predict(test_inputs) - test_labels.ravel())))
    if task == "image_classification":
        model = SVC().fit(inputs.reshape(len(inputs), -1), labels)
        return model.score(test_inputs.reshape(len(test_inputs), -1), test_labels)
    words = CountVectorizer(token_pattern=r"\w+")
    model = make_pipeline(words, LogisticRegression(C=10, max_iter=1000)).fit(inputs, labels)
    return model.score(test_inputs, test_labels)


def make_preset(folder):
    """Save a tiny preset. Return the sum of the sizes of the numbers of each of its weights."""
    import keras_hub

    words = ["latin", "letter", "small", "capital", "sign", "with", "and"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters]
    tokenizer = keras_hub.models.BertTokenizer(pieces + [f"##{x}" for x in letters], lowercase=True)
    backbone = keras_hub.models.BertBackbone(
        tokenizer.vocabulary_size(), 1, 2, 8, 16, max_sequence_length=12
    )
    backbone.save_to_preset(folder)
    tokenizer.save_to_preset(folder)
    return {x.path: float(np.sum(np.abs(x.numpy()))) for x in backbone.weights}


def serve_pair(export):
    """Return the shape of what an export predicts for two pairs of texts."""
    import tensorflow_text  # noqa: F401

    model = tf.saved_model.load(export)
    return list(model.serve((tf.constant(["a", "b"]), tf.constant(["c", "d"]))).shape)


def decayed(path):
    """Return the weights that an update without gradients shrinks, and those that it leaves."""
    script = load(path)
    script.args = script.parse_arguments([])
    script.LEARNING_RATE = 0.1
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    model, optimizer = script.create_model_and_optimizer(strategy)
    with strategy.scope():
        optimizer.build(model.trainable_variables)
        for weight in model.trainable_variables:
            weight.assign(tf.ones_like(weight.value))
    zeros = [tf.zeros_like(weight.value) for weight in model.trainable_variables]
    strategy.run(lambda: optimizer.apply(zeros, model.trainable_variables))
    shrunk = [x.path for x in model.trainable_variables if np.max(x.numpy()) < 1]
    return shrunk, [x.path for x in model.trainable_variables if np.min(x.numpy()) == 1]


# --------------------------------------------------------------------------------------------------
# Batches
# --------------------------------------------------------------------------------------------------

EXAMPLES = 203
BATCH_SIZE = 20


def batches(path, replicas):
    """Return the examples' numbers and seeds, batch by batch, from several first steps and seeds.

    A batch is that of all replicas, in their order.
    """
    script = load(path)
    script.preprocess = lambda batch, seeds, training: (batch, seeds)
    flags = ["--replicas", replicas, "--global-batch-size", str(BATCH_SIZE)]
    script.args = script.parse_arguments(flags)
    script.GLOBAL_BATCH_SIZE = BATCH_SIZE
    script.STEPS_PER_EPOCH = EXAMPLES // BATCH_SIZE
    script.strategy, _, script.DEVICE = script.create_strategy()
    assert script.strategy.num_replicas_in_sync == int(replicas)
    examples = script.load(tf.data.Dataset.range(EXAMPLES), "train")

    def read(seed, first_step, steps):
        script.SEED = seed
        iterator, _ = script.distribute(*examples, training=True, first_step=first_step)
        return [read_batch(script, iterator) for _ in range(steps)]

    script.SEED = 0
    iterator, steps = script.distribute(*examples, training=False)
    return {
        "steps an evaluation": steps,
        "seed 0": read(seed=0, first_step=0, steps=32),
        "seed 0 from 7": read(seed=0, first_step=7, steps=8),
        "seed 0 from 23": read(seed=0, first_step=23, steps=9),
        "seed 1": read(seed=1, first_step=0, steps=32),
        "evaluation": [read_batch(script, iterator, seeds=False) for _ in range(2 * steps)],
        "seeds of evaluation": [read_batch(script, iterator)[1] for _ in range(2 * steps)],
    }


def read_batch(script, iterator, seeds=True):
    """Return the numbers of a batch's examples, and their seeds or else their weights."""
    parts = script.strategy.experimental_local_results(script.next_batch(iterator))
    parts = [(part[0], part[1 if seeds else 2]) for part in parts]
    numbers, others = (np.concatenate(values) for values in zip(*parts, strict=True))
    return [numbers.tolist(), others.tolist()]


# --------------------------------------------------------------------------------------------------
# Commands
# --------------------------------------------------------------------------------------------------


def commands(text):
    """Run commands, given as JSON. Return exit code, stdout and stderr of each.

    A command has a script, flags, variables and the folder to run in.
    """
    return [run_command(**command) for command in json.loads(text)]


def run_command(script, flags, variables, folder):
    for name in ("TF_CONFIG", "TPU_NAME"):
        os.environ.pop(name, None)
    os.environ.update(variables)
    os.chdir(folder)
    with redirect(1) as output, redirect(2) as errors:
        try:
            code = load(script).main(flags)
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
    return {"code": code, "stdout": output[0], "stderr": errors[0]}


@contextlib.contextmanager
def redirect(descriptor):
    """Give a list that has all that was written, of C++ too, once the block is left."""
    text, stream = [], {1: sys.stdout, 2: sys.stderr}[descriptor]
    stream.flush()
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield text
        finally:
            stream.flush()
            os.dup2(kept, descriptor)
            os.close(kept)
            file.seek(0)
            text.append(file.read())


if __name__ == "__main__":
    questions = {"tensors": tensors, "evaluations": evaluations, "values": values}
    questions |= {"batches": batches, "commands": commands, "baseline": baseline}
    questions |= {"make_preset": make_preset, "serve_pair": serve_pair, "decayed": decayed}
    question, *arguments = sys.argv[1:]
    print(json.dumps(questions[question](*arguments)))
