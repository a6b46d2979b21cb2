def main(argv=None):
    """Returns the exit code, 0. Wrong input (2) and a run that can't go on end by SystemExit."""
    global args, strategy, model, optimizer, loss_object, run_dir, state
    global train_metrics, validation_metrics, test_metrics, WORKER, WORKERS, DEVICE
    global GLOBAL_BATCH_SIZE, EPOCHS, LEARNING_RATE, SEED, STEPS_PER_EPOCH, managers, writers

    # 1. Read the flags, and find the devices.
    args = parse_arguments(argv)
    GLOBAL_BATCH_SIZE, EPOCHS = args.global_batch_size, args.epochs
    LEARNING_RATE, SEED, run_dir = args.learning_rate, args.seed, Path(args.run_dir)
    taken = (run_dir / "config.json").exists() and not (run_dir / "metrics.jsonl").exists()
    inner = (*run_dir.glob("checkpoints/**/"), *run_dir.glob("tensorboard/**/"))
    closed = [x for x in inner if not os.access(x, 5 if args.mode == "evaluate" else 7)]
    odd = not args.run_dir.isprintable() or set("[\\") & set(run_dir.as_posix())  # TensorFlow globs
    if taken or closed or odd or (run_dir / "train.py").is_dir() or "://" in args.run_dir:
        refuse(f"--run-dir {args.run_dir} has ://, [, \\, closed or others' files; name another")
    WORKER, addresses = read_tf_config()
    WORKERS = len(addresses)
    strategy, strategy_name, DEVICE = create_strategy()
    on_signals(lambda *_: os._exit(143))
    replicas = strategy.num_replicas_in_sync
    if (below := GLOBAL_BATCH_SIZE // replicas * replicas) < GLOBAL_BATCH_SIZE:
        nearest = f"{replicas} replicas can share {below or 2 * replicas} or {below + replicas}"
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} won't do: {nearest}")
    if args.deterministic:
        tf.config.experimental.enable_op_determinism()

    # 2. Load the data.
    splits = ("train", "validation", "test")
    sets = {split: load(x, split) for split, x in zip(splits, create_datasets(), strict=True)}
    size = sets["train"][1]
    if GLOBAL_BATCH_SIZE > size:
        refuse(f"--global-batch-size {GLOBAL_BATCH_SIZE} is above the {size} training examples")
    STEPS_PER_EPOCH = size // GLOBAL_BATCH_SIZE
    last_step = EPOCHS * STEPS_PER_EPOCH

    # 3. See what the run directory holds.
    config = {**vars(args), "strategy": strategy_name, "replicas": replicas, "workers": WORKERS}
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
    lines = check_run(config) if args.mode == "train" and path else []
    # {% if cookiecutter.task == "text_classification" %}
    if WORKER == 0 and args.mode == "train" and not path:  # of a start that saved nothing
        (run_dir / "vocabulary.txt").unlink(missing_ok=True)
    # {% endif %}

    # 4. Create the model and what belongs to it; restore it.
    keras.utils.set_random_seed(SEED)
    loss_object = create_loss_objects(strategy)
    train_metrics, validation_metrics, test_metrics = create_metrics(strategy)
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
    if args.mode == "evaluate":
        restore("best")
        say(f"test {describe(test(*test_set))}  of {path}")
        return 0
    step = first_step = restore("last")
    if WORKER == 0:
        # The lines of the log that come again are dropped; of an epoch's end, its validation's too.
        lines = [x for x in lines if (x["step"], x["split"] != "train") <= (step, False)]
        files = {"metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines)}
        files |= {"config.json": json.dumps(config), "train.py": Path(__file__).read_text("utf-8")}
        # {% if cookiecutter.task == "text_classification" %}
        files["vocabulary.txt"] = "\n".join(create_preprocessor().tokenizer.get_vocabulary())
        # {% endif %}
        run_dir.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():  # a kill leaves the old one, or the new one
            (run_dir / f"{name}.part").write_text(text, "utf-8")
            (run_dir / f"{name}.part").replace(run_dir / name)
        writers = {x: tf.summary.create_file_writer(f"{run_dir}/tensorboard/{x}") for x in splits}
    is_shared = sum_over_workers(step) == step * WORKERS  # and by now the chief has written
    if not is_shared or sum_over_workers(int((run_dir / "config.json").exists())) < WORKERS:
        refuse(f"--run-dir {run_dir} is not one folder for all workers; name one that they share")
    resumed = f", resumed at step {step} from {path}" if path else ""
    say(f"{strategy_name} on {replicas} × {DEVICE}, {STEPS_PER_EPOCH} steps an epoch{resumed}")

    # 5. Train, in loops of nearly equal length. Resumed at an epoch's end, it validates first.
    signals = []  # of which Python hears between loops
    on_signals(lambda number, _: signals.append(number))
    iterator, _ = distribute(*sets["train"], training=True, first_step=step)
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
        trained = train(iterator, end - step)
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
        stops = sum_over_workers(len(signals))  # SIGTERM or Ctrl-C, to any of them
        if stops or (saves and not epoch_ends):
            save("last")
        if stops:
            say(f"stopped, and saved at step {step}; the same command goes on")
            os._exit(143)  # Python's own end would wait for all workers

    # 6. Test the best checkpoint.
    on_signals(lambda *_: os._exit(143))  # all is saved
    if WORKER == 0:  # what kills have left, and an export of before: the run would seem finished
        for rest in (run_dir / "export", *run_dir.glob("checkpoints/*/*_temp")):
            shutil.rmtree(rest, ignore_errors=True)
    sum_over_workers(0)  # by now the chief has written it
    restore("best")
    tested = test(*test_set)
    log(step, "test", tested)
    say(f"test {describe(tested)}  of {find_checkpoint('best')}")

    # 7. Export it.
    if WORKER == 0:
        export(run_dir / "export", sets["test"][0])
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
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError):
        print("train.py: stopped: a worker is lost; start all workers again", file=sys.stderr)
        code = 143
    except Exception as error:  # about a file of the run, or a port; or a bug
        of_run = run_dir in Path(f"{getattr(error, 'filename', 0)}/x").parents[:-1]
        cause = f"--run-dir {run_dir}" if of_run else "gRPC server" in str(error) and "TF_CONFIG"
        told, code = f"train.py: error: {cause}: {error}; name another", 2 if cause else 1
        print(told, file=sys.stderr) if cause else sys.excepthook(*sys.exc_info())
    if code:
        time.sleep(WORKERS > 1)  # others may still ask this one for its part of the last sum
        os._exit(code)  # Python's own end would wait for other workers


if __name__ == "__main__":
    run()
