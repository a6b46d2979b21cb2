"""# {% if cookiecutter.distribution == "parameter_server" %}
Runs train.py as chief, parameter servers and workers on this machine.

    python launch/local.py --ps 2 --workers 2 -- --epochs 5     what follows -- goes to train.py

Each line of output says whose it is. A worker that is interrupted or killed is started again by
itself, while the others go on. When the chief or a server is, all start again, and resume; when one
fails, the others are ended. Ctrl-C has them save and end; once more, it kills them. Exit codes: 0
done; 2 wrong input; 143 stopped, the same command goes on; else that of the one that failed first,
128 + n if signal n killed it.
# {% else %}
Runs train.py as several workers on this machine, and starts them again when one is lost.

    python launch/local.py --workers 2 -- --epochs 5     what follows -- goes to train.py

Each line of output says whose it is. When a worker fails, the others are ended; if it had been
interrupted or killed, all start again, and resume. Ctrl-C has them save and end; once more, it
kills them. Exit codes: 0 done; 2 wrong input; 143 stopped, the same command goes on; else that of
the worker that failed first, 128 + n if signal n killed it.
# {% endif %}
"""

import argparse
import collections
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
INTERRUPTED = 143  # train.py's code for: start the same command again
GRACE = 15  # seconds; a worker that waits for a lost peer, in C++, doesn't hear SIGTERM
ONE_PRESS = 1.0  # seconds; through `uv run`, say, one signal can arrive twice
LAST_LINES = 20  # of the worker that failed, shown once more

requests = []  # when this process was asked to stop
output_lock = threading.Lock()


def refuse(message):
    """Ends for wrong input: one line, exit code 2."""
    print(f"local.py: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def request_stop(*_):
    if not requests or time.monotonic() - requests[-1] > ONE_PRESS:
        requests.append(time.monotonic())


def write_line(line):
    """Writes a line, of bytes, whole: all threads share this output."""
    with output_lock:
        try:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
        except OSError:  # nobody reads it any more, as in `| head`: stop, and don't fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            request_stop()


def relay(task, process, last_lines):
    for line in process.stdout:
        last_lines.append(line.rstrip(b"\r\n"))
        write_line(b"[%s %d] %s" % (task[0].encode(), task[1], last_lines[-1]))


def watch(task, process, last_lines, failures):
    """Sees a task, (job, index), through to its end."""
    relaying = threading.Thread(target=relay, args=(task, process, last_lines), daemon=True)
    relaying.start()
    if process.wait() != 0:
        failures.append((task, process.returncode, last_lines))
    kill(process)  # what it has started, which would keep its GPU, and its end of the pipe
    relaying.join(timeout=2)  # not for ever: a daemon may still have the pipe


def kill(process):
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(process.pid, signal.SIGKILL)


def find_free_ports(count):
    with contextlib.ExitStack() as stack:  # closes them at the end: they have to differ
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def start_task(task, cluster, flags):
    config = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    return subprocess.Popen(
        [sys.executable, "-u", TRAIN, *flags],  # -u: a line appears when it is written
        env={**os.environ, "TF_CONFIG": json.dumps(config)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # and if this is killed itself, they fail at their next line
        stderr=subprocess.STDOUT,
        # Away from the terminal, whose Ctrl-C would come on top of the SIGTERM that is sent
        # below, at a moment of its own.
        start_new_session=True,
    )


# {% if cookiecutter.distribution == "parameter_server" %}
def run_tasks(args, flags, restarts):
    """Runs all tasks to their ends. Returns the task, exit code and last lines of those that
    failed, in the order in which they did. `restarts`, a list, has one entry for each made."""
    counts = {"chief": 1, "ps": args.ps, "worker": args.workers}
    # New ports each time: what was just killed may not have let go of the old ones.
    ports = iter(find_free_ports(sum(counts.values())))
    cluster = {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in counts.items()}
    processes, watchers, ended, failures = {}, {}, [], []
    told, deadline = False, float("inf")

    def start(task):
        processes[task] = start_task(task, cluster, flags)
        watched = (task, processes[task], collections.deque(maxlen=LAST_LINES), ended)
        watchers[task] = threading.Thread(target=watch, args=watched, daemon=True)
        watchers[task].start()

    try:
        for task in [(job, index) for job, n in counts.items() for index in range(n)]:
            start(task)
        while ended or any(watcher.is_alive() for watcher in watchers.values()):
            time.sleep(0.1)
            while ended:
                task, code, last_lines = ended.pop(0)
                left = sum(x.is_alive() for (job, _), x in watchers.items() if job == "worker")
                if task[0] == "worker" and is_lost(code) and not told and not requests:
                    restart = len(restarts) < args.max_restarts
                    if restart or left:
                        report(task, code, restarts, args, "it alone starts again; ")
                        if restart:
                            start(task)
                        continue
                failures.append((task, code, last_lines))
            if (requests or failures) and not told:
                told = True  # once: see start_task
                if requests:
                    write_line(b"launch: the chief saves, and all end; Ctrl-C again kills them")
                for process in processes.values():
                    process.terminate()  # of no effect on one that has ended
            # Who ends as asked, having saved, doesn't hurry those that are still at it. Nobody
            # outlasts the chief, which has told all of its end.
            hurries = any(code != INTERRUPTED or not requests for _, code, _ in failures)
            if hurries or not watchers["chief", 0].is_alive():
                deadline = min(deadline, time.monotonic() + GRACE)
            if len(requests) > 1 or time.monotonic() > deadline:
                break
    finally:  # whatever happened, nobody is left behind
        for process in processes.values():
            if process.poll() is None:  # else its number may be another's by now
                kill(process)
    for watcher in watchers.values():
        watcher.join()
    return failures


def is_lost(code):
    """Returns whether another start helps: else it would fail again."""
    return code < 0 or code == INTERRUPTED


def report(task, code, restarts, args, how=""):
    """Says how a task has ended, and what follows. Counts the restart."""
    what = f"launch: {task[0]} {task[1]} {describe(code)}"
    if len(restarts) == args.max_restarts:
        write_line(f"{what}; no restart is left".encode())
        return
    restarts.append(task)
    write_line(f"{what}; {how}restart {len(restarts)} of {args.max_restarts}".encode())


# {% else %}
def run_workers(count, flags):
    """Runs all workers to their ends. Returns the task, exit code and last lines of those that
    failed, in the order in which they did."""
    # New ports each time: what was just killed may not have let go of the old ones.
    cluster = {"worker": [f"127.0.0.1:{port}" for port in find_free_ports(count)]}
    workers, watchers, failures = [], [], []
    told, deadline = False, float("inf")
    try:
        for index in range(count):
            task = ("worker", index)
            workers.append(start_task(task, cluster, flags))
            watched = (task, workers[-1], collections.deque(maxlen=LAST_LINES), failures)
            watchers.append(threading.Thread(target=watch, args=watched, daemon=True))
            watchers[-1].start()
        while any(watcher.is_alive() for watcher in watchers):
            time.sleep(0.1)
            if (requests or failures) and not told:
                told = True  # once: see start_task
                if requests:
                    write_line(b"launch: the workers save and end; Ctrl-C again kills them")
                for worker in workers:
                    worker.terminate()  # of no effect on one that has ended
            # Who ends as asked, having saved, doesn't hurry those that are still at it.
            if any(code != INTERRUPTED or not requests for _, code, _ in failures):
                deadline = min(deadline, time.monotonic() + GRACE)
            if len(requests) > 1 or time.monotonic() > deadline:
                break
    finally:  # whatever happened, nobody is left behind
        for worker in workers:
            if worker.poll() is None:  # else its number may be another's by now
                kill(worker)
    for watcher in watchers:
        watcher.join()
    return failures


# {% endif %}
def describe(code):
    names = {number.value: number.name for number in signal.Signals}
    signal_name = names.get(-code, f"signal {-code}")
    return f"ended with exit code {code}" if code > 0 else f"was killed by {signal_name}"


def parse_arguments(argv):
    """Returns this script's arguments, and train.py's."""
    # {% if cookiecutter.distribution == "parameter_server" %}
    counts = "--ps N --workers N"
    # {% else %}
    counts = "--workers N"
    # {% endif %}
    parser = argparse.ArgumentParser(
        usage=f"python launch/local.py {counts} [--max-restarts N] [-- flags of train.py]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.error = refuse  # argparse's own prints the usage first
    # {% if cookiecutter.distribution == "parameter_server" %}
    parser.add_argument("--ps", type=int, required=True, metavar="N", help="1 or more")
    # {% endif %}
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="1 or more")
    parser.add_argument("--max-restarts", type=int, default=3, metavar="N", help="0 or more [3]")
    end = argv.index("--") if "--" in argv else len(argv)
    args, unknown = parser.parse_known_args(argv[:end])
    if unknown:
        refuse(f"{' '.join(unknown)}: not known here; what is for train.py comes after --")
    # {% if cookiecutter.distribution == "parameter_server" %}
    if min(args.ps, args.workers) < 1 or args.max_restarts < 0:
        refuse("--ps and --workers are at least 1, and --max-restarts at least 0")
    # {% else %}
    if args.workers < 1 or args.max_restarts < 0:
        refuse("--workers is at least 1, and --max-restarts at least 0")
    # {% endif %}
    if not TRAIN.is_file():
        refuse(f"{TRAIN} is missing; keep the folder of this script beside train.py")
    return args, argv[end + 1 :]


def main(argv):
    """Returns the exit code."""
    args, flags = parse_arguments(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup ignores SIGHUP
            signal.signal(number, request_stop)
    # {% if cookiecutter.distribution == "parameter_server" %}
    restarts = []
    while failures := run_tasks(args, flags, restarts):
        if requests:
            return INTERRUPTED
        task, code, last_lines = failures[0]
        if not is_lost(code) or len(restarts) == args.max_restarts:
            what = f"launch: {task[0]} {task[1]} {describe(code)}"
            what += ", and no restart is left" if is_lost(code) else ""
            for line in (f"{what}; its last lines:".encode(), *last_lines):
                write_line(line)
            return code if code > 0 else 128 - code
        report(task, code, restarts, args, "all start again; ")
    # {% else %}
    restarts = 0
    while failures := run_workers(args.workers, flags):
        if requests:
            return INTERRUPTED
        task, code, last_lines = failures[0]
        what = f"launch: worker {task[1]} {describe(code)}"
        helps = code < 0 or code == INTERRUPTED  # else it would fail again
        if not helps or restarts == args.max_restarts:
            what += ", and no restart is left" if helps else ""
            for line in (f"{what}; its last lines:".encode(), *last_lines):
                write_line(line)
            return code if code > 0 else 128 - code
        restarts += 1
        write_line(f"{what}; restart {restarts} of {args.max_restarts}".encode())
    # {% endif %}
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
