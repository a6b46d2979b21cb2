def on_signals(handler):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def request_stop(*_):
    """Has the chief end after the steps under way; or in GRACE seconds, if no worker does them."""
    if signals:
        os._exit(143)  # Ctrl-C once more: not saved
    signals.append(threading.Timer(GRACE, os._exit, [143]))
    signals[0].daemon = True
    signals[0].start()
