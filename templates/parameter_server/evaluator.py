def evaluate_each(validation_set):
    """Is the evaluator: tells the validation of each checkpoint, until the run is finished."""
    on_signals(lambda *_: os._exit(143))
    say(f"waits for checkpoints of {run_dir}")
    step = 0
    while True:
        path = find_checkpoint("last")
        if path and int(path.name[5:]) > step:
            step = restore("last")
            say(f"step {step}", f"validation {describe(validate(*validation_set))}")
        elif path and {"split": "test", "step": step}.items() <= read_log()[-1].items():
            return 0
        time.sleep(1)
