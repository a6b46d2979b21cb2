def export_model(datasets):
    """Export the tested model to the run directory."""
    # The other workers wait: one that ends while others run would be reported as lost.
    run_on_chief(export, run_path("export"), datasets["test"][0])
    print_status(f"written to {config.run_dir}: checkpoints, export, metrics.jsonl, tensorboard")


def export(folder, examples):
    """Write a SavedModel that serves `create_serving_function`, and a .keras file of each model.

    The exported models are copies made without a strategy, which can be loaded anywhere.
    """
    reset_keras()  # a hook may draw constants, such as the frequencies of random features
    with tf.device("CPU:0"):
        copies, _ = create_model_and_optimizer(tf.distribute.get_strategy())
        for variable, trained in zip(list_variables(copies), list_variables(model), strict=True):
            variable.assign(trained)
    copies = tf.nest.flatten(copies)
    part = folder.with_name("export.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with report_export_errors("a SavedModel"):
        example = fetch(tf.nest.map_structure(lambda values: values[:1], examples))
        serve = create_serving_function(copies, example)
        if b"PyFunc" in serve.get_concrete_function().graph.as_graph_def().SerializeToString():
            raise ValueError("`preprocess` or the model runs Python, which can't be saved")
        archive = keras.export.ExportArchive()
        # TensorFlow exports a lookup table, as in `preprocess`, only if the archive tracks it.
        # `isinstance` would raise an error for a weak proxy of an object that is gone.
        for each in gc.get_objects():
            if issubclass(type(each), tf.saved_model.experimental.TrackableResource):
                archive.track(each)
        archive.add_endpoint("serve", serve)
        archive.write_out(part, verbose=False)
    for number, each in enumerate(copies, start=1):
        path = part / ("model.keras" if number == 1 else f"model_{number}.keras")
        form = f"{path.name} (register your own classes, with a get_config and a build)"
        with report_export_errors(form), tf.device("CPU:0"):
            each.save(path)
            loaded = keras.saving.load_model(path, compile=False)
            loaded.set_weights(each.get_weights())  # raises an error if it has fewer weights
    part.rename(folder)


@contextlib.contextmanager
def report_export_errors(form):
    """Print why a model can't be written in a form, and continue, unless the disk is full."""
    try:
        yield
    except Exception as error:  # hooks can raise any type
        if is_disk_full(error):
            raise
        print_status(f"export: the model can't be written as {form}: {get_reason(error)}")
