def create_serving_function(models, example):
    """Return the tf.function that the exported SavedModel serves, with its input signature.

    `models` are copies of the trained models. `example` is a batch, [1, …], as `fetch` returns it;
    the default takes its first component, and returns the predictions of the first model.
    """
    # TODO(you): serve something else, such as a decoder or a loop that generates text.
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), example)
    is_tuple = isinstance(specs, tuple)

    @tf.function(input_signature=[specs[0] if is_tuple else specs])
    def serve(inputs):
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        zeros = tf.nest.map_structure(lambda x: tf.zeros([size, *x.shape[1:]], x.dtype), specs)
        batch = (inputs, *zeros[1:]) if is_tuple else inputs  # `preprocess` expects labels too
        features, *_ = preprocess(batch, tf.zeros([size, 2], tf.int32), training=False)
        return models[0](features, training=False)

    return serve
