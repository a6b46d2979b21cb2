"""Run many command lines of train.py in one process. See tf_queries.py."""

import contextlib
import os
import sys
import tempfile
from unittest import mock

from tf_queries import load_script


def run_commands(commands):
    """Run commands. Return exit code, stdout and stderr of each.

    A command is a dict with a script, its flags, its variables and the folder to run in.
    """
    return [run_command(**command) for command in commands]


def run_command(script, flags, variables, folder):
    for name in ("TF_CONFIG", "TPU_NAME"):
        os.environ.pop(name, None)
    os.environ.update(variables)
    os.chdir(folder)
    tempfile.tempdir = None  # The last run's folder for temporary files is removed.
    with capture(1, sys.stdout) as output, capture(2, sys.stderr) as errors:
        code = call_run(script, flags)
    return code, output[0], errors[0]


def call_run(path, flags):
    """Return the exit code of a script's `run`, which ends the process if it isn't 0."""
    script = load_script(path)
    try:
        with mock.patch.object(os, "_exit", sys.exit):
            script.run(flags)
    except SystemExit as error:
        return error.code or 0
    return 0


@contextlib.contextmanager
def capture(descriptor, stream):
    """Yield a list that has, after the block, all that was written to a descriptor, C++ too."""
    texts = []
    stream.flush()
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield texts
        finally:
            stream.flush()
            os.dup2(kept, descriptor)
            os.close(kept)
            file.seek(0)
            texts.append(file.read())
