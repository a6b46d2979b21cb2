def evaluate_continuously(dataset, steps):
    """Evaluates the newest checkpoint of a run under way on the validation split, and each one that
    comes, but for those that come meanwhile; until the run is finished, or none has come for
    --timeout seconds."""
    folder = Path(args.run_dir)
    seen = max((line["step"] for line in read_log(run_dir)), default=0)
    since = time.monotonic()
    while True:
        finished = any(line["split"] == "test" for line in read_log(folder)[-1:])
        step = max(list_checkpoints("last"), default=0)
        path, values = folder / "checkpoints" / "last" / f"ckpt-{step}", None
        if step > seen:
            with contextlib.suppress(Exception):  # half written, or removed for newer ones
                values = read_checkpoint(path)
        if values:
            check_fit(path, values, "model")
            put(values, "model")
            for weight, average in zip(trainable_variables(), values["averages"], strict=False):
                weight.assign(average)
            state["step"] = step
            validated = evaluate(distributed_validation_step, validation_metrics, dataset, steps)
            run_dir.mkdir(exist_ok=True)
            log("validation", validated)
            say(f"validation {describe(validated)}  of {path}")
            seen, since = step, time.monotonic()
        elif finished:
            return
        elif args.timeout and time.monotonic() - since > args.timeout:
            say(f"no new checkpoint in {folder} for {args.timeout:g} seconds")
            return
        else:
            time.sleep(0.5)


def smoke(argv):
    """Trains, validates, saves, resumes, tests, exports, reloads and predicts, a few steps of
    each, in a folder that it removes. Returns the exit code."""
    folder = Path(f"{args.run_dir}-smoke")
    if folder.exists():
        refuse(f"--smoke would work in {folder} and remove it, but it exists; remove it first")
    # The last of a flag counts: there are six steps.
    argv += ["--run-dir", str(folder), "--epochs", "2", "--checkpoint-every-steps", "1"]
    argv += ["--warmup-steps", str(min(2, args.warmup_steps or 0))]
    argv += ["--profile", "1,2"] if args.profile else []
    try:
        for breaks_off in (True, False):  # each in a process of its own, like a run that was killed
            process = multiprocessing.get_context("spawn").Process(
                target=train_a_little, args=(argv, breaks_off)
            )
            process.start()
            process.join()
            if process.exitcode:
                return process.exitcode
        if WORKER == 0:
            batch = next(iter(create_datasets()[2].batch(2)))
            inputs = batch[0] if isinstance(batch, tuple) else batch
            features = preprocess(batch, tf.zeros([2, 2], tf.int32), training=False)[0]
            expected = keras.saving.load_model(folder / "export" / "model.keras")(features)
            served = tf.saved_model.load(str(folder / "export"))  # must outlive its `serve`
            for x, y in zip(*map(tf.nest.flatten, (served.serve(inputs), expected)), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    finally:
        for process in multiprocessing.active_children():  # when a signal came
            process.kill()
            process.join()
        if WORKER == 0:
            shutil.rmtree(folder, ignore_errors=True)
    say("smoke: trained, validated, saved, resumed, tested, exported, reloaded, predicted")
    return 0


def train_a_little(argv, breaks_off):
    """Runs `main` on three batches of each split; if told so, up to the first validation."""
    global create_datasets, validate
    whole = create_datasets
    create_datasets = lambda: [split.take(3 * GLOBAL_BATCH_SIZE) for split in whole()]  # noqa: E731
    if breaks_off:
        validate = lambda *_: leave(0)  # noqa: E731
    run(argv)
