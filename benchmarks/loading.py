"""Compare how long `train.py` takes to load many small examples, and the memory that it needs.

    python benchmarks/loading.py [--examples 3000000] [--rounds 5]

An example has 24 bytes. They are computed while they are loaded, so that their source needs no
memory. Each measurement is a process of its own; the contenders take turns. Print the medians of
the seconds, of their ratios to tf.data alone, and of the peak memory divided by the examples' size.
The peak is read and reset in /proc, so on Linux only.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parents[1]
EXAMPLE_BYTES = 24
KIB = 1024
PROJECTS = {
    "essential": ["script=essential"],
    "complete": ["script=complete"],
    "parameter_server": ["distribution=parameter_server"],
}
TF_DATA = "tf.data alone: batches of 512, not kept"
OTHERS = [TF_DATA, "one tf.data batch of all", "tf.data's cache()"]


def render(folder):
    """Render the projects, each in a folder with its name."""
    for name, answers in PROJECTS.items():
        command = [
            *(sys.executable, "-m", "cookiecutter", "--no-input"),
            *("-o", folder, TEMPLATE),
            f"project_slug={name}",
            *answers,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def create_dataset(tf, size):
    """Return `size` examples, each of five float32 and one int32."""

    def create_examples(index):
        return tf.random.stateless_uniform([1000, 5], [0, index]), tf.range(1000)

    dataset = tf.data.Dataset.range(size // 1000).map(create_examples).unbatch()
    return dataset.apply(tf.data.experimental.assert_cardinality(size // 1000 * 1000))


def load(name, project, size):
    """Load a data set as a contender does. Print the seconds and the peak of the memory as JSON."""
    sys.path.insert(0, str(project))
    script = importlib.import_module("train") if name in PROJECTS else None
    tf = importlib.import_module("tensorflow")

    def run(dataset, size):
        if script:
            return script.load_into_memory(dataset, "train")
        if name == TF_DATA:
            return [None for _ in dataset.batch(512)]
        if name == "tf.data's cache()":
            cached = dataset.cache()
            return cached, [None for _ in cached.batch(512)]
        return dataset.batch(size).get_single_element()

    run(create_dataset(tf, 1000), 1000)  # starts the threads of tf.data
    dataset = create_dataset(tf, size)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = read_status("VmRSS")
    started_at = time.perf_counter()
    loaded = run(dataset, size)
    seconds = time.perf_counter() - started_at
    peak = read_status("VmHWM") - before
    del loaded
    print(json.dumps({"seconds": seconds, "peak": peak / (size * EXAMPLE_BYTES)}))


def read_status(name):
    """Return a size of this process, in bytes: VmRSS is resident now, VmHWM was at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIB
    raise ValueError(f"/proc/self/status has no {name}")


def measure(name, folder, size):
    command = [sys.executable, __file__, "--load", name, "--project", folder / name]
    command += ["--examples", str(size)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(finished.stdout.splitlines()[-1])


def compare(size, rounds):
    """Print a table, a line for each contender."""
    contenders = [*PROJECTS, *OTHERS]
    results = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory() as folder:
        render(folder)
        for _ in range(rounds):
            for name in contenders:
                results[name].append(measure(name, Path(folder), size))
    print(f"{size:,} examples of {EXAMPLE_BYTES} bytes, {rounds} rounds\n")
    print("| | seconds | ÷ tf.data alone | peak memory ÷ size |")
    print("|---|---|---|---|")
    for name, result in results.items():
        seconds = [each["seconds"] for each in result]
        ratios = [
            each["seconds"] / reference["seconds"]
            for each, reference in zip(result, results[TF_DATA], strict=True)
        ]
        peak = statistics.median(each["peak"] for each in result)
        print(
            f"| {name} | {statistics.median(seconds):.2f} | {statistics.median(ratios):.2f} | "
            f"{peak:.2f} |"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--examples", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--project", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        load(args.load, args.project, args.examples)
    else:
        compare(args.examples, args.rounds)


if __name__ == "__main__":
    main()
