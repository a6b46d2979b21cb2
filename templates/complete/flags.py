def check_steps():
    """Raise WrongInput if a flag names a step after the last one."""
    for flag_name, step in (
        # {% if cookiecutter.task == "text_classification" %}
        ("warmup-steps", config.warmup_steps or 0),
        # {% else %}
        ("warmup-steps", config.warmup_steps),
        # {% endif %}
        ("profile", config.profile[1]),
    ):
        if step > config.last_step:
            raise WrongInput(
                f"--{flag_name}: step {step} is after the last step of {config.epochs} epochs, "
                f"{config.last_step}; use a smaller one"
            )
