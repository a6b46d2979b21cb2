def is_in_run_dir(error):
    """Return whether an exception names a path in the run directory, or a folder that contains it.

    With `--run-dir .`, return False, since the path may be of a hook's file.
    """
    # With the slash, "run2" doesn't begin with "run". Without a file name, no path begins with " ".
    path = f"{getattr(error, 'filename', None) or ' '}/"
    folder = f"{run_path()}/"
    return folder != "./" and (path.startswith(folder) or folder.startswith(path))
