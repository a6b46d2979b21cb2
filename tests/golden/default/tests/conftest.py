"""Adds to what pytest reports: the places in train.py that are still marked as yours to edit."""

import re
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "train.py"


def pytest_terminal_summary(terminalreporter):
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    marks = [(n, re.search(r"# (TODO\(you\):.*)", line)) for n, line in enumerate(lines, start=1)]
    found = [f"{SCRIPT.name}:{n}: {mark[1]}" for n, mark in marks if mark]
    if found:
        terminalreporter.section("TODO(you) still in train.py")
        terminalreporter.write_line("\n".join(found))
