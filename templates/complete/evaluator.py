def evaluate_continuously(iterator, steps):
    """Evaluates the newest checkpoint of a run under way on the validation split, again and again,
    until the run is finished, or none has come for --timeout seconds."""
    global run_dir, writers
    folder, run_dir, writers = run_dir, run_dir / "evaluator", {}
    seen, since = max((line["step"] for line in read_log()), default=0), time.monotonic()
    while True:
        finished = any(line["split"] == "test" for line in read_log(folder)[-1:])
        paths, values = folder.glob("checkpoints/last/ckpt-*.index"), {}
        step = max((int(path.stem[5:]) for path in paths), default=0)
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
            break
        elif time.monotonic() - since > (args.timeout or math.inf):
            say(f"no new checkpoint in {folder} for {args.timeout:g} seconds")
            break
        time.sleep(0.5)
