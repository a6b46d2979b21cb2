def is_in_run_dir(error):
    """Return whether an exception is about a file of the run, or a folder above, not of a hook."""
    paths = f"{getattr(error, 'filename', None)}/", f"{run_path()}/"
    return os.path.commonprefix(paths) in paths
