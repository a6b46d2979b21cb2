def export_model(datasets):
    """Export the tested model to the run directory."""
    # {% if cookiecutter.__size == "parameter_server" %}
    export(run_path("export"), datasets["test"][0])
    # {% else %}
    if config.worker_index == 0:
        export(run_path("export"), datasets["test"][0])
    # {% endif %}
    print_status(f"written to {config.run_dir}: checkpoints, export, metrics.jsonl, tensorboard")
    # {% if cookiecutter.__size != "parameter_server" %}
    # Wait for all workers: one that ends while others run would be reported as lost.
    sum_over_workers(0)
    # {% endif %}


def export(folder, examples):
    """Write a SavedModel that serves `create_serving_function`, and the first model as model.keras.

    The exported models are copies made without a strategy, which can be loaded anywhere.
    """
    reset_keras()  # a hook may draw constants, such as the frequencies of random features
    with tf.device("CPU:0"):
        copies, _ = create_model_and_optimizer(tf.distribute.get_strategy())
        for variable, trained in zip(list_variables(copies), list_variables(model), strict=True):
            variable.assign(trained)
    copies = tf.nest.flatten(copies)
    example = fetch(tf.nest.map_structure(lambda values: values[:1], examples))
    archive = keras.export.ExportArchive()
    archive.add_endpoint("serve", create_serving_function(copies, example))
    # TensorFlow exports a lookup table only if the archive tracks it. `create_serving_function` may
    # create one, so the search comes after the call.
    # `isinstance` would raise an error for a weak proxy of an object that is gone.
    for each in gc.get_objects():
        if issubclass(type(each), tf.saved_model.experimental.TrackableResource):
            archive.track(each)
    part = run_path("checkpoints/best/export_temp")  # removed at the next start, after a kill
    archive.write_out(part, verbose=False)
    copies[0].save(part / "model.keras")
    part.rename(folder)
