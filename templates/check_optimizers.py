def check_optimizers():
    """Raise WrongInput for options of optimizers that fail or are wrong on several replicas.

    Keras clips the gradients of each replica, and a LossScaleOptimizer, which has an
    `inner_optimizer`, sees the overflow of one replica. With the other options, Keras fails.
    """
    # {% if cookiecutter.__size == "complete" %}
    if config.replicas == 1:
        return
    # {% endif %}
    for each in tf.nest.flatten(optimizer):
        for option in """
            clipnorm clipvalue global_clipnorm
            gradient_accumulation_steps ema_overwrite_frequency inner_optimizer
        """.split():
            if getattr(each, option, None):
                # {% if cookiecutter.__size == "complete" %}
                raise WrongInput(
                    f"create_model_and_optimizer: {type(each).__name__} with {option} is for one "
                    "replica; use --clip-norm, --accumulation-steps, --ema-momentum or --precision"
                )
                # {% else %}
                raise WrongInput(
                    f"create_model_and_optimizer: {type(each).__name__} with {option} is for "
                    "one replica; leave it out"
                )
                # {% endif %}
