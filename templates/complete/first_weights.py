def read_weights(path):
    """Returns (name, value) of the weights of a run (its best), of a checkpoint or .keras file."""
    folder, outer, pairs = Path(path), f"{tf.nest.flatten(model)[0].name}/", []
    try:
        if (folder / "checkpoints").is_dir() or Path(f"{path}.index").exists():
            best, last = folder / "checkpoints" / "best", folder / "checkpoints" / "last"
            newest = tf.train.latest_checkpoint(best) or tf.train.latest_checkpoint(last)
            values = read_checkpoint(newest or path)
            return [(name.decode(), values["model"][i]) for i, name in enumerate(values["names"])]
        folder /= "model.keras" * folder.is_dir()  # of an export, but none of its own code is run
        for x in keras.saving.load_model(folder, compile=False).variables:
            name = x.path.removeprefix(outer)  # Keras leaves it out when it loads a Sequential
            pairs += [(name, x.numpy()), (outer + name, x.numpy())]
        return pairs
    except Exception as error:  # of a dozen kinds, by what is missing or damaged
        reason = str(error).partition("\n")[0]
        refuse(f"--init-checkpoint {path} is no run, checkpoint or .keras file ({reason})")


def load_weights(path):
    """Gives the model the weights of a path, where name and shape are the same. Says which."""
    weights = [x for each in tf.nest.flatten(model) for x in each.weights]
    pairs, loaded = ask_the_chief(read_weights, path), 0
    for weight in weights:
        fits = [i for i, x in enumerate(pairs) if (x[0], x[1].shape) == (weight.path, weight.shape)]
        say(f"  {'loaded' if fits else 'left new, for its name or shape'}: {weight.path}")
        loaded += bool(fits)
        with strategy.scope():
            for i in fits[:1]:  # two layers may have one name: the first to the first
                weight.assign(pairs.pop(i)[1])
    if not loaded:
        refuse(f"--init-checkpoint {path} has no weight that fits, of {weights[0].path}, …")
    say(f"{path}: loaded {loaded} of {len(weights)} weights")
