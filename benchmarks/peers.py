"""The peers of side_by_side.py, each at its best settings: model.fit, Orbit, the loop of
TensorFlow's tutorial, and the limit, which is the bare step on a constant batch.

Each trains endlessly, and calls `mark` before each epoch. All take their model, their loss and
their data from the hooks of a train.py, and Keras's Adam.
"""

import itertools
import tempfile


def fit(script, strategy, steps, mark, source, steps_per_execution, jit_compile, first=False):
    """`model.fit`; with `first`, `mark` is called after each step instead."""
    model = compile_model(script, strategy, steps_per_execution, jit_compile)
    noted = "on_train_batch_end" if first else "on_epoch_begin"
    callback = script.keras.callbacks.LambdaCallback(**{noted: lambda number, logs: mark()})
    model.fit(**create_data(script, source), epochs=10**6, callbacks=[callback], verbose=0)


def short_job(script, strategy, steps, mark, source, steps_per_execution):
    """What train.py does in a short job: three epochs, each validated, a test, both exports."""
    model = compile_model(script, strategy, steps_per_execution)
    few = create_dataset(script, training=False, split=1)
    model.fit(**create_data(script, source), epochs=3, validation_data=few, verbose=0)
    model.evaluate(few, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        model.export(f"{folder}/export", verbose=False)
    mark()


def evaluate(script, strategy, steps, mark, source, steps_per_execution):
    """`model.evaluate`, of as many batches as training has."""
    model = compile_model(script, strategy, steps_per_execution)
    data = create_data(script, source, training=False)
    while True:
        mark()
        model.evaluate(**data, verbose=0)


def compile_model(script, strategy, steps_per_execution, jit_compile=False):
    model, optimizer, loss, metrics = create(script, strategy)
    # fit takes the mean over the global batch itself, if the loss has Keras's default reduction.
    loss = type(loss).from_config({**loss.get_config(), "reduction": "sum_over_batch_size"})
    execution = {"steps_per_execution": steps_per_execution, "jit_compile": jit_compile}
    with strategy.scope():
        model.compile(optimizer, loss, metrics=metrics, **execution)
    return model


def orbit(script, strategy, steps, mark):
    """`Controller` and `StandardTrainer`, with their defaults, 100 steps a loop."""
    import orbit

    tf = script.tf
    train_step, metrics = create_step(script, strategy)
    with strategy.scope():
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        global_step = tf.Variable(0, dtype=tf.int64, aggregation=first)

    class Trainer(orbit.StandardTrainer):
        def train_loop_begin(self):
            for metric in metrics:
                metric.reset_state()

        def train_step(self, iterator):
            strategy.run(train_step, args=(next(iterator),))
            global_step.assign_add(1)

        def train_loop_end(self):
            return {metric.name: metric.result() for metric in metrics}

    trainer = Trainer(distribute(script, strategy, repeat=True))
    controller = orbit.Controller(
        strategy=strategy, trainer=trainer, global_step=global_step, steps_per_loop=100
    )
    for epoch in itertools.count(1):
        mark()
        controller.train(steps=epoch * steps)


def tutorial(script, strategy, steps, mark, in_graph):
    """The loop of "Custom training with tf.distribute.Strategy": a call for each batch or, as it
    also shows, for each epoch. Mended: the optimizer is built in the scope."""
    tf = script.tf
    train_step, metrics = create_step(script, strategy)
    dataset = distribute(script, strategy)

    @tf.function
    def distributed_train_step(batch):
        losses = strategy.run(train_step, args=(batch,))
        return strategy.reduce("SUM", losses, axis=None)

    @tf.function
    def distributed_train_epoch(dataset):
        total = 0.0
        for batch in dataset:
            losses = strategy.run(train_step, args=(batch,))
            total += strategy.reduce("SUM", losses, axis=None)
        return total

    while True:
        mark()
        if in_graph:
            total = distributed_train_epoch(dataset)
        else:
            total = 0.0
            for batch in dataset:
                total += distributed_train_step(batch)
        total.numpy()
        for metric in metrics:
            metric.result()
            metric.reset_state()


def limit(script, strategy, steps, mark, own_adam, own_input=False):
    script.STEPS_PER_EPOCH = steps
    run_steps = create_loop(script, strategy, own_adam, own_input)
    while True:
        mark()
        run_steps(steps)


def create_loop(script, strategy, own_adam, own_input):
    """Returns a function that runs some steps of a script in one graph: with the script's Adam, or
    with Keras's; on what its input gives, or on one constant batch."""
    tf, script.strategy = script.tf, strategy
    script.model, script.optimizer = script.create_model_and_optimizer(strategy)
    if not own_adam:
        script.optimizer = to_keras(script, script.optimizer, strategy)
    script.loss_object = script.create_loss_objects(strategy)
    script.train_metrics, *_ = script.create_metrics(strategy)
    with strategy.scope():
        script.optimizer.build(script.model.trainable_variables)
    if own_input:
        iterator, _ = script.distribute(*script.load(script.create_datasets()[0], "train"), True)
    size = script.GLOBAL_BATCH_SIZE // strategy.num_replicas_in_sync
    examples = next(iter(script.create_datasets()[0].batch(size)))
    features, labels = script.preprocess(examples, tf.zeros([size, 2], tf.int32), training=True)
    share = features, labels, tf.ones([size])
    batch = strategy.experimental_distribute_values_from_function(lambda _: share)

    @tf.function
    def run_steps(steps):
        for _ in tf.range(steps):
            script.distributed_train_step(script.next_batch(iterator) if own_input else batch)

    return lambda steps: run_steps(tf.constant(steps))


def decode(script, strategy, steps, mark):
    """The limit of a job that is bound by its input: the input of train.py, and no steps."""
    tf, script.strategy, script.STEPS_PER_EPOCH = script.tf, strategy, steps
    script.model, _ = script.create_model_and_optimizer(strategy)
    iterator, _ = script.distribute(*script.load(script.create_datasets()[0], "train"), True)

    @tf.function
    def run_steps(steps):
        total = 0.0
        for _ in tf.range(steps):
            features, *_ = next(iterator)
            total += tf.cast(tf.nest.flatten(features)[0][0, 0, 0, 0], tf.float32)
        return total

    while True:
        mark()
        run_steps(tf.constant(steps)).numpy()


# --------------------------------------------------------------------------------------------------
# What several of them need
# --------------------------------------------------------------------------------------------------


def create(script, strategy):
    model, optimizer = script.create_model_and_optimizer(strategy)
    metrics, *_ = script.create_metrics(strategy)
    loss = script.create_loss_objects(strategy)
    return model, to_keras(script, optimizer, strategy), loss, metrics


def to_keras(script, optimizer, strategy):
    """Returns Keras's Adam with the arguments of the script's, which no peer has."""
    with strategy.scope():
        adam = script.keras.optimizers.Adam.from_config(optimizer.get_config())
        if adam.weight_decay:
            adam.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return adam


def create_step(script, strategy):
    """Returns the training step of one replica as the tutorials have it, and its metrics."""
    tf = script.tf
    model, optimizer, loss_object, metrics = create(script, strategy)
    with strategy.scope():
        optimizer.build(model.trainable_variables)

    def train_step(batch):
        features, labels = batch
        with tf.GradientTape() as tape:
            predictions = model(features, training=True)
            losses = loss_object(labels, predictions)
            size = script.GLOBAL_BATCH_SIZE
            loss = tf.nn.compute_average_loss(losses, global_batch_size=size)
            if model.losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for metric in metrics:
            metric.update_state(labels, predictions)
        return loss

    return train_step, metrics


def create_dataset(script, training=True, shard=(1, 0), batch_size=None, split=0):
    """Returns a tf.data.Dataset of batches as one writes it: shuffled, decoded and augmented in
    parallel by single examples where files are decoded, else by batches."""
    tf, auto = script.tf, script.tf.data.AUTOTUNE
    batch_size = batch_size or script.GLOBAL_BATCH_SIZE
    dataset = script.create_datasets()[split].shard(*shard)
    if training:
        dataset = dataset.shuffle(100 * script.GLOBAL_BATCH_SIZE)
    if hasattr(script, "decode_example"):
        dataset = dataset.map(script.decode_example, num_parallel_calls=auto)
        return dataset.batch(batch_size, drop_remainder=True).prefetch(auto)
    dataset = dataset.batch(batch_size, drop_remainder=True)
    seeds = tf.zeros([batch_size, 2], tf.int32)  # which none of these jobs uses
    dataset = dataset.map(lambda *x: script.preprocess(x, seeds, training), auto)
    return dataset.prefetch(auto)


def create_data(script, source, training=True):
    """Returns arguments of fit or evaluate."""
    if source == "tf.data":
        return {"x": create_dataset(script, training)}
    dataset = script.create_datasets()[0]
    examples = dataset.batch(dataset.cardinality()).get_single_element()
    seeds = script.tf.zeros([dataset.cardinality(), 2], script.tf.int32)
    arrays = script.preprocess(examples, seeds, training)
    features, labels = script.tf.nest.map_structure(lambda x: x.numpy(), arrays)
    return {"x": features, "y": labels, "batch_size": script.GLOBAL_BATCH_SIZE}


def distribute(script, strategy, repeat=False):
    def create_shard(context):
        size = context.get_per_replica_batch_size(script.GLOBAL_BATCH_SIZE)
        shard = context.num_input_pipelines, context.input_pipeline_id
        dataset = create_dataset(script, shard=shard, batch_size=size)
        return dataset.repeat() if repeat else dataset

    return strategy.distribute_datasets_from_function(create_shard)
