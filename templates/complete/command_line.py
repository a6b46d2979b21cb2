# {% extends "command_line.py" %}
def parse_arguments(argv):
    # {% block mode %}
    modes, curves = ["train", "evaluate", "continuous_evaluate"], ["constant", "cosine", "linear"]
    precisions = ["float32", "mixed_bfloat16", "mixed_float16"]
    add("--mode", choices=modes, default="train", help="[%(default)s]")
    # {% endblock %}
    # {% block more_flags %}
    add("--warmup-steps", type=int, default=WARMUP_STEPS, help="to rise in [%(default)s]")
    add("--schedule", choices=curves, default=SCHEDULE, help="after that [%(default)s]")
    add("--precision", choices=precisions, default=PRECISION, help="of the layers [%(default)s]")
    add("--jit-compile", action=argparse.BooleanOptionalAction, default=False, help="use XLA")
    add("--accumulation-steps", type=int, default=1, help="parts of a step's batch [%(default)s]")
    add("--clip-norm", type=float, help="of the gradients of the whole batch, at most")
    add("--ema-momentum", type=float, help="evaluate and export averages of the weights")
    add("--patience", type=int, help="epochs without a lower validation loss, to stop")
    add("--recover-from-nan", type=int, default=0, help="times, from where the loop began [0]")
    add("--export", choices=["best", "last"], default="best", help="tested, exported [%(default)s]")
    add("--init-checkpoint", metavar="PATH", help="of the first weights: see README.md")
    add("--timeout", type=float, help="seconds to wait for workers, or checkpoints")
    add("--profile", metavar="FIRST,LAST", help="steps, of whole loops")
    # {% endblock %}
    for name, value in vars(args).items():
        # {% block limits %}
        least = -(name in ("seed", "warmup_steps", "recover_from_nan"))  # of these, 0 is one too
        most = 2**31 if type(value) is int else math.inf
        most = {"ema_momentum": 1, "replicas": 100}.get(name, most)
        # {% endblock %}
    # {% block check %}
    steps = re.fullmatch(r"(\d+),(\d+)", args.profile or "1,1")
    if not steps or not 1 <= int(steps[1]) <= int(steps[2]):
        refuse(f"--profile: {args.profile!r} is not FIRST,LAST: two steps from 1 up")
    args.profile = args.profile and [int(step) for step in steps.groups()]
    # {% endblock %}
