def run(argv=None):
    """Run `main`. If it raises, report why, and end the process with the exit code."""
    sys.stdout.reconfigure(errors="replace")  # for terminals without × and █
    # {% if cookiecutter.__size == "complete" %}
    try:
        main(argv)
    except Exception as error:
        end_process(error)
    shutil.rmtree(state.scratch, ignore_errors=True)
    # {% elif cookiecutter.__size == "essential" %}
    try:
        main(argv)
    except Exception as error:
        code = report_error(error)
        if config.workers > 1:
            time.sleep(1)  # other workers may still need this one for the last sum
        exit_process(code)
    # {% else %}
    try:
        main(argv)
        code = 0
    except Exception as error:
        code = report_error(error)
    if coordinator and code == 0:
        dismiss_tasks()
    if config.servers or code:
        sys.stdout.flush()
        exit_process(code)
    # {% endif %}


if __name__ == "__main__":
    run()
