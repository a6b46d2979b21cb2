def distributed_train_step(batch):
    """Run `train_step` on all replicas. Return the results of each."""
    return strategy.run(train_step, args=(batch,))


def distributed_validation_step(batch):
    return strategy.run(validation_step, args=(batch,))


def distributed_test_step(batch):
    return strategy.run(test_step, args=(batch,))
