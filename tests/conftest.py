"""What the tests of the template share: rendering a project, the questions to vary, and training.

A test that takes `answers` runs once for every combination of the choices in cookiecutter.json, so
that a choice added there is tested without a new test.

TensorFlow runs in processes of their own: strategies of several sizes in one break collectives.
"""

import atexit
import fcntl
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter
from forks import Fork

TEMPLATE = Path(__file__).resolve().parents[1]

# The order to run the files in: from seconds to minutes.
FILES_IN_ORDER = [
    "test_golden",
    "test_rendering",
    "test_update",
    "test_questions",
    "test_kubernetes",
    "test_bad_input",
    "test_launch",
    "test_hostile",
    "test_commands",
    "test_running",
    "test_exactness",
    "test_numbers",
    "test_proofs",
    "test_resume",
    "test_state",
    "test_sizes",
    "test_edits",
    "test_tasks",
    "test_flags",
    "test_faults",
    "test_parameter_server",
    "test_machines",
    "test_slurm",
    "test_promises",
]

# What shows a promise once, of the files that show it again on other tasks, replicas, workers and
# flags: the rest of these is marked as long. Of files not named here, all tests are short.
SHORT = {
    "test_rendering": r"^(?!.*(image|text)_.*(slurm|kubernetes))"
    r"(?!.*(image|text|complete|slurm|kubernetes).*_server)(?!.*_server-(slurm|kubernetes))",
    "test_update": r"^(?!.*(goes_on|cruft.*complete|cruft_too.[re]|merged.(essential|complete-v)"
    r"|answers.(text|tabular)_.*(slurm|kubernetes)))",
    "test_questions": r"^(?!.*(anywhere.*(text|tab|slurm|kubernetes)|replay.*(task|script)))",
    "test_hostile": r"\[0-|found.*essential",
    "test_commands": r"each|nothing|kubernetes|questions",
    "test_running": r"^(?!.*(bar.(essential-(80|200)|complete)|small_for_a_slow))",
    "test_exactness": r"-worker|batches.2|order|seed|steps_per_loop|sample"
    r"|once.(64-by-2|1000|weighted-by-2)",
    "test_numbers": r"random.65537|bad_shuffle|at_once|share_out|one_gradient.(--replicas 2)?\]"
    r"|refused.(seed|data)|of_an_epoch|sync.*compile|endless|speed|overflow|metric|term-worker"
    r"|alone_hears|numpy.tab|whole.tab",
    "test_resume": r"cut_short|finished|more_epochs|fewer|line.flags0|other_replica",
    "test_state": r"gan_is_whole.1|one_name|gone_on.*under|renamed|can_not|scale|labels|url"
    r"|damaged_config|lines_of|not_executed|moment.export|alone|cores",
    "test_sizes": r"bits.(image.*-2|tab.*-1|term-replica\])|lacks|damaged|cut_short|a_line"
    r"|one_folder|grow",
    "test_tasks": r"baseline.tab|weight_decay",
    "test_flags": r"accumulation_|clipping.*4|averages_follow|cosine-10|patience_|profile_is"
    r"|come_from.*run\]",
    "test_faults": r"skipped.some|full_disk.2600|is_named.1",
    "test_parameter_server": "take_each",
    "test_machines": "read",
    "test_kubernetes": r"^(?!.*installs)",
    "test_slurm": "clean",
    "test_promises": "readme",
    "test_edits": r"table|reach|trains.tfrec|last_checkpoint",
    "test_proofs": r"passes_.*image.*essential|not_listed|mean-in|slices",
}

# Of the moments at which runs are killed. A failure shows it, and the variable sets it.
SEED = int(os.environ.get("FAULTS_SEED", random.SystemRandom().randrange(2**31)))

TIMEOUT = 300  # seconds, of any one process
COMPILED = tempfile.mkdtemp()
atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)

# What cuts the data of each task, for a run of seconds.
FEW = ("labels)) for i in splits]", "labels)) for i in np.split(order[:800], [640, 720])]")
FEW_OF = {
    "image_classification": ("[1257, 1527]", "[128, 192]"),
    "text_classification": FEW,
    "tabular_regression": ("[310, 376]", "[64, 96]"),
}
TASKS = tuple(FEW_OF)

# Text of train.py, and what the tests put in its place.
NO_DROPOUT = ("keras.layers.Dropout(0.3)", "keras.layers.Dropout(0.0)")

# Of runs whose bits are compared. Many checkpoints: each might change something, or miss it. An
# epoch has 78 steps, a multiple of 13, so that its end is at one.
FLAGS = ("--global-batch-size", "16", "--epochs", "4", "--checkpoint-every-steps", "13")


def pytest_collection_modifyitems(items):
    """Run the fast files first; those not listed come last. Mark what is long."""
    names = FILES_IN_ORDER
    items.sort(key=lambda item: names.index(n) if (n := item.path.stem) in names else len(names))
    for item in items:
        if not re.search(SHORT.get(item.path.stem, ""), item.name):
            item.add_marker(pytest.mark.long)


def pytest_runtest_setup(item):
    """Skip what is long where time is up: TESTS_END, in seconds since 1970, as .ci/run sets it."""
    if item.get_closest_marker("long") and time.time() > float(os.environ.get("TESTS_END", "inf")):
        pytest.skip("it is past TESTS_END")


def read_questions():
    """Return the questions of cookiecutter.json: a list of choices, or a default text, by name."""
    context = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
    return {name: value for name, value in context.items() if not name.startswith("_")}


def combine_choices():
    """Return every combination of the choices, as answers to render a project with."""
    choices = {name: value for name, value in read_questions().items() if isinstance(value, list)}
    return [
        dict(zip(choices, combination, strict=True))
        for combination in itertools.product(*choices.values())
    ]


def pytest_generate_tests(metafunc):
    """Run a test that takes `answers` or `question` for each of them."""
    if "answers" in metafunc.fixturenames:
        combinations = combine_choices()
        ids = ["-".join(answers.values()) or "defaults" for answers in combinations]
        metafunc.parametrize("answers", combinations, ids=ids)
    if "question" in metafunc.fixturenames:
        metafunc.parametrize("question", read_questions())


def write_user_config(folder):
    """Write a cookiecutter configuration that keeps what cookiecutter stores inside a folder."""
    path = folder / "cookiecutter_config.yaml"
    folders = {name: str(folder / name) for name in ("cookiecutters_dir", "replay_dir")}
    path.write_text(json.dumps(folders), encoding="utf-8")  # JSON is YAML.
    return path


def as_constant(answer):
    """Return an answer as a template of itself: cookiecutter renders the answers that it is given.

    At the prompt, where people type, it does not; the tests mean their answers as typed there.
    """
    if "{" in answer or "\r" in answer:  # Rendering turns every line end into a line feed.
        return "{{ " + json.dumps(answer, ensure_ascii=False) + " }}"
    return answer


@pytest.fixture(scope="session")
def render(tmp_path_factory):
    """Return a function that renders a project and returns its folder.

    Its arguments are the folder to render into and the answers, by question; those left out are
    the defaults.
    """
    config_file = write_user_config(tmp_path_factory.mktemp("cookiecutter"))

    def render_project(output_dir, *, accept_hooks=True, **answers):
        project_dir = cookiecutter(
            str(TEMPLATE),
            no_input=True,
            extra_context={name: as_constant(answer) for name, answer in answers.items()},
            output_dir=str(output_dir),
            config_file=str(config_file),
            accept_hooks=accept_hooks,
        )
        script = Path(project_dir, "train.py")
        if "MUTANT" in os.environ:  # see test_promises.py
            script.write_text(script.read_text("utf-8").replace(*json.loads(os.environ["MUTANT"])))
        return Path(project_dir)

    return render_project


@pytest.fixture
def cookiecutter_environment(tmp_path_factory):
    """Return environment variables for the cookiecutter command, with a home of the test's own."""
    home = tmp_path_factory.mktemp("home")
    scripts = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "HOME": str(home),
        "USERPROFILE": str(home),
        "COOKIECUTTER_CONFIG": str(write_user_config(home)),
        "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
        "PYTHONIOENCODING": "utf-8",
        # Rich, which asks the questions, would break them into lines and colour them.
        "COLUMNS": "500",
        "NO_COLOR": "1",
    }


# --------------------------------------------------------------------------------------------------
# Training
# --------------------------------------------------------------------------------------------------


def environment(**variables):
    """Return environment variables for train.py: of this process, but for what would steer it."""
    steering = ("TF_", "TPU_", "XLA_", "KERAS_", "SLURM_", "GIT_", "COLUMNS")
    steering += ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    # The same bits are promised of CPUs. Compiled modules are kept, since TensorFlow's take long to
    # compile, but not beside the script, where a test would find them.
    fixed = {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONPYCACHEPREFIX": COMPILED}
    return {**kept, **fixed, **variables}


def flags_of(replicas):
    """Return the flags for some replicas. One is what a run without the flag has."""
    return () if replicas == 1 else ("--replicas", str(replicas))


def edit(script, folder, *edits):
    """Copy a script into a folder, with texts replaced. Return the copy's path."""
    text = script.read_text(encoding="utf-8")
    for old, new in edits:
        assert text.count(old) == 1, f"{script.name} has {text.count(old)} times: {old}"
        text = text.replace(old, new)
    copy = folder / script.name
    copy.write_text(text, encoding="utf-8")
    return copy


def start(script, *flags, env=None, **options):
    """Start a script in its folder, as a user types it there. Return the process."""
    return subprocess.Popen(
        [sys.executable, script.name, *map(str, flags)],
        cwd=script.parent,
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        **options,
    )


def fork(script, *flags, env=None):
    """Start a script in its folder, sooner than `start` does. Return what is like a process."""
    return Fork(script, [*map(str, flags)], env or environment())


def find_free_ports(count):
    """Return ports of this machine that are all free."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_workers(script, tasks, *flags):
    """Start a worker for each task, (job, index). They use the folder "scratch" for temporaries."""
    scratch = script.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    cluster = {}
    for (job, _), port in zip(tasks, find_free_ports(len(tasks)), strict=True):
        cluster.setdefault(job, []).append(f"127.0.0.1:{port}")
    configs = [{"cluster": cluster, "task": {"type": job, "index": index}} for job, index in tasks]
    return [
        start(script, *flags, env=environment(TF_CONFIG=json.dumps(c), TMPDIR=str(scratch)))
        for c in configs
    ]


def finish(process, timeout=TIMEOUT):
    """Wait for a process. Return its exit code and its output, stdout and stderr."""
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()  # Of no effect on one that has ended.
    return process.returncode, output, errors


def train(script, *flags, timeout=TIMEOUT, begin=fork, **options):
    """Run a script to its good end. Return its output."""
    code, output, errors = finish(begin(script, *flags, **options), timeout)
    assert (code, errors) == (0, ""), f"{flags}\n{output}\n{errors}"
    return output


def wait_for_lines(run_dir, count, *processes):
    """Wait until a run has added some lines to its log."""
    log = run_dir / "metrics.jsonl"
    inode = log.stat().st_ino if log.exists() else None

    def wait_until(condition):
        while not condition():
            time.sleep(0.01)
            assert all(process.poll() is None for process in processes)

    wait_until(lambda: log.exists() and log.stat().st_ino != inode)  # a run begins by writing it
    before = log.read_bytes().count(b"\n")
    wait_until(lambda: log.read_bytes().count(b"\n") >= before + count)


def ask_child(question, *arguments):
    """Return what child.py answers, which is where the tests use TensorFlow itself."""
    code, output, errors = finish(fork(TEMPLATE / "tests" / "child.py", question, *arguments))
    assert code == 0, errors
    return json.loads(output.splitlines()[-1])


def read_metrics(run_dir, *left_out):
    """Return the lines of metrics.jsonl, without some of their keys."""
    text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [{key: line[key] for key in line if key not in left_out} for line in lines]


def read_numbers(run_dir):
    """Return the lines of metrics.jsonl without the speeds, which differ from run to run."""
    return read_metrics(run_dir, "examples_per_second", "input_wait")


def hash_tree(folder):
    """Return the content and the time of change of every file and folder below a folder."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder",
        )
        for path in sorted(folder.rglob("*"))
    }


def assert_same_run(run_dir, expected):
    """Assert that two runs wrote the same numbers, and have the same bits in their checkpoints."""
    assert read_numbers(run_dir) == read_numbers(expected)
    tensors, expected_tensors = ask_child("tensors", run_dir, expected)
    assert tensors == expected_tensors
    assert len(tensors["last"]) > 15
    for name in ("export/model.keras", "export/saved_model.pb", "train.py", "config.json"):
        assert (run_dir / name).is_file()
    assert not [*run_dir.rglob("*.part"), *run_dir.rglob("*_temp")]


@pytest.fixture
def chance(request):
    """Return the random numbers of a test."""
    print(f"FAULTS_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="session")
def script(render, tmp_path_factory):
    """Return the path of the complete train.py of the default task."""
    return render(tmp_path_factory.mktemp("rendered"), script="complete") / "train.py"


@pytest.fixture(scope="session")
def essential(render, tmp_path_factory):
    """Return the path of the train.py of the default answers."""
    return render(tmp_path_factory.mktemp("essential")) / "train.py"


@pytest.fixture(scope="session")
def projects(render, tmp_path_factory):
    """Return the folder of each task's project."""
    folder = tmp_path_factory.mktemp("tasks")
    return {
        task: render(folder, task=task, script="complete", project_slug=f"a_{task}")
        for task in TASKS
    }


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Return a function that gives what another returns, as JSON, computed once a session.

    Of pytest's processes, the first that asks computes it, and the others wait: they share the
    folder above their own.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def compute_or_recall(function, *arguments):
        key = hashlib.sha256(repr((function.__qualname__, arguments)).encode()).hexdigest()[:16]
        result = folder / f"{key}.json"
        with open(result.with_suffix(".lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not result.exists():
                result.write_text(json.dumps(function(*arguments)), encoding="utf-8")
        return json.loads(result.read_text(encoding="utf-8"))

    return compute_or_recall


@pytest.fixture(scope="session")
def train_once(once, script, tmp_path_factory):
    """Return a function that trains with some flags and edits of the script, once a session.

    It returns the run's folder, which tests share: one that changes it takes a copy.
    """

    def run_script(flags, edits):
        folder = tmp_path_factory.mktemp("trained")
        code, output, errors = finish(fork(edit(script, folder, *edits), *flags))
        (folder / "output").write_text(output, encoding="utf-8")
        return str(folder), code, output, errors

    def train_or_recall(*flags, edits=()):
        folder, code, output, errors = once(run_script, flags, edits)
        assert (code, errors) == (0, ""), f"{flags}\n{output}\n{errors}"
        return Path(folder) / "run"

    return train_or_recall


@pytest.fixture(scope="session")
def first_runs(projects, tmp_path_factory):
    """Return a short run of each task."""
    folders = {task: tmp_path_factory.mktemp(task) for task in TASKS}
    for task, folder in folders.items():
        train(edit(projects[task] / "train.py", folder, FEW_OF[task]), "--epochs", "1")
    return {task: folder / "run" for task, folder in folders.items()}
