# {% block head %}
def export(folder, examples):
    """Writes the first model for serving, of what `fetch` puts first, and each as .keras."""
    weights = [x.numpy() for each in tf.nest.flatten(model) for x in each.variables]
    # {% endblock %}
    keras.utils.clear_session(free_memory=False)  # so that layers count from 1
    # {% block policy %}
    # {% endblock %}
    with tf.device("CPU:0"):  # made without a strategy, a copy loads anywhere
        models = tf.nest.flatten(create_model_and_optimizer(tf.distribute.get_strategy())[0])
        # {% block assign %}
        for copy in (x for each in models for x in each.variables):
            copy.assign(weights.pop(0))
        # {% endblock %}
    examples = fetch(tf.nest.map_structure(lambda x: x[:1], examples))
    inputs, *others = examples if isinstance(examples, tuple) else (examples,)
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), inputs)

    @tf.function(input_signature=[spec])
    def serve(inputs):
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        blank = tf.nest.map_structure(lambda x: tf.zeros([size, *x.shape[1:]], x.dtype), others)
        batch = (inputs, *blank) if isinstance(examples, tuple) else inputs
        batch = preprocess(batch, tf.zeros([size, 2], tf.int32), training=False)
        return models[0](batch[0], training=False)

    part, archive = folder.with_name("export.part"), keras.export.ExportArchive()
    shutil.rmtree(part, ignore_errors=True)
    # {% block write %}
    archive.track(models[0])
    archive.add_endpoint("serve", serve)
    archive.write_out(part, verbose=False)
    for number, each in enumerate(models, start=1):
        each.save(part / ("model.keras" if number == 1 else f"model_{number}.keras"))
    # {% endblock %}
    part.rename(folder)
