"""A container runtime and a network for pods, in namespaces that end with the process of the tests.

An init process owns a PID namespace and a mount namespace. containerd, the kubelet and all containers run in them, so
the kernel ends all of them and removes their mounts when the init process ends, also after a SIGKILL of the tests. The
network is the one of the machine: a bridge, whose address is the address of the node.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.cluster.control_plane import die_with_parent
from tests.kubelet.build import NETWORK_PLUGINS
from tests.kubelet.images import PAUSE_IMAGE, write_images
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BRIDGES: Final = 200
"""How many control planes with a kubelet the machine can have at once."""
POLL_S: Final = 0.05
PRIVATE_FOLDERS: Final = """
for folder in /run/containerd /run/netns /var/log/containers /var/lib/kubelet/device-plugins; do
  mkdir -p $folder && mount -t tmpfs tmpfs $folder || exit
done
exec sleep infinity
"""
"""The script of the init process, which mounts the folders whose paths containerd and the kubelet cannot change."""

CONTAINERD: Final = """
version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  # A copy of the small image for each container works on any file system, also inside of a container.
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/network"
"""
NETWORK: Final = """
{{"cniVersion": "0.4.0", "name": "{bridge}", "type": "bridge", "bridge": "{bridge}",
  "ipam": {{"type": "host-local", "dataDir": "{folder}/addresses",
            "ranges": [[{{"subnet": "{subnet}.0/24", "rangeStart": "{subnet}.10"}}]]}}}}
"""


class ContainerHostError(Exception):
    """A program did not start. The message has the end of its log."""


@dataclass
class ContainerHost:
    """The namespaces, the network, and containerd.

    Attributes:
        folder: the folder of all files.
        address: the address of the node.
    """

    folder: Path
    bridge: str
    address: str
    _init: subprocess.Popen[bytes]
    _programs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        """The socket of containerd."""
        return self.folder / "containerd.sock"

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[Self]:
        """Run a container runtime while the block runs."""
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            bridge, subnet = stack.enter_context(_bridge())
            init = stack.enter_context(_namespaces())
            host = cls(folder, bridge, f"{subnet}.1", init)
            stack.callback(host._stop_programs)
            host._write_configuration(subnet)
            host.start("containerd", "containerd", "--config", str(folder / "containerd.toml"))
            host.wait("containerd", lambda: host.ctr("version", check=False) == 0)
            stack.callback(host._remove_containers)
            write_images(folder / "images.tar")
            host.ctr("images", "import", str(folder / "images.tar"))
            yield host

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a program in the namespaces. Its output is appended to `<name>.log`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            program = subprocess.Popen(
                self._entering(*command), stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
            )
        self._programs.append(program)
        return program

    def mount_disk(self, folder: Path, size: int) -> None:
        """Mount a file system of its own on a folder, in memory.

        :param size: The size in bytes.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # The kubelet tells file systems apart by the names of their devices.
        mount = ("mount", "-t", "tmpfs", "-o", f"size={size}", f"{self.bridge}-disk", str(folder))
        subprocess.run(self._entering(*mount), check=True)

    def run(self, *command: str) -> str:
        """Run a command in the namespaces to its end. Return what it printed; an empty text if it failed."""
        completed = subprocess.run(self._entering(*command), capture_output=True, text=True, check=False)
        return completed.stdout if completed.returncode == 0 else ""

    def kill(self, program: subprocess.Popen[bytes]) -> None:
        """Kill a program that `start` has started. The containers continue."""
        # nsenter waits for the program, which is its child, and passes no signal on.
        children = _path_of(program.pid).read_text().split()
        subprocess.run(["kill", "-KILL", *children], check=False)
        program.wait(TIMEOUT_S)

    def ctr(self, *arguments: str, check: bool = True) -> int:
        """Run containerd's client. Return the exit status."""
        command = ("ctr", "--address", str(self.socket), "--namespace", "k8s.io", *arguments)
        completed = subprocess.run(self._entering(*command), capture_output=True, check=False)
        assert not check or completed.returncode == 0, completed.stderr.decode()
        return completed.returncode

    def wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        """Wait until a program is ready.

        Raises:
            ContainerHostError: the program is not ready in time.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while not is_ready():
            if time.monotonic() > deadline:
                log = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
                raise ContainerHostError(f"{name} was not ready in time:\n{log}")
            time.sleep(POLL_S)

    def _entering(self, *command: str) -> list[str]:
        init = _path_of(self._init.pid).read_text().split()[0]
        return ["nsenter", f"--target={init}", "--mount", "--pid", "--", *command]

    def _write_configuration(self, subnet: str) -> None:
        names = {
            "folder": self.folder,
            "pause": PAUSE_IMAGE,
            "plugins": NETWORK_PLUGINS,
            "bridge": self.bridge,
            "subnet": subnet,
        }
        (self.folder / "containerd.toml").write_text(CONTAINERD.format(**names))
        (self.folder / "network").mkdir()
        (self.folder / "network" / "10-bridge.conf").write_text(NETWORK.format(**names))

    def kill_containers(self) -> None:
        """Kill all containers."""
        for task in self._tasks():
            self.ctr("tasks", "kill", "--signal", "SIGKILL", task, check=False)

    def _remove_containers(self) -> None:
        """Remove the containers while containerd runs, so that no control group stays behind."""
        if tasks := self._tasks():
            self.ctr("tasks", "delete", "--force", *tasks, check=False)

    def _tasks(self) -> list[str]:
        """Return the ids of the containers that exist."""
        return self.run(
            "ctr", "--address", str(self.socket), "--namespace", "k8s.io", "tasks", "list", "--quiet"
        ).split()

    def _stop_programs(self) -> None:
        self._init.kill()
        for program in self._programs:
            program.wait(TIMEOUT_S)


@contextmanager
def _namespaces() -> Iterator[subprocess.Popen[bytes]]:
    """Run an init process in a PID namespace and a mount namespace of its own. Yield its parent."""
    options = ("--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
    init = subprocess.Popen(["unshare", *options, "sh", "-c", PRIVATE_FOLDERS], preexec_fn=die_with_parent)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not _has_mounted_folders(init.pid):
            assert init.poll() is None, "the private folders cannot be mounted"
            assert time.monotonic() < deadline, "the private folders are not mounted in time"
            time.sleep(POLL_S)
        yield init
    finally:
        init.kill()
        init.wait(TIMEOUT_S)


def _has_mounted_folders(unshare: int) -> bool:
    """Return whether the child of this process has run its script up to the last command, which is `sleep`."""
    children = _path_of(unshare).read_text().split()
    return bool(children) and Path(f"/proc/{children[0]}/comm").read_text() == "sleep\n"


@contextmanager
def _bridge() -> Iterator[tuple[str, str]]:
    """Create a bridge that has the first address of a network of its own. Yield its name and the network."""
    for number in range(BRIDGES):
        name, subnet = f"gangjobs{number}", f"10.231.{number}"
        if subprocess.run(["ip", "link", "add", name, "type", "bridge"], capture_output=True, check=False).returncode:
            continue
        try:
            for change in (("address", "add", f"{subnet}.1/24", "dev", name), ("link", "set", name, "up")):
                subprocess.run(["ip", *change], check=True)
            yield name, subnet
        finally:
            subprocess.run(["ip", "link", "delete", name], check=False)
        return
    raise ContainerHostError("no bridge can be created")


def _path_of(pid: int) -> Path:
    """Return the file that lists the children of a process."""
    return Path(f"/proc/{pid}/task/{pid}/children")
