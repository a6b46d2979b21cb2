"""The peers of side_by_side.py, each with its best settings.

They are model.fit, Orbit, the loop of TensorFlow's tutorial, and the limit: the bare step on a
constant batch. Each trains endlessly and calls `mark` before each epoch. All take their model,
loss and data from the hooks of a train.py. Their optimizer is Keras's Adam.
"""

import functools
import itertools
import tempfile

STEPS_PER_LOOP = 100  # for Orbit, as in train.py


def set_up_globals(script, strategy):
    """Assign the globals that the hooks read, as `main` does with the default flags."""
    script.strategy = strategy
    script.config = script.parse_flags([])
    script.config.replicas = strategy.num_replicas_in_sync
    script.GLOBAL_BATCH_SIZE = script.config.global_batch_size
    train, *_ = script.create_datasets()
    script.adapted.update(script.adapt(train))


def fit(script, strategy, steps, mark, source, steps_per_execution, jit_compile):
    """Train with `model.fit`."""
    callback = script.keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: mark())
    fit_with_callback(script, strategy, callback, source, steps_per_execution, jit_compile)


def take_first_fit_step(script, strategy, steps, mark, source):
    """Call `mark` after each step of `model.fit`."""
    callback = script.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: mark())
    fit_with_callback(script, strategy, callback, source, steps_per_execution=1)


def fit_with_callback(script, strategy, callback, source, steps_per_execution, jit_compile=False):
    model = compile_model(script, strategy, steps_per_execution, jit_compile)
    data = create_data(script, source)
    model.fit(**data, epochs=10**6, callbacks=[callback], verbose=0)


def run_short_fit(script, strategy, steps, mark, source, steps_per_execution):
    """Do with `model.fit` what train.py does in a short job.

    It trains three epochs and validates each, tests, and writes both exports.
    """
    model = compile_model(script, strategy, steps_per_execution)
    validation = create_dataset(script, training=False, split=1)
    data = create_data(script, source)
    model.fit(**data, epochs=3, validation_data=validation, verbose=0)
    model.evaluate(validation, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        model.export(f"{folder}/export", verbose=False)
    mark()


def evaluate(script, strategy, steps, mark, source, steps_per_execution):
    """Run `model.evaluate` on the training examples."""
    model = compile_model(script, strategy, steps_per_execution)
    data = create_data(script, source, training=False)
    while True:
        mark()
        model.evaluate(**data, verbose=0)


def compile_model(script, strategy, steps_per_execution, jit_compile=False):
    model, optimizer, loss, metrics = create_hooks_objects(script, strategy)
    # With Keras's default reduction, fit itself takes the mean over the global batch.
    loss_config = {**loss.get_config(), "reduction": "sum_over_batch_size"}
    with strategy.scope():
        model.compile(
            optimizer,
            type(loss).from_config(loss_config),
            metrics=metrics,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
        )
    return model


def train_with_orbit(script, strategy, steps, mark):
    """Train with `Controller` and `StandardTrainer`, with their defaults."""
    import orbit

    tf = script.tf
    train_step, metrics = create_step(script, strategy)
    with strategy.scope():
        first_replica = tf.VariableAggregation.ONLY_FIRST_REPLICA
        global_step = tf.Variable(0, dtype=tf.int64, aggregation=first_replica)

    class Trainer(orbit.StandardTrainer):
        def train_loop_begin(self):
            for metric in metrics:
                metric.reset_state()

        def train_step(self, iterator):
            strategy.run(train_step, args=(next(iterator),))
            global_step.assign_add(1)

        def train_loop_end(self):
            return {metric.name: metric.result() for metric in metrics}

    controller = orbit.Controller(
        strategy=strategy,
        trainer=Trainer(distribute_dataset(script, strategy, repeat=True)),
        global_step=global_step,
        steps_per_loop=STEPS_PER_LOOP,
    )
    for epoch in itertools.count(1):
        mark()
        controller.train(steps=epoch * steps)


def train_as_tutorial(script, strategy, steps, mark, in_graph):
    """Train with the loop of "Custom training with tf.distribute.Strategy".

    It calls a function for each batch or, with `in_graph`, for each epoch: the tutorial has both.
    Unlike in the tutorial, the optimizer is built in the scope: otherwise it would fail.
    """
    tf = script.tf
    train_step, metrics = create_step(script, strategy)
    dataset = distribute_dataset(script, strategy)

    @tf.function
    def train_batch(batch):
        losses = strategy.run(train_step, args=(batch,))
        return strategy.reduce("SUM", losses, axis=None)

    @tf.function
    def train_epoch_in_graph(dataset):
        total = 0.0
        for batch in dataset:
            losses = strategy.run(train_step, args=(batch,))
            total += strategy.reduce("SUM", losses, axis=None)
        return total

    def train_epoch(dataset):
        total = 0.0
        for batch in dataset:
            total += train_batch(batch)
        return total

    while True:
        mark()
        if in_graph:
            total = train_epoch_in_graph(dataset)
        else:
            total = train_epoch(dataset)
        total.numpy()
        for metric in metrics:
            metric.result()
            metric.reset_state()


def run_limit(script, strategy, steps, mark, own_adam, own_input=False):
    """Run the training step of train.py in one graph.

    Its optimizer is Keras's Adam or, with `own_adam`, train.py's. It trains on one constant
    batch or, with `own_input`, on the batches of train.py.
    """
    tf = script.tf
    script.config.steps_per_epoch = steps
    create_training_objects(script, strategy, own_adam)
    if own_input:
        get_batch = functools.partial(script.next_batch, create_train_iterator(script))
    else:
        constant_batch = create_constant_batch(script, strategy)

        def get_batch():
            return constant_batch

    @tf.function
    def run_steps(steps):
        for _ in tf.range(steps):
            script.distributed_train_step(get_batch())

    while True:
        mark()
        run_steps(tf.constant(steps))


def create_training_objects(script, strategy, own_adam):
    """Assign the globals that the training step reads."""
    script.model, script.optimizer = script.create_model_and_optimizer(strategy)
    if not own_adam:
        script.optimizer = convert_to_keras(script, script.optimizer, strategy)
    script.loss_object = script.create_loss_objects(strategy)
    script.train_metrics, *_ = script.create_metrics(strategy)
    with strategy.scope():
        script.optimizer.build(script.model.trainable_variables)


def create_train_iterator(script):
    """Return the iterator of train.py over the training split."""
    train, *_ = script.create_datasets()
    examples, size = script.load_into_memory(train, "train")
    iterator, _ = script.create_input(examples, size, training=True)
    return iterator


def create_constant_batch(script, strategy):
    """Return the first training examples, as a batch for each replica."""
    tf = script.tf
    size = script.config.global_batch_size // strategy.num_replicas_in_sync
    train, *_ = script.create_datasets()
    examples = next(iter(train.batch(size)))
    features, labels = script.preprocess(examples, tf.zeros([size, 2], tf.int32), training=True)
    batch = (features, labels, tf.ones([size]))
    return strategy.experimental_distribute_values_from_function(lambda _: batch)


def decode(script, strategy, steps, mark):
    """Run the input of train.py without steps: the limit of a job that decodes files."""
    tf = script.tf
    script.config.steps_per_epoch = steps
    script.model, _ = script.create_model_and_optimizer(strategy)
    iterator = create_train_iterator(script)

    @tf.function
    def run_steps(steps):
        total = 0.0
        for _ in tf.range(steps):
            features, *_ = next(iterator)
            first_pixel = tf.nest.flatten(features)[0][0, 0, 0, 0]
            total += tf.cast(first_pixel, tf.float32)
        return total

    while True:
        mark()
        run_steps(tf.constant(steps)).numpy()


PEERS = {
    "fit": fit,
    "fit, first step": take_first_fit_step,
    "fit, short job": run_short_fit,
    "evaluate": evaluate,
    "Orbit": train_with_orbit,
    "tutorial": train_as_tutorial,
    "limit": run_limit,
    "decode": decode,
}

# --------------------------------------------------------------------------------------------------
# Shared functions
# --------------------------------------------------------------------------------------------------


def create_hooks_objects(script, strategy):
    """Return the model, the optimizer, the loss and the training metrics of the hooks."""
    model, optimizer = script.create_model_and_optimizer(strategy)
    metrics, *_ = script.create_metrics(strategy)
    loss = script.create_loss_objects(strategy)
    return model, convert_to_keras(script, optimizer, strategy), loss, metrics


def convert_to_keras(script, optimizer, strategy):
    """Return Keras's Adam with the arguments of the script's own Adam."""
    with strategy.scope():
        adam = script.keras.optimizers.Adam.from_config(optimizer.get_config())
        if adam.weight_decay:
            adam.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return adam


def create_step(script, strategy):
    """Return the training step of one replica as in the tutorials, and its metrics."""
    tf = script.tf
    model, optimizer, loss_object, metrics = create_hooks_objects(script, strategy)
    with strategy.scope():
        optimizer.build(model.trainable_variables)

    def train_step(batch):
        features, labels = batch
        with tf.GradientTape() as tape:
            predictions = model(features, training=True)
            losses = loss_object(labels, predictions)
            size = script.config.global_batch_size
            loss = tf.nn.compute_average_loss(losses, global_batch_size=size)
            if model.losses:
                regularization = tf.add_n(model.losses)
                loss += tf.nn.scale_regularization_loss(regularization)
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        for metric in metrics:
            metric.update_state(labels, predictions)
        return loss

    return train_step, metrics


def create_dataset(script, training=True, shard=(1, 0), batch_size=None, split=0):
    """Return a shuffled tf.data.Dataset of batches, with usual code.

    Single files are decoded in parallel if there are any. Otherwise batches are preprocessed.
    """
    tf = script.tf
    global_batch_size = script.config.global_batch_size
    batch_size = batch_size or global_batch_size
    dataset = script.create_datasets()[split].shard(*shard)
    if training:
        dataset = dataset.shuffle(100 * global_batch_size)
    if hasattr(script, "decode_example"):
        dataset = dataset.map(script.decode_example, tf.data.AUTOTUNE)
        dataset = dataset.batch(batch_size, drop_remainder=True)
    else:
        seeds = tf.zeros([batch_size, 2], tf.int32)  # no job with this input uses them
        dataset = dataset.batch(batch_size, drop_remainder=True)
        dataset = dataset.map(
            lambda *batch: script.preprocess(batch, seeds, training), tf.data.AUTOTUNE
        )
    return dataset.prefetch(tf.data.AUTOTUNE)


def create_data(script, source, training=True):
    """Return the training examples as arguments of fit or evaluate."""
    if source == "tf.data":
        return {"x": create_dataset(script, training)}
    tf = script.tf
    train, *_ = script.create_datasets()
    size = train.cardinality()
    examples = train.batch(size).get_single_element()
    batch = script.preprocess(examples, tf.zeros([size, 2], tf.int32), training)
    features, labels = tf.nest.map_structure(lambda tensor: tensor.numpy(), batch)
    return {
        "x": features,
        "y": labels,
        "batch_size": script.config.global_batch_size,
    }


def distribute_dataset(script, strategy, repeat=False):
    """Return the training batches of all replicas."""

    def create_shard(context):
        size = context.get_per_replica_batch_size(script.config.global_batch_size)
        shard = (context.num_input_pipelines, context.input_pipeline_id)
        dataset = create_dataset(script, shard=shard, batch_size=size)
        if repeat:
            return dataset.repeat()
        return dataset

    return strategy.distribute_datasets_from_function(create_shard)
