averages: list[tf.Variable] = []  # with --ema-momentum: of the trainable weights, in their order
gradient_norm: tf.Variable  # with --clip-norm: [] float32, of the last step, before clipping


def trainable_variables():
    return [x for each in tf.nest.flatten(model) for x in each.trainable_variables]


def learning_rate():
    """Returns what an optimizer takes: LEARNING_RATE, or the way up to it and down from it."""
    return LEARNING_RATE if SCHEDULE == "constant" and not WARMUP_STEPS else Schedule()


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Rises from 0 to LEARNING_RATE in WARMUP_STEPS; then stays, or falls to 0 at the end of the
    last epoch, in a line or in half a wave of the cosine (arxiv.org/abs/1608.03983)."""

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        steps = max(1, EPOCHS * STEPS_PER_EPOCH - WARMUP_STEPS)
        left = 1 - tf.clip_by_value((step - WARMUP_STEPS) / steps, 0, 1)
        share = {"constant": 1.0, "linear": left, "cosine": (1 - tf.cos(math.pi * left)) / 2}
        rising = step / max(1, WARMUP_STEPS)
        return LEARNING_RATE * tf.where(step < WARMUP_STEPS, rising, share[SCHEDULE])


def accumulate(batch):
    """Returns the sums of the losses and of the gradients of the parts of a batch, which take the
    memory of one part: those of the whole batch, to rounding."""

    def compute_gradients_of_part(i):
        parts = [ACCUMULATION_STEPS, -1]
        split = lambda x: None if x is None else tf.reshape(x, [*parts, *x.shape[1:]])[i]  # noqa: E731
        loss, gradients = compute_gradients(tf.nest.map_structure(split, batch))
        return loss, tf.nest.map_structure(tf.convert_to_tensor, gradients)  # see `update`

    sums = compute_gradients_of_part(0)
    for i in tf.range(1, ACCUMULATION_STEPS):
        sums = tf.nest.map_structure(tf.add, sums, compute_gradients_of_part(i))
    return sums


def update(optimizer, gradients, variables):
    """Has an optimizer apply the sums of all replicas' gradients to variables.

    Those of an embedding are IndexedSlices, where an index comes once for each time that it was
    looked up. Keras's Adam would square each by itself (keras#19992), so they are summed before.
    """
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
        overflows = [tf.reduce_any(~tf.math.is_finite(gradient)) for gradient in gradients]
        overflow = tf.cast(tf.reduce_any(overflows), tf.float32)
        overflow = context.all_reduce(tf.distribute.ReduceOp.SUM, overflow) > 0
        nan = tf.where(overflow, math.nan, 0.0)
        gradients = [gradient + tf.cast(nan, gradient.dtype) for gradient in gradients]
    optimizer.apply(gradients, variables)


def update_averages():
    """Moves the averages, after each step, on towards the weights."""
    momentum = args.ema_momentum

    def move(average, weight):
        average.assign(momentum * average + (1 - momentum) * weight)

    for average, weight in zip(averages, trainable_variables(), strict=bool(averages)):
        strategy.extended.update(average, move, args=(weight.value,))


def exchange_averages():
    """Puts the averages where the weights are, and the weights where the averages are."""
    for average, weight in zip(averages, trainable_variables(), strict=bool(averages)):
        raw = weight.numpy()
        with strategy.scope():
            weight.assign(average.numpy())
            average.assign(raw)


def check_batch_normalization(replicas):
    """Refuses flags under which a BatchNormalization would not see the batch."""
    layers = [layer for each in tf.nest.flatten(model) for layer in each._flatten_layers()]
    found = [x for x in layers if isinstance(x, keras.layers.BatchNormalization)]
    if found and ACCUMULATION_STEPS > 1:
        refuse(
            f"--accumulation-steps: BatchNormalization {found[0].name!r} would take its statistics "
            "of parts of a batch; leave the flag out, or take LayerNormalization"
        )
    if args.jit_compile and replicas > 1 and any(layer.synchronized for layer in found):
        refuse(
            f"--jit-compile: XLA can't compile a BatchNormalization, {found[0].name!r}, that is "
            f"synchronized over {replicas} replicas; leave the flag out"
        )
