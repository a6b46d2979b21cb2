def read_object(name):
    """Return the JSON object in a file of the run, as a dict."""
    path = run_path(name)
    try:
        return {**json.loads(path.read_text("utf-8"))}
    except Exception as error:
        # OSError, TypeError for another JSON value, or ValueError for no JSON.
        raise WrongInput(f"{path} is corrupt ({error}); use another --run-dir") from error
