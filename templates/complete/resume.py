# Settings that a resumed run must not change.
FIXED_SETTINGS = """
    seed global_batch_size learning_rate train_data
    schedule clip_norm ema_momentum warmup_steps precision init_checkpoint
""".split()


def read_log(folder=None):
    """Return the lines of metrics.jsonl, except corrupt ones. A kill may corrupt the last one."""
    path = (folder or run_path()) / "metrics.jsonl"
    if not path.exists():
        return []
    texts = path.read_text(errors="replace").splitlines()
    lines = []
    for number, text in enumerate(texts, start=1):
        line = None
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text)
        if is_valid_log_line(line):
            lines.append(line)
        elif number < len(texts):
            print_status(f"{path}: line {number} is corrupt and left out")
    return lines


def find_run():
    """Return the checkpoint to resume from or to evaluate, or None.

    Raise WrongInput if hooks or flags would change the results of a run under way.
    """
    if config.mode == "train":
        checkpoint = run_on_chief(find_checkpoint, "last")
        if checkpoint:
            run_on_chief(check_run)
        return checkpoint
    if config.mode == "evaluate":
        checkpoint = run_on_chief(find_checkpoint, config.export)
    else:
        print_status(f"waiting for checkpoints of {config.run_dir}")
        # An evaluator may start before the run. The content is read later.
        checkpoint = wait_for_checkpoint(run_path())["path"]
    # With other data, the test split could have examples that the model was trained on. The run's
    # seed replaces --seed, so that hooks draw the constants of the trained model.
    config.seed = run_on_chief(check_settings, ["train_data"])["seed"]
    return checkpoint


def check_run():
    """Raise WrongInput if hooks or settings have changed, or RunFinished at the end of the run."""
    check_edits()
    before = check_settings(FIXED_SETTINGS)
    # {% if cookiecutter.task == "text_classification" %}
    if config.schedule != "constant" or config.warmup_steps is None:
        check_settings(["epochs"])  # the schedule and the default warm-up depend on them
    # {% else %}
    if config.schedule != "constant":
        check_settings(["epochs"])  # the schedule ends with the last one
    # {% endif %}
    lines = read_log()
    if lines:
        check_end(lines[-1], before)


def check_settings(names):
    """Return the run's config.json. Raise WrongInput if one of these settings has changed."""
    before = read_object("config.json")
    for name in names:
        now = getattr(config, name)
        if before.get(name) != now:
            raise WrongInput(
                f"--run-dir {config.run_dir} was started with {name} {before.get(name)}, not "
                f"{now}; use the same, or another --run-dir"
            )
    return before


def check_end(last_line, before):
    """Raise RunFinished if the run is finished, or WrongInput if it is past --epochs.

    Without a SavedModel, the run isn't finished: it is exported again.
    """
    if last_line["step"] > config.last_step:
        raise WrongInput(
            f"--epochs {config.epochs}: the run is at epoch {last_line['epoch']} already; use more"
        )
    # The end depends on these flags. The config.json of an essential script has only the first.
    is_same_end = all(
        before.get(name, getattr(Config, name)) == getattr(config, name)
        for name in "epochs patience export".split()
    )
    if is_same_end and run_path("export/saved_model.pb").exists() and last_line["split"] == "test":
        raise RunFinished(
            f"{config.run_dir} is finished: test {format_metrics(last_line)}; "
            # {% if cookiecutter.task == "text_classification" %}
            "more --epochs continue it, unless it stopped early, or its schedule or warm-up "
            "depends on them"
            # {% else %}
            "more --epochs continue it, unless it stopped early or its schedule depends on them"
            # {% endif %}
        )


def check_edits():
    """Raise WrongInput if sections 3 and 4 differ from the run's copy of train.py."""
    before = read_definitions(run_path("train.py"))
    now = read_definitions(Path(__file__))
    edits = [  # a repaired create_serving_function doesn't change the training
        name
        for name in now | before
        if now.get(name) != before.get(name) and name != "create_serving_function"
    ]
    if before and edits:  # without a copy, or with a corrupt one, there is nothing to compare
        raise WrongInput(
            f"train.py was edited since the last start of {config.run_dir}: {', '.join(edits)}; "
            f"undo it, use another --run-dir, or rename {run_path('train.py')} to resume all the "
            "same"
        )


def read_definitions(path):
    """Return the code of each definition in sections 3 and 4 of a script, by name.

    Comments are left out, and docstrings of functions at the top level. Return nothing if the
    script can't be parsed.
    """
    definitions = {}
    with contextlib.suppress(FileNotFoundError, SyntaxError, TypeError, ValueError):
        text = path.read_text("utf-8")
        sections = re.search(r"\n# 3\. .*\n# 5\. ", text, re.DOTALL)[0]
        for statement in ast.parse(sections).body:
            if isinstance(statement, ast.FunctionDef) and ast.get_docstring(statement):
                del statement.body[0]
            code = ast.unparse(statement)
            definitions[getattr(statement, "name", code)] = code
    return definitions


def load_adapted(checkpoint):
    """Fill `adapted` with what the hook `adapt` returned at the start of the run."""
    adapted.update(run_on_chief(read_or_adapt, checkpoint))


def read_or_adapt(checkpoint):
    """Return the content of adapted.json or, in a new run, what `adapt` returns."""
    if checkpoint:
        return read_object("adapted.json")
    train_split, *_ = create_datasets()  # a dataset of the loaded examples would copy them
    result = adapt(train_split)
    initial = read_initial_adapted()
    if initial.keys() == result.keys():
        return initial
    return json.loads(json.dumps(result))  # as a resumed run reads it


def initialize_run_dir():
    """Cut the log at the step, write the run's files, and delete export/."""
    kept = "".join(
        f"{json.dumps(line)}\n" for line in read_log() if is_kept_on_resume(line, state.step)
    )
    write_file("metrics.jsonl", kept)
    write_file("config.json", json.dumps(describe_run()))
    write_file("adapted.json", json.dumps(adapted))
    shutil.rmtree(run_path("export"), ignore_errors=True)  # with it, the run would seem finished
    write_file("train.py", "".join(source_lines))
