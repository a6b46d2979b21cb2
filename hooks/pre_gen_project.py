"""Refuse answers that the project could not hold, all of them at once.

cookiecutter renders this file, then runs it in the new, still empty project folder. It is valid
Python before that too: it can be linted, formatted, and imported by the tests.
"""

import json
import keyword
import os
import re
import shlex
import sys
import unicodedata

# Pairs of question and answer, in the order of the questions. They are read as data and can't
# become code: in JSON a quote inside a text is written \" and so never ends this raw string, and
# no more than two bare quotes stand side by side, those of an empty text.
ANSWERS = r"""{{ cookiecutter.items() | list | tojson }}"""

DEFAULT_NAME = "TF Distribute"
DEFAULT_SLUG = "tf_distribute"
# Columns, not characters, as ruff measures the line that holds the name.
MAX_NAME_COLUMNS = 60
MAX_NAME_LENGTH = 240  # of a letter, any number of accents takes one column
MAX_SLUG_LENGTH = 50
MAX_SHOWN_LENGTH = 80

# As in cookiecutter.json. cookiecutter checks what is typed, or given as key=value; not what a
# replay has, nor whether an answer in a user's configuration is a text.
CHOICES = {
    "task": ["image_classification", "text_classification", "tabular_regression"],
    "script": ["essential", "complete"],
    "distribution": ["synchronous", "parameter_server"],
    "cluster": ["none", "slurm", "kubernetes"],
}

# The slug is the project's name in pyproject.toml as well, which may not end in an underscore.
SLUG_SHAPE = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?")

# What the project imports, installs or contains. A project of the same name would depend on
# itself, or be imported in the place of the other.
NAMES_IN_USE = {
    "keras",
    "keras_hub",
    "launch",
    "numpy",
    "pytest",
    "ruff",
    "scikit_learn",
    "sklearn",
    "tensorboard",
    "tensorflow",
    "tensorflow_text",
    "test",
    "test_train",
    "tests",
    "train",
}

# Windows can make no folder of such a name, whatever its ending.
DEVICES = {"aux", "con", "nul", "prn"} | {f"{x}{n}" for x in ("com", "lpt") for n in range(10)}

# Line ends and other control characters would leave the comment or the title that holds the name;
# lone surrogates can't be written as UTF-8.
CONTROL_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
# These make an editor show the rest of the line in an order other than that of the file.
BIDIRECTIONAL_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def is_control(character):
    """Return whether a character steers the text instead of being part of it."""
    return (
        unicodedata.category(character) in CONTROL_CATEGORIES
        or unicodedata.bidirectional(character) in BIDIRECTIONAL_CONTROLS
    )


def columns(text):
    """Return how many columns of a terminal a text takes."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    combining = sum(unicodedata.combining(character) != 0 for character in text)
    return len(text) + wide - combining


def broken_name_rules(name):
    """Return the rules that a project_name breaks."""
    rules = {
        "is not blank": name.strip() != "",
        "has no white space at either end": name.strip() in (name, ""),
        "is one line without control characters": not any(map(is_control, name)),
        f"takes at most {MAX_NAME_COLUMNS} columns (a Chinese character takes two)": (
            columns(name) <= MAX_NAME_COLUMNS
        ),
        f"has at most {MAX_NAME_LENGTH} characters, accents included": len(name) <= MAX_NAME_LENGTH,
    }
    return [rule for rule, is_kept in rules.items() if not is_kept]


def broken_slug_rules(slug):
    """Return the rules that a project_slug breaks."""
    rules = {
        "has only the letters a to z, digits and underscores, begins with a letter, and ends "
        "with a letter or digit": SLUG_SHAPE.fullmatch(slug) is not None,
        f"has at most {MAX_SLUG_LENGTH} characters": len(slug) <= MAX_SLUG_LENGTH,
        "is not a keyword of Python": slug not in keyword.kwlist + keyword.softkwlist,
        "is not a module of Python's standard library": slug not in sys.stdlib_module_names,
        "is not a name that the project itself imports, installs or contains": (
            slug not in NAMES_IN_USE
        ),
        "is not a name that Windows keeps for a device": slug not in DEVICES,
    }
    return [rule for rule, is_kept in rules.items() if not is_kept]


def accepted_name(name):
    """Return the accepted project_name that is nearest to the one given."""
    one_line = "".join(" " if is_control(character) else character for character in name)
    shortened = one_line.strip()[:MAX_NAME_COLUMNS]
    while columns(shortened) > MAX_NAME_COLUMNS:
        shortened = shortened[:-1]
    return shortened.strip() or DEFAULT_NAME


def accepted_slug(slug):
    """Return an accepted project_slug that is near to the one given."""
    without_accents = unicodedata.normalize("NFKD", slug).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", without_accents.lower())
    if not words:
        return DEFAULT_SLUG
    if words[0][0].isdigit():
        words.insert(0, "project")
    cleaned = "_".join(words)[:MAX_SLUG_LENGTH].rstrip("_")
    # Only short names are reserved, so that there is room to tell this one apart from them.
    return f"{cleaned}_project" if broken_slug_rules(cleaned) else cleaned


def find_faults(answers):
    """Return, by question, the rules that its answer breaks and an answer that is accepted."""
    name, slug = str(answers["project_name"]), str(answers["project_slug"])
    checked = {
        "project_name": (broken_name_rules(name), accepted_name(name)),
        "project_slug": (broken_slug_rules(slug), accepted_slug(slug)),
    }
    for question, choices in CHOICES.items():
        rules = [] if answers[question] in choices else [f"is one of: {', '.join(choices)}"]
        checked[question] = (rules, choices[0])
    for question, (rules, _) in checked.items():
        if not isinstance(answers[question], str):  # null, or what YAML takes for a truth value
            rules.append("is a text, in quotes where a file has it")
    return {question: fault for question, fault in checked.items() if fault[0]}


def shown(answer):
    """Return an answer in a form that can't disturb a terminal."""
    text = repr(answer)
    if len(text) <= MAX_SHOWN_LENGTH:
        return text
    return f"{text[:MAX_SHOWN_LENGTH]}... ({len(str(answer))} characters)"


def as_argument(question, answer):
    """Return key=value for the command line, where cookiecutter renders the value as a template."""
    if "{" in answer:
        # A template that is one text constant renders to just that text.
        answer = "{" * 2 + " " + json.dumps(answer, ensure_ascii=False) + " " + "}" * 2
    return f"{question}={answer}"


def corrected_command(answers, faults):
    """Return the command that gives accepted answers, and a line that marks those that differ."""
    command = ["cookiecutter", answers["_template"], "--no-input"]
    if "_output_dir" in answers:  # cruft doesn't say
        command += ["--output-dir", answers["_output_dir"]]
    if answers.get("_checkout"):
        command += ["--checkout", answers["_checkout"]]
    if not all(isinstance(answers[question], str) for question in faults):
        command.append("--default-config")  # cookiecutter would read a given answer as its kind
    words = [shlex.quote(word) for word in command]
    marks = [" " * columns(word) for word in words]
    for question, answer in answers.items():
        if question.startswith("_"):
            continue
        accepted = faults[question][1] if question in faults else answer
        words.append(shlex.quote(as_argument(question, accepted)))
        marks.append(("^" if question in faults else " ") * columns(words[-1]))
    return " ".join(words), " ".join(marks).rstrip()


def describe(answers, faults, is_over_another=False):
    """Return the message for the person who gave the answers, or gave them over another project."""
    count = "1 answer" if len(faults) == 1 else f"{len(faults)} answers"
    lines = ["", f"Nothing was made: {count} can't be used.", ""]
    for question, (rules, accepted) in faults.items():
        lines.append(f"  {question} is {shown(answers[question])}")
        lines += [f"    rule:      it {rule}" for rule in rules]
        lines += [f"    accepted:  {shown(accepted)}", ""]
    command, marks = corrected_command(answers, faults)
    lines += ["Paste this to go on. What differs from your answers is marked with ^.", ""]
    # Nothing stands before or behind the command, not even a comment: zsh would take a comment on
    # a typed line for more arguments.
    lines += [command, marks, ""]
    if is_over_another:  # Whether -s came along, which keeps what is there, no hook is told.
        lines += ["The folder's files are as they were: add -f again, and -s if you gave it.", ""]
    lines += ["What follows is cookiecutter's own report of this refusal.", ""]
    return "\n".join(lines)


def main():
    """Return the exit code: 0 to go on, 1 to have cookiecutter stop and remove the folder."""
    answers = dict(json.loads(ANSWERS))
    faults = find_faults(answers)
    if not faults:
        return 0
    print(describe(answers, faults, is_over_another=bool(os.listdir())), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
