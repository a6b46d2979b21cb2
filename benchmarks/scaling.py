"""What more workers cost: measured on this machine, and simulated for others.

    python benchmarks/scaling.py measure [--workers 1 2 4] [--steps 150]
    python benchmarks/scaling.py simulate [--gradient MB] [--compute S] [--links GBIT ...]
        [--latency S] [--spread X] [--plot FILE]

`measure` trains a dense network with as many workers on this machine, each with one thread and a
batch of 64, and compares the bytes of a step and its time with what `simulate` computes.
docs/scaling.md says what follows for machines with GPUs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).resolve().parents[1]
BATCH = 64  # examples of each worker
# In the place of the example's network: 1.6 million weights, so that gradients are worth a message.
NETWORK = (
    'keras.layers.Dense(64, activation="silu")',
    'keras.layers.Dense(1024, activation="silu"), keras.layers.Dense(1024, activation="silu")',
)


# --------------------------------------------------------------------------------------------------
# The model
# --------------------------------------------------------------------------------------------------


def count_bytes(workers, gradient):
    """Returns what each worker sends in a step, of gradients of so many bytes. In a ring it passes
    on all parts but one, once to sum them and once to spread the sums (Patarasuk and Yuan, 2009:
    Bandwidth optimal all-reduce algorithms for clusters of workstations)."""
    return 2 * (workers - 1) / workers * gradient


def simulate(workers, compute, gradient, link, latency, spread, steps=500, seed=0):
    """Returns the mean seconds of a step of synchronous training: of computing, of waiting for the
    slowest, of messages, and of bytes.

    Each worker computes for `compute` seconds, times a lognormal factor of mean 1 that differs by
    worker and step: `spread` is the standard deviation of its logarithm. Then the ring: 2 (n - 1)
    messages, one after the other, of `latency` seconds each, besides the bytes over `link`, in
    bytes a second. Nothing overlaps: train.py sums gradients once all of them are there.
    """
    draws = np.random.default_rng(seed).normal(-(spread**2) / 2, spread, [steps, workers])
    waiting = compute * (np.exp(draws).max(axis=1).mean() - 1) if workers > 1 else 0
    messages = 2 * (workers - 1) * latency
    return compute, waiting, messages, count_bytes(workers, gradient) / link


# --------------------------------------------------------------------------------------------------
# Measured here
# --------------------------------------------------------------------------------------------------


def count_sent():
    """Returns the bytes that this machine has sent to itself."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[9])
    raise OSError("there is no loopback device")


def read_log(run_dir):
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if '"train"' in line and line.endswith("}")]


def measure(project, workers, steps):
    """Returns the seconds to the first loop's end, the bytes that a worker sends in a step, and the
    seconds of a step, in the median over the loops."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, began = Path(folder) / "run", time.monotonic()
        flags = ["--global-batch-size", BATCH * workers, "--steps-per-loop", 10, "--epochs", 10**4]
        command = [sys.executable, "launch/local.py", "--workers", workers, "--max-restarts", 0]
        launcher = subprocess.Popen(
            list(map(str, [*command, "--", "--run-dir", run_dir, *flags])),
            cwd=project,
            env={**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )

        def wait(step):
            while not (lines := read_log(run_dir)) or lines[-1]["step"] < step:
                if launcher.poll() is not None:
                    raise SystemExit("a worker has failed")
                time.sleep(0.01)
            return lines[-1]["step"]

        try:
            wait(1)
            start_up = time.monotonic() - began
            first, sent = wait(20), count_sent()
            last = wait(first + steps)
            sent = (count_sent() - sent) / (last - first) / workers
            lines = [x for x in read_log(run_dir) if first < x["step"] <= last]
        finally:
            launcher.terminate()
            launcher.wait()
    seconds = [BATCH * workers / line["examples_per_second"] for line in lines]
    return start_up, sent, statistics.median(seconds)


def compare(counts, steps):
    """Prints what was measured, beside what the model has for it. The link is that of two workers,
    the compute time that of one: four are what it predicts."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"no_input": True, "output_dir": folder, "accept_hooks": False}
        project = Path(cookiecutter(str(TEMPLATE), **arguments))
        text = (project / "train.py").read_text(encoding="utf-8")
        assert NETWORK[0] in text
        (project / "train.py").write_text(text.replace(*NETWORK), encoding="utf-8")
        measured = {n: measure(project, n, steps) for n in counts}
    weights = 32 * 10 + 512 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10
    gradient, cores = 4 * weights, len(os.sched_getaffinity(0))

    def computes(n):  # more workers than cores take turns
        return measured[1][2] * max(1, n / cores)

    link = count_bytes(2, gradient) / (measured[2][2] - computes(2))
    print(f"gradients of {gradient / 1e6:.2f} MB; link, from two workers: {link / 1e6:.0f} MB/s\n")
    print("| workers | start, s | sent, MB a step | ring's | step, ms | predicted |")
    print("|---|---|---|---|---|---|")
    for n, (start_up, sent, seconds) in measured.items():
        # On one machine all links are one, and as many pass through it as there are workers.
        predicted = sum(simulate(n, computes(n), gradient, link * 2 / max(2, n), 0, 0))
        figures = (sent / 1e6, count_bytes(n, gradient) / 1e6, 1e3 * seconds, 1e3 * predicted)
        print(f"| {n} | {start_up:.1f} |", *(f"{figure:.2f} |" for figure in figures))


# --------------------------------------------------------------------------------------------------
# Simulated
# --------------------------------------------------------------------------------------------------

COUNTS = (1, 2, 4, 8, 16, 32, 64)


def print_shares(args):
    """Prints the share of their speed that workers keep, for each link and number of workers, and
    what the step of the most takes. Returns the shares, by link."""
    shares, parts = {}, {}
    for link in args.links:
        model = args.compute, args.gradient * 1e6, link * 1e9 / 8, args.latency, args.spread
        shares[f"{link:g} Gbit/s"] = [args.compute / sum(simulate(n, *model)) for n in COUNTS]
        parts[f"{link:g} Gbit/s"] = simulate(COUNTS[-1], *model)
    print("| link |", *(f"{n} |" for n in COUNTS))
    print("|---|" + "---|" * len(COUNTS))
    for name, values in shares.items():
        print(f"| {name} |", *(f"{value:.2f} |" for value in values))
    print(f"\n| ms of a step, {COUNTS[-1]} workers | computing | waiting | messages | bytes |")
    print("|---|---|---|---|---|")
    for name, values in parts.items():
        print(f"| {name} |", *(f"{1e3 * value:.1f} |" for value in values))
    return shares


def draw(shares, title, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, values in shares.items():
        axis.plot(COUNTS, values, marker="o", label=name)
    axis.set_xscale("log", base=2)
    axis.set_xticks(COUNTS, [str(n) for n in COUNTS])
    axis.set(xlabel="machines", ylabel="share of their speed", ylim=(0, 1.05), title=title)
    axis.grid(alpha=0.3)
    figure.legend(title="link", loc="outside right upper")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("what", choices=["measure", "simulate"])
    add("--workers", type=int, nargs="+", default=[1, 2, 4], help="1 and 2 are needed")
    add("--steps", type=int, default=150)
    add("--gradient", type=float, default=440, help="MB [440: 110 million float32]")
    add("--compute", type=float, default=0.3, help="seconds of a step on one machine [0.3]")
    add("--latency", type=float, default=50e-6, help="seconds of a message [50e-6]")
    add("--spread", type=float, default=0.05, help="of the seconds, by machine and step [0.05]")
    add("--links", type=float, nargs="+", default=[1, 10, 25, 100], help="Gbit/s")
    add("--plot", help="where to write a picture")
    args = parser.parse_args()
    if args.what == "measure":
        compare(args.workers, args.steps)
        return
    shares = print_shares(args)
    if args.plot:
        title = f"gradients of {args.gradient:g} MB, {args.compute:g} s of computing a step"
        draw(shares, title, args.plot)


if __name__ == "__main__":
    main()
