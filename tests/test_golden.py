"""What the main combinations of answers render to, as files under tests/golden.

So a review of a change to the template shows what changes for its users. After a change that is
meant, this writes them anew: GOLDEN=write python3 -m uv run pytest tests/test_golden.py
"""

import os
import shutil
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"

# Of each, the files that no other has: by folder, the answers, and the files; none are all files.
RENDERED = {
    "default": ({}, None),
    "complete": ({"script": "complete"}, ["train.py", "README.md", "tests/test_train.py"]),
    "text": ({"task": "text_classification"}, ["train.py"]),
    "text-complete": ({"task": "text_classification", "script": "complete"}, ["train.py"]),
    "tabular": ({"task": "tabular_regression"}, ["train.py"]),
    "tabular-complete": ({"task": "tabular_regression", "script": "complete"}, ["train.py"]),
    "slurm": ({"cluster": "slurm"}, ["launch/slurm.sbatch", "README.md"]),
    "kubernetes": (
        {"cluster": "kubernetes"},
        ["launch/kubernetes.yaml", "Dockerfile", "README.md"],
    ),
}


@pytest.mark.parametrize("name", RENDERED)
def test_rendered_files_are_those_of_the_review(name, render, tmp_path):
    answers, files = RENDERED[name]
    project = render(tmp_path, project_slug="a_project", **answers)
    files = files or [
        path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()
    ]
    if os.environ.get("GOLDEN") == "write":
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        for file in files:
            (GOLDEN / name / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(project / file, GOLDEN / name / file)
    kept = [x.relative_to(GOLDEN / name) for x in (GOLDEN / name).rglob("*") if x.is_file()]
    assert {path.as_posix() for path in kept} == set(files)
    for file in files:
        assert (project / file).read_bytes() == (GOLDEN / name / file).read_bytes(), file
