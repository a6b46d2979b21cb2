"""The jobs of side_by_side.py: changes to the hooks of a rendered train.py."""

import dataclasses
import functools
from collections.abc import Callable

IMAGE_SIZE = 96  # pixels, width and height of the JPEG files
CROP_SIZE = 88
SAMPLE_SIZE = (427, 640)  # height and width of the sample images of scikit-learn


@dataclasses.dataclass
class Job:
    """A task to render, its approximate speed, and what it changes in the script.

    `change_hooks` may return a function that creates the layers of another model.
    """

    task: str
    steps_per_second: int  # on two cores
    change_hooks: Callable | None = None


def change_to_dense(script, widths=(1100, 1100, 1100)):
    """Return a dense network, whose speed is limited by the update.

    By default, it has 2.5 million weights.
    """
    layers = script.keras.layers

    def create_layers():
        return [
            script.keras.Input([8, 8, 1]),
            layers.Flatten(),
            *[layers.Dense(width, activation="relu") for width in widths],
            layers.Dense(10),
        ]

    return create_layers


def change_to_large(script):
    """Return a network of 100 million weights. With Adam's moments, a checkpoint has 1.2 GB."""
    return change_to_dense(script, widths=(10_000, 10_000))


def change_to_tutorial(script):
    """Return the network of TensorFlow's tutorial, and set random images as its data.

    The tutorial is "Custom training with tf.distribute.Strategy". The images have the
    shape of Fashion-MNIST's.
    """
    layers = script.keras.layers

    def create_datasets():
        generator = script.np.random.default_rng(0)
        datasets = []
        for size in (6400, 640, 640):
            images = generator.integers(0, 256, [size, 28, 28, 1], "uint8")
            labels = generator.integers(0, 10, size, "int32")
            datasets.append(script.tf.data.Dataset.from_tensor_slices((images, labels)))
        return datasets

    def create_layers():
        options = {
            "activation": "relu",
            "kernel_regularizer": script.keras.regularizers.L2(1e-5),
        }
        return [
            script.keras.Input([28, 28, 1]),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, **options),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, **options),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, **options),
            layers.Dense(10),
        ]

    script.create_datasets = create_datasets
    return create_layers


def change_to_input(script):
    """Return a fast network, and set JPEG files as its data: decoding them limits the speed.

    `preprocess` decodes the files of a batch. The peers decode single files: `decode_example`.
    """
    layers = script.keras.layers
    tf = script.tf

    def create_datasets():
        files, labels = create_jpeg_files(script)
        splits = zip(
            script.np.split(files, [1152, 1216]),
            script.np.split(labels, [1152, 1216]),
            strict=True,
        )
        return [tf.data.Dataset.from_tensor_slices(split) for split in splits]

    def preprocess(batch, seeds, training):
        files, labels = batch
        signature = tf.TensorSpec([CROP_SIZE, CROP_SIZE, 3], tf.uint8)
        decode = functools.partial(decode_file, tf, training)
        images = tf.map_fn(decode, (files, seeds), fn_output_signature=signature)
        return tf.cast(images, tf.float32), labels

    def decode_example(file, label):
        image = tf.io.decode_jpeg(file, channels=3)
        image = tf.image.random_crop(image, [CROP_SIZE, CROP_SIZE, 3])
        image = tf.image.random_flip_left_right(image)
        return tf.cast(image, tf.float32), label

    def create_layers():
        return [
            script.keras.Input([CROP_SIZE, CROP_SIZE, 3]),
            layers.Rescaling(1 / 255),
            layers.AveragePooling2D(8),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]

    script.create_datasets = create_datasets
    script.preprocess = preprocess
    script.decode_example = decode_example
    return create_layers


@functools.cache
def create_jpeg_files(script):
    """Return 1280 JPEG files and their labels: parts of scikit-learn's two sample images."""
    from sklearn.datasets import load_sample_images

    np = script.np
    height, width = SAMPLE_SIZE
    highest_corner = [height - IMAGE_SIZE, width - IMAGE_SIZE]
    generator = np.random.default_rng(0)
    patches = []
    for label, image in enumerate(load_sample_images().images):
        for y, x in generator.integers(0, highest_corner, [640, 2]):
            patch = image[y : y + IMAGE_SIZE, x : x + IMAGE_SIZE]
            patches.append((patch, label))
    generator.shuffle(patches)
    files = [script.tf.io.encode_jpeg(patch).numpy() for patch, _ in patches]
    labels = [label for _, label in patches]
    return np.array(files), np.array(labels, "int32")


def decode_file(tf, training, example):
    """Return the image in (JPEG file, seed): in training a random part, which may be flipped."""
    file, seed = example
    image = tf.io.decode_jpeg(file, channels=3)
    if training:
        image = tf.image.stateless_random_crop(image, [CROP_SIZE, CROP_SIZE, 3], seed)
        image = tf.image.stateless_random_flip_left_right(image, seed)
    return image[:CROP_SIZE, :CROP_SIZE]


JOBS = {
    # The rendered example: a small network, whose speed is limited by the overhead of operations.
    "digits": Job("image_classification", 700),
    "dense": Job("image_classification", 60, change_to_dense),
    "tutorial": Job("image_classification", 60, change_to_tutorial),
    # The rendered example: BERT with 2 layers.
    "bert": Job("text_classification", 20),
    "input": Job("image_classification", 60, change_to_input),
}
LARGE_JOB = Job("image_classification", 1, change_to_large)  # only its checkpoints are measured


def find_job(name):
    return LARGE_JOB if name == "large" else JOBS[name]


def set_up_job(name, script, steps):
    """Change the hooks of a script to a job's hooks, with `steps` batches of training examples.

    The other splits have one batch, since the peers don't validate. The speed of validation is
    measured on its own.
    """
    change_hooks = find_job(name).change_hooks
    if change_hooks:
        change_model(script, change_hooks(script))
    create_datasets = functools.cache(script.create_datasets)
    adapt = script.adapt

    def create_sized_datasets():
        datasets = []
        for dataset, batches in zip(create_datasets(), (steps, 1, 1), strict=True):
            examples = repeat_examples(script, dataset, batches)
            datasets.append(script.tf.data.Dataset.from_tensor_slices(examples))
        return datasets

    def adapt_to_all_examples(train):
        """Learn the vocabulary from the original split, so that it doesn't depend on `steps`."""
        original_train, *_ = create_datasets()
        return adapt(original_train)

    script.create_datasets = create_sized_datasets
    script.adapt = adapt_to_all_examples


def change_model(script, create_layers):
    """Replace the model of a script, and keep its optimizer."""
    create_original = script.create_model_and_optimizer

    def create_model_and_optimizer(strategy):
        _, optimizer = create_original(strategy)
        with strategy.scope():
            return script.keras.Sequential(create_layers()), optimizer

    script.create_model_and_optimizer = create_model_and_optimizer


def repeat_examples(script, dataset, batches):
    """Return the examples of a dataset as arrays, repeated or cut to a number of batches."""
    size = batches * script.config.global_batch_size

    def resize(tensor):
        shape = [size, *tensor.shape[1:]]
        return script.np.resize(tensor.numpy(), shape)

    examples = dataset.batch(dataset.cardinality()).get_single_element()
    return script.tf.nest.map_structure(resize, examples)
