class Adam(keras.optimizers.Adam):
    """Keras's Adam as one TensorFlow operation, which is faster. `weight_decay` makes it AdamW.

    Its state equals the state of Keras's Adam: each resumes the other's runs.
    """

    def update_step(self, gradient, variable, learning_rate):
        assert not self.amsgrad, "use keras.optimizers.Adam for amsgrad"
        # Keras has no public way to find a variable's moments; its own optimizers use this one.
        index = self._get_variable_index(variable)
        step = tf.cast(self.iterations + 1, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )
