def whole_number(text, minimum=1):
    if not text.isdecimal() or not minimum <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} up")
    return int(text)


def positive_number(text, limit=math.inf):
    with contextlib.suppress(ValueError):
        if 0 < float(text) < limit:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and {limit}")


def step_range(text):
    steps = re.fullmatch(r"(\d+),(\d+)", text)
    if not steps or not 1 <= int(steps[1]) <= int(steps[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST,LAST: two steps from 1 up")
    return int(steps[1]), int(steps[2])


def parse_arguments(argv):
    modes = ["train", "evaluate", "continuous_evaluate"]
    precisions = ["float32", "mixed_bfloat16", "mixed_float16"]
    strategies = ["auto", "one_device", "mirrored", "multi_worker", "tpu"]
    natural_number = functools.partial(whole_number, minimum=0)
    fraction = functools.partial(positive_number, limit=1)
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.error = refuse  # argparse's own prints the usage first
    add = parser.add_argument
    add("--mode", choices=modes, default="train", help="[train]")
    add("--run-dir", default="run", help="what the run writes, and resumes from [%(default)s]")
    add("--strategy", choices=strategies, default="auto", help="[%(default)s]")
    add("--replicas", type=whole_number, help="share out the CPU among as many, to rehearse")
    add("--epochs", type=whole_number, default=EPOCHS, help="[%(default)s]")
    add("--global-batch-size", type=whole_number, default=GLOBAL_BATCH_SIZE, help="[%(default)s]")
    add(
        "--steps-per-loop",
        type=whole_number,
        default=100,
        help="to a line of the log, at most [100]",
    )
    add("--learning-rate", type=positive_number, default=LEARNING_RATE, help="[%(default)s]")
    # {% if cookiecutter.task == "text_classification" %}
    add("--warmup-steps", type=natural_number, help="steps that it rises [a tenth of all]")
    # {% else %}
    add("--warmup-steps", type=natural_number, default=WARMUP_STEPS, help="steps that it rises [0]")
    # {% endif %}
    add("--schedule", choices=["constant", "cosine", "linear"], default=SCHEDULE, help="after that")
    add("--seed", type=natural_number, default=SEED, help="[%(default)s]")
    add("--precision", choices=precisions, default=PRECISION, help="of the layers [%(default)s]")
    add("--jit-compile", action=argparse.BooleanOptionalAction, default=False, help="use XLA")
    add("--accumulation-steps", type=whole_number, default=1, help="parts of a step's batch [1]")
    add("--clip-norm", type=positive_number, help="of the gradients of the whole batch, at most")
    add("--ema-momentum", type=fraction, help="evaluate and export averages of the weights")
    add("--patience", type=whole_number, help="epochs without a lower validation loss, to stop")
    add("--checkpoint-every-steps", type=whole_number, default=1000, help="and each epoch [1000]")
    add(
        "--recover-from-nan",
        type=natural_number,
        default=0,
        metavar="N",
        help="go back to where the loop began, and on with other data, N times at most [0]",
    )
    add("--init-checkpoint", metavar="PATH", help="of the first weights: see README.md")
    add("--timeout", type=positive_number, help="seconds to wait for workers, or checkpoints")
    add("--profile", type=step_range, metavar="FIRST,LAST", help="steps, of whole loops")
    add("--deterministic", action="store_true", help="the same bits on GPUs too, but slower")
    add("--smoke", action="store_true", help="a few steps of everything; keeps nothing")
    return parser.parse_args(argv)
