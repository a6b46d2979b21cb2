def say(text, end="\n"):
    """Prints on the chief; on a terminal, over the progress bar."""
    if WORKER == 0:
        print("\r\x1b[K" * sys.stdout.isatty() + text, end=end, flush=True)


def show_progress(epoch, values):
    if sys.stdout.isatty():
        share = state["step"] % STEPS_PER_EPOCH / STEPS_PER_EPOCH or 1
        bar = f"{'█' * round(30 * share):░<30}"
        speed = f"{values['examples_per_second']:,.0f} examples/s"
        line = f"epoch {epoch:3}/{EPOCHS}  {bar}  {describe(values)}  {speed}"
        say(line[: shutil.get_terminal_size().columns - 1], end="")  # a full line would wrap


def say_epoch(epoch, trained, validated, is_best):
    say(
        f"epoch {epoch:3}/{EPOCHS}  "
        + (f"train {describe(trained)}  " if trained else "")  # unknown where the run resumed
        + f"validation {describe(validated)}"
        + (f"  {trained['examples_per_second']:,.0f} examples/s" if trained else "")
        + "  best" * is_best
    )


times = {"all": 0.0, "waiting": 0.0}  # seconds, in the loops of this process


def advise_on_input(seconds, waited):
    """Says it when data become what training waits for."""
    was_told = times["waiting"] > max(1, times["all"] / 5)
    times["all"] += seconds
    times["waiting"] += waited
    if not was_told and times["waiting"] > max(1, times["all"] / 5):
        say(
            "more than a fifth of the time goes into waiting for data (input_wait in the log): let "
            "preprocess do less, and on whole batches, or give it more CPU cores"
        )


profiling: bool = False


def profile(first, last):
    """Begins the profile of --profile before its first step, of a loop that has steps `first` to
    `last`, and ends it before the first loop after its last."""
    global profiling
    wanted = bool(args.profile) and first <= args.profile[1] and args.profile[0] <= last
    if wanted != profiling:
        profiling = wanted
        if wanted:
            tf.profiler.experimental.start(str(run_dir / "tensorboard" / "train"))
        else:
            tf.profiler.experimental.stop()


def describe(values):
    """Returns the loss and the metrics of a line of the log as text."""
    others = {"step", "epoch", "split", "learning_rate", "gradient_norm"}
    others |= {"examples_per_second", "input_wait"}
    return " ".join(f"{name} {value:.4f}" for name, value in values.items() if name not in others)
