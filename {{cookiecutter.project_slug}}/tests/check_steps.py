"""Checks of create_metrics, score, end_epoch, the steps and create_serving_function."""

import contextlib
import gc
import json
import math
import numbers
import re
import tempfile

from check_models import check_scope, has_hidden_randomness
from check_tools import (
    Hint,
    create_mirrored_strategy,
    create_training_state,
    cut_batch,
    fetch_batches,
    find_layers,
    flatten_tensors,
    has_compute_gradients,
    is_close,
    is_plain_model,
    is_same,
    list_first,
    read_examples,
    read_validation_batches,
    replace,
    restore_variables,
    run_validation_step,
    set_globals,
)

import train
from train import keras, tf

# ----------------------------------------------------------------------------------------------
# create_metrics
# ----------------------------------------------------------------------------------------------


def check_metrics():
    set_globals(batch_size=4)
    lists = train.create_metrics(create_mirrored_strategy())
    if len(lists) != 3:
        yield f"returns {len(lists)} lists; return 3: for the train, validation and test split"
    metrics = [metric for each in lists for metric in each]
    if len({id(metric) for metric in metrics}) < len(metrics):
        yield "returns the same metric twice; create one for each list"
    yield from check_names(lists)
    yield from check_scope("metrics", metrics)
    yield from check_updates()
    # {% if cookiecutter.distribution == "parameter_server" %}
    yield from check_sums()
    # {% endif %}
    yield from check_weights_of_examples()


def check_names(lists):
    taken = {"step", "epoch", "split", "loss", "learning_rate", "gradient_norm"}
    taken |= {"examples_per_second", "input_wait"}
    problems = set()
    for metrics in lists:
        names = [metric.name for metric in metrics]
        problems |= {name for name in names if name in taken or names.count(name) > 1}
    for name in sorted(problems):
        yield (
            f"two values of a split are named {name!r}; choose another name (the log has its own "
            f"{', '.join(sorted(taken))})"
        )


def invent_validation():
    """Return a loss and metrics as validation gives them."""
    return {"loss": 1.0, **{metric.name: 1.0 for metric in train.validation_metrics}}


def check_score():
    create_training_state()
    value = train.score(invent_validation())
    if not isinstance(value, numbers.Real):
        yield f"returns {type(value).__name__}; return a number, of which the lowest is the best"
        return
    place = {"step": 20, "epoch": 2, "split": "validation"}
    if train.score({**place, **invent_validation()}) != value:
        yield (
            "depends on the step, the epoch or the split, which only lines of the history have; "
            "read the loss or metrics by name"
        )


def save_checkpoints():
    """Write both checkpoints, which `end_epoch` may read."""
    if hasattr(train, "take_snapshot"):  # in the complete script
        train.take_snapshot()
        best = {kind: x for kind, x in train.state.snapshot.items() if kind != "optimizer"}
        train.write_checkpoints(train.state.snapshot, best)
    else:
        train.create_checkpoints()
        train.save("best")
        train.save("last")


def check_end_epoch():
    create_training_state()
    values = invent_validation()
    history = [{"step": i, "epoch": i, "split": "validation", **values} for i in range(1, 21)]
    stops = []
    states = []
    # What the hook writes goes to a folder of its own, with files that it may read.
    with (
        tempfile.TemporaryDirectory() as folder,
        replace(train.config, "run_dir", folder),
        replace(train.state, "step", len(history)),
    ):
        lines = [{**line, "split": split} for line in history for split in ("train", "validation")]
        train.run_path("metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        train.run_path("adapted.json").write_text(json.dumps(train.adapted))
        train.run_path("config.json").write_text(json.dumps(train.describe_run()))
        save_checkpoints()
        trainable = list_trainable_paths()
        for _ in range(2):
            stops.append(bool(train.end_epoch(list(history))))
            variables = train.list_variables((train.model, train.optimizer))
            states.append([variable.numpy() for variable in variables])
    if stops[0] != stops[1] or not all(map(is_same, *states)):
        yield (
            "returns or changes something else when it is called again with the same history, as a "
            "resumed run calls it; compute it from `history` and `config`, not from the last "
            "value, and draw samples inside keras.StatelessScope()"
        )
    if list_trainable_paths() != trainable:
        yield (
            "changes which weights are trainable, which has no effect on the traced graph, and "
            "fails after a resume; in train_step, multiply their gradients by 0 until "
            "optimizer.iterations has grown, or use two models with two optimizers"
        )


def check_updates():
    create_training_state()
    metrics = train.validation_metrics
    counts = [len(metric.variables) for metric in metrics]
    run_validation_step()
    for metric, count in zip(metrics, counts, strict=True):
        if len(metric.variables) > count:
            yield (
                f"the metric {metric.name!r} creates variables in its first update, which is too "
                "late in a traced step; update it in the hook, inside the scope, and reset it"
            )
        shape = tuple(tf.convert_to_tensor(metric.result()).shape)
        if shape != ():
            yield f"the result of {metric.name!r} has shape {shape}; return one number, ()"


# {% if cookiecutter.distribution == "parameter_server" %}
def check_sums():
    """Yield a sentence for each metric that isn't a sum: train.py adds up what each step adds."""
    create_training_state()
    metrics = train.validation_metrics
    run_validation_step()
    once = [[variable.numpy() for variable in metric.variables] for metric in metrics]
    run_validation_step()
    for metric, values in zip(metrics, once, strict=True):
        pairs = zip(metric.variables, values, strict=True)
        if not all(is_close(variable.numpy(), 2 * value) for variable, value in pairs):
            yield (
                f"the variables of {metric.name!r} are not sums over examples that begin at 0, so "
                "the result would be wrong; use a sum or a mean, not a maximum, say"
            )


# {% endif %}
def check_weights_of_examples():
    """Yield a hint about metrics that count examples whose sample weight is 0."""
    create_training_state()
    found = set()
    for features, labels, weight in read_validation_batches(4):
        filled_up = (features, labels, weight * [1.0, 1.0, 0.0, 0.0])
        half, _ = cut_batch((features, labels, weight), 2)
        try:
            expected = compute_metrics(half)
            values = compute_metrics(filled_up)
        except Exception:  # the step takes only batches of 4, or another check reports it
            return
        found |= {name for name, value in values.items() if not is_close(value, expected[name])}
    if found:
        yield Hint(
            f"{list_first(sorted(found))} changes if examples with a sample_weight of 0 are added, "
            "such as those that fill up the last batch; pass sample_weight to `update_state`"
        )


def compute_metrics(batch):
    """Return the validation metrics of a batch, by name."""
    for metric in train.validation_metrics:
        metric.reset_state()
    train.validation_step(batch)
    return {metric.name: metric.result() for metric in train.validation_metrics}


# ----------------------------------------------------------------------------------------------
# train_step
# ----------------------------------------------------------------------------------------------


def list_trainable_variables():
    models = tf.nest.flatten(train.model)
    return [variable for model in models for variable in model.trainable_variables]


def list_trainable_paths():
    return [variable.path for variable in list_trainable_variables()]


def list_gradients(results):
    """Return the gradients in the results of `compute_gradients`, or [] if it has others, too."""
    return tf.nest.flatten(results[1]) if len(results) == 2 else []


def check_gradients():
    """Check that all trainable variables get a gradient."""
    batch = create_training_state()
    if not has_compute_gradients(batch):
        return
    compute = tf.GradientTape.gradient

    def compute_or_none(*args, unconnected_gradients=None, **kwargs):
        """Return None, not zeros, for variables without a path to the loss."""
        return compute(*args, **kwargs)

    # In a graph, as in a run: there, both branches of tf.cond count.
    with replace(tf.GradientTape, "gradient", compute_or_none):
        function = tf.function(train.compute_gradients).get_concrete_function(batch)
    results = function.structured_outputs
    gradients = list_gradients(results)
    variables = list_trainable_variables()
    if len(gradients) != len(variables):
        return  # an edited compute_gradients
    pairs = zip(variables, gradients, strict=True)
    untrained = [variable for variable, gradient in pairs if gradient is None]
    idle = find_idle(untrained, function.graph, results[0])
    idle_ids = set(map(id, idle))
    paths = [variable.path for variable in untrained if id(variable) not in idle_ids]
    if paths:
        yield (
            f"these variables get no gradient, so they are never trained: {list_first(paths)}; use "
            "their layer, look for what cuts the loss off (stop_gradient, tf.argmax, a cast to "
            "integers), or set trainable=False"
        )
    if idle:
        yield Hint(
            "the loss doesn't depend on these variables, so they are never trained: "
            f"{list_first([variable.path for variable in idle])}; if that is not intended, use "
            "the output of their layer"
        )


def check_finite_gradients():
    """Check that the first examples have a finite loss and finite gradients."""
    batch = create_training_state()
    try:
        loss, gradients = train.compute_gradients(batch)
        loss = float(loss)
    except Exception:  # the hook is edited, or the checks of the steps report the exception
        return
    if not math.isfinite(loss):
        yield f"the loss of the first examples is {loss}; look for missing labels and for log(0)"
        return
    # Scaled gradients may overflow in the first steps: the optimizer leaves out these updates.
    is_scaled = any(map(scales_losses, tf.nest.flatten(train.optimizer)))
    if not is_scaled and not all(map(is_finite, tf.nest.flatten(gradients))):
        yield (
            "the loss of the first examples is finite, but gradients are not; if tf.where replaces "
            "NaN after a loss, replace it before: tf.where passes on its gradient"
        )


def is_finite(gradient):
    if gradient is None:
        return True
    return bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(gradient))))


def find_idle(variables, graph, loss):
    """Return the variables that a graph reads, but from which it doesn't compute the loss.

    They belong to an output of a layer that the loss doesn't use, such as the pooled one of BERT.
    """
    reads = {id(outer): inner.name for outer, inner in graph.captures}
    names = {tensor.name for tensor in list_sources(loss)}
    idle = []
    for variable in variables:
        name = reads.get(id(variable.value.handle))
        if name and name not in names:
            idle.append(variable)
    return idle


def list_sources(tensors):
    """Return all tensors of a graph from which some tensors are computed."""
    sources = {}
    pending = flatten_tensors(tensors)
    while pending:
        tensor = pending.pop()
        if tensor.name not in sources:
            sources[tensor.name] = tensor
            pending += tensor.op.inputs
    return list(sources.values())


def check_step_randomness():
    """Check that random numbers of a step come from variables of the model."""
    batch = create_training_state()
    names = find_stateful_draws(batch)
    # np.random has no operation. Other numbers may have no effect at first, as with a probability
    # that grows from 0.
    if not names and not has_random_gradients(batch):
        return
    features, _, _ = batch
    if is_plain_model(batch) and has_hidden_randomness(features):
        return  # its own check reports it
    source = list_first(names) if names else "tf.random, np.random?"
    yield (
        f"a step or a model draws random numbers that no checkpoint contains ({source}), so a "
        "killed run can't resume bit-identical; draw from `seeds` in `preprocess`, or by "
        "keras.random with a keras.random.SeedGenerator of a layer"
    )


def has_random_gradients(batch):
    """Return whether `compute_gradients` computes something else if it is called again."""
    if not has_compute_gradients(batch):
        return False
    others = find_unsaved_variables(batch)  # these have a check of their own
    results = []
    for _ in range(2):
        with restore_variables(train.model, others):
            tensors = flatten_tensors(train.compute_gradients(batch))
            results.append([tf.convert_to_tensor(x) for x in tensors])  # not tf.IndexedSlices
    return not is_close(*results)


def find_stateful_draws(batch):
    """Return the operations of a step that draw from a hidden state, as tf.random.uniform does."""
    build_optimizers()
    graph = trace_step(batch).as_graph_def()
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    pattern = (
        r"Random(?!IndexShuffle|GammaGrad)|(Parameterized)?TruncatedNormal|Multinomial"
        r"|\w*CandidateSampler"
    )
    return [node.name for node in nodes if re.match(pattern, node.op)]


def trace_step(batch):
    """Return the graph of a training step, without running it."""
    return tf.function(train.train_step).get_concrete_function(batch).graph


def build_optimizers():
    """Build all optimizers, as `main` does. Return pairs of a model and its optimizer."""
    pairs = zip(*map(tf.nest.flatten, (train.model, train.optimizer)), strict=True)
    trained = [pair for pair in pairs if pair[1]]
    for model, optimizer in trained:
        optimizer.build(model.trainable_variables)
    return trained


def check_updates_of_models():
    """Check the gradients that optimizers get, that all run, and that checkpoints have all changes.

    # {% if cookiecutter.distribution == "parameter_server" %}
    In the gradients, no index may occur twice.
    # {% else %}
    No gradient may be a tf.IndexedSlices: in the sum over replicas, an index may occur twice.
    # {% endif %}
    """
    batch = create_training_state()
    paths = []
    trained = build_optimizers()
    others = find_unsaved_variables(batch)
    values = [variable.numpy() for variable in others]
    for _, optimizer in trained:
        record_slices(optimizer, paths)
    # {% if cookiecutter.distribution == "parameter_server" %}
    train.train_step(batch)
    # {% else %}
    tf.function(train.train_step)(batch)  # in a graph, as in a run
    # {% endif %}
    if paths:
        yield (
            f"an optimizer gets the gradients of {list_first(paths)} as tf.IndexedSlices. Keras's "
            "Adam squares each slice instead of the sum of those with one index; call `update` of "
            "train.py, or sum them with tf.convert_to_tensor"
        )
    pairs = zip(others, values, strict=True)
    changed = [variable.name for variable, value in pairs if not is_same(variable.numpy(), value)]
    if changed:
        yield (
            f"changes {list_first(changed)}, which no checkpoint contains, so a killed run can't "
            "resume bit-identical; make this a weight of a model (add_weight)"
        )
    idle = [model.name for model, optimizer in trained if was_skipped(optimizer)]
    if idle:
        yield Hint(
            f"the first step doesn't update {list_first(idle)}, which has an optimizer; call "
            "`update` for it, unless a later step does"
        )


def check_learned_variables():
    """Yield a hint about trainable variables of no model on which the loss depends."""
    batch = create_training_state()
    build_optimizers()
    watched = set()
    compute = tf.GradientTape.gradient

    def record_and_compute(tape, *args, **kwargs):
        watched.update(map(id, tape.watched_variables()))
        return compute(tape, *args, **kwargs)

    with replace(tf.GradientTape, "gradient", record_and_compute):
        others = find_unsaved_variables(batch)
    names = [x.name for x in others if id(x) in watched - find_frozen()]
    if names:
        yield Hint(
            f"the loss depends on {list_first(names)}, which belongs to no model, so it is neither "
            "trained nor saved; if it has to be, as the learned weight of a loss has, create it by "
            "add_weight in a layer of a model, and return it as an output; otherwise, set "
            "trainable=False"
        )


def find_frozen():
    """Return the ids of the variables that Keras doesn't train, though a tape watches them."""
    objects = [each for each in gc.get_objects() if issubclass(type(each), keras.Variable)]
    return {id(variable.value) for variable in objects if not variable.trainable}


def was_skipped(optimizer):
    """Return whether the step didn't call an optimizer."""
    return optimizer.iterations.numpy() == 0 and not scales_losses(optimizer)


def scales_losses(optimizer):
    """Return whether this is a LossScaleOptimizer, which leaves out updates that overflow."""
    return hasattr(optimizer, "inner_optimizer")


def find_unsaved_variables(batch):
    """Return the variables that a step reads and that belong to no model, optimizer or metric.

    Metrics are reset before each loop. A layer or an optimizer may forget to have Keras save a
    variable; this has a check of its own.
    """
    graph = trace_step(batch)
    known = train.list_variables((train.model, train.optimizer))
    for each in tf.nest.flatten(train.model):
        known += each.metrics_variables
    for metric in (*train.train_metrics, train.gradient_norm):
        known += metric.variables
    for owner in (*find_layers(train.model), *flatten_tensors(train.optimizer)):
        for values in vars(owner).values():
            with contextlib.suppress(TypeError):  # a dict with keys that can't be sorted
                known += tf.nest.flatten(values)
    known.append(train.state.step_in_graph)
    known_ids = {id(x.value if isinstance(x, keras.Variable) else x) for x in known}
    return [x for x in graph.variables if id(x) not in known_ids and is_read(x, graph)]


def is_read(variable, graph):
    """Return whether a graph does more with a variable than to assign values."""
    for outer, inner in graph.captures:
        if outer is variable.handle:
            return any(not operation.type.startswith("Assign") for operation in inner.consumers())
    return False


def record_slices(optimizer, paths):
    """Make an optimizer add the paths of variables to a list if their gradients are slices."""
    apply = optimizer.apply

    def record_and_apply(grads, trainable_variables=None):
        grads = list(grads)
        for variable, gradient in zip(trainable_variables or [], grads, strict=False):
            # {% if cookiecutter.distribution == "parameter_server" %}
            is_wrong = isinstance(gradient, tf.IndexedSlices) and has_duplicates(gradient.indices)
            # {% else %}
            is_wrong = isinstance(gradient, tf.IndexedSlices)
            # {% endif %}
            if is_wrong:
                paths.append(variable.path)
        return apply(grads, trainable_variables)

    optimizer.apply = record_and_apply


# {% if cookiecutter.distribution == "parameter_server" %}
def has_duplicates(indices):
    return len(set(indices.numpy())) < len(indices)


# {% endif %}
# ----------------------------------------------------------------------------------------------
# create_serving_function
# ----------------------------------------------------------------------------------------------


def check_serving_function():
    """Check that the function can be traced, and its lookup tables exist when it is exported."""
    create_training_state()
    models = tf.nest.flatten(train.model)
    example = next(iter(fetch_batches(read_examples(2).batch(1))))
    archive = keras.export.ExportArchive()
    try:
        archive.add_endpoint("serve", train.create_serving_function(models, example))
        for each in gc.get_objects():
            if issubclass(type(each), tf.saved_model.experimental.TrackableResource):
                archive.track(each)
        with tempfile.TemporaryDirectory() as folder:
            archive.write_out(folder, verbose=False)
    except Exception as error:  # others are found by the test of the export
        if re.search("untracked|not reachable from root", str(error)):
            yield (
                "uses a lookup table or another resource that can't be exported, because it was "
                "created in the function; create it once, such as in a function with "
                "@functools.cache"
            )
