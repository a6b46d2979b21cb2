def parse_arguments(argv):
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    parser.error = refuse  # argparse's own prints the usage first
    add, strategies = parser.add_argument, ["auto", "one_device", "mirrored", "multi_worker", "tpu"]
    # {% block mode %}
    add("--mode", choices=["train", "evaluate"], default="train", help="[%(default)s]")
    # {% endblock %}
    add("--run-dir", default="run", help="what the run writes, and resumes from [%(default)s]")
    add("--strategy", choices=strategies, default="auto", help="[%(default)s]")
    add("--replicas", type=int, help="share out the CPU among as many, to rehearse")
    add("--epochs", type=int, default=EPOCHS, help="[%(default)s]")
    add("--global-batch-size", type=int, default=GLOBAL_BATCH_SIZE, help="[%(default)s]")
    add("--steps-per-loop", type=int, default=100, help="at most [%(default)s]")
    add("--checkpoint-every-steps", type=int, default=1000, help="and each epoch [%(default)s]")
    add("--learning-rate", type=float, default=LEARNING_RATE, help="[%(default)s]")
    add("--seed", type=int, default=SEED, help="[%(default)s]")
    add("--deterministic", action="store_true", help="the same bits on GPUs too, but slower")
    # {% block more_flags %}
    # {% endblock %}
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        # {% block limits %}
        least, most = -(name == "seed"), 2**31 if type(value) is int else math.inf
        most = 100 if name == "replicas" else most  # each a device of TensorFlow's
        # {% endblock %}
        if type(value) in (int, float) and not least < value < most:
            refuse(f"--{name.replace('_', '-')}: '{value}' is not between {least} and {most}")
    # {% block check %}
    # {% endblock %}
    return args
