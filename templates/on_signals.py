def on_signals(handler=signal.SIG_DFL):  # the default ends the process
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
