def run(argv=None):
    """Run `main`. If it raises, report why, and end the process with the exit code."""
    # Each line appears at once. A terminal without × and █ shows a question mark.
    sys.stdout.reconfigure(errors="replace", line_buffering=True)
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
        if config.workers > 1:
            time.sleep(1)  # other workers may still need this one for the last sum
        os._exit(report_error(error))  # Python's own shutdown would wait for the other workers
    # {% else %}
    error = None
    try:
        main(argv)
    except Exception as raised:
        error = raised  # kept: deleting the variables of `main` would wait for lost workers
    code = report_error(error) if error else 0
    if coordinator and code == 0:
        dismiss_tasks()
    if coordinator or error:
        os._exit(code)  # Python's own shutdown would wait for the other workers
    # {% endif %}


if __name__ == "__main__":
    run()
