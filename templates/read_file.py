def read_file(name, parse=lambda text: {**json.loads(text)}):
    """Return what `parse` makes of the text of a file of the run, by default a JSON object.

    Raise WrongInput if the file can't be read or parsed.
    """
    path = run_path(name)
    try:
        return parse(path.read_text())
    except Exception as error:
        # OSError, or what parsing raises: AttributeError, KeyError, TypeError or ValueError.
        raise WrongInput(
            f"{path} can't be read ({error}); correct or restore it, or use another --run-dir"
        ) from error
