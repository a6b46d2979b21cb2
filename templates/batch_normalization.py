# {% if cookiecutter.__size == "complete" %}
def check_batch_normalization(layer):
    """Raise WrongInput for flags with which a layer would not see the whole batch.

    With one replica and whole batches, nothing calls this.
    """
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
    """A list of the losses that a layer adds, such as an activity regularizer's, for each thread.

    MirroredStrategy runs each replica in its own thread, and switches between threads at each sum
    over replicas, such as a BatchNormalization's. Keras's list is one for all threads, so the
    losses of replicas would mix in it.
    """


def prepare_layers_for_replicas():
    """Separate the losses of replicas, and have each BatchNormalization use the global batch.

    Print the number of these BatchNormalizations. By default, also in keras.applications, each
    replica uses the statistics of its own batch. Then moving averages differ between replicas, and
    a checkpoint contains only the first replica's. Frozen layers use no statistics of a batch.
    """
    count = 0
    for each in tf.nest.flatten(model):
        # Keras has no public way to list nested layers, or to replace their lists of losses.
        for layer in each._flatten_layers():
            layer._losses = ThreadLosses()
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
                # {% if cookiecutter.__size == "complete" %}
                check_batch_normalization(layer)
                # {% endif %}
                layer.synchronized = True
                count += 1
    if count:
        print_status(f"BatchNormalization layers synchronized over replicas: {count}")
