signals: list[int] = []  # received while training; Python sees them between loops


# {% include "on_signals.py" %}


def exit_on_signals():
    """End at once on SIGINT or SIGTERM: there is nothing to save."""
    on_signals(lambda *_: exit_process(143))
