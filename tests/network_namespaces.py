"""Two machines on one: network namespaces, each with an address and a host name, and a link.

They need root and Linux. `Slurm` runs a cluster of two nodes on them, from Debian's packages.
"""

import contextlib
import os
import signal
import subprocess

from running import wait_until

HOSTS = ("n1", "n2")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# Run a command in one namespace, with its own host name and /etc/hosts. Not `ip netns exec`: that
# mounts a new /sys without cgroups, which slurmd needs.
ENTER = 'mount --bind "$1" /etc/hosts; hostname "$0"; shift; exec "$@"'
SLURM_CONF = """
ClusterName=test
SlurmctldHost=n1(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
ReturnToService=2
SlurmdTimeout=10
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName=n1 NodeAddr=10.77.0.1 CPUs=4
NodeName=n2 NodeAddr=10.77.0.2 CPUs=4
PartitionName=test Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
StateSaveLocation={0}/state
SlurmctldPidFile={0}/slurmctld.pid
SlurmdPidFile={0}/slurmd-%n.pid
SlurmctldLogFile={0}/slurmctld.log
SlurmdLogFile={0}/slurmd-%n.log
SlurmdSpoolDir={0}/spool-%n
"""


def ip(*arguments):
    """Run `ip` and return its output."""
    command = ["ip", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write_hosts(path, host_names):
    """Write a file /etc/hosts for both machines."""
    lines = ["127.0.0.1 localhost"]
    for address, name in zip(ADDRESSES, host_names, strict=True):
        lines.append(f"{address} {name}")
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def remove_namespace(name):
    """Kill the processes that are left in a namespace, and delete it."""
    for pid in ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    ip("netns", "del", name)


def connect_namespaces(names):
    """Connect two namespaces by a link, and give each its address."""
    first, second = names
    ends = [
        *("veth0", "netns", first),
        *("type", "veth", "peer", "name"),
        *("veth0", "netns", second),
    ]
    ip("link", "add", *ends)
    for name, address in zip(names, ADDRESSES, strict=True):
        ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "veth0", "up")


@contextlib.contextmanager
def start_machines(folder, host_names=HOSTS):
    """Start two machines. Yield a function that returns a command to run on one of them.

    Its arguments are the index of the machine and the words of the command.
    """
    names = [f"machine-{os.getpid()}-{index}" for index in range(2)]
    hosts = folder / "hosts"
    write_hosts(hosts, host_names)

    def on(index, *command):
        namespace = f"--net=/run/netns/{names[index]}"
        return [
            *("nsenter", namespace, "unshare", "--uts", "--mount"),
            *("sh", "-c", ENTER, host_names[index], str(hosts)),
            *map(str, command),
        ]

    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(remove_namespace, name)
        connect_namespaces(names)
        yield on


@contextlib.contextmanager
def cut_link(on):
    """Cut the link between the machines for the duration of the block."""
    subprocess.run(on(0, "ip", "link", "set", "veth0", "down"), check=True)
    yield
    subprocess.run(on(0, "ip", "link", "set", "veth0", "up"), check=True)


class Slurm:
    """A Slurm controller and two nodes on two machines. They end with the machines."""

    def __init__(self, on, folder):
        self.on = on
        self.folder = folder
        self.hurried = set()
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("state", "spool-n1", "spool-n2"):
            (folder / name).mkdir()
        (folder / "slurm.conf").write_text(SLURM_CONF.format(folder), encoding="utf-8")
        self.run("slurmctld", "-c")
        self.start_node(0)
        self.start_node(1)
        wait_until(self.has_two_nodes, interval=0.2, what="two idle nodes")

    def has_two_nodes(self):
        return self.run("sinfo", "-h", "-t", "idle", "-o", "%D") == "2"

    def run(self, *command, node=0, **options):
        """Run a command on a node. Return what it prints."""
        env = options.pop("env", dict(os.environ)) | self.environment
        finished = subprocess.run(
            self.on(node, *command),
            env=env,
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout.strip()

    def start_node(self, index):
        self.run("slurmd", "-c", node=index)

    def read_pid(self, name):
        return int((self.folder / f"{name}.pid").read_text())

    def show(self, job):
        """Return Slurm's record of a job, by name."""
        words = self.run("scontrol", "show", "job", job).split()
        pairs = [word.split("=", 1) for word in words if "=" in word]
        return dict(pairs)

    def hurry(self, job, shown):
        """Start a requeued job in 5 seconds, instead of after the two minutes that Slurm waits.

        An immediate start fails: Slurm has revoked the job's credential.
        """
        is_waiting = shown["JobState"] == "PENDING" and shown["Reason"] == "BeginTime"
        start = (job, shown["Restarts"])
        if is_waiting and start not in self.hurried:
            self.hurried.add(start)
            self.run("scontrol", "update", f"JobId={job}", "StartTime=now+5")

    def wait_for(self, job, *states, seconds=180):
        """Wait until a job is in one of the states. Return Slurm's record of it."""

        def find():
            shown = self.show(job)
            self.hurry(job, shown)
            return shown["JobState"] in states and shown

        what = f"job {job} is {' or '.join(states)}"
        return wait_until(find, timeout=seconds, interval=0.2, what=what)

    def wait_for_restart(self, job):
        def is_restarted():
            return self.show(job)["Restarts"] == "1"

        wait_until(is_restarted, interval=0.2, what="the restart")
