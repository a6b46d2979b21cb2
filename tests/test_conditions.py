"""The conditions that decide what happens between loops, each called on its own."""

import shutil
import socket
import subprocess

import pytest
from running import query
from variants import write_copies

KINDS = ("essential", "complete", "parameter_server")
LINES = [
    {"split": "train", "step": 10},
    {"split": "validation", "step": 10},
    {"split": "train", "step": 20},
    {"split": "validation", "step": 20},
    {"split": "test", "step": 20},
    {"split": "train", "step": 30},
]
VALID_LINE = {"step": 1, "epoch": 1, "split": "train", "loss": 0.5}


@pytest.fixture(params=KINDS)
def any_script(request, all_scripts):
    """Return the script of one size, or the one with parameter servers."""
    return all_scripts[request.param]


def list_loop_ends(script, steps_per_epoch, steps_per_loop, every):
    """Return the ends of the loops of two epochs."""
    settings = {
        "steps_per_epoch": steps_per_epoch,
        "steps_per_loop": steps_per_loop,
        "checkpoint_every_steps": every,
    }
    last_step = 2 * steps_per_epoch
    return query("conditions.list_loop_ends", script, settings, last_step)


@pytest.mark.parametrize(
    ("steps_per_epoch", "steps_per_loop", "every", "ends"),
    [
        (19, 100, 1000, [19, 38]),  # one loop an epoch
        (19, 10, 1000, [9, 19, 28, 38]),  # two loops of nearly equal length
        (4, 10, 2, [2, 4, 6, 8]),  # checkpoints are more frequent
        (2, 1, 1000, [1, 2, 3, 4]),
    ],
)
def test_loops_divide_an_epoch_equally(steps_per_epoch, steps_per_loop, every, ends, any_script):
    assert list_loop_ends(any_script, steps_per_epoch, steps_per_loop, every) == ends


def test_checkpoint_is_due_when_its_interval_ends(any_script):
    settings = {"checkpoint_every_steps": 10}
    ends = [4, 9, 10, 19, 21, 45, 49]
    due = query("conditions.list_due_checkpoints", any_script, settings, ends)
    assert due == [10, 21, 45]


def test_resume_keeps_the_lines_up_to_its_step(any_script):
    """The validation at the step of the checkpoint is repeated."""
    kept = query("conditions.filter_log", any_script, LINES, 20)
    assert kept == LINES[:3]


OTHER_JSON = [
    {"split": "train", "step": 1},
    [1],
    None,
    "text",
    5,
]


@pytest.mark.parametrize("line", OTHER_JSON)
def test_other_json_is_not_a_log_line(line, complete_script):
    assert query("conditions.list_valid_lines", complete_script, [line]) == []


def test_log_line_has_numbers(complete_script):
    text = {**VALID_LINE, "accuracy": "high"}
    nothing = {**VALID_LINE, "loss": None}
    lines = [VALID_LINE, text, nothing]
    assert query("conditions.list_valid_lines", complete_script, lines) == [VALID_LINE]


def check_batch_size(script, **settings):
    """Return the error about a batch size, or None."""
    return query("conditions.check_batch_size", script, settings)


def test_batch_is_divisible_by_replicas(scripts):
    for script in scripts.values():
        assert check_batch_size(script, global_batch_size=64, replicas=4) is None


@pytest.mark.parametrize("size", [62, 3])
def test_other_batch_is_rejected_with_the_fix(size, scripts):
    for script in scripts.values():
        error = check_batch_size(script, global_batch_size=size, replicas=4)
        assert f"{size} is not divisible by 4 replicas" in error
        assert error.endswith("use a multiple of 4")


def test_batch_is_divisible_by_accumulation(complete_script):
    settings = {"global_batch_size": 12, "replicas": 2, "accumulation_steps": 4}
    error = check_batch_size(complete_script, **settings)
    assert error.endswith("by 2 replicas times --accumulation-steps 4; use a multiple of 8")


@pytest.mark.parametrize(
    ("driver", "hidden_by", "is_named"),
    [
        (False, None, False),
        (True, None, True),
        (True, "0", True),  # as set by Slurm
        (True, "", False),
        (True, "-1", False),
    ],
)
def test_driver_without_a_gpu_is_named(driver, hidden_by, is_named, complete_script):
    kind, output = query("conditions.find_device_kind", complete_script, driver, hidden_by)
    assert kind == "CPU"
    assert ("no GPU despite an NVIDIA driver" in output) is is_named


@pytest.mark.parametrize(
    ("kind", "implementation", "bytes_per_pack"),
    [
        ("CPU", "RING", 0),
        ("GPU", "NCCL", 2**25),
    ],
)
@pytest.mark.parametrize("size", ["essential", "complete"])
def test_gpus_sum_gradients_in_packs(size, kind, implementation, bytes_per_pack, scripts):
    options = query("conditions.read_communication_options", scripts[size], kind)
    assert options == [implementation, bytes_per_pack]


@pytest.mark.parametrize("size", ["essential", "complete"])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("UnavailableError", "connection reset"),
        ("AbortedError", "the collective was aborted"),
        ("DeadlineExceededError", "the deadline has passed"),
        ("UnknownError", "Error invoking NCCL: unhandled system error"),
        ("FailedPreconditionError", "current incarnation doesn't match with one in the group"),
    ],
)
def test_error_of_a_lost_worker_can_be_resumed(kind, text, size, scripts):
    code, errors = query("conditions.explain_graph_error", scripts[size], kind, text)
    assert code == 143
    assert "worker failed" in errors
    assert "start all workers again" in errors


def test_essential_run_with_a_port_in_use_can_be_resumed(scripts):
    text = "Could not start gRPC server"
    code, errors = query(
        "conditions.explain_graph_error", scripts["essential"], "UnknownError", text
    )
    assert code == 143
    assert "its port is in use" in errors


@pytest.mark.parametrize("size", ["essential", "complete"])
@pytest.mark.parametrize(
    "text",
    [
        "ConnectionAbortedError: the hook has lost its database",
        "ConnectionError: no gRPC server at db:5432, no local server",
        "ValueError: the coordination number of atom 3 is 0",
    ],
)
def test_unknown_error_of_a_hook_has_a_traceback(text, size, scripts):
    code, errors = query("conditions.explain_graph_error", scripts[size], "UnknownError", text)
    assert code == 1
    assert text in errors


@pytest.mark.parametrize("size", ["essential", "complete"])
def test_used_up_quota_is_reported_like_a_full_disk(size, scripts):
    text = "run/checkpoints/last/ckpt-19.data-00000-of-00001.tempstate; Disk quota exceeded"
    code, errors = query(
        "conditions.explain_graph_error", scripts[size], "ResourceExhaustedError", text
    )
    assert code == 1
    assert "its quota is used up" in errors
    assert "; make room" in errors


@pytest.mark.parametrize("size", ["essential", "parameter_server"])
def test_checkpoint_of_another_user_is_reported(size, all_scripts):
    text = "{{function_node SaveV2}} run/checkpoints/last/ckpt-19_temp/part; Permission denied"
    code, errors = query(
        "conditions.explain_graph_error", all_scripts[size], "PermissionDeniedError", text
    )
    assert code == 1
    assert "has another owner" in errors
    assert "change the owner" in errors


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_chief_listens_on_both_kinds_of_addresses(complete_script):
    addresses = ["127.0.0.1", "::1"]
    assert query("conditions.connect_to_listener", complete_script, addresses) == addresses


# By run directory: files whose errors are about it, and files of hooks.
FILES_OF_ERRORS = {
    "run": (["run", "run/metrics.jsonl", "run/checkpoints/last/ckpt-1.index"], ["run2/x", "x", ""]),
    "runs/a/": (["runs", "runs/a/export"], ["runs/b", "/runs"]),
    "/data/run": (["/data", "/data/run/x"], ["/data/run.csv", "/data/images/1.png", "", "run"]),
    "None": (["None", "None/x"], ["", "x"]),
    ".": ([], ["x.csv", "./x.csv", "", "/x"]),  # files of hooks can't be told from the run's
}


@pytest.mark.parametrize("run_dir", FILES_OF_ERRORS)
def test_errors_about_files_of_hooks_are_no_errors_of_the_run_directory(run_dir, any_script):
    own, others = FILES_OF_ERRORS[run_dir]
    found = query("conditions.find_errors_in_run_dir", any_script, run_dir, [*own, *others])
    assert found == own


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
@pytest.mark.parametrize("has_commit", [False, True])
def test_run_has_the_commit_of_its_script(has_commit, any_script, tmp_path):
    [copy] = write_copies(any_script, [tmp_path / "it's $HOME"])
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    commands = [("init", "-q")]
    if has_commit:
        commands += [("add", "."), (*author, "commit", "-qm", "first"), ("rev-parse", "HEAD")]
    for command in commands:
        output = subprocess.check_output(["git", *command], cwd=copy.parent, text=True)
    assert query("conditions.describe_commit", copy) == (output.strip() or None)
