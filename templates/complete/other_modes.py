def load_weights(path):
    """Gives the model the weights of a run (its best), of one of its checkpoints, or of a .keras
    file, where path and shape are the same. Says which."""
    weights = [x for each in tf.nest.flatten(model) for x in each.weights]
    folder, outer, pairs = Path(path), f"{tf.nest.flatten(model)[0].name}/", []
    try:
        if (folder / "checkpoints").is_dir() or Path(f"{path}.index").exists():
            best, last = folder / "checkpoints" / "best", folder / "checkpoints" / "last"
            newest = tf.train.latest_checkpoint(best) or tf.train.latest_checkpoint(last)
            values = read_checkpoint(newest or path)
            names = [name.decode() for name in values["names"]]
            pairs = [(name, values["model"][i]) for i, name in enumerate(names)]
        else:
            if (folder / "saved_model.pb").exists():  # whose weights have no paths
                folder /= "model.keras"
            for x in keras.saving.load_model(folder, compile=False).variables:
                name = x.path.removeprefix(outer)  # Keras leaves it out when it loads a Sequential
                pairs += [(name, x.numpy()), (outer + name, x.numpy())]
    except Exception as error:  # of a dozen kinds, by what is missing or damaged
        reason = str(error).partition("\n")[0]
        refuse(f"--init-checkpoint {path} is no run, checkpoint or .keras file ({reason})")
    values, said, fit = {}, [], 0
    for name, value in pairs:  # two layers may have one name: the first to the first
        values.setdefault(name, []).append(value)
    for weight in weights:
        value = values[weight.path].pop(0) if values.get(weight.path) else None
        if value is None:
            said.append(f"  left new: {weight.path}")
        elif value.shape != weight.shape:
            said.append(f"  skipped for its shape: {weight.path} {value.shape}, {weight.shape}")
        else:
            said.append(f"  loaded: {weight.path}")
            fit += 1
            with strategy.scope():
                weight.assign(value)
    if not fit:
        refuse(f"--init-checkpoint {path} has no weight that fits, of {weights[0].path}, …")
    say("\n".join([f"{path}: loaded {fit} of {len(weights)} weights", *said]))


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
    restore({kind: [np.asarray(x) for x in snapshot[kind]] for kind in variables()}, *variables())
    count = f"recovery {state['recoveries']} of {args.recover_from_nan}"
    say(f"{problem}; {count}: back at step {first}, and on with other data")


def evaluate_continuously(dataset, steps):
    """Evaluates the newest checkpoint of a run under way on the validation split, again and again,
    until the run is finished, or none has come for --timeout seconds."""
    global run_dir
    folder, run_dir = run_dir, run_dir / "evaluator"
    seen = max((line["step"] for line in read_log(run_dir)), default=0)
    since = time.monotonic()
    while True:
        finished = any(line["split"] == "test" for line in read_log(folder)[-1:])
        paths, values = folder.glob("checkpoints/last/ckpt-*.index"), None
        step = max((int(path.stem[5:]) for path in paths), default=0)
        path = folder / "checkpoints" / "last" / f"ckpt-{step}"
        if step > seen:
            with contextlib.suppress(Exception):  # removed for newer ones
                values = read_checkpoint(path)
        if values:
            check_fit(path, values, *variables())
            restore(values, *variables())
            exchange_averages()
            validated = validate(dataset, steps)
            run_dir.mkdir(exist_ok=True)
            log(step, "validation", validated)
            say(f"validation {describe(validated)}  of {path}")
            seen, since = step, time.monotonic()
        elif finished:
            return
        elif args.timeout and time.monotonic() - since > args.timeout:
            say(f"no new checkpoint in {folder} for {args.timeout:g} seconds")
            return
        else:
            time.sleep(0.5)


profiling: bool = False


def profile(first, last):
    """Begins the profile of --profile before its first step, of a loop that has steps `first` to
    `last`, and ends it before the first loop after its last."""
    global profiling
    wanted = bool(args.profile) and first <= args.profile[1] and args.profile[0] <= last
    if wanted and not profiling:
        tf.profiler.experimental.start(str(run_dir / "tensorboard" / "train"))
    elif profiling and not wanted:
        tf.profiler.experimental.stop()
    profiling = wanted
