"""The edits of docs/edits.md, as they stand there, in rendered projects of both sizes.

The blocks of the page are put into train.py as the page says: a function or class in the place of
that of its name, what is new above the one that uses it. Each edit is in both sizes' reach, and
trains; one of them, in one size, both chosen by chance, goes through the project's own tests: two
replicas and workers, a kill, evaluation, export. EDITS_SIZES=both takes all, in both sizes.
"""

import ast
import json
import os
import random
import re
import subprocess
import sys

import pytest
from conftest import (
    FEW_OF,
    SEED,
    TEMPLATE,
    TIMEOUT,
    edit,
    environment,
    finish,
    fork,
    read_metrics,
    train,
)

PAGE = (TEMPLATE / "docs" / "edits.md").read_text(encoding="utf-8")
SIZES = ("essential", "complete")
EDITS = {
    title: re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    for title, text in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}
TITLES = {re.sub(r"\W.*", "", title.removeprefix("A ").lower()): title for title in EDITS}

# Few steps: of the digits a part, of files as many as are written.
FLAGS = ("--epochs", "1", "--global-batch-size", "16", "--steps-per-loop", "13")
BOTH = os.environ.get("EDITS_SIZES") == "both"


def cut(text, node):
    """Return the text before a node, decorators included, and that from its end on."""
    lines = text.splitlines(keepends=True)
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    return "".join(lines[: first - 1]), "".join(lines[node.end_lineno :])


def apply(text, blocks):
    """Return a script after an edit, and the names of what the edit replaced."""
    replaced, new = [], ""
    for block in blocks:
        lines = block.splitlines(keepends=True)
        before = 0  # of the block, what is used up
        for node in ast.parse(block).body:
            code = "".join(lines[before : node.end_lineno]).strip("\n") + "\n"
            before = node.end_lineno
            name = getattr(node, "name", None)
            [*own] = [x for x in ast.parse(text).body if name and getattr(x, "name", "") == name]
            if own:
                head, tail = cut(text, own[0])
                text = head + new + code + tail
                replaced, new = [*replaced, name], ""
            else:
                new += code + "\n\n"
    assert not new, "a block ends with what nothing uses"
    return text, replaced


def split_blocks(name):
    """Return the blocks of an edit that are of train.py, and by name the files of others."""
    blocks = [(re.match(r"# (\w+\.py)\n", block), block) for block in EDITS[TITLES[name]]]
    files = {match[1]: block for match, block in blocks if match}
    return [block for match, block in blocks if not match], files


@pytest.fixture
def edited(render, tmp_path):
    """Return a function that renders a project of a size, edited, with files to read if need be."""

    def create(name, size, records=2000):
        project = render(tmp_path / size, script=size, project_slug="edited")
        script = project / "train.py"
        blocks, files = split_blocks(name)
        text, _ = apply(script.read_text(encoding="utf-8"), blocks)
        script.write_text(text, encoding="utf-8")
        for file, code in files.items():
            (project / file).write_text(code, encoding="utf-8")
            if file.startswith("write_"):
                code, _, errors = finish(fork(project / file, records))
                assert (code, errors) == (0, "")
        return script

    return create


def choose(name):
    """Return the sizes in which to try an edit in full."""
    print(f"FAULTS_SEED={SEED}")
    return SIZES if BOTH else [random.Random(f"{SEED} {name}").choice(SIZES)]


def test_table_has_all_edits():
    links = re.findall(r"^\| \[(.*)\]\((#.*)\) \|", PAGE, re.MULTILINE)
    assert [title for title, _ in links] == list(EDITS)
    for title, link in links:
        assert link == "#" + re.sub(r"[^\w ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TITLES)
def test_edit_is_in_reach(name, size, render, tmp_path):
    project = render(tmp_path, script=size, project_slug="edited")
    script = (project / "train.py").read_text(encoding="utf-8")
    blocks, files = split_blocks(name)
    text, replaced = apply(script, blocks)
    sections = script[script.index("\n# 3. ") : script.index("\n# 5. ")]
    for function in replaced:
        assert f"\ndef {function}(" in sections
    # As clean as before, so that it may be pasted as it stands.
    (project / "train.py").write_text(text, encoding="utf-8")
    for file, code in files.items():
        (project / file).write_text(code, encoding="utf-8")
    for command in (["check", "--quiet"], ["format", "--diff", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "."]
        finished = subprocess.run(ruff, cwd=project, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr


def train_a_little(name, size, edited):
    """Train an edited project for an epoch, on two replicas. Return the run's folder."""
    script = edited(name, size)
    train(script, *FLAGS, "--replicas", "2")
    lines = read_metrics(script.parent / "run")
    assert [line["split"] for line in lines[-2:]] == ["validation", "test"]
    assert lines[-3]["loss"] < lines[0]["loss"] or name == "gan"
    assert (script.parent / "run" / "export" / "saved_model.pb").is_file()
    return script.parent / "run"


@pytest.mark.parametrize("name", TITLES)
def test_edit_trains(name, edited):
    for size in choose(name):
        train_a_little(name, size, edited)


@pytest.mark.parametrize("nth", range(len(TITLES) if BOTH else 1))
def test_edit_keeps_the_promises(nth, chance, edited):
    name = [*TITLES][nth] if BOTH else chance.choice([*TITLES])
    for size in choose(f"promises of {name}"):
        script = edited(name, size)
        finished = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"],
            cwd=script.parent,
            env=environment(),
            capture_output=True,
            encoding="utf-8",
            timeout=3 * TIMEOUT,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout


def test_export_of_image_files_takes_their_bytes(edited):
    [size] = random.Random(f"{SEED} files").sample(SIZES, 1)
    run_dir = train_a_little("image", size, edited)
    files = sorted((run_dir.parent / "data" / "3").glob("*.png"))[:40]
    code, output, errors = finish(fork(run_dir.parent / "predict.py", *files))
    assert (code, errors) == (0, "")
    assert output.count("3") > 30


def test_last_checkpoint_is_tested_and_exported(script, tmp_path):
    # A validation loss that rises: the first epoch stays the best.
    rises = ("tf.reduce_sum(losses * sample_weight)", "-tf.reduce_sum(losses * sample_weight)")
    script = edit(script, tmp_path, FEW_OF["image_classification"], rises)
    flags = (*FLAGS, "--epochs", "3", "--ema-momentum", "0.9")
    first = train(script, *flags)
    tests = {"best": first.splitlines()[-2]}
    # The run is finished, but not with this: neither are its numbers others.
    second = train(script, *flags, "--export", "last")
    tests["last"] = second.splitlines()[-2]
    assert re.search(r"of run/checkpoints/best/ckpt-8$", tests["best"])
    assert re.search(r"of run/checkpoints/last/ckpt-24$", tests["last"])
    assert tests["best"].split("  of ")[0] != tests["last"].split("  of ")[0]
    again = train(script, *flags, "--mode", "evaluate", "--export", "last")
    assert again.splitlines()[-1] == tests["last"]

    child = TEMPLATE / "tests" / "child_state.py"
    code, output, errors = finish(fork(child, "contents", tmp_path / "run"))
    assert code == 0, errors
    kept = json.loads(output.splitlines()[-1])
    weights = [x for x in kept["last"]["model"] if isinstance(x[0], list) or len(x) != 2]
    [exported] = kept["exports"]
    exported = [x for x in exported if isinstance(x[0], list) or len(x) != 2]  # not random states
    averages = kept["last"]["optimizer"][2 : 2 + len(weights)]
    assert exported == averages != weights
