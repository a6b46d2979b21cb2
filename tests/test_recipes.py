"""The recipes of docs/recipes/, as written, in rendered projects of both sizes.

The blocks of a page are put into train.py: a function or class replaces the
one of its name, and what is new is inserted above the one that uses it. Each recipe changes only
hooks and steps, in both sizes, and trains. One recipe in one size, both chosen at random, also
passes the project's own tests. EDITS_SIZES=both tries all recipes in both sizes.
"""

import os
import random
import re

import numpy as np
import pytest
from rendering import SIZES, TEMPLATE, assert_ruff_clean
from running import SEED, query, read_metrics, read_split, run_project_tests, run_script, train
from variants import apply_blocks, replace_image_model, replace_text, write_variant

FOLDER = TEMPLATE / "docs" / "recipes"
PAGES = {}
for path in FOLDER.glob("*.md"):
    PAGES[path.stem] = path.read_text("utf-8")
INDEX = PAGES.pop("README")
NAMES = sorted(PAGES)
# The recipe that the short tests try.
SHORT_RECIPES = ("tfrecords",)
RECIPES = []
for name in NAMES:
    marks = [] if name in SHORT_RECIPES else [pytest.mark.long]
    RECIPES.append(pytest.param(name, marks=marks))

# The folder of a run that a page trains before its edit.
EARLIER_RUNS = {"distillation": "run-teacher", "lora": "run-base"}

# Few steps: the digits' own, or as many files as are written. Each epoch has several loops.
FLAGS = ("--epochs", "1", "--global-batch-size", "16", "--steps-per-loop", "5")
TRY_ALL = os.environ.get("EDITS_SIZES") == "both"


def split_blocks(name):
    """Return the blocks of a recipe that belong to train.py, and the other files by name."""
    code = []
    files = {}
    pattern = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    for block in pattern.findall(PAGES[name]):
        file = re.match(r"# (\w+\.py)\n", block)
        if file:
            files[file[1]] = block
        else:
            code.append(block)
    return code, files


def write_recipe(project, name):
    """Apply a recipe to a project. Return the names of the definitions that it replaces."""
    script = project / "train.py"
    code, files = split_blocks(name)
    text, replaced = apply_blocks(script.read_text(encoding="utf-8"), code)
    script.write_text(text, encoding="utf-8")
    for file, content in files.items():
        (project / file).write_text(content, encoding="utf-8")
    return replaced


@pytest.fixture
def create_project(render, tmp_path):
    """Return a function that renders a project, applies a recipe, and writes the recipe's data."""

    def create(name, size, records=2000):
        project = render(tmp_path / size, script=size, project_slug="edited")
        if name in EARLIER_RUNS:
            train(project / "train.py", "--epochs", "2", "--run-dir", EARLIER_RUNS[name])
        write_recipe(project, name)
        if name == "fine_tuning":
            weights = str(project / "small.weights.h5")
            query("tasks.write_mobile_net", weights)
            replace_text(project / "train.py", project, ('"imagenet"', repr(weights)))
        for path in project.glob("write_*.py"):
            outcome = run_script(path, records)
            assert (outcome.code, outcome.errors) == (0, "")
        return project

    return create


def choose_sizes(name):
    """Return the sizes in which to try a recipe."""
    print(f"FAULTS_SEED={SEED}")
    return SIZES if TRY_ALL else [random.Random(f"{SEED} {name}").choice(SIZES)]


def test_table_has_all_recipes():
    links = re.findall(r"^\| \[(.*)\]\((\w+)\.md\) \|", INDEX, re.MULTILINE)
    titles = []
    for name, page in PAGES.items():
        title = page.partition("\n")[0]
        titles.append((title.removeprefix("# "), name))
    assert sorted(links) == sorted(titles)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_recipe_changes_only_hooks_and_steps(name, size, render, tmp_path):
    project = render(tmp_path, script=size, project_slug="edited")
    script = (project / "train.py").read_text(encoding="utf-8")
    replaced = write_recipe(project, name)
    sections = script[script.index("\n# 3. ") : script.index("\n# 5. ")]
    assert replaced
    for function in replaced:
        assert f"\ndef {function}(" in sections
    assert_ruff_clean(["."], project)


def train_recipe(project, name):
    """Train a project for an epoch, on two replicas."""
    train(project / "train.py", *FLAGS, "--replicas", "2")
    lines = read_metrics(project / "run")
    assert [line["split"] for line in lines[-2:]] == [
        "validation",
        "test",
    ]
    assert lines[-3]["loss"] < lines[0]["loss"] or name in ("gan", "wgan_gp")
    assert (project / "run" / "export" / "saved_model.pb").is_file()


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_trains(name, create_project):
    for size in choose_sizes(name):
        train_recipe(create_project(name, size), name)


@pytest.mark.long
@pytest.mark.parametrize(
    "nth",
    range(len(NAMES) if TRY_ALL else 1),
)
def test_recipe_passes_the_project_tests(nth, chance, create_project):
    name = NAMES[nth] if TRY_ALL else chance.choice(NAMES)
    for size in choose_sizes(f"tests of {name}"):
        finished = run_project_tests(create_project(name, size), "-q")
        assert finished.returncode == 0, finished.stdout


@pytest.mark.long
def test_checkpoints_of_a_student_lack_its_teacher(create_project):
    project = create_project("distillation", "essential")
    train_recipe(project, "distillation")
    teacher = query("runs.read_contents", project / "run-teacher")
    student = query("runs.read_contents", project / "run")
    for kind in ("last", "best"):
        assert "conv2d" in str(teacher[kind]["names"])
        assert "conv2d" not in str(student[kind]["names"])
        assert len(student[kind]["model"]) == 4  # kernel and bias of two layers


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_sam_takes_the_gradient_at_the_moved_weights(replicas, create_project):
    project = create_project("sam", "essential")
    flags = ("--replicas", replicas)
    assert query("updates.compare_sam", project / "train.py", *flags) < 1e-3


# The layer's own loss is the only one.
ACTIVITY_LOSS = """
def compute_losses(labels, predictions):
    return 0 * loss_object(labels, predictions)
""" + replace_image_model(
    "keras.layers.Flatten()", 'keras.layers.Dense(10, activity_regularizer="l2")'
)


def test_sam_trains_with_a_loss_of_a_layer(create_project, tmp_path):
    project = create_project("sam", "essential")
    train(write_variant(project / "train.py", tmp_path, ACTIVITY_LOSS), *FLAGS)
    first, *_, last = read_split(tmp_path / "run", "train")
    assert last["loss"] < 0.9 * first["loss"]


@pytest.mark.long
def test_lora_trains_no_kernel(create_project):
    project = create_project("lora", random.Random(f"{SEED} lora").choice(SIZES))
    train_recipe(project, "lora")
    last = query("runs.read_contents", project / "run")["last"]
    # Adam has a step, a rate, and two moments of each trained weight: of two layers the bias and
    # two matrices.
    assert len(last["optimizer"]) == 2 + 2 * 2 * 3


@pytest.mark.long
def test_export_of_image_files_takes_their_bytes(create_project):
    size = random.Random(f"{SEED} files").choice(SIZES)
    project = create_project("image_files", size)
    train_recipe(project, "image_files")
    (project / "run").rename(project / "run-files")  # as in the commands of the page
    files = sorted((project / "data" / "3").glob("*.png"))[:40]
    outcome = run_script(project / "predict.py", *files)
    assert (outcome.code, outcome.errors) == (0, "")
    assert outcome.output.count("3") > 30


@pytest.mark.long
def test_export_takes_sequences_of_any_length(create_project):
    size = random.Random(f"{SEED} lengths").choice(SIZES)
    project = create_project("unequal_lengths", size)
    train_recipe(project, "unequal_lengths")
    sequence = [1, 9, 17]
    padded = sequence + [0] * 97
    one, other = query(
        "runs.serve_inputs",
        project / "run",
        [[sequence], [padded]],
    )
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_gpt_writes_a_text_after_each_epoch(create_project):
    size = random.Random(f"{SEED} text").choice(SIZES)
    project = create_project("gpt", size)
    train_recipe(project, "gpt")
    sample = project / "run" / "sample_1.txt"
    text = sample.read_text("utf-8")
    assert text.startswith("The data")
    assert 20 < len(text) <= 48


@pytest.mark.long
def test_best_generator_is_the_one_that_is_taken_for_real_half_of_the_time(create_project):
    size = random.Random(f"{SEED} best").choice(SIZES)
    project = create_project("gan", size)
    train(project / "train.py", "--epochs", "4")
    run_dir = project / "run"
    scores = {}
    for line in read_metrics(run_dir):
        if line["split"] == "validation":
            share = line["taken_for_real"]
            scores[line["step"]] = abs(share - 0.5)
    contents = query("runs.read_contents", run_dir)
    best_step = min(scores, key=scores.get)
    assert contents["best"]["step"] == [best_step]
