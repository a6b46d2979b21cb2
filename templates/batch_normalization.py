# {% if cookiecutter.__size == "complete" %}
def check_batch_normalization(layer):
    """Raise WrongInput for flags with which a layer would not see the whole batch."""
    if config.accumulation_steps > 1:
        raise WrongInput(
            f"--accumulation-steps {config.accumulation_steps}: BatchNormalization "
            f"{layer.name!r} would see parts of a batch; use 1"
        )
    if config.jit_compile:
        raise WrongInput(
            f"--jit-compile: XLA can't sum BatchNormalization {layer.name!r} over "
            f"{config.replicas} replicas; use --no-jit-compile"
        )


# {% endif %}
class ThreadLosses(threading.local, collections.UserList):
    """The losses that a layer adds, such as losses of activity regularizers, for each thread.

    Each replica runs in its own thread, and threads take turns at each sum over replicas. In
    Keras's own list, the losses of replicas would mix.
    """


def synchronize_batch_normalization():
    """Have each BatchNormalization use the statistics of the global batch. Print their number.

    Keras's default is a replica's own batch, also in keras.applications. Then the replicas' moving
    averages differ, and a checkpoint contains only the first replica's.
    """
    count = 0
    for each in tf.nest.flatten(model):
        for layer in each._flatten_layers():  # Keras has no public way to list nested layers
            layer._losses = ThreadLosses()
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
                # {% if cookiecutter.__size == "complete" %}
                check_batch_normalization(layer)
                # {% endif %}
                layer.synchronized = True
                count += 1
    if count:
        print_status(f"BatchNormalization layers synchronized over replicas: {count}")
