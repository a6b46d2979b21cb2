"""Run contenders in turn, and measure the seconds that each of them takes."""

import concurrent.futures
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CONTENDER = Path(__file__).with_name("contender.py")
NUM_WORKERS = 2
WARM_UP_MARKS = 2  # the first epoch traces, compiles and fills buffers
# A peer whose speed in the first round is below this share of the best one's skips the other
# rounds. Noise would not make it the best, and its time is better spent on more rounds.
SLOWEST_SHARE = 0.5
TURN_SECONDS = 300  # a turn that takes longer fails: a worker may wait for the other for good


def is_limit(name):
    return name.startswith(("limit", "decoding"))


def is_peer(name):
    return name.startswith(("fit", "evaluate", "tutorial", "Orbit"))


class Contender:
    """The process of a contender, or one for each worker. It is stopped except in its turn."""

    def __init__(self, folder, settings):
        own_folder = tempfile.mkdtemp(dir=folder)
        settings = {**settings, "run_dir": f"{own_folder}/run"}
        environments = create_environments(settings["place"], own_folder)
        self.values = {}  # at the last mark, summed over workers
        self.failure = None
        self.processes = [start_process(settings, each) for each in environments]

    def run_to_mark(self):
        """Run until the next mark. Return the seconds of wall-clock and processor time.

        Return None if the contender fails.
        """
        processor_seconds = self.values.get("processor", 0)
        self.resume()
        started_at = time.perf_counter()
        lines = self.read_lines()
        seconds = time.perf_counter() - started_at
        self.pause()
        marks = [json.loads(line) if line else {"fails": "no output"} for line in lines]
        failures = [mark["fails"] for mark in marks if "fails" in mark]
        if failures:
            self.end(failures[0])
            return None
        self.values = {name: sum(mark[name] for mark in marks) for name in marks[0]}
        return seconds, self.values["processor"] - processor_seconds

    def resume(self):
        has_started = bool(self.values)
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            if has_started:
                process.stdin.write("\n")
                process.stdin.flush()

    def read_lines(self):
        """Return the next line of each process, or "" if it has ended."""
        timer = threading.Timer(TURN_SECONDS, self.end)
        timer.start()
        lines = [process.stdout.readline() for process in self.processes]
        timer.cancel()
        return lines

    def pause(self):
        """Stop the process. Two stopped workers would take each other for lost, so they wait."""
        if len(self.processes) == 1:
            self.processes[0].send_signal(signal.SIGSTOP)

    def end(self, failure=None):
        """Kill the processes. Keep the first failure."""
        self.failure = self.failure or failure
        for process in self.processes:
            process.kill()
            process.wait()


def start_process(settings, environment):
    return subprocess.Popen(
        [sys.executable, CONTENDER, json.dumps(settings)],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def create_environments(place, folder):
    """Return the environment variables of each process."""
    common = {
        **os.environ,
        "TMPDIR": folder,  # a killed process leaves files
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # contenders share a GPU's memory
    }
    if not place.startswith("gpu"):
        common["CUDA_VISIBLE_DEVICES"] = "-1"
    common.pop("TF_CONFIG", None)
    if place != "workers":
        return [common]
    cluster = {"worker": [f"localhost:{find_free_port()}" for _ in range(NUM_WORKERS)]}
    environments = []
    for index in range(NUM_WORKERS):
        task = {"type": "worker", "index": index}
        tf_config = json.dumps({"cluster": cluster, "task": task})
        environments.append({**common, "TF_CONFIG": tf_config})
    return environments


def find_free_port():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def race(contenders, rounds, folder):
    """Return the seconds of each contender's epochs, by wall clock and by processor.

    The contenders take turns, so that a machine that is slow for a while slows all of them. Their
    order differs each round, so that none always follows the same one. Ctrl-C ends the race early.
    """
    results = {name: create_result() for name in contenders}
    running = {}

    def start(name):
        started_at = time.perf_counter()
        running[name] = Contender(folder, contenders[name])
        warm_up(running[name])
        seconds = time.perf_counter() - started_at
        print(f"{name}: warm after {seconds:.0f} s", file=sys.stderr, flush=True)

    try:
        # On two cores, one after another: together they would only share them.
        with concurrent.futures.ThreadPoolExecutor(max(1, os.cpu_count() // 2)) as pool:
            list(pool.map(start, contenders))
        for number in range(rounds):
            run_round(number, running, results)
            if number == 0:
                end_slow_peers(running, results)
    except KeyboardInterrupt:
        print("interrupted: the table has the rounds so far", file=sys.stderr)
    finally:
        for name, contender in running.items():
            contender.end()
            add_end(results[name], contender)
    return results


def warm_up(contender):
    for _ in range(WARM_UP_MARKS):
        if not contender.failure:
            contender.run_to_mark()


def run_round(number, running, results):
    """Let each contender that has not failed run for an epoch, in a random order."""
    names = [name for name, contender in running.items() if not contender.failure]
    random.Random(number).shuffle(names)
    for name in names:
        spent = running[name].run_to_mark()
        if spent:
            add_seconds(results[name], *spent)


def end_slow_peers(running, results):
    """End the peers that were too slow in the first round, by wall-clock and by processor time.

    If another program takes the processor for a moment, only the wall clock shows it.
    """
    measured = {name: result for name, result in results.items() if result["clock"]}
    for name in filter(is_peer, measured):
        if all(is_slow(name, measured, kind) for kind in ("clock", "processor")):
            running[name].end("is slow")


def is_slow(name, results, kind):
    """Return whether a contender took too many seconds of a kind in the first round."""
    fastest = min(results[each][kind][0] for each in results if not is_limit(each))
    return fastest < results[name][kind][0] * SLOWEST_SHARE


def measure_starts(contenders, rounds, folder):
    """Return the seconds from each contender's start to its first mark.

    A mark may have other seconds to report.
    """
    results = {name: create_result() for name in contenders}
    for _ in range(rounds):
        for name, settings in contenders.items():
            contender = Contender(folder, settings)
            spent = contender.run_to_mark()
            contender.end()
            add_end(results[name], contender)
            if spent:
                clock, processor = spent
                clock = contender.values.get("seconds", clock)
                add_seconds(results[name], clock, processor)
    return results


def create_result():
    return {"clock": [], "processor": []}


def add_seconds(result, clock, processor):
    result["clock"].append(clock)
    result["processor"].append(processor)


def add_end(result, contender):
    result["fails"] = contender.failure
    result["peak"] = contender.values.get("peak")
