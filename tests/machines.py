"""Two machines in one: network namespaces, each with an address and a host name, and a link.

They need root and Linux. On them, a Slurm of two nodes, from Debian's packages.
"""

import contextlib
import os
import signal
import subprocess
import time

HOSTS = ("n1", "n2")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# As if on one of them: in its network, with its host name and an /etc/hosts. Not `ip netns exec`,
# which mounts a bare /sys: slurmd wants to see cgroups below it.
ENTER = 'mount --bind "$1" /etc/hosts; hostname "$0"; shift; exec "$@"'
SLURM = """
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
KillWait=20
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


def wait_until(find, what, seconds=120):
    """Return what a function finds, once it finds something. Fail if that takes too long."""
    end = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.2)
    return found


@contextlib.contextmanager
def start_machines(folder, host_names=HOSTS):
    """Start two machines, and give a function that returns a command as one of them starts it."""
    names = [f"machine-{os.getpid()}-{index}" for index in range(2)]
    lines = ["127.0.0.1 localhost", *map(" ".join, zip(ADDRESSES, host_names, strict=True))]
    hosts = folder / "hosts"
    hosts.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def ip(*arguments):
        done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
        return done.stdout

    def remove(name):  # and whoever is on it still, as after a test that has failed
        for pid in ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        ip("netns", "del", name)

    def on(index, *command):
        enter = ["nsenter", f"--net=/run/netns/{names[index]}", "unshare", "--uts", "--mount"]
        return [*enter, "sh", "-c", ENTER, host_names[index], str(hosts), *map(str, command)]

    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(remove, name)
        ends = "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns"
        ip("link", "add", *ends, names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "veth0", "up")
        yield on


@contextlib.contextmanager
def cut_link(on):
    """Cut the link between the machines for a while."""
    subprocess.run(on(0, "ip", "link", "set", "veth0", "down"), check=True)
    yield
    subprocess.run(on(0, "ip", "link", "set", "veth0", "up"), check=True)


class Slurm:
    """A controller and two nodes, on two machines, with which they end."""

    def __init__(self, on, folder):
        self.on, self.folder, self.hurried = on, folder, set()
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("state", "spool-n1", "spool-n2"):
            (folder / name).mkdir()
        (folder / "slurm.conf").write_text(SLURM.format(folder), encoding="utf-8")
        self.run("slurmctld", "-c")
        self.start_node(0)
        self.start_node(1)
        wait_until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", "two nodes")

    def run(self, *command, node=0, **options):
        """Run a command on a node. Return what it prints."""
        env = options.pop("env", dict(os.environ)) | self.environment
        command = self.on(node, *command)
        finished = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, **options
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout.strip()

    def start_node(self, index):
        self.run("slurmd", "-c", node=index)

    def read_pid(self, name):
        return int((self.folder / f"{name}.pid").read_text())

    def show(self, job):
        """Return what Slurm knows about a job, by name."""
        return dict(
            word.split("=", 1)
            for word in self.run("scontrol", "show", "job", job).split()
            if "=" in word
        )

    def wait_for(self, job, *states, seconds=180):
        """Wait until a job is in one of the states. Return what Slurm knows about it."""

        def find():
            shown = self.show(job)
            waits = shown["JobState"] == "PENDING" and shown["Reason"] == "BeginTime"
            if waits and (job, shown["Restarts"]) not in self.hurried:
                # Not for the two minutes that Slurm gives it; at once, its credential is revoked.
                self.hurried.add((job, shown["Restarts"]))
                self.run("scontrol", "update", f"JobId={job}", "StartTime=now+5")
            return shown["JobState"] in states and shown

        return wait_until(find, f"job {job} is {' or '.join(states)}", seconds)
