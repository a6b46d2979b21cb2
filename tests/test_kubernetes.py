"""launch/kubernetes.yaml and the Dockerfile, without a Kubernetes: no API server can be had here.

`kubernetes-validate` finds misspelt fields and wrong types by the schemas of each version, and
`find_faults` what these leave open. The commands of the pods are run, as are the image's steps.
"""

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from conftest import TIMEOUT

VERSIONS = list(dict.fromkeys(kubernetes_validate.utils.all_versions()))
VERSIONS = VERSIONS[VERSIONS.index("1.29.0") :]
KINDS = [("v1", "Service"), ("v1", "PersistentVolumeClaim"), ("batch/v1", "Job")]

SPEC = "2.spec.template.spec"  # of the pods
CONTAINER = f"{SPEC}.containers.0"
RULES = "2.spec.podFailurePolicy.rules"
ABSENT = object()

UV = os.environ.get("UV") or shutil.which("uv")  # `uv run` sets it

# By Kubernetes's grammar of quantities, but for exponents.
SUFFIXES = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SUFFIXES |= {f"{x}i": 1024**n for n, x in enumerate("KMGT", start=1)}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(" + "|".join(SUFFIXES) + ")")

# Stands in for Python in a pod. It tells what it got, and waits for the signal.
STUB = """#!{python}
import json, os, signal, sys, time

def receive(number, frame):
    os.write(1, signal.Signals(number).name.encode())
    os._exit(143)

signal.signal(signal.SIGTERM, receive)
facts = {{"pid": os.getpid(), "argv": sys.argv[1:], "TF_CONFIG": os.environ["TF_CONFIG"]}}
print(json.dumps(facts), flush=True)
time.sleep({timeout})
"""


@pytest.fixture(scope="module")
def product(render, tmp_path_factory):
    """Return the folder of a project for Kubernetes."""
    folder = tmp_path_factory.mktemp("kubernetes")
    return render(folder, cluster="kubernetes", project_slug="some_slug")


@pytest.fixture(scope="module")
def manifest(product):
    """Return the text of launch/kubernetes.yaml."""
    return (product / "launch" / "kubernetes.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def steps(product):
    """Return the Dockerfile's instructions, in order, as pairs of a word and what follows it."""
    text = (product / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def read_documents(text):
    return list(yaml.safe_load_all(text))


def find(tree, path, default=None):
    """Return what is at a path of keys and indices in a document, or else the default."""
    for key in path.split("."):
        try:
            tree = tree[int(key) if isinstance(tree, list) else key]
        except (KeyError, IndexError, TypeError):
            return default
    return tree


def put(tree, path, value):
    """Put a value at a path, which has to exist if that is `ABSENT`."""
    *path, key = path.split(".")
    for each in path:
        tree = tree[int(each) if isinstance(tree, list) else each]
    key = int(key) if isinstance(tree, list) else key
    if value is ABSENT:
        del tree[key]
    else:
        tree[key] = value


def measure(quantity):
    """Return a quantity as a number, or None if it isn't one."""
    match = QUANTITY.fullmatch(str(quantity))
    return match and float(match[1]) * SUFFIXES[match[2]]


def is_label(text):
    """Return whether a text can be a part of a name in the DNS, and the name of a Service."""
    return bool(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", str(text)))


def decide(rules, code, container="train", disrupted=False):
    """Return what a Job does about a pod that has failed: the action of the first rule it meets."""
    for rule in rules:
        conditions = find(rule, "onPodConditions", [])
        codes = find(rule, "onExitCodes.values", [])
        meets = any(x == {"type": "DisruptionTarget", "status": "True"} for x in conditions)
        if disrupted and meets:
            return rule["action"]
        if codes and find(rule, "onExitCodes.containerName") in (None, container):
            if (code in codes) == (rule["onExitCodes"]["operator"] == "In"):
                return rule["action"]
    return "Count"


def find_faults(documents):
    """Return the rules that the documents break, of those that no schema has."""
    if [(x.get("apiVersion"), x.get("kind")) for x in documents] != KINDS:
        return [f"the documents are {KINDS}"]
    service, claim, job = documents
    name, completions = find(service, "metadata.name"), find(job, "spec.completions")
    rules = find(job, "spec.podFailurePolicy.rules", [])
    pod = find(job, "spec.template.spec", {})
    container = find(pod, "containers.0", {})
    variables = {x["name"]: x.get("value") for x in container.get("env", [])}
    command = " ".join(container.get("command", []))
    ports = [x.get("port") for x in find(service, "spec.ports", [])]
    selector, labels = find(service, "spec.selector"), find(job, "spec.template.metadata.labels")
    volumes = {x["name"]: x for x in pod.get("volumes", [])}
    mounts = {x["name"]: x["mountPath"] for x in container.get("volumeMounts", [])}
    claims = [find(x, "persistentVolumeClaim.claimName") for x in volumes.values()]
    shm = find(volumes, "shm.emptyDir", {})
    requests, limits = (find(container, f"resources.{x}", {}) for x in ("requests", "limits"))
    sizes = [*requests.values(), *limits.values(), find(shm, "sizeLimit")]
    sizes.append(find(claim, "spec.resources.requests.storage"))
    memory = measure(limits.get("memory")) or 0
    run_dirs = [x.removeprefix("--run-dir=") for x in container.get("args", []) if "run-dir" in x]
    security = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
    holds = {
        # The names, by which the pods find one another.
        "the Service's name is one": is_label(name),
        "the claim's name is one": is_label(find(claim, "metadata.name")),
        "the host names are names": is_label(f"{find(job, 'metadata.name')}-{completions}"),
        "the Service is headless": find(service, "spec.clusterIP") == "None",
        "it has names of pods that aren't ready": find(service, "spec.publishNotReadyAddresses"),
        "it selects the pods": selector and selector.items() <= (labels or {}).items(),
        "the pods have it as subdomain": find(pod, "subdomain") == name,
        "no pod sets a host name of its own": "hostname" not in pod,
        "NAME is the Job's and the Service's": (
            variables.get("NAME") == name == find(job, "metadata.name")
        ),
        "the ports are those of TF_CONFIG": (
            ports == [x.get("containerPort") for x in container.get("ports", [])]
            and re.findall(r"\$NAME:(\d+)", command) == [str(x) for x in ports]
        ),
        # The number of workers.
        "the pods are numbered": find(job, "spec.completionMode") == "Indexed",
        "all workers run at once": find(job, "spec.parallelism") == completions,
        "WORKERS is their number": variables.get("WORKERS") == str(completions),
        # What becomes of a pod that has failed.
        "the Job replaces pods": find(pod, "restartPolicy") == "Never",
        "a rule has one condition": all(
            set(x) in ({"action", "onExitCodes"}, {"action", "onPodConditions"}) for x in rules
        ),
        "actions are known": {x.get("action") for x in rules} <= {"Ignore", "FailJob", "Count"},
        "operators are known": {find(x, "onExitCodes.operator", "In") for x in rules}
        <= {"In", "NotIn"},
        "exit codes ascend": all(
            (codes := find(x, "onExitCodes.values", [1])) == sorted({*codes}) != [] for x in rules
        ),
        "containers are known": {find(x, "onExitCodes.containerName", "train") for x in rules}
        <= {container.get("name")},
        "a disruption isn't counted": all(
            decide(rules, code, disrupted=True) == "Ignore" for code in (1, 137, 143)
        ),
        "what would come again fails": all(
            decide(rules, code) == "FailJob" for code in (1, 2, 127, 134, 137, 139)
        ),
        "what goes on is replaced": all(decide(rules, code) == "Count" for code in (143, 255)),
        "some losses of a worker are borne": find(job, "spec.backoffLimit", 6) >= 5 * completions,
        # The signal reaches Python, which has time to save.
        "the shell becomes Python": "\nexec python -u train.py" in command,
        "Python isn't process 1": find(pod, "shareProcessNamespace") is True,
        "there is time to save": find(pod, "terminationGracePeriodSeconds", 30) >= 60,
        # Kubernetes leaves the command to the shell.
        "the command is the shell's": not re.search(rf"\$\$|\$\(({'|'.join(variables)})\)", command)
        and container.get("command", [])[:2] == ["sh", "-c"],
        # Volumes and resources.
        "volumes and mounts are the same": set(volumes) == set(mounts),
        "mounts are at places of their own": len({*mounts.values()}) == len(mounts),
        "the claim is mounted": find(claim, "metadata.name") in claims,
        "all nodes can mount it": find(claim, "spec.accessModes") == ["ReadWriteMany"],
        "the run is on it": [mounts.get("runs")] == [os.path.dirname(x) for x in run_dirs],
        "NCCL's memory is memory": (mounts.get("shm"), shm.get("medium")) == ("/dev/shm", "Memory"),
        "quantities are quantities": None not in map(measure, sizes),
        "cpu and memory are asked for": {*requests} == {"cpu", "memory"} <= {*limits},
        "limits are no less": all(
            (measure(limits.get(x)) or 0) >= (measure(requests[x]) or 0) for x in requests
        ),
        "NCCL's memory is in the limit": 0 < (measure(find(shm, "sizeLimit")) or 0) < memory,
        # What a namespace of the "restricted" kind asks for.
        "no root": (
            security.get("runAsNonRoot") is True
            and security.get("runAsUser") == security.get("fsGroup") == 1000
        ),
        "no way to more rights": (
            security.get("allowPrivilegeEscalation") is False
            and find(security, "capabilities.drop") == ["ALL"]
            and "add" not in find(security, "capabilities", {})
            and find(security, "seccompProfile.type") == "RuntimeDefault"
        ),
    }
    return [rule for rule, is_kept in holds.items() if not is_kept]


def validate(documents, version):
    """Return what the schemas of a version have against the documents. Unlike the command, this
    minds an unknown apiVersion."""
    try:
        for document in documents:
            kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return error.message
    except (kubernetes_validate.SchemaNotFoundError, KeyError) as error:
        return str(error)


def set_workers(text, count):
    """Return the manifest for another number of workers, changed at the three places."""
    text, places = re.subn(
        r'(?m)^( +(?:completions|parallelism|value): "?)2\b', rf"\g<1>{count}", text
    )
    assert places == 3
    return text


# --------------------------------------------------------------------------------------------------
# The manifest
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_manifest_is_valid(version, manifest):
    assert validate(read_documents(manifest), version) is None


def test_manifest_has_no_fault(manifest):
    assert find_faults(read_documents(manifest)) == []


def test_the_command_validates_it_too(product):
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "launch/kubernetes.yaml"]
    finished = subprocess.run(command, cwd=product, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout.count(" passed ")) == (0, 3), finished.stdout


# The longest, words that YAML takes for no text, and one with two hyphens in a row.
@pytest.mark.parametrize("slug", ["a" * 50, "null", "yes", "a__b", "e1"])
def test_any_slug_gives_names(slug, render, tmp_path):
    path = render(tmp_path, cluster="kubernetes", project_slug=slug) / "launch" / "kubernetes.yaml"
    documents = read_documents(path.read_text(encoding="utf-8"))
    assert validate(documents, VERSIONS[-1]) is None
    assert find_faults(documents) == []
    assert documents[2]["metadata"]["name"] == slug.replace("_", "-")


@pytest.mark.parametrize("count", [1, 2, 20])
def test_other_numbers_of_workers(count, manifest):
    documents = read_documents(set_workers(manifest, count))
    assert validate(documents, VERSIONS[-1]) is None
    assert find_faults(documents) == []


def test_gpus_and_storage_are_a_comment_away(manifest):
    text, places = re.subn(r"# (nvidia.com/gpu: 8|storageClassName: nfs) #", r"\1 #", manifest)
    documents = read_documents(text)
    assert places == 2
    assert validate(documents, VERSIONS[-1]) is None
    assert find_faults(documents) == []
    assert documents[1]["spec"]["storageClassName"] == "nfs"
    assert documents[2]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "4",
        "memory": "8Gi",
        "nvidia.com/gpu": 8,
    }


def test_what_the_user_changes_is_marked(manifest):
    marked = [line.split("# TODO(you)")[0] for line in manifest.splitlines()[8:] if "TODO" in line]
    words = (
        "storageClassName storage completions parallelism image args value resources gpu".split()
    )
    assert [word in line for word, line in zip(words, marked, strict=True)] == [True] * len(words)


MUTANTS = [
    # What the schemas mind.
    ("2.spec.podFailurePolicys", {}),
    ("2.spec.completions", "2"),
    ("2.spec.template", ABSENT),
    (f"{SPEC}.restartpolicy", "Never"),
    (f"{CONTAINER}.env.1.value", 2),
    (f"{CONTAINER}.name", ABSENT),
    (f"{RULES}.0.action", ABSENT),
    (f"{RULES}.1.onExitCodes.values.0", "143"),
    # What they don't.
    ("0.apiVersion", "core/v1"),
    ("2.apiVersion", "batch/v1beta1"),
    ("2.kind", "CronJob"),
    ("0.metadata.name", "other"),
    ("0.metadata.name", "some_slug"),
    ("0.spec.clusterIP", ABSENT),
    ("0.spec.clusterIP", ""),
    ("0.spec.publishNotReadyAddresses", ABSENT),
    ("0.spec.publishNotReadyAddresses", False),
    ("0.spec.selector.app", "other"),
    ("0.spec.selector", ABSENT),
    ("0.spec.ports.0.port", 2223),
    ("1.metadata.name", "runs"),
    ("1.metadata.name", "some_runs"),
    ("1.spec.accessModes", ["ReadWriteOnce"]),
    ("1.spec.accessModes.0", "ReadWriteEverywhere"),
    ("1.spec.resources.requests.storage", "20GB"),
    ("2.metadata.name", "a" * 63),
    ("2.metadata.name", "other"),
    ("2.spec.completionMode", ABSENT),
    ("2.spec.completionMode", "NonIndexed"),
    ("2.spec.completions", 3),
    ("2.spec.parallelism", 1),
    ("2.spec.parallelism", ABSENT),
    ("2.spec.backoffLimit", ABSENT),
    ("2.spec.backoffLimit", 3),
    ("2.spec.podFailurePolicy", ABSENT),
    (f"{RULES}.0", ABSENT),
    (f"{RULES}.1", ABSENT),
    (f"{RULES}.0.action", "Count"),
    (f"{RULES}.0.action", "Retry"),
    (f"{RULES}.0.onPodConditions.0.status", ABSENT),
    (f"{RULES}.0.onPodConditions.0.status", "False"),
    (f"{RULES}.0.onPodConditions.0.type", "Disrupted"),
    (f"{RULES}.0.onExitCodes", {"operator": "In", "values": [1]}),
    (f"{RULES}.1.action", "FailIndex"),
    (f"{RULES}.1.onExitCodes.containerName", "main"),
    (f"{RULES}.1.onExitCodes.operator", "In"),
    (f"{RULES}.1.onExitCodes.operator", "Not"),
    (f"{RULES}.1.onExitCodes.values", [143]),
    (f"{RULES}.1.onExitCodes.values", [255, 143]),
    (f"{RULES}.1.onExitCodes.values", [137, 143, 255]),
    (f"{RULES}.1.onExitCodes.values", []),
    ("2.spec.template.metadata.labels.app", "other"),
    ("2.spec.template.metadata", ABSENT),
    (f"{SPEC}.subdomain", ABSENT),
    (f"{SPEC}.subdomain", "other"),
    (f"{SPEC}.hostname", "worker"),
    (f"{SPEC}.restartPolicy", "OnFailure"),
    (f"{SPEC}.restartPolicy", ABSENT),
    (f"{SPEC}.terminationGracePeriodSeconds", ABSENT),
    (f"{SPEC}.terminationGracePeriodSeconds", 5),
    (f"{SPEC}.shareProcessNamespace", ABSENT),
    (f"{SPEC}.securityContext.runAsNonRoot", False),
    (f"{SPEC}.securityContext.runAsUser", 0),
    (f"{SPEC}.securityContext.fsGroup", ABSENT),
    (f"{SPEC}.securityContext.seccompProfile", ABSENT),
    (f"{SPEC}.volumes.0", ABSENT),
    (f"{SPEC}.volumes.0.name", "run"),
    (f"{SPEC}.volumes.0.persistentVolumeClaim.claimName", "runs"),
    (f"{SPEC}.volumes.1.emptyDir.medium", ABSENT),
    (f"{SPEC}.volumes.1.emptyDir.sizeLimit", "1GiB"),
    (f"{SPEC}.volumes.1.emptyDir.sizeLimit", "8Gi"),
    (f"{CONTAINER}.name", "main"),
    (f"{CONTAINER}.command.0", "python"),
    (f"{CONTAINER}.args", ["--run-dir=run"]),
    (f"{CONTAINER}.env.0.value", "other"),
    (f"{CONTAINER}.env.1.value", "3"),
    (f"{CONTAINER}.env.1", ABSENT),
    (f"{CONTAINER}.ports.0.containerPort", 2223),
    (f"{CONTAINER}.resources.requests.cpu", "8"),
    (f"{CONTAINER}.resources.requests.memory", "8gb"),
    (f"{CONTAINER}.resources.limits", ABSENT),
    (f"{CONTAINER}.securityContext", ABSENT),
    (f"{CONTAINER}.securityContext.allowPrivilegeEscalation", True),
    (f"{CONTAINER}.securityContext.capabilities.drop", []),
    (f"{CONTAINER}.volumeMounts.0.name", "run"),
    (f"{CONTAINER}.volumeMounts.0.mountPath", "/run"),
    (f"{CONTAINER}.volumeMounts.1.mountPath", "/runs"),
    (f"{CONTAINER}.volumeMounts.1", ABSENT),
]


@pytest.mark.parametrize(("path", "value"), MUTANTS)
def test_a_fault_is_found(path, value, manifest):
    documents = read_documents(manifest)
    mutant = copy.deepcopy(documents)
    put(mutant, path, value)
    assert mutant != documents
    assert validate(mutant, VERSIONS[-1]) or find_faults(mutant)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("exec python", "python"),
        (":2222", ":2223"),
        ("$NAME-", "$(NAME)-"),
        ("$((WORKERS - 1))", "$$((WORKERS - 1))"),
    ],
)
def test_a_fault_of_the_command_is_found(old, new, manifest):
    assert find_faults(read_documents(manifest.replace(old, new)))


# --------------------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------------------


def expand(text, variables):
    """Return a text of `command` or `args` as Kubernetes hands it on, with variables put in."""

    def replace(match):
        return "$" if match[1] == "$" else variables.get(match[2], match[0])

    return re.sub(r"\$(\$|\(([^)]*)\))", replace, text)


def start_pod(text, index, folder):
    """Start the container's command, as in the pod of an index. Programs are first looked for in
    the folder."""
    job = read_documents(text)[2]
    container = job["spec"]["template"]["spec"]["containers"][0]
    variables = {x["name"]: x["value"] for x in container["env"]}
    variables["JOB_COMPLETION_INDEX"] = str(index)
    words = [expand(word, variables) for word in container["command"] + container["args"]]
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return subprocess.Popen(words, env={**variables, "PATH": path}, stdout=subprocess.PIPE)


@pytest.mark.parametrize("count", [1, 2, 11])
def test_pods_find_one_another_and_hear_sigterm(count, manifest, tmp_path):
    text = set_workers(manifest, count)
    text = text.replace(
        "- --run-dir=/runs/run", "- --run-dir=/runs/run\n            - two words $1"
    )
    (tmp_path / "python").write_text(STUB.format(python=sys.executable, timeout=TIMEOUT))
    (tmp_path / "python").chmod(0o755)
    pods = [start_pod(text, index, tmp_path) for index in range(count)]
    try:
        for index, pod in enumerate(pods):
            facts = json.loads(pod.stdout.readline())
            assert facts["argv"] == ["-u", "train.py", "--run-dir=/runs/run", "two words $1"]
            # A pod's host name is that of the Job and its index, in the domain of the Service.
            names = [f"some-slug-{i}.some-slug:2222" for i in range(count)]
            task = {"type": "worker", "index": index}
            assert json.loads(facts["TF_CONFIG"]) == {"cluster": {"worker": names}, "task": task}
            assert facts["pid"] == pod.pid, "the shell has not become Python"
            pod.send_signal(signal.SIGTERM)
            assert pod.communicate(timeout=20) == (b"SIGTERM", None)
            assert pod.returncode == 143
    finally:
        for pod in pods:
            pod.kill()


# --------------------------------------------------------------------------------------------------
# The image
# --------------------------------------------------------------------------------------------------


def test_image_is_pinned_and_not_root(steps, product, manifest):
    words = [word for word, _ in steps]
    assert words[0] == "FROM" and words.count("FROM") == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm", steps[0][1])
    commands = [part for word, rest in steps if word == "RUN" for part in rest.split(" && ")]
    for words_of in (command.split() for command in commands if "pip install" in command):
        packages = [word for word in words_of[2:] if not word.startswith("-")]
        assert packages and all("==" in package for package in packages)
    pod = read_documents(manifest)[2]["spec"]["template"]["spec"]
    [user] = [rest for word, rest in steps if word == "USER"]
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    assert user == str(pod["securityContext"]["runAsUser"]) and f"--uid {user} " in commands[0]


def test_image_runs_the_same_and_copies_what_is_there(steps, product, manifest):
    command = read_documents(manifest)[2]["spec"]["template"]["spec"]["containers"][0]["command"]
    [entrypoint] = [json.loads(rest) for word, rest in steps if word == "ENTRYPOINT"]
    assert f"exec {' '.join(entrypoint)} " in command[2]
    copied = [rest.split() for word, rest in steps if word == "COPY"]
    assert all(target == "./" for *_, target in copied)
    sources = [source for *names, _ in copied for source in names]
    # Named files alone: there is no .dockerignore, and a run's folder may be large.
    assert all((product / source).is_file() for source in sources)
    assert sources[-1] == "train.py"
    last = max(i for i, (word, _) in enumerate(steps) if word in ("RUN", "ENV"))
    assert last < steps.index(("COPY", "train.py ./")), "an edit would build more than a layer"


@pytest.mark.skipif(not UV, reason="it takes uv")
def test_image_installs(steps, product, tmp_path):
    base = tmp_path / "base"  # stands in for the Python of the image
    variables = {**os.environ, "PATH": os.pathsep.join([str(base / "bin"), os.environ["PATH"]])}
    variables = {name: x for name, x in variables.items() if name != "VIRTUAL_ENV"}

    def run(command):
        finished = subprocess.run(
            command, cwd=tmp_path, env=variables, shell=True, capture_output=True, text=True
        )
        assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
        return finished.stdout

    run(f"{UV} venv --quiet --python {sys.executable} {base}")
    for word, rest in steps:
        rest = rest.replace("/opt/venv", str(tmp_path / "venv"))
        if word == "ENV":
            for name, value in (x.split("=", 1) for x in rest.split()):
                variables[name] = value.replace("$PATH", variables["PATH"])
            variables["UV_NO_CACHE"] = "0"  # the packages that the tests run with are in it
        elif word == "COPY":
            shutil.copy(product / rest.split()[0], tmp_path)
        elif word == "RUN":
            for command in rest.split(" && "):
                if not command.startswith("useradd "):
                    run(command.replace("pip install --no-cache-dir", f"uv pip install -p {base}"))
        elif word == "ENTRYPOINT":
            assert "--run-dir" in run(" ".join([*json.loads(rest), "--help"]))
    assert Path(run("python -c 'import sys; print(sys.prefix)'").strip()) == tmp_path / "venv"
    assert not (tmp_path / "venv/bin/pytest").exists()
    shutil.rmtree(tmp_path / "venv")  # some gigabytes, and pytest would keep them
