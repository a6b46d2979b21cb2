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
            except (OSError, ValueError) as error:
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


def broadcast(array):
    """Returns the chief's array on every worker, bit by bit: a sum of which only its own numbers
    aren't 0."""
    numbers = np.frombuffer(array.tobytes() + bytes(-array.nbytes % 8), np.int64)
    content = sum_over_workers(numbers * (WORKER == 0)).tobytes()[: array.nbytes]
    return np.frombuffer(content, array.dtype).reshape(array.shape)


@contextlib.contextmanager
def end_as_the_chief():
    """Ends all workers where the chief, who alone reads and writes the run, ends in the block."""
    code = -1
    try:
        yield
    except SystemExit as end:
        code = end.code
    code = int(broadcast(np.array(code)))
    if code >= 0:
        raise SystemExit(code)


def check_workers(facts):
    """Ends all workers, in a line with both values, where a fact is not the chief's on one."""
    own = json.loads(json.dumps(facts))
    text = json.dumps(own).encode().ljust(1 << 14)
    chiefs = json.loads(broadcast(np.frombuffer(text, np.uint8)).tobytes())
    said = np.zeros([WORKERS, 1000], np.int64)  # of each worker, for all to read
    for key in [key for key in own if own[key] != chiefs.get(key)][:1]:
        line = f"worker {WORKER} has {key} {own[key]}, the chief {chiefs.get(key)}".encode()[:1000]
        said[WORKER, : len(line)] = np.frombuffer(line, np.uint8)
    for line in sum_over_workers(said).astype(np.uint8):
        if line.any():
            refuse(line.tobytes().rstrip(b"\0").decode() + "; start all with the same")
