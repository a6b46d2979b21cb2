class Adam(keras.optimizers.Adam):
    """Keras's Adam (with `weight_decay`, AdamW) as one operation; each reads the other's state."""

    def update_step(self, gradient, variable, learning_rate):
        if self.amsgrad:  # which the operation doesn't know
            return super().update_step(gradient, variable, learning_rate)
        m, v = (x[self._get_variable_index(variable)] for x in (self._momentums, self._velocities))
        step, rate = (tf.cast(x, variable.dtype) for x in (self.iterations + 1, learning_rate))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=m.value.handle, v=v.value.handle, lr=rate, grad=gradient,
            beta1=self.beta_1, beta2=self.beta_2, epsilon=self.epsilon,
            beta1_power=self.beta_1**step, beta2_power=self.beta_2**step,
        )  # fmt: skip
