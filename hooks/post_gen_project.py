"""Show the answers that took effect, and what to run next.

cookiecutter renders this file, then runs it in the finished project folder. It is valid Python
before that too: it can be linted, formatted, and imported by the tests.
"""

import json
import os
import shlex
import sys

# Pairs of question and answer, in the order of the questions. They are read as data and can't
# become code: in JSON a quote inside a text is written \" and so never ends this raw string, and
# no more than two bare quotes stand side by side, those of an empty text.
ANSWERS = r"""{{ cookiecutter.items() | list | tojson }}"""

# The cluster of which a file is. -f over an older project leaves those of another.
CLUSTER_OF = {
    "launch/slurm.sbatch": "slurm",
    "launch/kubernetes.yaml": "kubernetes",
    "Dockerfile": "kubernetes",
}


def find_leftovers(answers, folder="."):
    """Return the files in the project's folder that are of another cluster than the one chosen."""
    others = (path for path, cluster in CLUSTER_OF.items() if cluster != answers["cluster"])
    return [path for path in others if os.path.exists(os.path.join(folder, path))]


def describe(answers, leftovers=()):
    """Return the closing message."""
    project_dir = os.path.join(answers["_output_dir"], answers["project_slug"])
    public = {key: answer for key, answer in answers.items() if not key.startswith("_")}
    width = max(map(len, public))
    return "\n".join(
        [
            "",
            f"Made {project_dir} with these answers:",
            "",
            *(f"  {question:{width}}  {answer}" for question, answer in public.items()),
            "",
            "Not what you asked for? cookiecutter ignores a misspelt key=value silently.",
            "",
            *(f"Left from before, of another cluster: {path}" for path in leftovers),
            *([""] if leftovers else []),
            "Next, train the example, then prove its hooks:",
            "",
            f"  cd {shlex.quote(project_dir)}",
            "  uv run train.py",
            "  uv run pytest",
            "",
        ]
    )


def main():
    """Print the closing message."""
    answers = dict(json.loads(ANSWERS))
    if "_commit" in answers:  # cruft also renders only to compare, and doesn't say where
        return
    # A terminal that can't show some letter of the name must not make a finished project fail.
    sys.stdout.reconfigure(errors="backslashreplace")
    print(describe(answers, find_leftovers(answers)))


if __name__ == "__main__":
    main()
