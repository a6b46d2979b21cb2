"""Steps a second and peak memory of train.py, of model.fit at its best settings, and of the bare
training step, which is the limit of both: side by side, on this machine's CPU.

    python benchmarks/side_by_side.py [--rounds 5] [--seconds 5] [--replicas 1 2] [--fit NAME ...]
        [--json FILE]

README.md, beside this file, says what is measured and how to read the table.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).resolve().parents[1]
SCRIPT, LIMIT, OWN_LIMIT, BEST_FIT = "train.py", "limit", "limit, own Adam", "best of fit"
FIT = {  # the settings of model.fit: source of the data, steps_per_execution, jit_compile
    f"  fit {source}, {steps}{', XLA' if xla else ''}": (source, steps, xla)
    for source in ("arrays", "tf.data")
    for steps in (1, 100)
    for xla in (False, True)
}
STEPS = 500  # an epoch has this many steps for each of --seconds
# A setting of fit below this share of the best in round 1 sits out the other rounds: noise won't
# make it the best, and its time is better spent on more rounds.
HOPELESS = 0.5


def measure(project, contender, replicas, seconds):
    """Returns what one contender reaches; runs in a process of its own."""
    script = load(project)
    if contender == SCRIPT:
        result = measure_script(script, replicas, seconds)
    elif contender in (LIMIT, OWN_LIMIT):
        result = measure_limit(script, replicas, seconds, contender == OWN_LIMIT)
    else:
        result = measure_fit(script, replicas, seconds, *FIT[contender])
    return {"peak_memory": peak_memory(), **result}


def load(project):
    """Returns train.py as a module of its own. It imports TensorFlow; the rest waits for `main`."""
    spec = importlib.util.spec_from_file_location("train", Path(project) / "train.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def measure_script(script, replicas, seconds):
    """Runs `main` to its end, with the default flags, on the enlarged data.

    Whole epochs are timed, as for fit, the second and the third: steps alone would leave out what
    a run does between them (log, validate, save), and how far the input runs ahead of them. The
    times are those of the calls of `train`, once a loop, and of `test`, after the last epoch.
    """
    create_datasets, steps = script.create_datasets, round(STEPS * seconds)
    calls = []

    def create_large_datasets():
        train_set, validation_set, test_set = create_datasets()
        arrays = enlarge(script, train_set, steps)
        return script.tf.data.Dataset.from_tensor_slices(arrays), validation_set, test_set

    def note_calls(function):
        def noted(*arguments, **named):
            calls.append((int(script.state["step"]), time.perf_counter(), peak_memory()))
            return function(*arguments, **named)

        return noted

    script.create_datasets = create_large_datasets
    script.train, script.test = note_calls(script.train), note_calls(script.test)
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--run-dir", f"{folder}/run", "--replicas", str(replicas), "--epochs", "3"]
        if code := script.main(flags):
            raise SystemExit(code)
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    started = next(began for step, began, _ in calls if step == steps)
    _, ended, memory = calls[-1]
    logged = [line for line in map(json.loads, lines) if line["split"] == "train"]
    logged = [line["examples_per_second"] for line in logged if line["epoch"] > 1]
    return {
        "steps_per_second": 2 * steps / (ended - started),
        # Harmonic: the lines are of as many steps each, not of as many seconds.
        "logged": statistics.harmonic_mean(logged) / script.GLOBAL_BATCH_SIZE,
        "traces": script.run_steps.experimental_get_tracing_count(),
        "peak_memory": memory,  # of the training, as for fit
        "peak_memory_of_run": peak_memory(),  # with its test and its export
    }


def measure_fit(script, replicas, seconds, source, steps_per_execution, jit_compile):
    """Times whole epochs of `model.fit`, the second and the third."""
    strategy = create_strategy(script, replicas)
    model, optimizer = script.create_model_and_optimizer(strategy)
    optimizer = to_keras(script, optimizer, strategy)
    loss = script.create_loss_objects(strategy)
    # fit takes the mean over the global batch itself, if the loss has Keras's default reduction.
    loss = type(loss).from_config({**loss.get_config(), "reduction": "sum_over_batch_size"})
    metrics, *_ = script.create_metrics(strategy)
    execution = {"steps_per_execution": steps_per_execution, "jit_compile": jit_compile}
    with strategy.scope():
        model.compile(optimizer, loss, metrics=metrics, **execution)
    ends = []
    note_end = script.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter())
    )

    def fit(steps, epochs):
        arrays = enlarge(script, script.create_datasets()[0], steps)
        if source == "arrays":
            data = {"x": arrays[0], "y": arrays[1], "batch_size": script.GLOBAL_BATCH_SIZE}
        else:
            dataset = script.tf.data.Dataset.from_tensor_slices(arrays)
            dataset = dataset.shuffle(100 * script.GLOBAL_BATCH_SIZE)
            dataset = dataset.batch(script.GLOBAL_BATCH_SIZE, drop_remainder=True)
            data = {"x": dataset.prefetch(script.tf.data.AUTOTUNE)}
        ends.clear()
        model.fit(**data, epochs=epochs, callbacks=[note_end], verbose=0)
        return (epochs - 1) * steps / (ends[-1] - ends[0])

    # A slow setting would take minutes: its epochs last half of --seconds.
    few = 200
    steps = seconds * min(STEPS, fit(few, epochs=2) / 2)
    return {"steps_per_second": fit(max(few, round(steps)), epochs=3)}


def measure_limit(script, replicas, seconds, own_adam):
    """Times the script's own step on one constant batch, in one graph: no input, no log."""
    script.args = script.parse_arguments([])
    script.strategy = create_strategy(script, replicas)
    run_steps = create_loop(script, own_adam)
    run_steps(100)  # traces; on the CPU a call returns when all is done
    started, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        run_steps(STEPS)
        done += STEPS
    return {"steps_per_second": done / elapsed}


def create_loop(script, own_adam):
    """Returns a function that runs some steps of a script, whose strategy is set, in one graph on
    one constant batch: with the script's Adam, or with Keras's."""
    tf, strategy = script.tf, script.strategy
    script.model, script.optimizer = script.create_model_and_optimizer(strategy)
    if not own_adam:
        script.optimizer = to_keras(script, script.optimizer, strategy)
    script.loss_object = script.create_loss_objects(strategy)
    script.train_metrics, *_ = script.create_metrics(strategy)
    with strategy.scope():
        script.optimizer.build(script.model.trainable_variables)
    size = script.GLOBAL_BATCH_SIZE // strategy.num_replicas_in_sync
    examples = next(iter(script.create_datasets()[0].batch(size)))
    features, labels = script.preprocess(examples, tf.zeros([size, 2], tf.int32), training=True)
    share = features, labels, tf.ones([size])
    batch = strategy.experimental_distribute_values_from_function(lambda _: share)

    @tf.function
    def run_steps(batch, steps):
        for _ in tf.range(steps):
            script.distributed_train_step(batch)

    return lambda steps: run_steps(batch, tf.constant(steps))


def to_keras(script, optimizer, strategy):
    """Returns Keras's Adam with the arguments of the script's, which no peer has."""
    with strategy.scope():
        return script.keras.optimizers.Adam.from_config(optimizer.get_config())


def create_strategy(script, replicas):
    """Returns the fastest for fit: none, on one device. On several, MirroredStrategy's default
    reduction is a collective, with which fit fails as soon as steps_per_execution is above 1."""
    distribute, config = script.tf.distribute, script.tf.config
    if replicas == 1:
        return distribute.get_strategy()
    cpu = config.list_physical_devices("CPU")[0]
    config.set_logical_device_configuration(cpu, [config.LogicalDeviceConfiguration()] * replicas)
    devices = [f"CPU:{i}" for i in range(replicas)]
    return distribute.MirroredStrategy(devices, distribute.ReductionToOneDevice())


def enlarge(script, dataset, steps):
    """Returns the examples of a dataset as arrays, repeated up to `steps` batches. For fit they
    stay uint8 too, which takes the least memory: Keras casts in the step, as `preprocess` does."""
    size = steps * script.GLOBAL_BATCH_SIZE
    arrays = dataset.batch(dataset.cardinality()).get_single_element()
    return tuple(script.np.resize(array, [size, *array.shape[1:]]) for array in arrays)


def peak_memory():
    """Returns the most memory that this process has held so far, in MiB.

    The kernel keeps this mark, so no peak falls between two samples. A process inherits it from
    the one that starts it: hence no TensorFlow in the parent.
    """
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def explain(error):
    """Returns the line that says why: TensorFlow puts the stack of the graph before it."""
    preamble = re.compile(r"$|File |Graph execution error|Detected at|\d+ root error")
    lines = [line.strip() for line in str(error).splitlines()]
    reason = next((line for line in lines if not preamble.match(line)), "")
    reason = re.sub(r"^\(0\) [A-Z_]+: +| \(defined @ .*?\)", "", reason)
    return f"{type(error).__name__}: {reason}"[:120]


def run(**arguments):
    """Measures one contender in a new process: what one leaves behind (threads, memory, compiled
    graphs) would be there for the next, and logical devices can be set up only once."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    environment["CUDA_VISIBLE_DEVICES"] = "-1"
    command = [sys.executable, __file__, "measure", json.dumps(arguments)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [""])[-1]
        return {"fails": f"exit code {process.returncode}: {last}"}
    return json.loads(process.stdout.splitlines()[-1])


def run_round(number, before, **common):
    """Measures each contender once. In turn, so that a machine that is slow for minutes is so for
    all of them; in another order each time, so that none always follows the same one."""
    contenders = [SCRIPT, LIMIT, OWN_LIMIT, *FIT]
    if before:
        best = before[BEST_FIT].get("steps_per_second", 0)
        speeds = {name: before[name].get("steps_per_second", 0) for name in FIT}
        contenders = [n for n in contenders if n not in FIT or speeds[n] > HOPELESS * best]
    random.Random(number).shuffle(contenders)
    results = {}
    for name in contenders:
        results[name] = run(contender=name, **common)
        said = results[name].get("fails") or f"{results[name]['steps_per_second']:.0f} steps/s"
        print(f"round {number}, {common['replicas']} replicas: {name}: {said}", file=sys.stderr)
        if "fails" in results[name] and name not in FIT:
            sys.exit(1)
    fits = [{**results[n], "setting": n} for n in FIT if "steps_per_second" in results.get(n, {})]
    results[BEST_FIT] = max(fits, key=lambda fit: fit["steps_per_second"], default={"fails": "all"})
    return results


def compare(rounds, one, other, key="steps_per_second"):
    """Returns the median over the rounds of the ratio within each: what slows the machine for a
    whole round cancels out."""
    pairs = [(r.get(one, {}).get(key), r.get(other, {}).get(key)) for r in rounds]
    return statistics.median([a / b for a, b in pairs if a and b] or [float("nan")])


def print_table(replicas, rounds):
    place = "one device" if replicas == 1 else f"{replicas} replicas"
    print(f"\n{place:24}  steps/s       min–max   ÷ train.py  ÷ limit  peak MiB  rounds")
    for name in [SCRIPT, BEST_FIT, *FIT, LIMIT, OWN_LIMIT]:
        results = [r[name] for r in rounds if "steps_per_second" in r.get(name, {})]
        if not results:
            print(f"{name:24}  fails: {rounds[0][name]['fails']}")
            continue
        speeds = [result["steps_per_second"] for result in results]
        spread = f"{min(speeds):.0f}–{max(speeds):.0f}"
        memory = statistics.median(result["peak_memory"] for result in results)
        print(
            f"{name:24} {statistics.median(speeds):8.0f}  {spread:>12}"
            f"  {compare(rounds, name, SCRIPT):11.2f}  {compare(rounds, name, LIMIT):7.2f}"
            f"  {memory:8.0f}  {len(results):6}"
        )
    speed, memory = (
        statistics.median(r[SCRIPT][key] for r in rounds)
        for key in ("logged", "peak_memory_of_run")
    )
    traces = max(r[SCRIPT]["traces"] for r in rounds)
    print(
        f"{SCRIPT}: {speed:.0f} steps/s by its log, {memory:.0f} MiB with export, {traces} traces, "
        "of training, validation and test"
    )


def print_goals(rounds):
    print("\nGoals, each the median of the ratios within a round")
    one, two = rounds.get(1), rounds.get(2)
    goals = [
        ("train.py ÷ best of fit, one device", one, BEST_FIT, "steps_per_second", 1.1),
        ("train.py ÷ limit, one device", one, LIMIT, "steps_per_second", 0.85),
        ("train.py ÷ best of fit, 2 replicas", two, BEST_FIT, "steps_per_second", 1.2),
        ("peak memory ÷ that of best of fit, one device", one, BEST_FIT, "peak_memory", 1.1),
    ]
    for label, measured, other, key, goal in goals:
        if measured:
            ratio = compare(measured, SCRIPT, other, key)
            sign, met = ("≤", ratio <= goal) if key == "peak_memory" else ("≥", ratio >= goal)
            print(f"{label:46} {ratio:5.2f}  {sign} {goal:4}  {'met' if met else 'missed'}")


def describe_machine():
    info = Path("/proc/cpuinfo")  # on Linux, where `platform` doesn't know the processor
    model = re.search("model name.*: (.*)", info.read_text() if info.exists() else "")
    cpu = f"{os.cpu_count()} × {model[1] if model else platform.processor()}"
    date = datetime.datetime.now().isoformat(" ", "minutes")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "keras")]
    return ", ".join([date, cpu, f"load {os.getloadavg()[0]:.1f}", *versions])


def main():
    if sys.argv[1:2] == ["measure"]:  # `run` starts this script again so
        try:
            result = measure(**json.loads(sys.argv[2]))
        except Exception as error:
            result = {"fails": explain(error)}
        print(json.dumps(result))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="about those of a measurement")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--fit", nargs="+", default=["fit"], help="settings with these in the name")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    args = parser.parse_args()
    for name in [name for name in FIT if not any(part in name for part in args.fit)]:
        del FIT[name]
    machine = describe_machine()
    rounds = {replicas: [] for replicas in args.replicas}
    with tempfile.TemporaryDirectory() as folder:
        project = cookiecutter(
            str(TEMPLATE), no_input=True, default_config=True, accept_hooks=False, output_dir=folder
        )
        for number in range(1, args.rounds + 1):
            for replicas, done in rounds.items():
                common = {"project": project, "replicas": replicas, "seconds": args.seconds}
                done.append(run_round(number, done[0] if done else None, **common))
    if args.json:
        content = {"machine": machine, "arguments": vars(args), "rounds": rounds}
        args.json.write_text(json.dumps(content, indent=1, default=str), encoding="utf-8")
    print(machine)
    for replicas, done in rounds.items():
        print_table(replicas, done)
    print_goals(rounds)


if __name__ == "__main__":
    main()
