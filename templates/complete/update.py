def accumulate(compute_gradients):
    """Return `compute_gradients` that splits a batch into --accumulation-steps micro-batches.

    These need less memory. The mean over them is the batch's mean, up to rounding: `compute_loss`
    divides by GLOBAL_BATCH_SIZE, the size of a micro-batch. Each starts with the same seeds, as if
    one device drew the numbers of the batch. `draw_part` draws its part of them.
    """
    count = config.accumulation_steps

    def slice_batch(batch, index):
        """Return a micro-batch, and have `draw_part` draw its numbers.

        `index` is a tensor in a loop, so `state.micro_batch` has a meaning only while the gradients
        of the micro-batch are traced. Labels may be None.
        """
        state.micro_batch = (index, count)
        return tf.nest.map_structure(
            lambda x: None if x is None else tf.stack(tf.split(x, count))[index], batch
        )

    def accumulate_gradients(batch):
        seeds = [x for x in list_variables(model) if x.path.endswith("seed_generator_state")]
        first_values = list(map(tf.identity, seeds))
        # Tensors, not slices of an embedding: see `update`.
        sums = tf.nest.map_structure(tf.convert_to_tensor, compute_gradients(slice_batch(batch, 0)))
        for index in tf.range(1, count):
            for seed, first_value in zip(seeds, first_values, strict=True):
                seed.assign(first_value)
            sums = tf.nest.map_structure(tf.add, sums, compute_gradients(slice_batch(batch, index)))
        state.micro_batch = (0, 1)  # a whole batch, as in evaluation
        return tf.nest.map_structure(lambda total: total / count, sums)

    return accumulate_gradients


def update(optimizer, gradients, variables):
    """Apply one replica's gradients. The optimizer sums them over all replicas.

    The gradient of an embedding lists a row once for each use. Keras's Adam would square each part
    instead of their sum (keras#19992), so `convert_to_tensor` adds the parts up.
    """
    gradients = [*map(tf.convert_to_tensor, gradients)]
    if config.clip_norm:
        gradients = clip_gradients(optimizer, gradients)
    elif config.precision == "mixed_float16":
        gradients = share_overflow(gradients)
    optimizer.apply(gradients, variables)


def clip_gradients(optimizer, gradients):
    """Clip the gradients of the global batch to --clip-norm.

    The norm of one replica's gradients is not the batch's (tensorflow#33929), so they are
    summed first. The optimizer sums them again, so they are divided by the number of replicas.
    """
    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce("SUM", gradients)
    scale = optimizer.scale_loss(1.0)  # 1, except with mixed_float16
    norm = tf.linalg.global_norm(gradients)
    # With float16, an update whose gradients overflow is left out. Otherwise `train_epochs` finds
    # weights that are not finite.
    if tf.math.is_finite(norm):
        gradient_norm.update_state(norm / scale)
    gradients, _ = tf.clip_by_global_norm(gradients, config.clip_norm * scale, use_norm=norm)
    return [gradient / context.num_replicas_in_sync for gradient in gradients]


def share_overflow(gradients):
    """Return the gradients, or NaN on all replicas if one has an overflow, to skip the update."""
    context = tf.distribute.get_replica_context()
    norm = tf.linalg.global_norm(gradients)  # not finite if one of the gradients isn't
    is_finite = tf.math.is_finite(context.all_reduce("SUM", norm))
    return [tf.where(is_finite, gradient, math.nan) for gradient in gradients]


def pair_optimizers():
    """Return pairs of a model and its optimizer, which may be None."""
    return zip(*map(tf.nest.flatten, (model, optimizer)), strict=True)


def swap_ema_weights():
    """Swap the weights and their exponential moving average, which the optimizers hold.

    Do nothing if the optimizers have no `use_ema`, which --ema-momentum sets.
    """
    for each, its_optimizer in pair_optimizers():
        its_optimizer = getattr(its_optimizer, "inner_optimizer", its_optimizer)  # loss scaling
        # Before the first update, the averages are 0.
        if not its_optimizer or not its_optimizer.use_ema or its_optimizer.iterations == 0:
            continue
        # Keras's public finalize_variable_values overwrites the weights and can't be undone.
        for average, weight in zip(
            its_optimizer._model_variables_moving_average, each.trainable_variables, strict=False
        ):
            trained = weight.numpy()
            weight.assign(average)
            average.assign(trained)
