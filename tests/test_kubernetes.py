"""launch/kubernetes.yaml and the Dockerfile, without a Kubernetes: there is no API server here.

`kubernetes-validate` finds misspelt fields and wrong types by the schemas of each version, and
`find_faults` checks rules that no schema has. The pods' command and the image's steps are run.
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
from running import TIMEOUT

VERSIONS = list(dict.fromkeys(kubernetes_validate.utils.all_versions()))
VERSIONS = VERSIONS[VERSIONS.index("1.29.0") :]
KINDS = [("v1", "Service"), ("v1", "PersistentVolumeClaim"), ("batch/v1", "Job")]

SPEC = "2.spec.template.spec"  # the pods' specification
CONTAINER = f"{SPEC}.containers.0"
RULES = "2.spec.podFailurePolicy.rules"
RESUMABLE = (*range(132, 140), 143, 255)  # exit codes after which the run resumes
ABSENT = object()

UV = os.environ.get("UV") or shutil.which("uv")  # `uv run` sets it

# Kubernetes's grammar of quantities, without exponents.
SUFFIXES = {
    "": 1,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
}
SUFFIXES |= {f"{x}i": 1024**n for n, x in enumerate("KMGT", start=1)}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(" + "|".join(SUFFIXES) + ")")

# Stands in for Python in a pod: it prints what it got, and waits for the signal.
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


def read_variables(container):
    """Return a container's environment variables as Kubernetes sets them."""
    variables = {}
    for pair in container.get("env", []):
        resource = find(pair, "valueFrom.resourceFieldRef.resource")
        value = find(container, f"resources.{resource}") if resource else pair.get("value")
        variables[pair["name"]] = value
    return variables


class Manifest:
    """The documents of a manifest, and the parts that the rules are about."""

    def __init__(self, documents):
        self.service, self.claim, self.job = documents
        self.pod = find(self.job, "spec.template.spec", {})
        self.container = find(self.pod, "containers.0", {})
        self.completions = find(self.job, "spec.completions")
        self.name = find(self.service, "metadata.name")
        self.command = self.container.get("command", [])
        self.rules = find(self.job, "spec.podFailurePolicy.rules", [])
        self.variables = read_variables(self.container)
        volumes = self.pod.get("volumes", [])
        self.volumes = {volume["name"]: volume for volume in volumes}
        mounts = self.container.get("volumeMounts", [])
        self.mounts = {mount["name"]: mount["mountPath"] for mount in mounts}


def check_names(manifest):
    """Return rules of the names by which the pods find each other, and whether they hold."""
    service, job, pod, name = manifest.service, manifest.job, manifest.pod, manifest.name
    host = f"{find(job, 'metadata.name')}-{manifest.completions}"
    selector = find(service, "spec.selector")
    labels = find(job, "spec.template.metadata.labels") or {}
    ports = [port.get("port") for port in find(service, "spec.ports", [])]
    container_ports = [port.get("containerPort") for port in manifest.container.get("ports", [])]
    command_ports = re.findall(r"\$NAME:(\d+)", " ".join(manifest.command))
    return {
        "the Service's name is valid": is_label(name),
        "the claim's name is valid": is_label(find(manifest.claim, "metadata.name")),
        "the host names are valid": is_label(host),
        "the Service is headless": find(service, "spec.clusterIP") == "None",
        "pods that aren't ready have names": find(service, "spec.publishNotReadyAddresses"),
        "the Service selects the pods": selector and selector.items() <= labels.items(),
        "the Service is the pods' subdomain": find(pod, "subdomain") == name,
        "no pod sets its own host name": "hostname" not in pod,
        "NAME is the Job's name": manifest.variables.get("NAME") == find(job, "metadata.name"),
        "NAME is the Service's name": manifest.variables.get("NAME") == name,
        "the Service has the container's ports": ports == container_ports,
        "TF_CONFIG has the ports": command_ports == [str(port) for port in ports],
    }


def check_workers(manifest):
    """Return rules of the number of workers."""
    job, completions = manifest.job, manifest.completions
    return {
        "the pods are numbered": find(job, "spec.completionMode") == "Indexed",
        "all workers run at once": find(job, "spec.parallelism") == completions,
        "WORKERS is their number": manifest.variables.get("WORKERS") == str(completions),
        "each worker may fail five times": find(job, "spec.backoffLimit", 6) >= 5 * completions,
    }


def is_valid_rule(rule, container_name):
    """Return whether a rule of the failure policy has one condition with known values."""
    if set(rule) not in ({"action", "onExitCodes"}, {"action", "onPodConditions"}):
        return False
    codes = find(rule, "onExitCodes.values", [1])
    return (
        rule["action"] in ("Ignore", "FailJob", "Count")
        and find(rule, "onExitCodes.operator", "In") in ("In", "NotIn")
        and find(rule, "onExitCodes.containerName", container_name) == container_name
        and codes == sorted({*codes}) != []
    )


def check_failures(manifest):
    """Return rules of what the Job does about a pod that has failed."""
    rules = manifest.rules
    name = manifest.container.get("name")

    def decide_all(*codes, disrupted=False):
        if not all(is_valid_rule(rule, name) for rule in rules):
            return None
        return {decide(rules, code, disrupted=disrupted) for code in codes}

    after_disruption = decide_all(1, 137, 143, disrupted=True)
    after_failure = decide_all(1, 2, 127)
    after_kill = decide_all(*RESUMABLE)
    return {
        "the rules are valid": all(is_valid_rule(rule, name) for rule in rules),
        "the rules are about the container": name == "train",
        "the Job replaces pods": find(manifest.pod, "restartPolicy") == "Never",
        "a disruption isn't counted": after_disruption == {"Ignore"},
        "a failure that would repeat fails the Job": after_failure == {"FailJob"},
        "a run that can resume is replaced": after_kill == {"Count"},
    }


def check_process(manifest):
    """Return rules of the process: a signal reaches Python, which has time to save."""
    command = " ".join(manifest.command)
    names = "|".join(manifest.variables)
    expanded = re.search(rf"\$\$|\$\(({names})\)", command)
    return {
        "the shell becomes Python": "\nexec python -u train.py" in command,
        "Python isn't process 1": find(manifest.pod, "shareProcessNamespace") is True,
        "there is time to save": find(manifest.pod, "terminationGracePeriodSeconds", 30) >= 60,
        "a shell runs the command": manifest.command[:2] == ["sh", "-c"],
        "Kubernetes expands nothing in it": expanded is None,
    }


def check_volumes(manifest):
    """Return rules of the volumes."""
    volumes, mounts = manifest.volumes, manifest.mounts
    claims = [find(x, "persistentVolumeClaim.claimName") for x in volumes.values()]
    arguments = [x for x in manifest.container.get("args", []) if "run-dir" in x]
    parents = [os.path.dirname(x.removeprefix("--run-dir=")) for x in arguments]
    memory_medium = find(volumes, "shm.emptyDir.medium")
    return {
        "volumes and mounts are the same": set(volumes) == set(mounts),
        "mounts have different places": len({*mounts.values()}) == len(mounts),
        "the claim is mounted": find(manifest.claim, "metadata.name") in claims,
        "all nodes can mount it": find(manifest.claim, "spec.accessModes") == ["ReadWriteMany"],
        "the run is on it": parents == [mounts.get("runs")],
        "NCCL's memory is memory": (mounts.get("shm"), memory_medium) == ("/dev/shm", "Memory"),
    }


def check_resources(manifest):
    """Return rules of processors and memory."""
    requests = find(manifest.container, "resources.requests", {})
    limits = find(manifest.container, "resources.limits", {})
    shared = find(manifest.volumes, "shm.emptyDir.sizeLimit")
    storage = find(manifest.claim, "spec.resources.requests.storage")
    sizes = [
        measure(x)
        for x in (
            *requests.values(),
            *limits.values(),
            shared,
            storage,
        )
    ]
    is_limited = all((measure(limits.get(x)) or 0) >= (measure(requests[x]) or 0) for x in requests)
    memory = measure(limits.get("memory")) or 0
    intra = manifest.variables.get("TF_NUM_INTRAOP_THREADS")
    inter = manifest.variables.get("TF_NUM_INTEROP_THREADS")
    return {
        "quantities are valid": None not in sizes,
        "processors and memory are requested": set(requests) == {"cpu", "memory"},
        "processors and memory are limited": set(limits) >= {"cpu", "memory"},
        "limits are no less than requests": is_limited,
        "threads are as many as processors": intra == limits.get("cpu") and inter in (None, intra),
        "NCCL's memory is in the limit": 0 < (measure(shared) or 0) < memory,
    }


def check_security(manifest):
    """Return rules of a namespace of the "restricted" kind."""
    pod_context = manifest.pod.get("securityContext", {})
    security = {**pod_context, **manifest.container.get("securityContext", {})}
    return {
        "it isn't root": security.get("runAsNonRoot") is True,
        "it has a user": security.get("runAsUser") == 1000,
        "the user can write to the volume": security.get("fsGroup") == 1000,
        "it can't get more rights": security.get("allowPrivilegeEscalation") is False,
        "it has no capabilities": find(security, "capabilities") == {"drop": ["ALL"]},
        "it has a profile": find(security, "seccompProfile.type") == "RuntimeDefault",
    }


CHECKS = (
    check_names,
    check_workers,
    check_failures,
    check_process,
    check_volumes,
    check_resources,
    check_security,
)


def find_faults(documents):
    """Return the rules that the documents break, of those that no schema has."""
    if [(x.get("apiVersion"), x.get("kind")) for x in documents] != KINDS:
        return [f"the documents are {KINDS}"]
    manifest = Manifest(documents)
    faults = []
    for check in CHECKS:
        faults += [rule for rule, holds in check(manifest).items() if not holds]
    return faults


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


def assert_valid(documents, version=VERSIONS[-1]):
    assert validate(documents, version) is None
    assert find_faults(documents) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_manifest_is_valid(version, manifest):
    assert_valid(read_documents(manifest), version)


def test_command_of_the_readme_validates_the_manifest(product):
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "launch/kubernetes.yaml"]
    finished = subprocess.run(
        command,
        cwd=product,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    assert finished.stdout.count(" passed ") == 3


# The longest, words that are no text to YAML, and one with two hyphens in a row.
@pytest.mark.parametrize("slug", ["a" * 50, "null", "yes", "a__b", "e1"])
def test_manifest_of_any_slug_is_valid(slug, render, tmp_path):
    path = render(tmp_path, cluster="kubernetes", project_slug=slug) / "launch" / "kubernetes.yaml"
    documents = read_documents(path.read_text(encoding="utf-8"))
    assert_valid(documents)
    assert documents[2]["metadata"]["name"] == slug.replace("_", "-")


def test_killed_pod_of_parameter_servers_is_replaced(render, tmp_path):
    project = render(tmp_path, cluster="kubernetes", distribution="parameter_server")
    documents = read_documents((project / "launch" / "kubernetes.yaml").read_text("utf-8"))
    assert validate(documents, VERSIONS[-1]) is None
    rules = find(documents, RULES)
    assert {decide(rules, code) for code in RESUMABLE} == {"Count"}
    assert {decide(rules, code) for code in (1, 2, 127)} == {"FailJob"}


@pytest.mark.parametrize("count", [1, 2, 20])
def test_manifest_of_any_number_of_workers_is_valid(count, manifest):
    assert_valid(read_documents(set_workers(manifest, count)))


def test_commented_lines_add_gpus_and_a_storage_class(manifest):
    text, places = re.subn(r"# (nvidia.com/gpu: 8|storageClassName: nfs) #", r"\1 #", manifest)
    assert places == 2
    documents = read_documents(text)
    assert_valid(documents)
    assert find(documents, "1.spec.storageClassName") == "nfs"
    limits = find(documents, f"{CONTAINER}.resources.limits")
    assert limits == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 8}


# In order, what the lines with a TODO(you) are about, below the first lines of the file.
MARKED = """
    storageClassName storage completions parallelism backoffLimit imagePullSecrets tolerations image
    args value resources gpu
""".split()


def test_lines_that_users_change_are_marked(manifest):
    lines = [line for line in manifest.splitlines()[8:] if "# TODO(you)" in line]
    for word, line in zip(MARKED, lines, strict=True):
        assert word in line.split("# TODO(you)")[0]


@pytest.mark.parametrize("distribution", ["synchronous", "parameter_server"])
def test_arguments_are_flags_of_the_script(distribution, render, tmp_path):
    answers = {"script": "complete", "cluster": "kubernetes", "distribution": distribution}
    project = render(tmp_path, **answers)
    text = (project / "launch" / "kubernetes.yaml").read_text("utf-8")
    flags = re.findall(r"(?m)^ +- --([a-z-]+)=", text)
    script = (project / "train.py").read_text("utf-8")
    assert flags
    assert all(f"    {flag.replace('-', '_')}: " in script for flag in flags), flags


@pytest.mark.parametrize("distribution", ["synchronous", "parameter_server"])
def test_threads_between_operations_are_limited_where_one_suffices(distribution, render, tmp_path):
    """With parameter servers and one thread, tasks would wait for each other forever."""
    project = render(tmp_path, cluster="kubernetes", distribution=distribution)
    text = (project / "launch" / "kubernetes.yaml").read_text("utf-8")
    assert text.count("TF_NUM_INTRAOP_THREADS") > 0
    assert ("TF_NUM_INTEROP_THREADS" in text) == (distribution == "synchronous")


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
    (f"{RULES}.1.onExitCodes.values", [143, 255]),
    (f"{RULES}.1.onExitCodes.values", RESUMABLE[::-1]),
    (f"{RULES}.1.onExitCodes.values", [1, *RESUMABLE]),
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
    (f"{CONTAINER}.env.3", ABSENT),
    (f"{CONTAINER}.env.3.valueFrom.resourceFieldRef.resource", "limits.memory"),
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
def test_fault_is_found(path, value, manifest):
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
def test_fault_of_the_command_is_found(old, new, manifest):
    assert find_faults(read_documents(manifest.replace(old, new)))


# --------------------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------------------


def expand(text, variables):
    """Return a text of `command` or `args` with the variables that Kubernetes expands."""

    def replace(match):
        return "$" if match[1] == "$" else variables.get(match[2], match[0])

    return re.sub(r"\$(\$|\(([^)]*)\))", replace, text)


def start_pod(text, index, folder):
    """Start the container's command, as in the pod of an index. Programs are first looked for in
    the folder."""
    job = read_documents(text)[2]
    container = job["spec"]["template"]["spec"]["containers"][0]
    variables = read_variables(container)
    variables["JOB_COMPLETION_INDEX"] = str(index)
    words = [expand(word, variables) for word in container["command"] + container["args"]]
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return subprocess.Popen(words, env={**variables, "PATH": path}, stdout=subprocess.PIPE)


def assert_is_worker(pod, index, count):
    """Assert what a pod's replacement got: arguments, TF_CONFIG and the signal SIGTERM."""
    facts = json.loads(pod.stdout.readline())
    assert facts["argv"] == ["-u", "train.py", "--run-dir=/runs/run", "two words $1"]
    # A pod's host name is the Job's name and its index, in the domain of the Service.
    names = [f"some-slug-{i}.some-slug:2222" for i in range(count)]
    task = {"type": "worker", "index": index}
    assert json.loads(facts["TF_CONFIG"]) == {"cluster": {"worker": names}, "task": task}
    assert facts["pid"] == pod.pid, "the shell has not become Python"
    pod.send_signal(signal.SIGTERM)
    assert pod.communicate(timeout=20) == (b"SIGTERM", None)
    assert pod.returncode == 143


@pytest.mark.parametrize("count", [1, 2, 11])
def test_pods_have_their_tf_config_and_receive_sigterm(count, manifest, tmp_path):
    argument = "- --run-dir=/runs/run"
    text = set_workers(manifest, count)
    text = text.replace(argument, f"{argument}\n            - two words $1")
    (tmp_path / "python").write_text(STUB.format(python=sys.executable, timeout=TIMEOUT))
    (tmp_path / "python").chmod(0o755)
    pods = [start_pod(text, index, tmp_path) for index in range(count)]
    try:
        for index, pod in enumerate(pods):
            assert_is_worker(pod, index, count)
    finally:
        for pod in pods:
            pod.kill()


# --------------------------------------------------------------------------------------------------
# The image
# --------------------------------------------------------------------------------------------------


def list_instructions(steps, word):
    """Return what follows the instructions of a word, such as COPY."""
    return [rest for each, rest in steps if each == word]


def find_last(steps, *words):
    """Return the position of the last instruction of some words."""
    return max(position for position, (word, _) in enumerate(steps) if word in words)


def list_commands(steps):
    """Return the shell commands of the image's RUN instructions."""
    return [part for rest in list_instructions(steps, "RUN") for part in rest.split(" && ")]


def test_image_is_pinned(steps):
    assert steps[0][0] == "FROM"
    [image] = list_instructions(steps, "FROM")
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm", image)
    for command in list_commands(steps):
        if "pip install" in command:
            packages = [word for word in command.split()[2:] if not word.startswith("-")]
            assert packages
            assert all("==" in package for package in packages)


def test_image_is_not_root(steps, manifest):
    [user] = list_instructions(steps, "USER")
    security = find(read_documents(manifest), f"{SPEC}.securityContext")
    assert user == str(security["runAsUser"])
    assert f"--uid {user} " in list_commands(steps)[0]
    assert find_last(steps, "USER") > find_last(steps, "RUN")


def test_image_runs_the_command_of_the_pods(steps, manifest):
    [entrypoint] = list_instructions(steps, "ENTRYPOINT")
    command = find(read_documents(manifest), f"{CONTAINER}.command")
    assert f"exec {' '.join(json.loads(entrypoint))} " in " ".join(command)


def test_image_copies_files_of_the_project(steps, product):
    copied = [rest.split() for rest in list_instructions(steps, "COPY")]
    assert all(target == "./" for *_, target in copied)
    sources = [source for *names, _ in copied for source in names]
    # Only named files: there is no .dockerignore, and a run's folder may be large.
    assert all((product / source).is_file() for source in sources)
    # An edit of train.py changes the last layer only.
    assert sources[-1] == "train.py"
    assert find_last(steps, "RUN", "ENV") < steps.index(("COPY", "train.py ./"))


class ImageBuild:
    """Runs the steps of the Dockerfile in a folder, with a virtual environment as its base."""

    def __init__(self, folder, product):
        self.folder = folder
        self.product = product
        self.base = folder / "base"
        self.variables = dict(os.environ)
        self.variables.pop("VIRTUAL_ENV", None)
        folders = [str(self.base / "bin"), os.environ["PATH"]]
        self.variables["PATH"] = os.pathsep.join(folders)
        self.run(f"{UV} venv --quiet --python {sys.executable} {self.base}")

    def run(self, command):
        """Run a shell command. Return its output."""
        finished = subprocess.run(
            command,
            cwd=self.folder,
            env=self.variables,
            shell=True,
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
        return finished.stdout

    def set_variables(self, text):
        for pair in text.split():
            name, value = pair.split("=", 1)
            self.variables[name] = value.replace("$PATH", self.variables["PATH"])
        self.variables["UV_NO_CACHE"] = "0"  # uv has the tests' own packages in its cache.

    def run_all(self, text):
        """Run the commands of a RUN instruction, except the one that creates the user."""
        for command in text.split(" && "):
            if not command.startswith("useradd "):
                install = f"uv pip install -p {self.base}"
                self.run(command.replace("pip install --no-cache-dir", install))

    def take_step(self, word, text):
        text = text.replace("/opt/venv", str(self.folder / "venv"))
        if word == "ENV":
            self.set_variables(text)
        elif word == "COPY":
            shutil.copy(self.product / text.split()[0], self.folder)
        elif word == "RUN":
            self.run_all(text)


@pytest.mark.long
@pytest.mark.skipif(not UV, reason="it needs uv")
def test_image_installs(steps, product, tmp_path):
    build = ImageBuild(tmp_path, product)
    for word, text in steps:
        build.take_step(word, text)
    [entrypoint] = list_instructions(steps, "ENTRYPOINT")
    assert "--run-dir" in build.run(" ".join([*json.loads(entrypoint), "--help"]))
    prefix = build.run("python -c 'import sys; print(sys.prefix)'").strip()
    assert Path(prefix) == tmp_path / "venv"
    assert not (tmp_path / "venv/bin/pytest").exists()
    shutil.rmtree(tmp_path / "venv")  # some gigabytes, which pytest would keep
