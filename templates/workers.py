def read_tf_config():
    """Returns this worker's index and the addresses of all, from TF_CONFIG. The chief is 0."""
    example = (
        '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
    )
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        if config == {}:
            return 0, ["localhost"]
        cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
        if job == "evaluator":  # alone, beside the cluster
            args.mode = "continuous_evaluate"
            return 0, ["localhost"]
        for name, addresses in cluster.items():
            if name not in ("chief", "worker", "evaluator") or not isinstance(addresses, list):
                raise ValueError(
                    "synchronous training has the jobs chief and worker, each a list of addresses, "
                    f'not "{name}": {addresses!r}'
                )
        if index not in range(len(cluster.get(job, []))):
            raise ValueError(f"the cluster has no {job} {index}, which the task says this is")
        chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
        for address in chiefs + workers:
            if not re.fullmatch(r".+:\d+", str(address)):
                raise ValueError(f"{address!r} is no address, host:port")
    except KeyError as key:
        refuse(f"TF_CONFIG has no {key}; it should be like {example}")
    except (ValueError, TypeError, AttributeError) as error:
        refuse(f"TF_CONFIG: {error}; it should be like {example}")
    return index + len(chiefs) * (job == "worker"), chiefs + workers


peers: dict = {}  # on the chief a connection to each worker, by its index; on others, to the chief


def meet(addresses):
    """Waits until the chief has a connection to each worker, at its address in TF_CONFIG, where
    TensorFlow listens later. TensorFlow itself would wait for an hour, deaf to signals, since it
    holds Python's lock meanwhile."""
    host, _, port = addresses[0].rpartition(":")
    others = range(1, WORKERS) if WORKER == 0 else [0]
    began, limit, told = time.monotonic(), args.timeout or 600, 0
    with contextlib.ExitStack() as stack:
        if WORKER == 0:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                server = stack.enter_context(socket.create_server(("", int(port)), family=family))
            except OSError as error:
                refuse(f"TF_CONFIG: the chief can't listen at {addresses[0]} ({error.strerror})")
            server.settimeout(0.5)
        while missing := [f"worker {i} at {addresses[i]}" for i in others if i not in peers]:
            waited, names = time.monotonic() - began, " and ".join(missing)
            if waited > limit:
                fail(f"{names} did not come in {limit:g} s; start all workers again", code=143)
            if waited > 5 + 60 * told:  # all workers say it, not only the chief
                told += 1
                print(f"waiting for {names}, for {limit - waited:.0f} s more", flush=True)
            with contextlib.suppress(OSError, ValueError):  # nobody there, or somebody else
                if WORKER == 0:
                    connection, _ = server.accept()
                else:
                    time.sleep(0.2)
                    connection = socket.create_connection((host.strip("[]"), int(port)), 30)
                connection.settimeout(30)
                file = connection.makefile("rw")
                file.write(f"{WORKER}\n")
                file.flush()
                peers[int(file.readline())] = file
                connection.settimeout(None)


def compare(**facts):
    """Ends all workers, in a line with both values, where a fact is not the chief's on one."""
    for index, file in sorted(peers.items()):
        try:
            if WORKER:  # the chief is who compares
                file.write(json.dumps(facts) + "\n")
                file.flush()
                answer = file.readline()
                if answer != "go\n":
                    leave(int(answer))  # as the chief ends
                continue
            theirs = json.loads(file.readline())
            others = [key for key in facts if theirs.get(key) != json.loads(json.dumps(facts[key]))]
        except (OSError, ValueError, AttributeError):
            fail(f"worker {index} is lost; start all workers again", code=143)
        for key in others:
            refuse(
                f"worker {index} has {key} {theirs.get(key)}, the chief {facts[key]}; start all "
                "with the same"
            )
    if WORKER == 0:
        tell_peers("go")


def watch_peers():
    """Ends this worker at once when another ends before it is done. TensorFlow would notice at the
    next sum over all workers, which may be minutes away."""

    def watch(index, file):
        with contextlib.suppress(OSError, ValueError):
            if file.readline() == "0\n":
                return
        ending.acquire()
        print(f"train.py: stopped: worker {index} is lost; start all again", file=sys.stderr)
        interrupt()

    for peer in peers.items():
        threading.Thread(target=watch, args=peer, daemon=True).start()


def tell_peers(word):
    """Sends "go" to those who wait for the chief, or the exit code of this worker."""
    for file in peers.values():
        with contextlib.suppress(OSError, ValueError):
            file.write(f"{word}\n")
            file.flush()
