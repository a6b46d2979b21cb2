def reset_keras():
    """Have Keras name layers and draw random numbers as at the start of each run."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)


# {% include "check_optimizers.py" %}


def create_training_state(datasets, checkpoint):
    """Create the model, optimizer, loss and metrics. Try to export the model of a new run."""
    global loss_object, train_metrics, validation_metrics, test_metrics, model, optimizer
    global gradient_norm, GLOBAL_BATCH_SIZE
    GLOBAL_BATCH_SIZE = config.global_batch_size // config.accumulation_steps
    reset_keras()
    # The model is created first, as in `export`, so that it draws the same constants.
    model, optimizer = create_model_and_optimizer(strategy)
    loss_object = create_loss_objects(strategy)
    train_metrics, validation_metrics, test_metrics = create_metrics(strategy)
    check_optimizers()
    if config.replicas * config.accumulation_steps > 1:
        prepare_layers_for_replicas()
        share_random_numbers()
    if config.mode == "train" and not checkpoint:  # a new run
        if config.init_checkpoint:
            load_initial_weights(config.init_checkpoint)
        if config.worker_index == 0:
            # Report now what can't be exported at the end of the run.
            with tempfile.TemporaryDirectory() as folder:
                export(Path(folder, "export"), datasets["test"][0])
    with strategy.scope():
        state.step_in_graph = tf.Variable(0.0)  # float32: exact up to 2**24 steps
        optimizer = tf.nest.map_structure(configure_optimizer, optimizer)
        for each, its_optimizer in pair_optimizers():
            # In a traced step it would be too late to create variables (keras#23085).
            if its_optimizer:
                if not each.trainable_variables:
                    raise WrongInput(
                        "create_model_and_optimizer: no weights to train; add a keras.Input, or "
                        "call the model on an example"
                    )
                its_optimizer.build(each.trainable_variables)
        gradient_norm = keras.metrics.Mean(name="gradient_norm")
    wrap_compute_gradients()


def configure_optimizer(each):
    """Return an optimizer with the schedule, the EMA and the loss scale that the flags ask for.

    Return None for a model without an optimizer.
    """
    if not each:
        return None
    if hasattr(each, "inner_optimizer") or (config.ema_momentum and each.built):
        raise WrongInput(
            "create_model_and_optimizer: return no LossScaleOptimizer, and with --ema-momentum no "
            "built optimizer; for loss scaling, use --precision mixed_float16"
        )
    set_schedule(each)
    if config.ema_momentum:
        each.use_ema = True
        each.ema_momentum = config.ema_momentum
    if config.precision == "mixed_float16":
        return keras.optimizers.LossScaleOptimizer(each)
    return each


def wrap_compute_gradients():
    """Compile `compute_gradients`, and accumulate over micro-batches, if flags ask for it."""
    global compute_gradients
    if config.accumulation_steps > 1:
        compute_gradients = accumulate(compute_gradients)
    if config.jit_compile:  # gradients only: XLA can't sum over replicas on CPUs
        compute_gradients = tf.function(compute_gradients, jit_compile=True)
