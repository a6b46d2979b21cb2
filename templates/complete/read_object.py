def read_object(name):
    """Return the JSON object in a file of the run, as a dict. Raise WrongInput if that fails."""
    path = run_path(name)
    try:
        return {**json.loads(path.read_text())}
    except Exception as error:
        # OSError, TypeError for another JSON value, or ValueError for no JSON.
        raise WrongInput(
            f"{path} can't be read ({error}); correct or restore it, or use another --run-dir"
        ) from error
