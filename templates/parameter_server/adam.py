class Adam(keras.optimizers.Adam):
    """Keras's Adam (with `weight_decay`, its AdamW), whose update is one operation, on the server
    that holds the variable, instead of a dozen that carry it to the worker. Either goes on with
    the other's checkpoints. Of an embedding, only the rows of the batch are updated, and moved."""

    def update_step(self, gradient, variable, learning_rate):
        if self.amsgrad:  # which the operation doesn't know
            return super().update_step(gradient, variable, learning_rate)
        m, v = (x[self._get_variable_index(variable)] for x in (self._momentums, self._velocities))
        step, rate = (tf.cast(x, variable.dtype) for x in (self.iterations + 1, learning_rate))
        p1, p2 = self.beta_1**step, self.beta_2**step
        if isinstance(gradient, tf.IndexedSlices):
            rows, index = gradient.values, gradient.indices
            new_m = self.beta_1 * tf.gather(m.value, index) + (1 - self.beta_1) * rows
            new_v = self.beta_2 * tf.gather(v.value, index) + (1 - self.beta_2) * rows**2
            rows = rate * tf.sqrt(1 - p2) / (1 - p1) * new_m / (tf.sqrt(new_v) + self.epsilon)
            variable.scatter_sub(tf.IndexedSlices(rows, index))
            m.value.scatter_update(tf.IndexedSlices(new_m, index))
            v.value.scatter_update(tf.IndexedSlices(new_v, index))
            return None
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=m.value.handle, v=v.value.handle, lr=rate, grad=gradient,
            beta1=self.beta_1, beta2=self.beta_2, epsilon=self.epsilon,
            beta1_power=p1, beta2_power=p2, use_locking=True,
        )  # fmt: skip
