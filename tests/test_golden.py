"""What is put together from parts, as the main answers render it, under tests/golden.

So a review of a change to the template shows what changes for its users. After a change that is
meant, this writes them anew: GOLDEN=write python3 -m uv run pytest tests/test_golden.py
"""

import os
import shutil
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"

# By folder, the answers, and of the files those that no other folder has.
RENDERED = {
    "default": ({}, ["train.py", "README.md"]),
    "complete": ({"script": "complete"}, ["train.py", "README.md"]),
    "text": ({"task": "text_classification"}, ["train.py"]),
    "tabular": ({"task": "tabular_regression"}, ["train.py"]),
    "slurm": ({"cluster": "slurm"}, ["README.md"]),
    "kubernetes": ({"cluster": "kubernetes"}, ["README.md"]),
    "parameter_server": ({"distribution": "parameter_server"}, ["train.py", "README.md"]),
}


@pytest.mark.parametrize("name", RENDERED)
def test_rendered_files_are_those_of_the_review(name, render, tmp_path):
    answers, files = RENDERED[name]
    project = render(tmp_path, project_slug="a_project", **answers)
    if os.environ.get("GOLDEN") == "write":
        (GOLDEN / name).mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(project / file, GOLDEN / name / file)
    assert {path.name for path in (GOLDEN / name).iterdir()} == set(files)
    for file in files:
        assert (project / file).read_bytes() == (GOLDEN / name / file).read_bytes(), file
