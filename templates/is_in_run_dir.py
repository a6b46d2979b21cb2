def is_in_run_dir(error):
    """Return whether an exception is about a file of the run, or a folder above, not of a hook."""
    # One of these begins with the other. The slash tells "run" from "run2".
    paths = f"{getattr(error, 'filename', None) or None}/", f"{run_path()}/"
    return run_path() != Path() and os.path.commonprefix(paths) in paths
