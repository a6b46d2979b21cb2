def export(folder, examples, weights=None):
    """Writes a SavedModel of (what stands first in an example), and model.keras of (the features).
    Of several models, the SavedModel runs the first; the others are in model_2.keras, ….

    Returns what could not be written, and why, as text.
    """
    keras.utils.clear_session()  # so that layers count from 1
    keras.config.set_dtype_policy(PRECISION)
    with tf.device("CPU:0"):  # made without a strategy, a copy loads anywhere
        models = tf.nest.flatten(create_model_and_optimizer(tf.distribute.get_strategy())[0])
        copies = [x for each in models for x in each.variables]
        for copy, weight in zip(copies, weights or [x.numpy() for x in copies], strict=True):
            copy.assign(weight)
    inputs, *others = examples if isinstance(examples, tuple) else (examples,)
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), inputs)

    @tf.function(input_signature=[spec])
    def serve(inputs):
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        blank = tf.nest.map_structure(lambda x: tf.zeros([size, *x.shape[1:]], x.dtype), others)
        batch = (inputs, *blank) if isinstance(examples, tuple) else inputs
        batch = preprocess(batch, tf.zeros([size, 2], tf.int32), training=False)
        return models[0](batch[0], training=False)

    def write_saved_model():
        graph = serve.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(x for f in graph.library.function for x in f.node_def)]
        if any("PyFunc" in node.op for node in nodes):
            raise ValueError("`preprocess` or the model runs Python, which is not in the file")
        archive = keras.export.ExportArchive()
        archive.track(models[0])
        archive.add_endpoint("serve", serve)
        archive.write_out(part, verbose=False)

    def write_keras():
        for number, each in enumerate(models, start=1):
            path = part / ("model.keras" if number == 1 else f"model_{number}.keras")
            each.save(path)
            with tf.device("CPU:0"):
                keras.saving.load_model(path, compile=False)

    part, problems = folder.with_name("export.part"), []
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, write in (("a SavedModel", write_saved_model), ("model.keras", write_keras)):
        try:
            write()
        except Exception as error:  # of many kinds, by what the hooks do
            if "No space left on device" in str(error):
                raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            problems.append(f"export: the model can't be written as {name}: {reason}")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return problems
