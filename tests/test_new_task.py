"""A new task needs a folder in templates/tasks/, its name and label in cookiecutter.json, no more.

The tests copy the template and add a task that classifies signals, made with NumPy alone.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter
from rendering import PRODUCT, TASKS, TEMPLATE, assert_ruff_clean, write_user_config
from running import read_metrics, train

TASK = "signal_classification"
LABEL = "Signal classification: sine, square and sawtooth waves, a small dense network"

DEFAULTS = """\
global_batch_size: int = flag(16, "examples per step, on all replicas")
epochs: int = flag(8, "passes over the training split")
learning_rate: float = flag(2e-3, "learning rate")
# {% if cookiecutter.__size == "complete" %}
schedule: str = flag(
    "constant", "learning rate after the warm-up", choices=["constant", "cosine", "linear"]
)
warmup_steps: int = flag(
    0, "steps in which the learning rate rises to --learning-rate", type=bounded(int, above=-1)
)
# {% endif %}
"""

HOOKS = """\
def create_datasets():
    # {% include "docstrings/create_datasets.txt" %}
    # TODO(you): your data. Here: 480 signals, [32] float32, of three shapes with noise.
    draw = np.random.default_rng(0)
    phase = 2 * np.pi * (np.arange(32) / 16 + draw.random([480, 1]))
    waves = np.stack([np.sin(phase), np.sign(np.sin(phase)), phase / np.pi % 2 - 1])
    labels = draw.integers(0, 3, 480).astype("int32")
    signals = waves[labels, np.arange(480)] + draw.normal(0, 0.1, [480, 32])
    signals = signals.astype("float32")
    splits = np.split(np.arange(480), [320, 400])
    return [tf.data.Dataset.from_tensor_slices((signals[i], labels[i])) for i in splits]


def adapt(train):
    # {% include "docstrings/adapt.txt" %}
    return {}


def fetch(batch):
    # {% include "docstrings/fetch.txt" %}
    return batch


def preprocess(batch, seeds, training):
    # {% include "docstrings/preprocess.txt" %}
    return batch


def create_model_and_optimizer(strategy):
    # {% include "docstrings/create_model_and_optimizer.txt" %}
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([32]),
                keras.layers.Dense(32, activation="silu"),
                keras.layers.Dense(3, dtype="float32"),
            ]
        )
        optimizer = Adam(config.learning_rate)
    return model, optimizer


def create_loss_objects(strategy):
    # {% include "docstrings/create_loss_objects.txt" %}
    with strategy.scope():
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def create_metrics(strategy):
    # {% include "docstrings/create_metrics.txt" %}
    with strategy.scope():
        return [[keras.metrics.SparseCategoricalAccuracy(name="accuracy")] for _ in range(3)]
"""

README = """\
## Example: wave shapes

The example classifies generated signals.
"""

FILES = {
    "README.md": README,
    "defaults.py": DEFAULTS,
    "dependencies.txt": "",  # NumPy comes with TensorFlow.
    "hooks.py": HOOKS,
}
VARIANTS = {
    "essential": {},
    "complete": {"script": "complete"},
    "parameter_server": {"distribution": "parameter_server"},
}


def add_task(template):
    """Add the task to a copy of the template."""
    folder = template / "templates" / "tasks" / TASK
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = template / "cookiecutter.json"
    context = json.loads(path.read_text(encoding="utf-8"))
    context["task"].append(TASK)
    context["_choices"]["task"].append(TASK)
    context["__prompts__"]["task"][TASK] = LABEL
    path.write_text(json.dumps(context), encoding="utf-8")


@pytest.fixture(scope="module")
def render_variant(tmp_path_factory):
    """Return a function that renders a variant of the new task into a folder."""
    template = tmp_path_factory.mktemp("template")
    for folder in ("hooks", "templates", PRODUCT.name):
        shutil.copytree(TEMPLATE / folder, template / folder)
    shutil.copy(TEMPLATE / "cookiecutter.json", template)
    add_task(template)
    config_file = write_user_config(tmp_path_factory.mktemp("cookiecutter"))

    def render(folder, variant):
        project = cookiecutter(
            str(template),
            no_input=True,
            extra_context={"task": TASK, **VARIANTS[variant]},
            output_dir=str(folder),
            config_file=str(config_file),
        )
        return Path(project)

    return render


def read_dependencies(path):
    """Return the dependencies in pyproject.toml, or in the script metadata of train.py."""
    text = path.read_text(encoding="utf-8")
    [dependencies] = re.findall(r"(?m)^(?:# )?dependencies = (\[.*\])$", text)
    return json.loads(dependencies)


@pytest.mark.parametrize("task", TASKS)
def test_new_task_has_the_files_of_each_task(task):
    folder = TEMPLATE / "templates" / "tasks" / task
    names = {path.name for path in folder.iterdir()} - {"import_operations.py"}
    assert names == set(FILES)


@pytest.mark.parametrize("variant", VARIANTS)
def test_new_task_is_clean(variant, render_variant, tmp_path):
    project = render_variant(tmp_path, variant)
    assert_ruff_clean(["."], project, "--config", "pyproject.toml")
    assert README in (project / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("variant", VARIANTS)
def test_new_task_has_only_its_own_dependencies(variant, render_variant, tmp_path):
    project = render_variant(tmp_path, variant)
    dependencies = read_dependencies(project / "pyproject.toml")
    assert read_dependencies(project / "train.py") == dependencies
    names = [re.match(r"[\w-]+", dependency)[0] for dependency in dependencies]
    assert names == ["tensorflow", "keras", "tensorboard"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_new_task_has_no_code_of_other_tasks(variant, render_variant, tmp_path):
    script = (render_variant(tmp_path, variant) / "train.py").read_text(encoding="utf-8")
    for name in ("sklearn", "keras_hub", "tensorflow_text", "PRESET"):
        assert name not in script, name


@pytest.mark.long
def test_new_task_trains(render_variant, tmp_path):
    project = render_variant(tmp_path, "essential")
    train(project / "train.py", "--epochs", "1")
    test_line = read_metrics(project / "run")[-1]
    assert (test_line["split"], test_line["step"]) == ("test", 20)
    assert (project / "run" / "export" / "saved_model.pb").is_file()
