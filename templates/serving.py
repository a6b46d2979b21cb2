def create_serving_function(models, example):
    """Return the tf.function that the exported SavedModel serves, with its input signature.

    `models` are copies of the trained models. `example` is a batch, [1, …], as `fetch` returns it.
    The default function takes such a batch or, if it is a tuple, its first component. It returns
    the predictions of the first model. A length that is None in that model's keras.Input is None
    here, so `preprocess` needs tf.shape(x)[1], not x.shape[1]. All requests get the other
    components, such as labels, from `example`. In the signature of the SavedModel, the inputs of a
    dict are named "inputs", "inputs_1", …, in the order of its sorted keys. For other names, pass
    `name` to tf.TensorSpec.
    """
    # TODO(you): serve something else, such as a decoder or a loop that generates text.
    is_tuple = isinstance(example, tuple)
    first, *others = example if is_tuple else [example]
    model_inputs = iter(getattr(models[0], "inputs", []))

    def create_spec(x):
        """Return the TensorSpec of a batch like `x`, with None where the keras.Input has None."""
        shape = next(model_inputs, x).shape
        if not x.shape.is_compatible_with(shape):
            shape = x.shape  # `preprocess` changes the shape
        return tf.TensorSpec([None, *shape[1:]], x.dtype)

    @tf.function(input_signature=[tf.nest.map_structure(create_spec, first)])
    def serve(inputs):
        size = len(tf.nest.flatten(inputs)[0])
        # `preprocess` expects labels too: use the example's labels.
        repeated = tf.nest.map_structure(lambda x: tf.repeat(x, size, 0), others)
        batch = (inputs, *repeated) if is_tuple else inputs
        batch = tf.nest.map_structure(tf.identity, batch)  # a copy, which `preprocess` may change
        features, *_ = preprocess(batch, tf.zeros([size, 2], tf.int32), training=False)
        return models[0](features, training=False)

    return serve
