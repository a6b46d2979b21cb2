def evaluate_continuously(iterator, steps):
    """Validates each new checkpoint of a run, until it is finished or --timeout has passed."""
    global run_dir, writers
    folder, run_dir, writers = run_dir, run_dir / "evaluator", {}
    seen, since = max((line["step"] for line in read_log()), default=0), time.monotonic()
    while True:
        finished = any(line["split"] == "test" for line in read_log(folder)[-1:])
        paths, values = folder.glob("checkpoints/last/ckpt-*.index"), {}
        step = max((int(x.stem[5:]) for x in paths if x.stem[5:].isdigit()), default=0)
        path = folder / "checkpoints" / "last" / f"ckpt-{step}"
        if step > seen:
            with contextlib.suppress(Exception):  # not whole yet, or removed for newer ones
                values = read_checkpoint(path)
        if values:
            curves = f"{run_dir}/tensorboard/validation"
            writers = writers or {"validation": tf.summary.create_file_writer(curves)}
            restore(path, values, *variables())
            exchange_averages()
            validated = validate(iterator, steps)
            log(step, "validation", validated)
            say(f"validation {describe(validated)}  of {path}")
            seen, since = step, time.monotonic()
        elif finished:
            return 0
        elif time.monotonic() - since > (args.timeout or math.inf):
            say(f"no new checkpoint in {folder} for {args.timeout:g} seconds")
            return 0
        time.sleep(0.5)
