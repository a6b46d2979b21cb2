"""Random numbers that replicas draw. See tf_queries.py."""

import collections
import types

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tf_queries import begin, load_script

BATCH = 24  # examples, on all replicas
IMAGES = [8, 8, 3]

# --------------------------------------------------------------------------------------------------
# Layers
# --------------------------------------------------------------------------------------------------


class Sampling(keras.layers.Layer):
    """A layer of a user, as in a variational autoencoder."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, inputs):
        shape = keras.ops.shape(inputs)
        return inputs + keras.random.normal(shape, dtype=inputs.dtype, seed=self.seeds)


class FlatDropout(keras.layers.Layer):
    """A dropout of rows, of which each example has several."""

    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, inputs, training=False):
        shape = keras.ops.shape(inputs)
        rows = keras.ops.reshape(inputs, [-1, 3])
        rows = self.dropout(rows, training=training)
        return keras.ops.reshape(rows, shape)


class Attention(keras.layers.Layer):
    """Attention with a dropout of its weights."""

    def __init__(self):
        super().__init__()
        initializer = keras.initializers.GlorotUniform(seed=1)
        self.attention = keras.layers.MultiHeadAttention(
            num_heads=2,
            key_dim=4,
            dropout=0.5,
            kernel_initializer=initializer,
        )

    def call(self, inputs, training=False):
        rows = keras.ops.reshape(inputs, [-1, 64, 3]) / 255
        return self.attention(rows, rows, training=training)


def create_layers():
    """Return the layers that draw random numbers for each example."""
    layers = keras.layers
    return [
        layers.Dropout(0.5),
        layers.Dropout(0.5, (None, 1, 1, None), name="dropout_of_channels"),
        layers.Dropout(0.5, (1, None, None, None), name="shared_dropout"),
        layers.SpatialDropout2D(0.5),
        layers.GaussianDropout(0.5),
        layers.GaussianNoise(0.5),
        layers.AlphaDropout(0.5),
        layers.RandomFlip(),
        layers.RandomRotation(0.3),
        layers.RandomZoom(0.3),
        layers.RandomTranslation(0.3, 0.3),
        layers.RandomBrightness(0.3),
        layers.RandomContrast(0.3),
        layers.RandomCrop(5, 5),
        layers.RandomShear(0.3, 0.3),
        layers.RandomPerspective(),
        layers.RandomElasticTransform(),
        layers.RandomErasing(),
        layers.RandomInvert(),
        layers.RandomGrayscale(),
        layers.RandomHue(0.4),
        layers.RandomSaturation(0.5),
        layers.RandomSharpness(0.5),
        layers.RandomColorDegeneration(0.7),
        layers.RandomColorJitter(
            brightness_factor=0.3,
            contrast_factor=0.3,
            saturation_factor=0.3,
            hue_factor=0.3,
        ),
        layers.RandomGaussianBlur(),
        layers.RandAugment(),
        Attention(),
        Sampling(),
        FlatDropout(),
    ]


# TensorFlow has no range of float16, which these layers need.
NOT_IN_FLOAT16 = (
    keras.layers.RandomElasticTransform,
    keras.layers.RandomErasing,
    keras.layers.RandomGaussianBlur,
)


def begin_replicas(path, replicas):
    flags = ["--replicas", replicas] if replicas > 1 else []  # one replica may be a GPU
    script = begin(path, *flags, "--global-batch-size", BATCH)
    script.share_random_numbers()
    return script


def join_replicas(strategy, values):
    """Return the values of all replicas, joined along the batch, as nested lists by name."""
    joined = {}
    for name, value in values.items():
        parts = strategy.experimental_local_results(value)
        parts = [tf.cast(part, tf.float64) for part in parts]
        joined[name] = np.concatenate(parts).tolist()
    return joined


def call_layers(path, replicas, policy):
    """Return what each layer makes of a batch in training, by name."""
    script = begin_replicas(path, replicas)
    keras.config.set_dtype_policy(policy)
    left_out = NOT_IN_FLOAT16 if policy == "mixed_float16" else ()
    images = np.random.default_rng(0).uniform(1, 255, [BATCH, *IMAGES])
    parts = np.split(images.astype("float32"), replicas)

    def get_part(context):
        return tf.constant(parts[context.replica_id_in_sync_group])

    inputs = script.strategy.experimental_distribute_values_from_function(get_part)
    with script.strategy.scope():
        layers = [x for x in create_layers() if not isinstance(x, left_out)]
        for layer in layers:
            layer(images[:1], training=False)  # which creates variables

    def call(part):
        outputs = {}
        for layer in layers:
            outputs[layer.name] = layer(part, training=True)
        return outputs

    @tf.function
    def call_all():
        return script.strategy.run(call, args=(inputs,))

    call_all()  # The second call starts with other seeds.
    outputs = join_replicas(script.strategy, call_all())
    assert_equal_states(script.strategy, layers)
    return outputs


def assert_equal_states(strategy, layers):
    """Assert that all replicas hold the same states of the random generators."""
    states = [variable for layer in layers for variable in layer.non_trainable_variables]
    assert len(states) >= len(layers)
    for state in states:
        first, *others = strategy.experimental_local_results(state.value)
        for other in others:
            assert np.array_equal(first, other), state.path


# --------------------------------------------------------------------------------------------------
# Distributions
# --------------------------------------------------------------------------------------------------


def draw_each(size, dtype):
    """Return numbers of each distribution, by name, for a batch of some size."""
    random = keras.random
    shape = [size, 7]
    ones = tf.ones([size, 3, 5], dtype)
    shared = random.uniform([], seed=5)
    numbers = {}
    numbers["uniform"] = random.uniform(shape, -2, 3, dtype, seed=5)
    numbers["normal"] = random.normal(shape, 1, 2, dtype, seed=5)
    numbers["dropout"] = random.dropout(ones, 0.4, seed=5)
    numbers["randint"] = random.randint(shape, 0, 1000, seed=5)
    numbers["shared"] = tf.fill([size], shared)
    return numbers


def draw(path, replicas, dtype, is_compiled):
    """Return the numbers of each distribution for a batch, by name."""
    script = begin_replicas(path, replicas)

    def draw_part():
        return draw_each(BATCH // replicas, dtype)

    if is_compiled:
        draw_part = tf.function(draw_part, jit_compile=True)

    @tf.function
    def draw_all():
        return script.strategy.run(draw_part)

    return join_replicas(script.strategy, draw_all())


def draw_as_keras(path, dtype):
    """Return the numbers of each distribution without a strategy and without the script."""
    numbers = draw_each(BATCH, dtype)
    strategy = tf.distribute.get_strategy()
    return join_replicas(strategy, numbers)


def find_counters(path, replicas, shape):
    """Return for each replica the counter from which it draws, and how many numbers it draws."""
    script = begin_replicas(path, replicas)
    zero = tf.zeros([2], tf.uint64)

    def find():
        drawn = []

        def record(shape, counter):
            first = tf.cast(counter[0], tf.int64)
            drawn.append(tf.stack([first, shape[0]]))
            raise StopIteration  # the numbers themselves would not fit in memory

        try:
            script.draw_part(record, tf.constant(shape, tf.int64), counter=zero)
        except StopIteration:
            return drawn[0]

    found = script.strategy.run(find)
    results = script.strategy.experimental_local_results(found)
    return [result.numpy().tolist() for result in results]


def draw_from_counters(counter):
    """Return eight numbers from a counter, and eight from the next one."""
    draws = []
    for first in (counter, counter + 1):
        numbers = tf.raw_ops.StatelessRandomUniformV2(
            shape=[8],
            key=tf.constant([7], tf.uint64),
            counter=tf.constant([first, 0], tf.uint64),
            alg=1,  # Philox
        )
        draws.append(numbers.numpy().tolist())
    return draws


def draw_with_traced_replicas(path):
    """Return whether a graph of XLA whose replica is a tensor, as on a TPU, draws its part."""
    script = load_script(path)
    script.config.global_batch_size = 8
    script.config.replicas = 2

    @tf.function(jit_compile=True)
    def draw_all():
        return tf.random.stateless_uniform([8, 3], [1, 2])

    expected = draw_all().numpy()
    script.share_random_numbers()
    context = types.SimpleNamespace()
    tf.distribute.get_replica_context = lambda: context

    @tf.function(jit_compile=True)
    def draw(replica):
        context.replica_id_in_sync_group = replica
        return tf.random.stateless_uniform([4, 3], [1, 2])

    found = [draw(tf.constant(replica)) for replica in range(2)]
    return bool(np.array_equal(np.concatenate(found), expected))


# --------------------------------------------------------------------------------------------------
# The cost
# --------------------------------------------------------------------------------------------------


def count_operations(path, replicas):
    """Return how often each operation comes in the graph of the training steps that runs."""
    script = begin(path, "--replicas", replicas)
    # As on GPUs. On CPUs, replicas would not be bit-identical to workers.
    tf.config.optimizer.set_experimental_options({"constant_folding": True})
    datasets = script.load_datasets()
    script.adapted.update(script.adapt(script.create_datasets()[0]))
    script.create_training_state()
    iterator, _ = script.create_input(*datasets["train"], training=True)
    context = eager_context.context()
    context.enable_graph_collection()
    script.run_steps(script.distributed_train_step, iterator, tf.constant(1))
    # Grappler has simplified these graphs.
    counts = collections.Counter()
    for graph in context.export_run_metadata().partition_graphs:
        for node in graph.node:
            counts[node.op] += 1
    return counts
