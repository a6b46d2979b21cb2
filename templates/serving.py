def create_serving_function(models, example):
    """Return the tf.function that the exported SavedModel serves, with its input signature.

    `models` are copies of the trained models. `example` is a batch, [1, …], as `fetch` returns it.
    The default function takes such a batch or, if it is a tuple, its first component. It returns
    the predictions of the first model.
    """
    # TODO(you): serve something else, such as a decoder or a loop that generates text. If the model
    # takes sequences of any length, set that length to None in `specs`.
    is_tuple = isinstance(example, tuple)
    first, *others = example if is_tuple else [example]
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), first)

    @tf.function(input_signature=[specs])
    def serve(inputs):
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        # `preprocess` expects labels too: use the example's labels.
        repeated = tf.nest.map_structure(lambda x: tf.repeat(x, size, axis=0), others)
        batch = (inputs, *repeated) if is_tuple else inputs
        features, *_ = preprocess(batch, tf.zeros([size, 2], tf.int32), training=False)
        return models[0](features, training=False)

    return serve
