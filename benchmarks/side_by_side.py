"""train.py, model.fit, Orbit, the tutorial's loop, and the limit of all, side by side on a CPU.

    python benchmarks/side_by_side.py [--jobs NAME ...] [--places NAME ...] [--only TITLE]
        [--without PEER ...] [--rounds 12] [--seconds 2] [--json FILE] [--plot FILE]

README.md, beside this file, says what is measured and how to read the tables.
"""

import argparse
import datetime
import functools
import gc
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import random
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import peers
from cookiecutter.main import cookiecutter
from jobs import JOBS, put

TEMPLATE = Path(__file__).resolve().parents[1]
SIZES = ESSENTIAL, _ = "essential", "complete"
PLACES = {"one": "one device", "replicas": "2 replicas", "workers": "2 workers"}
# A peer below this share of the best in the first round sits out the others: noise won't make it
# the best, and its time is better spent on more rounds.
HOPELESS = 0.5
PATIENCE = 300  # seconds that a turn may take: of two workers, one may wait for the other for good

# --------------------------------------------------------------------------------------------------
# A contender: a process of its own, which trains endlessly
# --------------------------------------------------------------------------------------------------


def contend(project, job, steps, place, kind, arguments):
    """Trains endlessly. Writes a line as each epoch begins, and as it fails."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what others print

    def mark(**values):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # MiB, on Linux
        print(json.dumps({"processor": time.process_time(), "peak": peak, **values}), file=lines)
        lines.flush()
        sys.stdin.readline()  # waits for its turn

    try:
        default = gc.get_threshold()
        if kind not in SCRIPT:  # or its import would be as fast as train.py makes it
            import tensorflow  # noqa: F401
        script = load(project)
        if kind not in SCRIPT:
            gc.set_threshold(*default)
        put(job, script, steps)
        if kind in SCRIPT:
            SCRIPT[kind](script, place, mark, *arguments)
        else:
            script.args = script.parse_arguments([])
            strategy = create_strategy(script, place)
            getattr(peers, kind)(script, strategy, steps, mark, *arguments)
    except BaseException as error:
        mark(fails=explain(error))
        os._exit(1)


def run_script(script, place, mark, *flags):
    """Runs `main` with the default flags, and whatever else a run does between its steps."""
    train = script.train

    def marked_train(iterator, count):  # once a loop
        if int(script.state["step"]) % script.STEPS_PER_EPOCH == 0:
            mark()
        return train(iterator, count)

    script.train = marked_train
    call_main(script, place, *flags)


def call_main(script, place, *flags, epochs="100000"):
    replicas = {"one": ["--replicas", "1"], "replicas": ["--replicas", "2"], "workers": []}[place]
    with tempfile.TemporaryDirectory() as own:
        folder = os.environ.get("SHARED", own)  # by two workers
        script.main(["--run-dir", f"{folder}/run", "--epochs", epochs, *replicas, *flags])


def run_short_job(script, place, mark):
    """Writes a line after three epochs, with a test and an export."""
    call_main(script, place, epochs="3")
    mark()


def run_silently(script, place, mark):
    """The same without checkpoints, log and TensorBoard."""
    script.save = script.log = lambda *_, **__: None
    run_script(script, place, mark)


def send_once(script, place, mark):
    """The same, with the losses of a loop summed over the workers once: each step sends nothing but
    its gradients. What that brings is what the number of messages costs."""
    run_steps, tf = script.run_steps, script.tf

    @tf.function
    def run_training_steps(iterator, steps):
        sums = tf.zeros([2], tf.float64)  # of this worker's one replica
        for _ in tf.range(steps):
            batch = script.next_batch(iterator)
            sums += tf.cast(script.strategy.run(script.train_step, args=(batch,)), tf.float64)
        return script.strategy.reduce("SUM", sums, axis=None)

    def run_either(step, iterator, steps):
        trains = step is script.distributed_train_step
        return run_training_steps(iterator, steps) if trains else run_steps(step, iterator, steps)

    script.run_steps = run_either
    run_script(script, place, mark)


def take_first_step(script, place, mark):
    """Writes a line after the first step."""
    train = script.train
    script.train = lambda *arguments: (train(*arguments), mark())[0]
    call_main(script, place, "--steps-per-loop", "1")


def validate(script, place, mark):
    """Validates endlessly, on the training examples."""
    validate, sets = script.validate, note_sets(script)

    def validate_all(iterator, count):
        iterator, count = script.distribute(*sets[-1], training=False)
        while True:
            mark()
            validate(iterator, count)

    script.validate = validate_all
    call_main(script, place)


def resume(script, place, mark):
    """Notes the seconds from a run's resuming at step 1,000,000, traced, to the end of a step."""
    train, sets = script.train, note_sets(script)

    def train_once(iterator, count):
        train(iterator, 1)  # traces
        started = time.perf_counter()
        iterator, _ = script.distribute(*sets[-1], training=True, first_step=1_000_000)
        train(iterator, 1)
        mark(seconds=time.perf_counter() - started)

    script.train = train_once
    call_main(script, place)


def note_sets(script):
    """Returns a list of the examples of each dataset that is made, of which that of training is the
    last as training begins."""
    distribute, sets = script.distribute, []

    def noted_distribute(examples, size, training, first_step=0):
        sets.append((examples, size))
        return distribute(examples, size, training, first_step)

    script.distribute = noted_distribute
    return sets


SCRIPT = {
    "train.py": run_script,
    "silent": run_silently,
    "send once": send_once,
    "short job": run_short_job,
    "first step": take_first_step,
    "validation": validate,
    "resume": resume,
}


def create_strategy(script, place):
    """Returns the fastest for fit: none, on one device. On several, MirroredStrategy's default
    reduction is a collective, with which fit fails as soon as steps_per_execution is above 1."""
    distribute, config = script.tf.distribute, script.tf.config
    if place == "one":
        return distribute.get_strategy()
    if place == "workers":
        return distribute.MultiWorkerMirroredStrategy()
    cpu = config.list_physical_devices("CPU")[0]
    config.set_logical_device_configuration(cpu, [config.LogicalDeviceConfiguration()] * 2)
    return distribute.MirroredStrategy(["CPU:0", "CPU:1"], distribute.ReductionToOneDevice())


def load(project):
    """Returns train.py as a module of its own. It imports TensorFlow; the rest waits for `main`."""
    spec = importlib.util.spec_from_file_location("train", Path(project) / "train.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def explain(error):
    """Returns the line that says why: TensorFlow puts the stack of the graph before it."""
    preamble = re.compile(r"$|File |Graph execution error|Detected at|\d+ root error")
    lines = [line.strip() for line in str(error).splitlines()]
    reason = next((line for line in lines if not preamble.match(line)), "")
    reason = re.sub(r"^\(0\) [A-Z_]+: +| \(defined @ .*?\)", "", reason)
    return f"{type(error).__name__}: {reason}"[:100]


# --------------------------------------------------------------------------------------------------
# A race: all contenders are started, and stopped; then each goes on for an epoch in turn
# --------------------------------------------------------------------------------------------------


class Contender:
    """A process, or one for each worker, that stands still but in its turn."""

    def __init__(self, folder, place, **arguments):
        environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
        command = [sys.executable, __file__, "contend", json.dumps({"place": place, **arguments})]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        workers = [environment]
        if place == "workers":
            config = {"cluster": {"worker": [f"localhost:{free_port()}" for _ in range(2)]}}
            environment["SHARED"] = tempfile.mkdtemp(dir=folder)
            tasks = [{**config, "task": {"type": "worker", "index": i}} for i in range(2)]
            workers = [{**environment, "TF_CONFIG": json.dumps(task)} for task in tasks]
        self.mark, self.failure = {}, None
        self.processes = [
            subprocess.Popen(command, env=each, text=True, **pipes) for each in workers
        ]

    def go_on(self):
        """Runs up to the next mark. Returns the seconds by the clock, and by the processor."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            if self.mark:
                process.stdin.write("\n")
                process.stdin.flush()
        started, before = time.perf_counter(), self.mark.get("processor", 0)
        timer = threading.Timer(PATIENCE, self.end)
        timer.start()
        lines = [process.stdout.readline() for process in self.processes]
        timer.cancel()
        elapsed = time.perf_counter() - started
        if len(self.processes) == 1:  # two workers that stand still would take each other for lost
            self.processes[0].send_signal(signal.SIGSTOP)
        marks = [json.loads(line or '{"fails": "no word"}') for line in lines]
        self.failure = next((mark["fails"] for mark in marks if "fails" in mark), None)
        if self.failure:
            self.end()
            return None
        self.mark = {name: sum(mark[name] for mark in marks) for name in marks[0]}
        return elapsed, self.mark["processor"] - before

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


def free_port():
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        return bound.getsockname()[1]


def race(contenders, rounds, folder):
    """Returns the seconds of each contender's epochs, by the clock and by the processor.

    In turn, so that a machine that is slow for a while is so for all of them; in another order each
    round, so that none always follows the same one.
    """
    running, results = {}, {name: {"clock": [], "processor": []} for name in contenders}
    try:
        for name, arguments in contenders.items():
            running[name] = Contender(folder, **arguments)
            for _ in range(2):  # the first epoch traces, compiles and fills buffers
                if not running[name].failure:
                    running[name].go_on()
        for number in range(rounds):
            order = [name for name in running if not running[name].failure]
            random.Random(number).shuffle(order)
            for name in order:
                if spent := running[name].go_on():
                    results[name]["clock"].append(spent[0])
                    results[name]["processor"].append(spent[1])
            first = {name: one["clock"][0] for name, one in results.items() if one["clock"]}
            least = min((first[name] for name in first if not is_limit(name)), default=0)
            for name in filter(is_peer, order if number == 0 else []):
                if first.get(name, 0) * HOPELESS > least:
                    running[name].failure = "is slow"
                    running[name].end()
    finally:
        for name, contender in running.items():
            contender.end()
            results[name] |= {"fails": contender.failure, "peak": contender.mark.get("peak")}
    return results


def collect(contenders, rounds, folder):
    """Returns the seconds from each contender's start, or that it gives, to its first mark."""
    results = {name: {"clock": [], "processor": []} for name in contenders}
    for _ in range(rounds):
        for name, arguments in contenders.items():
            contender = Contender(folder, **arguments)
            spent = contender.go_on()
            contender.end()
            results[name] |= {"fails": contender.failure, "peak": contender.mark.get("peak")}
            if spent:
                results[name]["clock"].append(contender.mark.get("seconds", spent[0]))
                results[name]["processor"].append(spent[1])
    return results


# --------------------------------------------------------------------------------------------------
# What is measured
# --------------------------------------------------------------------------------------------------


def choose_peers(place, job):
    """Returns the peers and the limits. On workers fit is none of them: it doesn't run there."""
    fits = {
        f"fit, {source}, {count}{', XLA' * xla}": (ESSENTIAL, "fit", source, count, xla)
        for source in ("arrays", "tf.data")
        for count in (1, 100)
        for xla in (False, True)
        if (source, job) != ("arrays", "input")
    }
    loops = {
        "tutorial, by batches": (ESSENTIAL, "tutorial", False),
        "tutorial, by epochs": (ESSENTIAL, "tutorial", True),
    }
    if importlib.util.find_spec("orbit"):
        loops["Orbit"] = (ESSENTIAL, "orbit")
    limits = {
        "limit": (ESSENTIAL, "limit", False),
        "limit, our Adam": (ESSENTIAL, "limit", True),
        "limit, our Adam and input": (ESSENTIAL, "limit", True, True),
    }
    if job == "input":
        limits = {"decoding alone": (ESSENTIAL, "decode")}
    if place == "workers":
        return {**loops, "limit, one message a step": (ESSENTIAL, "send once")}
    return {**fits, **loops, **limits}


def list_measurements(jobs, places):
    """Yields a title, how it is measured, a job, a place, and the contenders: a size of the script,
    a kind, and its arguments."""
    ours = {f"train.py, {size}": (size, "train.py") for size in SIZES}
    for job in jobs:
        for place in places:
            if place == "one" or job in ("digits", "dense"):
                kinds = {**ours, **choose_peers(place, job)}
                yield f"{job}, {PLACES[place]}", race, job, place, kinds
    for job in [job for job in jobs if job in ("digits", "dense")]:
        kinds = {f"train.py, {size}": (size, "validation") for size in SIZES}
        for source in ("arrays", "tf.data"):
            for count in (1, 100):
                kinds[f"evaluate, {source}, {count}"] = ESSENTIAL, "evaluate", source, count
        yield f"validation of {job}", race, job, "one", kinds
        saves = "--checkpoint-every-steps", "100"
        kinds = {f"train.py, {size}": (size, "train.py", *saves) for size in SIZES}
        kinds |= {f"without, {size}": (size, "silent") for size in SIZES}
        yield f"{job}: checkpoints each 100 steps, log, TensorBoard", race, job, "one", kinds
    kinds = {f"train.py, {size}": (size, "first step") for size in SIZES}
    for source in ("arrays", "tf.data"):
        kinds[f"fit, {source}"] = ESSENTIAL, "fit", source, 1, False, True
    yield "digits: from the start to the first step", collect, "digits", "one", kinds
    kinds = {f"train.py, {size}": (size, "short job") for size in SIZES}
    for source in ("arrays", "tf.data"):
        for count in (1, 100):
            kinds[f"fit, {source}, {count}"] = ESSENTIAL, "short_job", source, count
    yield "digits: from the start to the end of three epochs", collect, "digits", "one", kinds
    kinds = {f"train.py, {size}": (size, "resume") for size in SIZES}
    yield "digits: a step after step 1,000,000, traced", collect, "digits", "one", kinds
    flags = {
        "--steps-per-loop": (100, 1, 10, 1000),
        "--global-batch-size": (64, 16, 256, 1024),
    }
    for flag, numbers in flags.items():
        kinds = {f"{flag} {n}": (ESSENTIAL, "train.py", flag, str(n)) for n in numbers}
        yield f"digits: {flag}", race, "digits", "one", kinds


# --------------------------------------------------------------------------------------------------
# What is said
# --------------------------------------------------------------------------------------------------


def compare(ours, theirs):
    """Returns the median of the ratios within a round, theirs to ours, and in brackets a range that
    holds the true one in 19 of 20 cases: of the order statistics, whatever the distribution."""
    ratios = sorted(b / a for a, b in zip(ours, theirs, strict=False))
    if not ratios:  # the first contender has failed
        return ""
    skip = max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2))
    return f"{statistics.median(ratios):.2f} ({ratios[skip]:.2f}–{ratios[-1 - skip]:.2f})"


def print_table(title, result):
    [(first, reference), *_] = result.items()
    print(f"\n**{title}**, speed ÷ that of {first}\n")
    print("| | seconds | batches/s | by the clock | by the processor | peak MiB | rounds |")
    print("|---|---|---|---|---|---|---|")
    for name, one in result.items():
        if not one["clock"]:
            print(f"| {name} | fails: {one['fails']} | | | | | |")
            continue
        seconds = statistics.median(one["clock"])
        cells = [f"{seconds:.2f}", f"{one['batches'] / seconds:.4g}"]
        cells += [compare(one[key], reference[key]) for key in ("clock", "processor")]
        cells += [f"{one['peak']:.0f}", str(len(one["clock"]))]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def find_failures(results):
    """Yields the contenders that failed, other than those that do by themselves: XLA, which doesn't
    compile a step of several replicas."""
    for title, result in results.items():
        for name, one in result.items() if title != "machine" else ():
            if one["fails"] not in (None, "is slow") and "XLA" not in name:
                yield f"{title}: {name}"


def plot(results, path):
    """Draws, for each race, the contenders' speeds by the clock as shares of the best peer's:
    medians of the ratios within a round. Those that sat out, or aren't half as fast, are left out.
    """
    import matplotlib.pyplot as plt

    titles = [title for title in results if title.endswith(tuple(PLACES.values()))]
    rows = -(-len(titles) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(11, 2.1 * rows), sharex=True, squeeze=False)
    for axis, title in itertools.zip_longest(axes.flat, titles):
        axis.set_axis_off() if title is None else draw(axis, title, results[title])
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def draw(axis, title, result):
    clocks = {name: one["clock"] for name, one in result.items() if one["fails"] is None}
    best = min((x for x in clocks if is_peer(x)), key=lambda x: statistics.median(clocks[x]))
    for name, seconds in reversed(clocks.items()):
        speed = statistics.median(b / a for a, b in zip(seconds, clocks[best], strict=False))
        if speed > 0.5:
            color = "tab:gray" if is_peer(name) else "tab:orange"
            bar = axis.barh(name, speed, color="lightgray" if is_limit(name) else color)
            axis.bar_label(bar, fmt="%.2f", padding=3)
    axis.set_title(f"{title}: speed ÷ {best}'s", loc="left", fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params("y", labelsize=8)
    axis.margins(x=0.1)


def is_limit(name):
    return name.startswith(("limit", "decoding"))


def is_peer(name):
    return name.startswith(("fit", "evaluate", "tutorial", "Orbit"))


def describe_machine():
    info = Path("/proc/cpuinfo")  # on Linux, where `platform` doesn't know the processor
    model = re.search("model name.*: (.*)", info.read_text() if info.exists() else "")
    cpu = f"{os.cpu_count()} × {model[1] if model else platform.processor()}"
    date = datetime.datetime.now().isoformat(" ", "minutes")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "keras")]
    return ", ".join([date, cpu, f"load {os.getloadavg()[0]:.1f}", *versions])


@functools.cache
def render(task, size, folder):
    options = {"no_input": True, "default_config": True, "accept_hooks": False}
    answers = {"task": task, "script": size, "project_slug": f"{task}_{size}"}
    return cookiecutter(str(TEMPLATE), extra_context=answers, output_dir=folder, **options)


def main():
    if sys.argv[1:2] == ["contend"]:  # `Contender` starts this file again so
        contend(**json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--jobs", nargs="*", choices=JOBS, default=list(JOBS))
    add("--places", nargs="*", choices=PLACES, default=list(PLACES))
    add("--only", default="", help="what this finds in its title, a regular expression")
    add("--without", nargs="*", default=[], help="contenders with one of these in the name")
    add("--rounds", type=int, default=12)
    add("--seconds", type=float, default=2, help="about those of an epoch")
    add("--json", type=Path, help="a file for all that was measured")
    add("--plot", type=Path, help="a picture of the speeds")
    args = parser.parse_args()
    results = {"machine": describe_machine()}
    print(results["machine"])
    with tempfile.TemporaryDirectory() as folder:
        for title, how, job, place, kinds in list_measurements(args.jobs, args.places):
            if not re.search(args.only, title):
                continue
            task, speed, _ = JOBS[job]
            batches = max(2, round(speed * args.seconds))
            contenders = {}
            for name, (size, kind, *arguments) in kinds.items():
                if any(part in name for part in args.without):
                    continue
                common = {"job": job, "steps": batches, "place": place}
                own = {"project": render(task, size, folder), "kind": kind, "arguments": arguments}
                contenders[name] = {**common, **own}
            results[title] = how(contenders, args.rounds, folder)
            for one in results[title].values():
                one["batches"] = batches
            print_table(title, results[title])
            if args.json:
                args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if args.plot:
        plot(results, args.plot)
    if failed := list(find_failures(results)):
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
