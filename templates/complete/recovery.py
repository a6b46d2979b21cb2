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
