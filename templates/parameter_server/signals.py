# The time for steps under way after a signal, and until an unreachable task counts as lost. The
# chief may wait twice as long, so use at most a third of the scheduler's time until SIGKILL.
GRACE_SECONDS = 20
signals: list = []  # received by this task; on the chief, their times


def exit_on_signals():
    """End at once on SIGINT or SIGTERM: there is nothing to save."""
    on_signals(lambda *_: os._exit(143))


def start_grace_period(*received):
    """End a worker in GRACE_SECONDS, if it doesn't end before."""
    signals.append(received)
    threading.Timer(GRACE_SECONDS, os._exit, [143]).start()
