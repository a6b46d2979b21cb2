"""Single steps of train.py, compared with NumPy. See tf_queries.py."""

import numpy as np
import tensorflow as tf
from tf_queries import begin, begin_complete, create_model, load_script, local_values

# As float32 has them: 1 - 0.999 is 1.3e-5 less there.
BETA_1 = float(np.float32(0.9))
BETA_2 = float(np.float32(0.999))
EPSILON = 1e-7


def use_model(script, model, optimizer, loss):
    """Give a script a model to train, created in the scope of its strategy."""
    script.model = model
    script.optimizer = optimizer
    script.loss_object = loss
    optimizer.build(model.trainable_variables)
    script.gradient_norm = script.keras.metrics.Mean(name="gradient_norm")


def create_train_function(script):
    """Return a function that takes one training step, of a batch of all replicas."""

    @tf.function
    def run(batch):
        return script.strategy.run(
            script.train_step,
            args=(batch,),
        )

    return run


def distribute_batch(script, *arrays):
    """Return each replica's part of a batch, with weights of 1."""
    weights = np.ones(
        len(arrays[0]),
        "float32",
    )
    batch = (*arrays, weights)
    size = script.config.global_batch_size // script.strategy.num_replicas_in_sync

    def take_part(context):
        first = context.replica_id_in_sync_group * size
        return tuple(tf.constant(x[first : first + size]) for x in batch)

    return script.strategy.experimental_distribute_values_from_function(take_part)


def as_float64(variables):
    return [variable.numpy().astype("float64") for variable in variables]


def measure_error(script, variable, expected):
    """Return the largest difference of a variable's values, on any replica, from the expected."""
    return float(np.abs(np.array(local_values(script, variable)) - expected).max())


# --------------------------------------------------------------------------------------------------
# Embeddings
# --------------------------------------------------------------------------------------------------


class PlainAdam:
    """Adam of a list of float64 arrays, after its paper."""

    def __init__(self, weights, rate, epsilon=EPSILON):
        self.weights = weights
        self.rate = rate
        self.epsilon = epsilon
        self.step = 0
        self.first = [np.zeros_like(weight) for weight in weights]
        self.second = [np.zeros_like(weight) for weight in weights]

    def apply(self, gradients):
        self.step += 1
        correction = np.sqrt(1 - BETA_2**self.step) / (1 - BETA_1**self.step)
        for i, gradient in enumerate(gradients):
            gradient = np.asarray(gradient, "float64")
            self.first[i] += (1 - BETA_1) * (gradient - self.first[i])
            self.second[i] += (1 - BETA_2) * (gradient**2 - self.second[i])
            direction = self.first[i] / (np.sqrt(self.second[i]) + self.epsilon)
            self.weights[i] -= self.rate * correction * direction

    def decay(self, rates):
        """Shrink each weight by its rate of decay."""
        for i, rate in enumerate(rates):
            self.weights[i] -= self.rate * rate * self.weights[i]


def compare_embedding_updates(path, *flags):
    """Train a model with an embedding for three steps, with Keras's Adam and with NumPy's.

    Return the relative error of each weight and moment. The gradients of an index that comes
    several times in a batch are one sum.
    """
    script = begin_complete(path, "--global-batch-size", "8", *flags)
    # Not the script's Adam: the script sums the gradients before any optimizer.
    use_model_of_words(script, script.keras.optimizers.Adam, 0.01)
    expected = PlainAdam(as_float64(script.model.trainable_variables), 0.01)
    run = create_train_function(script)
    random = np.random.default_rng(0)
    for _ in range(3):
        words, labels = draw_words(random)
        run(distribute_batch(script, words, labels))
        expected.apply(differentiate(expected.weights, words, labels))
    return compare_slots(script, expected)


def use_model_of_words(script, kind_of_optimizer, rate):
    """Give a script a model with an embedding, whose gradients `differentiate` returns."""
    keras = script.keras
    with script.strategy.scope():
        layers = [
            keras.Input([5], dtype="int32"),
            keras.layers.Embedding(11, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ]
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True,
            reduction="none",
        )
        use_model(
            script,
            keras.Sequential(layers),
            kind_of_optimizer(rate),
            loss,
        )


def draw_words(random):
    """Return eight examples. The largest index never comes, and some of the others come often."""
    words = random.choice([0, 1, 1, 1, 2, 5, 9], [8, 5]).astype("int32")
    labels = random.integers(0, 3, 8).astype("int32")
    return words, labels


def compare_sam(path, *flags):
    """Return the largest error of the weights after a step of the recipe, compared with NumPy.

    It is relative to how much the weights change by the move.
    """
    script = begin(path, "--global-batch-size", "8", *flags)
    use_model_of_words(script, script.keras.optimizers.SGD, 1.0)
    variables = script.model.trainable_variables
    weights = as_float64(variables)
    batch = draw_words(np.random.default_rng(0))
    plain = differentiate(weights, *batch)
    squares = [np.sum(gradient**2) for gradient in plain]
    scale = script.RHO / np.sqrt(sum(squares))
    moved = [weight + scale * plain[i] for i, weight in enumerate(weights)]
    sharp = differentiate(moved, *batch)
    run = create_train_function(script)
    run(distribute_batch(script, *batch))
    errors = []
    for i, variable in enumerate(variables):
        expected = weights[i] - sharp[i]
        change = np.abs(sharp[i] - plain[i]).max()
        error = measure_error(script, variable, expected)
        errors.append(error / float(change))
    return max(errors)


def compare_slots(script, expected):
    """Return the relative errors of weights and moments, by name."""
    kinds = {
        "weight": (script.model.trainable_variables, expected.weights),
        "first": (script.optimizer._momentums, expected.first),
        "second": (script.optimizer._velocities, expected.second),
    }
    errors = {}
    for kind, (variables, values) in kinds.items():
        for variable, value in zip(variables, values, strict=True):
            error = measure_error(script, variable, value)
            errors[f"{kind} {variable.path}"] = error / float(np.abs(value).max())
    return errors


def differentiate(weights, words, labels):
    """Return the gradients of the mean loss of embedding, mean, dense layer and softmax."""
    table, kernel, bias = weights
    count, length = words.shape
    pooled = table[words].mean(1)
    shares = np.exp(pooled @ kernel + bias)
    shares /= shares.sum(1, keepdims=True)
    by_logits = (shares - np.eye(3)[labels]) / count
    by_word = (by_logits @ kernel.T / length)[:, None]
    by_table = np.zeros_like(table)
    np.add.at(
        by_table,
        words,
        np.repeat(by_word, length, axis=1),
    )
    return by_table, pooled.T @ by_logits, by_logits.sum(0)


# --------------------------------------------------------------------------------------------------
# Adam
# --------------------------------------------------------------------------------------------------


def compare_adam(path, arguments, *flags):
    """Return the largest error of two optimizers compared with NumPy's Adam in float64.

    They are the script's and Keras's, both with the same arguments, after 100 steps with random
    gradients. Errors of moments and weights are relative to how far each has moved.
    """
    script = begin_complete(path, *flags)
    create_model(script)
    assert type(script.optimizer) is script.Adam
    config = {
        **script.optimizer.get_config(),
        "learning_rate": 0.01,
        **arguments,
    }
    kinds = {
        "script": script.Adam,
        "Keras": script.keras.optimizers.Adam,
    }
    return {name: measure_adam(script, kind, config) for name, kind in kinds.items()}


def measure_adam(script, kind, config):
    weights = script.model.trainable_variables
    with script.strategy.scope():
        optimizer = kind.from_config(config)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        optimizer.build(weights)
    decays = [(optimizer.weight_decay or 0.0) * optimizer._use_weight_decay(x) for x in weights]
    starts = as_float64(weights)
    expected = PlainAdam(as_float64(weights), 0.01, config["epsilon"])
    run = create_update_function(script, optimizer, weights)
    random = np.random.default_rng(0)
    for _ in range(100):
        scale = 10.0 ** random.uniform(-4, 0)
        gradients = [(scale * random.normal(size=x.shape)).astype("float32") for x in weights]
        run([tf.constant(gradient) for gradient in gradients])
        expected.decay(decays)
        expected.apply(gradients)
    return max(
        measure_errors(
            script,
            optimizer,
            weights,
            starts,
            expected,
        )
    )


def create_update_function(script, optimizer, weights):
    """Return a function that applies gradients, each replica an equal share of them."""
    replicas = script.strategy.num_replicas_in_sync

    @tf.function
    def run(gradients):
        def apply_share():
            optimizer.apply(
                [gradient / replicas for gradient in gradients],
                weights,
            )

        script.strategy.run(apply_share)

    return run


def measure_errors(script, optimizer, weights, starts, expected):
    """Yield the errors of weights and moments, relative to how far each has moved."""
    zeros = [np.zeros_like(start) for start in starts]
    groups = (
        (weights, expected.weights, starts),
        (optimizer._momentums, expected.first, zeros),
        (optimizer._velocities, expected.second, zeros),
    )
    for variables, values, starting_values in groups:
        for variable, value, start in zip(variables, values, starting_values, strict=True):
            distance = float(np.abs(value - start).max())
            yield measure_error(script, variable, value) / distance


def run_fallback(path, dtype, amsgrad):
    """Return the values of `run_both_adams`, where the script's Adam calls Keras's."""
    return run_both_adams(path, dtype, {"amsgrad": amsgrad})


def run_both_adams(path, dtype, options):
    """Return a variable's values after ten gradients of 1, by the script's Adam and by Keras's."""
    script = begin(path)
    values = []
    kinds = (
        script.Adam,
        script.keras.optimizers.Adam,
    )
    for kind in kinds:
        variable = script.keras.Variable(np.ones(3), dtype=dtype)
        optimizer = kind(0.1, **options)
        optimizer.build([variable])
        for _ in range(10):
            optimizer.apply([tf.ones_like(variable.value)], [variable])
        values.append(variable.numpy().astype(float).tolist())
    return values


def count_powers(path, variables, *flags):
    """Return how many powers the graph of an update computes."""
    script = begin(path, *flags)
    with script.strategy.scope():
        weights = [script.keras.Variable(np.ones(3, "float32")) for _ in range(variables)]
        optimizer = script.Adam(0.1)
        optimizer.build(weights)
    run = create_update_function(script, optimizer, weights)
    gradients = [tf.ones([3]) for _ in weights]
    graph = run.get_concrete_function(gradients).graph
    types = [operation.type for operation in graph.get_operations()]
    return types.count("Pow")


# --------------------------------------------------------------------------------------------------
# Half precision
# --------------------------------------------------------------------------------------------------


def count_summed_numbers():
    """Replace the all-reduce of replicas. Return a list that gets the size of each."""
    sizes = []
    all_reduce = tf.distribute.ReplicaContext.all_reduce

    def count(self, operation, value, *args, **kwargs):
        sizes.append(sum(int(np.prod(x.shape)) for x in tf.nest.flatten(value)))
        return all_reduce(self, operation, value, *args, **kwargs)

    tf.distribute.ReplicaContext.all_reduce = count
    return sizes


def create_small_model(script):
    """Give a script a small regression model, with loss scaling if the precision needs it."""
    keras = script.keras
    with script.strategy.scope():
        layers = [
            keras.Input([4]),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(1, dtype="float32"),
        ]
        optimizer = script.Adam(0.01)
        if script.config.precision == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
        loss = keras.losses.Huber(reduction="none")
        use_model(
            script,
            keras.Sequential(layers),
            optimizer,
            loss,
        )


def run_overflow(path, *flags):
    """Take three steps, of which the second overflows on the last replica.

    Return the weights and the loss scale on each replica after each step, and how many numbers
    each step sums over the replicas.
    """
    script = begin_complete(path, "--global-batch-size", "8", *flags)
    create_small_model(script)
    random = np.random.default_rng(0)
    run = create_train_function(script)
    sizes = count_summed_numbers()
    steps = []
    for overflows in (False, True, False):
        features = random.normal(size=[8, 4]).astype("float32")
        if overflows:
            features[-1] = 1e6  # The largest number of float16 is 65504.
        labels = random.normal(size=[8, 1]).astype("float32")
        run(distribute_batch(script, features, labels))
        variables = script.model.variables + script.optimizer.variables
        weights = [local_values(script, variable) for variable in variables]
        steps.append([weights, read_scale(script)])
    return {
        "steps": steps,
        "weights": sum(int(np.prod(x.shape)) for x in script.model.trainable_variables),
        "summed": sum(sizes) / script.strategy.num_replicas_in_sync,
    }


def read_scale(script):
    """Return the loss scale on each replica, or None."""
    scale = getattr(script.optimizer, "dynamic_scale", None)
    return None if scale is None else local_values(script, scale)


# --------------------------------------------------------------------------------------------------
# XLA
# --------------------------------------------------------------------------------------------------


def compile_steps(path, *flags):
    """Compile each replica step by XLA, instead of the first loop of a run.

    Return for each step its operations, the operations of unknown static shape, and its results
    without and with XLA.
    """
    script = load_script(path)
    answer = {}

    def examine_all(iterator, steps):
        batch = script.next_batch(iterator)
        for name in ("validation_step", "test_step", "train_step"):
            answer[name] = examine_step(
                script,
                getattr(script, name),
                batch,
            )
        raise SystemExit(0)

    script.train = examine_all
    try:
        script.main([*map(str, flags)])
    except SystemExit as end:
        assert end.code == 0
    return answer


def examine_step(script, step, batch):
    graph = tf.function(step).get_concrete_function(batch).graph
    operations = []
    for each in [graph, *list_function_graphs(graph)]:
        operations += each.get_operations()
    return {
        "operations": sorted({operation.type for operation in operations}),
        "dynamic": list_dynamic_outputs(operations),
        "plain": run_step(script, step, batch, jit_compile=False),
        "compiled": run_step(script, step, batch, jit_compile=True),
    }


def list_function_graphs(graph):
    """Return the graphs of a graph's functions; the graph also holds those that they call."""
    return [graph._get_function(name).graph for name in graph._functions]


def list_dynamic_outputs(operations):
    """Return the outputs of operations whose shape is not known statically.

    XLA knows the values of BroadcastGradientArgs, of constants, and nothing reads the redundant
    placeholders.
    """
    outputs = []
    for operation in operations:
        is_known = operation.type == "BroadcastGradientArgs"
        is_unused = "redundant_placeholder" in operation.name
        if not is_known and not is_unused:
            outputs += [(operation.name, output.shape) for output in operation.outputs]
    return [f"{name} {shape}" for name, shape in outputs if not shape.is_fully_defined()]


def run_step(script, step, batch, jit_compile):
    """Return a step's result. Restore the variables that it changes."""
    script.keras.utils.set_random_seed(0)
    variables = [
        *script.model.variables,
        *script.optimizer.variables,
    ]
    before = [variable.numpy() for variable in variables]
    result = [float(value) for value in tf.function(step, jit_compile=jit_compile)(batch)]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return result


def look_up_split_embedding(layer, rows, parts):
    """Return the tables of the README's layer, and what it returns for each row."""
    import math

    import keras
    import tensorflow as tf

    names = {"keras": keras, "math": math, "tf": tf}
    exec(layer, names)
    embedding = names["SplitEmbedding"](rows, 2, parts)
    found = embedding(tf.range(rows))
    return [table.numpy().tolist() for table in embedding.tables], found.numpy().tolist()
