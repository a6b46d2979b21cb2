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
import datetime
import gc
import json
import math
import os
import shutil
import signal
import subprocess
import sys
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
DEVICE: str = "CPU"  # or GPU or TPU: the kind of theirs
model: keras.Model  # or a tuple of several, and one of as many optimizers
optimizer: keras.optimizers.Optimizer
loss_object: keras.losses.Loss
train_metrics: list[keras.metrics.Metric]
validation_metrics: list[keras.metrics.Metric]
test_metrics: list[keras.metrics.Metric]

# What the flags of these names are where they are left out:
GLOBAL_BATCH_SIZE: int = 32  # examples a step, of all replicas together
EPOCHS: int = 40
LEARNING_RATE: float = 3e-3
SEED: int = 0  # of weights, data order, augmentation and dropout
args: argparse.Namespace  # the other flags

STEPS_PER_EPOCH: int = 1  # known once the data are loaded
run_dir: Path = Path()
WORKER: int = 0  # the index of this worker; 0 is the chief, who alone writes files
WORKERS: int = 1

# 3. Hooks: yours to edit --------------------------------------------------------------------------


def create_datasets() -> list[tf.data.Dataset]:
    """Returns the train, validation and test `tf.data.Dataset` of single examples, in fixed order,
    of known number: structures of tensors of constant shapes. They stay in memory: see `fetch`."""
    # TODO(you): your data. Here: 442 people with diabetes, of whom ten numbers are known (age,
    # blood pressure, …), [10] float32, and how far the illness got in a year, [1], from 25 to 346.
    from sklearn.datasets import load_diabetes

    features, targets = load_diabetes(return_X_y=True, scaled=False)
    features, targets = features.astype("float32"), targets[:, None].astype("float32")
    order = np.random.default_rng(0).permutation(len(features))
    splits = np.split(order, [310, 376])  # 70 %, 15 %, 15 %
    return [tf.data.Dataset.from_tensor_slices((features[i], targets[i])) for i in splits]


def fetch(batch: tuple) -> tuple:
    """Reads what the examples point to. The first part of it is what the exported model takes."""
    # TODO(you): read what doesn't fit in memory: `tf.map_fn(tf.io.read_file, paths), labels`, say.
    return batch


def preprocess(batch: tuple, seeds: tf.Tensor, training: bool) -> tuple:
    """Turns what `fetch` returns into (features,), (features, labels) or (features, labels, sample
    weights), tensors or structures of them, [batch, …]; weights are [batch] float32. `seeds`,
    [batch, 2] int32, depend on SEED, epoch (0 in evaluation) and position: draw from them alone."""
    features, targets = batch
    # TODO(you): parse, add noise; tf.map_fn takes what can't be done to a whole batch at once:
    #     if training:
    #         noise = lambda seed: tf.random.stateless_normal([10], seed, stddev=0.1)
    #         features += tf.map_fn(noise, seeds, fn_output_signature=tf.float32)
    return features, targets


def create_model_and_optimizer(strategy: tf.distribute.Strategy) -> tuple:
    """Returns the model, built, and its optimizer; or a tuple of models and one of as many
    optimizers, which `model` and `optimizer` are then. The scope puts them on all replicas."""
    with strategy.scope():
        # TODO(you): your model. BatchNormalization with synchronized=True, or replicas matter.
        features, targets = next(iter(create_datasets()[0].batch(1000)))  # of training alone
        features, targets = features.numpy(), targets.numpy()
        regularizer = keras.regularizers.L2(3.0)
        model = keras.Sequential(
            [
                keras.Input([10]),
                keras.layers.Normalization(mean=features.mean(0), variance=features.var(0)),
                keras.layers.Dense(64, activation="silu", kernel_regularizer=regularizer),
                keras.layers.Dense(1, dtype="float32"),  # in mixed precision too
                keras.layers.Rescaling(targets.std(), offset=targets.mean(), dtype="float32"),
            ]
        )
        optimizer = Adam(LEARNING_RATE)  # of section 6; any of Keras's would do
    return model, optimizer


def create_loss_objects(strategy: tf.distribute.Strategy) -> keras.losses.Loss:
    """Returns the loss, of (labels, predictions), one value an example: `compute_loss` divides."""
    with strategy.scope():
        # TODO(you): your loss; or several, which compute_losses adds up.
        return keras.losses.Huber(delta=50.0, reduction="none")


def create_metrics(strategy: tf.distribute.Strategy) -> tuple[list[keras.metrics.Metric], ...]:
    """Returns three lists, of the metrics of the train, validation and test split."""
    with strategy.scope():
        # TODO(you): your metrics, each with a name of its own.
        return tuple([keras.metrics.MeanAbsoluteError("mean_absolute_error")] for _ in range(3))


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
    for each value. Returns the sums of the losses and of their weights, [2] float64."""
    sums = tf.zeros([2], tf.float64)
    for _ in tf.range(steps):
        sums += tf.cast(distributed_step(next_batch(iterator)), tf.float64)
    return sums


def run_loop(distributed_step, metrics, iterator, steps):
    """Returns the loss and the metrics, means over the steps."""
    for metric in metrics:
        metric.reset_state()
    loss, weight = run_steps(distributed_step, iterator, tf.constant(steps)).numpy()
    values = {metric.name: float(metric.result()) for metric in metrics}
    return {"loss": float(loss / weight) if weight else 0.0, **values}


def train(iterator, steps):
    """Runs a loop of training. Returns the values of its line in the log."""
    started = time.perf_counter()
    values = run_loop(distributed_train_step, train_metrics, iterator, steps)
    rate = tf.nest.flatten(optimizer)[0].learning_rate.numpy()  # waits for a GPU still at it
    speed = steps * GLOBAL_BATCH_SIZE / (time.perf_counter() - started)
    return {**values, "learning_rate": float(rate), "examples_per_second": speed}


def validate(iterator, steps):
    return run_loop(distributed_validation_step, validation_metrics, iterator, steps)


def test(iterator, steps):
    return run_loop(distributed_test_step, test_metrics, iterator, steps)


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


def read_tf_config():
    """Returns the index of this worker and the addresses of all, from TF_CONFIG. The chief is 0."""
    try:
        os.environ["TF_CONFIG"] = os.environ.get("TF_CONFIG") or "{}"  # TensorFlow can't read ""
        if (config := json.loads(os.environ["TF_CONFIG"])) == {}:
            return 0, ["localhost"]
        cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
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
        on_signals(signal.SIG_DFL)  # it waits for the others, and Python hears nothing meanwhile
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


def update(optimizer, gradients, variables):
    """Applies the sums of all replicas' gradients. An embedding's are IndexedSlices, which may have
    an index twice: Keras's Adam would square each (keras#19992), so they are summed before."""
    optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)


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


def next_batch(iterator):
    """Returns the next batch of each replica of this worker. A DistributedIterator copies it to its
    device ahead of time. A CPU has nothing to gain by that, and loses a fifth of its speed."""
    if DEVICE != "CPU":
        return next(iterator)
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


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
    kept = managers["last"].checkpoint
    sums = [tf.reduce_sum(tf.convert_to_tensor(x)) for x in (*kept.model, *kept.optimizer)]
    return tf.reduce_all([tf.math.is_finite(x) for x in sums if x.dtype.is_floating])


def save(which):
    """Has the chief write a checkpoint."""
    if WORKER == 0:  # counted by the step: files don't differ by how often a run was stopped
        managers[which].checkpoint.save_counter.assign(state["step"] - 1)
        managers[which].save(checkpoint_number=state["step"].numpy())


def find_checkpoint(which):
    """Returns the newest one's path, or None; not by TensorFlow's list: a kill leaves it behind."""
    paths = (x for x in run_dir.glob(f"checkpoints/{which}/ckpt-*.index") if x.stem[5:].isdigit())
    magic = b"W\xfb\x80\x8b$uG\xdb"  # at the end of an index that no kill has cut short
    whole = (x.with_suffix("") for x in paths if x.read_bytes().endswith(magic))
    return max(whole, key=lambda x: int(x.name[5:]), default=None)


def restore(which):
    """Restores the newest checkpoint, if any, and each replica's random state. Returns the step."""
    path = find_checkpoint(which)
    if which == "best" and not path:
        refuse(f"--run-dir {run_dir} has no best checkpoint; train it first, or put it back")
    try:
        if path:
            managers[which].checkpoint.restore(str(path)).assert_consumed()
    except Exception as error:  # of half a dozen kinds, by what is cut short, flipped, or unlike
        reason = str(error).partition("\n")[0]
        refuse(f"{path} is damaged, or not of this model ({reason}); name another --run-dir")
    seed_replicas()
    return int(state["step"].numpy())


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


# 7. main ------------------------------------------------------------------------------------------


def parse_arguments(argv):
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    parser.error = refuse  # argparse's own prints the usage first
    add, strategies = parser.add_argument, ["auto", "one_device", "mirrored", "multi_worker", "tpu"]
    add("--mode", choices=["train", "evaluate"], default="train", help="[%(default)s]")
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
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        least, most = -(name == "seed"), 2**31 if type(value) is int else math.inf
        most = 100 if name == "replicas" else most  # each a device of TensorFlow's
        if type(value) in (int, float) and not least < value < most:
            refuse(f"--{name.replace('_', '-')}: '{value}' is not between {least} and {most}")
    return args


def main(argv=None):
    """Returns the exit code, 0. Wrong input (2) and a run that can't go on end by SystemExit."""
    global args, strategy, model, optimizer, loss_object, run_dir, state
    global train_metrics, validation_metrics, test_metrics, WORKER, WORKERS, DEVICE
    global GLOBAL_BATCH_SIZE, EPOCHS, LEARNING_RATE, SEED, STEPS_PER_EPOCH, managers, writers

    # 1. Read the flags, and find the devices.
    args = parse_arguments(argv)
    GLOBAL_BATCH_SIZE, EPOCHS = args.global_batch_size, args.epochs
    LEARNING_RATE, SEED, run_dir = args.learning_rate, args.seed, Path(args.run_dir)
    taken = (run_dir / "config.json").exists() and not (run_dir / "metrics.jsonl").exists()
    inner = (*run_dir.glob("checkpoints/**/"), *run_dir.glob("tensorboard/**/"))
    closed = [x for x in inner if not os.access(x, 5 if args.mode == "evaluate" else 7)]
    odd = not args.run_dir.isprintable() or set("[\\") & set(run_dir.as_posix())  # TensorFlow globs
    if taken or closed or odd or (run_dir / "train.py").is_dir() or "://" in args.run_dir:
        refuse(f"--run-dir {args.run_dir} has ://, [, \\, closed or others' files; name another")
    WORKER, addresses = read_tf_config()
    WORKERS = len(addresses)
    strategy, strategy_name, DEVICE = create_strategy()
    on_signals(lambda *_: os._exit(143))
    replicas = strategy.num_replicas_in_sync
    if (below := GLOBAL_BATCH_SIZE // replicas * replicas) < GLOBAL_BATCH_SIZE:
        nearest = f"{replicas} replicas can share {below or 2 * replicas} or {below + replicas}"
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} won't do: {nearest}")
    if args.deterministic:
        tf.config.experimental.enable_op_determinism()

    # 2. Load the data.
    splits = ("train", "validation", "test")
    sets = {split: load(x, split) for split, x in zip(splits, create_datasets(), strict=True)}
    size = sets["train"][1]
    if GLOBAL_BATCH_SIZE > size:
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} is above the {size} training examples")
    STEPS_PER_EPOCH = size // GLOBAL_BATCH_SIZE
    last_step = EPOCHS * STEPS_PER_EPOCH

    # 3. See what the run directory holds.
    config = {**vars(args), "strategy": strategy_name, "replicas": replicas, "workers": WORKERS}
    git = {"cwd": Path(__file__).parent, "shell": True, "capture_output": True, "text": True}
    commit = subprocess.run("git rev-parse HEAD", **git).stdout.strip() or None
    used = {x.__name__: x.__version__ for x in (tf, keras, np)} | {"python": sys.version.split()[0]}
    config |= {"train_examples": size, "versions": used, "git_commit": commit}
    config |= {"schedule": "constant", "warmup_steps": 0, "precision": "float32"}  # as flags
    path = find_checkpoint("best" if args.mode == "evaluate" else "last")
    lines = check_run(config) if args.mode == "train" and path else []

    # 4. Create the model and what belongs to it; restore it.
    keras.utils.set_random_seed(SEED)
    loss_object = create_loss_objects(strategy)
    train_metrics, validation_metrics, test_metrics = create_metrics(strategy)
    model, optimizer = create_model_and_optimizer(strategy)
    with strategy.scope():  # in a traced step it is too late to create variables (keras#23085)
        for each, its in zip(*map(tf.nest.flatten, (model, optimizer)), strict=True):
            its.build(each.trainable_variables)
    state = {"step": tf.Variable(np.int64(0)), "best_loss": tf.Variable(np.float64("inf"))}
    managers = create_managers()
    validation_set, test_set = (distribute(*sets[split], training=False) for split in splits[1:])
    if args.mode == "evaluate":
        restore("best")
        say(f"test {describe(test(*test_set))}  of {path}")
        return 0
    step = first_step = restore("last")
    if WORKER == 0:
        # The lines of the log that come again are dropped; of an epoch's end, its validation's too.
        lines = [x for x in lines if (x["step"], x["split"] != "train") <= (step, False)]
        files = {"metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines)}
        files |= {"config.json": json.dumps(config), "train.py": Path(__file__).read_text("utf-8")}
        run_dir.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():  # a kill leaves the old one, or the new one
            (run_dir / f"{name}.part").write_text(text, "utf-8")
            (run_dir / f"{name}.part").replace(run_dir / name)
        writers = {x: tf.summary.create_file_writer(f"{run_dir}/tensorboard/{x}") for x in splits}
    is_shared = sum_over_workers(step) == step * WORKERS  # and by now the chief has written
    if not is_shared or sum_over_workers(int((run_dir / "config.json").exists())) < WORKERS:
        refuse(f"--run-dir {run_dir} is not one folder for all workers; name one that they share")
    resumed = f", resumed at step {step} from {path}" if path else ""
    say(f"{strategy_name} on {replicas} × {DEVICE}, {STEPS_PER_EPOCH} steps an epoch{resumed}")

    # 5. Train, in loops of nearly equal length. Resumed at an epoch's end, it validates first.
    signals = []  # of which Python hears between loops
    on_signals(lambda number, _: signals.append(number))
    iterator, _ = distribute(*sets["train"], training=True, first_step=step)
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
        trained = train(iterator, end - step)
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
        stops = sum_over_workers(len(signals))  # SIGTERM or Ctrl-C, to any of them
        if stops or (saves and not epoch_ends):
            save("last")
        if stops:
            say(f"stopped, and saved at step {step}; the same command goes on")
            os._exit(143)  # Python's own end would wait for all workers

    # 6. Test the best checkpoint.
    on_signals(lambda *_: os._exit(143))  # all is saved
    if WORKER == 0:  # what kills have left, and an export of before: the run would seem finished
        for rest in (run_dir / "export", *run_dir.glob("checkpoints/*/*_temp")):
            shutil.rmtree(rest, ignore_errors=True)
    sum_over_workers(0)  # by now the chief has written it
    restore("best")
    tested = test(*test_set)
    log(step, "test", tested)
    say(f"test {describe(tested)}  of {find_checkpoint('best')}")

    # 7. Export it.
    if WORKER == 0:
        export(run_dir / "export", sets["test"][0])
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
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError):
        print("train.py: stopped: a worker is lost; start all workers again", file=sys.stderr)
        code = 143
    except Exception as error:  # about a file of the run, or a port; or a bug
        of_run = run_dir in Path(f"{getattr(error, 'filename', 0)}/x").parents[:-1]
        cause = f"--run-dir {run_dir}" if of_run else "gRPC server" in str(error) and "TF_CONFIG"
        told, code = f"train.py: error: {cause}: {error}; name another", 2 if cause else 1
        print(told, file=sys.stderr) if cause else sys.excepthook(*sys.exc_info())
    if code:
        time.sleep(WORKERS > 1)  # others may still ask this one for its part of the last sum
        os._exit(code)  # Python's own end would wait for other workers


if __name__ == "__main__":
    run()
