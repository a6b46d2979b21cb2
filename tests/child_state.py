"""Answers questions about the state that train.py keeps: python child_state.py QUESTION ….

As child.py: the tests start it as a process of its own, and the last line is the answer, as JSON.
"""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from child import load

# --------------------------------------------------------------------------------------------------
# What a run has written
# --------------------------------------------------------------------------------------------------


def contents(run_dir):
    """Return the tensors of the newest checkpoint of each kind, by kind, group and position, and
    the variables of each model*.keras of the export."""
    run_dir = Path(run_dir)
    kept = {kind: read_checkpoint(run_dir / "checkpoints" / kind) for kind in ("last", "best")}
    return {**kept, "exports": [as_lists(model.variables) for model in read_exports(run_dir)]}


def read_checkpoint(folder):
    reader, groups = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder)), {}
    for name in reader.get_variable_to_shape_map():
        group, *position = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        if group == "_CHECKPOINTABLE_OBJECT_GRAPH":  # has no values
            continue
        value = reader.get_tensor(name)
        if group == "names":
            value = np.array([name.decode() for name in value])
        groups.setdefault(group, {})[int(position[0]) if position else 0] = value
    return {group: [x[i].tolist() for i in sorted(x)] for group, x in groups.items()}


def read_exports(run_dir):
    paths = sorted((run_dir / "export").glob("model*.keras"), key=lambda path: len(path.name))
    return [keras.saving.load_model(path, compile=False) for path in paths]


def as_lists(variables):
    return [x.numpy().tolist() for x in variables]


def served(run_dir):
    """Return what the two exports predict for the first examples of the test split."""
    run_dir = Path(run_dir)
    script = load(run_dir / "train.py")
    batch = next(iter(script.create_datasets()[2].batch(5)))
    features = script.preprocess(batch, tf.zeros([5, 2], tf.int32), training=False)[0]
    saved_model = tf.saved_model.load(str(run_dir / "export"))  # It has to outlive its function.
    inputs = batch[0] if isinstance(batch, tuple) else batch
    answers = saved_model.serve(inputs), read_exports(run_dir)[0](features)
    return [tf.nest.map_structure(lambda x: x.numpy().tolist(), answer) for answer in answers]


def weighted_loss(run_dir):
    """Return what NumPy makes of the loss and the accuracy of a run's last weights on all training
    examples: means weighted by the weights of `preprocess`."""
    run_dir = Path(run_dir)
    script = load(run_dir / "train.py")
    batch = next(iter(script.create_datasets()[0].batch(10**6)))
    seeds = tf.zeros([len(batch[0]), 2], tf.int32)
    features, labels, weights = map(np.asarray, script.preprocess(batch, seeds, training=False))
    logits = np.asarray(read_exports(run_dir)[0](features), "float64")
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
    right = logits.argmax(axis=1) == labels
    weights = weights.astype("float64")
    return [float((weights * x).sum() / weights.sum()) for x in (losses, right)]


# --------------------------------------------------------------------------------------------------
# What train.py does
# --------------------------------------------------------------------------------------------------


def seeds(path, replicas):
    """Return the random state of each replica, for each layer of each model that has one."""
    script = load(path)
    script.args = script.parse_arguments(["--replicas", replicas])
    script.strategy, _, script.DEVICE = script.create_strategy()
    script.model, _ = script.create_model_and_optimizer(script.strategy)
    script.seed_replicas()
    variables = [x for each in tf.nest.flatten(script.model) for x in each.variables]
    return [
        [x.numpy().tolist() for x in script.strategy.experimental_local_results(variable.value)]
        for variable in variables
        if variable.path.endswith("seed_generator_state")
    ]


def cores(path):
    """Return the threads of an input pipeline where a process may use one core, and all."""
    script = load(path)
    script.args = script.parse_arguments([])
    script.strategy, _, script.DEVICE = script.create_strategy()
    examples = script.load(tf.data.Dataset.range(10), "train")
    script.preprocess = lambda batch, seeds, training: (batch, seeds)
    script.iter = lambda dataset: dataset

    def count_threads():
        dataset, _ = script.distribute(*examples, training=False)
        return dataset.options().threading.private_threadpool_size

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    of_one_core = count_threads()
    os.sched_setaffinity(0, allowed)
    return of_one_core, count_threads()


def placement(path, folder):
    """Return what could not be exported, and the devices of all variables that the export makes,
    where another than the first one is what TensorFlow would take."""
    script = load(path)
    script.args = script.parse_arguments(["--replicas", "2"])
    script.strategy, _, script.DEVICE = script.create_strategy()
    examples, _ = script.load(script.create_datasets()[0].take(10), "train")
    variable_type, devices = type(tf.Variable(0)), []
    create = variable_type.__init__

    def create_and_note(self, *arguments, **options):
        create(self, *arguments, **options)
        if self.device:  # Those without are of a graph, and hold no numbers.
            devices.append(self.device)

    variable_type.__init__ = create_and_note
    with tf.device("CPU:1"):
        problems = script.export(Path(folder, "export"), examples)
    return problems, devices


def make_trap(folder, witness):
    """Save a SavedModel that writes a file when it is loaded. Return whether it does."""

    class Trap(tf.saved_model.experimental.TrackableResource):
        def _create_resource(self):
            return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="trap")

        def _initialize(self):
            tf.io.write_file(witness, "executed")

        def _destroy_resource(self):
            pass

    module = tf.Module()
    module.trap, module.weight = Trap(), tf.Variable(1.0)
    module.trap.resource_handle  # noqa: B018 (creates it)
    tf.saved_model.save(module, folder)
    Path(witness).unlink(missing_ok=True)
    tf.saved_model.load(folder)
    executed = Path(witness).exists()
    Path(witness).unlink(missing_ok=True)
    return executed


def make_keras_trap(path, witness):
    """Save a .keras file whose code writes a file where it is trusted. Return whether it does."""
    trap = keras.layers.Lambda(lambda x: open(witness, "w").close() or x)
    keras.Sequential([keras.Input([1]), trap]).save(path)
    Path(witness).unlink(missing_ok=True)
    keras.saving.load_model(path, safe_mode=False)
    executed = Path(witness).exists()
    Path(witness).unlink(missing_ok=True)
    return executed


if __name__ == "__main__":
    questions = [contents, served, weighted_loss, seeds, cores, placement, make_trap]
    questions += [make_keras_trap]
    question, *arguments = sys.argv[1:]
    print(json.dumps({x.__name__: x for x in questions}[question](*arguments)))
