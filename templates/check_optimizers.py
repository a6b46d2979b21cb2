def check_optimizers():
    """Raise WrongInput for options with which an optimizer uses the gradients of one replica."""
    # {% if cookiecutter.__size == "complete" %}
    if config.replicas == 1:
        return
    # {% endif %}
    options = """
        clipnorm clipvalue global_clipnorm
        gradient_accumulation_steps ema_overwrite_frequency inner_optimizer
    """.split()
    for each in tf.nest.flatten(optimizer):
        for option in options:
            if getattr(each, option, None):
                # {% if cookiecutter.__size == "complete" %}
                raise WrongInput(
                    f"create_model_and_optimizer: {type(each).__name__} with {option} is for "
                    "one replica; use --clip-norm, --accumulation-steps or --ema-momentum"
                )
                # {% else %}
                raise WrongInput(
                    f"create_model_and_optimizer: {type(each).__name__} with {option} is for "
                    "one replica; leave it out"
                )
                # {% endif %}
