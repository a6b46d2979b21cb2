# {% block read_log %}
def read_log():
    """Returns the lines of the log that make sense: a kill may have cut the last one short."""
    texts = (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    lines = [json.loads(text) for text in texts if text.endswith("}")]
    return [x for x in lines if describe(x) and 0 <= x["epoch"] <= x["step"] and x["split"] > ""]


# {% endblock %}
def log(step, split, values):
    """Adds a line to the log, and points to TensorBoard's curves."""
    if WORKER == 0:
        line = {"step": step, "epoch": math.ceil(step / STEPS_PER_EPOCH), "split": split, **values}
        with open(run_dir / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        kind = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
        with writers[split].as_default(step):
            for name, value in values.items():  # tf.summary.scalar would need tensorboard
                tf.summary.write(name, np.float32(value), metadata=kind)


def check_run(config):
    """Refuses what would change the numbers of the run under way. Ends where it is finished."""
    # {% block edits %}
    # {% endblock %}
    keys = ["seed", "global_batch_size", "learning_rate", "train_examples", "schedule"]
    # {% block more_keys %}
    keys += ["clip_norm", "ema_momentum", "warmup_steps", "precision"]  # of a complete script's run
    # {% endblock %}
    try:
        before, lines = dict(json.loads((run_dir / "config.json").read_text("utf-8"))), read_log()
    except Exception as error:  # of half a dozen kinds, by what is damaged
        refuse(f"{run_dir}/config.json or metrics.jsonl can't be read ({error}); restore it")
    for key in keys:
        if before.get(key) != config.get(key):
            refuse(f"{run_dir}/config.json has {key} {before.get(key)}, not {config.get(key)}")
    end, last_line = EPOCHS * STEPS_PER_EPOCH, [{"step": 0, "split": None}, *lines][-1]
    if last_line["step"] > end:
        refuse(f"--run-dir {run_dir} is at epoch {last_line['epoch']}, past --epochs {EPOCHS}")
    # {% block end %}
    if (last_line["step"], last_line["split"]) == (end, "test") and (run_dir / "export").exists():
        say(f"{run_dir} is finished: test {describe(last_line)}; more --epochs would go on")
        raise SystemExit(0)
    return lines
    # {% endblock %}
