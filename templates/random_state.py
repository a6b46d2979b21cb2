@tf.function
def seed_replicas():
    """Give each replica its own random numbers.

    Keras starts all replicas with the same state, so that they would drop the same units. Replica
    0 keeps that state, which is the one in checkpoints.
    """

    def shift_states():
        replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
        for variable in list_variables(model):
            if variable.path.endswith("seed_generator_state"):  # [seed, counter]
                # The golden ratio keeps the seeds of replicas apart for all seeds below 1e9.
                offset = tf.cast(replica_id, variable.dtype) * 0x9E3779B1
                variable.assign(variable + [offset, 0])

    strategy.run(shift_states)
