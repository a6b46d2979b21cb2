"""For each guarantee, a test that fails if it breaks: shown by breaking it on purpose.

Each row breaks one line of the rendered `train.py`, and names a test that must then fail, in a
process of its own. Without the break, all of these tests pass: they are tests of this folder. By
default some rows are tried, at random; PROMISES=all tries each.
"""

import json
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ALL = os.environ.get("PROMISES") == "all"


class Break(typing.NamedTuple):
    """A text of train.py, what replaces it, and the test that must fail."""

    old: str
    new: str
    test: str


KILLED_ESSENTIAL = (
    "script_sizes.py::test_interrupted_essential_script_is_bit_identical[SIGKILL-one replica]"
)
KILLED_COMPLETE = "resume.py::test_killed_run_is_bit_identical"
EVALUATION_TEST = "evaluation.py::test_evaluation_counts_every_example_once[plain-by-2]"
WEIGHTED_TEST = "evaluation.py::test_evaluation_counts_every_example_once[weighted-by-2]"
WRITE_LAST = """\
    write_checkpoint("last", last, max_to_keep=3)
    state.saved_step = int(last["step"])
"""
WRITE_BEST = """\
    if best:
        write_checkpoint("best", best, max_to_keep=1)
"""
SUM_OF_LOSSES = "tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)"

REPLICAS = {
    "the loss is divided by the global batch": Break(
        "tf.nn.compute_average_loss(losses, sample_weight, GLOBAL_BATCH_SIZE)",
        "tf.reduce_mean(losses * sample_weight)",
        "replicas.py::test_replicas_agree_with_dropout[2]",
    ),
    "a replica draws its part of the random numbers": Break(
        '    first = tf.cast(part, "int64") * size\n',
        '    first = tf.cast(0 * part, "int64") * size\n',
        "replicas.py::test_replicas_agree_with_dropout[2]",
    ),
    "the regularization counts once": Break(
        "tf.nn.scale_regularization_loss(tf.cast(regularization, loss.dtype))",
        "tf.cast(regularization, loss.dtype)",
        "numerics.py::test_regularization_counts_once_on_any_replicas",
    ),
    "the optimizer's variables are created before the step": Break(
        "            its_optimizer.build(each.trainable_variables)\n",
        "            pass\n",
        "script_sizes.py::test_sizes_are_bit_identical[image_classification-2]",
    ),
    "the gradients of an embedding are summed": Break(
        "[*map(tf.convert_to_tensor, gradients)]",
        "list(gradients)",
        "numerics.py::test_gradients_of_an_embedding_are_summed[--replicas 2]",
    ),
    "a gradient is clipped by the norm of the global batch": Break(
        '    gradients = context.all_reduce("SUM", gradients)\n',
        "",
        "numerics.py::test_clipping_equals_numpy[4]",
    ),
    "an overflow on one replica is seen by all": Break(
        'tf.math.is_finite(context.all_reduce("SUM", norm))',
        "tf.math.is_finite(norm)",
        "numerics.py::test_overflow_on_one_replica_is_seen_by_all",
    ),
    "parts of a batch are one batch": Break(
        "tf.nest.map_structure(lambda total: total / count, sums)",
        "sums",
        "numerics.py::test_accumulation_equals_the_whole_batch",
    ),
    "the EMA is evaluated": Break(
        "    swap_ema_weights()\n    validated = validate(*validation_set)\n",
        "    validated = validate(*validation_set)\n",
        "numerics.py::test_ema_is_evaluated_and_exported",
    ),
    "Adam follows its paper": Break(
        "self.beta_2**step",
        "self.beta_2 + 0.0 * step",
        "numerics.py::test_adam_equals_numpy[tabular_regression-1-arguments0]",
    ),
    "a worker has a share of the batch": Break(
        "workers, axis=1)[context.input_pipeline_id]",
        "workers, axis=1)[0]",
        "data_order.py::test_workers_read_the_batches_of_one_process",
    ),
    "workers have the same data": Break(
        "[describe_examples(*each) for each in datasets.values()]",
        "[]",
        "workers.py::test_different_workers_are_rejected[order]",
    ),
    "replicas round as workers do": Break(
        'if config.device_kind == "CPU" and name != "one_device":',
        'if config.device_kind == "CPU" and name == "multi_worker":',
        "replicas.py::test_two_workers_are_bit_identical_to_two_replicas[workers]",
    ),
}
EVALUATION = {
    "examples that fill the last batch have no weight": Break(
        'weight = tf.cast(position < size, "float32")',
        "weight = tf.ones([len(position)])",
        EVALUATION_TEST,
    ),
    "the last batch is evaluated": Break(
        "math.ceil(size / config.global_batch_size)",
        "size // config.global_batch_size",
        EVALUATION_TEST,
    ),
    "a metric uses the weights": Break(
        "        metric.update_state(labels, predictions, sample_weight)\n",
        "        metric.update_state(labels, predictions)\n",
        WEIGHTED_TEST,
    ),
    "a loss uses the weights": Break(
        SUM_OF_LOSSES,
        "tf.reduce_sum(losses), tf.reduce_sum(sample_weight)",
        WEIGHTED_TEST,
    ),
    "a metric is reset": Break(
        "        metric.reset_state()\n",
        "        pass\n",
        KILLED_COMPLETE,
    ),
    "the best checkpoint is tested": Break(
        "run_on_chief(find_checkpoint, config.export)",
        'run_on_chief(find_checkpoint, "last")',
        "training_flags.py::test_last_checkpoint_is_tested_and_exported",
    ),
}
DATA_ORDER = {
    "an epoch has its own order": Break(
        "stateless_shuffle(tf.range(size), [config.seed, epoch])",
        "stateless_shuffle(tf.range(size), [config.seed, 0])",
        "data_order.py::test_epochs_have_different_orders",
    ),
    "a seed has its own order": Break(
        "stateless_shuffle(tf.range(size), [config.seed, epoch])",
        "stateless_shuffle(tf.range(size), [0, epoch])",
        "data_order.py::test_seeds_give_different_orders",
    ),
    "an order is random": Break(
        "tf.random.experimental.stateless_shuffle(tf.range(size), [config.seed, epoch])",
        "(tf.range(size) * 7 + epoch) % size",
        "data_order.py::test_order_is_as_good_as_random[65537]",
    ),
    "the order doesn't depend on the iterator's start": Break(
        ".skip(first_step % steps)",
        ".skip(0)",
        "data_order.py::test_order_is_a_function_of_the_position",
    ),
    "each example has its own seed": Break(
        "seeds = places[:, :2]",
        "seeds = tf.fill([len(places), 2], places[0, 0])",
        "data_order.py::test_each_example_has_its_own_seed",
    ),
}
RESUME = {
    "a run resumes in its epoch, at its step": Break(
        "training=True, first_step=",
        "training=True, first_step=0 * ",
        KILLED_COMPLETE,
    ),
    "the optimizer is restored": Break(
        "        restore(checkpoint)\n        state.step",
        '        restore(checkpoint, ["model"])\n        state.step',
        KILLED_COMPLETE,
    ),
    "the essential script restores the optimizer": Break(
        "**saved, optimizer=[variable.value for variable in list_variables(optimizer)]\n",
        "**saved\n",
        KILLED_ESSENTIAL,
    ),
    "evaluation changes no random state": Break(
        "    with keras.StatelessScope():\n",
        "    if True:\n",
        "resume.py::test_model_that_draws_in_evaluation_resumes_bit_identical[essential]",
    ),
    "log lines after the checkpoint are dropped": Break(
        'return line["step"] + (line["split"] != "train") <= step\n',
        "return True\n",
        KILLED_ESSENTIAL,
    ),
    "the last checkpoint is written before the best": Break(
        f"{WRITE_LAST}{WRITE_BEST}",
        f"{WRITE_BEST}{WRITE_LAST}",
        "checkpoints.py::test_run_killed_between_last_and_best_checkpoint_resumes[second epoch]",
    ),
    "a flag that would change the numbers is rejected": Break(
        "        run_on_chief(check_run)\n",
        "        pass\n",
        "resume.py::test_fewer_epochs_are_rejected",
    ),
    "SIGTERM ends an essential run with 143": Break(
        "exit_code = 143",
        "exit_code = 0",
        KILLED_ESSENTIAL.replace("SIGKILL", "SIGTERM"),
    ),
    "a worker's signal stops all workers": Break(
        "sum_over_workers(len(signals))",
        "len(signals)",
        KILLED_ESSENTIAL.replace("SIGKILL-one replica", "SIGTERM-two workers"),
    ),
}
NOTHING_IS_LOST = {
    "a corrupt checkpoint is skipped": Break(
        "    for step in reversed(steps):\n",
        "    for step in list(reversed(steps))[:1]:\n",
        "checkpoints.py::test_resume_skips_a_corrupt_checkpoint[some]",
    ),
    "a checkpoint that a kill cut short is skipped": Break(
        'path.read_bytes().endswith(b"W\\xfb\\x80\\x8b$uG\\xdb")',
        "True",
        "checkpoints.py::test_essential_script_skips_a_checkpoint_that_a_kill_cut_short",
    ),
    "a non-finite loss stops the run": Break(
        'is_finite = math.isfinite(trained["loss"]) and take_snapshot()',
        "is_finite = take_snapshot() or True",
        "command_line.py::test_run_stops_before_it_saves_a_non_finite_loss",
    ),
    "a non-finite validation loss stops the run": Break(
        '    if not math.isfinite(validated["loss"] + score(validated)):\n',
        "    if False:\n",
        "command_line.py::test_run_stops_before_it_saves_a_non_finite_validation_loss",
    ),
    "only the chief writes": Break(
        "    if config.worker_index == 0:\n        state.pending_write = ",
        "    if True:\n        state.pending_write = ",
        "workers.py::test_only_the_chief_writes",
    ),
}
ERRORS_SPEAK = {
    "wrong input has exit code 2": Break(
        "exit_code = 2",
        "exit_code = 1",
        "resume.py::test_essential_script_rejects_a_run_with_flags_that_it_lacks"
        "[--clip-norm-clip_norm]",
    ),
    "a batch that replicas can't share is rejected": Break(
        "    if config.global_batch_size % divisor:\n",
        "    if False:\n",
        "command_line.py::test_batch_that_replicas_cannot_share_is_rejected",
    ),
}
PROMISES = REPLICAS | EVALUATION | DATA_ORDER | RESUME | NOTHING_IS_LOST | ERRORS_SPEAK


def test_page_says_how_many_promises_are_broken():
    text = (TESTS.parent / "docs" / "tests.md").read_text(encoding="utf-8")
    assert re.findall(r"in (\d+) ways", text) == [str(len(PROMISES))]


@pytest.mark.parametrize("name", PROMISES)
def test_text_to_break_is_in_a_script(name, scripts):
    texts = [script.read_text(encoding="utf-8") for script in scripts.values()]
    assert any(PROMISES[name].old in text for text in texts)


@pytest.mark.parametrize("name", PROMISES)
def test_test_that_must_fail_exists(name):
    file, _, test = PROMISES[name].test.partition("::")
    function = test.partition("[")[0]
    assert f"def {function}(" in (TESTS / f"test_{file}").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("nth", range(len(PROMISES) if ALL else 4))
def test_broken_promise_is_found(nth, chance, tmp_path):
    name = list(PROMISES)[nth] if ALL else chance.choice(list(PROMISES))
    old, new, test = PROMISES[name]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", "--tb", "short"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"test_{test}", "--basetemp", tmp_path / "base"],
        cwd=TESTS,
        env={**os.environ, "MUTANT": json.dumps([old, new])},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    lines = re.findall(r"^E .*", done.stdout, re.MULTILINE) or done.stdout.splitlines()[-3:]
    print(f"{name}: {lines[0]}")
    # 1 is the exit code of a test that failed, 0 of one that passed, others of none that ran.
    assert (done.returncode, "1 failed" in done.stdout) == (1, True), f"{name}\n{done.stdout}"
