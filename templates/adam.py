class Adam(keras.optimizers.Adam):
    """Keras's Adam as one TensorFlow operation per variable, which is faster.

    `weight_decay` makes it AdamW. Its state equals the state of Keras's Adam: each resumes the
    other's runs.
    """

    def apply(self, grads, trainable_variables=None):
        # Once per update: `update_step` is called for each variable, and would compute them again.
        step = tf.cast(self.iterations, "float32") + 1.0
        self.beta1_power = self.beta_1**step
        self.beta2_power = self.beta_2**step
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        if self.amsgrad or variable.dtype != "float32":
            # The operation has no amsgrad, and no bfloat16 on GPUs.
            return super().update_step(gradient, variable, learning_rate)
        # Keras has no public way to find a variable's moments; its own optimizers use this one.
        index = self._get_variable_index(variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].handle,
            v=self._velocities[index].handle,
            beta1_power=self.beta1_power,
            beta2_power=self.beta2_power,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )
