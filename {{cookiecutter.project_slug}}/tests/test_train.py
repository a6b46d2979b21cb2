"""Proofs about train.py with its current hooks. Run them after each edit of a hook:

    uv run pytest

A run is cut to ten batches of each split. It is a process of its own, since strategies of different
sizes in one process break each other's collectives. The processes run in the background, two jobs
at a time.
"""

import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hook_names import HOOKS, RESULT, TOO_EARLY, find_hook

PROJECT = Path(__file__).resolve().parents[1]
TIMEOUT = 900  # seconds, for any one process
TIMINGS = ("examples_per_second", "input_wait")  # differ each time
# {% if cookiecutter.distribution == "parameter_server" %}
REPLICAS = ()
# {% else %}
REPLICAS = ("--replicas", 2)
# {% endif %}

# What to change if train.py ends with an error, by a pattern in its output.
FAILURE_ADVICE = {
    "after being initialized|Collective ops must be configured": TOO_EARLY,
    "`merge_call` called while|sums over replicas, which": (
        "Replicas can't sum in a loop, a branch or a tf.function, and a BatchNormalization sums; "
        "call it elsewhere, such as outside the cell of an RNN, or use LayerNormalization"
    ),
    "singleton tf.Variables|variables on a non-first call": (
        "A layer or a metric creates variables in its first call; call it in its hook. Or a layer "
        "draws by keras.random without a seed; give it a keras.random.SeedGenerator"
    ),
    r"one_step_on_data_distributed|\.predict\(": (
        "`model.predict` divides its batch among replicas and workers; call the model instead, "
        "such as model(x, training=False)"
    ),
}

# Causes that no check of a single hook finds.
# {% if cookiecutter.distribution == "synchronous" %}
REPLICA_CAUSES = """No check of a single hook finds the cause. Possible causes:
- compute_losses, compute_loss, create_loss_objects, compute_gradients, update_metrics:
  a mean or a statistic of a replica's own examples
- compute_loss: a term without examples, such as a penalty of weights, that each replica adds; pass
  it to tf.nn.scale_regularization_loss
- create_model_and_optimizer: a layer's loss that combines different examples; let add_loss take the
  mean of one value per example, and an activity regularizer their sum (Keras 3.15)
- fetch, preprocess: padding to the longest example of a replica's batch, if padding counts
- create_model_and_optimizer: a layer that uses other examples of the batch; a variable created
  outside strategy.scope(); random numbers that replicas can't share: keras.random.categorical,
  binomial, gamma, beta, truncated_normal, shuffle, 64-bit numbers, numbers for a tensor whose
  first dimension is not the batch, or for rows of an example that are not adjacent
- create_model_and_optimizer: an initializer that is created outside of it, before --seed is set
- create_model_and_optimizer, train_step: an assignment of a value of a replica's own examples
- compute_gradients, train_step: a function of one replica's gradients, such as clipping or added
  noise; change gradients in the optimizer's `update_step`, where they are summed
- create_model_and_optimizer: an optimizer whose `apply` changes gradients before replicas sum them;
  change them in `update_step`
- create_metrics: a metric that is not a sum or a mean over examples, or outside strategy.scope()
- create_datasets, fetch, preprocess: random numbers that don't come from `seeds`"""
ROUNDING_SHOWS = """The cause is rounding: on 1 replica, initial weights that differ by rounding
errors change the results, too, from step {step} on. Before it, replicas agree. Possible causes:
- create_model_and_optimizer: a deep model or a high learning rate, which amplify rounding errors
- create_model_and_optimizer: a weight without effect on the loss, such as a bias before a
  normalization, even with linear layers between: its gradient is a rounding error, which
  optimizers like Adam scale up; set use_bias=False
- any hook: a choice between nearly equal values, such as argmax"""
FLIPS_SHOW = """The cause is probably rounding. All losses agree, and all metrics in the first line.
In later lines, rounding changes the predicted class of a few examples."""
MOST_FLIPS = 0.02  # share of a line's examples
PERTURBATIONS = 5  # each is twice as large as the one before; some have no effect
# {% endif %}
UNEQUAL_VARIABLES = """A likely cause: these variables differ between replicas: {names}.
A layer or a step assigns a value of a replica's own examples to them. Sum the value over replicas
first, create the variable with aggregation="mean", or assign it in `distributed_train_step`. For a
queue or a replay buffer, gather the values of all replicas, as in docs/recipes/contrastive.md of
the template."""
RESTART_CAUSES = """No check of a single hook finds the cause. Possible causes:
- fetch, preprocess: random numbers that don't come from `seeds`
- evaluation_step: random layers that are called outside keras.StatelessScope()
- create_datasets: examples, or an order of them, that differ between processes
- adapt: a result that differs between processes, such as the order of a set
- compute_gradients, train_step: random numbers that don't come from a keras.random.SeedGenerator of
  a model
- create_model_and_optimizer: a layer or an optimizer that keeps state outside its variables; an
  initializer that is created outside of the hook, before --seed is set
- end_epoch: what it changes depends on more than `history`, or is not a variable of a model or an
  optimizer: a Python value has no effect on the graph, and checkpoints lack other variables
- compute_losses, compute_gradients, train_step: a Python value that changes, such as state.step: a
  graph keeps the value of its trace; read optimizer.iterations"""
WORKER_CAUSES = f"""{RESTART_CAUSES}
- compute_losses, compute_gradients, evaluation_step: a convolution of a tensor that is created
  once, such as a style image, is fused with its bias on some replicas; copy it by tf.identity"""
EVALUATION_CAUSES = """Possible causes:
- evaluation_step, update_metrics: sample_weight is not used, which is 0 for the examples that fill
  up the last batch
- evaluation_step: a model is called without training=False, so that random layers draw
- evaluation_step: it changes variables of a model; restore them, or use keras.StatelessScope()
- create_metrics: a metric that is not a sum or a mean over examples
- preprocess, create_model_and_optimizer: an output that depends on other examples of the batch
- compute_losses, evaluation_step: a loss that compares the examples of a batch, so that it depends
  on the batch size; evaluate a loss of single examples or pairs
- compute_losses, evaluation_step: a value that depends on the step, which checkpoints/best doesn't
  contain; use it in compute_loss only"""

# ----------------------------------------------------------------------------------------------
# Jobs
# ----------------------------------------------------------------------------------------------

POOL = concurrent.futures.ThreadPoolExecutor(max_workers=2)
PROCESSES: list[subprocess.Popen] = []  # all that were started

# The fixtures that start jobs. Each returns a Future, whose result may be pytest's failure.
JOBS = (
    "hook_report",
    "undisturbed_run",
    "killed_run",
    # {% if cookiecutter.distribution == "parameter_server" %}
    "cluster_run",
    # {% else %}
    "runs_on_replicas",
    "two_workers_run",
    # {% endif %}
    "evaluation",
    "export_checks",
)


@pytest.fixture(scope="session", autouse=True)
def background(request):
    """Start the jobs of all selected tests. End what is left of them after the tests."""
    # Otherwise SIGTERM would end pytest at once, and its processes would go on.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("received SIGTERM", 143))
    needed = {name for item in request.session.items for name in item.fixturenames}
    for name in JOBS:
        if name in needed:
            request.getfixturevalue(name)
    yield
    POOL.shutdown(wait=False, cancel_futures=True)
    for process in PROCESSES:
        process.kill()


@pytest.fixture(scope="session")
def hook_report():
    """The problems of each hook, and what may make results depend on the replicas.

    "suspects" are probable causes, "rounding" possible ones, "hints" may be intended.
    """
    return POOL.submit(ask_about_hooks)


@pytest.fixture(scope="session")
def undisturbed_run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    return POOL.submit(run_train, "train_and_export", run_dir, *REPLICAS)


@pytest.fixture(scope="session")
def killed_run(tmp_path_factory):
    return POOL.submit(kill_and_resume, tmp_path_factory.mktemp("killed") / "run")


# {% if cookiecutter.distribution == "parameter_server" %}
@pytest.fixture(scope="session")
def cluster_run(tmp_path_factory):
    tasks = (("chief", 0), ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1))
    return POOL.submit(run_cluster, tasks, tmp_path_factory.mktemp("cluster") / "run")


# {% else %}
@pytest.fixture(scope="session")
def runs_on_replicas(undisturbed_run, tmp_path_factory):
    """The runs on 1, 2 and 4 replicas, as Futures."""
    folder = tmp_path_factory.mktemp("replicas")
    runs = {2: undisturbed_run}
    for replicas in (1, 4):
        flags = ("--replicas", replicas)
        runs[replicas] = POOL.submit(run_train, "train_only", folder / str(replicas), *flags)
    return runs


@pytest.fixture(scope="session")
def two_workers_run(tmp_path_factory):
    tasks = (("worker", 0), ("worker", 1))
    return POOL.submit(run_cluster, tasks, tmp_path_factory.mktemp("workers") / "run")


# {% endif %}
@pytest.fixture(scope="session")
def evaluation(undisturbed_run):
    return POOL.submit(ask_about, undisturbed_run, "evaluate")


@pytest.fixture(scope="session")
def export_checks(undisturbed_run):
    return POOL.submit(ask_about, undisturbed_run, "check_exports")


# ----------------------------------------------------------------------------------------------
# Proofs
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_keeps_its_contract(hook, hook_report, request):
    report = hook_report.result()
    problems = report[hook]
    for hinted_hook, text in report["hints"]:
        if hinted_hook == hook:
            request.node.warn(pytest.PytestWarning(f"{hook}: {text}"))
    if problems is None:
        pytest.skip(f"{hook} can't be checked before the other hooks are repaired")
    if problems:
        fail(*(f"{hook}: {problem}" for problem in problems))


# {% if cookiecutter.distribution == "synchronous" %}
@pytest.mark.parametrize("replicas", [2, 4])
def test_results_do_not_depend_on_the_replicas(replicas, runs_on_replicas, request):
    expected = runs_on_replicas[1].result()
    run_dir = runs_on_replicas[replicas].result()
    differences = compare_logs(run_dir, expected, is_close)
    if not differences:
        return
    problem = (
        f"Results on {replicas} replicas differ from those on 1: "
        f"{describe_difference(*differences[0])}."
    )
    report = request.getfixturevalue("hook_report").result()
    causes = find_causes(request, "suspects")
    unequal = describe_unequal_variables(run_dir)
    if unequal:
        fail(problem, *causes, *unequal)
    # Problems of single hooks have tests of their own, and need not be the cause.
    reason = None if report["suspects"] else explain_by_rounding(differences, replicas, run_dir)
    if reason:
        text = "\n".join([problem, reason, *report["rounding"]])
        request.node.warn(pytest.PytestWarning(text))
        return
    if not causes and all(name != "loss" for _, name, _ in differences):
        causes = ["All losses agree, so look at create_metrics first."]
    if len(causes) < 2:
        causes += [REPLICA_CAUSES, *report["rounding"]]
    fail(problem, *causes)


# {% endif %}
def test_evaluation_counts_every_example_once(undisturbed_run, evaluation, request):
    run_dir = undisturbed_run.result()
    assert_tested(run_dir, evaluation.result(), request)


def test_killed_run_resumes_bit_identical(killed_run, undisturbed_run, request):
    assert_bit_identical(
        killed_run.result(),
        undisturbed_run.result(),
        "A run that was killed and resumed differs from an undisturbed one",
        RESTART_CAUSES,
        request,
    )


# {% if cookiecutter.distribution == "parameter_server" %}
def test_workers_and_servers_train(cluster_run, request):
    # The results of training depend on arrival order. Test results don't.
    run_dir = cluster_run.result()
    assert_tested(run_dir, ask("evaluate", run_dir), request)


# {% else %}
def test_two_workers_equal_two_replicas(two_workers_run, undisturbed_run, request):
    assert_bit_identical(
        two_workers_run.result(),
        undisturbed_run.result(),
        "A run of two workers differs from one on two replicas in one process",
        WORKER_CAUSES,
        request,
    )


# {% endif %}
def test_export_predicts_what_the_model_predicts(export_checks, request):
    problems, hints = export_checks.result()
    for hint in hints:
        request.node.warn(pytest.PytestWarning(hint))
    if problems:
        fail(*problems)


# ----------------------------------------------------------------------------------------------
# Comparisons
# ----------------------------------------------------------------------------------------------


def read_log(run_dir):
    """Return the lines of the log, without timings."""
    texts = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [json.loads(text) for text in texts]
    return [{name: line[name] for name in line if name not in TIMINGS} for line in lines]


def is_close(value, other, tolerance=1e-4):
    """Return whether two values of a log are equal up to rounding."""
    if isinstance(value, str):
        return value == other
    return value == pytest.approx(other, rel=tolerance, abs=tolerance / 100, nan_ok=True)


def is_closer(value, other):
    return is_close(value, other, tolerance=1e-5)


def is_same(value, other):
    are_nan = value != value and other != other  # a metric may be NaN
    return value == other or are_nan


def compare_logs(run_dir, expected_dir, are_equal):
    """Return the values that differ between two logs, each as (line, name, expected value)."""
    lines = read_log(run_dir)
    expected_lines = read_log(expected_dir)
    differences = []
    for line, expected in zip(lines, expected_lines, strict=False):
        if line["split"] != expected["split"]:
            break  # one of the runs has ended
        for name in line:
            if not are_equal(line[name], expected[name]):
                differences.append((line, name, expected[name]))
    if not differences and len(lines) != len(expected_lines):
        fail(
            f"end_epoch: the run stopped at step {lines[-1]['step']} instead of "
            f"{expected_lines[-1]['step']}, although the lines of both logs agree until then"
        )
    return differences


# {% if cookiecutter.distribution == "synchronous" %}
def explain_by_rounding(differences, replicas, run_dir):
    """Return how rounding errors explain differences between replicas, or None."""
    step = find_step_of_rounding(replicas, run_dir.parent)
    if step:
        return ROUNDING_SHOWS.format(step=step)
    first_line, *_ = read_log(run_dir)
    return FLIPS_SHOW if are_flips(differences, first_line["step"]) else None


def are_flips(differences, first_step):
    """Return whether only metrics differ, by a few examples, and not in the first line.

    An accuracy jumps when rounding changes an example's class, but the loss hardly changes. A
    metric that is wrong on several replicas differs from the first line on.
    """
    return all(
        name != "loss" and line["step"] > first_step and abs(line[name] - expected) <= MOST_FLIPS
        for line, name, expected in differences
    )


def find_step_of_rounding(replicas, folder):
    """Return the step from which rounding errors change results on one replica, or None.

    Return None, too, if results on more replicas differ before it: then rounding is not the cause.
    The loss of step 1 is from before the first update, so it is always compared.
    """
    each_step = ("--steps-per-loop", 1)  # a log line for each step
    expected = run_train("train_only", folder / "one", "--replicas", 1, *each_step)
    other = run_train("train_only", folder / "other", "--replicas", replicas, *each_step)
    other_step = find_first_difference(other, expected, is_close)
    if not other_step:
        return None
    for seed in range(PERTURBATIONS):
        perturbed = folder / f"perturbed-{seed}"
        flags = ("--run-dir", perturbed, "--replicas", 1, *each_step)
        finish(start("train_perturbed", seed, *flags))
        # Replicas may round more than the perturbation, so its effect is noticed earlier.
        step = find_first_difference(perturbed, expected, is_closer)
        if step and 1 < step <= other_step:
            return step
    return None


def find_first_difference(run_dir, expected_dir, are_equal):
    """Return the step of the first line in which two logs differ, or None."""
    differences = compare_logs(run_dir, expected_dir, are_equal)
    return differences[0][0]["step"] if differences else None


# {% endif %}
def describe_difference(line, name, expected):
    return (
        f"the {name} of the {line['split']} split at step {line['step']} is {line[name]} instead "
        f"of {expected}"
    )


def compare_checkpoints(run_dir, expected_dir):
    """Return the names of the tensors in which the last checkpoints of two runs differ."""
    one, other = (
        json.loads((folder / "checksums.json").read_text(encoding="utf-8"))
        for folder in (run_dir, expected_dir)
    )
    return sorted(name for name in one | other if one.get(name) != other.get(name))


def describe_unequal_variables(run_dir):
    """Return a text about variables that differ between replicas of a run, or an empty list."""
    names = json.loads((run_dir / "unequal.json").read_text(encoding="utf-8"))
    return [UNEQUAL_VARIABLES.format(names=", ".join(names[:5]))] if names else []


def assert_bit_identical(run_dir, expected_dir, problem, possible_causes, request):
    """Fail unless two runs have the same log and the same last checkpoint."""
    differences = compare_logs(run_dir, expected_dir, is_same)
    names = compare_checkpoints(run_dir, expected_dir)
    if differences:
        problem = f"{problem}: {describe_difference(*differences[0])}."
    elif names:
        problem = (
            f"{problem}: the logs agree, but in checkpoints/last {len(names)} tensors differ: "
            f"{', '.join(names[:5])}."
        )
    else:
        return
    causes = [*find_causes(request), *describe_unequal_variables(expected_dir)]
    fail(problem, *causes or [possible_causes])


def assert_tested(run_dir, expected, request):
    """Fail unless the test line of a run has the expected values."""
    line = read_log(run_dir)[-1]
    for name, value in expected.items():
        if not is_close(line[name], value):
            fail(
                f"The run reports {name} {line[name]} for the test split, but it is {value} if "
                "each example is counted once, in batches of another size.",
                *(find_causes(request) or [EVALUATION_CAUSES]),
            )


def find_causes(request, *more):
    """Return the problems of all hooks, with a title, or an empty list."""
    report = request.getfixturevalue("hook_report").result()
    causes = [f"{hook}: {problem}" for hook in HOOKS for problem in report[hook] or []]
    for key in more:
        causes += report[key]
    if causes:
        return ["Likely causes, found by the checks of hooks:", *causes]
    return []


def fail(*paragraphs):
    """Fail a test with a text, and without the place in this file."""
    pytest.fail("\n".join(paragraphs), pytrace=False)


# ----------------------------------------------------------------------------------------------
# Processes
# ----------------------------------------------------------------------------------------------


def start(function, *arguments, **variables):
    """Start a process that runs a function of train_runs.py. Its output goes to process.log."""
    env = {name: os.environ[name] for name in os.environ if name not in ("TF_CONFIG", "TPU_NAME")}
    env["CUDA_VISIBLE_DEVICES"] = "-1"
    env["grpc_proxy"] = ""  # workers connect directly, even if http_proxy is set
    env["PYTHONIOENCODING"] = "utf-8"
    env["PYTHONPATH"] = os.pathsep.join([str(PROJECT), env.get("PYTHONPATH", "")])
    env.update(variables)
    script = Path(__file__).with_name("train_runs.py")
    log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # a pipe may fill up
    process = subprocess.Popen(
        [sys.executable, script, function, *map(str, arguments)],
        env=env,
        cwd=PROJECT,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    process.log = log
    PROCESSES.append(process)
    return process


def wait(processes, is_over=lambda: False):
    """Wait until all processes have ended, one has failed, or a condition is true."""
    end = time.monotonic() + TIMEOUT
    while not is_over() and time.monotonic() < end:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes):
            return
        time.sleep(0.01)


def finish(*processes):
    """Wait for processes, and return what the first one printed. If one fails, end all."""
    wait(processes)
    if any(process.poll() for process in processes):
        wait_for_reports(processes)
    unfinished = [process for process in processes if process.poll() is None]
    failed = [process for process in processes if process.returncode not in (None, 0)]
    for process in unfinished:
        process.kill()
        process.wait()
    if failed:
        fail(describe_failure(min(failed, key=rank_failure)))
    if unfinished:
        fail(describe_timeout(unfinished[0]))
    return read_output(processes[0])


def wait_for_reports(processes):
    """Wait up to 5 seconds: the worker that failed first may report the cause last."""
    end = time.monotonic() + 5
    while time.monotonic() < end and None in [process.poll() for process in processes]:
        time.sleep(0.01)


def rank_failure(process):
    """Return a sort key: first the worker that failed in a hook, last those that lost another."""
    hook, _ = find_hook(read_output(process))
    return (process.returncode == 143, hook is None)


def read_output(process):
    process.log.seek(0)
    return process.log.read().strip()


def describe_failure(process):
    output = read_output(process)
    problem = f"train.py ended with exit code {process.returncode}."
    if process.returncode < 0:
        problem = f"train.py was killed by {signal.Signals(-process.returncode).name}."
    if process.returncode == -signal.SIGKILL:
        problem += " Maybe the machine's memory was full."
    hook, line = find_hook(output)
    if hook:
        problem += f" The error comes from {hook} (train.py, line {line})."
    for pattern, advice in FAILURE_ADVICE.items():
        if re.search(pattern, output):
            problem += f" {advice}."
    return f"{problem} {describe_end(output)}"


def describe_timeout(process):
    return f"train.py did not end within {TIMEOUT} seconds. {describe_end(read_output(process))}"


def describe_end(output):
    """Return the last lines of an output, and the beginning of an exception before them."""
    lines = [line for line in output.splitlines() if not line.startswith(RESULT)]
    before, last = lines[:-15], lines[-15:]
    # Messages of Keras may have many lines. The code in a traceback is indented.
    starts = [i for i, line in enumerate(before) if re.match(r"[\w.]*(Error|Exception)\b", line)]
    if starts:
        beginning = before[starts[-1] :]
        last = [*beginning[:5], "…", *last]
    return "Its last lines:\n" + "\n".join(last)


def ask(function, *arguments):
    """Return what a function of train_runs.py returns in a process of its own."""
    return find_result(finish(start(function, *arguments)))


def find_result(output):
    results = [line for line in output.splitlines() if line.startswith(RESULT)]
    return json.loads(results[-1].removeprefix(RESULT))


def ask_about_hooks():
    """Return the report of all checks of hooks.

    If a library crashes in a check, return what the checks before it found. The crash is a problem
    of the hook that was being checked.
    """
    process = start("check_hooks")
    wait([process])
    if process.poll() is None:
        process.kill()
        fail(describe_timeout(process))
    output = read_output(process)
    has_crashed = (process.returncode or 0) < 0
    if not has_crashed or RESULT not in output:
        return find_result(finish(process))
    report = find_result(output)
    hook = report["crashed"]
    if hook in HOOKS:  # otherwise, a search for causes crashed
        problem = f"its check crashed; repair the other hooks first. {describe_failure(process)}"
        report[hook] = [*(report[hook] or []), problem]
    return report


def ask_about(run, function):
    """Return what a function of train_runs.py returns for a run that has been submitted."""
    return ask(function, run.result())


def run_train(function, run_dir, *flags):
    """Run train.py in one process. Return the run directory."""
    finish(start(function, "--run-dir", run_dir, *flags))
    return run_dir


def kill_and_resume(run_dir):
    """Kill a run after its first checkpoint, its first validation, and the next checkpoint.

    Resume it each time. A fast run may end before the last kill. Return the run directory.
    """
    is_saved = (run_dir / "checkpoints/last/checkpoint").exists
    for is_due in (is_saved, lambda: is_validated(run_dir)):
        if not start_and_kill(run_dir, is_due):
            pytest.skip("the run ended before it could be killed")
    step = find_last_step(run_dir)
    start_and_kill(run_dir, lambda: find_last_step(run_dir) > step)
    output = finish(start("train_only", "--run-dir", run_dir, *REPLICAS))
    if "resumed at step" not in output:
        fail("A run that was killed started again at step 0.")
    return run_dir


def start_and_kill(run_dir, is_due):
    """Start or resume a run, and kill it when a condition is true. Return whether it was killed."""
    process = start("train_only", "--run-dir", run_dir, *REPLICAS)
    wait([process], is_due)
    has_ended = process.poll() is not None
    process.kill()
    process.wait()
    if has_ended:
        finish(process)  # which reports a failure
    return not has_ended


def is_validated(run_dir):
    """Return whether the log has a line of a validation."""
    log = run_dir / "metrics.jsonl"
    return log.exists() and '"validation"' in log.read_text(encoding="utf-8")


def find_last_step(run_dir):
    """Return the step of the last checkpoint."""
    paths = (run_dir / "checkpoints/last").glob("ckpt-*.index")
    return max((int(path.stem.removeprefix("ckpt-")) for path in paths), default=0)


def run_cluster(tasks, run_dir):
    """Run train.py in a process for each (job, index). Return the run directory."""
    cluster = {}
    for (job, _), port in zip(tasks, find_free_ports(len(tasks)), strict=True):
        cluster.setdefault(job, []).append(f"localhost:{port}")
    processes = []
    for job, index in tasks:
        tf_config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
        processes.append(start("train_only", "--run-dir", run_dir, TF_CONFIG=tf_config))
    finish(*processes)
    return run_dir


def find_free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
