# {% extends "run_directory.py" %}
# {% block read_log %}
def replace_file(name, text):
    """Writes a file of the run so that a kill leaves the old one or the new one."""
    part = run_dir / f"{name}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(run_dir / name)


def read_log(folder=None):
    """Returns the lines of the log, less damaged ones. Only of the last it is usual: of a kill."""
    path, lines = (folder or run_dir) / "metrics.jsonl", []
    texts = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    for number, text in enumerate(texts, start=1):
        try:
            x = json.loads(text)
            lines += {True: [x]}[describe(x) and 0 <= x["epoch"] <= x["step"] and x["split"] > ""]
        except Exception:  # of half a dozen kinds, a KeyError where a value won't do
            if number < len(texts):
                say(f"{path}: line {number} is damaged, and passed over")
    return lines


def open_run(config, step):
    """Writes what a run begins with. Of the log, it drops the lines that come again."""
    lines = [x for x in read_log() if (x["step"], x["split"] != "train") <= (step, False)]
    script, record = Path(__file__).read_text("utf-8"), run_dir / "train.py"
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


def find_edits(path):
    """Returns what code of sections 3 and 4 differs from a script at another path, as text."""
    scripts = []
    for script in (path, Path(__file__)) if path.exists() else ():
        text, parts = script.read_text("utf-8", errors="replace"), {}
        first, last = (text[: text.find(f"\n# {number}. ")].count("\n") for number in (3, 5))
        with contextlib.suppress(Exception):  # of a damaged copy
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                    del node.body[0]
                if first < node.lineno < last:
                    parts[ast.dump(node)] = f"{getattr(node, 'name', 'that')} (line {node.lineno})"
        scripts.append(parts)
    before, now = scripts or ({}, {})
    gone = [f"{name} in {path}" for code, name in before.items() if code not in now]
    return ", ".join([name for code, name in now.items() if code not in before] or gone)


# {% endblock %}
def check_run(config):
    # {% block edits %}
    if edits := find_edits(run_dir / "train.py"):
        cure = f"Undo it, name another --run-dir, or rename {run_dir}/train.py to go on with it"
        refuse(f"of train.py changed since the run in {run_dir} began: {edits}. {cure}")
    # {% endblock %}
    # {% block more_keys %}
    keys += ["clip_norm", "ema_momentum", "warmup_steps", "precision", "init_checkpoint"]
    keys += ["epochs"] * (SCHEDULE != "constant")  # it falls until then
    # {% endblock %}
    # {% block end %}
    is_end = last_line["step"] == end  # or --patience has ended it
    is_end |= all(before.get(key) == config[key] for key in ("epochs", "patience"))
    is_end &= before.get("export", "best") == args.export
    if is_end and last_line["split"] == "test" and (run_dir / "export").exists():
        say(f"{run_dir} is finished: test {describe(last_line)}; more --epochs would go on")
        raise SystemExit(0)
    # {% endblock %}
