"""The order of the data, and the input pipelines of train.py. See tf_queries.py."""

import itertools
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tf_queries import begin, create_model

# --------------------------------------------------------------------------------------------------
# Batches
# --------------------------------------------------------------------------------------------------


def skip_preprocessing(script):
    """Let batches keep the examples as they are, with their seeds."""
    script.preprocess = lambda batch, seeds, training: (batch, seeds)


def read_batches(path, replicas, examples, batch_size):
    """Return the numbers of the examples and their seeds, batch by batch, of several iterators.

    The data set holds the numbers from 0 to `examples`. A batch has the parts of all
    replicas, in order.
    """
    script = begin(path, "--replicas", replicas, "--global-batch-size", batch_size)
    skip_preprocessing(script)
    script.config.steps_per_epoch = examples // batch_size
    assert script.strategy.num_replicas_in_sync == replicas
    numbers = tf.data.Dataset.range(examples)
    data = script.load_into_memory(numbers, "train")

    def read(seed, first_step, steps):
        script.config.seed = seed
        iterator, _ = script.create_input(*data, training=True, first_step=first_step)
        return read_all(script, iterator, steps)

    script.config.seed = 0
    iterator, steps = script.create_input(*data, training=False)
    return {
        "steps per evaluation": steps,
        "seed 0": read(seed=0, first_step=0, steps=32),
        "seed 0 from step 7": read(seed=0, first_step=7, steps=8),
        "seed 0 from step 23": read(seed=0, first_step=23, steps=9),
        "seed 1": read(seed=1, first_step=0, steps=32),
        "evaluation": read_all(script, iterator, 2 * steps),
    }


def read_all(script, iterator, steps):
    return [read_batch(script, iterator) for _ in range(steps)]


def read_batch(script, iterator):
    """Return a batch's numbers, seeds and weights."""
    parts = script.strategy.experimental_local_results(script.next_batch(iterator))
    numbers, seeds, weights = zip(*parts, strict=True)
    return {
        "numbers": np.concatenate(numbers).tolist(),
        "seeds": np.concatenate(seeds).tolist(),
        "weights": np.concatenate(weights).tolist(),
    }


def compare_worker_shares(path):
    """Compare the batches of one process with two replicas to the batches of two workers, one each.

    Return whether numbers, seeds and weights are equal, for each of 24 batches of three iterators.
    """
    script = begin(path, "--global-batch-size", "20", "--replicas", "2")
    skip_preprocessing(script)
    script.config.seed = 0
    script.config.steps_per_epoch = 203 // 20
    results = []
    for first_step in (0, 17, None):
        together = read_shares(script, 1, 0, first_step)
        first = read_shares(script, 2, 0, first_step)
        second = read_shares(script, 2, 1, first_step)
        for whole, part, other_part in zip(together, first, second, strict=True):
            for x, first_half, second_half in zip(whole, part, other_part, strict=True):
                joined = np.concatenate([first_half, second_half])
                results.append(np.array_equal(x, joined))
    return results


def read_shares(script, workers, index, first_step):
    """Return what one worker's replicas get of 24 batches: numbers, seeds and weights of each.

    The batches are training batches from a step on, or evaluation batches for None.
    """
    script.config.workers = workers
    script.config.worker_index = index
    numbers = tf.range(203)
    if first_step is None:
        iterator, _ = script.create_input(numbers, 203, training=False)
    else:
        iterator, _ = script.create_input(numbers, 203, True, first_step)
    replicas = 2 // workers
    batches = []
    for _ in range(24):
        parts = [next(iterator) for _ in range(replicas)]
        columns = zip(*parts, strict=True)
        batches.append([np.concatenate(column) for column in columns])
    return batches


def measure_late_start(path, size, first_step, batch_size):
    """Measure how fast the input starts at a late step.

    Return the seconds to the first batch of three iterators, whether the last one was right, and
    whether a late start gives the same as reading all batches before it, of fewer examples.
    """
    script = begin(path, "--global-batch-size", batch_size, "--seed", 3)
    script.preprocess = lambda batch, seeds, training: (batch,)
    read_first_batch(script, size, 0)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        batch = read_first_batch(script, size, first_step)
        seconds.append(time.perf_counter() - started)
    epoch, step = divmod(first_step, size // batch_size)
    order = read_order(script, size, epoch)
    first = step * batch_size
    expected = order[first : first + batch_size]
    results = compare_late_starts(script, (1, 14, 15, 16, 39))
    return {
        "seconds": seconds,
        "is right": np.array_equal(batch, expected),
        "is the same": all(results),
    }


def read_order(script, size, epoch):
    """Return the order of an epoch: the whole epoch is one batch."""
    script.config.global_batch_size, before = size, script.config.global_batch_size
    order = read_first_batch(script, size, epoch)
    script.config.global_batch_size = before
    return order


def read_first_batch(script, size, first_step):
    """Return the numbers of the first batch from a step on."""
    script.config.steps_per_epoch = size // script.config.global_batch_size
    iterator, _ = script.create_input(
        tf.range(size),
        size,
        training=True,
        first_step=first_step,
    )
    return script.next_batch(iterator)[0].numpy()


def compare_late_starts(script, first_steps):
    """Yield whether starts at some steps give the batches of an iterator from step 0."""
    size = 1000
    script.config.steps_per_epoch = size // script.config.global_batch_size
    numbers = tf.range(size)
    iterator, _ = script.create_input(numbers, size, training=True)
    batches = []
    for _ in range(max(first_steps) + 1):
        numbers, *_ = script.next_batch(iterator)
        batches.append(numbers.numpy())
    for step in first_steps:
        batch = read_first_batch(script, size, step)
        yield np.array_equal(batches[step], batch)


# --------------------------------------------------------------------------------------------------
# Orders
# --------------------------------------------------------------------------------------------------


def examine_orders(path, size, epochs, batch_size, use_index_shuffle):
    """Return how much the orders of some (seed, epoch) differ from random orders, as z-scores.

    A z-score is a difference in standard deviations of what random orders give.
    """
    script = begin(path)
    script.preprocess = lambda batch, seeds, training: (batch,)
    orders = []
    for seed, epoch in epochs:
        script.config.seed = seed
        if use_index_shuffle:
            key = tf.stack([seed, epoch])
            order = tf.random.experimental.index_shuffle(
                tf.range(size),
                key,
                size - 1,
            ).numpy()
        else:
            order = read_order(script, size, epoch)
        assert (order.dtype, order.shape) == (np.int32, (size,))
        orders.append(order)
    return score_orders(orders, batch_size)


def score_orders(orders, batch_size):
    """Return the z-scores of some orders, by statistic."""
    broken = [order for order in orders if is_broken(order)]
    places = [find_places(order) for order in orders]
    correlations = score_correlations(places)
    meetings = score_meetings(places, batch_size)
    mean_deviation = 1 / np.sqrt(len(meetings))
    return {
        "broken": len(broken),
        "correlation": float(np.max(np.abs(correlations))),
        "meeting": float(np.max(np.abs(meetings))),
        "mean meeting": float(np.mean(meetings) / mean_deviation),
        "spread of meetings": float(np.std(meetings)),
        "places": score_places(places),
    }


def is_broken(order):
    """Return whether an order is no permutation."""
    expected = np.arange(len(order))
    is_moved = np.sort(order) != expected
    return bool(np.any(is_moved))


def find_places(order):
    """Return the place of each example in an order."""
    places = np.zeros(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def score_correlations(places):
    """Return the z-scores of the correlation of each pair of orders, the file's included."""
    size = len(places[0])
    variance = (size * size - 1) / 12
    scale = np.sqrt(size - 1) / variance
    orders = [np.arange(size), *places]
    mean = (size - 1) / 2
    centered = [order - mean for order in orders]
    scores = []
    for one, other in itertools.combinations(centered, 2):
        covariance = np.dot(one, other) / size
        scores.append(covariance * scale)
    return scores


def score_meetings(places, batch_size):
    """Return the z-scores of how many pairs of examples share a batch in two orders."""
    size = len(places[0])
    steps = size // batch_size
    pairs = size * (size - 1) / 2
    pairs_per_batch = batch_size * (batch_size - 1) / 2
    expected = (steps * pairs_per_batch) ** 2 / pairs
    deviation = np.sqrt(expected)
    scores = []
    for one, other in itertools.combinations(places, 2):
        batches = find_batches(one, steps, batch_size)
        other_batches = find_batches(other, steps, batch_size)
        meetings = count_meetings(batches, other_batches, size)
        scores.append((meetings - expected) / deviation)
    return scores


def find_batches(places, steps, batch_size):
    """Return the batch of each example. Examples that no batch has get one of their own."""
    is_used = places < steps * batch_size
    return np.where(is_used, places // batch_size, places + steps)


def count_meetings(batches, other_batches, size):
    """Return how many pairs of examples share a batch in both orders."""
    keys = batches * (2 * size) + other_batches
    both = np.sort(keys)
    changes = np.diff(both, prepend=-1, append=-1)
    bounds = np.flatnonzero(changes)
    counts = np.diff(bounds)
    pairs = counts * (counts - 1) // 2
    return np.sum(pairs)


def score_places(places):
    """Return the scaled Kolmogorov-Smirnov distance of the first examples' places from uniform."""
    size = len(places[0])
    first = [each[:64] for each in places]
    shares = np.sort(first, axis=None) / size
    count = len(shares)
    uniform = (np.arange(count) + 0.5) / count
    distance = np.max(np.abs(shares - uniform))
    return float(distance * np.sqrt(count))


# --------------------------------------------------------------------------------------------------
# Pipelines
# --------------------------------------------------------------------------------------------------


def describe_pipelines(path):
    """Describe the input of CPUs and of accelerators, and the training loop that reads it.

    Return for each whether both datasets are endless, the shapes of a batch in the graph, and how
    many operations of the graph agree with other workers or ask whether there is more data.
    """
    script = begin(path, "--global-batch-size", "20")
    create_model(script)
    script.loss_object = script.create_loss_objects(script.strategy)
    with script.strategy.scope():
        script.optimizer.build(script.model.trainable_variables)
    script.config.steps_per_epoch = 3
    script.iter = lambda dataset: dataset
    answer = {}
    for device in ("CPU", "GPU"):
        script.config.device_kind = device
        answer[device] = describe_pipeline(script, device)
    return answer


def describe_pipeline(script, device):
    images = tf.zeros([73, 8, 8, 1])
    labels = tf.zeros([73], tf.int32)
    examples = (images, labels)
    training_set, _ = script.create_input(examples, 73, training=True)
    evaluation_set, _ = script.create_input(examples, 73, training=False)
    shapes = []

    def step(batch):
        for part in tf.nest.flatten(batch, expand_composites=True):
            if part is not None:
                shapes.append(part.shape.as_list())
        return script.distributed_train_step(batch)

    iterator = iter(training_set)
    steps = tf.constant(2)
    function = script.run_steps.get_concrete_function(step, iterator, steps)
    operations = list_operations(function.graph.as_graph_def())
    collectives = [name for name in operations if name.startswith("Collective")]
    optionals = [name for name in operations if "Optional" in name]
    return {
        "training is endless": is_endless(training_set, device),
        "evaluation is endless": is_endless(evaluation_set, device),
        "shapes": shapes,
        "collectives": len(collectives),
        "optionals": len(optionals),
    }


def is_endless(dataset, device):
    # A distributed dataset has the cardinality as an attribute.
    cardinality = dataset.cardinality
    if device == "CPU":
        cardinality = cardinality()
    return int(cardinality) == tf.data.INFINITE_CARDINALITY


def list_operations(graph):
    """Return the names of the operations of a graph and its functions."""
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    return [node.op for node in nodes]


class DelayedValue:
    """A value that is available when the device has finished, as on a GPU."""

    def __init__(self, value, ready):
        self.value = value
        self.ready = ready

    def numpy(self):
        seconds = self.ready - time.monotonic()
        time.sleep(max(0, seconds))
        return np.array(self.value)

    def __float__(self):
        return float(self.numpy())


def log_delayed_loop(path):
    """Return the log line of a loop of 7 steps that returns before the device has finished."""
    script = begin(path, "--global-batch-size", "100")
    script.optimizer = script.keras.optimizers.Adam(0.01)
    script.state.step_in_graph = script.tf.Variable(0.0)

    def run_steps(distributed_step, iterator, steps):
        ready = time.monotonic() + 1
        return DelayedValue(2.0, ready), DelayedValue(0.5, ready)

    script.run_steps = run_steps
    return script.train(None, 7)


def measure_loading_peak(path, size):
    """Return the memory that is needed to load examples of 24 bytes, divided by their size."""
    script = begin(path)

    script.load_into_memory(create_small_examples(100), "train")  # starts the threads of tf.data
    dataset = create_small_examples(size)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = read_memory("VmRSS")
    examples, _ = script.load_into_memory(dataset, "train")
    peak = read_memory("VmHWM") - before
    numbers, indices = examples
    assert numbers.shape == [size, 5]
    assert np.array_equal(indices, np.arange(size) % 100)
    return peak / (size * 24)


def record_autotuning(path):
    """Return, for each iterator that loading and testing create in Python, if tf.data tunes it."""
    script = begin(path)
    create_iterator = tf.data.Dataset.__iter__
    tuned = []

    def record(dataset):
        options = dataset.options()
        tuned.append(options.autotune.enabled)
        return create_iterator(dataset)

    tf.data.Dataset.__iter__ = record
    datasets = script.load_datasets()
    script.create_input(*datasets["test"])
    return tuned


def create_small_examples(size):
    """Return examples of five float32 and one int32. Their source needs no memory."""
    hundreds = tf.data.Dataset.range(size // 100)
    dataset = hundreds.map(create_hundred).unbatch()
    known_size = tf.data.experimental.assert_cardinality(size)
    return dataset.apply(known_size)


def create_hundred(i):
    numbers = tf.random.stateless_uniform([100, 5], [0, i])
    return numbers, tf.range(100)


def read_memory(name):
    """Return a line of this process's status in bytes, such as VmHWM, its largest memory."""
    status = Path("/proc/self/status").read_text()
    _, _, following = status.partition(f"{name}:")
    kib, *_ = following.split()
    return int(kib) * 1024


def count_batches_ahead(path, cores):
    """Return how many batches are created while nobody reads any, on a machine with some cores."""
    script = begin(path, "--global-batch-size", 8)
    # TensorFlow's own pool has a thread for each core.
    script.INPUT_OPTIONS.threading.private_threadpool_size = cores
    created = []

    def count(numbers):
        tf.numpy_function(lambda: created.append(0), [], [])
        return numbers

    script.fetch = count
    skip_preprocessing(script)
    script.config.steps_per_epoch = 200
    data = script.load_into_memory(tf.data.Dataset.range(1600), "train")
    iterator, _ = script.create_input(*data, training=True)
    next(iterator)
    before = 0
    while len(created) > before:  # until the pipeline is full
        before = len(created)
        time.sleep(1)
    return len(created)
