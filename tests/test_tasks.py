"""The worked examples: each learns, holds up against a plain baseline, and takes its edits."""

import gzip
import re
import shutil
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from conftest import (
    FEW,
    TASKS,
    TEMPLATE,
    ask_child,
    edit,
    environment,
    finish,
    fork,
    hash_tree,
    read_numbers,
    start,
    train,
)


def uncomment(text, first, last):
    """Return a script's text with the commented lines from one to another made code."""
    lines = text.splitlines(keepends=True)
    [start] = [n for n, line in enumerate(lines) if line.strip() == f"#     {first}"]
    end = next(n for n, line in enumerate(lines) if n >= start and line.strip() == f"#     {last}")
    block = lines[start : end + 1]
    assert all(line.strip().startswith("#") for line in block)
    block = [line.replace("#     ", "", 1) for line in block]
    return "".join([*lines[:start], *block, *lines[end + 1 :]])


# --------------------------------------------------------------------------------------------------
# Against the baselines
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_default_run_holds_up_against_the_baseline(task, projects, tmp_path):
    script = edit(projects[task] / "train.py", tmp_path)
    train(script, timeout=1200)
    test_line = read_numbers(tmp_path / "run")[-1]
    baseline = ask_child("baseline", script, task)
    readme = " ".join((projects[task] / "README.md").read_text(encoding="utf-8").split())
    print(f"{task}: {test_line}, baseline {baseline}")
    if task == "tabular_regression":
        # The mean of 66 errors of some 40 ± 30 has a noise of 4.
        assert test_line["mean_absolute_error"] < baseline + 4
        assert f"is off by {baseline:.1f}" in readme
    else:
        assert test_line["accuracy"] >= {"image": 0.97, "text": 0.95}[task.split("_")[0]]
        assert f"gets {100 * baseline:.1f} %" in readme


# --------------------------------------------------------------------------------------------------
# The documented edits
# --------------------------------------------------------------------------------------------------


def write_fashion_mnist(folder, name, size):
    """Write images and labels in the format of MNIST: a class is a row that is bright."""
    draw = np.random.default_rng(size)
    labels = draw.integers(0, 10, size).astype("uint8")
    images = draw.integers(0, 100, (size, 28, 28)).astype("uint8")
    images[np.arange(size), 2 * labels + 4] += 150
    for kind, magic, array in (("images-idx3", 2051, images), ("labels-idx1", 2049, labels)):
        header = struct.pack(f">{1 + array.ndim}i", magic, *array.shape)
        with gzip.open(folder / f"{name}-{kind}-ubyte.gz", "wb") as file:
            file.write(header + array.tobytes())


def test_edit_to_fashion_mnist(projects, tmp_path):
    folder = tmp_path / "keras" / "datasets" / "fashion-mnist"
    folder.mkdir(parents=True)
    write_fashion_mnist(folder, "train", 7000)
    write_fashion_mnist(folder, "t10k", 500)
    text = (projects["image_classification"] / "train.py").read_text(encoding="utf-8")
    readme = (projects["image_classification"] / "README.md").read_text(encoding="utf-8")
    data, model = (
        textwrap.indent(textwrap.dedent(x), 4 * " ")
        for x in re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
        if "fashion_mnist" in x or "28, 28" in x
    )
    for first, last, block in (
        ("    from sklearn.datasets", "    return [tf.data", data),
        (
            "        model = keras.Seq",
            "        )\n        optimizer",
            textwrap.indent(model, "    "),
        ),
    ):
        start_of_lines, end_of_lines = text.index(first), text.index(last, text.index(first))
        end_of_lines = text.index("\n", end_of_lines) + 1
        text = text[:start_of_lines] + block + text[end_of_lines:]
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    env = environment(KERAS_HOME=str(tmp_path / "keras"))
    flags = ("--epochs", "2", "--learning-rate", "1e-3")
    output = train(script, *flags, env=env, begin=start)
    assert "31 steps an epoch" in output
    assert read_numbers(tmp_path / "run")[-1]["accuracy"] > 0.9
    # The tutorial's network: 320 + 18,496 + 102,464 + 650 weights.
    values = ask_child("values", tmp_path / "run" / "checkpoints" / "best" / "ckpt-62")
    weights = zip(values["names"], values["model"], strict=True)
    assert sum(np.size(x) for name, x in weights if re.search("kernel|bias", name)) == 121_930


def write_pairs(path, count):
    """Write pairs of sentences as MRPC has them; the label is whether both have one object."""
    draw = np.random.default_rng(0)
    things = ["cat", "dog", "house", "tree"]
    rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for number in range(count):
        one, other = draw.choice(things, 2)
        strings = f'He said "the {one}" is here .\tIt\'s the {other} , "she said .'
        rows.append(f"{int(one == other)}\t{number}\t{number + count}\t{strings}")
    path.write_text("\ufeff" + "\r\n".join(rows) + "\r\n", encoding="utf-8", newline="")


def test_edit_to_pairs_of_sentences(projects, tmp_path):
    write_pairs(tmp_path / "msr_paraphrase.txt", 400)
    text = (projects["text_classification"] / "train.py").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    first = next(n for n, x in enumerate(lines) if "scripts = (" in x)
    last = next(n for n, x in enumerate(lines) if "labels = np.unique(categories" in x)
    text = "".join([*lines[:first], *lines[last + 1 :]])
    text = uncomment(
        text,
        "import csv",
        'labels = np.array([row["Quality"] for row in rows], "int32")',
    )
    for old, new in (
        ("Dense(26,", "Dense(2,"),
        ("SEQUENCE_LENGTH: int = 16", "SEQUENCE_LENGTH: int = 32"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    train(script, "--global-batch-size", "32", "--epochs", "2")
    assert "[UNK]" in (tmp_path / "run" / "vocabulary.txt").read_text(encoding="utf-8")
    [served] = [ask_child("serve_pair", tmp_path / "run" / "export")]
    assert served == [2, 2]  # two pairs, two classes


# --------------------------------------------------------------------------------------------------
# Text: presets, vocabularies, the settings of the tutorial
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def preset(tmp_path_factory):
    """Return the folder of a tiny preset, and what it holds."""
    folder = tmp_path_factory.mktemp("preset")
    return folder / "tiny", ask_child("make_preset", folder / "tiny")


def test_preset_gives_weights_and_tokenizer(preset, projects, tmp_path):
    path, sums = preset
    named = ("PRESET: str | None = None", f"PRESET: str | None = {str(path)!r}")
    shorter = ("SEQUENCE_LENGTH: int = 16", "SEQUENCE_LENGTH: int = 12")
    script = edit(projects["text_classification"] / "train.py", tmp_path, FEW, named, shorter)
    # At this rate, no step changes a bit of the weights.
    train(script, "--epochs", "1", "--learning-rate", "1e-30")
    values = ask_child("values", tmp_path / "run" / "checkpoints" / "last" / "ckpt-5")
    weights = dict(zip(values["names"], values["model"], strict=True))
    for name, value in sums.items():
        assert np.sum(np.abs(weights[name])) == pytest.approx(value, rel=1e-5), name
    vocabulary = (tmp_path / "run" / "vocabulary.txt").read_text(encoding="utf-8").split("\n")
    assert vocabulary[:6] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "latin"]
    assert "test loss" in train(script, "--mode", "evaluate")


@pytest.mark.parametrize("source", ["", "checkpoints/best/ckpt-5", "export/model.keras"])
def test_earlier_run_gives_weights_and_vocabulary(source, projects, first_runs, tmp_path):
    first = first_runs["text_classification"]
    others = (FEW[0], FEW[1].replace("order[:800]", "order[-800:]"))
    script = edit(projects["text_classification"] / "train.py", tmp_path, others)
    output = train(script, "--epochs", "1", "--init-checkpoint", first / source)
    assert re.search(r"loaded (\d+) of \1 weights", output)
    one, other = (run / "vocabulary.txt" for run in (first, tmp_path / "run"))
    assert one.read_bytes() == other.read_bytes()


def test_run_of_another_task_is_refused(projects, first_runs, tmp_path):
    script = edit(projects["text_classification"] / "train.py", tmp_path, FEW)
    code, _, errors = finish(fork(script, "--init-checkpoint", first_runs["image_classification"]))
    assert code == 2
    [line] = errors.splitlines()
    assert "has no weight that fits" in line


def test_another_warm_up_is_refused(first_runs):
    run = first_runs["text_classification"]
    before = hash_tree(run)
    process = fork(run.parent / "train.py", "--epochs", "1", "--warmup-steps", "0")
    code, output, errors = finish(process)
    assert (code, output) == (2, "")
    [line] = errors.splitlines()
    assert "warmup_steps None, not 0" in line  # None is a tenth of all steps
    assert hash_tree(run) == before


def test_warm_up_of_the_tutorial(projects, tmp_path):
    # Fine-tuning BERT with Orbit: 3 epochs, batches of 32, 3e-5, warm-up over the first tenth.
    script = edit(projects["text_classification"] / "train.py", tmp_path, FEW)
    flags = ("--epochs", "3", "--global-batch-size", "32", "--learning-rate", "3e-5")
    train(script, *flags, "--steps-per-loop", "1")
    lines = read_numbers(tmp_path / "run")
    rates = [line["learning_rate"] for line in lines if line["split"] == "train"]
    steps = np.arange(1, 61)
    expected = 3e-5 * np.where(steps < 6, steps / 6, (60 - steps) / 54)
    assert rates == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_weight_decay_leaves_out_biases_and_normalization(projects):
    shrunk, kept = ask_child("decayed", projects["text_classification"] / "train.py")
    assert {name.rsplit("/")[-1] for name in shrunk} == {"kernel", "embeddings"}
    assert {name.rsplit("/")[-1] for name in kept} == {"bias", "gamma", "beta"}


# --------------------------------------------------------------------------------------------------
# The READMEs
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_example_of_the_readme_predicts(task, projects, first_runs, tmp_path):
    readme = (projects[task] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    [code] = [block for block in blocks if "export" in block]
    shutil.copytree(first_runs[task] / "export", tmp_path / "run" / "export")  # No train.py.
    example = tmp_path / "example.py"
    example.write_text(textwrap.dedent(code), encoding="utf-8")
    code, output, errors = finish(start(example, env=environment(TF_CPP_MIN_LOG_LEVEL="3")))
    assert code == 0, errors
    assert "shape=(2," in output


def test_worked_edit_of_the_first_readme(render, tmp_path):
    readme = (TEMPLATE / "README.md").read_text(encoding="utf-8")
    [hook] = re.findall(r"```python\n(def preprocess.*?)```", readme, re.DOTALL)
    [message] = re.findall(r"```\n(preprocess gives.*?)```", readme, re.DOTALL)
    project = render(tmp_path)
    before, _, rest = (project / "train.py").read_text("utf-8").partition("def preprocess(")
    after = rest.partition("\n\n\n")[2]
    proofs = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-k",
        "contract and preprocess",
    ]

    def write_and_prove(text):
        (project / "train.py").write_text(f"{before}{text}\n\n{after}", encoding="utf-8")
        env, options = environment(), {"capture_output": True, "encoding": "utf-8"}
        return subprocess.run(proofs, cwd=project, env=env, check=False, **options)

    assert write_and_prove(hook).returncode == 0
    train(project / "train.py", "--epochs", "12")
    assert read_numbers(project / "run")[-1]["accuracy"] > 0.9
    drawn = hook.replace("stateless_random_contrast", "random_contrast").replace(", seed=x[1]", "")
    assert "tf.image.random_contrast(x[0], 0.7, 1.3)" in drawn
    proved = write_and_prove(drawn)
    assert proved.returncode == 1
    assert " ".join(message.split()) in " ".join(proved.stdout.split())
