"""The jobs of side_by_side.py: what each of them puts into the hooks of a rendered train.py."""

import functools


def put_digits(script):
    """The example as rendered: a small network, bound by the start of its operations."""


def put_dense(script):
    """2.5 million weights at a batch of 64: bound by the update."""
    layers = script.keras.layers

    def create_layers():
        hidden = [layers.Dense(1100, activation="relu") for _ in range(3)]
        return [script.keras.Input([8, 8, 1]), layers.Flatten(), *hidden, layers.Dense(10)]

    return create_layers


def put_tutorial(script):
    """The network of TensorFlow's tutorial "Custom training with tf.distribute.Strategy", on
    random images of the shape of Fashion-MNIST."""
    layers, np = script.keras.layers, script.np

    def create_datasets():
        draw = np.random.default_rng(0).integers
        sizes = (6400, 640, 640)
        splits = [(draw(0, 256, [n, 28, 28, 1], "uint8"), draw(0, 10, n, "int32")) for n in sizes]
        return [script.tf.data.Dataset.from_tensor_slices(split) for split in splits]

    script.create_datasets = create_datasets
    weights = {"activation": "relu", "kernel_regularizer": script.keras.regularizers.L2(1e-5)}
    return lambda: [
        script.keras.Input([28, 28, 1]),
        layers.Rescaling(1 / 255),
        layers.Conv2D(32, 3, **weights),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, **weights),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(64, **weights),
        layers.Dense(10),
    ]


def put_input(script):
    """JPEG files of 96 × 96 pixels, decoded and turned in `preprocess`, for a network that is
    faster than that: bound by the input."""
    layers, np, tf = script.keras.layers, script.np, script.tf

    @functools.cache
    def read_files():
        from sklearn.datasets import load_sample_images

        rng, patches = np.random.default_rng(0), []
        for label, image in enumerate(load_sample_images().images):  # 427 × 640 × 3 uint8
            corners = rng.integers(0, [427 - 96, 640 - 96], [640, 2])
            patches += [(image[y : y + 96, x : x + 96], label) for y, x in corners]
        rng.shuffle(patches)
        files = np.array([tf.io.encode_jpeg(patch).numpy() for patch, _ in patches])
        return files, np.array([label for _, label in patches], "int32")

    def create_datasets():
        parts = zip(*(np.split(x, [1152, 1216]) for x in read_files()), strict=True)
        return [tf.data.Dataset.from_tensor_slices(part) for part in parts]

    def preprocess(batch, seeds, training):
        files, labels = batch

        def decode(example):
            image = tf.io.decode_jpeg(example[0], channels=3)
            if training:
                image = tf.image.stateless_random_crop(image, [88, 88, 3], example[1])
                image = tf.image.stateless_random_flip_left_right(image, example[1])
            return image[:88, :88]

        signature = tf.TensorSpec([88, 88, 3], tf.uint8)
        images = tf.map_fn(decode, (files, seeds), fn_output_signature=signature)
        return tf.cast(images, tf.float32), labels

    def decode_example(file, label):  # for the peers
        image = tf.image.random_crop(tf.io.decode_jpeg(file, channels=3), [88, 88, 3])
        return tf.cast(tf.image.random_flip_left_right(image), tf.float32), label

    script.create_datasets, script.preprocess = create_datasets, preprocess
    script.decode_example = decode_example
    return lambda: [
        script.keras.Input([88, 88, 3]),
        layers.Rescaling(1 / 255),
        layers.AveragePooling2D(8),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ]


def put_bert(script):
    """The text example as rendered: BERT of 2 layers."""


JOBS = {  # the task that is rendered, about its steps a second on two cores, and what it changes
    "digits": ("image_classification", 700, put_digits),
    "dense": ("image_classification", 60, put_dense),
    "tutorial": ("image_classification", 60, put_tutorial),
    "bert": ("text_classification", 20, put_bert),
    "input": ("image_classification", 60, put_input),
}


def put(job, script, steps):
    """Puts a job into a script, with as many training examples as `steps` batches. The other splits
    are of one batch: no peer validates, and the speed of that is measured by itself."""
    _, _, change = JOBS[job]
    create_layers, create = change(script), script.create_model_and_optimizer

    def create_network(strategy):
        _, optimizer = create(strategy)
        with strategy.scope():
            return script.keras.Sequential(create_layers()), optimizer

    if create_layers:
        script.create_model_and_optimizer = create_network
    create_datasets = script.create_datasets
    script.create_datasets = lambda: [
        script.tf.data.Dataset.from_tensor_slices(enlarge(script, dataset, size))
        for dataset, size in zip(create_datasets(), (steps, 1, 1), strict=True)
    ]


def enlarge(script, dataset, steps):
    """Returns the examples of a dataset as arrays, repeated up to `steps` batches."""
    arrays = dataset.batch(dataset.cardinality()).get_single_element()
    size = steps * script.GLOBAL_BATCH_SIZE
    return script.tf.nest.map_structure(
        lambda x: script.np.resize(x.numpy(), [size, *x.shape[1:]]), arrays
    )
