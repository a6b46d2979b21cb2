def check_run_dir():
    """Raise WrongInput if the run can't use --run-dir, before anything is written."""
    problem = None
    if re.search("^$|://", config.run_dir):
        problem = "is not a local folder"
    elif not config.run_dir.isprintable() or set("[\\") & set(run_path().as_posix()):
        problem = "has [, \\ or a character that can't be printed, which TensorFlow can't use"
    elif run_path("config.json").exists() and not run_path("metrics.jsonl").exists():
        problem = "has a config.json, but no metrics.jsonl: it is not a run"
    elif config.mode == "train" and not all(
        os.access(each, os.R_OK | os.W_OK | os.X_OK)
        for each in run_path().glob("[ct]*/**/")  # checkpoints and tensorboard
    ):
        problem = "has folders without permission to read or write"
    if problem:
        raise WrongInput(f"--run-dir {config.run_dir} {problem}; use another folder")
