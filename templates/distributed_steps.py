def run_on_replicas(step, batch):
    """Run a step on all replicas, each with its batch. Return the sums of their results."""
    return strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)


def distributed_train_step(batch):
    return run_on_replicas(train_step, batch)


def distributed_validation_step(batch):
    return run_on_replicas(validation_step, batch)


def distributed_test_step(batch):
    return run_on_replicas(test_step, batch)
