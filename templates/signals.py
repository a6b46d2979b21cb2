# SIGINT or SIGTERM, received in training or validation. The end of the next training loop handles
# them. In the last validation they are ignored: the run is tested and exported as usual.
signals: list = []


def exit_on_signals():
    """End without saving on SIGINT or SIGTERM, when the graph that is running returns."""
    on_signals(lambda *_: os._exit(143))
