# /// script
# requires-python = ">=3.10"
# dependencies = ["tensorflow>=2.18", "keras>=3.10", "tensorboard>=2.18", "scikit-learn>=1.4"]
# ///
"""TF Distribute: the same numbers on any device.

    uv run train.py                     train, or go on where the last checkpoint stands
    uv run train.py --replicas 4        rehearse four replicas on this machine's CPU
    uv run train.py --mode evaluate     the best checkpoint of the run, on the test split
    TF_CONFIG='{"cluster": ...}' uv run train.py     be one worker of several: see README.md

Edit section 3, and maybe 4, at each TODO(you). From cookiecutter-tf-distribute 0.1.0.
"""

import argparse
import ast
import concurrent.futures
import contextlib
import datetime
import gc
import hashlib
import json
import math
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

if __name__ == "__main__":  # until `main` listens: no traceback of the imports
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(143))  # NumPy would catch an exception

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
DEVICE: str = "CPU"  # or GPU or TPU: the kind of theirs
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

SCHEDULE: str = "constant"
WARMUP_STEPS: int | None = 0  # None is a tenth of all steps
ACCUMULATION_STEPS: int = 1  # the parts in which a replica takes its batch
CLIP_NORM: float | None = None
PRECISION: str = "float32"

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


def distributed_train_step(batch):
    return strategy.reduce("SUM", strategy.run(train_step, args=(batch,)), axis=None)


def distributed_validation_step(batch):
    return strategy.reduce("SUM", strategy.run(validation_step, args=(batch,)), axis=None)


def distributed_test_step(batch):
    return strategy.reduce("SUM", strategy.run(test_step, args=(batch,)), axis=None)


# 5. Loops: many steps -----------------------------------------------------------------------------


@tf.function
def run_steps(distributed_step, iterator, steps):
    """Runs many steps in one graph. Their number is a tensor: a Python number would trace a graph
    for each value. Returns the sums of the losses and of their weights, [2] float64, and the
    seconds spent waiting for data, [] float64."""
    sums, waited = tf.zeros([2], tf.float64), tf.zeros([], tf.float64)
    weights = tf.nest.flatten(model)[0].trainable_variables[0].value  # they get their gradient last
    for _ in tf.range(steps):
        ready = clock([tf.convert_to_tensor(weights)])
        batch = next_batch(iterator)
        parts = [x for x in tf.nest.flatten(batch, expand_composites=True) if x is not None]
        waited += tf.maximum(clock(parts) - ready, 0.0)
        sums += tf.cast(distributed_step(batch), tf.float64)
    with tf.control_dependencies([tf.convert_to_tensor(weights)]):  # a GPU may still be at work
        return tf.identity(sums), waited


def run_loop(distributed_step, metrics, iterator, steps):
    """Returns the loss and the metrics, means over the steps, and the seconds waited for data."""
    for metric in metrics:
        metric.reset_state()
    sums, waited = run_steps(distributed_step, iterator, tf.constant(steps))
    loss, weight = sums.numpy()
    values = {metric.name: float(metric.result()) for metric in metrics}
    return {"loss": float(loss / weight) if weight else 0.0, **values}, float(waited)


def train(iterator, steps):
    """Runs a loop of training. Returns the values of its line in the log."""
    started = time.perf_counter()
    metrics = [*train_metrics, gradient_norm] if CLIP_NORM else train_metrics
    values, waited = run_loop(distributed_train_step, metrics, iterator, steps)
    seconds = time.perf_counter() - started
    values["learning_rate"] = float(tf.nest.flatten(optimizer)[0].learning_rate.numpy())
    speed = steps * GLOBAL_BATCH_SIZE / seconds
    return {**values, "examples_per_second": speed, "input_wait": waited / seconds}


def validate(iterator, steps):
    return run_loop(distributed_validation_step, validation_metrics, iterator, steps)[0]


def test(iterator, steps):
    return run_loop(distributed_test_step, test_metrics, iterator, steps)[0]


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


scratch: str = ""  # a folder that goes with the process
ending = threading.Lock()  # of the thread that ends the process; others stop here


def listen_for_signals():
    """Ends the process on SIGTERM or Ctrl-C, at any moment: a thread reads the byte that announces
    one. Python calls a handler when the loop in the graph returns, which may take minutes."""
    reader, wakeup = socket.socketpair()  # not a pipe, for Windows
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.detach())
    on_signals(lambda *_: None)
    threading.Thread(target=interrupt, args=[reader], daemon=True).start()


def on_signals(handler):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def interrupt(reader=None):
    """Ends with exit code 143, given a reader once a byte comes. The chief first writes its copy of
    where the last loop ended: so nobody waits for a step that a lost worker may never finish."""
    if reader:
        reader.recv(1)
        ending.acquire()
    try:
        last = snapshot  # meanwhile training may go on, and make another
        if WORKER == 0 and last and int(last["step"]) not in [0, *list_checkpoints("last")]:
            writer.submit(write_checkpoint, last).result()
            say(f"stopped, and saved at step {last['step']}; the same command goes on")
    except Exception as error:
        leave(explain(error))
    leave(143)


def leave(code):
    """Ends the process, once the checkpoint that is being written is whole. Not as Python ends by
    itself, for then TensorFlow waits for the other workers."""
    concurrent.futures.wait([writing] if writing else [])
    time.sleep(WORKERS > 1)  # others may still ask this one for its part of the last sum
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the main thread may miss what goes now
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(code)


def explain(error):
    """Says what an exception means: in one line, or as it is. Returns the exit code."""
    text, code = str(error), 1
    lost = isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)
    if "No space left on device" in text:
        folder = run_dir.resolve() if run_dir.exists() else Path(scratch)
        line = f"stopped: the disk of {folder} is full; make room, and the same command goes on"
    elif args.jit_compile and "XLA" in text:
        operations = sorted(set(re.findall(r"(\w+) \(No registered", text))) or ["this step"]
        line, code = f"error: --jit-compile: XLA can't compile {', '.join(operations)}", 2
    elif WORKERS > 1 and (lost or "coordination" in text.lower()):
        # The error names it among others, as /job:worker/task:1 or /job:worker/replica:0/task:1.
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        tasks = re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", text)
        names = {f"{job} {index}" for job, index in tasks} - {f"{task['type']} {task['index']}"}
        names = " and ".join(sorted(names)) or "another worker"
        line, code = f"stopped: {names} is lost; start all workers again", 143
    elif "Could not start gRPC server" in text or "port for local server" in text:
        line, code = "error: TF_CONFIG: TensorFlow can't listen at this worker's address", 2
    elif run_dir in Path(f"{getattr(error, 'filename', 0)}/x").parents[:-1]:  # a file of it
        line, code = f"error: --run-dir {run_dir}: {error}; name another folder", 2
    else:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    print(f"train.py: {line}", file=sys.stderr)
    return code


def read_tf_config():
    """Returns the index of this worker and the addresses of all, from TF_CONFIG. The chief is 0."""
    try:
        os.environ["TF_CONFIG"] = os.environ.get("TF_CONFIG") or "{}"  # TensorFlow can't read ""
        if (config := json.loads(os.environ["TF_CONFIG"])) == {}:
            return 0, ["localhost"]
        cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
        if job == "evaluator":  # alone, beside the cluster
            args.mode = "continuous_evaluate"
            return 0, ["localhost"]
        cluster = {name: x for name, x in cluster.items() if name != "evaluator"}
        address = tf.train.ClusterSpec(cluster).task_address(job, int(str(index)))  # not True, 1.0
        if set(cluster) - {"chief", "worker"} or not 0 < int(address.rpartition(":")[2]) < 65536:
            raise ValueError(f"chief, worker, ports < 65536, not {', '.join(cluster)}, {address}")
        chiefs = cluster.get("chief", [])
        return index + len(chiefs) * (job == "worker"), chiefs + cluster.get("worker", [])
    except Exception as error:  # of half a dozen kinds
        like = '{"cluster": {"worker": ["a:22", "b:22"]}, "task": {"type": "worker", "index": 0}}'
        refuse(f"TF_CONFIG: {type(error).__name__} {error}; it should be like {like}")


def sum_over_workers(numbers):
    """Returns the sum of all workers' int64 numbers, once all have called it."""
    if WORKERS == 1:
        return numbers
    numbers, spread = np.int64(numbers), strategy.experimental_distribute_values_from_function
    total = strategy.reduce("SUM", spread(lambda _: tf.constant(numbers)), axis=None).numpy()
    return total // (strategy.num_replicas_in_sync // WORKERS)  # each replica has given them


def meet(addresses):
    """Waits until all workers have come, at the chief's address in TF_CONFIG, where TensorFlow
    listens later: it would wait for an hour, and Python hear nothing meanwhile."""
    host, _, port = addresses[0].rpartition(":")
    limit, told, began = args.timeout or 600, 0, time.monotonic()
    missing = dict(enumerate(addresses[1:], start=1)) if WORKER == 0 else {0: addresses[0]}
    with contextlib.ExitStack() as stack:
        if WORKER == 0:
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                server = stack.enter_context(socket.create_server(("", int(port)), family=family))
            except (OSError, OverflowError, ValueError) as error:
                refuse(f"TF_CONFIG: the chief can't listen at {addresses[0]} ({error})")
            server.settimeout(0.5)
        while missing:
            waited = time.monotonic() - began
            names = " and ".join(f"worker {i} at {address}" for i, address in missing.items())
            if waited > limit:
                refuse(f"{names} did not come in {limit:g} s; start all workers again", code=143)
            if waited > 5 + 60 * told:  # all workers say it, not only the chief
                told += 1
                print(f"waiting for {names}, for {limit - waited:.0f} s more", flush=True)
            with contextlib.suppress(OSError, ValueError):  # nobody there, or somebody else
                if WORKER == 0:
                    connection, _ = server.accept()
                else:
                    time.sleep(0.2)
                    connection = socket.create_connection((host.strip("[]"), int(port)), 30)
                stack.enter_context(connection).settimeout(30)
                connection.sendall(b"%9d" % WORKER)
                missing.pop(int(connection.recv(9, socket.MSG_WAITALL)), None)


def broadcast(value):
    """Returns the chief's value on every worker: the sum of its pickle and of others' zeros."""
    if WORKERS == 1:
        return value
    content = pickle.dumps(value) if WORKER == 0 else b""
    size = sum_over_workers(-(-len(content) // 4))
    content = np.frombuffer(content.ljust(4 * size, b"\0"), np.int32)
    pieces = np.split(content, range(1 << 24, size, 1 << 24))  # a message has at most 2 GiB
    return pickle.loads(b"".join(np.int32(sum_over_workers(x)).tobytes() for x in pieces))


def ask_the_chief(function, *arguments):
    """Returns on all workers what a function returns on the chief, who alone reads and writes the
    run: others needn't be able to. Where it ends the chief, all end."""
    value, code = None, None
    try:
        if WORKER == 0:
            value = function(*arguments)
    except SystemExit as end:
        code = end.code
    except OSError as error:
        code = explain(error)
    value, code = broadcast((value, code))
    if code is not None:
        raise SystemExit(code)
    return value


def check_workers(facts):
    """Ends all workers, in a line with both values, where a fact is not the chief's on one."""
    text, texts = json.dumps(facts).encode(), np.zeros([WORKERS, 1 << 14], np.int64)
    texts[WORKER, : len(text)] = np.frombuffer(text, np.uint8)
    texts = sum_over_workers(texts).astype(np.uint8)  # of each worker, for all to read
    chiefs, *others = [json.loads(row.tobytes().rstrip(b"\0")) for row in texts]
    for worker, its in enumerate(others, start=1):
        for key in (key for key in its if its[key] != chiefs.get(key)):
            refuse(f"worker {worker} has {key} {its[key]}, but the chief has {chiefs.get(key)}")


def create_strategy():
    """Returns the strategy, its name, for which `auto` may stand, and the kind of its devices."""
    name, replicas = args.strategy, args.replicas
    gpus = [] if replicas else tf.config.list_physical_devices("GPU")
    tpu = os.environ.get("TPU_NAME") or tf.config.list_physical_devices("TPU")
    if name == "auto":
        several = "mirrored" if max(replicas or 1, len(gpus)) > 1 else "one_device"
        name = "multi_worker" if WORKERS > 1 else "tpu" if tpu else several
    if replicas and name != "mirrored" and (replicas, name) != (1, "one_device"):
        refuse(f"--replicas {replicas} is for --strategy mirrored, on one machine, not {name}")
    if name == "tpu" and not tpu:
        refuse("--strategy tpu finds no TPU; set TPU_NAME, or take another strategy")
    if WORKERS > 1 and name != "multi_worker":
        refuse(f"--strategy {name} is for one worker, but TF_CONFIG has {WORKERS}; unset either")
    if name == "multi_worker" and os.environ["TF_CONFIG"] == "{}":
        refuse("--strategy multi_worker reads TF_CONFIG, which is not set; README.md shows how")
    if name == "tpu":
        connect = tf.distribute.cluster_resolver.TPUClusterResolver.connect
        return tf.distribute.TPUStrategy(connect(os.environ.get("TPU_NAME", "local"))), name, "TPU"
    kind, link = ("GPU", "NCCL") if gpus else ("CPU", "RING")  # "AUTO" would take RING for both
    if kind == "CPU" and name != "one_device":  # or replicas round otherwise than workers
        off = {"arithmetic_optimization": False, "remapping": False}
        tf.config.optimizer.set_experimental_options(off)
    if name == "multi_worker":
        meet(read_tf_config()[1])
        on_signals(signal.SIG_DFL)  # should one be lost just now, Python would hear nothing
        options = tf.distribute.experimental.CommunicationOptions(implementation=link)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options), name, kind
    if replicas:
        tf.config.set_visible_devices([], "GPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    devices = [device.name for device in tf.config.list_logical_devices(kind)]
    several, one = tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy
    how = tf.distribute.ReductionToOneDevice() if replicas == 2 else None  # of more, other bits
    return several(devices, how) if name == "mirrored" else one(devices[0]), name, kind


class Adam(keras.optimizers.Adam):
    """Keras's Adam (with `weight_decay`, AdamW) as one operation; each reads the other's state."""

    def update_step(self, gradient, variable, learning_rate):
        if self.amsgrad:  # which the operation doesn't know
            return super().update_step(gradient, variable, learning_rate)
        m, v = (x[self._get_variable_index(variable)] for x in (self._momentums, self._velocities))
        step, rate = (tf.cast(x, variable.dtype) for x in (self.iterations + 1, learning_rate))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=m.value.handle, v=v.value.handle, lr=rate, grad=gradient,
            beta1=self.beta_1, beta2=self.beta_2, epsilon=self.epsilon,
            beta1_power=self.beta_1**step, beta2_power=self.beta_2**step,
        )  # fmt: skip


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Rises from 0 to a learning rate in WARMUP_STEPS; then stays, or falls to 0 at the end of the
    last epoch, in a line or in half a wave of the cosine (arxiv.org/abs/1608.03983)."""

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def __call__(self, step):
        step, all_steps = tf.cast(step, tf.float32), EPOCHS * STEPS_PER_EPOCH
        warmup = all_steps // 10 if WARMUP_STEPS is None else WARMUP_STEPS
        left = 1 - tf.clip_by_value((step - warmup) / max(1, all_steps - warmup), 0, 1)
        share = {"constant": 1.0, "linear": left, "cosine": (1 - tf.cos(math.pi * left)) / 2}
        return self.learning_rate * tf.where(step < warmup, step / max(1, warmup), share[SCHEDULE])


def accumulate(compute_gradients):
    """Returns compute_gradients that takes a batch in ACCUMULATION_STEPS parts, which need the
    memory of one: the mean of the parts is that of the whole, to rounding."""

    def compute_gradients_of_parts(batch):
        global GLOBAL_BATCH_SIZE
        shape = [ACCUMULATION_STEPS, -1]
        split = lambda x, i: None if x is None else tf.reshape(x, [*shape, *x.shape[1:]])[i]  # noqa: E731
        GLOBAL_BATCH_SIZE = args.global_batch_size // ACCUMULATION_STEPS  # for compute_loss
        sums = compute_gradients(tf.nest.map_structure(lambda x: split(x, 0), batch))
        sums = tf.nest.map_structure(tf.convert_to_tensor, sums)  # see `update`
        for i in tf.range(1, ACCUMULATION_STEPS):
            part = tf.nest.map_structure(lambda x, i=i: split(x, i), batch)
            sums = tf.nest.map_structure(tf.add, sums, compute_gradients(part))
        GLOBAL_BATCH_SIZE = args.global_batch_size
        return tf.nest.map_structure(lambda x: x / ACCUMULATION_STEPS, sums)

    return compute_gradients_of_parts


def update(optimizer, gradients, variables):
    """Applies the sums of all replicas' gradients. An embedding's are IndexedSlices, which may have
    an index twice: Keras's Adam would square each (keras#19992), so they are summed before."""
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    context = tf.distribute.get_replica_context()
    if CLIP_NORM:  # the norm of one replica's own is not the batch's (tensorflow#33929)
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        scale = optimizer.scale_loss(1.0)  # of the gradients, with mixed_float16; otherwise 1
        norm = tf.linalg.global_norm(gradients)
        gradient_norm.update_state(norm / scale)
        gradients, _ = tf.clip_by_global_norm(gradients, CLIP_NORM * scale, use_norm=norm)
        gradients = [x / context.num_replicas_in_sync for x in gradients]  # it sums once more
    elif PRECISION == "mixed_float16":  # an overflow on one replica, all have to see
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in gradients])
        overflows = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(~finite, tf.float32))
        nan = tf.where(overflows > 0, math.nan, 0.0)
        gradients = [gradient + tf.cast(nan, gradient.dtype) for gradient in gradients]
    optimizer.apply(gradients, variables)


def exchange_averages(wanted=True):
    """With --ema-momentum, swaps the weights and their averages, which are the optimizers'."""
    for each, its in zip(*map(tf.nest.flatten, (model, optimizer)), strict=True):
        its = getattr(its, "inner_optimizer", its)  # of the loss scale's
        averages = its._model_variables_moving_average if wanted and its.use_ema else []
        for average, weight in zip(averages, each.trainable_variables):  # noqa: B905
            raw = weight.numpy()
            with strategy.scope():
                weight.assign(average.numpy())
                average.assign(raw)


def check_batch_normalization(replicas):
    """Refuses flags under which a BatchNormalization would not see the batch."""
    layers = [layer for each in tf.nest.flatten(model) for layer in each._flatten_layers()]
    for x in (x for x in layers if isinstance(x, keras.layers.BatchNormalization)):
        if ACCUMULATION_STEPS > 1:
            refuse(f"--accumulation-steps: BatchNormalization {x.name!r} sees parts of a batch")
        if args.jit_compile and replicas > 1 and x.synchronized:
            refuse(f"--jit-compile: BatchNormalization {x.name!r} sums over {replicas} replicas")


def load(dataset, split):
    """Returns all examples of a dataset, stacked, and their number. With all at hand, the order of
    an epoch is computed, not drawn from a buffer, so that a run resumes at any step at once."""
    size, stacks = int(dataset.cardinality()), None
    if size <= 0:
        refuse(f"create_datasets: {split} is empty, or of unknown size: see assert_cardinality")
    with tf.device("CPU:0"):
        # Piece by piece, into variables: `batch(size)` would hold all of them twice, and so would
        # tensors, of which each iterator takes a copy.
        for piece, index in tf.data.Dataset.zip(dataset, tf.data.Dataset.range(size)).batch(128):
            if stacks is None:
                create = lambda x: tf.Variable(tf.zeros([size, *x.shape[1:]], x.dtype))  # noqa: E731
                stacks = tf.nest.map_structure(create, piece)
            for stack, part in zip(*map(tf.nest.flatten, (stacks, piece)), strict=True):
                stack.scatter_update(tf.IndexedSlices(part, index))
    return stacks, size


def shuffle(size, epoch):
    """Returns the order of an epoch, [size] int32, drawn from SEED and the epoch alone. Not by
    tf.random.experimental.index_shuffle, whose orders of two epochs are alike."""
    return tf.random.experimental.stateless_shuffle(tf.range(size), tf.stack([SEED, epoch]))


def distribute(examples, size, training, first_step=0):
    """Returns an endless iterator of batches of one shape, and the steps of an epoch. Training
    leaves out what fills no batch. Evaluation fills up with examples of weight 0: a replica without
    any would give NaN (tensorflow#41657). Its iterator is kept: a new one costs many steps."""
    steps = STEPS_PER_EPOCH if training else math.ceil(size / GLOBAL_BATCH_SIZE)
    cores = len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))

    def create_dataset(context):
        batch_size = context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
        replicas = context.num_replicas_in_sync // context.num_input_pipelines  # of this worker

        def order_epoch(epoch):  # the epoch (see preprocess), positions and examples, by batches
            position = tf.range(steps * GLOBAL_BATCH_SIZE)
            order = shuffle(size, epoch)[: steps * GLOBAL_BATCH_SIZE] if training else position
            batches = tf.reshape(tf.stack([position, order], axis=1), [steps, -1, batch_size, 2])
            own = batches[:, context.input_pipeline_id * replicas :][:, :replicas]
            own = tf.reshape(own, [-1, batch_size, 2])
            return tf.data.Dataset.from_tensor_slices((tf.repeat(epoch * training, len(own)), own))

        def create_batch(epoch, batch):
            position, index = tf.unstack(batch, axis=1)
            key = tf.random.stateless_uniform([], [SEED, epoch], None, None, tf.int32)
            seeds = tf.stack([tf.fill([batch_size], key), position], axis=1)
            index = tf.minimum(index, size - 1)  # of what fills up the last batch
            batch = tf.nest.map_structure(lambda values: tf.gather(values, index), examples)
            batch = preprocess(fetch(batch), seeds, training)
            features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            real = tf.cast(position < size, tf.float32)
            return features, labels, real if sample_weight is None else real * sample_weight

        epochs = tf.data.Dataset.counter(first_step // steps, dtype=tf.int32)
        places = epochs.flat_map(order_epoch).skip(first_step % steps * replicas)
        options = tf.data.Options()
        options.threading.private_threadpool_size = cores
        options.autotune.enabled = False  # its thread sleeps, and the end of the run waits for it
        # Endless to TensorFlow too, or all workers agree at each step on whether there is more.
        return places.map(create_batch, cores).repeat().prefetch(2 * replicas).with_options(options)

    context = tf.distribute.InputContext(WORKERS, WORKER, strategy.num_replicas_in_sync)
    spread = strategy.distribute_datasets_from_function  # a CPU can do without: see next_batch
    return iter(create_dataset(context) if DEVICE == "CPU" else spread(create_dataset)), steps


def clock(tensors):
    """Returns the time at which tensors are there, in seconds, [] float64."""
    with tf.control_dependencies(tensors):
        if args.deterministic:  # which tf.timestamp refuses
            return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
        return tf.timestamp()


def next_batch(iterator):
    """Returns the next batch of each replica of this worker. A DistributedIterator copies it to its
    device ahead of time. A CPU has nothing to gain by that, and loses a fifth of its speed."""
    if DEVICE != "CPU":
        return next(iterator)
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


state: dict[str, float]  # where the run stands, beside its variables
snapshot: dict = {}  # a copy of it all, in host memory, as the last loop left it
writer = concurrent.futures.ThreadPoolExecutor(max_workers=1)  # of checkpoints
writing: concurrent.futures.Future | None = None  # the checkpoint that it writes


def variables():
    """Returns all that training changes, by position, since two layers may have one name. It is
    the same on every worker, but for random states, of which the first replica's are kept."""
    models, optimizers = tf.nest.flatten(model), tf.nest.flatten(optimizer)
    return {
        "model": [x.value for each in models for x in each.variables],
        "optimizer": [x.value for each in optimizers for x in each.variables],
    }


@tf.function
def copy_variables():
    """Returns the values of `variables`, in host memory, and whether all are finite, [] bool. On a
    CPU it costs little: buffers are shared until the next step writes to them."""
    with tf.device("CPU:0"):
        values = tf.nest.map_structure(tf.identity, variables())
        sums = [tf.reduce_sum(x) for x in tf.nest.flatten(values) if x.dtype.is_floating]
        return values, tf.reduce_all([tf.math.is_finite(x) for x in sums])


def take_snapshot():
    """Keeps a copy of the run as it stands, unless it is not finite. Returns whether it is."""
    global snapshot
    values, is_finite = copy_variables()
    if is_finite:
        names = tf.constant([x.path for each in tf.nest.flatten(model) for x in each.variables])
        counters = {name: tf.constant(np.asarray(value)) for name, value in state.items()}
        snapshot = {**values, **counters, "names": names}
    return bool(is_finite)


def save(best=None):
    """Has the chief write the snapshot, and if given a best one, while training goes on."""
    global writing
    if writing:
        writing.result()  # or the exception that ended it
    if WORKER == 0:
        writing = writer.submit(write_checkpoint, snapshot, best)


def write_checkpoint(last, best=None):
    """Writes to checkpoints/best, and then to checkpoints/last: a run that is killed between the
    two goes on from before both. Removes what is too old, and what a kill has left unfinished."""
    step = int(last["step"])
    for which, content, keep in (("best", best, 1), ("last", last, 3)):
        if content:
            with tf.device("CPU:0"):
                checkpoint = tf.train.Checkpoint(**tf.nest.map_structure(tf.Variable, content))
            checkpoint.save_counter.assign(step)  # whatever the number of restarts
            checkpoint.write(run_dir / "checkpoints" / which / f"ckpt-{step}")
            steps = [x for x in list_checkpoints(which) if x <= step][-keep:]
            paths = [f"ckpt-{x}" for x in steps]  # kept as they are, where the folder is absolute
            listed = tf.compat.v1.train.generate_checkpoint_state_proto("/", paths[-1], paths)
            replace_file(f"checkpoints/{which}/checkpoint", str(listed))  # TensorFlow's list
            for path in Path(run_dir, "checkpoints", which).glob("ckpt-[0-9]*"):
                if path.is_dir():
                    shutil.rmtree(path)
                elif int(re.findall(r"\d+", path.name)[0]) not in steps:
                    path.unlink()


def list_checkpoints(which):
    """Returns the steps of checkpoints, whole or not. A kill may leave TensorFlow's list behind."""
    paths = Path(run_dir, "checkpoints", which).glob("ckpt-[0-9]*.*")
    return sorted({int(re.findall(r"\d+", path.name)[0]) for path in paths})


def read_checkpoint(path):
    """Returns what a checkpoint holds: arrays by name, and by position those of a kind. Raises if
    it is damaged: reading all of it verifies its checksums."""
    reader, values = tf.train.load_checkpoint(path), {"model": {}, "optimizer": {}}
    for name in reader.get_variable_to_shape_map().keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:
        kind, *position = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        target, key = (values[kind], int(*position)) if position else (values, kind)
        target[key] = reader.get_tensor(name)
    return values


def read_newest(which, steps):
    """Returns the path and the content of the newest whole checkpoint, or None and nothing."""
    for step in reversed(steps):
        path = run_dir / "checkpoints" / which / f"ckpt-{step}"
        try:
            return path, read_checkpoint(path)
        except Exception as error:  # of half a dozen kinds, by what is cut short or flipped
            damage = str(error).partition("\n")[0] or type(error).__name__
            say(f"{path} is damaged, and passed over: {damage}")
    return None, {}


def find_checkpoint(which):
    """Returns what `read_newest` does: nothing only where no last one was ever saved. If the best
    is damaged, the last is one of before it, so that the best is made again."""
    steps, bests = list_checkpoints(which), list_checkpoints("best")
    if which == "last" and bests and not read_newest("best", bests)[0]:
        steps = [step for step in steps if step <= bests[-1]]
    (path, values), folder = read_newest(which, steps), run_dir / "checkpoints" / which
    if not path and (which == "best" or args.mode != "train" or (folder / "checkpoint").exists()):
        refuse(f"--run-dir {run_dir}: {folder} has no whole checkpoint; train, or put one back")
    return path, values


def restore(path, values, *kinds):
    """Gives the variables of some kinds the values of a checkpoint, if there is one, and then each
    replica its random state. Refuses one of another model or optimizer."""
    for kind in kinds if path else ():
        own, saved = variables()[kind], values[kind]
        if {i: tuple(x.shape) for i, x in enumerate(own)} != {i: x.shape for i, x in saved.items()}:
            counts = f"it has {len(saved)} variables, train.py {len(own)}"
            refuse(f"{path} is of another {kind}, by hooks or flags: {counts}, or other shapes")
        for i, variable in enumerate(own):
            with strategy.scope():
                variable.assign(saved[i])
    seed_replicas()


@tf.function
def seed_replicas():
    """Gives each replica random numbers of its own: Keras starts all with one state, and they
    would drop the same units. The first keeps the state, which is what checkpoints hold."""

    def shift():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for x in (x for each in tf.nest.flatten(model) for x in each.variables):
            if x.path.endswith("seed_generator_state"):  # [seed, counter]; seeds < 1e9 stay apart
                x.assign(x + tf.stack([tf.cast(replica, x.dtype) * 0x9E3779B1, 0]))

    strategy.run(shift)


def replace_file(name, text):
    """Writes a file of the run so that a kill leaves the old one or the new one."""
    part = run_dir / f"{name}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(run_dir / name)


def read_log(folder=None):
    """Returns the lines of the log, less damaged ones. Only of the last it is usual: of a kill."""
    path, lines = (folder or run_dir) / "metrics.jsonl", []
    texts = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    for number, text in enumerate(texts, start=1):
        try:
            x = json.loads(text)
            lines += {True: [x]}[describe(x) and 0 <= x["epoch"] <= x["step"] and x["split"] > ""]
        except Exception:  # of half a dozen kinds, a KeyError where a value won't do
            if number < len(texts):
                say(f"{path}: line {number} is damaged, and passed over")
    return lines


def open_run(config, step):
    """Writes what a run begins with. Of the log, it drops the lines that come again."""
    lines = [x for x in read_log() if (x["step"], x["split"] != "train") <= (step, False)]
    script, record = Path(__file__).read_text("utf-8"), run_dir / "train.py"
    run_dir.mkdir(parents=True, exist_ok=True)
    replace_file("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    replace_file("config.json", json.dumps(config))
    if record.exists() and record.read_text("utf-8", errors="replace") != script:
        record.rename(run_dir / f"train.until-step-{step}.py")  # what has run so far
    replace_file("train.py", script)


def find_edits(path):
    """Returns what code of sections 3 and 4 differs from a script at another path, as text."""
    scripts = []
    for script in (path, Path(__file__)) if path.exists() else ():
        text, parts = script.read_text("utf-8", errors="replace"), {}
        first, last = (text[: text.find(f"\n# {number}. ")].count("\n") for number in (3, 5))
        with contextlib.suppress(Exception):  # of a damaged copy
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                    del node.body[0]
                if first < node.lineno < last:
                    parts[ast.dump(node)] = f"{getattr(node, 'name', 'that')} (line {node.lineno})"
        scripts.append(parts)
    before, now = scripts or ({}, {})
    gone = [f"{name} in {path}" for code, name in before.items() if code not in now]
    return ", ".join([name for code, name in now.items() if code not in before] or gone)


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
    if edits := find_edits(run_dir / "train.py"):
        cure = f"Undo it, name another --run-dir, or rename {run_dir}/train.py to go on with it"
        refuse(f"of train.py changed since the run in {run_dir} began: {edits}. {cure}")
    keys = ["seed", "global_batch_size", "learning_rate", "train_examples", "schedule"]
    keys += ["clip_norm", "ema_momentum", "warmup_steps", "precision", "init_checkpoint"]
    keys += ["epochs"] * (SCHEDULE != "constant")  # it falls until then
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
    is_end = last_line["step"] == end  # or --patience has ended it
    is_end |= all(before.get(key) == config[key] for key in ("epochs", "patience"))
    is_end &= before.get("export", "best") == args.export
    if is_end and last_line["split"] == "test" and (run_dir / "export").exists():
        say(f"{run_dir} is finished: test {describe(last_line)}; more --epochs would go on")
        raise SystemExit(0)


@contextlib.contextmanager
def as_far_as_possible(what):
    """Says why a model can't be written in a form: the run is none the worse for it."""
    try:
        yield
    except Exception as error:  # of many kinds, by what the hooks do
        if "No space left on device" in str(error):
            raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        say(f"export: the model can't be written as {what}: {reason}")


def export(folder, examples, weights=None):
    """Writes a SavedModel of (what `fetch` puts first), and model.keras of (the features).
    Of several models, the SavedModel runs the first; the others are in model_2.keras, …."""
    keras.utils.clear_session(free_memory=False)  # so that layers count from 1
    keras.config.set_dtype_policy(PRECISION)
    with tf.device("CPU:0"):  # made without a strategy, a copy loads anywhere
        models = tf.nest.flatten(create_model_and_optimizer(tf.distribute.get_strategy())[0])
        copies = [x for each in models for x in each.variables]
        for copy, weight in zip(copies, weights or [x.numpy() for x in copies], strict=True):
            copy.assign(weight)
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
    part.mkdir(parents=True)
    with as_far_as_possible("a SavedModel"):
        graph = serve.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(x for f in graph.library.function for x in f.node_def)]
        if any("PyFunc" in node.op for node in nodes):
            raise ValueError("`preprocess` or the model runs Python, which is not in the file")
        archive.track(models[0])
        archive.add_endpoint("serve", serve)
        archive.write_out(part, verbose=False)
    for number, each in enumerate(models, start=1):
        path = part / ("model.keras" if number == 1 else f"model_{number}.keras")
        with as_far_as_possible(path.name), tf.device("CPU:0"):
            each.save(path)
            keras.saving.load_model(path, compile=False)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def read_weights(path):
    """Returns (name, value) of the weights of a run (its best), of a checkpoint or .keras file."""
    folder, outer, pairs = Path(path), f"{tf.nest.flatten(model)[0].name}/", []
    try:
        if (folder / "checkpoints").is_dir() or Path(f"{path}.index").exists():
            best, last = folder / "checkpoints" / "best", folder / "checkpoints" / "last"
            newest = tf.train.latest_checkpoint(best) or tf.train.latest_checkpoint(last)
            values = read_checkpoint(newest or path)
            return [(name.decode(), values["model"][i]) for i, name in enumerate(values["names"])]
        folder /= "model.keras" * folder.is_dir()  # of an export, but none of its own code is run
        for x in keras.saving.load_model(folder, compile=False).variables:
            name = x.path.removeprefix(outer)  # Keras leaves it out when it loads a Sequential
            pairs += [(name, x.numpy()), (outer + name, x.numpy())]
        return pairs
    except Exception as error:  # of a dozen kinds, by what is missing or damaged
        reason = str(error).partition("\n")[0]
        refuse(f"--init-checkpoint {path} is no run, checkpoint or .keras file ({reason})")


def load_weights(path):
    """Gives the model the weights of a path, where name and shape are the same. Says which."""
    weights = [x for each in tf.nest.flatten(model) for x in each.weights]
    pairs, loaded = ask_the_chief(read_weights, path), 0
    for weight in weights:
        fits = [i for i, x in enumerate(pairs) if (x[0], x[1].shape) == (weight.path, weight.shape)]
        say(f"  {'loaded' if fits else 'left new, for its name or shape'}: {weight.path}")
        loaded += bool(fits)
        with strategy.scope():
            for i in fits[:1]:  # two layers may have one name: the first to the first
                weight.assign(pairs.pop(i)[1])
    if not loaded:
        refuse(f"--init-checkpoint {path} has no weight that fits, of {weights[0].path}, …")
    say(f"{path}: loaded {loaded} of {len(weights)} weights")


def recover(first, last):
    """Goes back to where a loop began, whose loss is not finite, and on with the data that follow
    its own; or stops, unless --recover-from-nan allows it once more."""
    problem = f"the loss or a weight is not finite between steps {first} and {last}"
    if state.get("recoveries", 0) >= args.recover_from_nan:
        cures = f"a --learning-rate below {LEARNING_RATE:g}, --clip-norm, --precision float32"
        refuse(f"{problem}, not saved; the usual cures are {cures}", code=1)
    state["step"] = first
    state["recoveries"] += 1
    state["skipped"] += last - first
    values = {kind: dict(enumerate(x.numpy() for x in snapshot[kind])) for kind in variables()}
    restore(run_dir, broadcast(values), *variables())  # of random states, only the chief's is right
    count = f"recovery {state['recoveries']} of {args.recover_from_nan}"
    say(f"{problem}; {count}: back at step {first}, and on with other data")


def evaluate_continuously(iterator, steps):
    """Validates each new checkpoint of a run, until it is finished or --timeout has passed."""
    global run_dir, writers
    folder, run_dir, writers = run_dir, run_dir / "evaluator", {}
    seen, since = max((line["step"] for line in read_log()), default=0), time.monotonic()
    while True:
        finished = any(line["split"] == "test" for line in read_log(folder)[-1:])
        paths, values = folder.glob("checkpoints/last/ckpt-*.index"), {}
        step = max((int(x.stem[5:]) for x in paths if x.stem[5:].isdigit()), default=0)
        path = folder / "checkpoints" / "last" / f"ckpt-{step}"
        if step > seen:
            with contextlib.suppress(Exception):  # not whole yet, or removed for newer ones
                values = read_checkpoint(path)
        if values:
            curves = f"{run_dir}/tensorboard/validation"
            writers = writers or {"validation": tf.summary.create_file_writer(curves)}
            restore(path, values, *variables())
            exchange_averages()
            validated = validate(iterator, steps)
            log(step, "validation", validated)
            say(f"validation {describe(validated)}  of {path}")
            seen, since = step, time.monotonic()
        elif finished:
            return 0
        elif time.monotonic() - since > (args.timeout or math.inf):
            say(f"no new checkpoint in {folder} for {args.timeout:g} seconds")
            return 0
        time.sleep(0.5)


# 7. main ------------------------------------------------------------------------------------------


def parse_arguments(argv):
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    parser.error = refuse  # argparse's own prints the usage first
    add, strategies = parser.add_argument, ["auto", "one_device", "mirrored", "multi_worker", "tpu"]
    modes, curves = ["train", "evaluate", "continuous_evaluate"], ["constant", "cosine", "linear"]
    precisions = ["float32", "mixed_bfloat16", "mixed_float16"]
    add("--mode", choices=modes, default="train", help="[%(default)s]")
    add("--run-dir", default="run", help="what the run writes, and resumes from [%(default)s]")
    add("--strategy", choices=strategies, default="auto", help="[%(default)s]")
    add("--replicas", type=int, help="share out the CPU among as many, to rehearse")
    add("--epochs", type=int, default=EPOCHS, help="[%(default)s]")
    add("--global-batch-size", type=int, default=GLOBAL_BATCH_SIZE, help="[%(default)s]")
    add("--steps-per-loop", type=int, default=100, help="at most [%(default)s]")
    add("--checkpoint-every-steps", type=int, default=1000, help="and each epoch [%(default)s]")
    add("--learning-rate", type=float, default=LEARNING_RATE, help="[%(default)s]")
    add("--seed", type=int, default=SEED, help="[%(default)s]")
    add("--deterministic", action="store_true", help="the same bits on GPUs too, but slower")
    add("--warmup-steps", type=int, default=WARMUP_STEPS, help="to rise in [%(default)s]")
    add("--schedule", choices=curves, default=SCHEDULE, help="after that [%(default)s]")
    add("--precision", choices=precisions, default=PRECISION, help="of the layers [%(default)s]")
    add("--jit-compile", action=argparse.BooleanOptionalAction, default=False, help="use XLA")
    add("--accumulation-steps", type=int, default=1, help="parts of a step's batch [%(default)s]")
    add("--clip-norm", type=float, help="of the gradients of the whole batch, at most")
    add("--ema-momentum", type=float, help="evaluate and export averages of the weights")
    add("--patience", type=int, help="epochs without a lower validation loss, to stop")
    add("--recover-from-nan", type=int, default=0, help="times, from where the loop began [0]")
    add("--export", choices=["best", "last"], default="best", help="tested, exported [%(default)s]")
    add("--init-checkpoint", metavar="PATH", help="of the first weights: see README.md")
    add("--timeout", type=float, help="seconds to wait for workers, or checkpoints")
    add("--profile", metavar="FIRST,LAST", help="steps, of whole loops")
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        least = -(name in ("seed", "warmup_steps", "recover_from_nan"))  # of these, 0 is one too
        most = 2**31 if type(value) is int else math.inf
        most = {"ema_momentum": 1, "replicas": 100}.get(name, most)
        if type(value) in (int, float) and not least < value < most:
            refuse(f"--{name.replace('_', '-')}: '{value}' is not between {least} and {most}")
    steps = re.fullmatch(r"(\d+),(\d+)", args.profile or "1,1")
    if not steps or not 1 <= int(steps[1]) <= int(steps[2]):
        refuse(f"--profile: {args.profile!r} is not FIRST,LAST: two steps from 1 up")
    args.profile = args.profile and [int(step) for step in steps.groups()]
    return args


def main(argv=None):
    """Returns the exit code, 0. Wrong input (2) and a run that can't go on end by SystemExit."""
    global args, strategy, model, optimizer, loss_object, compute_gradients, run_dir, state
    global train_metrics, validation_metrics, test_metrics, gradient_norm, scratch, writers
    global GLOBAL_BATCH_SIZE, EPOCHS, LEARNING_RATE, SEED, STEPS_PER_EPOCH, WORKER, WORKERS, DEVICE
    global SCHEDULE, WARMUP_STEPS, ACCUMULATION_STEPS, CLIP_NORM, PRECISION

    # 1. Read the flags, and find the devices.
    args = parse_arguments(argv)
    GLOBAL_BATCH_SIZE, EPOCHS = args.global_batch_size, args.epochs
    LEARNING_RATE, SEED, run_dir = args.learning_rate, args.seed, Path(args.run_dir)
    SCHEDULE, WARMUP_STEPS, PRECISION = args.schedule, args.warmup_steps, args.precision
    ACCUMULATION_STEPS, CLIP_NORM = args.accumulation_steps, args.clip_norm
    taken = (run_dir / "config.json").exists() and not (run_dir / "metrics.jsonl").exists()
    inner = (*run_dir.glob("checkpoints/**/"), *run_dir.glob("tensorboard/**/"))
    closed = [x for x in inner if not os.access(x, 5 if args.mode == "evaluate" else 7)]
    odd = not args.run_dir.isprintable() or set("[\\") & set(run_dir.as_posix())  # TensorFlow globs
    if taken or closed or odd or (run_dir / "train.py").is_dir() or "://" in args.run_dir:
        refuse(f"--run-dir {args.run_dir} has ://, [, \\, closed or others' files; name another")
    WORKER, addresses = read_tf_config()
    WORKERS = len(addresses)
    if args.mode == "continuous_evaluate" and WORKERS > 1:
        refuse("--mode continuous_evaluate is for one worker; unset TF_CONFIG for it")
    strategy, strategy_name, DEVICE = create_strategy()
    tempfile.tempdir = scratch = tempfile.mkdtemp(prefix="train-")  # AutoGraph leaves files there
    listen_for_signals()
    replicas = strategy.num_replicas_in_sync
    parts, sharers = replicas * ACCUMULATION_STEPS, f"{replicas} replicas"
    sharers += f" in {ACCUMULATION_STEPS} parts each" * (ACCUMULATION_STEPS > 1)
    if rest := GLOBAL_BATCH_SIZE % parts:
        nearest = f"{GLOBAL_BATCH_SIZE - rest or 2 * parts} or {GLOBAL_BATCH_SIZE - rest + parts}"
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} won't do: {sharers} can share {nearest}")
    if args.deterministic:
        tf.config.experimental.enable_op_determinism()

    # 2. Load the data, split by split, so that only one is in memory twice.
    splits, datasets = ("train", "validation", "test"), list(create_datasets())
    sets = {split: load(datasets.pop(0), split) for split in splits}
    size = sets["train"][1]
    if GLOBAL_BATCH_SIZE > size:
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} is above the {size} training examples")
    STEPS_PER_EPOCH = size // GLOBAL_BATCH_SIZE
    last_step = EPOCHS * STEPS_PER_EPOCH
    for flag, last in (("warmup-steps", WARMUP_STEPS or 0), ("profile", max(args.profile or [0]))):
        if last > last_step:
            refuse(f"--{flag}: step {last} is past the last one of {EPOCHS} epochs, {last_step}")

    # 3. See what the run directory holds. The chief alone reads and writes it.
    config = {**vars(args), "strategy": strategy_name, "replicas": replicas, "workers": WORKERS}
    git = {"cwd": Path(__file__).parent, "shell": True, "capture_output": True, "text": True}
    commit = subprocess.run("git rev-parse HEAD", **git).stdout.strip() or None
    used = {x.__name__: x.__version__ for x in (tf, keras, np)} | {"python": sys.version.split()[0]}
    config |= {"train_examples": size, "versions": used, "git_commit": commit}
    own = ("run_dir", "timeout", "profile", "git_commit")  # each worker may have its own
    facts = {"examples": [x for _, x in sets.values()], **config}
    facts["train.py"] = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    tensors = tf.nest.flatten([x for x, _ in sets.values()]) if WORKERS > 1 else []
    facts["data"] = [hashlib.sha256(pickle.dumps(x.numpy())).hexdigest()[:8] for x in tensors]
    check_workers({key: x for key, x in facts.items() if key not in own})
    which = {"train": "last", "evaluate": args.export}.get(args.mode)
    path, values = ask_the_chief(find_checkpoint, which) if which else (None, {})
    if path and args.mode == "train":
        ask_the_chief(check_run, config)

    # 4. Create the model and what belongs to it; restore it.
    if WORKER == 0 and args.mode == "train" and not path:  # to know it before hours of training
        export(Path(scratch, "export"), sets["test"][0])
    keras.utils.clear_session()  # so that layers count from 1
    keras.utils.set_random_seed(SEED)
    keras.config.set_dtype_policy(PRECISION)
    loss_object = create_loss_objects(strategy)
    train_metrics, validation_metrics, test_metrics = create_metrics(strategy)
    model, optimizer = create_model_and_optimizer(strategy)
    check_batch_normalization(replicas)
    if args.mode == "train" and args.init_checkpoint and not path:
        load_weights(args.init_checkpoint)
    with strategy.scope():  # in a traced step it is too late to create variables (keras#23085)
        for its in tf.nest.flatten(optimizer):
            if SCHEDULE != "constant" or WARMUP_STEPS != 0:
                its.learning_rate = Schedule(float(its.learning_rate.numpy()))
            its.use_ema, its.ema_momentum = bool(args.ema_momentum), args.ema_momentum
        if PRECISION == "mixed_float16":
            optimizer = tf.nest.map_structure(keras.optimizers.LossScaleOptimizer, optimizer)
        for each, its in zip(*map(tf.nest.flatten, (model, optimizer)), strict=True):
            its.build(each.trainable_variables)
        gradient_norm = keras.metrics.Mean(name="gradient_norm")
    if args.jit_compile:  # not the update: XLA can't sum over replicas on CPUs
        compute_gradients = tf.function(compute_gradients, jit_compile=True)
    if ACCUMULATION_STEPS > 1:
        compute_gradients = accumulate(compute_gradients)
    validation_set, test_set = (distribute(*sets[split], training=False) for split in splits[1:])
    if args.mode == "evaluate":
        restore(path, values, *(kind for kind in variables() if values[kind]))
        exchange_averages(args.export == "last")  # which the best one has as its weights
        say(f"test {describe(test(*test_set))}  of {path}")
        return 0
    if args.mode == "continuous_evaluate":
        return evaluate_continuously(*validation_set)
    state = {"step": 0, "best_loss": math.inf}
    if "skipped" in values or args.recover_from_nan:
        state |= {"recoveries": 0, "skipped": 0}
    state = {name: type(value)(values.get(name, value)) for name, value in state.items()}
    best_epoch = broadcast([0, *list_checkpoints("best")][-1]) // STEPS_PER_EPOCH
    step = first_step = state["step"]
    restore(path, values, *variables())
    values = {}  # they are as large as the model
    take_snapshot()
    ask_the_chief(open_run, config, step)
    if WORKER == 0:
        writers = {x: tf.summary.create_file_writer(f"{run_dir}/tensorboard/{x}") for x in splits}
    resumed = f", resumed at step {step} from {path}" if path else ""
    say(f"{strategy_name} on {replicas} × {DEVICE}, {STEPS_PER_EPOCH} steps an epoch{resumed}")

    # 5. Train, in loops of nearly equal length. Resumed at an epoch's end, it validates first.
    iterator, _ = distribute(*sets["train"], True, step + state.get("skipped", 0))
    loops = math.ceil(STEPS_PER_EPOCH / min(args.steps_per_loop, args.checkpoint_every_steps))
    started, trained, profiling = time.monotonic(), "", False
    epoch_ends = step > 0 and step % STEPS_PER_EPOCH == 0
    while True:
        if epoch_ends:
            exchange_averages()  # of no effect without --ema-momentum
            validated, epoch = validate(*validation_set), step // STEPS_PER_EPOCH
            best = {"step": snapshot["step"], "names": snapshot["names"]}
            best["model"] = copy_variables()[0]["model"]
            exchange_averages()
            if not math.isfinite(validated["loss"]):
                refuse(f"the validation loss is not finite after step {step}, not saved", code=1)
            is_best = validated["loss"] < state["best_loss"]
            save(best if is_best else None)
            if is_best:
                state["best_loss"], best_epoch = validated["loss"], epoch
            log(step, "validation", validated)
            row = f"epoch {epoch:3}/{EPOCHS}{' *' if is_best else '  '}"
            say(row, f"validation {describe(validated)}", trained and f"train\0{describe(trained)}")
            if step == last_step:
                break
            if args.patience and epoch - best_epoch >= args.patience:
                say(f"stopped: no lower validation loss than epoch {best_epoch}'s since")
                break
        nth = math.ceil((step % STEPS_PER_EPOCH + 1) * loops / STEPS_PER_EPOCH)  # of these is next
        end = step - step % STEPS_PER_EPOCH + nth * STEPS_PER_EPOCH // loops
        wanted = bool(args.profile) and step < args.profile[1] and args.profile[0] <= end
        if wanted and not profiling:
            tf.profiler.experimental.start(str(run_dir / "tensorboard" / "train"))
        elif profiling and not wanted:
            tf.profiler.experimental.stop()
        profiling = wanted
        trained = train(iterator, end - step)
        state["step"], epoch_ends = end, False
        if not (math.isfinite(trained["loss"]) and take_snapshot()):
            recover(step, end)
            continue
        log(end, "train", trained)
        if sys.stdout.isatty():
            seconds = (time.monotonic() - started) / (end - first_step) * (last_step - end)
            left, bar = datetime.timedelta(seconds=round(seconds)), "█" * (10 * end // last_step)
            say(f"step {end:,}/{last_step:,} {bar:░<10} {left} left", describe(trained), end="")
        saves = end // args.checkpoint_every_steps > step // args.checkpoint_every_steps
        step, epoch_ends = end, end % STEPS_PER_EPOCH == 0
        if saves and not epoch_ends:
            save()
    if profiling:
        tf.profiler.experimental.stop()
    if writing:
        writing.result()

    # 6. Test the best checkpoint, or the last.
    path, values = ask_the_chief(find_checkpoint, args.export)
    restore(path, values, *(kind for kind in variables() if values[kind]))
    exchange_averages(args.export == "last")
    tested = test(*test_set)
    if WORKER == 0:  # a run with a test line is finished once it has its export, not one of before
        shutil.rmtree(run_dir / "export", ignore_errors=True)
    log(step, "test", tested)
    say(f"test {describe(tested)}  of {path}")

    # 7. Export it.
    if WORKER == 0:
        export(run_dir / "export", sets["test"][0], [x.numpy() for x in variables()["model"]])
    say(f"written to {run_dir}: checkpoints, export, metrics.jsonl, tensorboard")
    sum_over_workers(0)  # who went before the others would be missed
    return 0


def run(argv=None):
    """Runs `main`, and ends the process with its exit code where that isn't 0."""
    sys.stdout.reconfigure(errors="replace")  # of × and █, on a terminal without them
    try:
        code = main(argv)
    except SystemExit as end:
        code = end.code
    except Exception as error:
        ending.acquire()
        code = explain(error)
        if code == 143:
            interrupt()
    if code:
        leave(code)  # Python's own end would wait for other workers
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    run()
