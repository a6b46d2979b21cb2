def parse_profile(text):
    """Return the first and the last step of --profile, or 0, 0 without it."""
    if text is None:
        return 0, 0
    match = re.fullmatch(r"(\d+),(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise WrongInput(f"--profile {text!r} is not FIRST,LAST; use two steps, such as 100,120")
    return int(match[1]), int(match[2])


def check_steps():
    """Raise WrongInput if a flag names a step after the last one."""
    _, last_profiled = parse_profile(config.profile)
    for flag_name, step in (("warmup-steps", config.warmup_steps or 0), ("profile", last_profiled)):
        if step > config.last_step:
            raise WrongInput(
                f"--{flag_name}: step {step} is after the last step of {config.epochs} epochs, "
                f"{config.last_step}; use a smaller one"
            )
