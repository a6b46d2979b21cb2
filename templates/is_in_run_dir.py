def is_in_run_dir(error):
    """Return whether an exception is about a file of the run, or a folder above, not of a hook."""
    # One of these has to begin with the other. With the slash, "run2" doesn't begin with "run".
    paths = f"{getattr(error, 'filename', None) or None}/", f"{run_path()}/"
    return run_path() != Path() and os.path.commonprefix(paths) in paths
