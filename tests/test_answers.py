"""The answers of docs/questions.md: their code and commands, in the script of both sizes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from rendering import TEMPLATE
from running import (
    assert_close,
    environment,
    read_metrics,
    read_numbers,
    run_python,
    run_script,
    train,
)
from variants import (
    MASK,
    SMALL_IMAGES,
    apply_blocks,
    replace_image_model,
    replace_text,
    use_optimizer,
    write_variant,
)

PAGE = (TEMPLATE / "docs" / "questions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?m)^```python\n((?:.*\n)*?)```$", PAGE)
FIRST_TEXT = "\n# 2. Globals"  # after the imports
TINY = ("--epochs", "1")
UV = os.environ.get("UV") or shutil.which("uv")  # `uv run` sets it


def run_with_tensorflow(code, folder):
    """Return the output of Python code without TensorFlow's messages."""
    command = [sys.executable, "-c", code]
    return subprocess.check_output(
        command, cwd=folder, env=environment(), stderr=subprocess.DEVNULL, encoding="utf-8"
    )


def find_block(text):
    """Return the one block of Python that has a text."""
    [block] = [block for block in BLOCKS if text in block]
    return block


def insert_after_imports(script, folder, text):
    """Copy a script into a folder, with the line of an answer after its imports."""
    return replace_text(script, folder, (FIRST_TEXT, f"\n{find_block(text)}{FIRST_TEXT}"))


@pytest.fixture(params=["essential", "complete"])
def small(request, scripts, tmp_path):
    """Return a script of each size that trains on few images."""
    (tmp_path / "small").mkdir()
    return write_variant(scripts[request.param], tmp_path / "small", SMALL_IMAGES)


def test_not_finite_value_is_located(small, tmp_path):
    code = "    return loss_object(labels, predictions)\n"
    line = "    return loss_object(labels, tf.math.log(predictions))\n"
    broken = replace_text(small, tmp_path, (code, line))
    checked = insert_after_imports(broken, broken.parent, "enable_check_numerics")
    outcome = run_script(checked, *TINY)
    number = checked.read_text(encoding="utf-8").splitlines().index(line.rstrip()) + 1
    assert outcome.code == 1
    assert 'Infinity or NaN in output 0 of graph op "Log"' in outcome.errors
    assert f'train.py", line {number}, in compute_losses' in outcome.errors


def test_steps_run_eagerly(small, tmp_path):
    eager = insert_after_imports(small, tmp_path, "run_functions_eagerly")
    step = "    loss, gradients = compute_gradients(batch)\n"
    printed = f"{step}    print(f'loss {{float(loss):.1f}}')\n"
    outcome = run_script(replace_text(eager, tmp_path, (step, printed)), *TINY)
    assert outcome.code == 0, outcome.errors
    steps = json.loads((tmp_path / "run/config.json").read_text(encoding="utf-8"))["last_step"]
    assert len(re.findall(r"(?m)^loss \d\.\d$", outcome.output)) == steps
    train(small, *TINY)
    expected = read_numbers(small.parent / "run")
    assert_close(read_numbers(tmp_path / "run"), expected, rel=1e-5)


COMPARES = """
import numpy as np
import tensorflow as tf

folders = [f"run-{replicas}/checkpoints/last" for replicas in (1, 2)]
readers = [tf.train.load_checkpoint(folder) for folder in folders]
dtypes = set()
for name in readers[0].get_variable_to_shape_map():
    if name.startswith("model/"):
        one, two = [reader.get_tensor(name) for reader in readers]
        dtypes.add(f"{one.dtype}")
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)
assert dtypes == {"float64", "int64"}  # int64: the state of a random generator
print("equal")
"""


def test_float64_has_small_rounding_errors(small, tmp_path):
    begin = "def create_model_and_optimizer(strategy):\n"
    line = find_block("set_dtype_policy")
    model = replace_image_model(
        *("keras.layers.Flatten()", "keras.layers.Dropout(0.3, dtype='float32')"),
        "keras.layers.Dense(10)",
    )
    script = write_variant(small, tmp_path, model)
    changed = script.read_text(encoding="utf-8").replace(begin, begin + line)
    script.write_text(changed, encoding="utf-8")
    for replicas in ("1", "2"):
        train(script, *TINY, "--replicas", replicas, "--run-dir", f"run-{replicas}")
    assert run_with_tensorflow(COMPARES, tmp_path) == "equal\n"


READ_EVENTS = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
print(*EventAccumulator("run/tensorboard/validation").Reload().Tags()["tensors"])
"""


def test_images_and_curves_are_written(small, tmp_path):
    text, replaced = apply_blocks(small.read_text("utf-8"), [find_block("tf.summary.image")])
    assert replaced == ["end_epoch"]
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    train(script, *TINY)
    names = run_with_tensorflow(READ_EVENTS, tmp_path).split()
    assert {"loss", "kernels", "kernel_norm"} <= set(names)


# Sums that have to be read: "3 and 4 are" has the label 7.
SUMS = """
def create_datasets():
    pairs = [(a, b) for a in range(5) for b in range(5)] * 12
    texts = [f"{a} and {b} are" for a, b in pairs]
    dataset = tf.data.Dataset.from_tensor_slices((texts, [a + b for a, b in pairs]))
    return [dataset, dataset, dataset]
"""
READS_WORDS = """
def create_model_and_optimizer(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([8], dtype="int32"),
                keras.layers.Embedding(1000, 16),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(32, activation="silu"),
                keras.layers.Dense(10),
            ]
        )
        return model, Adam(0.02)
"""
READS_SUM = """
import tensorflow as tf
model = tf.saved_model.load("run/export")
print(tf.argmax(model.serve(tf.constant(["3 and 4 are"])), axis=1).numpy())
"""


def test_layer_has_learned_its_vocabulary(small, tmp_path):
    blocks = [find_block("TextVectorization")]
    text, replaced = apply_blocks(small.read_text("utf-8"), blocks)
    assert sorted(replaced) == ["adapt", "preprocess"]
    (tmp_path / "edited.py").write_text(text, encoding="utf-8")
    train(write_variant(tmp_path / "edited.py", tmp_path, SUMS, READS_WORDS), "--epochs", "20")
    assert read_metrics(tmp_path / "run")[-1]["accuracy"] > 0.9
    assert run_with_tensorflow(READS_SUM, tmp_path) == "[7]\n"


@pytest.mark.parametrize("name", ["class ClippedAdam", "class NoisyAdam", "class LayerwiseAdam"])
def test_update_is_changed_after_the_sum_of_gradients(name, small, tmp_path):
    optimizer = name.removeprefix("class ")
    code = find_block(name) + use_optimizer(f"{optimizer}(learning_rate)")
    script = write_variant(small, tmp_path, code)
    logs = []
    for replicas in ("1", "2"):
        run_dir = tmp_path / replicas
        train(script, *TINY, "--replicas", replicas, "--run-dir", run_dir)
        logs.append(read_numbers(run_dir))
    assert_close(*logs, rel=1e-4, flips=1)
    # Without the change, the results differ.
    code = use_optimizer("keras.optimizers.Adam(learning_rate)")
    unchanged = write_variant(small, tmp_path, code)
    train(unchanged, *TINY, "--run-dir", tmp_path / "unchanged")
    assert read_numbers(tmp_path / "unchanged")[-1]["loss"] != logs[0][-1]["loss"]


def test_other_data_are_tested(small, tmp_path):
    train(small, *TINY)
    [before] = [line for line in read_metrics(small.parent / "run") if line["split"] == "test"]
    other_data = """
@wraps_original
def create_datasets(original):
    train, validation, test = original()
    return train, validation, test.take(7)
"""
    other = write_variant(small, tmp_path, other_data)
    shutil.move(small.parent / "run", tmp_path)
    [loss] = re.findall(r"(?m)^test loss (\S+)", train(other, "--mode", "evaluate"))
    assert loss != f"{before['loss']:.4f}"


MASKED = (
    MASK
    + """
def adapt(train):
    return {"units": 10}
"""
    + replace_image_model(
        "keras.layers.Flatten()", 'keras.layers.Dense(adapted["units"])', "Mask()"
    )
)

PREDICTS = """
images = tf.random.stateless_uniform([4, 8, 8, 1], [0, 0], 0, 17, tf.int32)
images = tf.cast(images, "uint8")
export = tf.saved_model.load("run/export")
tf.debugging.assert_near(model(images), export.serve(images), rtol=1e-5)
print("equal")
"""


def test_checkpoint_is_loaded(small, tmp_path):
    script = write_variant(small, tmp_path, MASKED)
    train(script, *TINY, "--seed", "5")
    code = find_block("adapted.update(") + PREDICTS
    assert run_with_tensorflow(code, tmp_path) == "equal\n"


MLFLOW = """
def log_metrics(metrics, step):
    print(step, *metrics)
"""


def test_log_sends_lines_to_a_service(small):
    """A run that was started without the line resumes with it."""
    train(small, *TINY)
    (small.parent / "mlflow.py").write_text(MLFLOW)
    line = find_block("mlflow.log_metrics")
    end = "            tf.summary.scalar(name, value)\n"
    imports = (FIRST_TEXT, f"\nimport mlflow\n{FIRST_TEXT}")
    script = replace_text(small, small.parent, imports, (end, end + line))
    output = train(script, "--epochs", "2")
    step = read_metrics(script.parent / "run")[-1]["step"]
    assert f"{step} validation_loss validation_accuracy\n" in output
    assert f"{step} train_loss train_accuracy train_examples_per_second" in output


SIGNATURE = """
import tensorflow as tf
function = tf.saved_model.load("run/export").signatures["serving_default"]
print(*function.structured_input_signature[1], *function.structured_outputs)
"""


def test_signature_for_serving(small):
    train(small, *TINY)
    assert run_with_tensorflow(SIGNATURE, small.parent).split() == ["inputs", "output_0"]


def test_learning_rates_are_compared(small):
    [loop] = re.findall(r"(?m)^for rate in .*$", PAGE)
    command = f"{shlex.quote(sys.executable)} train.py --epochs 1 "
    subprocess.run(
        ["sh", "-ec", loop.replace("uv run train.py ", command)],
        cwd=small.parent,
        env=environment(),
        check=True,
    )
    output = run_python(find_block("run-*/metrics.jsonl"), small.parent)
    losses = {}
    for line in output.splitlines():
        name, loss = line.split()
        losses[name] = float(loss)
    assert losses.keys() == {"run-1e-3", "run-2e-3", "run-4e-3"}
    for name, loss in losses.items():
        [line] = [x for x in read_metrics(small.parent / name) if x["split"] == "validation"]
        assert line["loss"] == loss


@pytest.mark.long
@pytest.mark.skipif(not UV, reason="it needs uv")
def test_versions_are_locked(projects, tmp_path):
    project = shutil.copytree(projects["image_classification"], tmp_path / "project")
    [commands] = re.findall(r"(?m)^```\n(uv lock .*\nuv lock\n)```$", PAGE)
    command = commands.replace("uv lock", f"{shlex.quote(UV)} lock")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    subprocess.run(["sh", "-ec", command], cwd=project, check=True)
    found = subprocess.run(
        ["git", "status", "--short", "-uall"],
        cwd=project,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    for name in ("train.py.lock", "uv.lock"):
        assert f"?? {name}\n" in found.stdout
        assert 'name = "tensorflow"\n' in (project / name).read_text(encoding="utf-8")
