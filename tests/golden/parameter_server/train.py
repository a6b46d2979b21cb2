# /// script
# requires-python = ">=3.10"
# dependencies = ["tensorflow>=2.18", "keras>=3.10", "tensorboard>=2.18", "scikit-learn>=1.4"]
# ///
"""TF Distribute: weights on parameter servers, workers that don't wait.

    uv run train.py                     one process: train, or go on from the last checkpoint
    uv run python launch/local.py --ps 2 --workers 2     four processes and a chief, to rehearse
    uv run train.py --mode evaluate     the best checkpoint of the run, on the test split
    TF_CONFIG='{"cluster": ...}' uv run train.py     be the chief, a worker or a server: README.md

Edit section 3, and maybe 4, at each TODO(you). From cookiecutter-tf-distribute 0.1.0.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import gc
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever ~/.keras/keras.json prefers
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # 0 shows what TensorFlow tells of itself
gc.set_threshold(50_000)  # by Python's own 700, a sixth of the start is spent on finding no garbage
stderr = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its import tells, whatever the level (abseil#1957)
try:
    import keras
    import numpy as np
    import tensorflow as tf
finally:
    os.dup2(stderr, 2)

# 2. Globals: assigned in `main`, read everywhere --------------------------------------------------

strategy: tf.distribute.Strategy  # where the replicas are, and how they sum
model: keras.Model  # or a tuple of several, and one of as many optimizers
optimizer: keras.optimizers.Optimizer
loss_object: keras.losses.Loss
train_metrics: list[keras.metrics.Metric]
validation_metrics: list[keras.metrics.Metric]
test_metrics: list[keras.metrics.Metric]

# What the flags of these names are where they are left out:
GLOBAL_BATCH_SIZE: int = 64  # examples a step, of all replicas together
EPOCHS: int = 30
LEARNING_RATE: float = 2e-3
SEED: int = 0  # of weights, data order, augmentation and dropout
args: argparse.Namespace  # the other flags

coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None  # of a cluster's workers
signals: list[threading.Timer] = []  # one, once SIGTERM or Ctrl-C has come: see request_stop

STEPS_PER_EPOCH: int = 1  # known once the data are loaded
run_dir: Path = Path()
WORKER: int = 0  # the index of this worker; 0 is the chief, who alone writes files
WORKERS: int = 1

# 3. Hooks: yours to edit --------------------------------------------------------------------------


def create_datasets() -> list[tf.data.Dataset]:
    """Returns the train, validation and test `tf.data.Dataset` of single examples, in fixed order,
    of known number: structures of tensors of constant shapes. They stay in memory: see `fetch`."""
    # TODO(you): your data. Here: 1797 handwritten digits, [8, 8, 1] uint8 from 0 to 16.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = images.reshape(-1, 8, 8, 1).astype("uint8"), labels.astype("int32")
    # The file is sorted by writer, so shuffle before the split; whatever --seed, the same way.
    order = np.random.default_rng(0).permutation(len(images))
    splits = np.split(order, [1257, 1527])  # 70 %, 15 %, 15 %
    return [tf.data.Dataset.from_tensor_slices((images[i], labels[i])) for i in splits]


def fetch(batch: tuple) -> tuple:
    """Reads what the examples point to. The first part of it is what the exported model takes."""
    # TODO(you): read what doesn't fit in memory: `tf.map_fn(tf.io.read_file, paths), labels`, say.
    return batch


def preprocess(batch: tuple, seeds: tf.Tensor, training: bool) -> tuple:
    """Turns what `fetch` returns into (features,), (features, labels) or (features, labels, sample
    weights), tensors or structures of them, [batch, …]; weights are [batch] float32. `seeds`,
    [batch, 2] int32, depend on SEED, epoch (0 in evaluation) and position: draw from them alone."""
    images, labels = batch
    # TODO(you): decode, resize, augment; tf.map_fn takes what can't be done to a batch at once:
    #     if training:
    #         contrast = lambda x: tf.image.stateless_random_contrast(x[0], 0.5, 1.5, seed=x[1])
    #         images = tf.cast(images, tf.float32)
    #         images = tf.map_fn(contrast, (images, seeds), fn_output_signature=images.dtype)
    return tf.cast(images, tf.float32), labels


def create_model_and_optimizer(strategy: tf.distribute.Strategy) -> tuple:
    """Returns the model, built, and its optimizer; or a tuple of models and one of as many
    optimizers, which `model` and `optimizer` are then. The scope puts them on all replicas."""
    with strategy.scope():
        # TODO(you): your model. BatchNormalization with synchronized=True, or replicas matter.
        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                keras.layers.Rescaling(1 / 16),
                keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="silu"),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="silu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(10, dtype="float32"),  # in mixed precision too
            ]
        )
        optimizer = Adam(LEARNING_RATE)  # of section 6; any of Keras's would do
    return model, optimizer


def create_loss_objects(strategy: tf.distribute.Strategy) -> keras.losses.Loss:
    """Returns the loss, of (labels, predictions), one value an example: `compute_loss` divides."""
    with strategy.scope():
        # TODO(you): your loss; or several, which compute_losses adds up.
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def create_metrics(strategy: tf.distribute.Strategy) -> tuple[list[keras.metrics.Metric], ...]:
    """Returns three lists, of the metrics of the train, validation and test split."""
    with strategy.scope():
        # TODO(you): your metrics, each with a name of its own.
        return tuple([keras.metrics.SparseCategoricalAccuracy(name="accuracy")] for _ in range(3))


def compute_losses(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """Returns the loss of each example, [batch]. Labels are None where there are none."""
    # TODO(you): a weighted sum, where there are several losses or outputs.
    return loss_object(labels, predictions)


def compute_loss(labels: tf.Tensor, predictions: tf.Tensor, sample_weight: tf.Tensor) -> tf.Tensor:
    """Returns one replica's part of the training loss, []: all sum to the mean over the global
    batch, plus the regularization losses, once. Without weights of `preprocess`, they are ones."""
    losses = compute_losses(labels, predictions)
    loss = tf.nn.compute_average_loss(losses, sample_weight, global_batch_size=GLOBAL_BATCH_SIZE)
    if regularization := [x for each in tf.nest.flatten(model) for x in each.losses]:
        loss += tf.nn.scale_regularization_loss(tf.add_n(regularization))  # its share
    return loss


# 4. Steps: one batch, on one replica and on all ---------------------------------------------------


counts: dict[int, tf.Tensor] = {}  # what the step that is being traced adds to metrics' variables


def count(metric):
    """Has a metric's updates add to `counts`, not to its variables: two workers that add to one at
    a time would lose a sum, and a step that is done again would add twice."""

    def update_counts(*arguments, update=metric.update_state, **named):
        start = [(x, counts.get(id(x), tf.zeros(x.shape, x.dtype))) for x in metric.variables]
        with keras.StatelessScope(start) as scope:
            update(*arguments, **named)
        counts.update({id(x): scope.get_current_value(x) for x in metric.variables})

    metric.update_state = update_counts


def update_metrics(metrics, labels, predictions, sample_weight):
    # TODO(you): what each of them looks at, where labels or predictions have several parts.
    for metric in metrics:
        metric.update_state(labels, predictions, sample_weight)


def compute_gradients(batch):
    """Returns one replica's part of the loss, [], and its gradients; counts it in the metrics."""
    # TODO(you): with several models, a tape for each; return a tuple of their gradients.
    features, labels, sample_weight = batch
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = compute_loss(labels, predictions, sample_weight)
        scaled_loss = optimizer.scale_loss(loss)  # by a LossScaleOptimizer; else the loss
    update_metrics(train_metrics, labels, predictions, sample_weight)
    weights = model.trainable_variables  # some may get no gradient, and replicas can't sum None
    return loss, tape.gradient(scaled_loss, weights, unconnected_gradients="zero")


def train_step(batch):
    """Updates the model with a replica's batch. Returns the sums of its losses and weights, [2]."""
    loss, gradients = compute_gradients(batch)
    # TODO(you): once for each model, its optimizer and its gradients, if you have several.
    update(optimizer, gradients, model.trainable_variables)
    return tf.stack([loss * GLOBAL_BATCH_SIZE, tf.reduce_sum(batch[-1])])


def evaluation_step(batch, metrics):
    """Returns the sums of a replica's losses and weights, [2]: with no weight, a mean is NaN."""
    # TODO(you): as in compute_gradients.
    features, labels, sample_weight = batch
    predictions = model(features, training=False)
    update_metrics(metrics, labels, predictions, sample_weight)
    losses = compute_losses(labels, predictions)
    return tf.stack([tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)])


def validation_step(batch):
    return evaluation_step(batch, validation_metrics)


def test_step(batch):
    return evaluation_step(batch, test_metrics)


def run_step(step, metrics, batch):
    """Returns the sums of the losses and weights, and what the metrics count, [n] float64."""
    counts.clear()
    sums, variables = strategy.run(step, args=(batch,)), (x for m in metrics for x in m.variables)
    return pack([sums, *(counts.get(id(x), tf.zeros(x.shape, x.dtype)) for x in variables)])


@tf.function
def distributed_train_step(examples, step, index):
    """Runs on the worker that comes first, as the next two do: a step by its number, [], on the
    examples of these indexes, [batch], all int32. Done again elsewhere, it takes the same ones."""
    for each in tf.nest.flatten(optimizer):
        each.iterations.assign(tf.cast(step, each.iterations.dtype))  # increments of many get lost
    batch = create_batch(examples, step, index, training=True)
    return run_step(train_step, train_metrics, batch)


@tf.function
def distributed_validation_step(examples, step, index):
    batch = create_batch(examples, step, index, training=False)
    return run_step(validation_step, validation_metrics, batch)


@tf.function
def distributed_test_step(examples, step, index):
    batch = create_batch(examples, step, index, training=False)
    return run_step(test_step, test_metrics, batch)


# 5. Loops: many steps -----------------------------------------------------------------------------


def run_loop(distributed_step, metrics, data, first_step, steps, stops=()):
    """Has the workers do the steps from the first on, until `stops` has a signal. Returns how many
    they did, and the loss and the metrics, means over these."""
    results, waiting, limit = [], set(), 4 * max(1, WORKERS)  # so many steps end on a signal
    pool = concurrent.futures.ThreadPoolExecutor(limit)  # no step waits for a slow worker's
    while (more := len(results) < steps and not (stops and results)) or waiting:
        if more and len(waiting) < limit:
            result = schedule(distributed_step, *data(first_step + len(results)))
            results.append(pool.submit(wait_for, result))
            waiting.add(results[-1])
        else:
            ended, waiting = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
            [each.result() for each in ended]  # raises the error of a lost server, once
    (loss, weight), sums = np.split(sum(each.result() for each in results), [2])
    for metric in metrics:
        for variable in metric.variables:
            part, sums = np.split(sums, [variable.shape.num_elements()])
            variable.assign(part.reshape(variable.shape))
    values = {metric.name: float(metric.result()) for metric in metrics}
    return len(results), {"loss": float(loss / weight) if weight else 0.0, **values}


def train(data, first_step, steps):
    """Runs a loop of training. Returns how many steps it made, and the values of its log line."""
    started = time.perf_counter()
    done, values = run_loop(distributed_train_step, train_metrics, data, first_step, steps, signals)
    speed = done * GLOBAL_BATCH_SIZE / (time.perf_counter() - started)
    for each in tf.nest.flatten(optimizer):
        each.iterations.assign(first_step + done)
    rate = tf.nest.flatten(optimizer)[0].learning_rate.numpy()
    return done, {**values, "learning_rate": float(rate), "examples_per_second": speed}


def validate(data, steps):
    return run_loop(distributed_validation_step, validation_metrics, data, 0, steps)[1]


def test(data, steps):
    return run_loop(distributed_test_step, test_metrics, data, 0, steps)[1]


# 6. Machinery: seldom edited ----------------------------------------------------------------------


def refuse(message, code=2):
    """Ends with one line: for wrong input, or with code 1 where the run itself can't go on."""
    print(f"train.py: {'error' if code == 2 else 'stopped'}:", *message.split(), file=sys.stderr)
    raise SystemExit(code)


def say(*parts, end="\n"):
    """Prints a line on the chief; on a terminal over the progress bar, and of several what fits."""
    line, width = "  ".join(parts), shutil.get_terminal_size().columns - 1
    if sys.stdout.isatty() and parts[1:] and len(line) > width:
        line = line[: width + 1].rpartition(" ")[0].rstrip()
    if WORKER == 0:
        print("\r\x1b[K" * sys.stdout.isatty() + line.replace("\0", " "), end=end, flush=True)


def describe(values):
    """Returns the loss and the metrics of a line of the log as text for `say`, to cut in pairs."""
    others = "step epoch split learning_rate gradient_norm examples_per_second input_wait".split()
    return " ".join(f"{name}\0{x:.4f}" for name, x in values.items() if name not in others)


def on_signals(handler):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def request_stop(*_):
    """Has the chief end after the steps under way; or in GRACE seconds, if no worker does them."""
    if signals:
        os._exit(143)  # Ctrl-C once more: not saved
    signals.append(threading.Timer(GRACE, os._exit, [143]))
    signals[0].daemon = True
    signals[0].start()


GRACE = 20  # seconds, from SIGTERM on, for the chief to save what servers and workers hold
ONE_AT_A_TIME = threading.Lock()  # two calls of the coordinator would race for the error they raise


def read_tf_config():
    """Returns TF_CONFIG's cluster, and the job and index that this task has in it. Without any, all
    happens in this process, which is the chief."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        if config == {}:
            return {}, "chief", 0
        cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
        for each in ("chief", "worker", "ps"):
            if not cluster.get(each):
                raise ValueError(f"the cluster has no {each}")
        if (job, index) == ("evaluator", 0):  # which is no part of it
            return {}, job, index
        tf.train.ClusterSpec(cluster).task_address(job, index)
        if extra := set(cluster) - {"chief", "worker", "ps", "evaluator"}:
            raise ValueError(f"there are jobs besides chief, worker and ps: {', '.join(extra)}")
        if len(cluster["chief"]) > 1:
            raise ValueError("there is one chief, not several")
        for address in (x for each in cluster.values() for x in each):
            host, _, port = address.rpartition(":")
            if not (host and 0 < int(port) < 65536):
                raise ValueError(f"{address} is not host:port")
        return {x: cluster[x] for x in ("chief", "ps", "worker")}, job, index
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        like = '{"cluster": {"chief": ["a:22"], "worker": ["b:22", "c:22"], "ps": ["d:22"]}, '
        like += '"task": {"type": "worker", "index": 0}}'
        refuse(f"TF_CONFIG: {type(error).__name__} {error}; it should be like {like}")


def serve(cluster, job, index):
    """Runs TensorFlow's server, which computes (a worker) or holds weights (ps) as the chief says.
    It ends with the chief: with 0, if that has finished, as its last word says; else with 143."""
    last_word, told, started = run_dir / f"finished-{job}-{index}", [], time.monotonic()
    last_word.unlink(missing_ok=True)
    if job == "ps":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # or it would take the memory of a worker's GPU
    try:
        server = tf.distribute.Server(cluster, job, index, "grpc")
    except tf.errors.OpError as error:
        refuse(f"{job} {index} can't listen at {cluster[job][index]} ({error.message})")
    # On SIGTERM it goes with the chief, which may still need it to save, or GRACE seconds later.
    on_signals(lambda *_: told.append(time.monotonic()))
    print(f"{job} {index} serves at {cluster[job][index]}", flush=True)
    (host, _, port), seen = cluster["chief"][0].rpartition(":"), None
    while not last_word.exists():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            seen = time.monotonic()
        except OSError as error:  # refused: its machine is there. Else the network may be slow
            lost = told or isinstance(error, ConnectionRefusedError)
            lost = lost or time.monotonic() - (seen or started) > GRACE
            if seen and lost and not last_word.exists():
                print(f"{job} {index}: the chief is gone", flush=True)
                os._exit(143)
        waited = time.monotonic() - (told[0] if told else started)
        if told and (not seen or waited > GRACE) or not seen and waited > 3600:
            os._exit(143)
        time.sleep(0.3)
    last_word.unlink(missing_ok=True)
    del server
    os._exit(0)


def watch_connections():
    """Has Linux end a connection whose other machine is silent for GRACE seconds, as at a cut link:
    TensorFlow sets no limit, and steps would wait for the 15 minutes that Linux takes by itself."""
    limits = (("KEEPIDLE", 5), ("KEEPINTVL", 5), ("USER_TIMEOUT", 1000 * GRACE))
    while True:  # for those that are new
        for path in filter(Path.is_socket, Path("/proc/self/fd").glob("*")):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as each:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in limits:
                    each.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)
        time.sleep(1)


def dismiss(cluster):
    """Tells workers and servers that the run is finished. What was lost is not waited for."""

    def tell(job, index):
        with tf.device(f"/job:{job}/task:{index}/device:CPU:0"):
            tf.io.write_file(f"{run_dir}/finished-{job}-{index}", "")

    tasks = [(job, index) for job in ("worker", "ps") for index in range(len(cluster.get(job, [])))]
    threads = [threading.Thread(target=tell, args=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + GRACE / 4
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))


def schedule(function, *arguments):
    with ONE_AT_A_TIME:
        return coordinator.schedule(function, arguments) if coordinator else function(*arguments)


def wait_for(result):
    """Returns a step's numbers, [n] float64, once some worker has done it."""
    while coordinator:
        try:
            return result.fetch()
        except tf.errors.OpError:  # its worker was lost with the result: another does it again
            with ONE_AT_A_TIME:
                coordinator.done()  # raises what is not a worker's loss
            time.sleep(0.1)
    return result.numpy()


def pack(tensors):
    """Returns tensors as one, [n] float64: from a worker, each would take a call of its own."""
    return tf.concat([tf.reshape(tf.cast(x, tf.float64), [-1]) for x in tensors], axis=0)


def create_strategy(cluster):
    """Returns the strategy, its coordinator, and the strategy's name. Without a cluster, steps are
    taken here, one after the other, by the same functions."""
    if not cluster:
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        return tf.distribute.OneDeviceStrategy(f"{kind}:0"), None, "one_device"
    on_signals(signal.SIG_DFL)  # it waits for all tasks, and Python hears nothing meanwhile
    tf.get_logger().addFilter(tell_loss)
    tf.config.set_visible_devices([], "GPU")  # which are the workers'
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    if strategy.num_replicas_in_sync > 1:
        refuse("a worker has several GPUs; start one for each, with its CUDA_VISIBLE_DEVICES")
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy), "parameter_server"


def tell_loss(record):
    """Has the coordinator's reports of a lost worker, of many lines, be one line."""
    if str(record.msg).startswith("Worker %s failed"):
        index = record.args[0].rpartition(":")[2]  # of /job:worker/replica:0/task:1
        say(f"worker {index} is lost; its steps go to others, and it may come back")
    return False


class Adam(keras.optimizers.Adam):
    """Keras's Adam (with `weight_decay`, its AdamW), whose update is one operation, on the server
    that holds the variable, instead of a dozen that carry it to the worker. Either goes on with
    the other's checkpoints. Of an embedding, only the rows of the batch are updated, and moved."""

    def update_step(self, gradient, variable, learning_rate):
        if self.amsgrad:  # which the operation doesn't know
            return super().update_step(gradient, variable, learning_rate)
        m, v = (x[self._get_variable_index(variable)] for x in (self._momentums, self._velocities))
        step, rate = (tf.cast(x, variable.dtype) for x in (self.iterations + 1, learning_rate))
        p1, p2 = self.beta_1**step, self.beta_2**step
        if isinstance(gradient, tf.IndexedSlices):
            rows, index = gradient.values, gradient.indices
            new_m = self.beta_1 * tf.gather(m.value, index) + (1 - self.beta_1) * rows
            new_v = self.beta_2 * tf.gather(v.value, index) + (1 - self.beta_2) * rows**2
            rows = rate * tf.sqrt(1 - p2) / (1 - p1) * new_m / (tf.sqrt(new_v) + self.epsilon)
            variable.scatter_sub(tf.IndexedSlices(rows, index))
            m.value.scatter_update(tf.IndexedSlices(new_m, index))
            v.value.scatter_update(tf.IndexedSlices(new_v, index))
            return None
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=m.value.handle, v=v.value.handle, lr=rate, grad=gradient,
            beta1=self.beta_1, beta2=self.beta_2, epsilon=self.epsilon,
            beta1_power=p1, beta2_power=p2, use_locking=True,
        )  # fmt: skip


def update(optimizer, gradients, variables):
    """Applies the gradients of a batch. An embedding's are IndexedSlices, which may have an index
    twice: Keras's Adam would square each (keras#19992), so they are summed before."""
    optimizer.apply([sum_slices(gradient) for gradient in gradients], variables)


def sum_slices(gradient):
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    index, place = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(index))
    return tf.IndexedSlices(rows, index, gradient.dense_shape)


def load(dataset, split):
    """Returns all examples of a dataset, stacked, and their number. With all at hand, the order of
    an epoch is computed, not drawn from a buffer, so that a run resumes at any step at once."""
    size = int(dataset.cardinality())
    if size <= 0:
        refuse(f"create_datasets: {split} is empty, or of unknown size: see assert_cardinality")
    with tf.device("CPU:0"):  # as variables: of a tensor, each iterator would take a copy
        return tf.nest.map_structure(tf.Variable, next(iter(dataset.batch(size)))), size


def shuffle(size, epoch):
    """Returns the order of an epoch, [size] int32, drawn from SEED and the epoch alone. Not by
    tf.random.experimental.index_shuffle, whose orders of two epochs are alike."""
    return tf.random.experimental.stateless_shuffle(tf.range(size), tf.stack([SEED, epoch]))


def distribute(examples, size, training):
    """Returns the arguments of the step of a number, as a function, and the steps of an epoch. The
    chief deals out places in the order of the epoch; the examples of these are the same whoever
    takes the step, and each worker holds all examples: it gets them once, when it comes."""
    steps = STEPS_PER_EPOCH if training else math.ceil(size / GLOBAL_BATCH_SIZE)

    def create_dataset():  # of one element, all examples, again and again: no copy is made
        tensors = tf.nest.map_structure(tf.convert_to_tensor, examples)
        return tf.data.Dataset.from_tensors((tensors, size)).repeat()

    spread = coordinator.create_per_worker_dataset if coordinator else lambda create: create()
    iterator, epochs = iter(spread(create_dataset)), {}

    def place(step):
        epoch, place = divmod(step, steps) if training else (0, step)
        if epoch not in epochs:  # of one epoch at a time
            epochs.clear()
            epochs[epoch] = (shuffle(size, epoch) if training else tf.range(size)).numpy()
        index = epochs[epoch][place * GLOBAL_BATCH_SIZE :][:GLOBAL_BATCH_SIZE]
        index = np.pad(index, (0, GLOBAL_BATCH_SIZE - len(index)), "edge")  # the last batch's
        return iterator, tf.constant(step), tf.constant(index)

    return place, steps


def create_batch(examples, step, index, training):
    """Returns (features, labels, sample_weight) of a step, on the worker that takes it. What fills
    up the last batch of an evaluation has weight 0."""
    epoch, place = (step // STEPS_PER_EPOCH, step % STEPS_PER_EPOCH) if training else (0, step)
    key = tf.random.stateless_uniform([], [SEED, epoch], None, None, tf.int32)
    position = place * GLOBAL_BATCH_SIZE + tf.range(GLOBAL_BATCH_SIZE)
    seeds = tf.stack([tf.fill([GLOBAL_BATCH_SIZE], key), position], axis=1)
    batch, size = next(examples)
    batch = tf.nest.map_structure(lambda values: tf.gather(values, index), batch)
    batch = preprocess(fetch(batch), seeds, training)
    features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    real = tf.cast(position < size, tf.float32)
    return features, labels, real if sample_weight is None else real * sample_weight


def create_managers():
    """Returns the checkpoints' managers, of variables by position: two layers may have one name."""
    weights = [x for each in tf.nest.flatten(model) for x in each.variables]
    slots = [x.value for each in tf.nest.flatten(optimizer) for x in each.variables]
    kept = {"model": [x.value for x in weights], "names": tf.Variable([x.path for x in weights])}
    best = tf.train.Checkpoint(step=state["step"], **kept)
    last = tf.train.Checkpoint(**state, **kept, optimizer=slots)
    folder, keep = run_dir / "checkpoints", tf.train.CheckpointManager
    try:
        return {"best": keep(best, folder / "best", 1), "last": keep(last, folder / "last", 3)}
    except Exception as error:  # about TensorFlow's lists of what is there
        refuse(f"{folder}: best/checkpoint or last/checkpoint is damaged ({error}); remove it")


@tf.function
def are_finite():
    kept, finite = managers["last"].checkpoint, []
    for x in (*kept.model, *kept.optimizer):
        if x.dtype.is_floating:
            with tf.device(x.device):  # the server's: a sum goes over the network, not the weights
                finite.append(tf.math.is_finite(tf.reduce_sum(tf.convert_to_tensor(x))))
    return tf.reduce_all(finite)


def save(which):
    """Has each server write its part of a checkpoint, and puts them together."""
    # Counted by the step: files don't differ by how often a run was stopped.
    managers[which].checkpoint.save_counter.assign(state["step"] - 1)
    managers[which].save(checkpoint_number=state["step"].numpy())


def find_checkpoint(which):
    """Returns the newest one's path, or None; not by TensorFlow's list: a kill leaves it behind."""
    paths = (x for x in run_dir.glob(f"checkpoints/{which}/ckpt-*.index") if x.stem[5:].isdigit())
    magic = b"W\xfb\x80\x8b$uG\xdb"  # at the end of an index that no kill has cut short
    whole = (x.with_suffix("") for x in paths if x.read_bytes().endswith(magic))
    return max(whole, key=lambda x: int(x.name[5:]), default=None)


def restore(which):
    """Restores the newest checkpoint, if any. Returns the step."""
    path = find_checkpoint(which)
    if which == "best" and not path:
        refuse(f"--run-dir {run_dir} has no best checkpoint; train it first, or put it back")
    try:
        if path:
            managers[which].checkpoint.restore(str(path)).assert_consumed()
    except Exception as error:  # of half a dozen kinds, by what is cut short, flipped, or unlike
        reason = str(error).partition("\n")[0]
        refuse(f"{path} is damaged, or not of this model ({reason}); name another --run-dir")
    return int(state["step"].numpy())


def read_log():
    """Returns the lines of the log that make sense: a kill may have cut the last one short."""
    texts = (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    lines = [json.loads(text) for text in texts if text.endswith("}")]
    return [x for x in lines if describe(x) and 0 <= x["epoch"] <= x["step"] and x["split"] > ""]


def log(step, split, values):
    """Adds a line to the log, and points to TensorBoard's curves."""
    if WORKER == 0:
        line = {"step": step, "epoch": math.ceil(step / STEPS_PER_EPOCH), "split": split, **values}
        with open(run_dir / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        kind = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
        with writers[split].as_default(step):
            for name, value in values.items():  # tf.summary.scalar would need tensorboard
                tf.summary.write(name, np.float32(value), metadata=kind)


def check_run(config):
    """Refuses what would change the numbers of the run under way. Ends where it is finished."""
    keys = ["seed", "global_batch_size", "learning_rate", "train_examples", "schedule"]
    keys += ["clip_norm", "ema_momentum", "warmup_steps", "precision"]  # of a complete script's run
    try:
        before, lines = dict(json.loads((run_dir / "config.json").read_text("utf-8"))), read_log()
    except Exception as error:  # of half a dozen kinds, by what is damaged
        refuse(f"{run_dir}/config.json or metrics.jsonl can't be read ({error}); restore it")
    for key in keys:
        if before.get(key) != config.get(key):
            refuse(f"{run_dir}/config.json has {key} {before.get(key)}, not {config.get(key)}")
    end, last_line = EPOCHS * STEPS_PER_EPOCH, [{"step": 0, "split": None}, *lines][-1]
    if last_line["step"] > end:
        refuse(f"--run-dir {run_dir} is at epoch {last_line['epoch']}, past --epochs {EPOCHS}")
    if (last_line["step"], last_line["split"]) == (end, "test") and (run_dir / "export").exists():
        say(f"{run_dir} is finished: test {describe(last_line)}; more --epochs would go on")
        raise SystemExit(0)
    return lines


def export(folder, examples):
    """Writes the first model for serving, of what `fetch` puts first, and each as .keras."""
    weights = [x.numpy() for each in tf.nest.flatten(model) for x in each.variables]
    keras.utils.clear_session(free_memory=False)  # so that layers count from 1
    with tf.device("CPU:0"):  # made without a strategy, a copy loads anywhere
        models = tf.nest.flatten(create_model_and_optimizer(tf.distribute.get_strategy())[0])
        for copy in (x for each in models for x in each.variables):
            copy.assign(weights.pop(0))
    examples = fetch(tf.nest.map_structure(lambda x: x[:1], examples))
    inputs, *others = examples if isinstance(examples, tuple) else (examples,)
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), inputs)

    @tf.function(input_signature=[spec])
    def serve(inputs):
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        blank = tf.nest.map_structure(lambda x: tf.zeros([size, *x.shape[1:]], x.dtype), others)
        batch = (inputs, *blank) if isinstance(examples, tuple) else inputs
        batch = preprocess(batch, tf.zeros([size, 2], tf.int32), training=False)
        return models[0](batch[0], training=False)

    part, archive = folder.with_name("export.part"), keras.export.ExportArchive()
    shutil.rmtree(part, ignore_errors=True)
    archive.track(models[0])
    archive.add_endpoint("serve", serve)
    archive.write_out(part, verbose=False)
    for number, each in enumerate(models, start=1):
        each.save(part / ("model.keras" if number == 1 else f"model_{number}.keras"))
    part.rename(folder)


def evaluate_each(validation_set):
    """Is the evaluator: tells the validation of each checkpoint, until the run is finished."""
    on_signals(lambda *_: os._exit(143))
    say(f"waits for checkpoints of {run_dir}")
    step = 0
    while True:
        path = find_checkpoint("last")
        if path and int(path.name[5:]) > step:
            step = restore("last")
            say(f"step {step}", f"validation {describe(validate(*validation_set))}")
        elif path and {"split": "test", "step": step}.items() <= read_log()[-1].items():
            return 0
        time.sleep(1)


# 7. main ------------------------------------------------------------------------------------------


def parse_arguments(argv):
    style = argparse.RawDescriptionHelpFormatter
    epilog = "There is no --strategy and no --replicas: TF_CONFIG says what takes part."
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=epilog, formatter_class=style, allow_abbrev=False
    )
    parser.error = refuse  # argparse's own prints the usage first
    add = parser.add_argument
    add("--mode", choices=["train", "evaluate"], default="train", help="[%(default)s]")
    add("--run-dir", default="run", help="what the run writes, and resumes from [%(default)s]")
    add("--epochs", type=int, default=EPOCHS, help="[%(default)s]")
    add("--global-batch-size", type=int, default=GLOBAL_BATCH_SIZE, help="of a step [%(default)s]")
    add("--steps-per-loop", type=int, default=100, help="at most [%(default)s]")
    add("--checkpoint-every-steps", type=int, default=1000, help="and each epoch [%(default)s]")
    add("--learning-rate", type=float, default=LEARNING_RATE, help="[%(default)s]")
    add("--seed", type=int, default=SEED, help="[%(default)s]")
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        least, most = -(name == "seed"), 2**31 if type(value) is int else math.inf
        if type(value) in (int, float) and not least < value < most:
            refuse(f"--{name.replace('_', '-')}: '{value}' is not between {least} and {most}")
    return args


def main(argv=None):
    """Returns the exit code, 0. Wrong input (2) and a run that can't go on end by SystemExit."""
    global args, strategy, coordinator, model, optimizer, loss_object, run_dir, state
    global train_metrics, validation_metrics, test_metrics, WORKERS
    global GLOBAL_BATCH_SIZE, EPOCHS, LEARNING_RATE, SEED, STEPS_PER_EPOCH, managers, writers

    # 1. Read the flags, and find the others. Workers and servers go no further.
    args = parse_arguments(argv)
    GLOBAL_BATCH_SIZE, EPOCHS = args.global_batch_size, args.epochs
    LEARNING_RATE, SEED, run_dir = args.learning_rate, args.seed, Path(args.run_dir)
    taken = (run_dir / "config.json").exists() and not (run_dir / "metrics.jsonl").exists()
    inner = (*run_dir.glob("checkpoints/**/"), *run_dir.glob("tensorboard/**/"))
    closed = [x for x in inner if not os.access(x, 5 if args.mode == "evaluate" else 7)]
    odd = not args.run_dir.isprintable() or set("[\\") & set(run_dir.as_posix())  # TensorFlow globs
    if taken or closed or odd or (run_dir / "train.py").is_dir() or "://" in args.run_dir:
        refuse(f"--run-dir {args.run_dir} has ://, [, \\, closed or others' files; name another")
    cluster, job, index = read_tf_config()
    if cluster:
        threading.Thread(target=watch_connections, daemon=True).start()
    if job in ("worker", "ps"):
        serve(cluster, job, index)
    WORKERS = len(cluster.get("worker", []))
    strategy, coordinator, strategy_name = create_strategy(cluster)
    on_signals(lambda *_: os._exit(143))

    # 2. Load the data.
    splits = ("train", "validation", "test")
    sets = {split: load(x, split) for split, x in zip(splits, create_datasets(), strict=True)}
    size = sets["train"][1]
    if GLOBAL_BATCH_SIZE > size:
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} is above the {size} training examples")
    STEPS_PER_EPOCH = size // GLOBAL_BATCH_SIZE
    last_step = EPOCHS * STEPS_PER_EPOCH

    # 3. See what the run directory holds.
    config = {**vars(args), "strategy": strategy_name, "workers": WORKERS}
    git = {"cwd": Path(__file__).parent, "shell": True, "capture_output": True, "text": True}
    commit = subprocess.run("git rev-parse HEAD", **git).stdout.strip() or None
    used = {x.__name__: x.__version__ for x in (tf, keras, np)} | {"python": sys.version.split()[0]}
    config |= {"train_examples": size, "versions": used, "git_commit": commit}
    config |= {"schedule": "constant", "warmup_steps": 0, "precision": "float32"}  # as flags
    path = find_checkpoint("best" if args.mode == "evaluate" else "last")
    lines = check_run(config) if args.mode == "train" and job == "chief" and path else []

    # 4. Create the model and what belongs to it; restore it.
    keras.utils.set_random_seed(SEED)
    loss_object = create_loss_objects(strategy)
    train_metrics, validation_metrics, test_metrics = create_metrics(tf.distribute.get_strategy())
    for metric in (*train_metrics, *validation_metrics, *test_metrics):  # on the chief
        count(metric)
    model, optimizer = create_model_and_optimizer(strategy)
    with strategy.scope():  # in a traced step it is too late to create variables (keras#23085)
        for each, its in zip(*map(tf.nest.flatten, (model, optimizer)), strict=True):
            its.build(each.trainable_variables)
    state = {"step": tf.Variable(np.int64(0)), "best_loss": tf.Variable(np.float64("inf"))}
    managers = create_managers()
    validation_set, test_set = (distribute(*sets[split], training=False) for split in splits[1:])
    if job == "evaluator":
        return evaluate_each(validation_set)
    if args.mode == "evaluate":
        restore("best")
        say(f"test {describe(test(*test_set))}  of {path}")
        return 0
    step = first_step = restore("last")
    # The lines of the log that come again are dropped; of an epoch's end, its validation's too.
    lines = [x for x in lines if (x["step"], x["split"] != "train") <= (step, False)]
    files = {"metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines)}
    files |= {"config.json": json.dumps(config), "train.py": Path(__file__).read_text("utf-8")}
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():  # a kill leaves the old one, or the new one
            (run_dir / f"{name}.part").write_text(text, "utf-8")
            (run_dir / f"{name}.part").replace(run_dir / name)
    except OSError as error:
        refuse(f"--run-dir {run_dir} can't be written ({error.strerror}); name another")
    writers = {x: tf.summary.create_file_writer(f"{run_dir}/tensorboard/{x}") for x in splits}
    for server in range(len(cluster.get("ps", []))):
        with tf.device(f"/job:ps/task:{server}/device:CPU:0"):
            if not len(tf.io.matching_files(f"{run_dir}/config.json")):
                refuse(f"--run-dir {run_dir} is not one folder for all; name one that they share")
    who = f"{WORKERS} × worker, {len(cluster['ps'])} × ps" if cluster else "1 × worker, here"
    resumed = f", resumed at step {step} from {path}" if path else ""
    say(f"{strategy_name} on {who}, {STEPS_PER_EPOCH} steps an epoch{resumed}")

    # 5. Train, in loops of nearly equal length. Resumed at an epoch's end, it validates first.
    on_signals(request_stop)
    data, _ = distribute(*sets["train"], training=True)
    loops = math.ceil(STEPS_PER_EPOCH / min(args.steps_per_loop, args.checkpoint_every_steps))
    started, trained, epoch_ends = time.monotonic(), "", step > 0 and step % STEPS_PER_EPOCH == 0
    while True:
        if epoch_ends:
            validated = validate(*validation_set)
            if not math.isfinite(validated["loss"]):
                refuse(f"the validation loss is not finite after step {step}, not saved", code=1)
            is_best = validated["loss"] < state["best_loss"].numpy()
            if is_best:  # written before the last: a run killed between the two makes both again
                save("best")
            save("last")
            state["best_loss"].assign(min(validated["loss"], state["best_loss"].numpy()))
            log(step, "validation", validated)
            row = f"epoch {step // STEPS_PER_EPOCH:3}/{EPOCHS}{' *' if is_best else '  '}"
            say(row, f"validation {describe(validated)}", trained and f"train\0{describe(trained)}")
            if step == last_step:
                break
        nth = math.ceil((step % STEPS_PER_EPOCH + 1) * loops / STEPS_PER_EPOCH)  # of these is next
        end = step - step % STEPS_PER_EPOCH + nth * STEPS_PER_EPOCH // loops
        done, trained = train(data, step, end - step)
        end = step + done  # a signal ends a loop early
        if signals:
            signals[0].cancel()  # saving takes the time that it takes
        if not (math.isfinite(trained["loss"]) and are_finite()):
            problem = f"the loss or a weight is not finite between steps {step} and {end}"
            refuse(f"{problem}, not saved; try a --learning-rate below {LEARNING_RATE:g}", code=1)
        state["step"].assign(end)
        log(end, "train", trained)
        if sys.stdout.isatty():
            seconds = (time.monotonic() - started) / (end - first_step) * (last_step - end)
            left, bar = datetime.timedelta(seconds=round(seconds)), "█" * (10 * end // last_step)
            say(f"step {end:,}/{last_step:,} {bar:░<10} {left} left", describe(trained), end="")
        saves = end // args.checkpoint_every_steps > step // args.checkpoint_every_steps
        step, epoch_ends = end, end % STEPS_PER_EPOCH == 0
        if signals or (saves and not epoch_ends):
            save("last")
        if signals:
            say(f"stopped, and saved at step {step}; the same command goes on")
            os._exit(143)  # Python's own end would wait for the others

    # 6. Test the best checkpoint.
    on_signals(lambda *_: os._exit(143))  # all is saved
    for rest in (run_dir / "export", *run_dir.glob("checkpoints/*/*_temp")):
        shutil.rmtree(rest, ignore_errors=True)  # what kills have left, or an export of before
    restore("best")
    tested = test(*test_set)
    log(step, "test", tested)
    say(f"test {describe(tested)}  of {find_checkpoint('best')}")

    # 7. Export it.
    export(run_dir / "export", sets["test"][0])
    say(f"written to {run_dir}: checkpoints, export, metrics.jsonl, tensorboard")
    return 0


def run(argv=None):
    """Runs `main`, and ends the process with its exit code where that isn't 0."""
    sys.stdout.reconfigure(errors="replace")  # of × and █, on a terminal without them
    e = tf.errors
    try:
        code = main(argv)
    except SystemExit as end:
        code = end.code
    except (e.UnavailableError, e.AbortedError, e.CancelledError, e.DeadlineExceededError):
        print("train.py: stopped: a server is lost; start all tasks again", file=sys.stderr)
        code = 143
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    if code or coordinator:
        if not code:
            dismiss(read_tf_config()[0])
        sys.stdout.flush()
        os._exit(code)  # Python's own end would wait for the others


if __name__ == "__main__":
    run()
