class Adam(keras.optimizers.Adam):
    """Keras's Adam as one TensorFlow operation per variable, on the server that holds it.

    `weight_decay` makes it AdamW. Its state equals Keras's Adam's: each resumes the other's runs.
    Of a table, a step sends only the gradients of its rows to the server, and updates only these.
    """

    def update_step(self, gradient, variable, learning_rate):
        if self.amsgrad or variable.dtype != "float32":
            # The operation has no amsgrad, and no bfloat16 on GPUs.
            return super().update_step(tf.convert_to_tensor(gradient), variable, learning_rate)
        # Keras has no public way to find a variable's moments; its own optimizers use this one.
        index = self._get_variable_index(variable)
        first_moment = self._momentums[index].value
        second_moment = self._velocities[index].value
        # Not `self.iterations`, which all workers overwrite; see `update`.
        step = tf.cast(traced["step"], "float32") + 1.0
        beta1_power = self.beta_1**step
        beta2_power = self.beta_2**step
        if not isinstance(gradient, tf.IndexedSlices):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=first_moment.handle,
                v=second_moment.handle,
                beta1_power=beta1_power,
                beta2_power=beta2_power,
                lr=learning_rate,
                beta1=self.beta_1,
                beta2=self.beta_2,
                epsilon=self.epsilon,
                grad=gradient,
                use_locking=True,  # several workers update it
            )
            return None
        # No operation updates only the rows of an embedding that the gradient has.
        rows = gradient.values
        index = gradient.indices
        first = self.beta_1 * tf.gather(first_moment, index) + (1 - self.beta_1) * rows
        second = self.beta_2 * tf.gather(second_moment, index) + (1 - self.beta_2) * rows**2
        rate = learning_rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
        change = rate * first / (tf.sqrt(second) + self.epsilon)
        variable.scatter_sub(tf.IndexedSlices(change, index))
        first_moment.scatter_update(tf.IndexedSlices(first, index))
        second_moment.scatter_update(tf.IndexedSlices(second, index))
