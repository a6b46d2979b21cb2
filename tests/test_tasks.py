"""The worked examples: each reaches its stated result, and takes its documented edits."""

import csv
import gzip
import re
import shutil
import struct
import textwrap

import numpy as np
import pytest
from rendering import SIZES, TASKS, TEMPLATE
from running import (
    assert_rejected,
    assert_unchanged,
    environment,
    query,
    read_numbers,
    read_split,
    run_project_tests,
    run_script,
    start,
    train,
)
from variants import (
    SMALL_DATA,
    apply_blocks,
    replace_text,
    write_variant,
)

LONG = pytest.mark.long
SMALL_TEXTS = SMALL_DATA["text_classification"]
TEXT = "text_classification"
IMAGE = "image_classification"
LEAST_ACCURACY = {IMAGE: 0.97, TEXT: 0.95}
# The text is trained for half of its epochs, to save time.
BASELINE_FLAGS = {
    TEXT: ("--epochs", "3"),
    IMAGE: (),
    "tabular_regression": (),
}


@pytest.fixture(scope="session")
def text_script(projects):
    return projects[TEXT] / "train.py"


# --------------------------------------------------------------------------------------------------
# Baselines
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task",
    [
        "tabular_regression",
        pytest.param(IMAGE, marks=LONG),
        pytest.param(TEXT, marks=LONG),
    ],
)
def test_example_reaches_its_result_and_the_readme_has_the_baseline(task, projects, tmp_path):
    script = write_variant(projects[task] / "train.py", tmp_path)
    train(script, *BASELINE_FLAGS[task], timeout=1200)
    line = read_numbers(tmp_path / "run")[-1]
    baseline = query("tasks.compute_baseline", script, task)
    print(f"{task}: {line}, baseline {baseline}")
    readme = " ".join((projects[task] / "README.md").read_text(encoding="utf-8").split())
    if task == "tabular_regression":
        # The mean of 66 errors of about 40 ± 30 has a standard deviation of 4.
        assert line["mean_absolute_error"] < baseline + 4
        assert f"{baseline:.1f}" in readme
    else:
        assert line["accuracy"] >= LEAST_ACCURACY[task]
        assert f"{100 * baseline:.1f} %" in readme


# --------------------------------------------------------------------------------------------------
# Documented edits
# --------------------------------------------------------------------------------------------------


def write_fashion_mnist(folder, name, size):
    """Write images and labels in the format of MNIST. The class of an image is its bright row."""
    draw = np.random.default_rng(size)
    labels = draw.integers(0, 10, size).astype("uint8")
    images = draw.integers(0, 100, (size, 28, 28)).astype("uint8")
    images[np.arange(size), 2 * labels + 4] += 150
    for kind, magic, array in (("images-idx3", 2051, images), ("labels-idx1", 2049, labels)):
        header = struct.pack(f">{1 + array.ndim}i", magic, *array.shape)
        with gzip.open(folder / f"{name}-{kind}-ubyte.gz", "wb") as file:
            file.write(header + array.tobytes())


def read_python_blocks(path, *marks):
    """Return the blocks of Python in a page that contain each of some texts."""
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    return [textwrap.dedent(block) for mark in marks for block in blocks if mark in block]


def replace_code(text, first, following, block):
    """Replace the code of a script from one text up to the text that follows it."""
    start_of_block = text.index(first)
    end_of_block = text.index(following, start_of_block)
    return text[:start_of_block] + block + text[end_of_block:]


@pytest.mark.parametrize("size", SIZES)
def test_images_are_bytes_until_they_are_on_the_device(size, scripts):
    # Four times fewer bytes are copied to a GPU than with float32.
    features, *_ = query("tasks.read_batch_types", scripts[size])
    assert features == "uint8"


@pytest.mark.long
def test_edit_to_fashion_mnist(projects, tmp_path):
    folder = tmp_path / "keras" / "datasets" / "fashion-mnist"
    folder.mkdir(parents=True)
    write_fashion_mnist(folder, "train", 7000)
    write_fashion_mnist(folder, "t10k", 500)
    text = (projects[IMAGE] / "train.py").read_text(encoding="utf-8")
    readme = projects[IMAGE] / "README.md"
    data, model = read_python_blocks(readme, "fashion_mnist", "28, 28")
    data = textwrap.indent(data, " " * 4)
    model = textwrap.indent(model, " " * 8)
    text = replace_code(text, "    from sklearn.datasets", "\n\ndef adapt", data)
    text = replace_code(text, "        model = keras.Seq", "        optimizer =", model)
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    env = environment(KERAS_HOME=str(tmp_path / "keras"))
    output = train(script, "--epochs", "2", "--learning-rate", "1e-3", env=env, begin=start)
    assert "31 steps per epoch" in output
    assert read_numbers(tmp_path / "run")[-1]["accuracy"] > 0.9
    # The tutorial's network: 320 + 18,496 + 102,464 + 650 weights.
    content = query("runs.read_checkpoint", tmp_path / "run" / "checkpoints" / "best" / "ckpt-62")
    sizes = []
    for name, values in zip(content["names"][0], content["model"], strict=True):
        if name.endswith(("kernel", "bias")):
            sizes.append(np.size(values))
    assert sum(sizes) == 121_930


def write_pairs(path, count):
    """Write pairs of sentences in the format of MRPC. Equal sentences have one object."""
    draw = np.random.default_rng(0)
    things = ["cat", "dog", "house", "tree"]
    rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for number in range(count):
        one, other = draw.choice(things, 2)
        label = int(one == other)
        strings = f'He said "the {one}" is here .\tIt\'s the {other} , "she said .'
        rows.append(f"{label}\t{number}\t{number + count}\t{strings}")
    path.write_text(
        "\ufeff" + "\r\n".join([*rows, ""]),
        encoding="utf-8",
        newline="",
    )


def uncomment(text, first, last):
    """Return a script's text with the commented code from one line to another as code."""
    lines = text.splitlines(keepends=True)
    stripped = [line.strip().removeprefix("#").strip() for line in lines]
    begin = stripped.index(first)
    end = stripped.index(last, begin) + 1
    block = lines[begin:end]
    assert all(line.strip().startswith("#") for line in block)
    lines[begin:end] = [line.replace("#     ", "", 1) for line in block]
    return "".join(lines)


def remove_lines(text, first, last):
    """Return a text without the lines from one that has a text to one that has another."""
    lines = text.splitlines(keepends=True)
    begin = next(number for number, line in enumerate(lines) if first in line)
    end = next(number for number, line in enumerate(lines) if last in line and number >= begin)
    del lines[begin : end + 1]
    return "".join(lines)


@pytest.mark.long
def test_edit_to_pairs_of_sentences(text_script, tmp_path):
    """The comment at the TODO of create_datasets."""
    write_pairs(tmp_path / "msr_paraphrase.txt", 400)
    text = text_script.read_text(encoding="utf-8")
    text = remove_lines(text, "scripts = (", "labels = np.unique(categories")
    last = 'labels = np.array([row["Quality"] for row in rows], "int32")'
    text = uncomment(text, "import csv", last)
    (tmp_path / "pairs").mkdir()
    edited = tmp_path / "pairs" / "train.py"
    edited.write_text(text.replace("Dense(26,", "Dense(2,"), encoding="utf-8")
    script = write_variant(edited, tmp_path, "SEQUENCE_LENGTH = 32\n")
    train(script, "--global-batch-size", "32", "--epochs", "2")
    assert "[UNK]" in (tmp_path / "run" / "adapted.json").read_text(encoding="utf-8")
    shape = query("tasks.predict_pairs", tmp_path / "run" / "export")
    assert shape == [2, 2]  # two pairs, two classes


@pytest.mark.long
def test_worked_edit_of_the_page(render, tmp_path):
    """The `preprocess` of docs/tasks.md passes the project's tests; with another random function,
    the tests fail with the page's message."""
    page = TEMPLATE / "docs/tasks.md"
    [hook] = read_python_blocks(page, "def preprocess")
    message = re.search(r"```\n(preprocess: .*?)```", page.read_text("utf-8"), re.DOTALL)[1]
    project = render(tmp_path)
    script = project / "train.py"
    text, _ = apply_blocks(script.read_text("utf-8"), [hook])
    script.write_text(text, encoding="utf-8")
    contract = ("-k", "contract and preprocess")
    assert run_project_tests(project, *contract).returncode == 0
    train(script, "--epochs", "12")
    assert read_numbers(project / "run")[-1]["accuracy"] > 0.9
    drawn = hook.replace("stateless_random_contrast", "random_contrast").replace(", seed=x[1]", "")
    assert "tf.image.random_contrast(x[0], 0.7, 1.3)" in drawn
    text, _ = apply_blocks(text, [drawn])
    script.write_text(text, encoding="utf-8")
    finished = run_project_tests(project, *contract)
    assert finished.returncode == 1
    assert " ".join(message.split()) in " ".join(finished.stdout.split())


def write_rows(path, header, rows):
    """Write a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([header, *rows])


@pytest.mark.long
def test_numbers_of_a_csv_file(projects, tmp_path):
    """The hook of docs/tasks.md. The target of a row is the sum of its three features."""
    features = np.random.default_rng(0).normal(size=(600, 3)).round(3)
    rows = [[*row, row.sum()] for row in features]
    write_rows(tmp_path / "numbers.csv", "abcd", rows)
    [hook] = read_python_blocks(TEMPLATE / "docs/tasks.md", "loadtxt")
    script = write_variant(projects["tabular_regression"] / "train.py", tmp_path, hook)
    edits = (
        ("keras.Input([10])", "keras.Input([3])"),
        (", kernel_regularizer=keras.regularizers.L2(3.0)", ""),
        ("Rescaling(100.0", "Rescaling(1.0"),
    )
    script = replace_text(script, tmp_path, *edits)
    output = train(script, "--epochs", "20")
    assert "15 steps per epoch" in output  # 480 rows, 32 per step
    # The standard deviation of a target is 1.7.
    assert read_numbers(tmp_path / "run")[-1]["mean_absolute_error"] < 0.3


@pytest.mark.long
def test_texts_of_a_csv_file(text_script, tmp_path):
    """The hook of docs/tasks.md. The class of a text is its second word."""
    classes = ["bad", "good", "so-so"]
    rows = []
    for number in range(600):
        name = classes[number % 3]
        rows.append([f"a {name} film, part {number}", name])
    write_rows(tmp_path / "texts.csv", ["text", "label"], rows)
    [hook] = read_python_blocks(TEMPLATE / "docs/tasks.md", "DictReader")
    script = write_variant(text_script, tmp_path, hook)
    text = script.read_text("utf-8")
    script.write_text(text.replace("Dense(26,", "Dense(3,"), "utf-8")
    output = train(script, "--global-batch-size", "32", "--epochs", "4")
    assert "3 classes: bad good so-so" in output
    assert read_numbers(tmp_path / "run")[-1]["accuracy"] == 1


# --------------------------------------------------------------------------------------------------
# Text: presets, vocabularies, learning rates
# --------------------------------------------------------------------------------------------------


def read_vocabulary(run_dir):
    return (run_dir / "adapted.json").read_text(encoding="utf-8")


@pytest.mark.long
def test_preset_gives_weights_and_tokenizer(text_script, tmp_path):
    preset = tmp_path / "tiny"
    sums = query("tasks.write_preset", preset)
    code = f"PRESET = {str(preset)!r}\nSEQUENCE_LENGTH = 12\n"
    script = write_variant(text_script, tmp_path, SMALL_TEXTS, code)
    # At this rate, no step changes the weights.
    train(script, "--epochs", "1", "--learning-rate", "1e-30")
    content = query("runs.read_checkpoint", tmp_path / "run" / "checkpoints" / "last" / "ckpt-5")
    weights = dict(
        zip(
            content["names"][0],
            content["model"],
            strict=True,
        )
    )
    for name, value in sums.items():
        assert np.sum(np.abs(weights[name])) == pytest.approx(value, rel=1e-5), name
    assert "test loss" in train(script, "--mode", "evaluate")


@pytest.mark.long
def test_backbone_of_keras_hub_is_called_as_a_layer(tmp_path):
    """Otherwise, Keras can't load model.keras with DeBERTa. Checkpoints are the same."""
    is_loaded, paths = query("tasks.save_backbone", True, tmp_path)
    assert is_loaded
    assert query("tasks.save_backbone", False, tmp_path) == [False, paths]


OTHER_EXAMPLES = """
@wraps_original
def create_datasets(original):
    train, validation, test = original()
    return train.skip(2000).take(640), validation.take(80), test.take(80)
"""


@pytest.mark.long
@pytest.mark.parametrize("source", ["", "checkpoints/best/ckpt-5"])
def test_earlier_run_gives_weights_and_vocabulary(source, text_script, first_runs, tmp_path):
    first = first_runs[TEXT]
    script = write_variant(text_script, tmp_path, OTHER_EXAMPLES)
    output = train(script, "--epochs", "1", "--init-checkpoint", first / source)
    assert re.search(r"loaded (\d+) of \1 weights", output)
    assert read_vocabulary(tmp_path / "run") == read_vocabulary(first)


# Other texts, of as many examples, from the same hooks.
OTHER_TEXTS = """
import unicodedata

original_name = unicodedata.name


def name_otherwise(*arguments):
    return original_name(*arguments).replace("LETTER", "GLYPH OR CHARACTER")


unicodedata.name = name_otherwise
"""


@pytest.mark.long
def test_run_keeps_its_vocabulary_and_rejects_other_texts(text_script, tmp_path):
    flags = ("--schedule", "constant", "--warmup-steps", "0", "--epochs")
    run_dir = tmp_path / "run"
    train(write_variant(text_script, tmp_path, SMALL_TEXTS), *flags, "1")
    vocabulary = read_vocabulary(run_dir)
    assert '"letter"' in vocabulary
    script = write_variant(text_script, tmp_path, SMALL_TEXTS, OTHER_TEXTS)
    for other in ("--epochs", "2"), ("--mode", "evaluate"):
        outcome = run_script(script, *flags, "2", *other)
        assert_rejected(outcome, "train_data 640 examples")
    assert read_vocabulary(run_dir) == vocabulary


@pytest.mark.long
def test_default_warm_up_rejects_other_epochs(text_script, tmp_path):
    # It is a tenth of all steps.
    script = write_variant(text_script, tmp_path, SMALL_TEXTS)
    train(script, "--schedule", "constant", "--epochs", "1")
    outcome = run_script(script, "--schedule", "constant", "--epochs", "2")
    assert_rejected(outcome, "epochs 1, not 2")


@pytest.mark.long
def test_essential_schedule_rejects_other_epochs(render, tmp_path):
    project = render(tmp_path, task=TEXT)
    script = write_variant(project / "train.py", project, SMALL_TEXTS)
    train(script, "--epochs", "1")
    outcome = run_script(script, "--epochs", "2")
    assert_rejected(outcome, "epochs 1, not 2")
    edits = (
        ('schedule: str = "linear"', 'schedule: str = "constant"'),
        ("warmup_steps: int | None = None", "warmup_steps: int | None = 0"),
    )
    replace_text(script, project, *edits)
    train(script, "--epochs", "1", "--run-dir", "constant")
    assert "resumed at step" in train(script, "--epochs", "2", "--run-dir", "constant")


@pytest.mark.long
def test_new_run_has_its_own_vocabulary(text_script, first_runs, tmp_path):
    script = write_variant(text_script, tmp_path, SMALL_TEXTS, OTHER_TEXTS)
    train(script, "--epochs", "1")
    vocabulary = read_vocabulary(tmp_path / "run")
    assert '"glyph"' in vocabulary
    assert vocabulary != read_vocabulary(first_runs[TEXT])


@pytest.mark.long
def test_lost_vocabulary_is_not_made_again(text_script, first_runs, tmp_path):
    shutil.copytree(first_runs[TEXT], tmp_path / "run")
    (tmp_path / "run" / "adapted.json").unlink()
    shutil.rmtree(tmp_path / "run" / "export")  # otherwise the run is finished
    script = write_variant(text_script, tmp_path, SMALL_TEXTS)
    for flags in (("--epochs", "1"), ("--mode", "evaluate")):
        assert_rejected(run_script(script, *flags), "adapted.json")


@pytest.mark.long
def test_evaluation_without_a_checkpoint_keeps_the_vocabulary(render, tmp_path):
    project = render(tmp_path, task=TEXT, script="essential")
    script = write_variant(project / "train.py", tmp_path, SMALL_TEXTS)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "adapted.json").write_text('{"vocabulary": ["[PAD]", "letter"]}')
    with assert_unchanged(tmp_path / "run"):
        assert_rejected(run_script(script, "--mode", "evaluate"), "--run-dir run")


@pytest.mark.long
def test_changed_warm_up_is_rejected(first_runs):
    run_dir = first_runs[TEXT]
    flags = ("--epochs", "1", "--warmup-steps", "0")
    with assert_unchanged(run_dir):
        outcome = run_script(run_dir.parent / "train.py", *flags)
    assert_rejected(outcome, "warmup_steps None, not 0")  # None is a tenth of all steps.


@pytest.mark.long
def test_learning_rates_are_those_of_the_tutorial(text_script, tmp_path):
    # Fine-tuning BERT with Orbit: 3 epochs, batches of 32, 3e-5, warm-up over the first tenth.
    script = write_variant(text_script, tmp_path, SMALL_TEXTS)
    flags = ("--epochs", "3", "--global-batch-size", "32", "--learning-rate", "3e-5")
    train(script, *flags, "--steps-per-loop", "1")
    rates = [line["learning_rate"] for line in read_split(tmp_path / "run", "train")]
    steps = np.arange(1, 61)
    expected = 3e-5 * np.where(
        steps < 6,
        steps / 6,
        (60 - steps) / 54,
    )
    assert rates == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_weight_decay_excludes_biases_and_normalization(text_script):
    shrunk, kept = query("tasks.find_decayed_weights", text_script)
    assert {name.rsplit("/")[-1] for name in shrunk} == {"kernel", "embeddings"}
    assert {name.rsplit("/")[-1] for name in kept} == {
        "bias",
        "gamma",
        "beta",
    }


def test_each_task_has_small_data():
    assert set(SMALL_DATA) == set(TASKS)
