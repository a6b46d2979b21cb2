@tf.function
def seed_replicas():
    """Gives each replica random numbers of its own: Keras starts all with one state, and they
    would drop the same units. The first keeps the state, which is what checkpoints hold."""

    def shift():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for x in (x for each in tf.nest.flatten(model) for x in each.variables):
            if x.path.endswith("seed_generator_state"):  # [seed, counter]; seeds < 1e9 stay apart
                x.assign(x + tf.stack([tf.cast(replica, x.dtype) * 0x9E3779B1, 0]))

    strategy.run(shift)
