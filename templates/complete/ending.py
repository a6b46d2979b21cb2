def explain_error(error):
    """Return the exception that states why the run ends. A bug is returned as it is."""
    text = f"{error}"
    if hasattr(error, "exit_code"):
        return error
    if is_disk_full(error):
        return RunFailed(
            f"the disk of {run_path().resolve()}, of {state.scratch} or of this output is full, or "
            "its quota is used up; make room and start the same command again"
        )
    # If a GPU's memory is used up, a report of it has an "XLA Label" for each buffer.
    if config.jit_compile and re.search("XLA(?! Label)", text):
        return WrongInput(f"leave out --jit-compile: XLA can't compile a step: {get_reason(error)}")
    if "`merge_call` called while" in text:
        return WrongInput(
            "a hook, or a layer such as BatchNormalization, sums over replicas, which TensorFlow "
            "can't do in a compiled function, a loop or a branch; leave out the sum, or "
            "--jit-compile and --accumulation-steps"
        )
    if lost_workers := find_lost_workers(error):
        return RunInterrupted(f"{lost_workers} failed; start all workers again")
    if re.search("start gRPC server|port for local server", text):
        return WrongInput(
            "TF_CONFIG: TensorFlow can't listen at this worker's address; use a free port"
        )
    if is_in_run_dir(error):
        return WrongInput(
            f"--run-dir {config.run_dir}: {text}; fix the path or the hook, or use another folder"
        )
    return error


def is_disk_full(error):
    return re.search("No space left|Disk quota exceeded", f"{error}")


def find_lost_workers(error):
    """Return which other workers have failed, if TensorFlow raised an error for that reason, or "".

    Its text names workers as /job:worker/task:1 or /job:worker/replica:0/task:1. A failure of NCCL
    is an UnknownError, like an exception of a hook's Python code. Only its text differs.
    """
    # `!r` is its repr, which begins with the type.
    failures = (
        "(?i)^(Unavailable|Aborted|DeadlineExceeded)Error|"
        "coordination.?(service|agent|client)|invoking NCCL|current incarnation"
    )
    if config.workers == 1 or not re.search(failures, f"{error!r}{error}"):
        return ""
    tasks = set(re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", f"{error}"))
    own = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tasks.discard((own.task_type, f"{own.task_id}"))
    return " and ".join(f"{job} {index}" for job, index in sorted(tasks)) or "another worker"


# Messages of TensorFlow and Keras may begin with a heading, or a traceback of the traced code.
BEFORE_REASON = (
    r'(?m)in user code:|Graph execution error:|Detected at .*|<stack traces.*|^ *File ".*\n.*$|'
    r".*Exception encountered when.*|\x1b\[\dm"
)


def get_reason(error):
    """Return the line of an exception's text that gives the reason, or the exception."""
    text = re.sub(BEFORE_REASON, "", f"{error}")
    return text.strip().partition("\n")[0] or repr(error)


# {% include "is_in_run_dir.py" %}


def report_error(error):
    """Print why the run ends, or the traceback of a bug."""
    if not hasattr(error, "exit_code"):
        traceback.print_exception(error)
    elif isinstance(error, RunFinished):
        print_status(error)
    else:
        # `split` removes line breaks.
        print(f"train.py: {error.label}: {' '.join(str(error).split())}", file=sys.stderr)
