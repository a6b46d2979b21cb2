"""The README's first commands, in a fresh clone, with nothing replaced.

They install uv from PyPI, then what the project needs, and train the example to its end. Each
environment takes a minute or two, so these tests run only when they are named:

    uv run pytest tests/first_commands.py

The environments are of this machine. Root can run the commands on another distribution, in a folder
that contains it. With Ubuntu as an example:

    debootstrap --components=main,universe --include=ca-certificates,git,python3-pip noble \\
        /tmp/noble http://archive.ubuntu.com/ubuntu
    FIRST_COMMANDS_ROOT=/tmp/noble uv run pytest tests/first_commands.py -k distribution
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rendering import TEMPLATE

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 65534  # the unprivileged user of each Linux, by number
IS_ROOT = sys.platform != "win32" and os.getuid() == 0
TIMEOUT = 600  # seconds

# Variables that a machine may need to reach PyPI. All others are left out.
NETWORK = re.compile(r"(?i).*(proxy|cert|_ca_|index_url|find_links).*")

ENVIRONMENTS = ["system", "root", "pyenv", "venv", "uv"]


def require(condition, reason):
    """Skip the test unless a condition is true."""
    if not condition:
        pytest.skip(reason)


def has_module(python, name):
    if not Path(python).exists():
        return False
    return subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode == 0


def create_venv(folder, *options):
    """Create a virtual environment of the system's Python. Return its PATH."""
    require(has_module(SYSTEM_PYTHON, "ensurepip"), "the system's Python has no module ensurepip")
    command = [SYSTEM_PYTHON, "-m", "venv", *options, str(folder / "venv")]
    subprocess.run(command, check=True)
    return f"{folder}/venv/bin:{SYSTEM_PATH}"


def find_pyenv():
    """Return the PATH of the Python of these tests, if it is none of the system's."""
    require(sys.base_prefix != "/usr", "these tests run with the system's Python")
    return f"{sys.base_prefix}/bin:{SYSTEM_PATH}"


def install_uv(folder):
    """Install uv as a program of its own. Return its PATH."""
    require(has_module(SYSTEM_PYTHON, "pip"), "the system's Python has no pip")
    target = str(folder / "installed")
    subprocess.run(
        [SYSTEM_PYTHON, "-m", "pip", "install", "-q", "--target", target, "uv"], check=True
    )
    return f"{target}/bin:{SYSTEM_PATH}"


def find_path(name, folder):
    """Return the PATH of an environment. Skip the test if this machine lacks it."""
    if name == "venv":
        return create_venv(folder)
    if name == "uv":
        return install_uv(folder)
    if name == "pyenv":
        return find_pyenv()
    require(has_module(SYSTEM_PYTHON, "pip"), "the system's Python has no pip")
    require(name == "system" or IS_ROOT, "only root can become root")
    return SYSTEM_PATH


class Machine:
    """A fresh clone and a home, which a user owns."""

    def __init__(self, folder, unprivileged):
        self.folder = folder
        self.clone = folder / "clone"
        self.home = folder / "home"
        self.home.mkdir()
        subprocess.run(["git", "clone", "-q", str(TEMPLATE), str(self.clone)], check=True)
        self.prefix = []
        self.variables = {"HOME": str(self.home)}
        if unprivileged:
            self.become_nobody()
        else:
            self.share_downloads()

    def become_nobody(self):
        self.prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(self.folder)], check=True)

    def share_downloads(self):
        """Let uv read what it has already downloaded for these tests."""
        uv = os.environ.get("UV") or shutil.which("uv")  # `uv run` sets the variable
        if uv:
            command = [uv, "cache", "dir"]
            finished = subprocess.run(command, capture_output=True, text=True, check=True)
            self.variables["UV_CACHE_DIR"] = finished.stdout.strip()

    def run(self, command, path):
        """Run a command in the clone. Return the finished process."""
        variables = {name: value for name, value in os.environ.items() if NETWORK.fullmatch(name)}
        return subprocess.run(
            [*self.prefix, "sh", "-c", command],
            cwd=self.clone,
            env={**variables, **self.variables, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=TIMEOUT,
            check=False,
        )


# In the distribution: this machine's devices and network settings, and the folder of the test.
ENTER = """
for path in /dev /proc /etc/resolv.conf /etc/ssl/certs "$2"; do
    mount --rbind "$path" "$1$path" || exit
done
root=$1
folder=$2
shift 2
exec /usr/sbin/chroot "$root" env --chdir="$folder/clone" "$@"
"""


def enter(root, folder):
    """Return the start of a command that runs in the clone, in another distribution."""
    (root / folder.relative_to("/")).mkdir(parents=True)
    # The mounts end with the process.
    return ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(root), str(folder)]


@pytest.fixture
def folder():
    """Return a folder that other users can reach, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="first-commands-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def read_first_commands():
    """Return the lines of the README's block that installs uv."""
    readme = (TEMPLATE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?m)^```\n((?:.*\n)*?)```$", readme)
    [block] = [block for block in blocks if block.startswith("python3 -m pip install")]
    return block.splitlines()


def choose_commands(name):
    """Return the first commands, of the README for an environment."""
    commands = read_first_commands()
    if name == "uv":
        return [command.replace(".uv/bin/uv", "uv") for command in commands[1:]]
    return commands


def assert_trained(machine, path, commands):
    """Run the first commands. Assert that they train, and install nothing outside the clone."""
    for command in commands:
        finished = machine.run(command, path)
        assert finished.returncode == 0, finished.stdout
    assert finished.stdout.splitlines()[-1].startswith("written to run: ")
    project = machine.clone / "demo" / "tf_distribute"
    assert (project / "run" / "export").is_dir()
    # uv keeps a cache.
    assert not (machine.home / ".local" / "lib").exists()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_first_commands_render_and_train(name, folder):
    require(sys.platform == "linux", "the environments need Linux")
    machine = Machine(folder, unprivileged=IS_ROOT and name == "system")
    assert_trained(machine, find_path(name, folder), choose_commands(name))


@pytest.mark.parametrize("unprivileged", [False, True], ids=["root", "user"])
def test_first_commands_in_another_distribution(unprivileged, folder):
    root = os.environ.get("FIRST_COMMANDS_ROOT")
    require(root, "FIRST_COMMANDS_ROOT names no folder of a distribution")
    machine = Machine(folder, unprivileged)
    machine.prefix = enter(Path(root), folder) + machine.prefix
    assert_trained(machine, SYSTEM_PATH, read_first_commands())


def test_python_without_pip_says_so(folder):
    machine = Machine(folder, unprivileged=False)
    path = create_venv(folder, "--without-pip")
    finished = machine.run(read_first_commands()[0], path)
    assert finished.returncode == 1
    assert "No module named pip" in finished.stdout
