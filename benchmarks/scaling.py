"""Measure the cost of more workers on this machine, and simulate it for others.

    python benchmarks/scaling.py measure [--workers 1 2 4] [--steps 150]
    python benchmarks/scaling.py embedding [--rows 100000] [--steps 150]
    python benchmarks/scaling.py simulate [--gradient MB] [--compute S] [--links GBIT ...]
        [--latency S] [--spread X] [--plot FILE]

`measure` trains a dense network with several workers on this machine, each with one thread and a
batch of 64. It compares the bytes and the time of a step with the results of `simulate`.
`embedding` counts the bytes that two workers send for an embedding of which a step uses one row. It
also counts the bytes between a parameter server and a worker, for two layers.
docs/scaling.md has the conclusions for machines with GPUs.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).resolve().parents[1]
BATCH_SIZE = 64  # per worker
STEPS_PER_LOOP = 10
WARM_UP_STEPS = 20
# Layers that replace one of the example's, so that the gradients are large enough to measure.
LAYER = 'keras.layers.Dense(64, activation="silu")'
LARGE_LAYER = 'keras.layers.Dense(1024, activation="silu")'
LARGE_LAYERS = f"{LARGE_LAYER}, {LARGE_LAYER}"
EMBEDDING_LAYERS = """
    keras.layers.Dense(8),  # 8 lookups for each example
    keras.layers.Rescaling(0.0),  # all of row 0
    {embedding},
    keras.layers.GlobalAveragePooling1D()
"""
# Almost all examples are for training, so that few bytes are sent in validations.
SPLITS = "[1257, 1527]"
LARGE_SPLITS = "[1792, 1793]"
MODEL_HOOK = "def create_model_and_optimizer("
NUM_WEIGHTS = sum(
    (
        32 * 10,  # Conv2D, with its bias
        1024 * (512 + 1),
        1024 * (1024 + 1),
        10 * (1024 + 1),
    )
)
GRADIENT_BYTES = 4 * NUM_WEIGHTS

# --------------------------------------------------------------------------------------------------
# The model of a step
# --------------------------------------------------------------------------------------------------


def count_bytes(workers, gradient_bytes):
    """Return the number of bytes that each worker sends in a step.

    In a ring, it passes on all parts but one, once to sum them and once to distribute the sums
    (Patarasuk and Yuan, 2009: Bandwidth optimal all-reduce algorithms for clusters of
    workstations).
    """
    return 2 * (workers - 1) / workers * gradient_bytes


def simulate(
    workers, compute, gradient_bytes, bandwidth, latency=0.0, spread=0.0, steps=500, seed=0
):
    """Return the mean seconds of a synchronous step by cause.

    The causes are compute, waiting for the slowest worker, latency, and transfer.

    Each worker computes for `compute` seconds, times a lognormal factor of mean 1 that differs by
    worker and step. `spread` is the standard deviation of its logarithm. Then the ring takes
    2 (workers - 1) messages, one after the other, of `latency` seconds each, and the time for the
    bytes at `bandwidth`, in bytes per second. Nothing overlaps: train.py sums the gradients when
    all of them are computed.
    """
    generator = np.random.default_rng(seed)
    logarithms = generator.normal(-(spread**2) / 2, spread, [steps, workers])
    waiting = 0.0
    if workers > 1:
        slowest = np.exp(logarithms).max(axis=1)
        waiting = compute * (slowest.mean() - 1)
    return {
        "compute": compute,
        "waiting": waiting,
        "latency": 2 * (workers - 1) * latency,
        "transfer": count_bytes(workers, gradient_bytes) / bandwidth,
    }


def simulate_seconds(*arguments, **options):
    """Return the mean seconds of a synchronous step."""
    return sum(simulate(*arguments, **options).values())


# --------------------------------------------------------------------------------------------------
# Measurements on this machine
# --------------------------------------------------------------------------------------------------


class Run:
    """A run of several tasks on this machine. Synchronous workers have one thread each."""

    def __init__(self, project, tasks, batch_size, run_dir):
        """Start it. `tasks` are flags of launch/local.py, such as --workers 2."""
        self.run_dir = run_dir
        command = [
            *(sys.executable, "launch/local.py"),
            *tasks,
            *("--max-restarts", 0),
            "--",
            *("--run-dir", run_dir),
            *("--global-batch-size", batch_size),
            *("--steps-per-loop", STEPS_PER_LOOP),
            *("--epochs", 10_000),
        ]
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        if "--ps" in tasks:  # tasks that wait for each other need more threads
            threads = {}
        self.launcher = subprocess.Popen(
            [str(word) for word in command],
            cwd=project,
            env={**os.environ, **threads},
            stdout=subprocess.DEVNULL,
        )

    def wait_for_step(self, step):
        """Wait for the first log line at or after a step. Return its step."""
        while True:
            lines = self.read_log()
            if lines and lines[-1]["step"] >= step:
                return lines[-1]["step"]
            if self.launcher.poll() is not None:
                raise SystemExit("a worker has failed")
            time.sleep(0.01)

    def read_log(self):
        """Return the lines of training. The last line of the file may not be complete yet."""
        path = self.run_dir / "metrics.jsonl"
        if not path.exists():
            return []
        texts = [text for text in path.read_text().splitlines() if text.endswith("}")]
        lines = [json.loads(text) for text in texts]
        return [line for line in lines if line["split"] == "train"]

    def end(self):
        self.launcher.terminate()
        self.launcher.wait()


def count_sent_bytes():
    """Return the number of bytes that this machine has sent to itself."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[9])
    raise OSError("/proc/net/dev has no loopback device lo")


def measure(project, tasks, batch_size, steps):
    """Return three measurements of a run.

    They are the seconds from the start to the end of the first loop, the bytes that all tasks send
    per step, and the median of the seconds of a step.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        started_at = time.monotonic()
        run = Run(project, tasks, batch_size, Path(folder) / "run")
        stack.callback(run.end)
        run.wait_for_step(1)
        startup_seconds = time.monotonic() - started_at
        first = run.wait_for_step(WARM_UP_STEPS)
        sent_before = count_sent_bytes()
        last = run.wait_for_step(first + steps)
        sent = count_sent_bytes() - sent_before
        lines = [line for line in run.read_log() if first < line["step"] <= last]
    step_seconds = [batch_size / line["examples_per_second"] for line in lines]
    return startup_seconds, sent / (last - first), statistics.median(step_seconds)


def measure_workers(project, workers, steps):
    """Measure synchronous workers. The bytes are those that each worker sends."""
    tasks = ("--workers", workers)
    startup_seconds, sent, step_seconds = measure(project, tasks, BATCH_SIZE * workers, steps)
    return startup_seconds, sent / workers, step_seconds


def render(folder, replacements, **answers):
    """Return the folder of a rendered project, with texts of train.py replaced."""
    project = Path(
        cookiecutter(
            str(TEMPLATE),
            output_dir=folder,
            no_input=True,
            accept_hooks=False,
            extra_context=answers,
        )
    )
    script = project / "train.py"
    text = script.read_text(encoding="utf-8")
    for old, new in replacements.items():
        if old not in text:
            raise ValueError(f"{script} has no {old}")
        text = text.replace(old, new)
    script.write_text(text, encoding="utf-8")
    return project


def print_comparison(worker_counts, steps):
    """Print the measurements and the predictions.

    The compute time is taken from one worker and the bandwidth from two, so that only four
    workers and more are really predicted.
    """
    with tempfile.TemporaryDirectory() as folder:
        project = render(folder, {LAYER: LARGE_LAYERS})
        measured = {count: measure_workers(project, count, steps) for count in worker_counts}
    _, _, one_worker_seconds = measured[1]
    _, _, two_workers_seconds = measured[2]
    cores = len(os.sched_getaffinity(0))

    def predict_compute(workers):
        """Return the seconds of compute. More workers than cores take turns."""
        return one_worker_seconds * max(1, workers / cores)

    communication_seconds = two_workers_seconds - predict_compute(2)
    bandwidth = count_bytes(2, GRADIENT_BYTES) / communication_seconds
    print(f"gradients of {GRADIENT_BYTES / 1e6:.2f} MB; ", end="")
    print(f"bandwidth, from two workers: {bandwidth / 1e6:.0f} MB/s\n")
    print_header("workers", "start, s", "sent, MB/step", "ring, MB/step", "step, ms", "predicted")
    for count, (startup_seconds, sent, step_seconds) in measured.items():
        # On one machine, all workers share one link.
        share = bandwidth * 2 / max(2, count)
        predicted = simulate_seconds(count, predict_compute(count), GRADIENT_BYTES, share)
        ring = count_bytes(count, GRADIENT_BYTES)
        figures = (sent / 1e6, ring / 1e6, 1e3 * step_seconds, 1e3 * predicted)
        cells = [f"{figure:.2f}" for figure in figures]
        print_row(count, f"{startup_seconds:.1f}", *cells)


def print_embedding(rows, steps):
    """Print the bytes of an embedding, and what tasks send per step."""
    keras_layer = f"keras.layers.Embedding({rows}, 64)"
    print(f"embedding of {rows} × 64: {4 * 64 * rows / 1e6:.2f} MB")
    with tempfile.TemporaryDirectory() as folder:
        project = render(folder, {LAYER: EMBEDDING_LAYERS.format(embedding=keras_layer)})
        _, sent, step_seconds = measure_workers(project, 2, steps)
    print(f"each of two workers: {sent / 1e6:.2f} MB in a step of {1e3 * step_seconds:.0f} ms")
    for layer in (keras_layer, f"SplitEmbedding({rows}, 64, parts=1)"):
        with tempfile.TemporaryDirectory() as folder:
            project = render_servers(folder, layer)
            tasks = ("--ps", 1, "--workers", 1)
            _, sent, step_seconds = measure(project, tasks, BATCH_SIZE, steps)
        print(f"server and worker, {layer}: ", end="")
        print(f"{sent / 1e6:.2f} MB in a step of {1e3 * step_seconds:.0f} ms")


def render_servers(folder, embedding):
    """Render a project with parameter servers and an embedding layer."""
    readme = TEMPLATE / "templates" / "readme" / "parameter_server" / "split_embedding.md"
    [split_embedding] = re.findall(r"```python\n(.*?)```", readme.read_text("utf-8"), re.DOTALL)
    replacements = {
        LAYER: EMBEDDING_LAYERS.format(embedding=embedding),
        SPLITS: LARGE_SPLITS,
        MODEL_HOOK: f"{split_embedding}\n\n{MODEL_HOOK}",
    }
    return render(folder, replacements, distribution="parameter_server")


def print_header(*cells):
    print_row(*cells)
    print("|" + "---|" * len(cells))


def print_row(*cells):
    print("|", " | ".join(str(cell) for cell in cells), "|")


# --------------------------------------------------------------------------------------------------
# Simulations
# --------------------------------------------------------------------------------------------------

WORKER_COUNTS = (1, 2, 4, 8, 16, 32, 64)


def print_simulations(args):
    """Print the efficiency by bandwidth and number of workers, and what a step of the most takes.

    The efficiency is the speed of a worker divided by the speed of a single worker. Return it by
    bandwidth.
    """
    efficiencies = {}
    parts = {}
    for link in args.links:
        name = f"{link:g} Gbit/s"
        options = {
            "compute": args.compute,
            "gradient_bytes": args.gradient * 1e6,
            "bandwidth": link * 1e9 / 8,
            "latency": args.latency,
            "spread": args.spread,
        }
        seconds = [simulate_seconds(count, **options) for count in WORKER_COUNTS]
        efficiencies[name] = [args.compute / each for each in seconds]
        parts[name] = simulate(WORKER_COUNTS[-1], **options)
    print_header("bandwidth", *WORKER_COUNTS)
    for name, values in efficiencies.items():
        print_row(name, *[f"{value:.2f}" for value in values])
    print()
    causes = ("compute", "waiting", "latency", "transfer")
    print_header(f"ms of a step, {WORKER_COUNTS[-1]} workers", *causes)
    for name, seconds in parts.items():
        print_row(name, *[f"{1e3 * seconds[cause]:.1f}" for cause in causes])
    return efficiencies


def draw(efficiencies, title, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, values in efficiencies.items():
        axis.plot(WORKER_COUNTS, values, marker="o", label=name)
    axis.set_xscale("log", base=2)
    axis.set_xticks(WORKER_COUNTS, [str(count) for count in WORKER_COUNTS])
    axis.set(xlabel="machines", ylabel="scaling efficiency", ylim=(0, 1.05), title=title)
    axis.grid(alpha=0.3)
    figure.legend(title="bandwidth", loc="outside right upper")
    figure.savefig(path, dpi=120)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("command", choices=["measure", "embedding", "simulate"])
    add("--workers", type=int, nargs="+", default=[1, 2, 4], help="must contain 1 and 2")
    add("--steps", type=int, default=150)
    add("--rows", type=int, default=100_000, help="of the embedding [100000]")
    add("--gradient", type=float, default=440, help="MB [440: 110 million float32]")
    add("--compute", type=float, default=0.3, help="seconds of a step on one machine [0.3]")
    add("--latency", type=float, default=50e-6, help="seconds per message [50e-6]")
    add("--spread", type=float, default=0.05, help="of the seconds, by machine and step [0.05]")
    add("--links", type=float, nargs="+", default=[1, 10, 25, 100], help="Gbit/s")
    add("--plot", help="file for a picture")
    return parser.parse_args()


def main():
    args = parse_arguments()
    if args.command == "measure":
        print_comparison(args.workers, args.steps)
        return
    if args.command == "embedding":
        print_embedding(args.rows, args.steps)
        return
    efficiencies = print_simulations(args)
    if args.plot:
        title = f"gradients of {args.gradient:g} MB, {args.compute:g} s of compute per step"
        draw(efficiencies, title, args.plot)


if __name__ == "__main__":
    main()
