"""Has pytest print equal failures once, and list the lines of train.py that are marked TODO(you).

An exception of a hook ends several runs, so several tests fail with the same text.
"""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "train.py"
FAILURES: dict[str, str] = {}  # the first test that failed with a text


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        text = report.longreprtext
        first = FAILURES.setdefault(text, item.name)
        if first != item.name:
            problem = text.partition("\n")[0].removesuffix(" Its last lines:")
            report.longrepr = f"{problem}\nThe report is the same as in {first}, above."
    return report


def find_marks():
    """Return the marked lines, as text with the place of each."""
    marks = []
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        _, mark, text = line.partition("# TODO(you):")
        if mark:
            marks.append(f"{SCRIPT.name}:{number}: TODO(you):{text}")
    return marks


def pytest_terminal_summary(terminalreporter):
    marks = find_marks()
    if marks:
        terminalreporter.section("TODO(you) still in train.py")
    for mark in marks:
        terminalreporter.write_line(mark)
