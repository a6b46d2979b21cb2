"""Steps a second with parameter servers, beside the synchronous script.

    python benchmarks/parameter_server.py [--workers 1 2 4] [--epochs 20]

Renders both, trains each for some epochs through launch/local.py, with the CPU's cores shared by
all processes, and prints the median over the loops of training, less the first, which traces. A
step is a batch of 64: of one worker with parameter servers, and shared by all without.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parents[1]
BATCH = 64


def render(folder, distribution):
    """Return the folder of the image task's project."""
    command = [sys.executable, "-m", "cookiecutter", "--no-input", "-o", folder, TEMPLATE]
    answers = [f"distribution={distribution}", f"project_slug={distribution}"]
    subprocess.run([*map(str, command), *answers], check=True, stdout=subprocess.DEVNULL)
    return folder / distribution


def measure(project, counts, epochs):
    """Return steps a second of all workers together."""
    run_dir = project / f"run{'-'.join(counts)}"
    command = [sys.executable, "launch/local.py", *counts, "--max-restarts", "0", "--"]
    command = command if counts else [sys.executable, "train.py"]
    command += ["--run-dir", run_dir, "--epochs", epochs, "--global-batch-size", BATCH]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run([*map(str, command)], cwd=project, env=env, check=True, capture_output=True)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["examples_per_second"] for line in lines if line["split"] == "train"][1:]
    return statistics.median(speeds) / BATCH


def main():
    """Print a table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    args = parser.parse_args()
    print("| | steps a second |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        servers = render(Path(folder), "parameter_server")
        synchronous = render(Path(folder), "synchronous")
        jobs = [("synchronous, one process", synchronous, [])]
        jobs += [("with parameter servers, one process", servers, [])]
        for n in args.workers:
            jobs.append((f"synchronous, {n} workers", synchronous, ["--workers", str(n)]))
            words = f"2 servers, {n} workers"
            jobs.append((words, servers, ["--ps", "2", "--workers", str(n)]))
        for words, project, counts in jobs:
            print(f"| {words} | {measure(project, counts, args.epochs):.0f} |", flush=True)


if __name__ == "__main__":
    main()
