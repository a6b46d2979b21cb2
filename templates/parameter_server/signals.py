def on_signals(handler):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def request_stop(number, _):
    """Has the chief end after the steps under way, and in any case before the servers do."""
    signals.append(number)
    if len(signals) > 1:
        os._exit(143)  # Ctrl-C once more: not saved
    timer = threading.Timer(GRACE, os._exit, [143])
    timer.daemon = True
    timer.start()
