def meet(addresses):
    """Waits until all workers have come, at the chief's address in TF_CONFIG, where TensorFlow
    listens later: it would wait for an hour, and Python hear nothing meanwhile."""
    host, _, port = addresses[0].rpartition(":")
    limit, told, began = args.timeout or 600, 0, time.monotonic()
    missing = dict(enumerate(addresses[1:], start=1)) if WORKER == 0 else {0: addresses[0]}
    with contextlib.ExitStack() as stack:
        if WORKER == 0:
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                server = stack.enter_context(socket.create_server(("", int(port)), family=family))
            except (OSError, OverflowError, ValueError) as error:
                refuse(f"TF_CONFIG: the chief can't listen at {addresses[0]} ({error})")
            server.settimeout(0.5)
        while missing:
            waited = time.monotonic() - began
            names = " and ".join(f"worker {i} at {address}" for i, address in missing.items())
            if waited > limit:
                refuse(f"{names} did not come in {limit:g} s; start all workers again", code=143)
            if waited > 5 + 60 * told:  # all workers say it, not only the chief
                told += 1
                print(f"waiting for {names}, for {limit - waited:.0f} s more", flush=True)
            with contextlib.suppress(OSError, ValueError):  # nobody there, or somebody else
                if WORKER == 0:
                    connection, _ = server.accept()
                else:
                    time.sleep(0.2)
                    connection = socket.create_connection((host.strip("[]"), int(port)), 30)
                stack.enter_context(connection).settimeout(30)
                connection.sendall(b"%9d" % WORKER)
                missing.pop(int(connection.recv(9, socket.MSG_WAITALL)), None)


def broadcast(value):
    """Returns the chief's value on every worker: the sum of its pickle and of others' zeros."""
    if WORKERS == 1:
        return value
    content = pickle.dumps(value) if WORKER == 0 else b""
    size = sum_over_workers(-(-len(content) // 4))
    content = np.frombuffer(content.ljust(4 * size, b"\0"), np.int32)
    pieces = np.split(content, range(1 << 24, size, 1 << 24))  # a message has at most 2 GiB
    return pickle.loads(b"".join(np.int32(sum_over_workers(x)).tobytes() for x in pieces))


def ask_the_chief(function, *arguments):
    """Returns on all workers what a function returns on the chief, who alone reads and writes the
    run: others needn't be able to. Where it ends the chief, all end."""
    value, code = None, None
    try:
        if WORKER == 0:
            value = function(*arguments)
    except SystemExit as end:
        code = end.code
    except OSError as error:
        code = explain(error)
    value, code = broadcast((value, code))
    if code is not None:
        raise SystemExit(code)
    return value


def check_workers(facts):
    """Ends all workers, in a line with both values, where a fact is not the chief's on one."""
    text, texts = json.dumps(facts).encode(), np.zeros([WORKERS, 1 << 14], np.int64)
    texts[WORKER, : len(text)] = np.frombuffer(text, np.uint8)
    texts = sum_over_workers(texts).astype(np.uint8)  # of each worker, for all to read
    chiefs, *others = [json.loads(row.tobytes().rstrip(b"\0")) for row in texts]
    for worker, its in enumerate(others, start=1):
        for key in (key for key in its if its[key] != chiefs.get(key)):
            refuse(f"worker {worker} has {key} {its[key]}, but the chief has {chiefs.get(key)}")
