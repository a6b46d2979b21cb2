# {% extends "export.py" %}
# {% block head %}
@contextlib.contextmanager
def as_far_as_possible(what):
    """Says why a model can't be written in a form: the run is none the worse for it."""
    try:
        yield
    except Exception as error:  # of many kinds, by what the hooks do
        if "No space left on device" in str(error):
            raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        say(f"export: the model can't be written as {what}: {reason}")


def export(folder, examples, weights=None):
    """Writes a SavedModel of (what `fetch` puts first), and model.keras of (the features).
    Of several models, the SavedModel runs the first; the others are in model_2.keras, …."""
    # {% endblock %}
    # {% block policy %}
    keras.config.set_dtype_policy(PRECISION)
    # {% endblock %}
    if True:
        # {% block assign %}
        copies = [x for each in models for x in each.variables]
        for copy, weight in zip(copies, weights or [x.numpy() for x in copies], strict=True):
            copy.assign(weight)
        # {% endblock %}
    # {% block write %}
    part.mkdir(parents=True)
    with as_far_as_possible("a SavedModel"):
        graph = serve.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(x for f in graph.library.function for x in f.node_def)]
        if any("PyFunc" in node.op for node in nodes):
            raise ValueError("`preprocess` or the model runs Python, which is not in the file")
        archive.track(models[0])
        archive.add_endpoint("serve", serve)
        archive.write_out(part, verbose=False)
    for number, each in enumerate(models, start=1):
        path = part / ("model.keras" if number == 1 else f"model_{number}.keras")
        with as_far_as_possible(path.name), tf.device("CPU:0"):
            each.save(path)
            keras.saving.load_model(path, compile=False)
    shutil.rmtree(folder, ignore_errors=True)
    # {% endblock %}
