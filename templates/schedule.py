class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly from 0, then is constant or falls to 0 after all steps.

    It falls linearly or along a cosine (arxiv.org/abs/1608.03983). Keras's CosineDecay has a
    warm-up too, but no linear decay.
    """

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def __call__(self, step):
        # {% if cookiecutter.__size == "parameter_server" %}
        step = tf.cast(step, "float32")
        # {% else %}
        # Not the optimizer's step, which counts updates: the critic of a GAN has several per step.
        step = tf.identity(state.step_in_graph)
        # {% endif %}
        warmup_steps = config.warmup_steps
        # {% if cookiecutter.task == "text_classification" %}
        if warmup_steps is None:
            warmup_steps = config.last_step // 10
        # {% endif %}
        decay_steps = max(1, config.last_step - warmup_steps)
        left = 1 - tf.clip_by_value((step - warmup_steps) / decay_steps, 0, 1)
        decay = {"constant": 1.0, "linear": left, "cosine": (1 - tf.cos(math.pi * left)) / 2}
        warmup = step / max(1, warmup_steps)
        return self.learning_rate * tf.where(step < warmup_steps, warmup, decay[config.schedule])


def set_schedule(optimizer):
    """Give an optimizer the Schedule that `config` asks for.

    Raise WrongInput if the optimizer has a schedule of its own.
    """
    if config.schedule == "constant" and config.warmup_steps == 0:
        return
    if not isinstance(optimizer.learning_rate, keras.Variable):
        raise WrongInput(
            # {% if cookiecutter.__size == "complete" %}
            f"--schedule {config.schedule} --warmup-steps {config.warmup_steps} would replace the "
            "optimizer's own schedule; use --schedule constant --warmup-steps 0"
            # {% else %}
            f"schedule {config.schedule} of Config would replace the optimizer's own schedule; "
            "in Config, set schedule to constant and warmup_steps to 0"
            # {% endif %}
        )
    optimizer.learning_rate = Schedule(optimizer.learning_rate.numpy())
