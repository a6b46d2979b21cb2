def main(argv=None):
    """Returns the exit code: 0. Wrong input (2) and a failed run (1) end by SystemExit."""
    global args, strategy, model, optimizer, loss_object, compute_gradients
    global train_metrics, validation_metrics, test_metrics, averages, gradient_norm
    global state, copies, managers, saved_step, run_dir, scratch
    global GLOBAL_BATCH_SIZE, ACCUMULATION_STEPS, CLIP_NORM, PRECISION, SEED, INIT_CHECKPOINT
    global LEARNING_RATE, SCHEDULE, WARMUP_STEPS, EPOCHS, STEPS_PER_EPOCH, WORKER, WORKERS

    # 1. Read the flags, and find out where to run.
    argv = sys.argv[1:] if argv is None else argv
    args = parse_arguments(argv)
    GLOBAL_BATCH_SIZE, ACCUMULATION_STEPS = args.global_batch_size, args.accumulation_steps
    LEARNING_RATE, SCHEDULE, WARMUP_STEPS = args.learning_rate, args.schedule, args.warmup_steps
    CLIP_NORM, PRECISION, EPOCHS, SEED = args.clip_norm, args.precision, args.epochs, args.seed
    INIT_CHECKPOINT, run_dir = args.init_checkpoint, Path(args.run_dir)
    if "://" in args.run_dir:
        refuse(f"--run-dir {args.run_dir} is a URL; name a folder, where the storage is mounted")
    WORKER, addresses = read_tf_config()
    WORKERS = len(addresses)
    if args.mode == "continuous_evaluate" and WORKERS > 1:
        refuse("--mode continuous_evaluate is for one worker; unset TF_CONFIG for it")
    if args.smoke:
        return smoke([argument for argument in argv if argument != "--smoke"])
    # AutoGraph's files go there too: an end by a signal leaves it no time to remove them.
    tempfile.tempdir = scratch = tempfile.mkdtemp(prefix="train-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    strategy_name = choose_strategy()
    listen_for_signals()
    if WORKERS > 1:
        meet(addresses)

    # 2. See what --run-dir holds. Only the chief reads and writes it.
    versions = {"python": platform.python_version()}
    versions |= {package.__name__: package.__version__ for package in (tf, keras, np)}
    script = Path(__file__).read_bytes()
    path = values = None
    last_line = {"split": None}
    if WORKER == 0 and args.mode == "train":
        last_line = check_run_dir()
        path, values = find_start()
        if path:
            check_config(vars(args))
            check_end(last_line)
    elif WORKER == 0 and args.mode == "evaluate":
        path, values = find_checkpoint("best")
        if not path:
            refuse(f"--run-dir {args.run_dir} has no checkpoint to evaluate; train it first")
    flags = {f"--{k.replace('_', '-')}": v for k, v in vars(args).items()}
    own = ("--run-dir", "--timeout", "--profile")  # each worker may have its own
    facts = {**versions, "train.py": hashlib.sha256(script).hexdigest()[:12]}
    compare(**facts, **{key: value for key, value in flags.items() if key not in own})
    strategy = create_strategy(strategy_name)
    replicas = strategy.num_replicas_in_sync
    check_batch(replicas)
    if args.deterministic:
        tf.config.experimental.enable_op_determinism()

    # 3. Load the data.
    datasets, sets = list(create_datasets()), []
    for split in ("train", "validation", "test"):  # one by one, so that only one is there twice
        sets.append(load(datasets.pop(0), split))
    train_set, validation_set, test_set = sets
    examples = train_set[1]
    if GLOBAL_BATCH_SIZE > examples:
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} is above the {examples} training examples")
    STEPS_PER_EPOCH = examples // GLOBAL_BATCH_SIZE
    all_steps = EPOCHS * STEPS_PER_EPOCH
    # {% if cookiecutter.task == "text_classification" %}
    WARMUP_STEPS = all_steps // 10 if args.warmup_steps is None else args.warmup_steps
    # {% endif %}
    for flag, last in (("warmup-steps", WARMUP_STEPS), ("profile", max(args.profile or [0]))):
        if last > all_steps:
            refuse(f"--{flag}: step {last} is past the last one of {EPOCHS} epochs, {all_steps}")
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    has_git = shutil.which("git")
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() if has_git else ""
    config = {
        **vars(args),
        "strategy": strategy_name,
        "replicas": replicas,
        "workers": WORKERS,
        "train_examples": examples,
        "versions": versions,
        "git_commit": commit or None,
    }
    if args.mode == "train" and path:
        check_config({"train_examples": examples})
    # {% if cookiecutter.task == "text_classification" %}
    if args.mode != "train" and Path(args.run_dir, "config.json").exists():
        INIT_CHECKPOINT = INIT_CHECKPOINT or read_config()["init_checkpoint"]
    check_preset()
    # {% endif %}
    compare(examples=[size for _, size in sets])
    watch_peers()

    # 4. Create the model and what belongs to it; restore it.
    if args.mode == "train" and WORKER == 0 and not path:  # to know it before hours of training
        for problem in export(Path(scratch, "export"), test_set[0]):
            say(problem)
        shutil.rmtree(Path(scratch, "export"), ignore_errors=True)
    keras.utils.clear_session()  # so that layers count from 1
    keras.utils.set_random_seed(SEED)
    keras.config.set_dtype_policy(PRECISION)
    loss_object = create_loss_objects(strategy)
    train_metrics, validation_metrics, test_metrics = create_metrics(strategy)
    model, optimizer = create_model_and_optimizer(strategy)
    check_batch_normalization(replicas)
    if args.mode == "train" and WORKER == 0 and INIT_CHECKPOINT and not path:
        load_weights(INIT_CHECKPOINT)
    with strategy.scope():  # in a traced step it is too late to create variables (keras#23085)
        if PRECISION == "mixed_float16":
            scale = keras.optimizers.LossScaleOptimizer
            optimizer = tf.nest.map_structure(scale, optimizer)
        models, optimizers = tf.nest.flatten(model), tf.nest.flatten(optimizer)
        for each, its_optimizer in zip(models, optimizers, strict=True):
            its_optimizer.build(each.trainable_variables)
        if CLIP_NORM:
            gradient_norm = tf.Variable(  # which each replica assigns for itself
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        averaged = trainable_variables() if args.ema_momentum else []
        averages = [tf.Variable(x.value) for x in averaged]
    if args.jit_compile:
        compute_gradients = tf.function(compute_gradients, jit_compile=True)
    validation_batches = distribute(*validation_set, training=False), count_steps(validation_set[1])
    test_batches = distribute(*test_set, training=False), count_steps(test_set[1])
    if args.mode == "evaluate":
        if path:
            check_fit(path, values, "model")
        put(values, "model")
        say(f"test {describe(test(*test_batches))}  of {path}")
        return 0
    if args.mode == "continuous_evaluate":
        run_dir, state = Path(args.run_dir, "evaluator"), {"step": 0}
        evaluate_continuously(*validation_batches)
        return 0
    state = {
        "step": 0,
        "best_loss": math.inf,  # of the epochs before
        "best_epoch": 0,  # for --patience
        "recoveries": 0,  # of --recover-from-nan, how many there were
        "skipped": 0,  # and the steps whose data were left out
    }
    kinds = ("model", "optimizer", "averages")
    if path:
        check_fit(path, values, *kinds)
    put(values or variables(), *kinds)
    counters = [(values or {}).get(name, value) for name, value in state.items()]
    counters = broadcast([np.array(counters, "float64")])[0].tolist()
    state = {name: type(state[name])(x) for name, x in zip(state, counters, strict=True)}
    values = None  # which are as large as the model
    saved_step = step = state["step"]
    take_snapshot()
    if WORKER == 0:
        open_run_dir(config)
        copies, managers = create_managers()
    say(
        f"{strategy_name} on {replicas} × {device_type()}, TensorFlow {tf.__version__}\n"
        f"global batch of {GLOBAL_BATCH_SIZE} = {replicas} replica{'s' * (replicas > 1)} × "
        f"{GLOBAL_BATCH_SIZE // replicas} examples; {STEPS_PER_EPOCH} steps an epoch, which drops "
        f"{examples % GLOBAL_BATCH_SIZE} of {examples} examples, others each time"
    )
    if path:
        say(f"resumed at step {step}, from {path}")
    elif last_line["split"]:
        say("started anew, since nothing was saved yet")

    # 5. Train, loop by loop, and validate at the end of each epoch. A checkpoint of an epoch's end
    # is of before its validation: a run that resumes there validates again.
    first_step = step + state["skipped"]
    iterator = iter(distribute(*train_set, training=True, first_step=first_step))
    trained, epoch_ends = None, step > 0 and step % STEPS_PER_EPOCH == 0
    while True:
        epoch = math.ceil(step / STEPS_PER_EPOCH)
        if epoch_ends:
            validated = validate(*validation_batches)
            if not math.isfinite(validated["loss"]):
                fail(
                    f"the validation loss is not finite after step {step}, which was not saved; "
                    f"a --learning-rate below {LEARNING_RATE:g} is the usual cure"
                )
            is_best = validated["loss"] < state["best_loss"]
            save(is_best)
            if is_best:
                state.update(best_loss=validated["loss"], best_epoch=epoch)
            log("validation", validated)
            say_epoch(epoch, trained, validated, is_best)
            if epoch == EPOCHS:
                break
            if args.patience and epoch - state["best_epoch"] >= args.patience:
                say(f"stopped: no lower validation loss than epoch {state['best_epoch']}'s since")
                break
        end = end_of_loop(step)
        profile(step + 1, end)
        trained = train(iterator, end - step)
        state["step"] = end
        if not (math.isfinite(trained["loss"]) and take_snapshot()):
            state["step"] = step
            recover(step, end)
            epoch_ends = False
            continue
        log("train", trained)
        show_progress(math.ceil(end / STEPS_PER_EPOCH), trained)
        seconds = (end - step) * GLOBAL_BATCH_SIZE / trained["examples_per_second"]
        advise_on_input(seconds, trained["input_wait"] * seconds)
        saves = end // args.checkpoint_every_steps > step // args.checkpoint_every_steps
        step, epoch_ends = end, end % STEPS_PER_EPOCH == 0
        if saves and not epoch_ends:
            save()
    profile(math.inf, math.inf)  # has ended, unless the run has ended in it
    wait_for_save()

    # 6. Test the best checkpoint.
    path, values = find_checkpoint("best") if WORKER == 0 else (None, None)
    put(values, "model")
    tested = test(*test_batches)
    if WORKER == 0:  # a run with a test line is finished once it has its export, not one of before
        shutil.rmtree(run_dir / "export", ignore_errors=True)
    log("test", tested)
    say(f"test {describe(tested)}  of {path}")

    # 7. Export it.
    if WORKER == 0:
        weights = [x.numpy() for x in variables()["model"]]
        for problem in export(run_dir / "export", test_set[0], weights):
            say(problem)
    say(f"written to {run_dir}: checkpoints, export, metrics.jsonl, tensorboard")
    tell_peers(0)  # who goes now is not lost
    return 0


def end_of_loop(step):
    """Returns where the loop that begins at a step ends. Those of an epoch are as many as
    --steps-per-loop and --checkpoint-every-steps ask for, and of nearly equal length."""
    loops = math.ceil(STEPS_PER_EPOCH / min(args.steps_per_loop, args.checkpoint_every_steps))
    epoch_start = step // STEPS_PER_EPOCH * STEPS_PER_EPOCH
    ends = (epoch_start + STEPS_PER_EPOCH * n // loops for n in range(1, loops + 1))
    return next(end for end in ends if end > step)


def run(argv=None):
    """Runs `main`, and ends the process with its exit code."""
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
        leave(code)
    tell_peers(0)
    sys.exit(0)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # of × and █, on a terminal without them
    run()
