"""Runs on a GPU: its numbers, resume, lost workers. They are skipped on a machine without one.

Two workers share the GPU. NCCL allows this to processes that it takes for two machines.
"""

import functools
import signal
from pathlib import Path

import numpy as np
import pytest
from parameter_servers import Cluster, assert_codes
from rendering import TASKS
from running import (
    FLAGS,
    WORKERS,
    assert_close,
    assert_interrupted,
    assert_same_run,
    assert_succeeded,
    environment,
    find_newest_step,
    finish,
    finish_all,
    kill,
    query,
    read_split,
    run_script,
    start,
    train,
    wait_for_more_lines,
    wait_until,
    watch_log,
    worker_environments,
)
from variants import SMALL_DATA, write_copies, write_variant

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="it needs an NVIDIA GPU"),
]

SIZES = ("essential", "complete")
GPU = {
    "CUDA_VISIBLE_DEVICES": "0",
    # Otherwise a process takes all of the GPU's memory.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}
# By default, a GPU computes products in TF32, whose mantissa has 10 bits.
FLOAT32 = {**GPU, "NVIDIA_TF32_OVERRIDE": "0"}
ROUNDING = {"rel": 2e-3, "abs": 2e-3}
# Two logical GPUs are parts of the one GPU. NCCL needs two real ones, so TensorFlow sums otherwise.
TWO_LOGICAL_GPUS = """
def choose_strategy():
    [gpu] = tf.config.list_physical_devices("GPU")
    part = tf.config.LogicalDeviceConfiguration(memory_limit=4096)  # MiB
    tf.config.set_logical_device_configuration(gpu, [part, part])
    return "mirrored"
"""

train_on_gpu = functools.partial(train, begin=start, env=environment(**GPU))
train_in_float32 = functools.partial(train, begin=start, env=environment(**FLOAT32))
query_on_gpu = functools.partial(query, env=environment(**FLOAT32))


@pytest.fixture(params=SIZES)
def any_script(request, scripts):
    return scripts[request.param]


# --------------------------------------------------------------------------------------------------
# Runs
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", TASKS)
def test_run_on_a_gpu_is_close_to_one_on_a_cpu(task, size, render, tmp_path):
    project = render(tmp_path, task=task, script=size)
    script = write_variant(project / "train.py", project, SMALL_DATA[task])
    output = train_in_float32(script, "--epochs", "2", "--run-dir", "gpu")
    assert "GPU" in output.splitlines()[0]
    train(script, "--epochs", "2", "--run-dir", "cpu")
    # An example that is classified otherwise changes an accuracy by more than rounding does.
    lines = read_split(project / "gpu", "validation")
    expected = read_split(project / "cpu", "validation")
    losses = [line["loss"] for line in lines]
    assert losses == pytest.approx([line["loss"] for line in expected], **ROUNDING)
    # The checkpoint of the GPU, tested on a CPU.
    evaluated = train(script, "--epochs", "2", "--run-dir", "gpu", "--mode", "evaluate")
    _, _, values = evaluated.partition("test loss ")
    [tested] = read_split(project / "gpu", "test")
    assert float(values.split()[0]) == pytest.approx(tested["loss"], **ROUNDING)


@pytest.mark.parametrize(
    "flags",
    [
        ("--jit-compile",),
        ("--precision", "mixed_bfloat16", "--jit-compile"),
        ("--precision", "mixed_float16"),
    ],
)
@pytest.mark.parametrize("task", TASKS)
def test_flags_for_speed_train_on_a_gpu(task, flags, projects, tmp_path):
    script = write_variant(projects[task] / "train.py", tmp_path, SMALL_DATA[task])
    train_on_gpu(script, "--epochs", "1", *flags)
    assert (tmp_path / "run" / "export" / "saved_model.pb").is_file()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("size", SIZES)
def test_killed_deterministic_run_is_bit_identical(size, task, render, tmp_path, chance):
    project = render(tmp_path, task=task, script=size)
    script = write_variant(project / "train.py", project, SMALL_DATA[task])
    flags = (
        *("--deterministic", "--epochs", "6"),
        *("--checkpoint-every-steps", "3", "--steps-per-loop", "1"),
    )
    train_on_gpu(script, *flags, "--run-dir", "expected")
    expected = project / "expected"
    run_dir = project / "run"
    process = start(script, *flags, env=environment(**GPU))
    wait_until(lambda: find_newest_step(run_dir), process)
    wait_for_more_lines(run_dir, chance.randint(1, 8), process)
    kill(process)
    output = train_on_gpu(script, *flags)
    assert "resumed at step" in output
    assert_same_run(run_dir, expected)


# --------------------------------------------------------------------------------------------------
# Numbers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_distributions_draw_the_numbers_of_keras_on_a_cpu(dtype, any_script):
    expected = query("random.draw_as_keras", any_script, dtype)
    numbers = query_on_gpu("random.draw", any_script, 1, dtype, False)
    assert numbers.keys() == expected.keys()
    for name in expected:
        # The transformation to a normal distribution rounds otherwise.
        np.testing.assert_allclose(numbers[name], expected[name], rtol=1e-2, atol=1e-2)
    assert numbers["uniform"] == expected["uniform"]
    assert numbers["randint"] == expected["randint"]


def test_adam_on_a_gpu_equals_numpy(projects):
    script = projects["tabular_regression"] / "train.py"
    errors = query_on_gpu("updates.compare_adam", script, {"weight_decay": 0.1})
    assert errors["script"] < 1e-5
    assert errors["Keras"] < 2e-5


@pytest.mark.parametrize(("dtype", "amsgrad"), [("bfloat16", False), ("float32", True)])
def test_adam_falls_back_to_the_one_of_keras_on_a_gpu(dtype, amsgrad, any_script):
    ours, theirs = query_on_gpu("updates.run_fallback", any_script, dtype, amsgrad)
    assert ours == theirs


def test_gradients_of_an_embedding_are_summed_on_a_gpu(complete_script):
    errors = query_on_gpu("updates.compare_embedding_updates", complete_script)
    assert max(errors.values()) < 1e-4, errors


def test_accumulation_on_a_gpu_equals_the_whole_batch(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path)
    for parts in (1, 4):
        flags = (*FLAGS[:2], "--epochs", "1", "--accumulation-steps", parts)
        train_in_float32(script, *flags, "--run-dir", f"parts-{parts}")
    lines, expected = (read_split(tmp_path / f"parts-{parts}", "train") for parts in (4, 1))
    assert_close(lines, expected, **ROUNDING)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("size", SIZES)
def test_two_logical_gpus_equal_one(size, task, render, tmp_path):
    project = render(tmp_path, task=task, script=size)
    script = project / "train.py"
    data = SMALL_DATA[task]
    flags = ("--epochs", "2")
    alone = write_variant(script, tmp_path, data)
    train_in_float32(alone, *flags)
    two = write_variant(script, project, data, TWO_LOGICAL_GPUS)
    output = train_in_float32(two, *flags)
    first_line, *_ = output.splitlines()
    assert "mirrored on 2 × GPU" in first_line
    lines = read_split(project / "run", "train")
    expected = read_split(tmp_path / "run", "train")
    assert_close(lines, expected, **ROUNDING)


# --------------------------------------------------------------------------------------------------
# Workers
# --------------------------------------------------------------------------------------------------


def start_gpu_workers(script, *flags):
    """Start two workers that share the GPU and a run directory. They sum by NCCL."""
    workers = []
    for index, env in enumerate(worker_environments(WORKERS, **FLOAT32)):
        nccl = {
            "NCCL_HOSTID": f"machine-{index}",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": "1",
        }
        workers.append(start(script, *flags, env={**env, **nccl}))
    return workers


def test_two_workers_on_a_gpu_equal_one_process(any_script, tmp_path):
    [script] = write_copies(any_script, [tmp_path / "workers"])
    flags = ("--epochs", "2")
    outcomes = finish_all(start_gpu_workers(script, *flags))
    assert_succeeded(outcomes)
    assert "multi_worker on 2 × GPU" in outcomes[0].output
    [alone] = write_copies(any_script, [tmp_path / "alone"])
    train_in_float32(alone, *flags)
    lines = read_split(script.parent / "run", "train")
    assert_close(lines, read_split(alone.parent / "run", "train"), **ROUNDING)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_lost_worker_on_a_gpu_ends_the_other_with_143(number, any_script, tmp_path):
    script = write_variant(any_script, tmp_path)
    flags = ("--epochs", "1000", "--checkpoint-every-steps", "20")
    chief, other = start_gpu_workers(script, *flags)
    run_dir = tmp_path / "run"
    wait_until(watch_log(run_dir), chief, other)
    wait_for_more_lines(run_dir, 3, chief, other)
    other.send_signal(number)
    outcome = finish(chief, timeout=120)
    assert_interrupted(outcome)
    assert finish(other).code == (-signal.SIGKILL if number == signal.SIGKILL else 143)


# --------------------------------------------------------------------------------------------------
# Parameter servers
# --------------------------------------------------------------------------------------------------


def test_workers_with_a_gpu_train_with_parameter_servers(server_script, tmp_path):
    cluster = Cluster(server_script, tmp_path, variables=GPU)
    outcomes = cluster.start("--epochs", "3", begin=start).finish()
    assert_codes(outcomes, 0)
    line = read_split(cluster.run_dir, "test")[-1]
    alone = write_variant(server_script, tmp_path)
    outcome = run_script(alone, "--epochs", "3", "--run-dir", tmp_path / "alone")
    assert outcome.code == 0, outcome
    expected = read_split(tmp_path / "alone", "test")[-1]
    assert line["accuracy"] == pytest.approx(expected["accuracy"], abs=0.1)
