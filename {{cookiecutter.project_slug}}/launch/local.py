"""# {% if cookiecutter.distribution == "parameter_server" %}
Run train.py as a chief, parameter servers and workers on this machine.

    python launch/local.py --ps 2 --workers 2 -- --epochs 5     flags after -- go to train.py

Each line of output starts with the name of its task. When a worker is interrupted or killed, it
restarts alone while the other tasks continue. When the chief or a parameter server is interrupted
or killed, all tasks restart and resume from the last checkpoint. When a task fails in another way,
all tasks stop. Ctrl-C lets the chief save a checkpoint and stops all tasks; a second Ctrl-C kills
them.
# {% else %}
Run train.py as several workers on this machine.

    python launch/local.py --workers 2 -- --epochs 5     flags after -- go to train.py

Each line of output starts with the name of its worker. When a worker is interrupted or killed, all
workers restart and resume from the last checkpoint. When a worker fails in another way, all workers
stop. Ctrl-C lets the workers save a checkpoint and stops them; a second Ctrl-C kills them.
# {% endif %}

Exit codes:
    0      done
    2      wrong input
    143    stopped: run the same command again to resume
    other  exit code of the first task that failed, or 128 + n if signal n killed it
"""

import argparse
import collections
import contextlib
import ctypes
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

TRAIN_SCRIPT = Path(__file__).resolve().parents[1] / "train.py"
INTERRUPTED = 143  # exit code of train.py that means: run the same command again to resume
GRACE_SECONDS = 15  # from SIGTERM to SIGKILL; SIGTERM can't interrupt TensorFlow's C++ code
# {% if cookiecutter.distribution == "parameter_server" %}
SAVING_SECONDS = 120  # the same while the chief runs: a large checkpoint takes long to write
# {% else %}
SAVING_SECONDS = 120  # the same after an interruption: a large checkpoint takes long to write
# {% endif %}
REPEAT_SECONDS = 5  # from SIGTERM to SIGTERM: TensorFlow drops one while workers connect
DUPLICATE_SECONDS = 1.0  # `uv run` forwards a Ctrl-C that the terminal has already sent
POLL_SECONDS = 0.1
RELAY_SECONDS = 2  # time for the last output of a task that has ended
NUM_LAST_LINES = 20  # lines of a failed task that are printed again at the end
PR_SET_PDEATHSIG = 1  # from Linux's prctl.h

stop_requests = []  # the times at which a signal asked this process to stop
output_lock = threading.Lock()


def exit_with_error(message):
    """Print a one-line error and exit with code 2."""
    print(f"local.py: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def request_stop(*_):
    """Record a request to stop, unless it repeats the previous one."""
    now = time.monotonic()
    if not stop_requests or now - stop_requests[-1] > DUPLICATE_SECONDS:
        stop_requests.append(now)


def write_line(line):
    """Write a line of bytes to stdout, which all threads share."""
    with output_lock:
        try:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
        except OSError:
            # The reader has closed the pipe, as `head` does. Stop, and discard the output from here
            # on, because the next write would fail too.
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, sys.stdout.fileno())
            request_stop()


def print_status(message):
    write_line(f"launch: {message}".encode())


def find_free_ports(count):
    """Return different free ports of this machine."""
    with contextlib.ExitStack() as stack:  # keeps all sockets open until each has its own port
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def list_gpus():
    """Return the names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name not in ("", "-1")]
    # CUDA counts from 0 even if a container has only /dev/nvidia3.
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


if sys.platform == "linux":
    LIBC = ctypes.CDLL(None)

    def end_with_launcher():
        """Have Linux send SIGTERM to this process when the launcher ends, even by SIGKILL."""
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
else:
    end_with_launcher = None


class Task:
    """A process of train.py. The thread `watcher` relays its output and reports its end."""

    def __init__(self, role, index, addresses, flags, variables, ended):
        """Start the process, with more environment variables.

        The task adds itself to the list `ended` when the process ends.
        """
        self.role = role
        self.index = index
        self.name = f"{role} {index}"
        self.ended = ended
        self.last_lines = collections.deque(maxlen=NUM_LAST_LINES)
        tf_config = {"cluster": addresses, "task": {"type": role, "index": index}}
        self.process = subprocess.Popen(
            [sys.executable, "-u", TRAIN_SCRIPT, *flags],  # -u: print each line immediately
            # TensorFlow would send messages between tasks through http_proxy.
            env={
                **os.environ,
                "TF_CONFIG": json.dumps(tf_config),
                "grpc_proxy": "",
                **variables,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_launcher,
            # In the terminal's own session, Ctrl-C would reach the task twice: from the terminal
            # and as the SIGTERM of `Cluster.stop`.
            start_new_session=True,
        )
        self.watcher = threading.Thread(target=self.watch, daemon=True)

    def watch(self):
        """Relay the output and wait for the end of the process."""
        relay = threading.Thread(target=self.relay_output, daemon=True)
        relay.start()
        self.process.wait()
        self.ended.append(self)
        # Kill the child processes: they would keep the task's GPU and its end of the pipe.
        self.kill()
        # A daemon can leave the process group, survive, and keep the pipe open.
        relay.join(timeout=RELAY_SECONDS)

    def relay_output(self):
        """Print each line of output after the name of the task."""
        prefix = f"[{self.name}] ".encode()
        for line in self.process.stdout:
            text = line.rstrip(b"\r\n")
            self.last_lines.append(text)
            write_line(prefix + text)

    def kill(self):
        """Kill the process and its child processes, if any are left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def is_running(self):
        return self.process.poll() is None

    def was_interrupted(self):
        """Return whether a restart helps. After another failure, it would fail again."""
        code = self.process.returncode
        return code == INTERRUPTED or code < 0

    def compute_exit_code(self):
        """Return the exit code as shells do: 128 + n if signal n killed the process."""
        code = self.process.returncode
        if code < 0:
            return 128 - code
        return code

    def describe_end(self):
        code = self.process.returncode
        if code >= 0:
            return f"{self.name} exited with code {code}"
        names = {number.value: number.name for number in signal.Signals}
        signal_name = names.get(-code, f"signal {-code}")
        return f"{self.name} was killed by {signal_name}"


class Restarts:
    """The number of restarts so far, and its limit."""

    def __init__(self, limit):
        self.limit = limit
        self.count = 0

    def is_left(self):
        return self.count < self.limit

    def add(self, failed_task, restarted):
        """Count a restart. Print why it is made and what is restarted."""
        self.count += 1
        reason = failed_task.describe_end()
        print_status(f"{reason}; restart {self.count} of {self.limit} ({restarted})")


class Cluster:
    """All tasks, from one start until the last task has ended."""

    def __init__(self, task_counts, flags, restarts):
        # Each start gets new ports: processes that were just killed may not have released theirs.
        ports = find_free_ports(sum(task_counts.values()))
        self.addresses = {}
        for role, count in task_counts.items():
            self.addresses[role] = [f"127.0.0.1:{ports.pop()}" for _ in range(count)]
        self.flags = flags
        self.restarts = restarts
        self.tasks = []
        self.ended = []  # tasks to handle, in the order in which they ended
        self.failures = []
        self.next_signal_at = 0.0  # time of the next SIGTERM; 0 before the first one
        self.deadline = math.inf  # time at which the tasks that are still running are killed

    def run(self):
        """Run all tasks until they end. Return the first task that failed, or None.

        After a stop, prefer a task that failed otherwise than by the stop.
        """
        try:
            for role, addresses in self.addresses.items():
                for index in range(len(addresses)):
                    self.start_task(role, index)
            self.wait_for_tasks()
        finally:  # leave no process behind, also after an exception
            for task in self.tasks:
                if task.is_running():  # otherwise its process number may be in use again
                    task.kill()
        for task in self.tasks:
            task.watcher.join()
        if stop_requests:
            self.handle_ended_tasks()  # a task that a second Ctrl-C killed is a failure
            self.failures.sort(key=Task.was_interrupted)  # False comes first
        if not self.failures:
            return None
        return self.failures[0]

    def start_task(self, role, index):
        variables = self.share_gpus(role, index)
        task = Task(role, index, self.addresses, self.flags, variables, self.ended)
        self.tasks.append(task)
        task.watcher.start()

    def share_gpus(self, role, index):
        """Return the environment variable that gives a worker its share of this machine's GPUs."""
        gpus = list_gpus()
        if not gpus:
            return {}
        workers = len(self.addresses["worker"])
        # {% if cookiecutter.distribution == "parameter_server" %}
        share = min(1, len(gpus) // workers)  # train.py uses one GPU per worker
        # {% else %}
        share = len(gpus) // workers  # TensorFlow needs as many on each worker
        # {% endif %}
        own_gpus = gpus[index::workers][:share] if role == "worker" else []
        return {"CUDA_VISIBLE_DEVICES": ",".join(own_gpus)}

    def wait_for_tasks(self):
        """Handle signals and failures until all tasks have ended or must be killed."""
        while self.ended or any(task.watcher.is_alive() for task in self.tasks):
            time.sleep(POLL_SECONDS)
            self.handle_ended_tasks()
            if stop_requests or self.failures:
                self.stop()
            self.deadline = min(self.deadline, time.monotonic() + self.choose_grace_period())
            if time.monotonic() > self.deadline or len(stop_requests) > 1:
                return

    def handle_ended_tasks(self):
        """Record the failures among the tasks that have ended."""
        while self.ended:
            task = self.ended.pop(0)
            if task.process.returncode == 0:
                continue
            # {% if cookiecutter.distribution == "parameter_server" %}
            if self.recover(task):
                continue
            # {% endif %}
            self.failures.append(task)

    # {% if cookiecutter.distribution == "parameter_server" %}
    def recover(self, task):
        """Restart a lost worker, or continue without it. Return whether the run continues."""
        if stop_requests or self.failures:  # all tasks stop
            return False
        if task.role != "worker" or not task.was_interrupted():
            return False
        if self.restarts.is_left():
            self.restarts.add(task, f"{task.name} only")
            self.start_task(task.role, task.index)
            return True
        if any(other.role == "worker" and other.is_running() for other in self.tasks):
            print_status(f"{task.describe_end()}; no restarts left; the other workers continue")
            return True
        return False

    # {% endif %}
    def stop(self):
        """Send SIGTERM to all tasks, now and every REPEAT_SECONDS."""
        now = time.monotonic()
        if now < self.next_signal_at:
            return
        if stop_requests and not self.next_signal_at:
            print_status("stopping after a checkpoint; press Ctrl-C again to kill all tasks")
        self.next_signal_at = now + REPEAT_SECONDS
        for task in self.tasks:
            task.process.terminate()

    def choose_grace_period(self):
        """Return for how many seconds the tasks that are still running may continue."""
        # {% if cookiecutter.distribution == "parameter_server" %}
        chief = self.tasks[0]
        if not chief.watcher.is_alive():  # the chief asks the other tasks to exit before it ends
            return GRACE_SECONDS
        # {% endif %}
        if not self.failures:
            return math.inf
        # {% if cookiecutter.distribution != "parameter_server" %}
        if not all(task.was_interrupted() for task in self.failures):
            return GRACE_SECONDS
        # {% endif %}
        have_saved = all(task.process.returncode == INTERRUPTED for task in self.failures)
        if stop_requests and have_saved:
            return math.inf  # a second Ctrl-C ends them
        return SAVING_SECONDS


def check_minimum(flag, value, minimum):
    """Exit with an error if the value of a flag is too small."""
    if value < minimum:
        exit_with_error(f"{flag} {value} is less than {minimum}; use {minimum} or more")


def parse_arguments(argv):
    """Return the arguments of this script and the flags of train.py."""
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
    parser.error = exit_with_error  # argparse would print the usage before the error
    # {% if cookiecutter.distribution == "parameter_server" %}
    parser.add_argument("--ps", type=int, required=True, metavar="N", help="1 or more")
    # {% endif %}
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="1 or more")
    parser.add_argument("--max-restarts", type=int, default=3, metavar="N", help="0 or more [3]")
    end = len(argv)
    if "--" in argv:
        end = argv.index("--")
    args, unknown = parser.parse_known_args(argv[:end])
    if unknown:
        exit_with_error(f"unknown arguments: {' '.join(unknown)}; put flags of train.py after --")
    # {% if cookiecutter.distribution == "parameter_server" %}
    check_minimum("--ps", args.ps, 1)
    # {% endif %}
    check_minimum("--workers", args.workers, 1)
    check_minimum("--max-restarts", args.max_restarts, 0)
    if not TRAIN_SCRIPT.is_file():
        exit_with_error(f"{TRAIN_SCRIPT} does not exist; keep the folder launch/ beside train.py")
    return args, argv[end + 1 :]


def handle_signals():
    """Let signals request a stop, except those that are ignored, as nohup does with SIGHUP."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, request_stop)


def report_failure(task):
    """Print how the task failed, and the last lines of its output."""
    message = task.describe_end()
    if task.was_interrupted():
        message += "; no restarts left"
    print_status(f"{message}; last lines of {task.name}:")
    for line in task.last_lines:
        write_line(line)


def main(argv):
    """Run train.py until it is done, stopped or out of restarts. Return the exit code."""
    args, flags = parse_arguments(argv)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # None if it is closed
    handle_signals()
    # {% if cookiecutter.distribution == "parameter_server" %}
    task_counts = {"chief": 1, "ps": args.ps, "worker": args.workers}
    # {% else %}
    task_counts = {"worker": args.workers}
    # {% endif %}
    gpus = len(list_gpus())
    if 0 < gpus < args.workers:
        print_status(f"--workers {args.workers} is above the {gpus} GPUs, so all use the CPU")
    # {% if cookiecutter.distribution == "parameter_server" %}
    elif gpus > args.workers:
        print_status(f"a worker uses one GPU; unused: {gpus - args.workers}")
    # {% else %}
    elif gpus % args.workers:
        print_status(f"workers use equally many GPUs; unused: {gpus % args.workers}")
    # {% endif %}
    restarts = Restarts(args.max_restarts)
    while True:
        cluster = Cluster(task_counts, flags, restarts)
        failure = cluster.run()
        if failure is None:
            return 0
        if stop_requests and failure.was_interrupted():
            return INTERRUPTED
        if not failure.was_interrupted() or not restarts.is_left():
            report_failure(failure)
            return failure.compute_exit_code()
        # {% if cookiecutter.distribution == "parameter_server" %}
        restarts.add(failure, "all tasks")
        # {% else %}
        restarts.add(failure, "all workers")
        # {% endif %}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
