"""Compare train.py with model.fit, Orbit, the tutorial's loop and the limit.

    python benchmarks/side_by_side.py [--jobs NAME ...] [--places NAME ...] [--only TITLE]
        [--without PATTERN ...] [--rounds 12] [--seconds 2] [--json FILE] [--plot FILE]

README.md in this folder explains what is measured and how to read the tables.
"""

import argparse
import dataclasses
import datetime
import functools
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from cookiecutter.main import cookiecutter
from jobs import JOBS, find_job
from race import measure_starts, race
from report import find_failures, plot, print_summary, print_table

TEMPLATE = Path(__file__).resolve().parents[1]
ESSENTIAL = "essential"
SIZES = (ESSENTIAL, "complete")
PLACES = {
    "one": "one device",
    "replicas": "2 replicas",
    "workers": "2 workers",
    "gpu": "one GPU",
    "gpu_bfloat16": "one GPU, mixed_bfloat16",
}
SEVERAL_REPLICAS = ("replicas", "workers")
CPU_PLACES = ("one", *SEVERAL_REPLICAS)  # the default
SMALL_JOBS = ("digits", "dense")  # measured at all places
SOURCES = ("arrays", "tf.data")
STEPS_PER_EXECUTION = (1, 100)
FLAGS = {  # their values; the first one is the default
    "--steps-per-loop": (100, 1, 10, 1000),
    "--global-batch-size": (64, 16, 256, 1024),
}


@dataclasses.dataclass
class Measurement:
    """A table: its contenders are, by name, a size of the script, a kind and its arguments."""

    title: str
    job: str
    kinds: dict[str, tuple]
    place: str = "one"
    measure: Callable = race


def list_measurements(jobs, places):
    """Return all measurements of the jobs and places that the command line selects."""
    measurements = []
    for job, place in itertools.product(jobs, places):
        if place not in SEVERAL_REPLICAS or job in SMALL_JOBS:
            title = f"{job}, {PLACES[place]}"
            kinds = list_scripts(place) | list_peers(job, place)
            measurements.append(Measurement(title, job, kinds, place))
    for job in jobs:
        if job in SMALL_JOBS:
            measurements.append(compare_validation(job))
            measurements.append(compare_saving(job))
    measurements.append(compare_large_saving())
    measurements += compare_random_numbers(places)
    measurements.append(compare_first_step())
    measurements.append(compare_short_job())
    title = "digits: a step after step 1,000,000, traced"
    resume = Measurement(title, "digits", list_sizes("resume"), measure=measure_starts)
    measurements.append(resume)
    for flag, values in FLAGS.items():
        measurements.append(compare_values(flag, values))
    return measurements


def list_sizes(kind, *arguments, name="train.py"):
    """Return both sizes of the script as contenders."""
    return {f"{name}, {size}": (size, kind, *arguments) for size in SIZES}


def list_scripts(place):
    """Return both sizes of the script and, on one device, both compiled by XLA."""
    kinds = list_sizes("train.py")
    if place not in SEVERAL_REPLICAS:
        kinds |= list_sizes("train.py", "--jit-compile", name="train.py, XLA")
    return kinds


def list_peers(job, place):
    """Return the peers and the limits. On workers, fit and the limits don't run."""
    if place == "workers":
        return list_loops()
    if job == "input":
        limits = {"decoding alone": (ESSENTIAL, "decode")}
    else:
        limits = {
            "limit": (ESSENTIAL, "limit", False),
            "limit, our Adam": (ESSENTIAL, "limit", True),
            "limit, our Adam and input": (ESSENTIAL, "limit", True, True),
        }
    return list_fits(job) | list_loops() | limits


def list_fits(job):
    """Return model.fit with each setting. Its files can't be decoded in arrays."""
    sources = ("tf.data",) if job == "input" else SOURCES
    kinds = {}
    for source, count in itertools.product(sources, STEPS_PER_EXECUTION):
        name = f"fit, {source}, {count}"
        kinds[name] = (ESSENTIAL, "fit", source, count, False)
        kinds[f"{name}, XLA"] = (ESSENTIAL, "fit", source, count, True)
    return kinds


def list_loops():
    kinds = {
        "tutorial, by batches": (ESSENTIAL, "tutorial", False),
        "tutorial, by epochs": (ESSENTIAL, "tutorial", True),
    }
    if importlib.util.find_spec("orbit"):
        kinds["Orbit"] = (ESSENTIAL, "Orbit")
    return kinds


def compare_validation(job):
    kinds = list_sizes("validation")
    for source, count in itertools.product(SOURCES, STEPS_PER_EXECUTION):
        kinds[f"evaluate, {source}, {count}"] = (ESSENTIAL, "evaluate", source, count)
    return Measurement(f"validation of {job}", job, kinds)


def compare_saving(job):
    kinds = list_sizes("train.py", "--checkpoint-every-steps", "100")
    kinds |= list_sizes("silent", name="without")
    return Measurement(f"{job}: checkpoints each 100 steps, log, TensorBoard", job, kinds)


def compare_large_saving():
    """Return a measurement of epochs that save the last and the best checkpoint at their end."""
    kinds = list_sizes("train.py") | list_sizes("silent", name="without")
    return Measurement("100 million weights: checkpoints each epoch", "large", kinds)


def compare_random_numbers(places):
    """Return measurements of what a replica's own part of the random numbers costs.

    A single replica draws all of them, as Keras does.
    """
    kinds = {
        "train.py": (ESSENTIAL, "train.py"),
        "without": (ESSENTIAL, "same numbers"),
    }
    measurements = []
    for place in places:
        if place in SEVERAL_REPLICAS:
            title = f"bert: random numbers of each replica, {PLACES[place]}"
            measurements.append(Measurement(title, "bert", kinds, place))
    return measurements


def compare_first_step():
    kinds = list_sizes("first step")
    for source in SOURCES:
        kinds[f"fit, {source}"] = (ESSENTIAL, "fit, first step", source)
    title = "digits: from the start to the first step"
    return Measurement(title, "digits", kinds, measure=measure_starts)


def compare_short_job():
    kinds = list_sizes("short job")
    for source, count in itertools.product(SOURCES, STEPS_PER_EXECUTION):
        kinds[f"fit, {source}, {count}"] = (ESSENTIAL, "fit, short job", source, count)
    title = "digits: from the start to the end of three epochs"
    return Measurement(title, "digits", kinds, measure=measure_starts)


def compare_values(flag, values):
    """Return a measurement of train.py with different values of a flag."""
    kinds = {f"{flag} {value}": (ESSENTIAL, "train.py", flag, str(value)) for value in values}
    return Measurement(f"digits: {flag}", "digits", kinds)


def run_measurement(measurement, args, folder):
    """Return the results of all contenders by name."""
    job = find_job(measurement.job)
    batches = max(2, round(job.steps_per_second * args.seconds))
    contenders = {}
    for name, (size, kind, *arguments) in measurement.kinds.items():
        if any(re.search(pattern, name) for pattern in args.without):
            continue
        contenders[name] = {
            "project": render(job.task, size, folder),
            "job": measurement.job,
            "steps": batches,
            "place": measurement.place,
            "kind": kind,
            "arguments": arguments,
        }
    results = measurement.measure(contenders, args.rounds, folder)
    for result in results.values():
        result["batches"] = batches
    return results


@functools.cache
def render(task, size, folder):
    """Return the folder of a rendered project."""
    answers = {
        "task": task,
        "script": size,
        "project_slug": f"{task}_{size}",
    }
    return cookiecutter(
        str(TEMPLATE),
        extra_context=answers,
        output_dir=folder,
        no_input=True,
        default_config=True,
        accept_hooks=False,
    )


def describe_machine():
    """Return the date, the processor, the load and the versions."""
    date = datetime.datetime.now().isoformat(" ", "minutes")
    cpu = f"{os.cpu_count()} × {find_processor()}"
    load, *_ = os.getloadavg()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "keras")]
    return ", ".join([date, cpu, f"load {load:.1f}", *versions])


def find_processor():
    """Return the processor's name. On Linux, the module `platform` doesn't know it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search("model name.*: (.*)", info.read_text())
        if match:
            return match[1]
    return platform.processor()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--jobs", nargs="*", choices=JOBS, default=list(JOBS))
    add("--places", nargs="*", choices=PLACES, default=CPU_PLACES)
    add("--only", default="", help="measurements whose title matches this regular expression")
    add("--without", nargs="*", default=[], help="leave out contenders by regular expressions")
    add("--rounds", type=int, default=12)
    add("--seconds", type=float, default=2, help="approximate length of an epoch")
    add("--json", type=Path, help="file for all results")
    add("--plot", type=Path, help="file for a picture of the speeds")
    return parser.parse_args()


def main():
    args = parse_arguments()
    machine = describe_machine()
    print(machine)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for measurement in list_measurements(args.jobs, args.places):
            title = measurement.title
            if not re.search(args.only, title):
                continue
            results[title] = run_measurement(measurement, args, folder)
            print_table(title, results[title])
            if args.json:
                text = json.dumps({"machine": machine, **results}, indent=1)
                args.json.write_text(text, encoding="utf-8")
    print_summary(results)
    if args.plot:
        races = {title: each for title, each in results.items() if is_race(title)}
        plot(races, args.plot)
    failures = find_failures(results)
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


def is_race(title):
    """Return whether a measurement compares training with the peers."""
    return title.endswith(tuple(PLACES.values())) and "random numbers" not in title


if __name__ == "__main__":
    main()
