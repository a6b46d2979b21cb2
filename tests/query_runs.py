"""What runs have written: checkpoints and exports, read with TensorFlow. See tf_queries.py."""

import hashlib
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tf_queries import begin, create_model, load_script

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # in each checkpoint; it has no values
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
ALL = 10**6  # examples, more than any split has

# --------------------------------------------------------------------------------------------------
# Checkpoints
# --------------------------------------------------------------------------------------------------


def hash_checkpoints(*run_dirs):
    """Return the hash of every tensor in the newest checkpoint of each kind of each run."""
    folders = [Path(run_dir, "checkpoints") for run_dir in run_dirs]
    return [hash_kinds(folder) for folder in folders]


def hash_kinds(folder):
    return {kind: hash_newest(folder / kind) for kind in ("last", "best")}


def hash_newest(folder):
    """Return the hash of every tensor in a folder's newest checkpoint, by name."""
    path = tf.train.latest_checkpoint(folder)
    reader = tf.train.load_checkpoint(path)
    hashes = {"file": Path(path).name}
    for name in reader.get_variable_to_shape_map():
        if name != GRAPH:
            hashes[name] = hash_tensor(reader.get_tensor(name))
    return hashes


def hash_tensor(value):
    content = value.tobytes()
    if value.dtype == object:
        # An array of texts has their addresses, which differ from process to process.
        content = repr(value.tolist()).encode()
    digest = hashlib.sha256(content).hexdigest()
    return f"{value.dtype} {value.shape} {digest}"


def read_checkpoint(path):
    """Return a checkpoint's content: a list of tensors, by position, for each group.

    The groups are "model" and "optimizer", "names", the paths of the model's variables, and one
    number for each of the others.
    """
    reader = tf.train.load_checkpoint(path)
    groups = {}
    for name in reader.get_variable_to_shape_map():
        if name != GRAPH:
            group, *position = name.removesuffix(SUFFIX).split("/")
            index = int(position[0]) if position else 0
            tensor = as_list(reader.get_tensor(name))
            groups.setdefault(group, {})[index] = tensor
    return {group: sort_by_position(tensors) for group, tensors in groups.items()}


def sort_by_position(tensors):
    return [tensors[position] for position in sorted(tensors)]


def as_list(value):
    """Return a tensor as a list. Texts are decoded."""
    value = np.asarray(value)
    if value.dtype == object:
        return [text.decode() for text in value.ravel()]
    return value.tolist()


def read_contents(run_dir):
    """Return the newest checkpoint of each kind, and the variables of each exported model."""
    run_dir = Path(run_dir)
    contents = {}
    for kind in ("last", "best"):
        path = tf.train.latest_checkpoint(run_dir / "checkpoints" / kind)
        contents[kind] = read_checkpoint(path)
    models = load_keras_exports(run_dir)
    contents["exports"] = [as_lists(list(model.variables)) for model in models]
    return contents


# --------------------------------------------------------------------------------------------------
# Exports
# --------------------------------------------------------------------------------------------------


def load_keras_exports(run_dir):
    """Return the models of a run's export, from model.keras on."""
    paths = Path(run_dir, "export").glob("model*.keras")
    paths = sorted(paths, key=lambda path: len(path.name))
    return [keras.saving.load_model(path, compile=False) for path in paths]


def load_saved_model(run_dir):
    """Return the SavedModel of a run. Hold it in a variable: it must outlive its function."""
    folder = Path(run_dir, "export")
    return tf.saved_model.load(str(folder))


def predict_first_examples(run_dir):
    """Return what the SavedModel and model.keras predict for the first test examples."""
    script = load_script(Path(run_dir, "train.py"))
    _, _, test = script.create_datasets()
    batch = next(iter(test.batch(5)))
    seeds = tf.zeros([5, 2], tf.int32)
    features, *_ = script.preprocess(batch, seeds, training=False)
    inputs = batch[0] if isinstance(batch, tuple) else batch
    saved_model = load_saved_model(run_dir)
    keras_model, *_ = load_keras_exports(run_dir)
    predictions = saved_model.serve(inputs)
    keras_predictions = keras_model(features)
    return as_lists(predictions), as_lists(keras_predictions)


def get_served_shape(run_dir):
    """Return the shape that the SavedModel of a run takes."""
    saved_model = load_saved_model(run_dir)
    signature = saved_model.signatures["serve"]
    _, inputs = signature.structured_input_signature
    return inputs["inputs"].shape.as_list()


def predict_images(run_dir, shape):
    """Return what the SavedModel and model.keras of a run predict for images of a shape."""
    size = np.prod(shape)
    images = np.arange(size, dtype="uint8") % 17
    images = images.reshape(shape)
    saved_model = load_saved_model(run_dir)
    keras_model, *_ = load_keras_exports(run_dir)
    served = saved_model.serve(images)
    predicted = keras_model(images)
    return as_lists(served), as_lists(predicted)


def serve_inputs(run_dir, inputs):
    """Return what the SavedModel of a run predicts for some lists of integers."""
    saved_model = load_saved_model(run_dir)
    return as_lists([saved_model.serve(tf.constant(each)) for each in inputs])


def serve_names(run_dir):
    """Return the texts that the SavedModel of a run predicts for two black images."""
    saved_model = load_saved_model(run_dir)
    names = saved_model.serve(tf.zeros([2, 8, 8, 1]))
    return [name.decode() for name in names.numpy()]


def as_lists(structure):
    """Return a structure of tensors as one of lists."""

    def convert(tensor):
        return tensor.numpy().tolist()

    return tf.nest.map_structure(convert, structure)


def evaluate_exports(*run_dirs):
    """Return the loss and accuracy of each run's exports, by NumPy, per run, export and split."""
    return [evaluate_exports_of(Path(run_dir)) for run_dir in run_dirs]


def evaluate_exports_of(run_dir):
    script = load_script(run_dir / "train.py")  # the copy, as it was when the run began
    saved_model = tf.saved_model.load(str(run_dir / "export"))
    [model, *_] = load_keras_exports(run_dir)
    exports = {
        "model.keras": lambda inputs, features: model(features),
        "SavedModel": lambda inputs, features: saved_model.serve(inputs),
    }
    _, validation, test = script.create_datasets()
    batches = {
        "validation": next(iter(validation.batch(ALL))),
        "test": next(iter(test.batch(ALL))),
    }
    results = {}
    for name, predict in exports.items():
        results[name] = {}
        for split, batch in batches.items():
            results[name][split] = evaluate(script, predict, batch)
    return results


def evaluate(script, predict, batch):
    """Return the mean loss and accuracy of a prediction function on a batch, weighted."""
    size = len(batch[0])
    seeds = tf.zeros([size, 2], tf.int32)
    features, labels, *weights = script.preprocess(batch, seeds, training=False)
    predictions = predict(batch[0], features)
    logits = np.asarray(predictions, "float64")
    losses, is_right = compute_losses(logits, np.asarray(labels))
    mean_weights = np.ones(size)
    if weights:
        mean_weights = np.asarray(weights[0], "float64")
    return {
        "examples": size,
        "loss": float(np.average(losses, weights=mean_weights)),
        "accuracy": float(np.average(is_right, weights=mean_weights)),
    }


def compute_losses(logits, labels):
    """Return the cross-entropy of each example, and whether it is classified correctly."""
    logits = logits - logits.max(axis=1, keepdims=True)
    sums = np.exp(logits).sum(axis=1)
    normalizers = np.log(sums)
    of_labels = logits[np.arange(len(labels)), labels]
    predictions = logits.argmax(axis=1)
    return normalizers - of_labels, predictions == labels


def evaluate_training_split(run_dir):
    """Return the weighted loss and accuracy of an exported model on the training split."""
    script = load_script(Path(run_dir, "train.py"))
    [model, *_] = load_keras_exports(run_dir)
    train, *_ = script.create_datasets()
    batch = next(iter(train.batch(ALL)))
    values = evaluate(script, lambda inputs, features: model(features), batch)
    return [values["loss"], values["accuracy"]]


def list_export_devices(path, folder):
    """Export a model, and return the devices of all variables that the export creates.

    TensorFlow would place the variables on another device than the first.
    """
    script = begin(path, "--replicas", "2")
    train, *_ = script.create_datasets()
    examples, _ = script.load_into_memory(train.take(10), "train")
    create_model(script)
    devices = []
    variable_type = type(tf.Variable(0))
    create = variable_type.__init__

    def create_and_record(self, *arguments, **options):
        create(self, *arguments, **options)
        if self.device:  # Variables without a device belong to a graph and hold no numbers.
            devices.append(self.device)

    variable_type.__init__ = create_and_record
    with tf.device("CPU:1"):
        script.export(Path(folder, "export"), examples)
    return devices


# --------------------------------------------------------------------------------------------------
# Files that execute code when they are loaded
# --------------------------------------------------------------------------------------------------


def write_saved_model_trap(folder, witness):
    """Save a SavedModel that writes a file when it is loaded. Return whether it does."""

    class Trap(tf.saved_model.experimental.TrackableResource):
        def _create_resource(self):
            return tf.raw_ops.VarHandleOp(
                dtype=tf.float32,
                shape=[],
                shared_name="trap",
            )

        def _initialize(self):
            tf.io.write_file(witness, "executed")

        def _destroy_resource(self):
            pass

    module = tf.Module()
    module.trap = Trap()
    module.weight = tf.Variable(1.0)
    module.trap.resource_handle  # noqa: B018 (creates it)
    tf.saved_model.save(module, folder)
    return is_executed(witness, lambda: tf.saved_model.load(folder))


def write_keras_trap(path, witness):
    """Save a .keras file whose code writes a file if it is trusted. Return whether it does."""
    # Keras saves the code of a lambda, but only the name of another function.
    write_witness = lambda inputs: open(witness, "w").close() or inputs  # noqa: E731
    trap = keras.layers.Lambda(write_witness)
    model = keras.Sequential([keras.Input([1]), trap])
    model.save(path)
    return is_executed(
        witness,
        lambda: keras.saving.load_model(
            path,
            safe_mode=False,
        ),
    )


def is_executed(witness, load):
    """Return whether loading a file writes another, the witness."""
    Path(witness).unlink(missing_ok=True)
    load()
    exists = os.path.exists(witness)
    Path(witness).unlink(missing_ok=True)
    return exists
