"""Whether TensorFlow's operations give bit-identical results in each call. See tf_queries.py."""

import functools
import threading
import time

import keras
import numpy as np
import tensorflow as tf
from tf_queries import begin

CALLS = 40
ROWS = 20_000  # enough for several threads
GROUPS = 37
BOXES = 200
IMAGES = [32, 24, 24, 16]
VIDEOS = [8, 10, 12, 12, 8]
SEQUENCES = [32, 40, 24]


def count_results(path, *flags):
    """Return the numbers of different results that operations have in many calls, by name.

    A result is the output and its gradients with regard to the inputs and the weights of a layer.
    """
    script = begin(path, *flags)
    if script.config.deterministic:
        tf.config.experimental.enable_op_determinism()  # as `run_loop` does
    threading.Thread(target=disturb, daemon=True).start()
    rng = np.random.default_rng(0)
    operations = {
        **create_row_operations(rng),
        **create_convolutions(),
        **create_image_operations(rng),
        **create_operations(),
        **create_layers(),
    }
    return {
        name: count_different(function, [draw(rng, shape) for shape in shapes])
        for name, (function, shapes) in operations.items()
    }


def draw(rng, shape):
    """Return numbers of different magnitudes, so that each order of a sum rounds in another way."""
    numbers = rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))
    return tf.constant(numbers, "float32")


def count_different(function, inputs):
    """Return how many different results a function or a layer has."""
    weights = []
    if isinstance(function, keras.layers.Layer):
        function.build(inputs[0].shape)
        weights = [weight.value for weight in function.trainable_variables]
        function = functools.partial(function, training=True)

    @tf.function
    def compute():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = function(*inputs)
            # Each value has another target, so that gradients of normalizations aren't 0.
            places = tf.range(tf.size(output))
            targets = tf.cos(tf.cast(places, "float32"))
            error = tf.reshape(output, [-1]) - targets
            total = tf.reduce_sum(tf.square(error))
        gradients = tape.gradient(total, [*inputs, *weights], unconnected_gradients="zero")
        return [output, *map(tf.convert_to_tensor, gradients)]

    results = set()
    for _ in range(CALLS):
        tensors = [tensor.numpy() for tensor in compute()]
        results.add(b"".join(tensor.tobytes() for tensor in tensors))
    return len(results)


def disturb():
    """Use a core at irregular intervals, so that TensorFlow's threads end in another order."""
    rng = np.random.default_rng()
    matrix = rng.uniform(size=[200, 200])
    while True:
        matrix @ matrix
        time.sleep(rng.uniform(0, 0.001))


def take(function, *shapes, **options):
    """Return a function with its options, and the shapes of its inputs."""
    return functools.partial(function, **options), shapes


def create_row_operations(rng):
    """Return operations that add up, or look up, rows by an index in which each occurs often."""
    index = tf.constant(rng.integers(0, GROUPS, ROWS), "int32")
    sums = tf.Variable(tf.zeros([GROUPS, 8]), trainable=False)
    adjacency = rng.integers(0, 2, [300, 400])
    sparse = tf.sparse.from_dense(adjacency.astype("float32"))

    def scatter_add(rows):
        """Add rows to a variable, as an operation that has a gradient."""
        sums.assign(tf.zeros([GROUPS, 8]))
        sums.scatter_add(tf.IndexedSlices(rows, index))
        return tf.reduce_mean(rows) * sums

    def scatter_nd(rows):
        return tf.scatter_nd(index[:, None], rows, [GROUPS, 8])

    def add_to_tensor(tensor, rows):
        return tf.tensor_scatter_nd_add(tensor, index[:, None], rows)

    return {
        "gather": take(tf.gather, [GROUPS, 64], indices=index),
        "gather_nd": take(tf.gather_nd, [GROUPS, 64], indices=index[:, None]),
        "unsorted_segment_sum": take(
            tf.math.unsorted_segment_sum,
            [ROWS, 8],
            segment_ids=index,
            num_segments=GROUPS,
        ),
        "segment_sum": take(
            tf.math.segment_sum,
            [ROWS, 8],
            segment_ids=tf.sort(index),
        ),
        "sparse.segment_mean": take(
            tf.sparse.segment_mean,
            [GROUPS, 32],
            indices=index,
            segment_ids=tf.sort(index),
        ),
        "scatter_nd": take(scatter_nd, [ROWS, 8]),
        "tensor_scatter_nd_add": take(add_to_tensor, [GROUPS, 8], [ROWS, 8]),
        "Variable.scatter_add": take(scatter_add, [ROWS, 8]),
        "sparse_dense_matmul": take(
            functools.partial(tf.sparse.sparse_dense_matmul, sparse),
            [400, 64],
        ),
    }


def create_convolutions():
    """Return convolutions of images and videos."""
    same = {"strides": 1, "padding": "SAME"}
    return {
        "conv2d": take(
            tf.nn.conv2d,
            IMAGES,
            [3, 3, 16, 24],
            **same,
        ),
        "conv2d with dilation": take(
            tf.nn.conv2d,
            IMAGES,
            [3, 3, 16, 24],
            dilations=2,
            **same,
        ),
        "conv2d in groups": take(
            tf.nn.conv2d,
            IMAGES,
            [3, 3, 4, 24],
            **same,
        ),
        "depthwise_conv2d": take(
            tf.nn.depthwise_conv2d,
            IMAGES,
            [3, 3, 16, 2],
            strides=[1, 1, 1, 1],
            padding="SAME",
        ),
        "conv3d": take(
            tf.nn.conv3d,
            VIDEOS,
            [3, 3, 3, 8, 12],
            strides=[1] * 5,
            padding="SAME",
        ),
        "conv2d_transpose": take(
            tf.nn.conv2d_transpose,
            IMAGES,
            [3, 3, 8, 16],
            output_shape=[32, 48, 48, 8],
            strides=2,
        ),
    }


def create_image_operations(rng):
    """Return other operations on images and videos."""
    corners = np.sort(rng.uniform(size=[BOXES, 2, 2]), axis=1)
    index = rng.integers(0, IMAGES[0], BOXES)
    overlapping = {"ksize": 3, "strides": 1, "padding": "SAME"}
    return {
        "max_pool2d": take(tf.nn.max_pool2d, IMAGES, **overlapping),
        "avg_pool2d": take(tf.nn.avg_pool2d, IMAGES, **overlapping),
        "max_pool3d": take(tf.nn.max_pool3d, VIDEOS, **overlapping),
        "bias_add": take(tf.nn.bias_add, IMAGES, [16]),
        "resize": take(tf.image.resize, IMAGES, size=[37, 11]),
        "extract_patches": take(
            tf.image.extract_patches,
            IMAGES,
            sizes=[1, 5, 5, 1],
            strides=[1, 2, 2, 1],
            rates=[1, 1, 1, 1],
            padding="SAME",
        ),
        "crop_and_resize": take(
            tf.image.crop_and_resize,
            IMAGES,
            boxes=corners.reshape(BOXES, 4).astype("float32"),
            box_indices=index.astype("int32"),
            crop_size=[9, 9],
        ),
    }


def create_operations():
    """Return operations on vectors and matrices."""

    def compute_cholesky(matrices):
        squares = tf.matmul(matrices, matrices, transpose_b=True)
        return tf.linalg.cholesky(squares + 20 * tf.eye(20))

    def compute_spectrum(signals):
        return tf.abs(tf.signal.rfft(signals))

    def multiply_heads(queries, keys):
        return tf.einsum("bthd,bshd->bhts", queries, keys)

    return {
        "matmul": take(tf.matmul, [300, 700], [700, 400]),
        "matmul of long rows": take(tf.matmul, [8, 200_000], [200_000, 6]),
        "matmul of batches": take(
            tf.matmul,
            [64, 40, 50],
            [64, 50, 30],
        ),
        "einsum": take(
            multiply_heads,
            [16, 50, 4, 16],
            [16, 50, 4, 16],
        ),
        "cholesky": take(compute_cholesky, [16, 20, 20]),
        "svd": take(tf.linalg.svd, [16, 20, 20], compute_uv=False),
        "rfft": take(compute_spectrum, [64, 1000]),
        "reduce_sum": take(tf.reduce_sum, [3_000_000]),
        "reduce_variance": take(tf.math.reduce_variance, [30_000, 64], axis=0),
        "norm": take(tf.norm, [3_000_000]),
        "softmax": take(tf.nn.softmax, [3000, 640]),
        "cumsum": take(tf.cumsum, [3000, 64]),
        "sort": take(tf.sort, [300, 640]),
    }


def create_layers():
    """Return layers, each with a list of the shape of its input."""
    sequence_layers = [
        keras.layers.LSTM(32, return_sequences=True),
        keras.layers.GRU(32),
        keras.layers.Conv1D(32, 3),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(64, "gelu"),
    ]
    image_layers = [
        keras.layers.SeparableConv2D(24, 3),
        keras.layers.BatchNormalization(),
        keras.layers.GroupNormalization(4),
    ]
    video_layers = [
        keras.layers.ConvLSTM2D(8, 3),
        keras.layers.Conv3DTranspose(8, 3),
    ]
    return {
        **{layer.name: (layer, [SEQUENCES]) for layer in sequence_layers},
        **{layer.name: (layer, [IMAGES]) for layer in image_layers},
        **{layer.name: (layer, [VIDEOS]) for layer in video_layers},
    }
