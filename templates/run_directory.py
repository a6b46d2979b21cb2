def run_path(*parts):
    """Return a path in the run directory."""
    return Path(config.run_dir, *parts)


# {% if cookiecutter.__size == "complete" %}
# {% include "complete/check_run_dir.py" %}


# {% endif %}
def write_file(name, text):
    """Write a file of the run. A kill leaves the old file or the new one."""
    part = run_path("unfinished.part")  # one name, so that the next write replaces a leftover
    os.makedirs(part.parent, exist_ok=True)
    part.write_text(text, "utf-8")
    part.replace(run_path(name))


# {% if cookiecutter.__size == "complete" %}
# {% include "complete/read_object.py" %}
# {% else %}
# {% include "read_file.py" %}
# {% endif %}


# {% if cookiecutter.__size == "complete" %}
# {% include "complete/is_valid_log_line.py" %}


# {% endif %}
def is_kept_on_resume(line, step):
    """Return whether a log line remains when the run resumes at a step.

    A checkpoint lacks the validation and the test at its step, so a resumed run repeats these.
    """
    # True counts as 1, so the lines of validation and test need an earlier step.
    return line["step"] + (line["split"] != "train") <= step


def describe_run():
    """Return the content of config.json."""
    # The output is empty if there is no commit.
    git = f"git -C {shlex.quote(os.path.dirname(__file__))} rev-parse --verify --quiet HEAD"
    return {
        # {% if cookiecutter.__size != "complete" %}
        # Settings of the complete script, which may resume this run or have started it.
        "schedule": "constant",
        "warmup_steps": 0,
        "precision": "float32",
        # {% endif %}
        **vars(config),
        "git_commit": subprocess.getoutput(f"{git} 2> /dev/null") or None,
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
        },
    }


create_summary_writer = functools.cache(tf.summary.create_file_writer)


def log(split, values):
    """Add a line to metrics.jsonl, and points to TensorBoard's curves. Return the line."""
    line = {
        "step": state.step,
        "epoch": math.ceil(state.step / config.steps_per_epoch),
        "split": split,
        **values,
    }
    # {% if cookiecutter.__size != "parameter_server" %}
    if config.worker_index > 0:
        return line
    # {% endif %}
    with run_path("metrics.jsonl").open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    with create_summary_writer(f"{run_path()}/tensorboard/{split}").as_default(state.step):
        for name, value in values.items():
            tf.summary.scalar(name, value)
    return line
