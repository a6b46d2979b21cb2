class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Rises from 0 to a learning rate in WARMUP_STEPS; then stays, or falls to 0 at the end of the
    last epoch, in a line or in half a wave of the cosine (arxiv.org/abs/1608.03983)."""

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def __call__(self, step):
        step, all_steps = tf.cast(step, tf.float32), EPOCHS * STEPS_PER_EPOCH
        warmup = all_steps // 10 if WARMUP_STEPS is None else WARMUP_STEPS
        left = 1 - tf.clip_by_value((step - warmup) / max(1, all_steps - warmup), 0, 1)
        share = {"constant": 1.0, "linear": left, "cosine": (1 - tf.cos(math.pi * left)) / 2}
        return self.learning_rate * tf.where(step < warmup, step / max(1, warmup), share[SCHEDULE])
