"""Parameter servers: a chief, workers and servers on this machine, killed and restarted.

Which worker takes which step depends on arrival order, so no two runs are bit-identical. The tests
check which steps were taken, what was restored and what was learned.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from parameter_servers import (
    RECORD_STEPS,
    STEPS_PER_EPOCH,
    TASKS,
    Cluster,
    assert_codes,
    assert_each_example_once,
    read_recorded_steps,
)
from rendering import TEMPLATE
from running import (
    TIMEOUT,
    assert_close,
    assert_fails,
    assert_one_line,
    assign_addresses,
    create_command,
    environment,
    find_free_ports,
    finish,
    fork,
    list_checkpoints,
    query,
    read_metrics,
    read_numbers,
    run_commands,
    run_project_tests,
    run_script,
    tf_config,
    train,
    wait_for_more_lines,
    wait_until,
)
from test_recipes import split_blocks
from variants import (
    NO_DROPOUT,
    SMALL_IMAGES,
    apply_blocks,
    replace_image_model,
    replace_text,
    write_copies,
    write_variant,
)

LONG = pytest.mark.long


@pytest.fixture
def cluster(server_script, tmp_path):
    """Return a function that returns a cluster of a variant. The processes end with the test."""
    clusters = []

    def create(*codes, script=server_script, tasks=TASKS):
        clusters.append(Cluster(script, tmp_path, codes, tasks))
        return clusters[-1]

    yield create
    for each in clusters:
        each.kill()


def find_number(pattern, text):
    """Return the number in the one place of a text that matches a pattern."""
    [number] = re.findall(pattern, text)
    return float(number)


def find_training_steps(run_dir):
    return [line["step"] for line in read_metrics(run_dir) if line["split"] == "train"]


# --------------------------------------------------------------------------------------------------
# Steps
# --------------------------------------------------------------------------------------------------


def test_two_workers_take_each_example_once_per_epoch(cluster):
    tasks = cluster(RECORD_STEPS)
    output = tasks.train("--epochs", "3")
    assert "parameter_server on 2 × worker, 2 × ps, 19 steps " in output
    assert tasks.have_all_workers_begun()
    assert len(tasks.read_all_steps()) == 3 * STEPS_PER_EPOCH
    assert_each_example_once(tasks.read_all_steps(), 3)
    assert find_training_steps(tasks.run_dir) == [19, 38, 57]


HALVES_RATE = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, _ = original(strategy)
    with strategy.scope():
        return model, Adam(keras.optimizers.schedules.ExponentialDecay(1e-3, 100, 0.5))
"""
RECORD_POWERS = """
apply_adam = tf.raw_ops.ResourceApplyAdam

def record_and_apply(**options):
    numbers = [options[name] for name in ("beta1_power", "lr")]
    tf.print(traced["step"], *numbers, output_stream="file://powers")
    return apply_adam(**options)

tf.raw_ops.ResourceApplyAdam = record_and_apply
"""


# Prints the devices that sum the weights, to find one that is not finite.
PRINT_DEVICES_OF_SUMS = """
from tensorflow.python.eager import context as eager_context


@wraps_original
def sum_variables(original):
    context = eager_context.context()
    context.enable_graph_collection()
    result = original()
    for graph in context.export_run_metadata().partition_graphs:
        for node in graph.node:
            if node.op == "Sum":
                print("sum on", node.device)
    return result
"""


@pytest.mark.long
def test_servers_check_their_weights(cluster):
    """Otherwise, the chief would get all weights over the network before it saves them."""
    output = cluster(PRINT_DEVICES_OF_SUMS).train("--epochs", "1")
    devices = re.findall(r"(?m)^sum on .*/job:(.*)/replica:0/task:(.).*$", output)
    assert set(devices) == {("ps", "0"), ("ps", "1")}
    assert len(devices) == 6 + 12  # weights of three layers, and their moments


@pytest.mark.long
def test_update_uses_the_number_of_the_step(cluster):
    """It doesn't use the counter of updates, which two workers overwrite."""
    tasks = cluster(HALVES_RATE, RECORD_POWERS)
    tasks.train("--epochs", "4", "--global-batch-size", "16")
    records = []
    for path in tasks.folder.glob("*/powers"):
        records += path.read_text("utf-8").split()
    steps, powers, rates = np.array(records, "float64").reshape(-1, 3).T
    assert len(steps) == 4 * 78 * 6  # kernel and bias of three layers
    np.testing.assert_allclose(powers, 0.9 ** (steps + 1), rtol=1e-4)
    np.testing.assert_allclose(rates, 1e-3 * 0.5 ** (steps / 100), rtol=1e-4)


@pytest.mark.long
def test_evaluation_by_workers_equals_that_of_one_process(cluster):
    tasks = cluster()
    tasks.train("--epochs", "3")
    assert_evaluation_repeats_the_test(tasks.scripts["chief", 0], tasks.run_dir)
    assert not list(tasks.run_dir.glob("finished-*"))


def assert_evaluation_repeats_the_test(script, run_dir):
    """Assert that a script prints what the run's test line says."""
    line = read_metrics(run_dir)[-1]
    assert line["split"] == "test"
    for name in ("step", "epoch", "split"):
        del line[name]
    result = " ".join(f"{name} {value:.4f}" for name, value in line.items())
    output = train(script, "--mode", "evaluate", "--run-dir", run_dir)
    assert f"test {result}" in output


# --------------------------------------------------------------------------------------------------
# Worker failures
# --------------------------------------------------------------------------------------------------


def find_saved_step(outcome):
    """Return the step at which an interrupted chief says that it has saved."""
    return int(find_number(r"saved at step (\d+)", outcome.output + outcome.errors))


@pytest.mark.long
def test_killed_worker_takes_steps_again_when_it_is_restarted(cluster):
    tasks = cluster(RECORD_STEPS).start("--epochs", "500")
    wait_until(lambda: len(tasks.read_steps(0)) > 20, tasks.chief)
    tasks.processes["worker", 0].kill()
    wait_for_more_lines(tasks.run_dir, 2, tasks.chief)  # without it
    before = len(tasks.read_steps(0))
    tasks.start(tasks=[("worker", 0)])
    wait_until(lambda: len(tasks.read_steps(0)) > before + 20, tasks.chief)
    tasks.chief.send_signal(signal.SIGTERM)
    outcomes = tasks.finish()
    assert_codes(outcomes, 143)
    assert "worker 0 failed" in outcomes["chief", 0].output
    stopped = find_saved_step(outcomes["chief", 0])
    # All steps were taken, by either worker. Those that were under way may be taken twice.
    steps = tasks.read_all_steps()
    assert {step for step, _ in steps} == set(range(stopped))
    assert len(steps) <= stopped + 2
    assert len(set(steps)) == stopped


@pytest.mark.long
def test_run_completes_without_a_worker_that_hangs_and_is_killed(cluster):
    tasks = cluster(RECORD_STEPS).start("--epochs", "8")
    wait_until(lambda: len(tasks.read_steps(1)) > 5, tasks.chief)
    worker = tasks.processes["worker", 1]
    worker.send_signal(signal.SIGSTOP)
    time.sleep(2)
    worker.kill()
    outcomes = tasks.finish()
    assert outcomes.pop(("worker", 1)).code == -signal.SIGKILL
    assert_codes(outcomes, 0)
    assert_each_example_once(tasks.read_all_steps(), 8)
    assert read_metrics(tasks.run_dir)[-1]["split"] == "test"


@pytest.mark.long
def test_slow_worker_takes_fewer_steps(cluster):
    tasks = cluster(RECORD_STEPS).start("--epochs", "12")
    wait_until(tasks.have_all_workers_begun, tasks.chief)
    before = [len(tasks.read_steps(index)) for index in (0, 1)]
    worker = tasks.processes["worker", 1]
    end = time.monotonic() + TIMEOUT
    while tasks.chief.poll() is None:  # The worker runs a tenth of the time.
        assert time.monotonic() < end
        worker.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        worker.send_signal(signal.SIGCONT)
        time.sleep(0.03)
    outcomes = tasks.finish()
    assert_codes(outcomes, 0)
    assert "failed" not in outcomes["chief", 0].output
    fast = len(tasks.read_steps(0)) - before[0]
    slow = len(tasks.read_steps(1)) - before[1]
    assert 0 < 2 * slow < fast
    assert_each_example_once(tasks.read_all_steps(), 12)


# --------------------------------------------------------------------------------------------------
# Failures of servers and the chief
# --------------------------------------------------------------------------------------------------


def wait_for_run(tasks, lines):
    """Wait until a run has its log, and then for some lines."""
    wait_until((tasks.run_dir / "metrics.jsonl").exists, tasks.chief)
    wait_for_more_lines(tasks.run_dir, lines, tasks.chief)


@pytest.mark.long
@pytest.mark.parametrize(
    "task",
    [("ps", 1), ("chief", 0)],
    ids=["ps", "chief"],
)
def test_job_resumes_after_a_server_or_the_chief_was_killed(task, cluster):
    flags = ("--epochs", "6", "--checkpoint-every-steps", "10")
    tasks = cluster(RECORD_STEPS).start(*flags)
    wait_for_run(tasks, 4)
    tasks.processes[task].kill()
    outcomes = tasks.finish()
    assert outcomes.pop(task).code == -signal.SIGKILL
    assert_codes(outcomes, 143)
    if task != ("chief", 0):
        assert_one_line(outcomes["chief", 0].errors, "failed", "start all")
    before = [len(tasks.read_steps(index)) for index in (0, 1)]
    resumed = int(find_number(r"resumed at step (\d+)", tasks.train()))
    assert resumed >= STEPS_PER_EPOCH
    later = tasks.read_steps(0)[before[0] :] + tasks.read_steps(1)[before[1] :]
    assert sorted(step for step, _ in later) == list(range(resumed, 6 * STEPS_PER_EPOCH))
    assert_undisturbed(tasks)


def assert_undisturbed(tasks):
    """Assert that repeated steps had the same examples, and that the log reads as one run."""
    assert_each_example_once(tasks.read_all_steps(), 6)
    expected = []
    for epoch in range(6):
        expected += [19 * epoch + 9, 19 * epoch + 19]
    assert find_training_steps(tasks.run_dir) == expected


STAY_BEFORE_EXPORT = """
def export(folder, examples):
    time.sleep(600)
"""


@pytest.mark.long
def test_all_tasks_restart_after_the_chief_was_killed_before_the_export(cluster):
    """A scheduler would not start a task again that ended with 0."""
    tasks = cluster(STAY_BEFORE_EXPORT).start("--epochs", "1")
    log = tasks.run_dir / "metrics.jsonl"
    wait_until(lambda: log.exists() and '"split": "test"' in log.read_text(), tasks.chief)
    tasks.chief.kill()
    outcomes = tasks.finish()
    assert outcomes.pop(("chief", 0)).code == -signal.SIGKILL
    assert_codes(outcomes, 143)


@pytest.mark.long
def test_worker_replaced_while_the_chief_waits_for_a_server_restarts_all(cluster):
    """Otherwise, each call on the new worker would fail, again and again."""
    late = ("ps", 1)
    tasks = cluster()
    tasks.start("--epochs", "20", tasks=[task for task in tasks.scripts if task != late])
    worker = ("worker", 0)
    wait_until_serving(tasks.processes[worker])
    _, _, port = tasks.addresses["chief"][0].partition(":")
    wait_until(lambda: is_listening(int(port)), tasks.chief)
    time.sleep(2)  # the chief connects to the tasks that are there
    tasks.processes[worker].kill()
    tasks.finish(worker)
    tasks.start(tasks=[worker])
    wait_until_serving(tasks.processes[worker])
    tasks.start(tasks=[late])
    outcome = tasks.finish(("chief", 0))["chief", 0]
    assert_fails(outcome, 143, "a server or worker failed")
    assert_codes(tasks.finish(), 143)


def wait_until_serving(process):
    wait_until(lambda: "serves" in process.read_output(), process)


def is_listening(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.long
def test_sigterm_to_all_tasks_saves_first(cluster):
    tasks = cluster().start("--epochs", "500")
    wait_for_run(tasks, 3)
    began = time.monotonic()
    for process in tasks.processes.values():
        process.send_signal(signal.SIGTERM)
    outcomes = tasks.finish()
    assert time.monotonic() - began < 20
    assert_codes(outcomes, 143)
    assert find_saved_step(outcomes["chief", 0]) in list_checkpoints(tasks.run_dir)


SAVE_IN_A_SECOND = """
@wraps_original
def save(original, kind):
    if signals:
        Path("saves").touch()
        time.sleep(1)
    original(kind)
"""


@pytest.mark.long
def test_signal_that_arrives_three_times_saves(server_script, tmp_path):
    """As from `uv run` and a shell, if the same signal is sent to all processes of a group."""
    script = write_copies(server_script, [tmp_path], SAVE_IN_A_SECOND)[0]
    process = fork(script, "--epochs", "500", "--steps-per-loop", "1")
    log = tmp_path / "run" / "metrics.jsonl"
    # In the middle of the second epoch: right after the end of one, everything is saved.
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 25, process)
    process.send_signal(signal.SIGTERM)
    wait_until((tmp_path / "saves").exists, process)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    outcome = finish(process)
    assert_fails(outcome, 143, "saved at step")


@pytest.mark.long
def test_server_creates_the_run_directory(cluster):
    """Otherwise, NFS would remember for half a minute that there is none."""
    tasks = cluster().start("--epochs", "1", tasks=[("ps", 0)])
    wait_until(tasks.run_dir.exists, tasks.processes["ps", 0])


# Saving takes longer than the grace period, in which a slow machine must still end a step.
SAVE_SLOWLY = """
GRACE_SECONDS = 8

@wraps_original
def save(original, kind):
    if signals:
        time.sleep(1.5 * GRACE_SECONDS)
    original(kind)
"""


# One message to the chief is lost while it saves.
LOSE_A_MESSAGE = """
losses = []
connect = socket.create_connection

def create_connection(*arguments, **options):
    if signals and not losses:
        losses.append(signals)
        Path("lost").touch()
        time.sleep(5)
        raise TimeoutError
    return connect(*arguments, **options)

socket.create_connection = create_connection
"""


@pytest.mark.long
@pytest.mark.parametrize("codes", [[], [LOSE_A_MESSAGE]], ids=["whole", "lossy"])
def test_servers_wait_until_the_chief_has_saved(codes, cluster):
    tasks = cluster(SAVE_SLOWLY, *codes).start("--epochs", "500")
    wait_for_run(tasks, 3)
    for process in tasks.processes.values():
        process.send_signal(signal.SIGTERM)
    outcomes = tasks.finish()
    assert_codes(outcomes, 143)
    assert find_saved_step(outcomes["chief", 0]) in list_checkpoints(tasks.run_dir)
    assert bool(list(tasks.folder.rglob("lost"))) == bool(codes)


KILL_IF_FINISHED_BEFORE = """
@wraps_original
def load_datasets(original):
    if is_run_finished():
        time.sleep(2)  # the other tasks connect
        os.kill(os.getpid(), signal.SIGKILL)
    return original()
"""


@pytest.mark.long
def test_chief_that_is_lost_before_it_continues_a_finished_run(cluster):
    tasks = cluster(KILL_IF_FINISHED_BEFORE)
    tasks.train("--epochs", "1")
    outcomes = tasks.start("--epochs", "2").finish()
    assert outcomes.pop(("chief", 0)).code == -signal.SIGKILL
    assert_codes(outcomes, 143)


STOP_IN_FIRST_EPOCH = """
@wraps_original
def log(original, split, values):
    os.kill(os.getpid(), signal.SIGTERM)
    return original(split, values)
"""
IN_VALIDATION = """
@wraps_original
def log(original, split, values):
    if split == "validation":
        os.kill(os.getpid(), signal.SIGTERM)
    return original(split, values)
"""


@pytest.mark.long
def test_signal_to_the_chief_in_a_validation_ends_the_run_there(cluster):
    tasks = cluster(IN_VALIDATION).start("--epochs", "500")
    outcome = tasks.finish(("chief", 0))["chief", 0]
    assert_fails(outcome, 143, "saved at step 19; the same command resumes")
    assert find_training_steps(tasks.run_dir) == [19]


# The validation takes longer than the grace period, after which workers end.
LONG_VALIDATION = """
GRACE_SECONDS = 3

@wraps_original
def create_datasets(original):
    train, validation, test = original()
    return train, validation.repeat(2000), test


@wraps_original
def validate(original, *arguments):
    run_path("validation-has-begun").touch()
    return original(*arguments)
"""


@pytest.mark.long
def test_sigterm_to_all_tasks_in_a_validation_saves(cluster):
    tasks = cluster(LONG_VALIDATION).start("--epochs", "500")
    wait_until((tasks.run_dir / "validation-has-begun").exists, tasks.chief)
    time.sleep(1)
    for process in tasks.processes.values():
        process.send_signal(signal.SIGTERM)
    outcomes = tasks.finish()
    assert_codes(outcomes, 143)
    assert "saved at step 19" in outcomes["chief", 0].errors
    assert list_checkpoints(tasks.run_dir) == [19]
    assert [line["split"] for line in read_metrics(tasks.run_dir)] == ["train"]


@pytest.mark.long
def test_evaluator_needs_no_best_checkpoint(server_script, tmp_path):
    """The first epoch takes long, so there are only checkpoints within it."""
    script = write_copies(server_script, [tmp_path], STOP_IN_FIRST_EPOCH)[0]
    outcome = run_script(script, "--steps-per-loop", "5")
    assert_fails(outcome, 143, "saved at step 4")
    addresses = assign_addresses([*TASKS, ("evaluator", 0)])
    evaluator = fork(script, env=environment(**tf_config(addresses, "evaluator", 0)))
    wait_until(lambda: "step 4  validation" in evaluator.read_output(), evaluator)
    evaluator.kill()


@pytest.mark.long
def test_evaluator_needs_no_cluster(server_script, tmp_path):
    script = write_copies(server_script, [tmp_path])[0]
    train(script, "--epochs", "1")
    task = {"type": "evaluator", "index": 0}
    outcome = run_script(script, env=environment(TF_CONFIG=json.dumps({"task": task})))
    assert (outcome.code, outcome.errors) == (0, "")
    assert "step 19  validation" in outcome.output


@pytest.mark.long
def test_task_that_starts_after_the_end_of_the_run_exits_with_0(cluster):
    tasks = cluster("FINISHED_SECONDS = 1\n")
    tasks.train("--epochs", "1")
    late = ("worker", 1)
    outcomes = tasks.start(tasks=[late]).finish(late)
    assert_codes(outcomes, 0)
    assert "finished: worker 1" in outcomes[late].output


@pytest.mark.long
def test_sigterm_ends_tasks_that_wait_for_the_chief(cluster):
    tasks = cluster().start(
        tasks=[
            ("worker", 0),
            ("ps", 1),
        ]
    )
    for process in tasks.processes.values():
        wait_until(lambda process=process: "serves" in process.read_output(), process)
        process.send_signal(signal.SIGTERM)
    assert_codes(tasks.finish(), 143)


# --------------------------------------------------------------------------------------------------
# Checkpoints and learning
# --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_parameter_server_and_synchronous_scripts_resume_each_other(
    cluster, essential_script, tmp_path
):
    tasks = cluster()
    tasks.train("--epochs", "1")
    [synchronous] = write_copies(essential_script, [tmp_path / "synchronous"])
    assert_evaluation_repeats_the_test(synchronous, tasks.run_dir)
    output = train(synchronous, "--epochs", "3", "--run-dir", tasks.run_dir)
    assert "resumed at step 19" in output
    assert "resumed at step 57" in tasks.train("--epochs", "5")
    assert_evaluation_repeats_the_test(synchronous, tasks.run_dir)
    line = read_metrics(tasks.run_dir)[-1]
    assert (line["step"], line["split"]) == (95, "test")


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.long), 3])
def test_run_resumes_with_other_numbers_of_servers_and_workers(
    servers, cluster, server_script, essential_script, tmp_path
):
    before = cluster()
    before.train("--epochs", "1")
    folder = tmp_path / "after"
    folder.mkdir()
    tasks = [("chief", 0), ("worker", 0), *[("ps", index) for index in range(servers)]]
    after = Cluster(server_script, folder, tasks=tasks)
    after.run_dir = before.run_dir
    try:
        assert "resumed at step 19" in after.train("--epochs", "2")
    finally:
        after.kill()
    [synchronous] = write_copies(essential_script, [tmp_path / "synchronous"])
    assert_evaluation_repeats_the_test(synchronous, after.run_dir)


def measure_values(folder):
    """Return the bytes of the variables' values in a checkpoint or a SavedModel."""
    return sum(path.stat().st_size for path in folder.glob("*.data-*"))


@pytest.mark.long
def test_saved_model_has_each_weight_once(server_script, tmp_path):
    [script] = write_copies(server_script, [tmp_path / "one"])
    train(script, "--epochs", "1")
    run_dir = script.parent / "run"
    exported = measure_values(run_dir / "export" / "variables")
    assert 0 < exported < 1.2 * measure_values(run_dir / "checkpoints" / "best")


# Keras assigns the constrained weights and the averages after the update itself.
CONSTRAINED_MODEL = replace_image_model(
    "keras.layers.Flatten()",
    "keras.layers.Dense(32, kernel_constraint=keras.constraints.MaxNorm(0.5))",
    "keras.layers.Dense(10)",
)
SGD_WITH_EMA = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, _ = original(strategy)
    with strategy.scope():
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
        return model, keras.optimizers.SGD(schedule, momentum=0.9, use_ema=True, ema_momentum=0.9)
"""


@pytest.mark.long
def test_one_process_updates_as_the_synchronous_script(essential_script, server_script, tmp_path):
    codes = (CONSTRAINED_MODEL, SGD_WITH_EMA)
    server = write_copies(server_script, [tmp_path / "server"], *codes)[0]
    synchronous = write_copies(essential_script, [tmp_path / "synchronous"], *codes)[0]
    for script in (server, synchronous):
        train(script, "--epochs", "2")
    numbers = [read_numbers(script.parent / "run") for script in (server, synchronous)]
    assert_close(numbers[0], numbers[1], rel=1e-5)


# Noise in preprocess depends on the epoch.
NOISY_IMAGES = """
@wraps_original
def preprocess(original, batch, seeds, training):
    images, labels = original(batch, seeds, training)
    images = tf.cast(images, tf.float32)
    if training:
        draw = functools.partial(tf.random.stateless_normal, [8, 8, 1])
        images += tf.map_fn(draw, seeds, fn_output_signature=tf.float32)
    return images, labels
"""


def test_seeds_of_examples_are_those_of_the_synchronous_script(
    essential_script, server_script, tmp_path
):
    numbers = []
    for script in (essential_script, server_script):
        folder = tmp_path / script.parent.parent.name
        [copy] = write_copies(script, [folder], NO_DROPOUT, SMALL_IMAGES, NOISY_IMAGES)
        train(copy, "--epochs", "2", "--global-batch-size", "16")
        numbers.append(read_numbers(folder / "run"))
    assert_close(*numbers, rel=1e-4)


def test_loss_is_zero_if_all_weights_are(server_script, tmp_path):
    code = """
@wraps_original
def preprocess(original, batch, seeds, training):
    images, labels = original(batch, seeds, training)
    return images, labels, tf.zeros_like(labels, tf.float32)
"""
    train(write_variant(server_script, tmp_path, SMALL_IMAGES, code), "--epochs", "1")
    assert [line["loss"] for line in read_numbers(tmp_path / "run")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("Unavailable", True),
        ("Cancelled", True),
        ("ClosureInputError", True),
        ("unknown device", True),
        ("relevant tensor remote_handle", True),
        ("other device", False),
    ],
)
@pytest.mark.long
def test_server_failures_are_recognized(error, expected, server_script):
    assert query("conditions.is_task_failure", server_script, error) is expected


# The chief removes a checkpoint while the evaluator looks for a newer one than the first, and
# another one before the evaluator restores it. Once, there is none.
REMOVED = """
removed = []

@wraps_original
def find_checkpoint(original, kind):
    if config.mode != "continuous_evaluate" or not state.step or len(removed) == 3:
        return original(kind)
    removed.append(kind)
    if len(removed) == 1:
        raise FileNotFoundError
    return run_path("checkpoints/last/ckpt-1") if len(removed) == 2 else None
"""


@pytest.mark.long
def test_digits_are_learned_and_an_evaluator_follows(cluster):
    tasks = cluster(REMOVED, tasks=(*TASKS, ("evaluator", 0)))
    outcomes = tasks.start().finish()
    assert_codes(outcomes, 0)
    test_line = read_metrics(tasks.run_dir)[-1]
    assert test_line["accuracy"] >= 0.95
    [*_, line] = [line for line in read_metrics(tasks.run_dir) if line["split"] == "validation"]
    result = f"step {line['step']}  validation loss {line['loss']:.4f}"
    assert result in outcomes["evaluator", 0].output


@pytest.mark.long
def test_diabetes_is_learned(cluster, render, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tabular")
    project = render(folder, task="tabular_regression", distribution="parameter_server")
    tasks = cluster(script=project / "train.py")
    tasks.train()
    # The baseline has 45.3; test_tasks.py allows 4 more, the standard deviation of a mean of 66
    # errors. Thirteen runs on a loaded machine had 41.7 to 45.6. The mean of the targets has 66.
    assert read_metrics(tasks.run_dir)[-1]["mean_absolute_error"] < 48


@pytest.mark.long
@pytest.mark.parametrize("name", ["sample_weights", "gan"])
def test_recipes_train_in_one_process(name, server_script, tmp_path):
    script = write_recipe(server_script, tmp_path, name)
    train(script, "--epochs", "1", "--global-batch-size", "16")
    assert_evaluation_repeats_the_test(script, tmp_path / "run")


@pytest.mark.long
def test_recipe_with_two_models_trains_on_a_cluster(cluster, server_script, tmp_path):
    script = write_recipe(server_script, tmp_path, "gan")
    tasks = cluster(script=script)
    tasks.train("--epochs", "1", "--global-batch-size", "16")
    assert_evaluation_repeats_the_test(script, tasks.run_dir)


def write_recipe(script, folder, name):
    """Write a script with a recipe of docs/recipes/. Return its path."""
    code, _ = split_blocks(name)
    text, _ = apply_blocks(script.read_text(encoding="utf-8"), code)
    copy = folder / "train.py"
    copy.write_text(text, encoding="utf-8")
    return copy


# --------------------------------------------------------------------------------------------------
# Embeddings on several servers
# --------------------------------------------------------------------------------------------------


def read_python_block(path, beginning):
    """Return the one block of Python in a page that begins with a text."""
    pattern = rf"```python\n({re.escape(beginning)}.*?)```"
    [code] = re.findall(pattern, path.read_text(encoding="utf-8"), re.DOTALL)
    return code


INTEGER_IMAGES = """
def preprocess(batch, seeds, training):
    images, labels = batch
    return tf.cast(images, tf.int32), labels
"""
# Prints the rows and the device of the parts of the embedding and of the optimizer's moments.
PRINT_DEVICES = """
@wraps_original
def train(original, *args, **kwargs):
    if state.step == 0:
        tables = [*model.trainable_variables[:2], *optimizer.variables[2:6]]
        print("devices", json.dumps([[x.shape[0], x.value.device] for x in tables]))
    return original(*args, **kwargs)
"""


SPLIT_EMBEDDING = TEMPLATE / "templates" / "readme" / "parameter_server" / "split_embedding.md"


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "parts", "sizes"),
    [(17, 2, [9, 8]), (10, 4, [3, 3, 2, 2]), (3, 3, [1, 1, 1])],
)
def test_rows_of_a_split_embedding_are_spread_by_remainder(rows, parts, sizes):
    layer = read_python_block(SPLIT_EMBEDDING, "@keras")
    tables, found = query("updates.look_up_split_embedding", layer, rows, parts)
    assert [len(table) for table in tables] == sizes
    assert found == [tables[row % parts][row // parts] for row in range(rows)]


@pytest.mark.long
def test_frequent_rows_of_a_split_embedding_are_on_both_servers():
    layer = read_python_block(SPLIT_EMBEDDING, "@keras")
    tables, found = query("updates.look_up_split_embedding", layer, 1000, 2)
    uses = np.arange(1, 1001) ** -1.15  # Zipf's law; the most frequent row is the first
    on_first = np.array([row in tables[0] for row in found])
    assert uses[on_first].sum() / uses.sum() < 0.6
    # By contiguous blocks, as TensorFlow splits tables, almost all uses would be on one server.
    assert uses[:500].sum() / uses.sum() > 0.9


def create_embedding_model(rows):
    """Return code of a model with an embedding in two parts, for integers below `rows`."""
    model = replace_image_model(
        f"SplitEmbedding({rows}, 8, parts=2)",
        "keras.layers.Flatten()",
        'keras.layers.Dense(64, activation="silu")',
        "keras.layers.Dropout(0.3)",
        "keras.layers.Dense(10)",
    )
    return model.replace("keras.Input([8, 8, 1])", 'keras.Input([8, 8, 1], dtype="int32")')


# The layer until November 2026. Its first table has the first half of the rows.
SPLIT_IN_BLOCKS = """
@keras.saving.register_keras_serializable()
class SplitEmbedding(keras.layers.Layer):
    def __init__(self, rows, size, parts):
        super().__init__()
        shape = [rows // parts, size]
        self.tables = [self.add_weight(shape, "uniform") for _ in range(parts)]

    def call(self, inputs):
        return tf.nn.embedding_lookup([table.value for table in self.tables], inputs)
"""


@pytest.mark.long
def test_checkpoint_of_an_embedding_in_blocks_is_rejected(server_script, tmp_path):
    """Its shapes fit, so its rows would be exchanged without an error."""
    model = create_embedding_model(rows=18)
    one = ("--epochs", "1")
    train(write_variant(server_script, tmp_path, SPLIT_IN_BLOCKS, model, INTEGER_IMAGES), *one)
    layer = read_python_block(SPLIT_EMBEDDING, "@keras")
    script = write_variant(server_script, tmp_path, layer, model, INTEGER_IMAGES)
    assert_fails(run_script(script, "--epochs", "2"), 2, "rows_0_of_2")


@pytest.mark.long
def test_parts_of_an_embedding_are_on_both_servers(cluster):
    model = create_embedding_model(rows=17)
    layer = read_python_block(SPLIT_EMBEDDING, "@keras")
    tasks = cluster(layer, model, INTEGER_IMAGES, PRINT_DEVICES)
    output = tasks.train("--epochs", "8")
    [text] = re.findall(r"(?m)^devices (.*)$", output)
    servers = [(rows, find_number(r"ps/.*task:(\d)", name)) for rows, name in json.loads(text)]
    assert {rows for rows, _ in servers[:2]} == {9, 8}
    assert {server for _, server in servers[:2]} == {0, 1}
    # The moments are on the same server as their rows.
    assert sorted(servers[2:]) == sorted(servers[:2] * 2)
    assert read_metrics(tasks.run_dir)[-1]["accuracy"] > 0.8


@pytest.mark.long
def test_keras_cannot_train_a_partitioned_variable(tmp_path):
    """The program of the page. Once it works, the layer of the project's README is not needed."""
    code = read_python_block(TEMPLATE / "docs" / "parameter_servers.md", "import keras")
    assert "FixedShardsPartitioner" in code
    for port, free in zip(("2221", "2222", "2223"), find_free_ports(3), strict=True):
        code = code.replace(f"localhost:{port}", f"localhost:{free}")
    (tmp_path / "program.py").write_text(code, encoding="utf-8")
    outcome = run_script(tmp_path / "program.py")
    assert outcome.code == 1
    message = "AttributeError: 'ShardedVariable' object has no attribute 'handle'\n"
    assert outcome.errors.endswith(message)


@pytest.mark.long
def test_project_tests_pass(render, tmp_path):
    finished = run_project_tests(render(tmp_path, distribution="parameter_server"), "-q")
    assert finished.returncode == 0, finished.stdout
    assert " skipped" not in finished.stdout


LOSS_SCALE = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, optimizer = original(strategy)
    return model, keras.optimizers.LossScaleOptimizer(optimizer)
"""
MUON = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, _ = original(strategy)
    with strategy.scope():
        return model, keras.optimizers.Muon()
"""
FAILING_OPTIMIZERS = {
    "LossScaleOptimizer with inner_optimizer raises an error with parameter servers": LOSS_SCALE,
    "Muon with weight_decay raises an error": MUON,
}


@pytest.mark.long
@pytest.mark.parametrize("problem", FAILING_OPTIMIZERS)
def test_optimizer_that_fails_is_reported_by_the_project_tests(problem, render, tmp_path):
    project = render(tmp_path, distribution="parameter_server")
    write_variant(project / "train.py", project, FAILING_OPTIMIZERS[problem])
    finished = run_project_tests(project, "-k", "contract and create_model")
    assert finished.returncode == 1
    assert problem in finished.stdout


LARGEST = """
class Largest(keras.metrics.Metric):
    def __init__(self, **options):
        super().__init__(**options)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, labels, predictions, sample_weight=None):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(predictions)))

    def result(self):
        return self.value


def create_metrics(strategy):
    with strategy.scope():
        return [[Largest(name="largest")] for _ in range(3)]
"""


@pytest.mark.long
def test_metric_that_is_no_sum_is_reported_by_the_project_tests(render, tmp_path):
    project = render(tmp_path, distribution="parameter_server")
    write_variant(project / "train.py", project, LARGEST)
    finished = run_project_tests(project, "-k", "contract and create_metrics")
    assert finished.returncode == 1
    assert "the variables of 'largest' are not sums over examples" in finished.stdout


@pytest.mark.long
def test_large_embedding_of_keras_is_reported_by_the_project_tests(render, tmp_path):
    project = render(tmp_path, distribution="parameter_server")
    model = create_embedding_model(rows=400_000)
    model = model.replace(
        "SplitEmbedding(400000, 8, parts=2)", "keras.layers.Embedding(400_000, 8)"
    )
    write_variant(project / "train.py", project, model, INTEGER_IMAGES)
    finished = run_project_tests(project, "-k", "contract and create_model")
    assert finished.returncode == 0, finished.stdout
    assert "embedding sends its table of 13 MB to a worker at each step" in finished.stdout


# --------------------------------------------------------------------------------------------------
# Wrong input
# --------------------------------------------------------------------------------------------------

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1"]}
WORKER = {"type": "worker", "index": 0}
NO_CHIEF = {"worker": ["a:1", "b:1"]}
NO_WORKER = {"chief": ["a:1"], "ps": ["b:1"]}


def config_text(cluster=CLUSTER, task=WORKER, **jobs):
    return json.dumps({"cluster": {**cluster, **jobs}, "task": task})


# By name: a TF_CONFIG, and the reason in the line.
BAD_TF_CONFIGS = {
    "no JSON": ("{cluster:", "Expecting property name"),
    "list": ("[]", "{} is not one chief"),
    "no task": (json.dumps({"cluster": CLUSTER}), "No such job in cluster: None"),
    "no cluster": (json.dumps({"task": WORKER}), "{} is not one chief"),
    "no server": (config_text(ps=[]), "'ps': {}} is not one chief"),
    "no chief": (config_text(NO_CHIEF), "{'worker': ['a:1', 'b:1']} is not one chief"),
    "no worker": (config_text(NO_WORKER), "{'chief': ['a:1'], 'ps': ['b:1']} is not one chief"),
    "index out of range": (config_text(task=WORKER | {"index": 2}), "No task with index 2"),
    "type not in the cluster": (
        config_text(task={"type": "master", "index": 0}),
        "No such job in cluster: 'master'",
    ),
    "master": (config_text(master=["d:1"]), "'master': ['d:1']} is not one chief"),
    "two chiefs": (config_text(chief=["a:1", "a:2"]), "'ps': ['c:1']} is not one chief"),
    "no host": (config_text(ps=[":22"]), "':22' is not host:port"),
    "no port": (config_text(ps=["c"]), "'c' is not host:port"),
    "port is a text": (config_text(ps=["c:x"]), "Port could not be cast"),
    "servers are a number": (config_text(ps=1), "The tasks for job 'ps' must be a list"),
}


@pytest.fixture(scope="module")
def bad_outcomes(once, server_script, tmp_path_factory):
    """Return the outcomes of a script with each of BAD_TF_CONFIGS, by name."""

    def run_all():
        folder = tmp_path_factory.mktemp("rejected")
        texts = [text for text, _ in BAD_TF_CONFIGS.values()]
        commands = [
            create_command(server_script, folder, ["--epochs", "1"], {"TF_CONFIG": text})
            for text in texts
        ]
        outcomes = run_commands(commands)
        assert list(folder.iterdir()) == []
        return dict(zip(BAD_TF_CONFIGS, outcomes, strict=True))

    return once(run_all)


@pytest.mark.parametrize("name", BAD_TF_CONFIGS)
def test_bad_tf_config_is_rejected(name, bad_outcomes):
    code, output, errors = bad_outcomes[name]
    _, reason = BAD_TF_CONFIGS[name]
    assert (code, output) == (2, ""), errors
    assert_one_line(errors, "TF_CONFIG: ", reason, "; use a value such as", '"ps"')


@pytest.mark.long
def test_port_in_use_is_rejected(cluster):
    tasks = cluster().start(tasks=[("worker", 0)])
    first = tasks.processes["worker", 0]
    wait_until(lambda: "serves" in first.read_output(), first)
    tasks.start(tasks=[("worker", 0)])
    outcome = tasks.finish()["worker", 0]
    assert first.poll() is None
    first.kill()
    assert outcome.code == 2
    assert_one_line(outcome.errors, "worker 0", "127.0.0.1:")


@pytest.mark.long
def test_port_of_the_chief_in_use_is_reported(cluster):
    tasks = cluster()
    _, _, port = tasks.addresses["chief"][0].partition(":")
    with socket.create_server(("127.0.0.1", int(port))):
        outcome = tasks.start(tasks=[("chief", 0)]).finish(("chief", 0))
    assert outcome["chief", 0].code == 143
    assert_one_line(outcome["chief", 0].errors, "the chief's port is in use")


@pytest.mark.long
def test_server_with_another_run_directory_is_no_corrupt_checkpoint(cluster):
    tasks = cluster()
    train(tasks.scripts["chief", 0], "--epochs", "1")
    tasks.start("--epochs", "2", "--run-dir", "run")  # each task in a folder of its own
    outcome = tasks.finish(("chief", 0))["chief", 0]
    assert outcome.code == 2
    assert_one_line(outcome.errors, "--run-dir run is not shared by /job:ps/replica:0/task:0/")


PAUSE_BEFORE_RESTORING = """
@wraps_original
def restore(original, kind, path):
    Path("restoring").touch()
    while Path("restoring").exists():
        time.sleep(0.01)
    return original(kind, path)
"""


@pytest.mark.long
def test_server_lost_while_restoring_is_no_corrupt_checkpoint(cluster, server_script):
    tasks = cluster()
    tasks.train("--epochs", "1")
    folder = tasks.folder / "chief-0"
    write_variant(server_script, folder, PAUSE_BEFORE_RESTORING)
    tasks.start("--epochs", "2")
    pause = folder / "restoring"
    wait_until(pause.exists, tasks.chief)
    tasks.processes["ps", 0].kill()
    tasks.finish(("ps", 0))
    pause.unlink()
    outcome = tasks.finish(("chief", 0))["chief", 0]
    assert outcome.code == 143
    assert_one_line(outcome.errors, "a server or worker failed")


# --------------------------------------------------------------------------------------------------
# The launcher, with a train.py of a few lines
# --------------------------------------------------------------------------------------------------

# Each task records its starts, and ends after the chief.
BEGINNING = """
import json, os, signal, sys, time
from pathlib import Path

task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}-{task['index']}"
with open(name, "a") as file:
    file.write("start ")


def count(name):
    return Path(name).read_text().count("start") if Path(name).exists() else 0


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


"""
WAIT_FOR_ALL = """
wait_for(lambda: all(map(count, ("chief-0", "ps-0", "ps-1", "worker-0", "worker-1"))))
"""
END = f"""
if name == "chief-0":
    {WAIT_FOR_ALL.strip()}
    Path("finished").touch()
wait_for(lambda: Path("finished").exists())
"""
WAIT_FOR_RESTART = """
if name == "chief-0":
    wait_for(lambda: count("worker-1") == 2)
"""
# In the first start, a task waits to be ended with the others.
STAY_ONCE = """
if count(name) == 1:
    time.sleep(30)
"""
REJECT_INPUT = """
if name == "chief-0":
    sys.exit(2)
time.sleep(30)
"""
FOUR = ("--ps", "2", "--workers", "2")
ONE_OF_EACH = ("--ps", "1", "--workers", "1")
STARTED_ONCE = {"chief-0": 1, "ps-0": 1, "ps-1": 1, "worker-0": 1, "worker-1": 1}


def kill_once(name):
    """Return code that kills a task in its first start."""
    return f"""
if name == {name!r} and count(name) == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def launch(server_script, tmp_path):
    """Return a function that runs the launcher. It returns the finished process and the starts."""
    (tmp_path / "launch").mkdir()
    replace_text(server_script.parent / "launch" / "local.py", tmp_path / "launch")

    def run_launcher(*codes, flags=FOUR):
        (tmp_path / "train.py").write_text(
            "".join([BEGINNING, *codes]),
            encoding="utf-8",
        )
        finished = subprocess.run(
            [sys.executable, "launch/local.py", *flags],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        records = tmp_path.glob("*-[01]")
        return finished, {path.name: path.read_text().count("start") for path in records}

    return run_launcher


@pytest.mark.long
def test_tasks_train_on_one_core(render, tmp_path):
    core = min(os.sched_getaffinity(0))
    finished = subprocess.run(
        [sys.executable, "launch/local.py", *ONE_OF_EACH, "--", "--epochs", "1"],
        cwd=render(tmp_path, distribution="parameter_server"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "test loss" in finished.stdout


@pytest.mark.long
def test_killed_worker_alone_is_restarted(launch):
    finished, starts = launch(kill_once("worker-1"), WAIT_FOR_RESTART, END)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert starts == STARTED_ONCE | {"worker-1": 2}
    assert re.search(r"worker 1 was killed by SIGKILL.* restart 1 of 3", finished.stdout)


# When a phase begins, the chief has a task killed. Each start continues with the next order.
ORDER_KILLS = """
import threading

ORDERS = [
    ("train", "worker-0"),
    ("train", "ps-0"),
    ("train", "chief-0"),
    ("restore_run", "ps-1"),
    ("validate", "worker-1"),
    ("save", "ps-1"),
    ("test", "ps-0"),
    ("test", "worker-1"),
    ("export", "chief-0"),
]
orders_given = Path("orders")


def obey():
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    order = Path(f"kill-{task['type']}-{task['index']}")
    while not order.exists():
        time.sleep(0.005)
    order.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


threading.Thread(target=obey, daemon=True).start()


def begin(phase):
    given = orders_given.read_text().splitlines() if orders_given.exists() else []
    expected, victim = [*ORDERS, (None, None)][len(given)]
    if phase == expected:
        with orders_given.open("a") as file:
            print(phase, victim, file=file)
        Path(f"kill-{victim}").touch()


def announce(function):
    def call(*args, **kwargs):
        begin(function.__name__)
        return function(*args, **kwargs)

    globals()[function.__name__] = call


for each in (train, restore_run, validate, save, test, export):
    announce(each)
"""


@pytest.mark.long
def test_run_completes_after_kills_in_all_phases(server_script, tmp_path):
    (tmp_path / "launch").mkdir()
    replace_text(server_script.parent / "launch" / "local.py", tmp_path / "launch")
    write_variant(server_script, tmp_path, RECORD_STEPS, ORDER_KILLS)
    command = ["launch/local.py", *FOUR, "--max-restarts", "10", "--", "--epochs", "6"]
    finished = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("was killed by SIGKILL") == 9
    assert len((tmp_path / "orders").read_text().splitlines()) == 9
    assert_each_example_once(read_recorded_steps(tmp_path / "steps"), 6)
    assert_evaluation_repeats_the_test(server_script, tmp_path / "run")
    assert (tmp_path / "run" / "export" / "model.keras").exists()


@pytest.mark.long
def test_run_completes_without_a_worker_that_has_no_restart_left(launch):
    flags = (*FOUR, "--max-restarts", "0")
    finished, starts = launch(kill_once("worker-1"), "time.sleep(0.5)\n", END, flags=flags)
    assert finished.returncode == 0
    assert starts == STARTED_ONCE
    assert re.search(r"worker 1 was killed by SIGKILL.* no restart", finished.stdout)


@pytest.mark.long
@pytest.mark.parametrize("task", ["ps 0", "chief 0"])
def test_all_tasks_are_restarted_after_a_server_or_the_chief_was_killed(task, launch):
    kill = kill_once(task.replace(" ", "-"))
    finished, starts = launch(WAIT_FOR_ALL, kill, STAY_ONCE, END)
    assert (finished.returncode, finished.stderr) == (0, ""), finished.stdout
    assert set(starts.values()) == {2}
    assert re.search(rf"{task} was killed by SIGKILL.* restart 1 of 3", finished.stdout)


@pytest.mark.long
def test_wrong_input_of_the_chief_ends_all_tasks(launch):
    finished, starts = launch(REJECT_INPUT)
    assert (finished.returncode, finished.stderr) == (2, "")
    assert max(starts.values()) == 1
    assert "chief 0 exited with code 2" in finished.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "flags",
    [("--workers", "2"), ("--ps", "0", "--workers", "2")],
)
def test_launcher_rejects_a_cluster_without_servers(flags, launch):
    finished, _ = launch("", flags=flags)
    assert (finished.returncode, finished.stdout) == (2, "")
    [line] = finished.stderr.splitlines()
    assert "--ps" in line


# --------------------------------------------------------------------------------------------------
# Job files
# --------------------------------------------------------------------------------------------------

NAMES = [f"x-{number}.x:2222" for number in range(4)]
JOB_CLUSTER = {
    "chief": NAMES[:1],
    "ps": NAMES[1:2],
    "worker": NAMES[2:],
}
JOB_TASKS = [
    ("chief", 0),
    ("ps", 0),
    ("worker", 0),
    ("worker", 1),
]
ANSWERS = {"distribution": "parameter_server", "project_slug": "x"}


def run_shell(shell, code, **variables):
    """Run shell code that prints TF_CONFIG. Return its value."""
    env = environment(SERVERS="1", **variables)
    finished = subprocess.run(
        [shell, "-c", code],
        env=env,
        capture_output=True,
        check=True,
    )
    return json.loads(finished.stdout)


def expected_config(number):
    job, index = JOB_TASKS[number]
    return {"cluster": JOB_CLUSTER, "task": {"type": job, "index": index}}


@pytest.mark.parametrize("number", range(4))
def test_slurm_job_gives_each_task_its_role(number, render, tmp_path):
    path = render(tmp_path, cluster="slurm", **ANSWERS) / "launch" / "slurm.sbatch"
    [code] = re.findall(r"bash -c '\n(.*?)\n +' task", path.read_text("utf-8"), re.DOTALL)
    code = code.replace('"$@"', 'echo "$TF_CONFIG"')
    variables = {"ADDRESSES": ",".join(NAMES), "SLURM_PROCID": str(number)}
    assert run_shell("bash", code, **variables) == expected_config(number)


@pytest.mark.parametrize("number", range(4))
def test_kubernetes_job_gives_each_task_its_role(number, render, tmp_path):
    path = render(tmp_path, cluster="kubernetes", **ANSWERS) / "launch" / "kubernetes.yaml"
    [code] = re.findall(r"- \|\n(.*?)\n +exec python", path.read_text("utf-8"), re.DOTALL)
    variables = {"NAME": "x", "WORKERS": "2", "JOB_COMPLETION_INDEX": str(number)}
    config = run_shell("sh", f'{code}\necho "$TF_CONFIG"', **variables)
    assert config == expected_config(number)
