"""Let the tests of a project start their processes as forks, as fork_server.py does for ours.

`serve` offers forks on a socket. In the project's pytest this module is a plugin, which makes the
project's tests use them.
"""

import functools
import multiprocessing
import multiprocessing.util
import os
import subprocess
import sys
import threading
import time
import types
from multiprocessing.managers import BaseManager
from pathlib import Path

from fork_server import Fork

ADDRESS = "FORK_SERVICE_ADDRESS"
AUTHKEY = b"the tests of the template"
# Linux gives the open files of other processes a path.
IS_AVAILABLE = sys.platform == "linux"


class Forks(BaseManager):
    """A connection to the service, or the service itself."""


# --------------------------------------------------------------------------------------------------
# The service, in a process of the template's tests
# --------------------------------------------------------------------------------------------------

# multiprocessing's processes must not be started or polled by two threads at once.
LOCK = threading.Lock()


class Child:
    """A script that runs in a fork."""

    def __init__(self, script, flags, env, folder, output):
        with LOCK:
            self.fork = Fork(Path(script), flags, env, folder, [output, output])

    def poll(self):
        with LOCK:
            return self.fork.poll()

    def kill(self):
        with LOCK:
            self.fork.kill()


@functools.cache
def serve():
    """Start the service, unless it runs already. Return the path of its socket."""
    Forks.register("start_child", Child)
    # multiprocessing removes this folder at the exit, after the socket.
    path = os.path.join(multiprocessing.util.get_temp_dir(), "forks")
    server = Forks(path, AUTHKEY).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return path


# --------------------------------------------------------------------------------------------------
# The plugin, in the project's pytest
# --------------------------------------------------------------------------------------------------


class ForkedPopen:
    """What the project's tests use of subprocess.Popen."""

    def __init__(self, command, env, cwd, stdout, stderr):
        assert command[0] == sys.executable
        assert stderr == subprocess.STDOUT
        script, *flags = map(str, command[1:])
        output = f"/proc/{os.getpid()}/fd/{stdout.fileno()}"
        self.child = connect().start_child(script, flags, env, str(cwd), output)
        self.returncode = None

    def poll(self):
        if self.returncode is None:
            self.returncode = self.child.poll()
        return self.returncode

    def kill(self):
        if self.poll() is None:
            self.child.kill()

    def wait(self):
        while self.poll() is None:
            time.sleep(0.01)
        return self.returncode


@functools.cache
def connect():
    Forks.register("start_child")
    # Proxies authenticate with the key of the process.
    multiprocessing.current_process().authkey = AUTHKEY
    manager = Forks(os.environ[ADDRESS], AUTHKEY)
    manager.connect()
    return manager


def pytest_collection_finish(session):
    """Replace the module `subprocess` in the project's tests."""
    for module in {item.module for item in session.items}:
        module.subprocess = types.SimpleNamespace(
            Popen=ForkedPopen,
            STDOUT=subprocess.STDOUT,
        )
