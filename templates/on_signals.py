def on_signals(handler=signal.SIG_DFL):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
