def is_in_run_dir(error):
    """Return whether an exception is about a file of the run, and not of a hook."""
    return (
        isinstance(error, OSError)
        and run_path() != Path()
        and Path(f"{error.filename}").is_relative_to(run_path())
    )
