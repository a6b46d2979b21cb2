def reset_keras():
    """Have Keras name layers and draw random numbers as at the start of each run."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(config.seed)


# {% if cookiecutter.__size != "parameter_server" %}
# {% include "check_optimizers.py" %}


# {% endif %}
def create_training_state():
    """Create the model, the optimizer, the loss and the metrics."""
    global loss_object, train_metrics, validation_metrics, test_metrics, model, optimizer
    # {% if cookiecutter.__size == "parameter_server" %}
    global GLOBAL_BATCH_SIZE
    # {% else %}
    global GLOBAL_BATCH_SIZE, compute_gradients
    # {% endif %}
    GLOBAL_BATCH_SIZE = config.global_batch_size
    reset_keras()
    # The model is created first, as in `export`, so that it draws the same constants.
    model, optimizer = create_model_and_optimizer(strategy)
    loss_object = create_loss_objects(strategy)
    # {% if cookiecutter.__size == "parameter_server" %}
    train_metrics, validation_metrics, test_metrics = create_metrics(tf.distribute.get_strategy())
    for metric in train_metrics + validation_metrics + test_metrics:
        redirect_updates(metric)
    # {% else %}
    train_metrics, validation_metrics, test_metrics = create_metrics(strategy)
    # {% endif %}
    # {% if cookiecutter.__size != "parameter_server" %}
    if config.replicas > 1:
        check_optimizers()
        prepare_layers_for_replicas()
        share_random_numbers()
    # {% endif %}
    with strategy.scope():
        # {% if cookiecutter.__schedule and cookiecutter.__size != "parameter_server" %}
        state.step_in_graph = tf.Variable(0.0)  # float32: exact up to 2**24 steps
        # {% endif %}
        for each, its_optimizer in zip(*map(tf.nest.flatten, (model, optimizer)), strict=True):
            if its_optimizer:
                # {% if cookiecutter.__schedule %}
                set_schedule(its_optimizer)
                # {% endif %}
                if not each.trainable_variables:
                    raise WrongInput(
                        "create_model_and_optimizer: no weights to train; add a keras.Input, or "
                        "call the model on an example"
                    )
                # In a traced step it would be too late to create variables (keras#23085).
                its_optimizer.build(each.trainable_variables)
    # {% if cookiecutter.__size != "parameter_server" %}
    if config.jit_compile:  # gradients only: XLA can't sum over replicas on CPUs
        compute_gradients = tf.function(compute_gradients, jit_compile=True)
    # {% endif %}
    create_checkpoints()
