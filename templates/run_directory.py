LOG = "metrics.jsonl"


def read_log(folder):
    """Returns the lines of the log, less damaged ones: the last may have been cut short by a kill,
    of another it is said."""
    path = folder / LOG
    texts = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    lines = []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            steps = {key: int(line[key]) for key in ("step", "epoch")}
            lines.append({**line, **steps, "split": str(line["split"])})
        except (ValueError, TypeError, KeyError):
            if number < len(texts):
                say(f"{path}: line {number} is damaged, and passed over")
    return lines


def log(split, values):
    """Adds a line to the log, and points to TensorBoard's curves."""
    if WORKER:
        return
    step = state["step"]
    line = {"step": step, "epoch": math.ceil(step / STEPS_PER_EPOCH), "split": split, **values}
    with open(run_dir / LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if importlib.util.find_spec("tensorboard"):  # TensorFlow 2.21 no longer brings it
        with summary_writer(run_dir / "tensorboard" / split).as_default(step):
            for name, value in values.items():
                tf.summary.scalar(name, value)


@functools.cache
def summary_writer(folder):
    return tf.summary.create_file_writer(str(folder))


def replace_file(name, text):
    """Writes a file of the run so that a kill leaves the old one or the new one."""
    part = run_dir / f"{name}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(run_dir / name)


def list_checkpoints(which):
    """Returns the steps of the checkpoints in --run-dir, whole or not, the newest first."""
    paths = Path(args.run_dir, "checkpoints", which).glob("ckpt-*")
    names = [re.fullmatch(r"ckpt-(\d+)\.(index|data-.*)", path.name) for path in paths]
    return sorted({int(name[1]) for name in names if name}, reverse=True)


def read_whole(path):
    """Returns what a checkpoint holds, or None if it is damaged, which it says."""
    try:
        return read_checkpoint(path)
    except Exception as error:  # of half a dozen kinds, by what is cut short or flipped
        damage = str(error).partition("\n")[0] or type(error).__name__
        say(f"{path} is damaged, and passed over: {damage}")


def find_checkpoint(which, last_step=math.inf):
    """Returns the path and the content of the newest whole checkpoint in --run-dir, or None twice
    if no last one was ever saved: a best one may have been, just before a kill."""
    folder, last = (Path(args.run_dir, "checkpoints", name) for name in (which, "last"))
    for step in list_checkpoints(which):
        path = folder / f"ckpt-{step}"
        if step <= last_step and (values := read_whole(path)):
            return path, values
    if list_checkpoints("last") or (last / "checkpoint").exists():
        refuse(
            f"{folder} has no whole checkpoint to go on from; put one back, or name another "
            "--run-dir to start anew"
        )
    return None, None


def find_start():
    """Returns the path and the content of the checkpoint to resume from, or None twice. If the best
    is damaged, it is from before that, so that the best is made again."""
    for best in list_checkpoints("best")[:1]:
        if not read_whole(Path(args.run_dir, "checkpoints", "best", f"ckpt-{best}")):
            return find_checkpoint("last", best)
    return find_checkpoint("last")


def create_managers():
    """Returns the variables that checkpoints are written from, and the managers of checkpoints/last
    and checkpoints/best. The best has no optimizer, and the averages, if any, as its weights."""
    with tf.device("CPU:0"):
        any_shape = tf.TensorShape(None)  # so that they can be emptied, once they are written
        copies = tf.nest.map_structure(lambda x: tf.Variable(x, shape=any_shape), snapshot)
        names = [x.path for each in tf.nest.flatten(model) for x in each.variables]
        names = tf.Variable(names)  # by which --init-checkpoint finds weights of another model
    trainable = [x.value.ref() for x in trainable_variables()]
    averaged = dict(zip(trainable, copies["averages"], strict=bool(averages)))
    pairs = zip(variables()["model"], copies["model"], strict=True)
    weights = [averaged.get(variable.ref(), copy) for variable, copy in pairs]
    best = tf.train.Checkpoint(step=copies["step"], model=weights, names=names)
    list_anew("last", [x for x in list_checkpoints("last") if x <= state["step"]])
    list_anew("best", list_checkpoints("best"))
    folder, manager = run_dir / "checkpoints", tf.train.CheckpointManager
    last = tf.train.Checkpoint(**copies, names=names)
    return copies, {
        "last": manager(last, folder / "last", max_to_keep=3),
        "best": manager(best, folder / "best", max_to_keep=1),
    }


def list_anew(which, steps):
    """Writes the list that TensorFlow keeps of the checkpoints: it may be lost, cut short or of
    damaged ones. Removes what a kill or a full disk left unfinished."""
    folder = run_dir / "checkpoints" / which
    for unfinished in folder.glob("ckpt-*_temp"):
        shutil.rmtree(unfinished)
    (folder / "checkpoint").unlink(missing_ok=True)
    if steps:
        path = 'all_model_checkpoint_paths: "ckpt-{}"\nall_model_checkpoint_timestamps: 1.0\n'
        lines = [path.format(step) for step in sorted(steps)]
        lines.append(f'model_checkpoint_path: "ckpt-{steps[0]}"\n')
        replace_file(f"checkpoints/{which}/checkpoint", "".join(lines))


def read_config():
    path = Path(args.run_dir, "config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(config, dict):
            return config
        error = "it is no object"
    except (OSError, ValueError) as reason:
        error = reason
    refuse(f"{path} can't be read ({error}), so whose checkpoints are these? Restore it")


def check_run_dir():
    """Returns the last line of the log of the run in --run-dir. Refuses a folder that isn't a
    run's, and a run that was begun with other hooks or steps."""
    folder = Path(args.run_dir)
    if folder.exists() and not folder.is_dir():
        refuse(f"--run-dir {folder} is a file; name a folder")
    files = {path.name for path in folder.glob("*")}
    if files & {"config.json", "train.py", "export"} and not files & {LOG, f"{LOG}.part"}:
        refuse(f"--run-dir {folder} is no run, but has files of the same names; name another")
    if list_checkpoints("last") and (folder / "train.py").exists():
        record = (folder / "train.py").read_text("utf-8", errors="replace")
        lines = find_edits(record, Path(__file__).read_text(encoding="utf-8"))
        if lines:
            refuse(
                f"{lines} of train.py changed since the run in {folder} began, and its numbers "
                f"would be of neither; undo that ({folder}/train.py has what ran), or name another "
                f"--run-dir. To go on all the same, rename {folder}/train.py"
            )
    return [{"split": None, "epoch": 0, "step": 0}, *read_log(folder)][-1]


def find_edits(old, new):
    """Returns which lines of sections 3 and 4 differ between two scripts, as text, or "": not
    those of the machinery, nor comments or how lines are broken."""

    def cut(text):
        ends = [text.find(f"\n# {number}. ") for number in (3, 5)]
        return text[slice(*ends)] if -1 not in ends else text

    def parse(text):
        tree = ast.parse(cut(text))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                del node.body[0]
        return ast.dump(tree)

    with contextlib.suppress(SyntaxError):  # of a damaged copy
        if parse(old) == parse(new):
            return ""
    offset = new[: new.find(cut(new))].count("\n") + 1
    blocks = difflib.SequenceMatcher(None, cut(old).splitlines(), cut(new).splitlines())
    lines = [(a, max(a + 1, b)) for tag, _, _, a, b in blocks.get_opcodes() if tag != "equal"]
    lines = [f"{a + offset}-{b + offset - 1}" if b - a > 1 else f"{a + offset}" for a, b in lines]
    lines = ", ".join(lines)
    return f"line{'s' * (not lines.isdecimal())} {lines}"


def check_config(config):
    """Refuses what would change the numbers of the run in --run-dir: flags, or other data."""
    before = read_config()
    keys = ["seed", "global_batch_size", "learning_rate", "schedule", "warmup_steps", "clip_norm"]
    keys += ["ema_momentum", "precision", "init_checkpoint", "train_examples"]
    keys += ["epochs"] * (SCHEDULE != "constant")  # at whose end the learning rate is 0
    for key in keys:
        if key in config and before.get(key) != config[key]:
            refuse(
                f"--run-dir {args.run_dir} holds a run with {key} {before.get(key)}, not "
                f"{config[key]}; keep to that, or name another folder"
            )


def check_end(last_line):
    """Refuses fewer epochs than a run has, and ends where it is finished."""
    folder = Path(args.run_dir)
    if last_line["epoch"] > EPOCHS:
        refuse(f"--run-dir {folder} is at epoch {last_line['epoch']}, past --epochs {EPOCHS}")
    before = read_config()
    same_end = all(before.get(key) == getattr(args, key) for key in ("epochs", "patience"))
    has_ended = last_line["split"] == "test" and (folder / "export").exists()
    if has_ended and (same_end or last_line["epoch"] == EPOCHS):
        say(f"{folder} is finished: test {describe(last_line)}; more --epochs would go on")
        raise SystemExit(0)


def open_run_dir(config):
    """Writes config.json and the copy of this script, and drops the lines of the log that the run
    will write again; at the end of an epoch, that of its validation too."""
    step, script = state["step"], Path(__file__).read_text(encoding="utf-8")
    lines = read_log(run_dir)
    lines = [x for x in lines if x["step"] < step or (x["step"] == step and x["split"] == "train")]
    record = run_dir / "train.py"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        replace_file(LOG, "".join(json.dumps(line) + "\n" for line in lines))  # it marks a run
        replace_file("config.json", json.dumps(config, indent=2) + "\n")
        if record.exists() and record.read_text("utf-8", errors="replace") != script:
            record.rename(run_dir / f"train.until-step-{step}.py")  # what has run so far
        replace_file("train.py", script)
        # {% if cookiecutter.task == "text_classification" %}
        vocabulary = create_preprocessor().tokenizer.get_vocabulary()
        replace_file("vocabulary.txt", "\n".join(vocabulary))
        # {% endif %}
    except OSError as error:
        refuse(f"--run-dir {run_dir} can't be written ({error.strerror}); name another folder")
