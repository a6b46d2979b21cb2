def create_serving_function(served_model, split):
    """Return a function from the first component of `fetch` to the model's predictions."""
    examples, _ = split
    example = fetch(tf.nest.map_structure(lambda values: values[:1], examples))
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), example)
    is_tuple = isinstance(specs, tuple)

    @tf.function(input_signature=[specs[0] if is_tuple else specs])
    def serve(inputs):
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        zeros = tf.nest.map_structure(lambda x: tf.zeros([size, *x.shape[1:]], x.dtype), specs)
        batch = (inputs, *zeros[1:]) if is_tuple else inputs  # `preprocess` expects labels too
        features, *_ = preprocess(batch, tf.zeros([size, 2], tf.int32), training=False)
        return served_model(features, training=False)

    return serve
