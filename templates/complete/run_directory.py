def replace_file(name, text):
    """Writes a file of the run so that a kill leaves the old one or the new one."""
    part = run_dir / f"{name}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(run_dir / name)


def read_log(folder):
    """Returns the lines of the log, less damaged ones: the last may have been cut short by a kill,
    of another it is said."""
    path, lines = folder / "metrics.jsonl", []
    texts = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            lines.append({**line, "step": int(line["step"]), "split": str(line["split"])})
        except (ValueError, TypeError, KeyError):
            if number < len(texts):
                say(f"{path}: line {number} is damaged, and passed over")
    return lines


def log(step, split, values):
    """Adds a line to the log, and points to TensorBoard's curves."""
    if WORKER:
        return
    line = {"step": step, "epoch": math.ceil(step / STEPS_PER_EPOCH), "split": split, **values}
    with open(run_dir / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if importlib.util.find_spec("tensorboard"):  # TensorFlow 2.21 no longer brings it
        with summary_writer(run_dir / "tensorboard" / split).as_default(step):
            for name, value in values.items():
                tf.summary.scalar(name, value)


@functools.cache
def summary_writer(folder):
    return tf.summary.create_file_writer(str(folder))


def check_run(config):
    """Refuses what would change the numbers of the run under way: hooks, flags, or other data.
    Ends where it is finished."""
    if edits := find_edits(run_dir / "train.py"):
        refuse(
            f"of train.py changed since the run in {run_dir} began: {edits}. Undo that, or name "
            f"another --run-dir. To go on all the same, rename {run_dir}/train.py, what ran"
        )
    try:
        before = dict(json.loads((run_dir / "config.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        refuse(f"{run_dir}/config.json can't be read ({error}), so whose run is it? Restore it")
    keys = ["seed", "global_batch_size", "learning_rate", "train_examples", "schedule"]
    keys += ["warmup_steps", "clip_norm", "ema_momentum", "precision", "init_checkpoint"]
    keys += ["epochs"] * (SCHEDULE != "constant")  # it falls until then
    for key in keys:
        both = {x.get(key, "no such flag") for x in (before, config)}
        if len(both) == 2 and not both - {None, 0, "constant", "float32"} == {"no such flag"}:
            refuse(f"{run_dir} holds a run with {key} {before.get(key)}, not {config.get(key)}")
    end, last_line = EPOCHS * STEPS_PER_EPOCH, [{"step": 0, "split": None}, *read_log(run_dir)][-1]
    if last_line["step"] > end:
        refuse(f"--run-dir {run_dir} is at epoch {last_line['epoch']}, past --epochs {EPOCHS}")
    is_end = last_line["step"] == end  # or --patience has ended it
    is_end |= all(before.get(key) == config[key] for key in ("epochs", "patience"))
    if is_end and last_line["split"] == "test" and (run_dir / "export").exists():
        say(f"{run_dir} is finished: test {describe(last_line)}; more --epochs would go on")
        raise SystemExit(0)


def find_edits(path):
    """Returns what of sections 3 and 4 differs from a script at another path, as text. Comments and
    docstrings don't count."""

    def parse(path):
        text, parts = path.read_text("utf-8", errors="replace"), {}
        first, last = (text[: text.find(f"\n# {number}. ")].count("\n") for number in (3, 5))
        with contextlib.suppress(SyntaxError):  # of a damaged copy
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                    del node.body[0]
                if first < node.lineno < last:
                    parts[ast.dump(node)] = f"{getattr(node, 'name', 'that')} (line {node.lineno})"
        return parts

    before, now = (parse(x) if x.exists() else {} for x in (path, Path(__file__)))
    new = [name for code, name in now.items() if code not in before]
    gone = [f"{name} in {path}" for code, name in before.items() if code not in now]
    return ", ".join(new or gone) * path.exists()


def open_run(config, step):
    """Writes what a run begins with, and drops the lines of the log that it will write again; at
    the end of an epoch, that of its validation too."""
    lines = [x for x in read_log(run_dir) if (x["step"], x["split"] != "train") <= (step, False)]
    script, record = Path(__file__).read_text("utf-8"), run_dir / "train.py"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        replace_file("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        replace_file("config.json", json.dumps(config))
        if record.exists() and record.read_text("utf-8", errors="replace") != script:
            record.rename(run_dir / f"train.until-step-{step}.py")  # what has run so far
        replace_file("train.py", script)
        # {% if cookiecutter.task == "text_classification" %}
        vocabulary = create_preprocessor().tokenizer.get_vocabulary()
        replace_file("vocabulary.txt", "\n".join(vocabulary))
        # {% endif %}
    except OSError as error:
        refuse(f"--run-dir {run_dir} can't be written ({error.strerror}); name another")
