def parse_object(text):
    """Return a JSON object as a dict. Raise TypeError for another JSON value."""
    return {**json.loads(text)}


def read_file(name, parse):
    """Return what `parse` makes of the text of a file of the run."""
    path = run_path(name)
    try:
        return parse(path.read_text("utf-8"))
    except Exception as error:
        # OSError, or what parsing raises: AttributeError, KeyError, TypeError or ValueError.
        raise WrongInput(f"{path} is corrupt ({error}); use another --run-dir") from error
