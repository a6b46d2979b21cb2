"""Compare the steps per second of parameter servers and of synchronous training.

    python benchmarks/parameter_server.py [--workers 1 2 4] [--epochs 20] [--batch 64]

Render both projects, train each with launch/local.py, and print the median over the loops of
training, without the first one, which traces. All processes share the cores of the CPU. A step is
a batch: of one worker with parameter servers, or shared by all workers without them. In the last
two lines, the last worker is stopped for 90 % of the time. It is found in /proc, so on Linux only.
"""

import argparse
import contextlib
import dataclasses
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
NUM_SERVERS = 2
STOPPED_SECONDS = 0.45  # a slow worker, in turn
RUNNING_SECONDS = 0.05


@dataclasses.dataclass
class Setup:
    """A project, the flags of its launcher, and the worker to slow down, if any."""

    title: str
    project: Path
    launcher_flags: list[str]
    slow_worker: int | None = None

    @property
    def run_dir(self):
        name = "run" + "".join(self.launcher_flags)
        if self.slow_worker is not None:
            name += "-slow"
        return self.project / name


def render(folder, distribution):
    """Return the folder of the image task's project."""
    command = [
        *(sys.executable, "-m", "cookiecutter", "--no-input"),
        *("-o", folder, TEMPLATE),
        f"distribution={distribution}",
        f"project_slug={distribution}",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / distribution


def list_setups(folder, worker_counts):
    """Return all setups, in the order of the table."""
    servers = render(folder, "parameter_server")
    synchronous = render(folder, "synchronous")
    setups = [
        Setup("synchronous, one process", synchronous, []),
        Setup("with parameter servers, one process", servers, []),
    ]
    for count in worker_counts:
        flags = ["--workers", str(count)]
        setups.append(Setup(f"synchronous, {count} workers", synchronous, flags))
        title = f"{NUM_SERVERS} servers, {count} workers"
        setups.append(Setup(title, servers, ["--ps", str(NUM_SERVERS), *flags]))
    last_worker = worker_counts[-1] - 1
    for setup in setups[-2:]:
        title = f"{setup.title}, of which one is slow"
        slow = dataclasses.replace(setup, title=title, slow_worker=last_worker)
        setups.append(slow)
    return setups


def measure(setup, epochs, batch_size):
    """Return the steps per second of all workers together."""
    command = [sys.executable, "train.py"]
    if setup.launcher_flags:
        command = [sys.executable, "launch/local.py", *setup.launcher_flags]
        command += ["--max-restarts", "0", "--"]
    command += ["--run-dir", str(setup.run_dir)]
    command += ["--epochs", str(epochs)]
    command += ["--global-batch-size", str(batch_size)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    has_ended = threading.Event()
    if setup.slow_worker is not None:
        arguments = (setup.run_dir, setup.slow_worker, has_ended)
        threading.Thread(target=slow_down, args=arguments, daemon=True).start()
    try:
        subprocess.run(
            command,
            cwd=setup.project,
            env=environment,
            check=True,
            capture_output=True,
        )
    finally:
        has_ended.set()
    return statistics.median(read_speeds(setup.run_dir)) / batch_size


def read_speeds(run_dir):
    """Return the examples per second of each loop, without the first one."""
    texts = (run_dir / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(text) for text in texts]
    speeds = [line["examples_per_second"] for line in lines if line["split"] == "train"]
    return speeds[1:]


def slow_down(run_dir, index, has_ended):
    """Stop a worker again and again, once the log has a line: the first loop traces the step."""
    log = run_dir / "metrics.jsonl"
    while not has_ended.wait(RUNNING_SECONDS):
        if not log.exists() or log.stat().st_size == 0:
            continue
        process = find_worker(run_dir, index)
        if process is None:
            continue
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(process, signal.SIGSTOP)
            has_ended.wait(STOPPED_SECONDS)
            os.kill(process, signal.SIGCONT)


def find_worker(run_dir, index):
    """Return the process number of a worker of a run, or None."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(run_dir) in words and is_worker(folder, index):
                return int(folder.name)
    return None


def is_worker(folder, index):
    """Return whether the TF_CONFIG of a process in /proc belongs to a worker."""
    for variable in (folder / "environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == b"TF_CONFIG":
            return json.loads(value).get("task") == {"type": "worker", "index": index}
    return False


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        setups = list_setups(Path(folder), args.workers)
        print("| | steps per second |")
        print("|---|---|")
        for setup in setups:
            steps_per_second = measure(setup, args.epochs, args.batch)
            print(f"| {setup.title} | {steps_per_second:.0f} |", flush=True)


if __name__ == "__main__":
    main()
