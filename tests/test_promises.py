"""For each guarantee, a test that would fail if it broke: shown by breaking it on purpose.

Each row breaks one line of the rendered `train.py`, and names a test that must then fail, in a
process of its own. Without the break all of them pass: they are tests of this folder. By default
some rows are tried, by chance; PROMISES=all tries each.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# By guarantee, as DESIGN names them: what breaks, the text of train.py, what stands there instead,
# and the test that sees it.
ONE_TRUTH = {
    "the loss is divided by the global batch": (
        "tf.nn.compute_average_loss(losses, sample_weight, global_batch_size=GLOBAL_BATCH_SIZE)",
        "tf.reduce_mean(losses * sample_weight)",
        "exactness.py::test_replicas_share_one_truth[2]",
    ),
    "the regularization counts once": (
        "tf.nn.scale_regularization_loss(tf.add_n(regularization))",
        "tf.add_n(regularization)",
        "exactness.py::test_regularization_counts_once_for_any_replicas",
    ),
    "the optimizer's variables are made before the step": (
        "            its.build(each.trainable_variables)\n",
        "            pass\n",
        "exactness.py::test_replicas_share_one_truth[2]",
    ),
    "the gradients of an embedding are summed": (
        "[tf.convert_to_tensor(gradient) for gradient in gradients]",
        "list(gradients)",
        "numbers.py::test_embeddings_get_one_gradient[--replicas 2]",
    ),
    "a gradient is clipped by the norm of the whole batch": (
        "        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)\n",
        "",
        "flags.py::test_clipping_is_that_of_numpy[4]",
    ),
    "an overflow on one replica is seen by all": (
        "nan = tf.where(overflows > 0, math.nan, 0.0)",
        "nan = tf.where(~finite, math.nan, 0.0)",
        "numbers.py::test_overflow_on_one_replica_is_seen_by_all",
    ),
    "parts of a batch are one batch": (
        "return tf.nest.map_structure(lambda x: x / ACCUMULATION_STEPS, sums)",
        "return sums",
        "flags.py::test_accumulation_equals_the_whole_batch",
    ),
    "averages are what is evaluated": (
        "            exchange_averages()  # of no effect without --ema-momentum\n",
        "",
        "flags.py::test_averages_are_evaluated_and_exported",
    ),
    "Adam is its paper's": (
        "beta2_power=self.beta_2**step",
        "beta2_power=self.beta_2",
        "numbers.py::test_adam_is_that_of_numpy[tabular_regression-1-arguments5]",
    ),
    "a replica draws random numbers of its own": (
        "tf.cast(replica, x.dtype) * 0x9E3779B1",
        "tf.cast(replica, x.dtype) * 0",
        "state.py::test_each_replica_has_random_numbers_of_its_own_in_both_models",
    ),
    "a worker has a share of the batch": (
        "own = batches[:, context.input_pipeline_id * replicas :][:, :replicas]",
        "own = batches[:, :replicas]",
        "numbers.py::test_workers_share_out_the_batches_of_one_process",
    ),
    "workers have the same data": (
        "hexdigest()[:8] for x in tensors]",
        "hexdigest()[:8] for x in []]",
        "numbers.py::test_unlike_workers_are_refused[order]",
    ),
    "replicas round as workers do": (
        'if kind == "CPU" and name != "one_device":',
        'if kind == "CPU" and name == "multi_worker":',
        "exactness.py::test_workers_equal_replicas_to_the_bit[workers]",
    ),
}
EVALUATION = {
    "what fills up the last batch has no weight": (
        "real = tf.cast(position < size, tf.float32)",
        "real = tf.ones([batch_size])",
        "exactness.py::test_evaluation_counts_every_example_once[64-by-2]",
    ),
    "the last batch is evaluated too": (
        "math.ceil(size / GLOBAL_BATCH_SIZE)",
        "size // GLOBAL_BATCH_SIZE",
        "exactness.py::test_evaluation_counts_every_example_once[64-by-2]",
    ),
    "a metric goes by the weights": (
        "        metric.update_state(labels, predictions, sample_weight)\n",
        "        metric.update_state(labels, predictions)\n",
        "exactness.py::test_evaluation_counts_every_example_once[weighted-by-2]",
    ),
    "a loss goes by the weights": (
        "tf.stack([tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)])",
        "tf.stack([tf.reduce_sum(losses), tf.reduce_sum(sample_weight)])",
        "exactness.py::test_evaluation_counts_every_example_once[weighted-by-2]",
    ),
    "a metric begins anew": (
        "        metric.reset_state()\n",
        "        pass\n",
        "exactness.py::test_evaluation_counts_every_example_once[64-by-2]",
    ),
    "the test is of the best checkpoint": (
        "    path, values = ask_the_chief(find_checkpoint, args.export)\n",
        '    path, values = ask_the_chief(find_checkpoint, "last")\n',
        "flags.py::test_patience_ends_a_run_and_survives_resume",
    ),
}
DATA_ORDER = {
    "an epoch has an order of its own": (
        "stateless_shuffle(tf.range(size), tf.stack([SEED, epoch]))",
        "stateless_shuffle(tf.range(size), tf.stack([SEED, 0]))",
        "exactness.py::test_an_epoch_has_an_example_at_most_once",
    ),
    "a seed has an order of its own": (
        "stateless_shuffle(tf.range(size), tf.stack([SEED, epoch]))",
        "stateless_shuffle(tf.range(size), tf.stack([0, epoch]))",
        "exactness.py::test_another_seed_is_another_order",
    ),
    "an order is random": (
        "tf.random.experimental.stateless_shuffle(tf.range(size), tf.stack([SEED, epoch]))",
        "(tf.range(size) * 7 + epoch) % size",
        "numbers.py::test_order_is_as_good_as_random[65537]",
    ),
    "the order doesn't come from an iterator's past": (
        ".skip(first_step % steps * replicas)",
        ".skip(0)",
        "exactness.py::test_order_is_a_function_of_the_position",
    ),
    "the seeds of augmentation are one for each example": (
        "seeds = tf.stack([tf.fill([batch_size], key), position], axis=1)",
        "seeds = tf.fill([batch_size, 2], key)",
        "exactness.py::test_seeds_are_one_for_each_example",
    ),
}
RESUME = {
    "a run goes on in its epoch, at its step": (
        '    iterator, _ = distribute(*sets["train"], True, step + state.get("skipped", 0))\n',
        '    iterator, _ = distribute(*sets["train"], True)\n',
        "resume.py::test_killed_run_ends_as_an_undisturbed_one[1-1-1]",
    ),
    "the optimizer is restored": (
        "    restore(path, values, *variables())\n",
        '    restore(path, values, "model")\n',
        "resume.py::test_killed_run_ends_as_an_undisturbed_one[1-1-1]",
    ),
    "the essential script's too": (
        "last = tf.train.Checkpoint(**state, **kept, optimizer=slots)",
        "last = tf.train.Checkpoint(**state, **kept)",
        "sizes.py::test_essential_script_ends_with_the_same_bits[kill-replica]",
    ),
    "each replica's random numbers are restored": (
        "                variable.assign(saved[i])\n    seed_replicas()\n",
        "                variable.assign(saved[i])\n    path or seed_replicas()\n",
        "resume.py::test_killed_run_ends_as_an_undisturbed_one[2-7-1]",
    ),
    "lines past the checkpoint are dropped": (
        '(x["step"], x["split"] != "train") <= (step, False)',
        "True",
        "sizes.py::test_essential_script_ends_with_the_same_bits[kill-replica]",
    ),
    "the best is written before the last": (
        '(("best", best, 1), ("last", last, 3))',
        '(("last", last, 3), ("best", best, 1))',
        "numbers.py::test_kill_between_best_and_last[second]",
    ),
    "a flag that would change the numbers is refused": (
        "        ask_the_chief(check_run, config)\n",
        "        pass\n",
        "resume.py::test_fewer_epochs_are_refused",
    ),
    "SIGTERM ends an essential run with 143": (
        "            os._exit(143)  # Python's own end would wait for all workers\n",
        "            os._exit(0)\n",
        "sizes.py::test_essential_script_ends_with_the_same_bits[term-replica]",
    ),
    "a worker's signal is heard by all": (
        "        stops = sum_over_workers(len(signals))  # SIGTERM or Ctrl-C, to any of them\n",
        "        stops = len(signals)\n",
        "sizes.py::test_essential_script_ends_with_the_same_bits[term-workers]",
    ),
}
NOTHING_IS_LOST = {
    "a damaged checkpoint is passed over": (
        "    for step in reversed(steps):\n",
        "    for step in list(reversed(steps))[:1]:\n",
        "faults.py::test_damaged_checkpoint_is_named_and_skipped[some]",
    ),
    "a checkpoint that a kill cut short is passed over": (
        "x.read_bytes().endswith(magic)",
        "True",
        "sizes.py::test_essential_script_goes_on_before_a_checkpoint_that_a_kill_cut_short",
    ),
    "a loss that is not finite stops the run": (
        'if not (math.isfinite(trained["loss"]) and take_snapshot()):',
        "if not (take_snapshot() or True):",
        "bad_input.py::test_run_stops_before_it_saves_a_loss_that_is_not_finite",
    ),
    "so does one of the validation": (
        '            if not math.isfinite(validated["loss"]):\n',
        "            if False:\n",
        "bad_input.py::test_run_stops_before_it_saves_what_only_the_validation_sees",
    ),
    "the chief alone writes": (
        "    if WORKER == 0:\n        writing = writer.submit(write_checkpoint, snapshot, best)\n",
        "    writing = writer.submit(write_checkpoint, snapshot, best)\n",
        "state.py::test_other_workers_write_nothing",
    ),
}
ERRORS_SPEAK = {
    "wrong input has exit code 2": (
        "    raise SystemExit(code)\n",
        "    raise SystemExit(1)\n",
        "sizes.py::test_flags_that_an_essential_script_lacks_are_refused",
    ),
    "a batch that replicas can't share is refused": (
        "    if rest := GLOBAL_BATCH_SIZE % parts:\n",
        "    if rest := 0:\n",
        "bad_input.py::test_batch_that_replicas_cannot_share_is_refused_with_the_nearest",
    ),
}
PROMISES = ONE_TRUTH | EVALUATION | DATA_ORDER | RESUME | NOTHING_IS_LOST | ERRORS_SPEAK
ALL = os.environ.get("PROMISES") == "all"


def test_readme_says_how_many():
    said = re.findall(r"in (\d+) ways", (TESTS.parent / "README.md").read_text(encoding="utf-8"))
    assert said == [str(len(PROMISES))]


@pytest.mark.parametrize("nth", range(len(PROMISES) if ALL else 4))
def test_broken_promise_is_seen(nth, chance, tmp_path):
    name = list(PROMISES)[nth] if ALL else chance.choice(list(PROMISES))
    old, new, test = PROMISES[name]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", "--tb", "short"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"test_{test}", "--basetemp", tmp_path / "base"],
        cwd=TESTS,
        env={**os.environ, "MUTANT": json.dumps([old, new])},
        capture_output=True,
        encoding="utf-8",
    )
    said = re.findall(r"^E .*", done.stdout, re.MULTILINE) or done.stdout.splitlines()[-3:]
    print(f"{name}: {said[0]}")
    # 1 is of a test that failed, 0 of one that didn't see it, others of none that ran.
    assert (done.returncode, "1 failed" in done.stdout) == (1, True), f"{name}\n{done.stdout}"
