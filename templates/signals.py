stopping = threading.Event()  # set by SIGTERM or Ctrl-C, when Python has the word: between loops


def on_signals(handler):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
