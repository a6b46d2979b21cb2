"""Start scripts in forks of a process that has already imported TensorFlow.

The import takes 4 seconds of processor time, as much as the rest of a short run, and the tests
start hundreds of runs. Tests of how a process starts or ends, and tests that need environment
variables during the import, use `running.start` instead.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile

# Windows has no fork server; there, only tests run that start no script.
if sys.platform != "win32":
    import multiprocessing.forkserver

    CONTEXT = multiprocessing.get_context("forkserver")
    CONTEXT.set_forkserver_preload(["tensorflow", "keras", "sklearn.datasets"])


def run_script(script, flags, env, folder, outputs):
    """Run a script in this process, as `python SCRIPT FLAGS` in a folder does in a new one."""
    for descriptor, path in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    more = env["PYTHONPATH"].split(os.pathsep) if "PYTHONPATH" in env else []
    sys.path[:0] = [str(script.parent), *more]
    sys.argv = [os.path.relpath(script), *flags]
    tempfile.tempdir = None  # Let tempfile read TMPDIR again.
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # A process of multiprocessing ends without them.


class Fork:
    """A running script, with the methods of subprocess.Popen that the tests use.

    The default folder is the script's. What it prints goes to two files, if none are given.
    """

    def __init__(self, script, flags, env, folder=None, paths=None):
        self.outputs = [tempfile.NamedTemporaryFile("r", encoding="utf-8") for _ in range(2)]
        paths = paths or [output.name for output in self.outputs]
        arguments = (script, flags, env, folder or script.parent, paths)
        self.process = CONTEXT.Process(target=run_script, args=arguments)
        ensure_server(env)
        self.process.start()

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self.process.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout)
        return [output.read() for output in self.outputs]

    def read_output(self):
        """Return what the script has written to stdout so far."""
        with open(self.outputs[0].name, encoding="utf-8") as file:
            return file.read()


def ensure_server(env):
    """Start the fork server with an environment, unless it runs already."""
    with silence_stderr(), replace_environment(env):
        multiprocessing.forkserver.ensure_running()


@contextlib.contextmanager
def silence_stderr():
    """Discard what is written to stderr, as TensorFlow does when it is imported."""
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


@contextlib.contextmanager
def replace_environment(env):
    """Replace the environment of this process, with the variables that train.py itself sets."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
