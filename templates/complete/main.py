def main(argv=None):
    """Returns the exit code, 0. Wrong input (2) and a run that can't go on end by SystemExit."""
    global args, strategy, model, optimizer, loss_object, compute_gradients, run_dir, state
    global train_metrics, validation_metrics, test_metrics, gradient_norm, scratch, writers
    global GLOBAL_BATCH_SIZE, EPOCHS, LEARNING_RATE, SEED, STEPS_PER_EPOCH, WORKER, WORKERS, DEVICE
    global SCHEDULE, WARMUP_STEPS, ACCUMULATION_STEPS, CLIP_NORM, PRECISION

    # 1. Read the flags, and find the devices.
    args = parse_arguments(argv)
    GLOBAL_BATCH_SIZE, EPOCHS = args.global_batch_size, args.epochs
    LEARNING_RATE, SEED, run_dir = args.learning_rate, args.seed, Path(args.run_dir)
    SCHEDULE, WARMUP_STEPS, PRECISION = args.schedule, args.warmup_steps, args.precision
    ACCUMULATION_STEPS, CLIP_NORM = args.accumulation_steps, args.clip_norm
    taken = (run_dir / "config.json").exists() and not (run_dir / "metrics.jsonl").exists()
    inner = (*run_dir.glob("checkpoints/**/"), *run_dir.glob("tensorboard/**/"))
    closed = [x for x in inner if not os.access(x, 5 if args.mode == "evaluate" else 7)]
    odd = not args.run_dir.isprintable() or set("[\\") & set(run_dir.as_posix())  # TensorFlow globs
    if taken or closed or odd or (run_dir / "train.py").is_dir() or "://" in args.run_dir:
        refuse(f"--run-dir {args.run_dir} has ://, [, \\, closed or others' files; name another")
    WORKER, addresses = read_tf_config()
    WORKERS = len(addresses)
    if args.mode == "continuous_evaluate" and WORKERS > 1:
        refuse("--mode continuous_evaluate is for one worker; unset TF_CONFIG for it")
    strategy, strategy_name, DEVICE = create_strategy()
    tempfile.tempdir = scratch = tempfile.mkdtemp(prefix="train-")  # AutoGraph leaves files there
    listen_for_signals()
    replicas = strategy.num_replicas_in_sync
    parts, sharers = replicas * ACCUMULATION_STEPS, f"{replicas} replicas"
    sharers += f" in {ACCUMULATION_STEPS} parts each" * (ACCUMULATION_STEPS > 1)
    if rest := GLOBAL_BATCH_SIZE % parts:
        nearest = f"{GLOBAL_BATCH_SIZE - rest or 2 * parts} or {GLOBAL_BATCH_SIZE - rest + parts}"
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} won't do: {sharers} can share {nearest}")
    if args.deterministic:
        tf.config.experimental.enable_op_determinism()

    # 2. Load the data, split by split, so that only one is in memory twice.
    splits, datasets = ("train", "validation", "test"), list(create_datasets())
    sets = {split: load(datasets.pop(0), split) for split in splits}
    size = sets["train"][1]
    if GLOBAL_BATCH_SIZE > size:
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} is above the {size} training examples")
    STEPS_PER_EPOCH = size // GLOBAL_BATCH_SIZE
    last_step = EPOCHS * STEPS_PER_EPOCH
    for flag, last in (("warmup-steps", WARMUP_STEPS or 0), ("profile", max(args.profile or [0]))):
        if last > last_step:
            refuse(f"--{flag}: step {last} is past the last one of {EPOCHS} epochs, {last_step}")

    # 3. See what the run directory holds. The chief alone reads and writes it.
    config = {**vars(args), "strategy": strategy_name, "replicas": replicas, "workers": WORKERS}
    git = {"cwd": Path(__file__).parent, "shell": True, "capture_output": True, "text": True}
    commit = subprocess.run("git rev-parse HEAD", **git).stdout.strip() or None
    used = {x.__name__: x.__version__ for x in (tf, keras, np)} | {"python": sys.version.split()[0]}
    config |= {"train_examples": size, "versions": used, "git_commit": commit}
    own = ("run_dir", "timeout", "profile", "git_commit")  # each worker may have its own
    facts = {"examples": [x for _, x in sets.values()], **config}
    facts["train.py"] = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    tensors = tf.nest.flatten([x for x, _ in sets.values()]) if WORKERS > 1 else []
    facts["data"] = [hashlib.sha256(pickle.dumps(x.numpy())).hexdigest()[:8] for x in tensors]
    check_workers({key: x for key, x in facts.items() if key not in own})
    which = {"train": "last", "evaluate": args.export}.get(args.mode)
    path, values = ask_the_chief(find_checkpoint, which) if which else (None, {})
    if path and args.mode == "train":
        ask_the_chief(check_run, config)
    # {% if cookiecutter.task == "text_classification" %}
    if WORKER == 0 and args.mode == "train" and not path:
        (run_dir / "vocabulary.txt").unlink(missing_ok=True)  # of a start that saved nothing
        first = Path(args.init_checkpoint or "")
        for folder in [first, *first.parents][:4] if args.init_checkpoint else []:
            if all((folder / x).exists() for x in ("metrics.jsonl", "vocabulary.txt")):  # a run
                run_dir.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / "vocabulary.txt", run_dir)
    # {% endif %}

    # 4. Create the model and what belongs to it; restore it.
    if WORKER == 0 and args.mode == "train" and not path:  # to know it before hours of training
        export(Path(scratch, "export"), sets["test"][0])
    keras.utils.clear_session()  # so that layers count from 1
    keras.utils.set_random_seed(SEED)
    keras.config.set_dtype_policy(PRECISION)
    loss_object = create_loss_objects(strategy)
    train_metrics, validation_metrics, test_metrics = create_metrics(strategy)
    model, optimizer = create_model_and_optimizer(strategy)
    check_batch_normalization(replicas)
    if args.mode == "train" and args.init_checkpoint and not path:
        load_weights(args.init_checkpoint)
    with strategy.scope():  # in a traced step it is too late to create variables (keras#23085)
        for its in tf.nest.flatten(optimizer):
            if SCHEDULE != "constant" or WARMUP_STEPS != 0:
                its.learning_rate = Schedule(float(its.learning_rate.numpy()))
            its.use_ema, its.ema_momentum = bool(args.ema_momentum), args.ema_momentum
        if PRECISION == "mixed_float16":
            optimizer = tf.nest.map_structure(keras.optimizers.LossScaleOptimizer, optimizer)
        for each, its in zip(*map(tf.nest.flatten, (model, optimizer)), strict=True):
            its.build(each.trainable_variables)
        gradient_norm = keras.metrics.Mean(name="gradient_norm")
    if args.jit_compile:  # not the update: XLA can't sum over replicas on CPUs
        compute_gradients = tf.function(compute_gradients, jit_compile=True)
    if ACCUMULATION_STEPS > 1:
        compute_gradients = accumulate(compute_gradients)
    validation_set, test_set = (distribute(*sets[split], training=False) for split in splits[1:])
    if args.mode == "evaluate":
        restore(path, values, *(kind for kind in variables() if values[kind]))
        exchange_averages(args.export == "last")  # which the best one has as its weights
        say(f"test {describe(test(*test_set))}  of {path}")
        return 0
    if args.mode == "continuous_evaluate":
        return evaluate_continuously(*validation_set)
    state = {"step": 0, "best_loss": math.inf}
    if "skipped" in values or args.recover_from_nan:
        state |= {"recoveries": 0, "skipped": 0}
    state = {name: type(value)(values.get(name, value)) for name, value in state.items()}
    best_epoch = broadcast([0, *list_checkpoints("best")][-1]) // STEPS_PER_EPOCH
    step = first_step = state["step"]
    restore(path, values, *variables())
    values = {}  # they are as large as the model
    take_snapshot()
    ask_the_chief(open_run, config, step)
    if WORKER == 0:
        writers = {x: tf.summary.create_file_writer(f"{run_dir}/tensorboard/{x}") for x in splits}
    resumed = f", resumed at step {step} from {path}" if path else ""
    say(f"{strategy_name} on {replicas} × {DEVICE}, {STEPS_PER_EPOCH} steps an epoch{resumed}")

    # 5. Train, in loops of nearly equal length. Resumed at an epoch's end, it validates first.
    iterator, _ = distribute(*sets["train"], True, step + state.get("skipped", 0))
    loops = math.ceil(STEPS_PER_EPOCH / min(args.steps_per_loop, args.checkpoint_every_steps))
    started, trained, profiling = time.monotonic(), "", False
    epoch_ends = step > 0 and step % STEPS_PER_EPOCH == 0
    while True:
        if epoch_ends:
            exchange_averages()  # of no effect without --ema-momentum
            validated, epoch = validate(*validation_set), step // STEPS_PER_EPOCH
            best = {"step": snapshot["step"], "names": snapshot["names"]}
            best["model"] = copy_variables()[0]["model"]
            exchange_averages()
            if not math.isfinite(validated["loss"]):
                refuse(f"the validation loss is not finite after step {step}, not saved", code=1)
            is_best = validated["loss"] < state["best_loss"]
            save(best if is_best else None)
            if is_best:
                state["best_loss"], best_epoch = validated["loss"], epoch
            log(step, "validation", validated)
            row = f"epoch {epoch:3}/{EPOCHS}{' *' if is_best else '  '}"
            say(row, f"validation {describe(validated)}", trained and f"train\0{describe(trained)}")
            if step == last_step:
                break
            if args.patience and epoch - best_epoch >= args.patience:
                say(f"stopped: no lower validation loss than epoch {best_epoch}'s since")
                break
        nth = math.ceil((step % STEPS_PER_EPOCH + 1) * loops / STEPS_PER_EPOCH)  # of these is next
        end = step - step % STEPS_PER_EPOCH + nth * STEPS_PER_EPOCH // loops
        wanted = bool(args.profile) and step < args.profile[1] and args.profile[0] <= end
        if wanted and not profiling:
            tf.profiler.experimental.start(str(run_dir / "tensorboard" / "train"))
        elif profiling and not wanted:
            tf.profiler.experimental.stop()
        profiling = wanted
        trained = train(iterator, end - step)
        state["step"], epoch_ends = end, False
        if not (math.isfinite(trained["loss"]) and take_snapshot()):
            recover(step, end)
            continue
        log(end, "train", trained)
        if sys.stdout.isatty():
            seconds = (time.monotonic() - started) / (end - first_step) * (last_step - end)
            left, bar = datetime.timedelta(seconds=round(seconds)), "█" * (10 * end // last_step)
            say(f"step {end:,}/{last_step:,} {bar:░<10} {left} left", describe(trained), end="")
        saves = end // args.checkpoint_every_steps > step // args.checkpoint_every_steps
        step, epoch_ends = end, end % STEPS_PER_EPOCH == 0
        if saves and not epoch_ends:
            save()
    if profiling:
        tf.profiler.experimental.stop()
    if writing:
        writing.result()

    # 6. Test the best checkpoint, or the last.
    path, values = ask_the_chief(find_checkpoint, args.export)
    restore(path, values, *(kind for kind in variables() if values[kind]))
    exchange_averages(args.export == "last")
    tested = test(*test_set)
    if WORKER == 0:  # a run with a test line is finished once it has its export, not one of before
        shutil.rmtree(run_dir / "export", ignore_errors=True)
    log(step, "test", tested)
    say(f"test {describe(tested)}  of {path}")

    # 7. Export it.
    if WORKER == 0:
        export(run_dir / "export", sets["test"][0], [x.numpy() for x in variables()["model"]])
    say(f"written to {run_dir}: checkpoints, export, metrics.jsonl, tensorboard")
    sum_over_workers(0)  # who went before the others would be missed
    return 0


def run(argv=None):
    """Runs `main`, and ends the process with its exit code where that isn't 0."""
    sys.stdout.reconfigure(errors="replace")  # of × and █, on a terminal without them
    try:
        code = main(argv)
    except SystemExit as end:
        code = end.code
    except Exception as error:
        ending.acquire()
        code = explain(error)
        if code == 143:
            interrupt()
    if code:
        leave(code)  # Python's own end would wait for other workers
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    run()
