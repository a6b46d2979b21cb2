def read_weights(path):
    """Return the (name, value) of all weights in a run, a checkpoint, an export or a .keras file.

    For a run, they are of its best checkpoint.
    """
    try:
        if Path(path, "model.keras").exists():  # an export
            path = f"{path}/model.keras"
        if path.endswith(".keras"):
            variables = keras.saving.load_model(path, compile=False).variables
            return [(variable.path, variable.numpy()) for variable in variables]
        best = tf.train.latest_checkpoint(Path(path, "checkpoints/best"))
        checkpoint = read_checkpoint(best or path)
        return [
            (name.decode(), checkpoint[f"model/{position}"])
            for position, name in enumerate(checkpoint["names"])
        ]
    except Exception as error:
        # OSError, ValueError, KeyError and others, by what is missing or corrupt.
        raise WrongInput(
            f"--init-checkpoint {path} is no run, checkpoint or .keras file "
            f"({get_reason(error)}); use one"
        ) from error


def load_initial_weights(path):
    """Load the weights whose name and shape agree with the model's, and print the other names.

    Raise WrongInput if none agrees.
    """
    weights = [weight for each in tf.nest.flatten(model) for weight in each.weights]
    outer = f"{tf.nest.flatten(model)[0].name}/"  # Keras leaves it out when it loads a Sequential
    pairs = run_on_chief(read_weights, path)
    loaded = 0
    for weight in weights:
        key = (weight.path.removeprefix(outer), tuple(weight.shape))
        keys = [(name.removeprefix(outer), value.shape) for name, value in pairs]
        if key not in keys:
            print_status(f"  not loaded, its name or shape is new: {weight.path}")
            continue
        _, value = pairs.pop(keys.index(key))  # two layers may have one name
        weight.assign(value)
        loaded += 1
    if weights and not loaded:
        raise WrongInput(
            f"--init-checkpoint {path} has no weight with the name and shape of one in the model, "
            f"such as {weights[0].path}; use another file"
        )
    print_status(f"{path}: loaded {loaded} of {len(weights)} weights")


def read_initial_adapted():
    """Return what `adapt` returned in the run of --init-checkpoint, or {}.

    The initial weights of an embedding belong to the vocabulary of that run.
    """
    if config.init_checkpoint:
        path = Path(config.init_checkpoint)
        for folder in (path, *path.parents):  # the run, or a file in checkpoints/best/
            if (folder / "adapted.json").exists():
                # `run_path` returns an absolute path as it is.
                return read_object(folder.absolute() / "adapted.json")
    return {}
