"""Answers the questions of test_numbers.py: python child_numbers.py QUESTION SCRIPT ARGUMENTS.

The arguments are JSON. The last line that it prints is the answer, as JSON.
"""

import importlib.util
import json
import sys
import time

import numpy as np
import tensorflow as tf


def load(path):
    """Return a script as a module, without a run of it."""
    spec = importlib.util.spec_from_file_location("train", path)
    module = sys.modules["train"] = importlib.util.module_from_spec(spec)  # AutoGraph looks there.
    spec.loader.exec_module(module)
    return module


def begin(path, *flags):
    """Return a script that has read its flags and knows its replicas, as `main` begins."""
    script = load(path)
    script.args = script.parse_arguments([*flags])
    script.GLOBAL_BATCH_SIZE = script.args.global_batch_size
    script.ACCUMULATION_STEPS = script.args.accumulation_steps
    script.CLIP_NORM, script.PRECISION = script.args.clip_norm, script.args.precision
    script.WORKER, addresses = script.read_tf_config()
    script.WORKERS = len(addresses)
    script.strategy, _, script.DEVICE = script.create_strategy()
    script.keras.config.set_dtype_policy(script.PRECISION)
    script.keras.utils.set_random_seed(0)
    script.train_metrics = []
    if script.ACCUMULATION_STEPS > 1:
        script.compute_gradients = script.accumulate(script.compute_gradients)
    return script


def adopt(script, model, optimizer, loss):
    """Give a script a model to train, made in the scope of its strategy."""
    script.model, script.optimizer, script.loss_object = model, optimizer, loss
    optimizer.build(model.trainable_variables)
    script.gradient_norm = script.keras.metrics.Mean(name="gradient_norm")


def share_out(script, batch):
    """Return each replica's part of a batch."""
    size = script.GLOBAL_BATCH_SIZE // script.strategy.num_replicas_in_sync

    def part(context):
        first = context.replica_id_in_sync_group * size
        return tuple(tf.constant(x[first : first + size]) for x in batch)

    return script.strategy.experimental_distribute_values_from_function(part)


def values_of(script, variable):
    """Return the values of a variable, one of each replica."""
    value = getattr(variable, "value", variable)
    return [x.numpy().tolist() for x in script.strategy.experimental_local_results(value)]


# --------------------------------------------------------------------------------------------------
# The order of an epoch
# --------------------------------------------------------------------------------------------------

BATCH_SIZE = 64


def orders(path, size, pairs, old):
    """Return what tells the orders of some (seed, epoch) from random ones: see `examine`."""
    script = load(path)
    every = []
    for script.SEED, epoch in pairs:
        if old:
            seed = tf.stack([script.SEED, epoch])
            order = tf.random.experimental.index_shuffle(tf.range(size), seed, size - 1)
        else:
            order = script.shuffle(size, tf.constant(epoch))
        assert (order.dtype, order.shape) == (tf.int32, [size])
        every.append(order.numpy())
    return examine(every, size)


def examine(every, size):
    """Return of some orders how many are no permutation, and the others as z-scores: how far they
    are from what chance gives, in standard deviations."""
    steps = size // BATCH_SIZE
    batches, places = [], []
    for order in every:
        place = np.zeros(size, np.int64)
        place[order] = np.arange(size)
        places.append(place)
        # Those that no batch has are each in one of their own.
        batches.append(np.where(place < steps * BATCH_SIZE, place // BATCH_SIZE, place + steps))
    # Two random orders correlate by 1 / √n or so; so do an order and that of the file.
    scale = np.sqrt(size - 1) / ((size * size - 1) / 12)
    centered = [np.arange(size) - (size - 1) / 2, *(place - (size - 1) / 2 for place in places)]
    correlations, meetings = [], []
    in_batches = steps * BATCH_SIZE * (BATCH_SIZE - 1) / 2  # pairs that share a batch
    expected = in_batches**2 / (size * (size - 1) / 2)
    for i in range(len(centered)):
        for j in range(i):
            correlations.append(np.dot(centered[i], centered[j]) / size * scale)
            if j:
                both = np.sort(batches[i - 1] * (2 * size) + batches[j - 1])
                counts = np.diff(np.flatnonzero(np.diff(both, prepend=-1, append=-1)))
                meet = np.sum(counts * (counts - 1) // 2)
                meetings.append((meet - expected) / np.sqrt(expected))
    # Where the first examples come, all orders together: the Kolmogorov-Smirnov distance.
    first = np.sort([place[:64] for place in places], axis=None) / size
    distance = np.max(np.abs(first - (np.arange(len(first)) + 0.5) / len(first)))
    return {
        "broken": int(sum(np.any(np.sort(order) != np.arange(size)) for order in every)),
        "correlation": float(np.max(np.abs(correlations))),
        "meeting": float(np.max(np.abs(meetings))),
        "mean meeting": float(np.mean(meetings) * np.sqrt(len(meetings))),
        "spread of meetings": float(np.std(meetings)),
        "places": float(distance * np.sqrt(len(first))),
    }


def start_of(script, size, first_step):
    """Return the first batch from some step on: the examples' numbers."""
    script.STEPS_PER_EPOCH = size // BATCH_SIZE
    iterator, _ = script.distribute(tf.range(size), size, training=True, first_step=first_step)
    return script.next_batch(iterator)[0].numpy()


def late_start(path, size, first_step):
    """Return the seconds to the first batch of three iterators, and whether it was the right one;
    and whether it is, of fewer examples, what comes after as many batches."""
    script = begin(path, "--global-batch-size", str(BATCH_SIZE))
    script.preprocess = lambda batch, seeds, training: (batch,)
    script.SEED = 3
    start_of(script, size, 0)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        batch = start_of(script, size, first_step)
        seconds.append(time.perf_counter() - started)
    epoch, step = divmod(first_step, size // BATCH_SIZE)
    expected = script.shuffle(size, tf.constant(epoch)).numpy()
    right = np.array_equal(batch, expected[step * BATCH_SIZE :][:BATCH_SIZE])
    script.STEPS_PER_EPOCH = 1000 // BATCH_SIZE
    iterator, _ = script.distribute(tf.range(1000), 1000, training=True)
    long_way = [script.next_batch(iterator)[0].numpy() for _ in range(40)]
    same = all(np.array_equal(long_way[i], start_of(script, 1000, i)) for i in (1, 14, 15, 16, 39))
    return {"seconds": seconds, "right": right, "same": same}


def shares(path):
    """Return the batches of one process with two replicas, and of two workers with one each."""
    script = begin(path, "--global-batch-size", "20", "--replicas", "2")
    script.preprocess = lambda batch, seeds, training: (batch, seeds)
    script.SEED, script.STEPS_PER_EPOCH = 0, 203 // 20

    def read(training, first_step):
        iterator, _ = script.distribute(tf.range(203), 203, training, first_step)
        replicas = 2 // script.WORKERS
        batches = [[x.numpy() for x in next(iterator)] for _ in range(24 * replicas)]
        return [
            [np.concatenate(x) for x in zip(*batches[i : i + replicas], strict=True)]
            for i in range(0, len(batches), replicas)
        ]

    same = []
    for training, first_step in ((True, 0), (True, 17), (False, 0)):
        script.WORKERS, script.WORKER = 1, 0
        together = read(training, first_step)
        script.WORKERS, apart = 2, []
        for script.WORKER in range(2):
            apart.append(read(training, first_step))
        for whole, *parts in zip(together, *apart, strict=True):
            joined = [np.concatenate(x) for x in zip(*parts, strict=True)]
            same += [np.array_equal(x, y) for x, y in zip(whole, joined, strict=True)]
    return same


# --------------------------------------------------------------------------------------------------
# Embeddings
# --------------------------------------------------------------------------------------------------


def embedding(path, *flags):
    """Return weights and moments after some steps of Keras's Adam of a model with an embedding, and
    what NumPy makes of them: the gradients of an index that comes often are one sum."""
    script = begin(path, "--global-batch-size", "8", *flags)
    keras = script.keras
    with script.strategy.scope():
        layers = [keras.layers.Embedding(11, 4), keras.layers.GlobalAveragePooling1D()]
        model = keras.Sequential([keras.Input([5], dtype="int32"), *layers, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        adopt(script, model, keras.optimizers.Adam(0.01), loss)  # the script's sums by itself
    random = np.random.default_rng(0)
    weights = [x.numpy().astype("float64") for x in model.trainable_variables]
    moments = [[np.zeros_like(x) for x in weights] for _ in range(2)]
    run = tf.function(lambda batch: script.strategy.run(script.train_step, args=(batch,)))
    for step in range(1, 4):
        # Few indices, so that each comes often; the largest never does.
        words = random.choice([0, 1, 1, 1, 2, 5, 9], [8, 5]).astype("int32")
        labels = random.integers(0, 3, 8).astype("int32")
        run(share_out(script, (words, labels, np.ones(8, "float32"))))
        gradients = differentiate(weights, words, labels)
        for weight, gradient, first, second in zip(weights, gradients, *moments, strict=True):
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            rate = 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            weight -= rate * first / (np.sqrt(second) + 1e-7)
    pairs = {"weight": model.trainable_variables}
    pairs |= {"first": script.optimizer._momentums, "second": script.optimizer._velocities}
    answer = {}
    for kind, expected in zip(pairs, (weights, *moments), strict=True):
        for variable, value in zip(pairs[kind], expected, strict=True):
            error = np.abs(np.array(values_of(script, variable)) - value).max()
            answer[f"{kind} {variable.path}"] = float(error / np.abs(value).max())
    return answer


def differentiate(weights, words, labels):
    """Return the gradients of the mean loss."""
    table, kernel, bias = weights
    pooled = table[words].mean(1)
    shares = np.exp(pooled @ kernel + bias)
    by_logits = (shares / shares.sum(1, keepdims=True) - np.eye(3)[labels]) / len(words)
    by_table = np.zeros_like(table)
    by_words = np.repeat((by_logits @ kernel.T / words.shape[1])[:, None], words.shape[1], axis=1)
    np.add.at(by_table, words, by_words)
    return by_table, pooled.T @ by_logits, by_logits.sum(0)


# --------------------------------------------------------------------------------------------------
# Adam
# --------------------------------------------------------------------------------------------------


def adam(path, arguments, *flags):
    """Return how far weights and moments are from NumPy's Adam in float64, after 100 steps with
    random gradients: of the script's optimizer, and of Keras's with the same arguments."""
    script = begin(path, *flags)
    kinds = {"script": script.Adam, "Keras": script.keras.optimizers.Adam}
    return {name: max(follow(script, kind, arguments)) for name, kind in kinds.items()}


def follow(script, kind, arguments):
    """Yield the errors of one kind of optimizer, relative to how far its variables moved."""
    random, rate = np.random.default_rng(0), 0.01
    # As float32 has them: 1 - 0.999 is 1.3e-5 less there, of which the operation is consistent.
    betas = [float(np.float32(beta)) for beta in (0.9, 0.999)]
    replicas = script.strategy.num_replicas_in_sync
    model, optimizer = script.create_model_and_optimizer(script.strategy)
    assert type(optimizer) is script.Adam
    with script.strategy.scope():
        optimizer = kind.from_config({**optimizer.get_config(), "learning_rate": rate, **arguments})
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        optimizer.build(model.trainable_variables)
    decays = [optimizer._use_weight_decay(x) for x in model.trainable_variables]
    decay = (optimizer.weight_decay or 0.0) * np.array(decays)
    weights = [x.numpy().astype("float64") for x in model.trainable_variables]
    starts = [weight.copy() for weight in weights]
    first, second, most = ([np.zeros_like(x) for x in weights] for _ in range(3))

    @tf.function
    def run(gradients):
        def step():  # each replica has its part of the sum
            shares = [gradient / replicas for gradient in gradients]
            optimizer.apply(shares, model.trainable_variables)

        script.strategy.run(step)

    for step in range(1, 101):
        scale = 10.0 ** random.uniform(-4, 0)
        gradients = [(scale * random.normal(size=x.shape)).astype("float32") for x in weights]
        run([tf.constant(gradient) for gradient in gradients])
        for i, gradient in enumerate(gradients):
            weights[i] -= rate * decay[i] * weights[i]
            first[i] += (1 - betas[0]) * (gradient - first[i])
            second[i] += (1 - betas[1]) * (gradient.astype("float64") ** 2 - second[i])
            most[i] = np.maximum(most[i], second[i])
            root = np.sqrt(most[i] if optimizer.amsgrad else second[i])
            alpha = rate * np.sqrt(1 - betas[1] ** step) / (1 - betas[0] ** step)
            weights[i] -= alpha * first[i] / (root + 1e-7)
    pairs = zip(model.trainable_variables, weights, starts, strict=True)
    moved = [(x, value, np.abs(value - start).max()) for x, value, start in pairs]
    for moments, values in ((optimizer._momentums, first), (optimizer._velocities, second)):
        moved += [(x, y, np.abs(y).max()) for x, y in zip(moments, values, strict=True)]
    for variable, value, distance in moved:
        yield float(np.abs(np.array(values_of(script, variable)) - value).max() / distance)


# --------------------------------------------------------------------------------------------------
# Half precision
# --------------------------------------------------------------------------------------------------


def overflow(path, *flags):
    """Return weights and loss scale on each replica after each of three steps, of which the second
    overflows on the last replica; and how many numbers were summed over replicas in a step."""
    summed = []
    all_reduce = tf.distribute.ReplicaContext.all_reduce

    def count(self, operation, value, *args, **kwargs):
        summed.append(sum(int(np.prod(x.shape)) for x in tf.nest.flatten(value)))
        return all_reduce(self, operation, value, *args, **kwargs)

    script = begin(path, "--global-batch-size", "8", *flags)
    keras = script.keras
    with script.strategy.scope():
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, dtype="float32")]
        model = keras.Sequential([keras.Input([4]), *layers])
        optimizer = script.Adam(0.01)
        if script.PRECISION == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
        adopt(script, model, optimizer, keras.losses.Huber(reduction="none"))
    random = np.random.default_rng(0)
    run = tf.function(lambda batch: script.strategy.run(script.train_step, args=(batch,)))
    tf.distribute.ReplicaContext.all_reduce = count
    steps = []
    for overflows in (False, True, False):
        features = random.normal(size=[8, 4]).astype("float32")
        features[-1] = 1e6 if overflows else features[-1]  # The largest number it has is 65504.
        labels = random.normal(size=[8, 1]).astype("float32")
        run(share_out(script, (features, labels, np.ones(8, "float32"))))
        scale = getattr(optimizer, "dynamic_scale", None)
        weights = [values_of(script, x) for x in model.variables + optimizer.variables]
        steps.append([weights, scale is not None and values_of(script, scale)])
    replicas = script.strategy.num_replicas_in_sync
    return {
        "steps": steps,
        "weights": sum(int(np.prod(x.shape)) for x in model.trainable_variables),
        "summed": sum(summed) / replicas,
    }


# --------------------------------------------------------------------------------------------------
# Input and loops
# --------------------------------------------------------------------------------------------------


def endless(path, *flags):
    """Return of the input of CPUs and of accelerators: the cardinality of both datasets, the shapes
    of a batch in the graph, and the operations of that graph that agree with other workers."""
    script = begin(path, "--global-batch-size", "20", *flags)
    script.model, script.optimizer = script.create_model_and_optimizer(script.strategy)
    script.loss_object = script.create_loss_objects(script.strategy)
    with script.strategy.scope():
        script.optimizer.build(script.model.trainable_variables)
    script.STEPS_PER_EPOCH, script.SEED = 3, 0
    script.iter = lambda dataset: dataset
    examples = tf.zeros([73, 8, 8, 1]), tf.zeros([73], tf.int32)
    answer = {}
    for device in ("CPU", "GPU"):
        script.DEVICE = device
        datasets = [script.distribute(examples, 73, training=x)[0] for x in (True, False)]
        infinite = [int(x.cardinality if device == "GPU" else x.cardinality()) for x in datasets]
        shapes = []

        def step(batch, shapes=shapes):
            parts = [x for x in tf.nest.flatten(batch, expand_composites=True) if x is not None]
            shapes.extend(x.shape.as_list() for x in parts)
            return script.distributed_train_step(batch)

        iterator = iter(datasets[0])
        graph = script.run_steps.get_concrete_function(step, iterator, tf.constant(2)).graph
        graph = graph.as_graph_def()
        nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
        operations = [node.op for node in nodes]
        answer[device] = {
            "infinite": [x == tf.data.INFINITE_CARDINALITY for x in infinite],
            "shapes": shapes,
            "collectives": sum(x.startswith("Collective") for x in operations),
            "optionals": sum("Optional" in x for x in operations),
        }
    return answer


def speed(path):
    """Return the speed that the log has of a loop that a device takes a second for, after the
    function has returned."""
    script = begin(path, "--global-batch-size", "100")
    script.optimizer = script.keras.optimizers.Adam(0.01)

    class Value:
        """A value that is there once the device is done, like that of a GPU."""

        def __init__(self, value, ready):
            self.value, self.ready = value, ready

        def numpy(self):
            time.sleep(max(0, self.ready - time.monotonic()))
            return np.array(self.value)

        def __float__(self):
            return float(self.numpy())

    def run_steps(distributed_step, iterator, steps):
        ready = time.monotonic() + 1
        return Value([14.0, 7.0], ready), Value(0.5, ready)

    script.run_steps = run_steps
    return script.train(None, 7)


# --------------------------------------------------------------------------------------------------
# What a TPU asks of the steps
# --------------------------------------------------------------------------------------------------


def compiled(path, *flags):
    """Return of each step of a replica its operations, those of no static shape, and what it gives
    as it stands and compiled by XLA. In place of the first loop of a run."""
    script = load(path)
    answer = {}

    def look(iterator, steps):
        batch = script.next_batch(iterator)
        for name in ("validation_step", "test_step", "train_step"):
            step = getattr(script, name)
            graph = tf.function(step).get_concrete_function(batch).graph
            graphs = [graph, *(function.graph for function in find_functions(graph))]
            operations = [x for each in graphs for x in each.get_operations()]
            values = []
            for jit_compile in (False, True):
                script.keras.utils.set_random_seed(0)
                variables = [*script.model.variables, *script.optimizer.variables]
                before = [x.numpy() for x in variables]
                values.append(tf.function(step, jit_compile=jit_compile)(batch).numpy().tolist())
                for variable, value in zip(variables, before, strict=True):
                    variable.assign(value)
            answer[name] = {
                "operations": sorted({x.type for x in operations}),
                "dynamic": [
                    f"{x.name} {y.shape}"
                    for x in operations
                    for y in x.outputs
                    if not y.shape.is_fully_defined()
                    # The compiler has the values of these, of constants; and nothing reads those.
                    and x.type != "BroadcastGradientArgs"
                    and "redundant_placeholder" not in x.name
                ],
                "values": values,
            }
        raise SystemExit(0)

    script.train = look
    try:
        script.main(flags)
    except SystemExit as end:
        assert end.code == 0
    return answer


def find_functions(graph):
    """Return the functions of a graph, which also holds those that its functions call."""
    return [graph._get_function(name) for name in graph._functions]


if __name__ == "__main__":
    questions = (orders, late_start, shares, embedding, adam, overflow, endless, speed, compiled)
    questions = {question.__name__: question for question in questions}
    question, path, arguments = sys.argv[1:]
    print(json.dumps(questions[question](path, *json.loads(arguments))))
