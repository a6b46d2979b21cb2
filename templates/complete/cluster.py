def wait_for_workers(addresses):
    """Wait until all workers run. Raise RunInterrupted if one is missing after --timeout.

    The chief listens at its address in TF_CONFIG. Each worker connects and sends its index, in nine
    characters. When the chief has each index, it sends its own, 0, to all. A connected worker
    prints nothing, and waits as long as the chief does.

    TensorFlow listens at this address later. Its own wait may take an hour, prints nothing, and
    calls no Python handler.
    """
    host, _, port = addresses[0].rpartition(":")
    awaited = {0}
    server = None
    if config.worker_index == 0:
        awaited = set(range(1, len(addresses)))
        server = listen_at(port)
    connections = {}  # sockets by the index of the other worker
    started_at = time.monotonic()
    next_message = 5
    while missing := awaited - connections.keys():
        waited = time.monotonic() - started_at
        left = (config.timeout or 600) - waited
        names = " and ".join(f"worker {i} at {addresses[i]}" for i in sorted(missing))
        if left < 0:
            raise RunInterrupted(
                f"no connection to {names} within --timeout; start all workers again"
            )
        if waited > next_message:  # on each worker that has not reached the chief, too
            next_message += 60
            print(f"waiting for {names}, {left:.0f} s left")
        # OSError: nobody is there yet. OverflowError: the port is too high. ValueError: the port is
        # no number, or another program is there.
        with contextlib.suppress(OSError, OverflowError, ValueError):
            if server:
                connection, _ = server.accept()
                connection.settimeout(30)
            else:
                time.sleep(0.2)
                connection = socket.create_connection((host.strip("[]"), int(port)), timeout=30)
                connection.sendall(b"%9d" % config.worker_index)
                connection.settimeout(3600)  # the other workers may start later
            connections[int(connection.recv(9, socket.MSG_WAITALL))] = connection
    if server:
        release_workers(connections.values())
        server.close()


def release_workers(connections):
    """Send the chief's index to the other workers. Raise RunInterrupted if one has ended."""
    # A worker sends nothing more. If its connection can be read, it was closed.
    ended, *_ = select.select(connections, [], [], 0)
    if ended:
        raise RunInterrupted("a worker failed while it waited for others; start all workers again")
    for connection in connections:
        with contextlib.suppress(OSError):  # this worker has failed; TensorFlow waits for it
            connection.sendall(b"%9d" % 0)


def listen_at(port):
    """Return a socket that listens at a port, for IPv4 and, if the machine has it, IPv6."""
    is_dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    try:
        server = socket.create_server(("", int(port)), family=family, dualstack_ipv6=is_dual)
    except (OSError, OverflowError, ValueError) as error:
        raise WrongInput(
            f"TF_CONFIG: the chief can't listen at port {port} ({error}); use a free port"
        ) from error
    server.settimeout(0.5)
    return server


def broadcast(value, source=0):
    """Return the value of one worker, by default the chief, on every worker."""
    if config.workers == 1:
        return value
    # The sum of that worker's pickle and the other workers' zeros, as integers.
    content = pickle.dumps(value) if config.worker_index == source else b""
    size = sum_over_workers(math.ceil(len(content) / 4))
    numbers = np.frombuffer(content.ljust(4 * size, b"\0"), np.int32)
    # A message has at most 2 GiB. These have 128 MiB.
    pieces = np.split(numbers, range(1 << 24, size, 1 << 24))
    received = [np.int32(sum_over_workers(piece)).tobytes() for piece in pieces]
    return pickle.loads(b"".join(received))


def run_on_chief(function, *arguments):
    """Return on all workers what a function returns on the chief, or raise what it raises.

    These are WrongInput, RunFinished and OSError. Another error ends the chief, and the others
    report that it has failed. The other workers need no access to the run directory.
    """
    value = error = None
    if config.worker_index == 0:
        try:
            value = function(*arguments)
        except (WrongInput, RunFinished, OSError) as raised:
            error = raised
    value, error = broadcast((value, error))
    if error:
        raise error
    return value


def check_workers(datasets):
    """Raise WrongInput if a worker's flags, train.py or data differ from the chief's."""
    facts = describe_run()
    for name in "run_dir timeout profile git_commit worker_index".split():
        del facts[name]
    facts["data"] = [describe_examples(*each) for each in datasets.values()]
    facts["train.py"] = zlib.crc32(Path(__file__).read_bytes())
    chief_facts = broadcast(facts)
    for worker in range(1, config.workers):
        for name, value in broadcast(facts, source=worker).items():
            if value != chief_facts.get(name):
                raise WrongInput(
                    f"worker {worker} has {name} {value}, but the chief has "
                    f"{chief_facts.get(name)}; make both equal, and start all workers again"
                )
