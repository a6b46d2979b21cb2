ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def on_signals(handler=signal.SIG_DFL):  # the default ends the process
    for number in ENDING_SIGNALS:
        signal.signal(number, handler)
