def export(folder, examples, weights=None):
    """Writes a folder: a SavedModel that takes what stands first in an example, as create_datasets
    gives it, [batch, …]; and model.keras, which takes the features of `preprocess`. Several models:
    the SavedModel runs the first; each other is in model_2.keras, ….

    Returns what could not be written, and why, as text.
    """
    # A copy, made without a strategy, loads anywhere, and takes no place on a full GPU. Keras is to
    # count its layers from 1 again.
    keras.utils.clear_session()
    keras.config.set_dtype_policy(PRECISION)
    with tf.device("CPU:0"):
        exported, _ = create_model_and_optimizer(tf.distribute.get_strategy())
        exported = tf.nest.flatten(exported)
        if weights:
            copies = [x for each in exported for x in each.variables]
            for variable, value in zip(copies, weights, strict=True):
                variable.assign(value)
    inputs, *others = examples if isinstance(examples, tuple) else (examples,)
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), inputs)

    @tf.function(input_signature=[spec])
    def serve(inputs):
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        blank = tf.nest.map_structure(lambda x: tf.zeros([size, *x.shape[1:]], x.dtype), others)
        batch = (inputs, *blank) if isinstance(examples, tuple) else inputs
        batch = preprocess(batch, tf.zeros([size, 2], tf.int32), training=False)
        return exported[0](batch[0], training=False)

    def write_saved_model():
        graph = serve.get_concrete_function().graph
        if any("PyFunc" in x.op for x in graph.as_graph_def().node) or any(
            "PyFunc" in x.op for f in graph.as_graph_def().library.function for x in f.node_def
        ):
            raise ValueError("`preprocess` or the model runs Python, which is not in the file")
        archive = keras.export.ExportArchive()
        for each in exported:
            archive.track(each)
        archive.add_endpoint("serve", serve)
        archive.write_out(part, verbose=False)

    def write_keras():
        for number, each in enumerate(exported, start=1):
            path = part / ("model.keras" if number == 1 else f"model_{number}.keras")
            each.save(path)
            with tf.device("CPU:0"):
                keras.saving.load_model(path, compile=False)

    part, problems = folder.with_name(f"{folder.name}.part"), []
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


# {% if cookiecutter.task == "text_classification" %}
def check_preset():
    """Refuses a preset that can't be loaded."""
    try:
        create_preprocessor()
    except Exception as error:  # of any kind, from the network or a file
        if not is_preset():
            raise
        reason = str(error).partition("\n")[0]
        refuse(
            f"--init-checkpoint {INIT_CHECKPOINT} is no run, checkpoint or .keras file, and no "
            f"preset that KerasHub can load ({reason})"
        )


# {% endif %}
def load_weights(path):
    """Gives the model the weights of a run (its best), of one of its checkpoints, or of a .keras
    file, where path and shape are the same. Says which."""
    # {% if cookiecutter.task == "text_classification" %}
    if is_preset():  # the hook has loaded it
        say(f"{path}: loaded all weights of the preset; left new: {model.layers[-1].name}")
        return
    # {% endif %}
    weights = [x for each in tf.nest.flatten(model) for x in each.weights]
    folder, outer, pairs = Path(path), f"{tf.nest.flatten(model)[0].name}/", []
    try:
        if (folder / "checkpoints").is_dir() or Path(f"{path}.index").exists():
            best, last = folder / "checkpoints" / "best", folder / "checkpoints" / "last"
            newest = tf.train.latest_checkpoint(best) or tf.train.latest_checkpoint(last)
            values = read_checkpoint(newest or path)
            pairs = zip([name.decode() for name in values["names"]], values["model"], strict=True)
        else:
            if (folder / "saved_model.pb").exists():  # whose weights have no paths
                folder /= "model.keras"
            loaded = keras.saving.load_model(folder, compile=False)
            for x in loaded.variables:  # Keras leaves out a Sequential's name when it loads one
                name = x.path.removeprefix(outer)
                pairs += [(name, x.numpy()), (outer + name, x.numpy())]
    except Exception as error:  # of a dozen kinds, by what is missing or damaged
        reason = str(error).partition("\n")[0]
        refuse(f"--init-checkpoint {path} is no run, checkpoint or .keras file ({reason})")
    values = {}
    for name, value in pairs:  # two layers may have one name: the first to the first
        values.setdefault(name, []).append(value)
    said, fit = [], 0
    for weight in weights:
        value = values[weight.path].pop(0) if values.get(weight.path) else None
        if value is None:
            said.append(f"  left new: {weight.path}")
        elif value.shape != weight.shape:
            shapes = f"{value.shape}, here {weight.shape}"
            said.append(f"  skipped for its shape: {weight.path} {shapes}")
        else:
            said.append(f"  loaded: {weight.path}")
            fit += 1
            with strategy.scope():
                weight.assign(value)
    if not fit:
        refuse(f"--init-checkpoint {path} has no weight that fits, of {weights[0].path}, …")
    say("\n".join([f"{path}: loaded {fit} of {len(weights)} weights", *said]))
