# Received in training or validation, and handled when a training loop ends. Those that come in the
# last validation are ignored: the run is tested and exported as usual.
signals: list = []


def exit_on_signals():
    """End without saving on SIGINT or SIGTERM, when the graph that is running returns."""
    on_signals(lambda *_: os._exit(143))
