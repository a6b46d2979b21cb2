"""Reject answers that would give a broken project, and report all of them at once.

cookiecutter renders this file and runs it in the new, still empty project folder. The file is also
valid Python before that, so it can be linted, formatted and imported by the tests.
"""

import json
import keyword
import os
import re
import shlex
import sys
import unicodedata

# Pairs of question and answer, in the order of the questions. They are JSON in a raw string, so an
# answer cannot become code: JSON writes a quote as \", and an empty answer gives only two quotes.
ANSWERS = r"""{{ cookiecutter.items() | list | tojson }}"""

DEFAULT_NAME = "TF Distribute"
DEFAULT_SLUG = "tf_distribute"
MAX_NAME_COLUMNS = 60  # ruff limits the columns of the line that contains the name
MAX_NAME_LENGTH = 240  # in characters: combining accents take no column
MAX_SLUG_LENGTH = 50
MAX_SHOWN_LENGTH = 80

# The slug is also the project's name in pyproject.toml, which must not end with an underscore.
SLUG_SHAPE = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?")

# Packages and modules that the project imports, installs or contains. A project with one of these
# names would depend on itself, or shadow the module.
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

# Windows cannot create a folder with one of these names.
DEVICES = {"aux", "con", "nul", "prn"} | {f"{x}{n}" for x in ("com", "lpt") for n in range(10)}

# Line ends and other control characters would end the comment or title that contains the name.
# Lone surrogates cannot be encoded as UTF-8.
CONTROL_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
# These characters make an editor show the rest of the line in another order.
BIDIRECTIONAL_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def is_control(character):
    """Return whether a character controls how the text is shown or stored."""
    return (
        unicodedata.category(character) in CONTROL_CATEGORIES
        or unicodedata.bidirectional(character) in BIDIRECTIONAL_CONTROLS
    )


def columns(text):
    """Return the number of terminal columns of a text."""
    wide = [character for character in text if unicodedata.east_asian_width(character) in "WF"]
    combining = [character for character in text if unicodedata.combining(character)]
    return len(text) + len(wide) - len(combining)


def list_broken(rules):
    """Return the rules that are not satisfied. `rules` says for each rule whether it is."""
    return [rule for rule, is_satisfied in rules.items() if not is_satisfied]


def broken_name_rules(name):
    """Return the rules that a project_name breaks."""
    is_blank = name.strip() == ""
    is_stripped = name.strip() == name
    has_control = any(is_control(character) for character in name)
    rules = {
        "must not be blank": not is_blank,
        "must not start or end with white space": is_stripped or is_blank,
        "must be one line without control characters": not has_control,
        f"must take at most {MAX_NAME_COLUMNS} columns (a Chinese character takes two)": (
            columns(name) <= MAX_NAME_COLUMNS
        ),
        f"must have at most {MAX_NAME_LENGTH} characters, including accents": (
            len(name) <= MAX_NAME_LENGTH
        ),
    }
    return list_broken(rules)


def broken_slug_rules(slug):
    """Return the rules that a project_slug breaks."""
    is_keyword = slug in keyword.kwlist or slug in keyword.softkwlist
    rules = {
        "must contain only the letters a to z, digits and underscores, start with a letter, and "
        "end with a letter or digit": SLUG_SHAPE.fullmatch(slug) is not None,
        f"must have at most {MAX_SLUG_LENGTH} characters": len(slug) <= MAX_SLUG_LENGTH,
        "must not be a Python keyword": not is_keyword,
        "must not be a module of Python's standard library": slug not in sys.stdlib_module_names,
        "must not be a name that this project imports, installs or contains": (
            slug not in NAMES_IN_USE
        ),
        "must not be a device name of Windows": slug not in DEVICES,
    }
    return list_broken(rules)


def accepted_name(name):
    """Return an accepted project_name that is close to the given one."""
    one_line = "".join(" " if is_control(character) else character for character in name)
    shortened = one_line.strip()[:MAX_NAME_COLUMNS]
    while columns(shortened) > MAX_NAME_COLUMNS:
        shortened = shortened[:-1]
    return shortened.strip() or DEFAULT_NAME


def accepted_slug(slug):
    """Return an accepted project_slug that is close to the given one."""
    without_accents = unicodedata.normalize("NFKD", slug).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", without_accents.lower())
    if not words:
        return DEFAULT_SLUG
    if words[0][0].isdigit():
        words.insert(0, "project")
    cleaned = "_".join(words)[:MAX_SLUG_LENGTH].rstrip("_")
    if not broken_slug_rules(cleaned):
        return cleaned
    # Only reserved names are left. They are short, so the longer name is not too long.
    return f"{cleaned}_project"


def broken_choice_rules(answer, choices):
    """Return the rules that an answer to a question with choices breaks."""
    if answer in choices:
        return []
    return [f"must be one of: {', '.join(choices)}"]


def find_faults(answers):
    """Return the rejected answers: by question, the broken rules and an accepted answer."""
    name = str(answers["project_name"])
    slug = str(answers["project_slug"])
    checked = {
        "project_name": (broken_name_rules(name), accepted_name(name)),
        "project_slug": (broken_slug_rules(slug), accepted_slug(slug)),
    }
    # cookiecutter checks typed answers and key=value arguments, but not the choices in a replay,
    # nor the types in a user's configuration. `_choices` repeats the choices of the questions.
    for question, choices in answers.get("_choices", {}).items():
        rules = broken_choice_rules(answers[question], choices)
        checked[question] = (rules, choices[0])
    for question, (rules, _) in checked.items():
        if not isinstance(answers[question], str):  # null, or a YAML boolean such as `yes`
            rules.append("must be text; in a file, put it in quotes")
    return {question: fault for question, fault in checked.items() if fault[0]}


def shown(answer):
    """Return an answer as text that is safe to print on a terminal."""
    text = repr(answer)
    if len(text) <= MAX_SHOWN_LENGTH:
        return text
    return f"{text[:MAX_SHOWN_LENGTH]}... ({len(str(answer))} characters)"


def as_argument(question, answer):
    """Return key=value for the command line, where cookiecutter renders the value as a template."""
    if "{" not in answer:
        return f"{question}={answer}"
    # A template that consists of one text constant renders to that text.
    constant = json.dumps(answer, ensure_ascii=False)
    opening = "{" * 2  # not written as two braces, because cookiecutter renders this file
    closing = "}" * 2
    return f"{question}={opening} {constant} {closing}"


def command_options(answers, faults):
    """Return the start of the corrected command: the words before the answers."""
    words = ["cookiecutter", answers["_template"], "--no-input"]
    if "_output_dir" in answers:  # cruft doesn't pass it
        words += ["--output-dir", answers["_output_dir"]]
    if answers.get("_checkout"):
        words += ["--checkout", answers["_checkout"]]
    if any(not isinstance(answers[question], str) for question in faults):
        # Ignore the user's configuration: if it has a boolean for a question, cookiecutter converts
        # the answer on the command line to a boolean too.
        words.append("--default-config")
    return words


def corrected_command(answers, faults):
    """Return a command with accepted answers, and a line that marks the corrections with ^."""
    words = [shlex.quote(word) for word in command_options(answers, faults)]
    marks = [" " * columns(word) for word in words]
    for question, answer in answers.items():
        if question.startswith("_"):
            continue
        mark = " "
        if question in faults:
            _, answer = faults[question]
            mark = "^"
        word = shlex.quote(as_argument(question, answer))
        words.append(word)
        marks.append(mark * columns(word))
    return " ".join(words), " ".join(marks).rstrip()


def describe(answers, faults, folder_exists=False):
    """Return the error message. `folder_exists` says whether the project folder is an older one."""
    count = "1 answer is" if len(faults) == 1 else f"{len(faults)} answers are"
    lines = ["", f"No project was created: {count} invalid.", ""]
    for question, (rules, accepted) in faults.items():
        lines.append(f"  {question} is {shown(answers[question])}")
        lines += [f"    rule:      {rule}" for rule in rules]
        lines += [f"    accepted:  {shown(accepted)}", ""]
    command, marks = corrected_command(answers, faults)
    lines += ["Paste this command to continue. The corrected answers are marked with ^.", ""]
    # The command has a line to itself, without a comment: in zsh, a comment on a typed line is read
    # as more arguments.
    lines += [command, marks, ""]
    if folder_exists:  # cookiecutter doesn't tell hooks whether -s was used
        lines += ["No file in the folder was changed. Add -f again, and -s if you used it.", ""]
    lines += ["cookiecutter's own report of this error follows.", ""]
    return "\n".join(lines)


def main():
    """Return the exit code: 0 to continue, 1 to make cookiecutter stop and remove the folder."""
    answers = dict(json.loads(ANSWERS))
    faults = find_faults(answers)
    if not faults:
        return 0
    print(describe(answers, faults, folder_exists=bool(os.listdir())), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
