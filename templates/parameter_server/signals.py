GRACE_SECONDS = 20  # after a signal, for the chief to save what servers and workers hold
signals: list[threading.Timer] = []  # started by the first signal; it ends the process


# {% include "on_signals.py" %}


def exit_on_signals():
    """End at once on SIGINT or SIGTERM: there is nothing to save."""
    on_signals(lambda *_: exit_process(RunInterrupted.exit_code))


def start_grace_period(*_):
    """End the process in GRACE_SECONDS, if it doesn't end before."""
    if not signals:
        timer = threading.Timer(GRACE_SECONDS, exit_process, [RunInterrupted.exit_code])
        timer.daemon = True
        signals.append(timer)
        timer.start()


def request_stop(*_):
    """Have the chief save and stop after the steps under way. A second signal ends it at once."""
    if signals:
        exit_process(RunInterrupted.exit_code)
    start_grace_period()
