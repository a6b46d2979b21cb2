def parse_arguments(argv):
    style = argparse.RawDescriptionHelpFormatter
    epilog = "There is no --strategy and no --replicas: TF_CONFIG says what takes part."
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=epilog, formatter_class=style, allow_abbrev=False
    )
    parser.error = refuse  # argparse's own prints the usage first
    add = parser.add_argument
    add("--mode", choices=["train", "evaluate"], default="train", help="[%(default)s]")
    add("--run-dir", default="run", help="what the run writes, and resumes from [%(default)s]")
    add("--epochs", type=int, default=EPOCHS, help="[%(default)s]")
    add("--global-batch-size", type=int, default=GLOBAL_BATCH_SIZE, help="of a step [%(default)s]")
    add("--steps-per-loop", type=int, default=100, help="at most [%(default)s]")
    add("--checkpoint-every-steps", type=int, default=1000, help="and each epoch [%(default)s]")
    add("--learning-rate", type=float, default=LEARNING_RATE, help="[%(default)s]")
    add("--seed", type=int, default=SEED, help="[%(default)s]")
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        least, most = -(name == "seed"), 2**31 if type(value) is int else math.inf
        if type(value) in (int, float) and not least < value < most:
            refuse(f"--{name.replace('_', '-')}: '{value}' is not between {least} and {most}")
    return args
