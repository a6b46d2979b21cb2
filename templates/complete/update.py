# {% include "schedule.py" %}


def accumulate(compute_gradients):
    """Returns compute_gradients that takes a batch in ACCUMULATION_STEPS parts, which need the
    memory of one: the mean of the parts is that of the whole, to rounding."""

    def compute_gradients_of_parts(batch):
        global GLOBAL_BATCH_SIZE
        shape = [ACCUMULATION_STEPS, -1]
        split = lambda x, i: None if x is None else tf.reshape(x, [*shape, *x.shape[1:]])[i]  # noqa: E731
        GLOBAL_BATCH_SIZE = args.global_batch_size // ACCUMULATION_STEPS  # for compute_loss
        sums = compute_gradients(tf.nest.map_structure(lambda x: split(x, 0), batch))
        sums = tf.nest.map_structure(tf.convert_to_tensor, sums)  # see `update`
        for i in tf.range(1, ACCUMULATION_STEPS):
            part = tf.nest.map_structure(lambda x, i=i: split(x, i), batch)
            sums = tf.nest.map_structure(tf.add, sums, compute_gradients(part))
        GLOBAL_BATCH_SIZE = args.global_batch_size
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
        gradient_norm.update_state(norm / scale)
        gradients, _ = tf.clip_by_global_norm(gradients, CLIP_NORM * scale, use_norm=norm)
        gradients = [x / context.num_replicas_in_sync for x in gradients]  # it sums once more
    elif PRECISION == "mixed_float16":  # an overflow on one replica, all have to see
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in gradients])
        overflows = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(~finite, tf.float32))
        nan = tf.where(overflows > 0, math.nan, 0.0)
        gradients = [gradient + tf.cast(nan, gradient.dtype) for gradient in gradients]
    optimizer.apply(gradients, variables)


def exchange_averages(wanted=True):
    """With --ema-momentum, swaps the weights and their averages, which are the optimizers'."""
    for each, its in zip(*map(tf.nest.flatten, (model, optimizer)), strict=True):
        its = getattr(its, "inner_optimizer", its)  # of the loss scale's
        averages = its._model_variables_moving_average if wanted and its.use_ema else []
        for average, weight in zip(averages, each.trainable_variables):  # noqa: B905
            raw = weight.numpy()
            with strategy.scope():
                weight.assign(average.numpy())
                average.assign(raw)


def check_batch_normalization(replicas):
    """Refuses flags under which a BatchNormalization would not see the batch."""
    layers = [layer for each in tf.nest.flatten(model) for layer in each._flatten_layers()]
    for x in (x for x in layers if isinstance(x, keras.layers.BatchNormalization)):
        if ACCUMULATION_STEPS > 1:
            refuse(f"--accumulation-steps: BatchNormalization {x.name!r} sees parts of a batch")
        if args.jit_compile and replicas > 1 and x.synchronized:
            refuse(f"--jit-compile: BatchNormalization {x.name!r} sums over {replicas} replicas")
