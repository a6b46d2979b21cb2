"""Starts scripts in forks of a process that has imported TensorFlow already.

The import takes 4 s of a core, as long as the rest of a short run, and the tests start hundreds.
What is about the start or the end of a process, or an environment of its own, doesn't use this.
"""

import atexit
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import subprocess
import sys
import tempfile

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tensorflow", "keras", "sklearn.datasets"])


def run_script(script, flags, env, outputs):
    """Run a script as `python SCRIPT FLAGS` does, from here on."""
    for descriptor, path in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(path, os.O_WRONLY), descriptor)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(script.parent)
    sys.argv = [script.name, *flags]
    tempfile.tempdir = None  # of TMPDIR, as it now is
    try:
        runpy.run_path(script.name, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which the end of a fork leaves out


class Fork:
    """A script that runs. It has what the tests use of subprocess.Popen."""

    def __init__(self, script, flags, env):
        self.outputs = [tempfile.NamedTemporaryFile("r", encoding="utf-8") for _ in range(2)]
        paths = [output.name for output in self.outputs]
        self.process = FORKS.Process(target=run_script, args=(script, flags, env, paths))
        start_server(env)
        self.process.start()

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.process.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout)
        return [output.read() for output in self.outputs]


def start_server(env):
    """Start the process that forks, unless it runs: with some environment, and silent, since
    TensorFlow's import writes to stderr."""
    before, stderr = dict(os.environ), os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.environ.clear()
    os.environ.update(env, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")  # as train.py does
    os.dup2(null, 2)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.dup2(stderr, 2)
        os.environ.clear()
        os.environ.update(before)
        os.close(stderr)
        os.close(null)
