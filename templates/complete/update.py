gradient_norm: tf.Variable  # with --clip-norm: [] float32, of the last step, before clipping


# {% include "schedule.py" %}


def accumulate(compute_gradients):
    """Returns compute_gradients that takes a batch in ACCUMULATION_STEPS parts, which need the
    memory of one: the mean of the parts is that of the whole, to rounding."""

    def compute_gradients_of_part(batch, i):
        global GLOBAL_BATCH_SIZE
        parts = [ACCUMULATION_STEPS, -1]
        split = lambda x: None if x is None else tf.reshape(x, [*parts, *x.shape[1:]])[i]  # noqa: E731
        GLOBAL_BATCH_SIZE = args.global_batch_size // ACCUMULATION_STEPS  # for compute_loss
        sums = compute_gradients(tf.nest.map_structure(split, batch))
        GLOBAL_BATCH_SIZE = args.global_batch_size
        return tf.nest.map_structure(tf.convert_to_tensor, sums)  # see `update`

    def compute_gradients_of_parts(batch):
        sums = compute_gradients_of_part(batch, 0)
        for i in tf.range(1, ACCUMULATION_STEPS):
            sums = tf.nest.map_structure(tf.add, sums, compute_gradients_of_part(batch, i))
        return tf.nest.map_structure(lambda x: x / ACCUMULATION_STEPS, sums)

    return compute_gradients_of_parts


def update(optimizer, gradients, variables):
    """Applies the sums of all replicas' gradients. An embedding's are IndexedSlices, which may have
    an index twice: Keras's Adam would square each (keras#19992), so they are summed before."""
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    context = tf.distribute.get_replica_context()
    if CLIP_NORM:  # the norm of one replica's own is not the batch's (tensorflow#33929)
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        scale = optimizer.scale_loss(1.0)  # of the gradients, with mixed_float16; otherwise 1
        norm = tf.linalg.global_norm(gradients)
        gradient_norm.assign(norm / scale)
        gradients, _ = tf.clip_by_global_norm(gradients, CLIP_NORM * scale, use_norm=norm)
        # The optimizer sums once more.
        gradients = [gradient / context.num_replicas_in_sync for gradient in gradients]
    elif PRECISION == "mixed_float16":  # an overflow on one replica, all have to see
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in gradients])
        overflows = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(~finite, tf.float32))
        nan = tf.where(overflows > 0, math.nan, 0.0)
        gradients = [gradient + tf.cast(nan, gradient.dtype) for gradient in gradients]
    optimizer.apply(gradients, variables)


def averages():
    """Returns (average, weight) of all trainable weights, with --ema-momentum. The averages are
    variables of the optimizers."""
    models, optimizers = tf.nest.flatten(model), tf.nest.flatten(optimizer)
    optimizers = [getattr(x, "inner_optimizer", x) for x in optimizers]
    averages = [x._model_variables_moving_average for x in optimizers if x.use_ema]
    weights = [x for each in models for x in each.trainable_variables]
    return list(zip(tf.nest.flatten(averages), weights, strict=bool(averages)))


def exchange_averages():
    """Puts the averages where the weights are, and the weights where the averages are."""
    for average, weight in averages():
        raw = weight.numpy()
        with strategy.scope():
            weight.assign(average.numpy())
            average.assign(raw)


def check_batch_normalization(replicas):
    """Refuses flags under which a BatchNormalization would not see the batch."""
    layers = [layer for each in tf.nest.flatten(model) for layer in each._flatten_layers()]
    for x in (x for x in layers if isinstance(x, keras.layers.BatchNormalization)):
        if ACCUMULATION_STEPS > 1:
            why = "would take its statistics of parts of a batch; LayerNormalization doesn't"
            refuse(f"--accumulation-steps: BatchNormalization {x.name!r} {why}")
        if args.jit_compile and replicas > 1 and x.synchronized:
            why = f"is synchronized over {replicas} replicas, which XLA can't compile"
            refuse(f"--jit-compile: BatchNormalization {x.name!r} {why}")
