def read_weights(path):
    """Returns (name, value) of the weights of a run (its best), of a checkpoint or .keras file."""
    folder, outer, pairs = Path(path), f"{tf.nest.flatten(model)[0].name}/", []
    try:
        if (folder / "checkpoints").is_dir() or Path(f"{path}.index").exists():
            best, last = folder / "checkpoints" / "best", folder / "checkpoints" / "last"
            newest = tf.train.latest_checkpoint(best) or tf.train.latest_checkpoint(last)
            values = read_checkpoint(newest or path)
            return [(name.decode(), values["model"][i]) for i, name in enumerate(values["names"])]
        folder /= "model.keras" * folder.is_dir()  # of an export, but none of its own code is run
        for x in keras.saving.load_model(folder, compile=False).variables:
            name = x.path.removeprefix(outer)  # Keras leaves it out when it loads a Sequential
            pairs += [(name, x.numpy()), (outer + name, x.numpy())]
        return pairs
    except Exception as error:  # of a dozen kinds, by what is missing or damaged
        reason = str(error).partition("\n")[0]
        refuse(f"--init-checkpoint {path} is no run, checkpoint or .keras file ({reason})")


def load_weights(path):
    """Gives the model the weights of a path, where name and shape are the same. Says which."""
    weights = [x for each in tf.nest.flatten(model) for x in each.weights]
    pairs, loaded = ask_the_chief(read_weights, path), 0
    for weight in weights:
        fits = [i for i, x in enumerate(pairs) if (x[0], x[1].shape) == (weight.path, weight.shape)]
        say(f"  {'loaded' if fits else 'left new, for its name or shape'}: {weight.path}")
        loaded += bool(fits)
        with strategy.scope():
            for i in fits[:1]:  # two layers may have one name: the first to the first
                weight.assign(pairs.pop(i)[1])
    if not loaded:
        refuse(f"--init-checkpoint {path} has no weight that fits, of {weights[0].path}, …")
    say(f"{path}: loaded {loaded} of {len(weights)} weights")


def recover(first, last):
    """Goes back to where a loop began, whose loss is not finite, and on with the data that follow
    its own; or stops, unless --recover-from-nan allows it once more."""
    problem = f"the loss or a weight is not finite between steps {first} and {last}"
    if state.get("recoveries", 0) >= args.recover_from_nan:
        cures = f"a --learning-rate below {LEARNING_RATE:g}, --clip-norm, --precision float32"
        refuse(f"{problem}, not saved; the usual cures are {cures}", code=1)
    state["step"] = first
    state["recoveries"] += 1
    state["skipped"] += last - first
    values = {kind: dict(enumerate(x.numpy() for x in snapshot[kind])) for kind in variables()}
    restore(run_dir, broadcast(values), *variables())  # of random states, only the chief's is right
    count = f"recovery {state['recoveries']} of {args.recover_from_nan}"
    say(f"{problem}; {count}: back at step {first}, and on with other data")


def evaluate_continuously(dataset, steps):
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
            validated = validate(dataset, steps)
            log(step, "validation", validated)
            say(f"validation {describe(validated)}  of {path}")
            seen, since = step, time.monotonic()
        elif finished:
            break
        elif time.monotonic() - since > (args.timeout or math.inf):
            say(f"no new checkpoint in {folder} for {args.timeout:g} seconds")
            break
        time.sleep(0.5)
