signals: list[int] = []  # received while training; Python sees them between loops


def on_signals(handler):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def exit_on_signals():
    """End at once on SIGINT or SIGTERM: there is nothing to save."""
    on_signals(lambda *_: exit_process(143))
