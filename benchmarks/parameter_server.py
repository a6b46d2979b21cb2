"""Steps a second with parameter servers, beside the synchronous script.

    python benchmarks/parameter_server.py [--workers 1 2 4] [--epochs 20] [--batch 64]

Renders both, trains each for some epochs through launch/local.py, with the CPU's cores shared by
all processes, and prints the median over the loops of training, less the first, which traces. A
step is a batch: of one worker with parameter servers, and shared by all without. In the last
two lines the last worker, which is found in /proc, as Linux has it, stands still for nine tenths of
the time.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parents[1]


def render(folder, distribution):
    """Return the folder of the image task's project."""
    command = [sys.executable, "-m", "cookiecutter", "--no-input", "-o", folder, TEMPLATE]
    answers = [f"distribution={distribution}", f"project_slug={distribution}"]
    subprocess.run([*map(str, command), *answers], check=True, stdout=subprocess.DEVNULL)
    return folder / distribution


def find_worker(run_dir, index):
    """Return the number of the process that is a worker of a run, or None."""
    task = f'"type": "worker", "index": {index}'.encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (path / "cmdline").read_bytes().split(b"\0")
            if str(run_dir).encode() in words and b"-u" in words:  # not the launcher
                if task in (path / "environ").read_bytes():
                    return int(path.name)
    return None


def slow_down(run_dir, index, ended):
    """Have a worker stand still for nine tenths of the time, once training is under way."""
    while not ended.wait(0.05):
        if (run_dir / "metrics.jsonl").exists() and (pid := find_worker(run_dir, index)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                ended.wait(0.45)
                os.kill(pid, signal.SIGCONT)


def measure(project, counts, epochs, batch, slow=None):
    """Return steps a second of all workers together, of which one may be slow."""
    run_dir = project / f"run{'-'.join(counts)}{'-slow' * (slow is not None)}"
    command = [sys.executable, "launch/local.py", *counts, "--max-restarts", "0", "--"]
    command = command if counts else [sys.executable, "train.py"]
    command += ["--run-dir", run_dir, "--epochs", epochs, "--global-batch-size", batch]
    env, ended = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, threading.Event()
    if slow is not None:
        threading.Thread(target=slow_down, args=[run_dir, slow, ended], daemon=True).start()
    try:
        subprocess.run([*map(str, command)], cwd=project, env=env, check=True, capture_output=True)
    finally:
        ended.set()
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["examples_per_second"] for line in lines if line["split"] == "train"][1:]
    return statistics.median(speeds) / batch


def main():
    """Print a table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
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
        last = args.workers[-1] - 1
        jobs += [(f"{words}, of which one is slow", *job, last) for words, *job in jobs[-2:]]
        for words, project, counts, *slow in jobs:
            print(
                f"| {words} | {measure(project, counts, args.epochs, args.batch, *slow):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
