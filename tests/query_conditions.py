"""What the conditions of train.py answer. See tf_queries.py."""

import contextlib
import io
import json
import os
import socket

from tf_queries import load_script


def load_with_config(path, settings):
    """Return a script whose `config` has some settings."""
    script = load_script(path)
    script.config = script.Config(**settings)
    return script


def is_task_failure(path, kind):
    """Return what a script of parameter servers reports about an error of the coordinator."""
    script = load_script(path)
    errors = script.tf.errors
    if kind == "Unavailable":
        error = errors.UnavailableError(None, None, "no connection")
    elif kind == "Cancelled":
        error = errors.CancelledError(None, None, "cancelled")
    elif kind == "ClosureInputError":
        from tensorflow.python.distribute.coordinator import cluster_coordinator

        cause = errors.AbortedError(None, None, "the iterator is lost")
        error = cluster_coordinator.ClosureInputError(cause)
    else:
        error = errors.InvalidArgumentError(None, None, f"/job:ps/task:0 is an {kind}")
    return bool(script.is_task_failure(error))


def find_errors_in_run_dir(path, run_dir, files):
    """Return the files of which an OSError counts as an error of the run directory."""
    script = load_with_config(path, {"run_dir": run_dir})
    errors = {name: OSError(1, "reason", name) for name in files}
    assert not script.is_in_run_dir(ValueError("no file"))
    return [name for name in files if script.is_in_run_dir(errors[name])]


def explain_graph_error(path, kind, text):
    """Return the exit code of a worker after an error of TensorFlow, and what it prints.

    The type of the error is a class of tf.errors.
    """
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    )
    script = load_with_config(path, {"workers": 2})
    error = getattr(script.tf.errors, kind)(None, None, text)
    if hasattr(script, "explain_error"):
        error = script.explain_error(error)
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        code = script.report_error(error)
    if code is None:  # in the complete script
        code = getattr(error, "exit_code", 1)
    return code, stderr.getvalue()


def list_loop_ends(path, settings, last_step):
    """Return the steps at which loops end, from the first step to the last one."""
    script = load_with_config(path, settings)
    ends = [0]
    while ends[-1] < last_step:
        ends.append(script.end_of_next_loop(ends[-1]))
    return ends[1:]


def list_due_checkpoints(path, settings, ends):
    """Return the ends of loops at which a checkpoint within the epoch is due."""
    script = load_with_config(path, settings)
    due = []
    for first_step, end in zip([0, *ends], ends, strict=False):
        script.state.step = end
        if script.is_checkpoint_due(first_step):
            due.append(end)
    return due


def filter_log(path, lines, step):
    """Return the lines that a run keeps when it resumes at a step."""
    script = load_script(path)
    return [line for line in lines if script.is_kept_on_resume(line, step)]


def list_valid_lines(path, lines):
    script = load_script(path)
    return [line for line in lines if script.is_valid_log_line(line)]


def check_batch_size(path, settings):
    """Return the error about the batch size, or None."""
    script = load_with_config(path, settings)
    try:
        script.check_batch_size()
    except script.WrongInput as error:
        return str(error)
    return None


def find_device_kind(path, driver, hidden_by):
    """Return the kind of device and what is printed, with or without a driver for NVIDIA's GPUs.

    `hidden_by` is the environment variable with which users choose GPUs, or None.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if hidden_by is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = hidden_by
    script = load_script(path)

    class FakePath(type(script.Path())):
        def exists(self):
            return driver

    script.Path = FakePath
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        kind = script.find_device_kind()
    return kind, stdout.getvalue()


def read_communication_options(path, kind):
    """Return how workers with a kind of device sum: the implementation, and the bytes of a pack."""
    script = load_with_config(path, {"device_kind": kind})
    chosen = []

    def record(communication_options):
        implementation = communication_options.implementation.value
        chosen.extend([implementation, communication_options.bytes_per_pack])

    script.tf.distribute.MultiWorkerMirroredStrategy = record
    script.create_multi_worker_strategy()
    return chosen


def connect_to_listener(path, addresses):
    """Return to which addresses of this machine the chief's port can be connected."""
    script = load_script(path)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    reached = []
    with script.listen_at(port):
        for address in addresses:
            with contextlib.suppress(OSError):
                socket.create_connection((address, port), timeout=5).close()
                reached.append(address)
    return reached


def describe_commit(path):
    """Return the commit in config.json of a run that begins now."""
    return load_with_config(path, {}).describe_run()["git_commit"]
