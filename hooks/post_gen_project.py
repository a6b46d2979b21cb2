"""Show the answers that were used, and the next commands.

cookiecutter renders this file and runs it in the finished project folder. The file is also valid
Python before that, so it can be linted, formatted and imported by the tests.
"""

import json
import os
import shlex
import subprocess
import sys

# Pairs of question and answer, in the order of the questions. They are JSON in a raw string, so an
# answer cannot become code: JSON writes a quote as \", and an empty answer gives only two quotes.
ANSWERS = r"""{{ cookiecutter.items() | list | tojson }}"""

# The cluster that each file belongs to. `cookiecutter -f` keeps the files of an older project.
CLUSTER_OF = {
    "launch/slurm.sbatch": "slurm",
    "launch/kubernetes.yaml": "kubernetes",
    "Dockerfile": "kubernetes",
}


def find_leftovers(answers, folder="."):
    """Return the files in the project folder that belong to another cluster than the chosen one."""
    leftovers = []
    for path, cluster in CLUSTER_OF.items():
        exists = os.path.exists(os.path.join(folder, path))
        if exists and cluster != answers["cluster"]:
            leftovers.append(path)
    return leftovers


def read_commit(template):
    """Return the commit of a clone of the template, or "" without git or a clone.

    A relative path starts in the folder of the command. This file runs in the project's folder.
    """
    clone = os.path.join(os.environ.get("PWD", ""), template)
    if not os.path.exists(os.path.join(clone, "cookiecutter.json")):
        return ""
    command = ["git", "--git-dir", os.path.join(clone, ".git"), "rev-parse", "HEAD"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return ""
    return "" if finished.returncode else finished.stdout.strip()


def describe(answers, leftovers=(), commit=""):
    """Return the closing message."""
    project_dir = os.path.join(answers["_output_dir"], answers["project_slug"])
    public = {key: answer for key, answer in answers.items() if not key.startswith("_")}
    width = max(len(question) for question in public)
    lines = ["", f"Created {project_dir} with these answers:", ""]
    for question, answer in public.items():
        lines.append(f"  {question:{width}}  {answer}")
    lines += ["", "Check them: cookiecutter ignores misspelled key=value arguments.", ""]
    for path in leftovers:
        lines.append(f"Not part of this project, from an earlier choice of cluster: {path}")
    if leftovers:
        lines.append("")
    if commit:
        lines += [f"Keep the commit of the template, to update the project later: {commit}", ""]
    lines += [
        "Next, train the example and test its hooks:",
        "",
        f"  cd {shlex.quote(project_dir)}",
        "  uv run train.py",
        "  uv run pytest",
        "",
    ]
    return "\n".join(lines)


def main():
    """Print the closing message."""
    answers = dict(json.loads(ANSWERS))
    if "_commit" in answers:
        return  # cruft also renders projects only to compare them, and doesn't tell hooks
    # On a terminal that cannot show a character of the name, the hook must not fail.
    sys.stdout.reconfigure(errors="backslashreplace")
    print(describe(answers, find_leftovers(answers), read_commit(answers["_repo_dir"])))


if __name__ == "__main__":
    main()
