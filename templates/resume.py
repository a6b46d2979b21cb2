# Settings that a resumed run must not change. Some are flags of the complete script, which may have
# started the run.
FIXED_SETTINGS = """
    seed global_batch_size learning_rate train_data
    schedule clip_norm ema_momentum warmup_steps precision
""".split()


# {% if cookiecutter.__size == "essential" %}
def cut_log(text):
    """Return the lines of metrics.jsonl that a resumed run keeps.

    A kill may have cut the last one short.
    """
    return "".join(
        f"{line}\n"
        for line in text.splitlines()
        if line.endswith("}") and is_kept_on_resume(json.loads(line), state.step)
    )


# {% else %}
def parse_log(text):
    """Return the lines of metrics.jsonl. A kill may have cut the last one short."""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


# {% endif %}
def find_run():
    """Return the checkpoint to resume from or to evaluate, or None.

    Raise WrongInput if TensorFlow can't use --run-dir, if the flags would change the results of a
    run under way, or if the training data have changed: examples that the model was trained on may
    be in the test split now.
    """
    # Without a name, the run would fill the current folder.
    if re.search(r"^$|://|[\[\\\ud800-\udfff]", config.run_dir):
        raise WrongInput(
            f"--run-dir {config.run_dir} isn't local, or has [, \\ or bad UTF-8; use another folder"
        )
    checkpoint = find_checkpoint("best" if config.mode == "evaluate" else "last")
    if checkpoint:
        check_run(FIXED_SETTINGS if config.mode == "train" else ["train_data"])
    # {% if cookiecutter.task == "text_classification" %}
    needs_same_epochs = config.schedule != "constant" or config.warmup_steps is None
    if checkpoint and config.mode == "train" and needs_same_epochs:
        check_run(["epochs"])  # the schedule and the default warm-up depend on them
    # {% endif %}
    return checkpoint


def check_run(names):
    # {% if cookiecutter.__size == "essential" %}
    """Set `config.seed` to the run's. Raise WrongInput if one of these settings has changed."""
    # {% else %}
    """Set `config.seed` to the run's. Raise WrongInput if one of these settings has changed.

    Raise RunFinished after the last step of the run.
    """
    # {% endif %}
    before = read_file("config.json")
    now = describe_run()
    for name in names:
        if before.get(name) != now.get(name):
            raise WrongInput(
                f"--run-dir {config.run_dir} was started with {name} {before.get(name)}, not "
                f"{now.get(name)}; use the same, or another --run-dir"
            )
    # In evaluation, too, hooks must draw the constants that the model was trained with.
    config.seed = before["seed"]
    # {% if cookiecutter.__size == "parameter_server" %}
    if config.mode != "train":
        return
    lines = read_file("metrics.jsonl", parse_log)
    if not lines:
        return
    last_line = lines[-1]
    is_tested = last_line["split"] == "test" and last_line["step"] >= config.last_step
    if is_tested and is_run_finished():
        raise RunFinished(
            f"{config.run_dir} is finished: test {format_metrics(last_line)}; "
            # {% if cookiecutter.task == "text_classification" %}
            "more --epochs continue it, unless it stopped early, or its schedule or warm-up "
            "depends on them"
            # {% else %}
            "more --epochs continue it, unless it stopped early"
            # {% endif %}
        )
    # {% endif %}


# {% if cookiecutter.__size == "essential" %}
def check_shared(number):
    """Raise WrongInput if a worker calls this with another number than the others."""
    if sum_over_workers(number) != number * config.workers:
        raise WrongInput(
            f"--run-dir {config.run_dir} must be shared, and create_datasets equal, for all workers"
        )


# {% endif %}
def load_adapted(train_split, checkpoint):
    # {% if cookiecutter.__size == "essential" %}
    """Fill `adapted` with what the hook `adapt` returned at the start of the run.

    Raise WrongInput if a worker has another run directory.
    """
    if config.worker_index == 0 and not checkpoint:
        train = tf.data.Dataset.from_tensor_slices(train_split[0])
        # The braces raise an error if the hook returns no dict.
        write_file("adapted.json", json.dumps({**adapt(train)}))
    sum_over_workers(0)  # wait until the chief has written the file
    # On NFS, a worker that looked for the folder too early can't see it for half a minute, unless
    # the worker creates it, too.
    os.makedirs(run_path("checkpoints/last"), exist_ok=True)
    check_shared(int(run_path("adapted.json").exists()))
    # {% else %}
    """Fill `adapted` with what the hook `adapt` returned at the start of the run.

    Raise WrongInput if a server has another run directory.
    """
    if config.mode == "train" and not checkpoint:
        train = tf.data.Dataset.from_tensor_slices(train_split[0])
        # The braces raise an error if the hook returns no dict.
        write_file("adapted.json", json.dumps({**adapt(train)}))
    check_tasks()
    # {% endif %}
    adapted.update(read_file("adapted.json"))


def initialize_run_dir():
    # {% if cookiecutter.__size == "essential" %}
    """Cut the log at the step, write config.json and train.py, and delete leftovers.

    Raise WrongInput if workers have restored different steps, or have different training data.
    """
    check_shared(zlib.crc32(f"{state.step} {config.train_data}".encode()))
    if config.worker_index > 0:
        return
    kept = read_file("metrics.jsonl", cut_log) if state.step else ""
    write_file("metrics.jsonl", kept)
    # {% else %}
    """Cut the log at the step, write config.json and train.py, and delete leftovers."""
    lines = read_file("metrics.jsonl", parse_log) if state.step else []
    write_file(
        "metrics.jsonl",
        "".join(f"{json.dumps(line)}\n" for line in lines if is_kept_on_resume(line, state.step)),
    )
    # {% endif %}
    write_file("config.json", json.dumps(describe_run()))
    write_file("train.py", "".join(source_lines))
    # Killed processes leave unfinished checkpoints and exports in folders named …_temp.
    for path in (run_path("export"), *run_path("checkpoints").glob("*/*_temp")):
        shutil.rmtree(path, ignore_errors=True)
