def is_in_run_dir(error):
    """Return whether an exception names a path in the run directory, or a folder that contains it.

    With `--run-dir .`, return False, since the path may be of a hook's file.
    """
    # If one of two paths begins with the other, the other is their common prefix. With the slash,
    # "run2" doesn't begin with "run". Without a file name, the first is " /": no path begins so.
    paths = f"{getattr(error, 'filename', None) or ' '}/", f"{run_path()}/"
    return run_path() != Path() and os.path.commonprefix(paths) in paths
