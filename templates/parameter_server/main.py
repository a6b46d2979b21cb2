def main(argv=None):
    """Returns the exit code, 0. Wrong input (2) and a run that can't go on end by SystemExit."""
    global args, strategy, coordinator, model, optimizer, loss_object, run_dir, state
    global train_metrics, validation_metrics, test_metrics, WORKERS
    global GLOBAL_BATCH_SIZE, EPOCHS, LEARNING_RATE, SEED, STEPS_PER_EPOCH, managers, writers

    # 1. Read the flags, and find the others. Workers and servers go no further.
    args = parse_arguments(argv)
    GLOBAL_BATCH_SIZE, EPOCHS = args.global_batch_size, args.epochs
    LEARNING_RATE, SEED, run_dir = args.learning_rate, args.seed, Path(args.run_dir)
    taken = (run_dir / "config.json").exists() and not (run_dir / "metrics.jsonl").exists()
    inner = (*run_dir.glob("checkpoints/**/"), *run_dir.glob("tensorboard/**/"))
    closed = [x for x in inner if not os.access(x, 5 if args.mode == "evaluate" else 7)]
    odd = not args.run_dir.isprintable() or set("[\\") & set(run_dir.as_posix())  # TensorFlow globs
    if taken or closed or odd or (run_dir / "train.py").is_dir() or "://" in args.run_dir:
        refuse(f"--run-dir {args.run_dir} has ://, [, \\, closed or others' files; name another")
    cluster, job, index = read_tf_config()
    if cluster:
        threading.Thread(target=watch_connections, daemon=True).start()
    if job in ("worker", "ps"):
        serve(cluster, job, index)
    WORKERS = len(cluster.get("worker", []))
    strategy, coordinator, strategy_name = create_strategy(cluster)
    on_signals(lambda *_: os._exit(143))

    # 2. Load the data.
    splits = ("train", "validation", "test")
    sets = {split: load(x, split) for split, x in zip(splits, create_datasets(), strict=True)}
    size = sets["train"][1]
    if GLOBAL_BATCH_SIZE > size:
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} is above the {size} training examples")
    STEPS_PER_EPOCH = size // GLOBAL_BATCH_SIZE
    last_step = EPOCHS * STEPS_PER_EPOCH

    # 3. See what the run directory holds.
    config = {**vars(args), "strategy": strategy_name, "workers": WORKERS}
    git = {"cwd": Path(__file__).parent, "shell": True, "capture_output": True, "text": True}
    commit = subprocess.run("git rev-parse HEAD", **git).stdout.strip() or None
    used = {x.__name__: x.__version__ for x in (tf, keras, np)} | {"python": sys.version.split()[0]}
    config |= {"train_examples": size, "versions": used, "git_commit": commit}
    # {% if cookiecutter.task == "text_classification" %}
    # The flags of a complete script that check_run compares.
    config |= {"schedule": SCHEDULE, "warmup_steps": WARMUP_STEPS, "precision": "float32"}
    # {% else %}
    config |= {"schedule": "constant", "warmup_steps": 0, "precision": "float32"}  # as flags
    # {% endif %}
    path = find_checkpoint("best" if args.mode == "evaluate" else "last")
    lines = check_run(config) if args.mode == "train" and job == "chief" and path else []
    # {% if cookiecutter.task == "text_classification" %}
    if job == "chief" and args.mode == "train" and not path:  # of a start that saved nothing
        (run_dir / "vocabulary.txt").unlink(missing_ok=True)
    # {% endif %}

    # 4. Create the model and what belongs to it; restore it.
    keras.utils.set_random_seed(SEED)
    loss_object = create_loss_objects(strategy)
    train_metrics, validation_metrics, test_metrics = create_metrics(tf.distribute.get_strategy())
    for metric in (*train_metrics, *validation_metrics, *test_metrics):  # on the chief
        count(metric)
    model, optimizer = create_model_and_optimizer(strategy)
    with strategy.scope():  # in a traced step it is too late to create variables (keras#23085)
        for each, its in zip(*map(tf.nest.flatten, (model, optimizer)), strict=True):
            # {% if cookiecutter.task == "text_classification" %}
            if SCHEDULE != "constant" or WARMUP_STEPS != 0:
                its.learning_rate = Schedule(float(its.learning_rate.numpy()))
            # {% endif %}
            its.build(each.trainable_variables)
    state = {"step": tf.Variable(np.int64(0)), "best_loss": tf.Variable(np.float64("inf"))}
    managers = create_managers()
    validation_set, test_set = (distribute(*sets[split], training=False) for split in splits[1:])
    if job == "evaluator":
        return evaluate_each(validation_set)
    if args.mode == "evaluate":
        restore("best")
        say(f"test {describe(test(*test_set))}  of {path}")
        return 0
    step = first_step = restore("last")
    # The lines of the log that come again are dropped; of an epoch's end, its validation's too.
    lines = [x for x in lines if (x["step"], x["split"] != "train") <= (step, False)]
    files = {"metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines)}
    files |= {"config.json": json.dumps(config), "train.py": Path(__file__).read_text("utf-8")}
    # {% if cookiecutter.task == "text_classification" %}
    files["vocabulary.txt"] = "\n".join(create_preprocessor().tokenizer.get_vocabulary())
    # {% endif %}
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():  # a kill leaves the old one, or the new one
            (run_dir / f"{name}.part").write_text(text, "utf-8")
            (run_dir / f"{name}.part").replace(run_dir / name)
    except OSError as error:
        refuse(f"--run-dir {run_dir} can't be written ({error.strerror}); name another")
    writers = {x: tf.summary.create_file_writer(f"{run_dir}/tensorboard/{x}") for x in splits}
    for server in range(len(cluster.get("ps", []))):
        with tf.device(f"/job:ps/task:{server}/device:CPU:0"):
            if not len(tf.io.matching_files(f"{run_dir}/config.json")):
                refuse(f"--run-dir {run_dir} is not one folder for all; name one that they share")
    who = f"{WORKERS} × worker, {len(cluster['ps'])} × ps" if cluster else "1 × worker, here"
    resumed = f", resumed at step {step} from {path}" if path else ""
    say(f"{strategy_name} on {who}, {STEPS_PER_EPOCH} steps an epoch{resumed}")

    # 5. Train, in loops of nearly equal length. Resumed at an epoch's end, it validates first.
    on_signals(request_stop)
    data, _ = distribute(*sets["train"], training=True)
    loops = math.ceil(STEPS_PER_EPOCH / min(args.steps_per_loop, args.checkpoint_every_steps))
    started, trained, epoch_ends = time.monotonic(), "", step > 0 and step % STEPS_PER_EPOCH == 0
    while True:
        if epoch_ends:
            validated = validate(*validation_set)
            if not math.isfinite(validated["loss"]):
                refuse(f"the validation loss is not finite after step {step}, not saved", code=1)
            is_best = validated["loss"] < state["best_loss"].numpy()
            if is_best:  # written before the last: a run killed between the two makes both again
                save("best")
            save("last")
            state["best_loss"].assign(min(validated["loss"], state["best_loss"].numpy()))
            log(step, "validation", validated)
            row = f"epoch {step // STEPS_PER_EPOCH:3}/{EPOCHS}{' *' if is_best else '  '}"
            say(row, f"validation {describe(validated)}", trained and f"train\0{describe(trained)}")
            if step == last_step:
                break
        nth = math.ceil((step % STEPS_PER_EPOCH + 1) * loops / STEPS_PER_EPOCH)  # of these is next
        end = step - step % STEPS_PER_EPOCH + nth * STEPS_PER_EPOCH // loops
        done, trained = train(data, step, end - step)
        end = step + done  # a signal ends a loop early
        if signals:
            signals[0].cancel()  # saving takes the time that it takes
        if not (math.isfinite(trained["loss"]) and are_finite()):
            problem = f"the loss or a weight is not finite between steps {step} and {end}"
            refuse(f"{problem}, not saved; try a --learning-rate below {LEARNING_RATE:g}", code=1)
        state["step"].assign(end)
        log(end, "train", trained)
        if sys.stdout.isatty():
            seconds = (time.monotonic() - started) / (end - first_step) * (last_step - end)
            left, bar = datetime.timedelta(seconds=round(seconds)), "█" * (10 * end // last_step)
            say(f"step {end:,}/{last_step:,} {bar:░<10} {left} left", describe(trained), end="")
        saves = end // args.checkpoint_every_steps > step // args.checkpoint_every_steps
        step, epoch_ends = end, end % STEPS_PER_EPOCH == 0
        if signals or (saves and not epoch_ends):
            save("last")
        if signals:
            say(f"stopped, and saved at step {step}; the same command goes on")
            os._exit(143)  # Python's own end would wait for the others

    # 6. Test the best checkpoint.
    on_signals(lambda *_: os._exit(143))  # all is saved
    for rest in (run_dir / "export", *run_dir.glob("checkpoints/*/*_temp")):
        shutil.rmtree(rest, ignore_errors=True)  # what kills have left, or an export of before
    restore("best")
    tested = test(*test_set)
    log(step, "test", tested)
    say(f"test {describe(tested)}  of {find_checkpoint('best')}")

    # 7. Export it.
    export(run_dir / "export", sets["test"][0])
    say(f"written to {run_dir}: checkpoints, export, metrics.jsonl, tensorboard")
    return 0


def run(argv=None):
    """Runs `main`, and ends the process with its exit code where that isn't 0."""
    sys.stdout.reconfigure(errors="replace")  # of × and █, on a terminal without them
    e = tf.errors
    try:
        code = main(argv)
    except SystemExit as end:
        code = end.code
    except (e.UnavailableError, e.AbortedError, e.CancelledError, e.DeadlineExceededError):
        print("train.py: stopped: a server is lost; start all tasks again", file=sys.stderr)
        code = 143
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    if code or coordinator:
        if not code:
            dismiss(read_tf_config()[0])
        sys.stdout.flush()
        os._exit(code)  # Python's own end would wait for the others


if __name__ == "__main__":
    run()
