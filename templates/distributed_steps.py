def distributed_train_step(batch):
    return strategy.reduce("SUM", strategy.run(train_step, args=(batch,)), axis=None)


def distributed_validation_step(batch):
    return strategy.reduce("SUM", strategy.run(validation_step, args=(batch,)), axis=None)


def distributed_test_step(batch):
    return strategy.reduce("SUM", strategy.run(test_step, args=(batch,)), axis=None)
