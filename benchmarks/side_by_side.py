"""Steps per second and peak memory of train.py, of model.fit at its best settings, and of the
bare training step, which is the limit of both: side by side, on the CPU.

    python benchmarks/side_by_side.py [--rounds 5] [--seconds 5] [--replicas 1 2] [--json FILE]

README.md, beside this file, says how to read the table.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parents[1]
SCRIPT, OWN_LOG, LIMIT, BEST_FIT = "train.py", "train.py by its log", "limit", "best of fit"
FIT = {  # each setting of model.fit: where the data comes from, steps_per_execution, jit_compile
    f"fit {source} {steps}{' XLA' if xla else ''}": (source, steps, xla)
    for source in ("arrays", "tf.data")
    for steps in (1, 100)
    for xla in (False, True)
}
# A setting of fit slower than this share of the best in round 1 sits out the later rounds: it
# can't become the best by noise, and the time is better spent on more rounds of the others.
HOPELESS = 0.7
STEPS_A_SECOND = 500  # an epoch has this many steps for each of --seconds


# ----------------------------------------------------------------------------------------------
# One contender, in a process of its own
# ----------------------------------------------------------------------------------------------


def measure(project, contender, replicas, seconds):
    """Returns what one contender reached."""
    script = import_script(Path(project) / "train.py")
    if contender == SCRIPT:
        result = measure_script(script, replicas, seconds)
    elif contender == LIMIT:
        result = measure_limit(script, replicas, seconds)
    else:
        result = measure_fit(script, replicas, seconds, *FIT[contender])
    versions = {"tensorflow": script.tf.__version__, "keras": script.keras.__version__}
    return {"peak_memory": peak_memory(), **result, "versions": versions}


def import_script(path):
    """Imports the rendered train.py, TensorFlow with it."""
    spec = importlib.util.spec_from_file_location("train", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def measure_script(script, replicas, seconds):
    """Runs `main` with the flags at their defaults, on enlarged data, from its start to its end.

    The second and third epoch are timed, from one call of `train` to the next and to the call of
    `test`: all that a run does an epoch (log, validate, save) is in between.
    """
    create_datasets, steps = script.create_datasets, round(STEPS_A_SECOND * seconds)
    calls = []

    def enlarged():
        train_set, validation_set, test_set = create_datasets()
        arrays = enlarge(script, train_set, steps)
        return script.tf.data.Dataset.from_tensor_slices(arrays), validation_set, test_set

    def noting_calls(function):
        def call(*args):
            calls.append((time.perf_counter(), peak_memory()))
            return function(*args)

        return call

    script.create_datasets = enlarged
    script.train, script.test = noting_calls(script.train), noting_calls(script.test)
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--run-dir", f"{folder}/run", "--replicas", str(replicas), "--epochs", "3"]
        code = script.main(flags)
        if code:
            raise RuntimeError(f"train.py ended with exit code {code}")
        log = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    _, (started, _), _, (ended, memory) = calls
    lines = [line for line in map(json.loads, log) if line["split"] == "train"]
    loops = [  # steps and seconds of each loop after the first epoch, as the script saw them
        (step := line["step"] - before["step"],
         step * script.GLOBAL_BATCH_SIZE / line["examples_per_second"])
        for before, line in zip(lines, lines[1:], strict=False)
        if line["epoch"] > 1
    ]  # fmt: skip
    return {
        "steps_per_second": 2 * steps / (ended - started),
        "logged_steps_per_second": sum(n for n, _ in loops) / sum(s for _, s in loops),
        "traces": script.run_train_steps.experimental_get_tracing_count(),
        # Of the training, as for fit, and of the whole run, with its test and its export.
        "peak_memory": memory,
        "peak_memory_of_run": peak_memory(),
    }


def measure_fit(script, replicas, seconds, source, steps_per_execution, jit_compile):
    """Times whole epochs, the second and the third, of `model.fit`."""
    strategy = create_strategy(script, replicas)
    model, optimizer = script.create_model_and_optimizer(strategy)
    loss = script.create_loss_objects(strategy)
    # With the default reduction fit takes the mean over the global batch by itself.
    loss = type(loss).from_config({**loss.get_config(), "reduction": "sum_over_batch_size"})
    with strategy.scope():
        # Left to itself, fit fails on 2 replicas with steps_per_execution > 1 (keras#23085).
        optimizer.build(model.trainable_variables)
        model.compile(
            optimizer,
            loss,
            metrics=script.create_metrics(strategy)[0],
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
        )

    class Clock(script.keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.ends = []

        def on_epoch_end(self, epoch, logs=None):
            self.ends.append(time.perf_counter())

    clock = Clock()

    def fit(steps, epochs):
        """Returns steps a second, the first epoch left out."""
        data = create_fit_data(script, source, steps)
        model.fit(**data, epochs=epochs, callbacks=[clock], verbose=0)
        return (epochs - 1) * steps / (clock.ends[-1] - clock.ends[0])

    # A slow setting has shorter epochs, or its measurement would take minutes. Whichever can be
    # the best of fit has epochs as long as those of train.py.
    slow = fit(steps=200, epochs=2) * seconds
    return {"steps_per_second": fit(round(min(slow, STEPS_A_SECOND * seconds)), epochs=3)}


def create_fit_data(script, source, steps):
    """Returns the arguments of `model.fit` for the same examples, in batches of the same size.

    They stay uint8, a quarter of the memory: all that `preprocess` does is a cast, and a Keras
    model casts its input by itself.
    """
    arrays = enlarge(script, script.create_datasets()[0], steps)
    if source == "arrays":
        features, labels = arrays
        return {"x": features, "y": labels, "batch_size": script.GLOBAL_BATCH_SIZE}
    dataset = script.tf.data.Dataset.from_tensor_slices(arrays)
    dataset = dataset.shuffle(100 * script.GLOBAL_BATCH_SIZE)
    dataset = dataset.batch(script.GLOBAL_BATCH_SIZE, drop_remainder=True)
    return {"x": dataset.prefetch(script.tf.data.AUTOTUNE)}


def measure_limit(script, replicas, seconds):
    """Times the script's own step on one constant batch, in one graph: no input, no log."""
    tf = script.tf
    script.strategy = create_strategy(script, replicas)
    script.model, script.optimizer = script.create_model_and_optimizer(script.strategy)
    script.loss_object = script.create_loss_objects(script.strategy)
    script.train_metrics, *_ = script.create_metrics(script.strategy)
    with script.strategy.scope():
        script.optimizer.build(script.model.trainable_variables)
    size = script.GLOBAL_BATCH_SIZE // replicas
    examples = next(iter(script.create_datasets()[0].batch(size)))
    share = script.preprocess(examples, tf.zeros([size, 2], tf.int32), training=True)
    batch = script.strategy.experimental_distribute_values_from_function(lambda _: share)

    @tf.function
    def run_steps(batch, steps):
        for _ in tf.range(steps):
            script.distributed_train_step(batch)
        return script.optimizer.iterations

    run_steps(batch, tf.constant(100)).numpy()
    started, done, steps = time.perf_counter(), 0, STEPS_A_SECOND
    while (elapsed := time.perf_counter() - started) < seconds:
        run_steps(batch, tf.constant(steps)).numpy()  # waits for the end
        done += steps
    return {"steps_per_second": done / elapsed}


def create_strategy(script, replicas):
    tf = script.tf
    if replicas == 1:
        return tf.distribute.get_strategy()  # none: what is fastest on one device
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, devices)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def enlarge(script, dataset, steps):
    """Returns the examples of a dataset as arrays, repeated up to `steps` batches."""
    size = steps * script.GLOBAL_BATCH_SIZE
    arrays = dataset.batch(dataset.cardinality()).get_single_element()
    return script.tf.nest.map_structure(
        lambda tensor: script.np.resize(tensor, [size, *tensor.shape[1:]]), arrays
    )


def peak_memory():
    """Returns the most memory that this process has held so far, in MiB.

    The kernel keeps this mark itself, so that no peak falls between two samples. A process starts
    with the mark of the one that started it: which is why the parent imports no TensorFlow.
    """
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
