"""The main answers render to the files in tests/golden.

So a review of a change to the template shows what changes for its users. After an intended change,
this writes the files: GOLDEN=write python3 -m uv run pytest tests/test_golden.py
"""

import os
import shutil
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"

# By folder, the answers, and the files that no other folder has.
RENDERED = {
    "default": ({}, ["train.py", "README.md"]),
    "complete": ({"script": "complete"}, ["train.py", "README.md"]),
    "text": ({"task": "text_classification"}, ["train.py"]),
    "tabular": ({"task": "tabular_regression"}, ["train.py"]),
    "slurm": ({"cluster": "slurm"}, ["README.md"]),
    "kubernetes": ({"cluster": "kubernetes"}, ["README.md"]),
    "parameter_server": (
        {"distribution": "parameter_server"},
        ["train.py", "README.md"],
    ),
}


def write_golden_files(project, folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(project / file, folder / file)


@pytest.mark.parametrize("name", RENDERED)
def test_rendered_files_are_the_golden_files(name, render, tmp_path):
    answers, files = RENDERED[name]
    project = render(tmp_path, project_slug="a_project", **answers)
    folder = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        write_golden_files(project, folder, files)
    assert {path.name for path in folder.iterdir()} == set(files)
    for file in files:
        rendered = (project / file).read_bytes()
        assert rendered == (folder / file).read_bytes(), file
