@tf.function
def seed_replicas():
    """Gives each replica random numbers of its own: Keras starts all with one state, and they
    would drop the same units. The first keeps the state, which is what checkpoints hold."""

    def shift():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for variable in (x for each in tf.nest.flatten(model) for x in each.variables):
            if variable.path.endswith("seed_generator_state"):  # [seed, counter]
                # Seeds are drawn below 1e9: a large odd factor keeps all of them apart.
                offset = tf.cast(replica, variable.dtype) * 0x9E3779B1
                variable.assign(variable + tf.stack([offset, 0]))

    strategy.run(shift)
