# Received in training or validation, and handled after the next training loop. After the last one,
# the run is tested and exported as usual.
signals: list = []


# {% include "on_signals.py" %}


def exit_on_signals():
    """End without saving on SIGINT or SIGTERM, when the graph that is running returns."""
    on_signals(lambda *_: exit_process(143))
