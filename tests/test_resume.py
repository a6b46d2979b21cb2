"""Resume is exact: a run that was killed at any moment ends bit-identical to an undisturbed one.

The moments of the kills are random. A failure prints their seed; FAULTS_SEED=… sets it.
"""

import re
import shutil
import signal
import time

import pytest
from running import (
    FLAGS,
    FLAGS_TOGETHER,
    LAST_STEP,
    WORKERS,
    assert_close,
    assert_fails,
    assert_rejected,
    assert_same_run,
    assert_succeeded,
    assert_unchanged,
    count_lines,
    environment,
    find_newest_step,
    finish,
    finish_all,
    flags_of,
    fork,
    kill,
    list_checkpoints,
    query,
    read_numbers,
    read_split,
    run_script,
    start_workers,
    train,
    wait_for_lines,
    wait_until,
)
from variants import (
    NO_DROPOUT,
    NO_EXPORT,
    SMALL_DATA,
    SMALL_IMAGES,
    insert_layer,
    kill_after_log,
    lose_loop,
    reformat_definition,
    replace_image_model,
    replace_text,
    run_before,
    write_copies,
    write_edited,
    write_variant,
)

LONG = pytest.mark.long

# In the forward and in the backward pass, three large tensors are added, and other operations read
# two of them at the same time.
SUMS = """
class Sums(keras.layers.Layer):
    def call(self, x):
        x = tf.tile(x[:, None], [1, 400, 1]) + tf.range(400.0)[:, None]
        sine = tf.sin(x)
        cosine = tf.cos(x)
        largest = tf.reduce_max(tf.exp(sine), 1) + tf.reduce_max(tf.exp(cosine), 1)
        return tf.reduce_mean(sine + cosine + tf.tanh(x), 1) + largest
""" + replace_image_model(
    "keras.layers.Flatten()",
    "keras.layers.Dense(64)",
    "Sums()",
    "keras.layers.Dense(10)",
)


def assert_runs_are_bit_identical(script, *flags):
    train(script, *flags, "--run-dir", "one")
    train(script, *flags, "--run-dir", "two")
    assert read_numbers(script.parent / "one") == read_numbers(script.parent / "two")


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=LONG)])
@pytest.mark.parametrize("size", ["essential", "complete"])
def test_sums_of_three_tensors_are_bit_identical_in_each_run(size, replicas, scripts, tmp_path):
    """With three inputs, the order in TensorFlow's AddN depends on timing (aggregate_ops.cc)."""
    script = write_variant(scripts[size], tmp_path, SUMS)
    assert_runs_are_bit_identical(script, "--epochs", "2", *flags_of(replicas))


def test_sums_of_three_tensors_are_bit_identical_without_a_cluster(server_script, tmp_path):
    script = write_variant(server_script, tmp_path, SUMS)
    assert_runs_are_bit_identical(script, "--epochs", "2")


@LONG
@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        ([], {"Variable.scatter_add", "crop_and_resize"}),
        (["--deterministic"], set()),
    ],
)
def test_operations_are_bit_identical_in_each_call(flags, allowed, essential_script):
    """Otherwise, a resumed run could not end bit-identical. docs/tests.md lists the exceptions.

    An exception may be bit-identical by chance.
    """
    threads = environment(TF_NUM_INTRAOP_THREADS="8")
    counts = query("operations.count_results", essential_script, *flags, env=threads)
    assert len(counts) > 42
    different = {name for name, count in counts.items() if count > 1}
    assert different <= allowed


# --------------------------------------------------------------------------------------------------
# Kills
# --------------------------------------------------------------------------------------------------


def draw_moment(run_dir, lines, chance):
    """Return a function that returns whether a random line of the log has been written.

    The last third of the lines is left out, so that a kill doesn't come too late.
    """
    count = count_lines(run_dir)
    step = find_newest_step(run_dir)
    target = chance.randint(1, max(1, lines * 2 // 3))
    listed = run_dir / "checkpoints" / "last" / "checkpoint"  # exists once one is complete
    print(f"a kill at line {target} of {lines}, resuming at step {step}, {count} lines in the log")

    def has_come():
        # The log has lines from before. The run is under way when it is past its first checkpoint.
        is_under_way = find_newest_step(run_dir) > min(step, LAST_STEP - 1)
        return is_under_way and listed.exists() and count_lines(run_dir) >= target

    return has_come


def test_killed_run_is_bit_identical(complete_script, train_once, tmp_path, chance):
    flags = (*FLAGS, "--steps-per-loop", "1")
    expected = train_once(*flags)
    script = write_variant(complete_script, tmp_path)
    run_dir = tmp_path / "run"
    lines = len(read_numbers(expected))
    process = fork(script, *flags)
    wait_until(draw_moment(run_dir, lines, chance), process)
    time.sleep(chance.uniform(0, 0.05))
    kill(process)
    assert count_lines(run_dir) < lines
    kill_before_test(complete_script, run_dir, flags)
    output = train(write_variant(complete_script, tmp_path), *flags)
    assert f"resumed at step {LAST_STEP}" in output
    assert_same_run(run_dir, expected)


def kill_before_test(complete_script, run_dir, flags):
    """Resume a run, and kill it when it has saved its last checkpoint, before the test."""
    die = run_before("test_best_checkpoint", "os.kill(os.getpid(), signal.SIGKILL)")
    outcome = run_script(write_variant(complete_script, run_dir.parent, die), *flags)
    assert outcome.code == -signal.SIGKILL, outcome
    assert "resumed at step " in outcome.output
    assert find_newest_step(run_dir) == LAST_STEP
    assert all(line["split"] != "test" for line in read_numbers(run_dir))
    assert not (run_dir / "export").exists()


# A layer that draws in evaluation too, as the sampling layer of a variational autoencoder.
DRAWS_IN_EVALUATION = """
@keras.saving.register_keras_serializable()
class Sampling(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)

""" + insert_layer("Sampling()", after="Flatten")


@pytest.mark.parametrize("size", ["essential", pytest.param("complete", marks=LONG)])
def test_model_that_draws_in_evaluation_resumes_bit_identical(size, scripts, tmp_path):
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    code = (SMALL_IMAGES, DRAWS_IN_EVALUATION)
    train(write_copies(scripts[size], [undisturbed], *code)[0], "--epochs", "3")
    [killed] = write_copies(scripts[size], [disturbed], *code, kill_after_log(4, "validation"))
    assert run_script(killed, "--epochs", "3").code == -signal.SIGKILL
    [script] = write_copies(scripts[size], [disturbed], *code)
    assert "resumed at step " in train(script, "--epochs", "3")
    assert_same_run(disturbed / "run", undisturbed / "run")


def name_layers(first, second):
    """Return code of a model with two layers of one shape."""
    return replace_image_model(
        "keras.layers.Flatten()",
        f"keras.layers.Dense(64, name={first!r})",
        f"keras.layers.Dense(64, name={second!r})",
        "keras.layers.Dense(10)",
    )


@pytest.mark.parametrize(
    "flags",
    [("--epochs", "2"), pytest.param(("--mode", "evaluate"), marks=LONG)],
    ids=["resume", "evaluate"],
)
def test_essential_script_rejects_renamed_layers(flags, essential_script, tmp_path):
    code = (SMALL_IMAGES, name_layers("one", "two"))
    train(write_variant(essential_script, tmp_path, *code), "--epochs", "1")
    code = (SMALL_IMAGES, name_layers("two", "three"))
    script = write_variant(essential_script, tmp_path, *code)
    outcome = run_script(script, *flags)
    assert_fails(outcome, 2, "it has sequential/one/kernel", "sequential/two/kernel", "--run-dir")


@pytest.mark.parametrize("size", ["complete", pytest.param("essential", marks=LONG)])
def test_evaluation_rejects_a_new_layer(size, scripts, tmp_path):
    """The complete script names the first variable that differs."""
    train(write_variant(scripts[size], tmp_path, SMALL_IMAGES), "--epochs", "1")
    code = (SMALL_IMAGES, insert_layer('keras.layers.Dense(512, name="new")', after="Flatten"))
    outcome = run_script(write_variant(scripts[size], tmp_path, *code), "--mode", "evaluate")
    name = "new/kernel" if size == "complete" else ""
    assert_fails(outcome, 2, "of another model or optimizer", name)


@pytest.mark.parametrize("export", ["best", "last"])
def test_evaluation_rejects_renamed_layers(export, complete_script, train_once, tmp_path):
    code = (SMALL_IMAGES, name_layers("one", "two"))
    run_dir = train_once("--epochs", "1", code=code)
    code = (SMALL_IMAGES, name_layers("two", "three"))
    script = write_variant(complete_script, tmp_path, *code)
    flags = ("--mode", "evaluate", "--run-dir", run_dir, "--export", export)
    outcome = run_script(script, *flags)
    assert_fails(outcome, 2, "it has sequential/one/kernel", "sequential/two/kernel", "same hooks")


@pytest.mark.long
@pytest.mark.parametrize("name", FLAGS_TOGETHER)
def test_killed_run_with_flags_is_bit_identical(name, complete_script, train_once, tmp_path):
    flags = ("--epochs", "2", "--steps-per-loop", "5", *FLAGS_TOGETHER[name].split())
    flags = (*flags, "--checkpoint-every-steps", "4")
    script = write_variant(complete_script, tmp_path)
    process = fork(script, *flags)
    # The kill may cut the second checkpoint short.
    wait_until(lambda: len(list_checkpoints(tmp_path / "run")) >= 2, process)
    kill(process)
    assert "resumed at step" in train(script, *flags)
    assert_same_run(tmp_path / "run", train_once(*flags))


# --------------------------------------------------------------------------------------------------
# The log
# --------------------------------------------------------------------------------------------------

HALF = (*FLAGS[:3], "2", *FLAGS[4:])  # half the epochs of FLAGS


@pytest.fixture
def half_run(complete_script, train_once, tmp_path):
    """Return a script, and the folder beside it of a finished run of half the epochs of FLAGS."""
    shutil.copytree(train_once(*HALF), tmp_path / "run")
    return write_variant(complete_script, tmp_path), tmp_path / "run"


@pytest.mark.long
def test_resume_drops_log_lines_after_the_checkpoint(half_run, train_once):
    script, run_dir = half_run
    log = run_dir / "metrics.jsonl"
    *lines, test_line = log.read_text().splitlines(keepends=True)
    assert '"test"' in test_line
    later = lines[-2].replace('"step": 156', '"step": 234').replace('"epoch": 2', '"epoch": 3')
    assert later != lines[-2]
    validation = later.replace('"train"', '"validation"')
    log.write_text("".join([*lines, later, validation, later[:40]]))
    train(script, *FLAGS)
    assert_same_run(run_dir, train_once(*FLAGS))


def test_resume_drops_a_log_line_that_was_cut_short(half_run, train_once):
    script, run_dir = half_run
    log = run_dir / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])  # in the test line: the run is not finished
    shutil.rmtree(run_dir / "export")
    train(script, *HALF)
    assert log.read_bytes() == whole
    assert_same_run(run_dir, train_once(*HALF))


SMALL_FLAGS = ("--global-batch-size", "16", "--epochs", "4", "--checkpoint-every-steps", "3")
CORRUPT_LINES = ["{", "[]", "7", "null", '{"step": null, "epoch": 1, "split": "train"}', "\x00\x00"]


@pytest.fixture(scope="module")
def stopped_run(complete_script, tmp_path_factory):
    """Return the folder of a small run that was killed in its third epoch of four."""
    folder = tmp_path_factory.mktemp("stopped")
    # A kill while a checkpoint is written would leave a corrupt one, which each start reports.
    kill_between_writes = kill_after_log(24, condition="wait_for_write() is None")
    script = write_variant(complete_script, folder, SMALL_IMAGES, kill_between_writes)
    assert run_script(script, *SMALL_FLAGS).code == -signal.SIGKILL
    return folder / "run"


@pytest.fixture
def copy_of_stopped_run(stopped_run, tmp_path):
    return shutil.copytree(stopped_run, tmp_path / "run")


@pytest.fixture
def small_run(train_once):
    """Return the folder of an undisturbed small run."""
    return train_once(*SMALL_FLAGS, code=(SMALL_IMAGES,))


def test_corrupt_log_lines_are_named(complete_script, copy_of_stopped_run, small_run, tmp_path):
    """The last line is no exception: any kill may cut it short."""
    log = copy_of_stopped_run / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines()
    lines[1 : 1 + len(CORRUPT_LINES)] = CORRUPT_LINES
    log.write_text("\n".join([*lines, '{"step": 24, "epo']), encoding="utf-8")
    output = train(write_variant(complete_script, tmp_path, SMALL_IMAGES), *SMALL_FLAGS)
    for number in range(2, 2 + len(CORRUPT_LINES)):
        assert f"metrics.jsonl: line {number} is corrupt" in output
    assert "resumed at step " in output
    expected = read_numbers(small_run)
    del expected[1 : 1 + len(CORRUPT_LINES)]
    assert read_numbers(copy_of_stopped_run) == expected


@pytest.mark.long
@pytest.mark.parametrize("last", ['{"step": 32, "ep', "\x00" * 10], ids=["cut", "zeros"])
def test_finished_run_with_a_corrupt_last_line_is_finished_again(
    last, complete_script, small_run, tmp_path
):
    log = shutil.copytree(small_run, tmp_path / "run") / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines()
    log.write_text("\n".join([*lines[:-1], last]), encoding="utf-8")
    train(write_variant(complete_script, tmp_path, SMALL_IMAGES), *SMALL_FLAGS)
    assert_same_run(tmp_path / "run", small_run)


# --------------------------------------------------------------------------------------------------
# Finished runs
# --------------------------------------------------------------------------------------------------


def test_finished_run_changes_nothing(half_run, tmp_path):
    script, _ = half_run
    with assert_unchanged(tmp_path):
        output = train(script, *HALF)
    assert "run is finished" in output
    assert not re.search(r"^epoch ", output, re.MULTILINE)


USES_STEP = """
@wraps_original
def evaluation_step(original, batch, metrics):
    loss, weight = original(batch, metrics)
    return loss * (1 + state.step_in_graph), weight
"""


def test_repeated_validation_reads_the_step_of_the_run(complete_script, tmp_path):
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, USES_STEP, NO_EXPORT)
    flags = ("--global-batch-size", "16", "--epochs")
    train(script, *flags, "1")
    [before] = read_split(tmp_path / "run", "validation")
    train(script, *flags, "2")
    repeated, _ = read_split(tmp_path / "run", "validation")
    assert repeated["loss"] == before["loss"]


def find_test_result(output):
    return re.search(r"^test loss .* of ", output, re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("task", "size"),
    [
        ("image_classification", "complete"),
        pytest.param("text_classification", "essential", marks=LONG),
    ],
)
def test_evaluation_reads_the_step_of_its_checkpoint(task, size, task_scripts, tmp_path):
    script = write_variant(task_scripts[task][size], tmp_path, SMALL_DATA[task], USES_STEP)
    flags = ("--global-batch-size", "16", "--epochs", "2")
    trained = train(script, *flags)
    evaluated = train(script, *flags, "--mode", "evaluate")
    assert find_test_result(evaluated) == find_test_result(trained)
    if size == "complete":
        train(script, *flags, "--mode", "continuous_evaluate")
        *_, expected = read_split(tmp_path / "run", "validation")
        [line] = read_split(tmp_path / "run" / "evaluator", "validation")
        assert line["loss"] == expected["loss"]


def test_more_epochs_continue_a_finished_run(half_run, train_once):
    script, run_dir = half_run
    assert "resumed at step 156" in train(script, *FLAGS)
    assert_same_run(run_dir, train_once(*FLAGS))


def test_fewer_epochs_are_rejected(half_run, tmp_path):
    script, _ = half_run
    with assert_unchanged(tmp_path):
        outcome = run_script(script, *FLAGS[:3], "1")
    assert_rejected(outcome, "--epochs 1", "epoch 2")


@pytest.mark.long
@pytest.mark.parametrize("flags", [("--global-batch-size", "64"), ("--replicas", "2")])
def test_evaluate_mode_repeats_the_test_line(flags, half_run, tmp_path):
    script, run_dir = half_run
    with assert_unchanged(tmp_path):
        output = train(script, "--mode", "evaluate", *flags)
    line = read_numbers(run_dir)[-1]
    loss, accuracy = re.search(r"test loss ([\d.]+) accuracy ([\d.]+)", output).groups()
    assert float(loss) == pytest.approx(line["loss"], abs=1.01e-4)  # It shows four digits.
    assert float(accuracy) == pytest.approx(line["accuracy"], abs=1.01e-4)


# --------------------------------------------------------------------------------------------------
# Other replicas, other sizes of the script
# --------------------------------------------------------------------------------------------------


def test_run_resumes_on_other_numbers_of_replicas(complete_script, train_once, tmp_path):
    script = write_variant(complete_script, tmp_path, NO_DROPOUT)
    train(script, "--epochs", "3")
    assert "resumed at step" in train(script, "--epochs", "5", "--replicas", "2")
    assert "resumed at step" in train(script, "--epochs", "8")
    expected = read_numbers(train_once("--epochs", "8", code=(NO_DROPOUT,)))
    assert len(expected) == 8 + 8 + 1
    assert_close(read_numbers(tmp_path / "run"), expected, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("first", ["essential", "complete"])
def test_both_sizes_of_the_script_resume_each_other(first, scripts, train_once, tmp_path, chance):
    sizes = ["essential", "complete"] if first == "essential" else ["complete", "essential"]
    one, other = (write_copies(scripts[size], [tmp_path / size])[0] for size in sizes)
    run_dir = tmp_path / "run"
    for script in (one, other, one):
        process = fork(script, *FLAGS, "--run-dir", run_dir)
        wait_for_lines(run_dir, chance.randint(2, 6), process)
        kill(process)
    assert "resumed at step" in train(other, *FLAGS, "--run-dir", run_dir)
    assert_same_run(run_dir, train_once(*FLAGS))


# Kill the process within the second write of TensorFlow's list of checkpoints.
DIE_WITHIN_WRITE = """
replace = Path.replace

def die_or_replace(path, target):
    if target.name == "checkpoint" and target.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    replace(path, target)

Path.replace = die_or_replace
"""


@pytest.mark.long
def test_essential_script_leaves_nothing_of_a_complete_one_killed_within_a_write(
    scripts, train_once, tmp_path
):
    run_dir = tmp_path / "run"
    [complete] = write_copies(scripts["complete"], [tmp_path / "complete"], DIE_WITHIN_WRITE)
    outcome = run_script(complete, *FLAGS, "--run-dir", run_dir)
    assert outcome.code == -signal.SIGKILL, outcome
    train(scripts["essential"], *FLAGS, "--run-dir", run_dir)
    assert_same_run(run_dir, train_once(*FLAGS))


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--clip-norm", "clip_norm"),
        pytest.param("--warmup-steps", "warmup", marks=LONG),
    ],
)
def test_essential_script_rejects_a_run_with_flags_that_it_lacks(
    flag, key, essential_script, train_once, tmp_path
):
    run_dir = shutil.copytree(train_once("--epochs", "1", flag, "1"), tmp_path / "run")
    script = write_variant(essential_script, tmp_path)
    with assert_unchanged(run_dir):
        outcome = run_script(script, "--epochs", "2")
    assert_fails(outcome, 2, key)


@pytest.mark.long
def test_essential_script_resumes_a_run_that_could_have_recovered(scripts, train_once, tmp_path):
    run_dir = tmp_path / "run"
    complete = write_copies(scripts["complete"], [tmp_path / "complete"])[0]
    train(complete, "--epochs", "1", "--recover-from-nan", "1", "--run-dir", run_dir)
    essential = write_copies(scripts["essential"], [tmp_path / "essential"])[0]
    assert "resumed at step" in train(essential, "--epochs", "2", "--run-dir", run_dir)
    assert_same_run(run_dir, train_once("--epochs", "2"))


@pytest.mark.long
def test_essential_script_rejects_a_run_that_has_recovered(scripts, tmp_path):
    run_dir = tmp_path / "run"
    [complete] = write_copies(
        scripts["complete"], [tmp_path / "complete"], lose_loop("state.step > 0")
    )
    output = train(complete, "--epochs", "2", "--recover-from-nan", "1", "--run-dir", run_dir)
    assert "recovery 1 of 1" in output
    [essential] = write_copies(scripts["essential"], [tmp_path / "essential"])
    with assert_unchanged(run_dir):
        outcome = run_script(essential, "--epochs", "3", "--run-dir", run_dir)
    assert_fails(outcome, 2, "recoveries")


# --------------------------------------------------------------------------------------------------
# Edited scripts
# --------------------------------------------------------------------------------------------------

# An edit of what is no hook.
OTHER_MESSAGES = """
print("an edited script")
"""


@pytest.mark.parametrize(
    "is_finished",
    [pytest.param(False, marks=LONG), True],
    ids=["killed", "finished"],
)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["create_model_and_optimizer"], marks=LONG),
        ["create_model_and_optimizer", "evaluation_step"],
    ],
    ids=len,
)
def test_resume_rejects_edited_hooks(
    names, is_finished, complete_script, stopped_run, small_run, tmp_path
):
    run_dir = shutil.copytree(small_run if is_finished else stopped_run, tmp_path / "run")
    small_script = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    script = write_edited(small_script, tmp_path, *names)
    with assert_unchanged(run_dir):
        outcome = run_script(script, *SMALL_FLAGS)
    assert_rejected(outcome, ", ".join(names), "run/train.py")


def test_resume_rejects_a_script_that_lacks_a_function(
    complete_script, copy_of_stopped_run, tmp_path
):
    function = "\n\ndef helper():\n    return 1\n"
    replace_text(
        copy_of_stopped_run / "train.py", copy_of_stopped_run, ("\n# 4. ", f"{function}\n\n# 4. ")
    )
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    with assert_unchanged(copy_of_stopped_run):
        outcome = run_script(script, *SMALL_FLAGS)
    assert_rejected(outcome, ": helper; undo it", "run/train.py")


@pytest.mark.long
def test_resume_accepts_edits_outside_of_hooks(
    complete_script, copy_of_stopped_run, small_run, tmp_path
):
    run_dir = copy_of_stopped_run
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES, OTHER_MESSAGES)
    # Comments and line breaks of a hook are no edits of it either.
    text = reformat_definition(script.read_text(encoding="utf-8"), "create_model_and_optimizer")
    script.write_text(text, encoding="utf-8")
    output = train(script, *SMALL_FLAGS)
    assert "an edited script" in output
    assert_same_run(run_dir, small_run)
    assert (run_dir / "train.py").read_bytes() == script.read_bytes()
    original = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    assert "is finished" in train(original, *SMALL_FLAGS)


def test_resume_accepts_edited_hooks_if_the_copy_was_renamed(
    complete_script, copy_of_stopped_run, tmp_path
):
    """As the error of `test_resume_rejects_edited_hooks` says."""
    copy = copy_of_stopped_run / "train.py"
    renamed = copy.rename(copy.with_name("train.first.py"))
    script = write_variant(complete_script, tmp_path, SMALL_IMAGES)
    write_edited(script, tmp_path, "create_model_and_optimizer")
    assert "resumed at step " in train(script, *SMALL_FLAGS)
    assert read_numbers(copy_of_stopped_run)[-1]["split"] == "test"
    assert renamed.exists()
    assert copy.read_bytes() == script.read_bytes()


# --------------------------------------------------------------------------------------------------
# Elastic runs
# --------------------------------------------------------------------------------------------------


def interrupt(script, replicas, lines):
    """Start a run and end it by SIGTERM, most often in the middle of an epoch.

    Return what it has printed.
    """
    process = fork(script, *LONGER, *flags_of(replicas))
    wait_for_lines(script.parent / "run", lines, process)
    process.send_signal(signal.SIGTERM)
    outcome = finish(process)
    assert outcome.code == 143, outcome
    return outcome.output


LONGER = ("--global-batch-size", "16", "--epochs", "15", "--checkpoint-every-steps", "20")


@pytest.mark.long
def test_run_moves_between_replicas_and_workers(complete_script, train_once, tmp_path, chance):
    expected = read_numbers(train_once(*LONGER, code=(NO_DROPOUT,)))
    script = write_variant(complete_script, tmp_path, NO_DROPOUT)
    interrupt(script, 1, chance.randint(2, 8))
    for replicas in (2, 4, 1):
        assert "resumed at step " in interrupt(script, replicas, chance.randint(2, 8))
    outcome = run_script(script, *LONGER, "--replicas", "3")
    assert_fails(outcome, 2, "3 replicas", "multiple of 3")
    outcomes = finish_all(start_workers(script, WORKERS, *LONGER))
    assert_succeeded(outcomes)
    assert "resumed at step " in outcomes[0].output
    # The loss of a loop falls to 0.005, of predictions of about 10: 1e-6 is their rounding.
    assert_close(read_numbers(tmp_path / "run"), expected, rel=1e-5, abs=1e-6)
