"""A gang of supervisors on this machine: each is the first process of a PID namespace, as in a container."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.container_programs import gangjobs_supervisor
from tests.guarantees.history import History
from tests.timeouts import TIMEOUT_S, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

SUPERVISOR: Final = Path(gangjobs_supervisor.__file__)
CONTAINER: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

PRELUDE: Final = """
import fcntl, json, os, signal, subprocess, sys, time
rank, restart, folder = int(os.environ["JOB_COMPLETION_INDEX"]), int(os.environ["GANG_RESTART"]), os.environ["FOLDER"]
def is_locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
def others_alive():
    found = []
    for other in os.listdir(folder):
        path = f"{folder}/{other}"
        for name in os.listdir(path) if other.isdigit() else ():
            if name.startswith("incarnation-") and int(name[12:]) != restart:
                file = os.open(f"{path}/{name}", os.O_RDWR)
                if is_locked(file):
                    found.append([int(other), int(name[12:])])
                os.close(file)
    return found
def look(is_beginning=False, alive=()):
    alive = [*alive, *others_alive()]
    if alive or is_beginning:
        seen = {"at": time.monotonic(), "rank": rank, "restart": restart, "is_beginning": is_beginning, "alive": alive}
        with open(f"{folder}/looks", "a") as file:
            file.write(json.dumps({"of": "looks", **seen}) + "\\n")
def begin():
    # Descendants inherit the file, so the lock is free only when all processes of this incarnation have ended.
    file = os.open(f"{folder}/{rank}/incarnation-{restart}", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(file, True)
    is_double = is_locked(file)
    if not is_double:
        fcntl.flock(file, fcntl.LOCK_EX)
    look(True, [[rank, restart]] if is_double else [])
begin()
"""
"""Each program holds a lock for as long as one of its processes lives, and records processes of other restarts."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Proxy:
    """Passes the connections of a rank on to rank 0, until they are cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: list[socket.socket] = []
        self._is_cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Cut all connections, and let none be made meanwhile."""
        self._is_cut = True
        while self._open:
            _end(self._open.pop())
        yield
        self._is_cut = False

    def close(self) -> None:
        """Cut all connections for ever."""
        with self.cut():
            _end(self._listener)

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while not self._is_cut and (content := source.recv(65536)):
                target.sendall(content)
        _end(target)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@dataclass
class Rank:
    """One container."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def out(self) -> bytes:
        return (self.folder / "out").read_bytes()

    @property
    def err(self) -> bytes:
        return (self.folder / "err").read_bytes()

    @property
    def result(self) -> str:
        return (self.folder / "result").read_text()

    @property
    def pid(self) -> int:
        """The supervisor, as seen from here: the child of unshare; 0 if it has ended."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        poll(lambda: self.process.poll() is not None or task.read_text())
        children = task.read_text().split() if self.process.poll() is None else []
        return int(children[0]) if children else 0

    def signal(self, number: int) -> None:
        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self) -> int:
        return self.process.wait(5 * TIMEOUT_S)


@dataclass
class Gang:
    """All containers of a gang."""

    folder: Path
    ranks: list[Rank] = field(default_factory=list)

    def codes(self) -> list[int]:
        return [rank.wait() for rank in self.ranks]

    def events(self, name: str = "", rank: int = 0) -> list[dict[str, Any]]:
        marker = gangjobs_supervisor.LINE_START
        found = [
            json.loads(line.partition(marker)[2])
            for line in self.ranks[rank].err.decode().splitlines()
            if marker in line
        ]
        return [event for event in found if not name or event["event"] == name]

    def restart_of(self, rank: int, restart: int) -> bool:
        return (self.folder / str(rank) / f"incarnation-{restart}").exists()

    def history(self) -> History:
        """What the programs have seen of each other."""
        return History.load(self.folder / "looks")


@contextlib.contextmanager
def gang(
    folder: Path,
    program: str,
    *,
    size: int = 3,
    restarts: int = 2,
    ports: dict[int, int] | None = None,
    keys: dict[int, str] | None = None,
    supervisor: Path = SUPERVISOR,
    **environ: str,
) -> Iterator[Gang]:
    """Run a program in Python on each rank, and end everything at last. `ports` are those to which a rank connects."""
    port, key = free_port(), secrets.token_hex(32)
    found = Gang(folder)
    (folder / "looks").touch()
    try:
        for rank in range(size):
            own = folder / str(rank)
            own.mkdir()
            (own / "result").touch()
            (own / "key").write_text((keys or {}).get(rank, key))
            variables = {
                "PATH": os.environ["PATH"],
                "FOLDER": str(folder),
                "JOB_COMPLETION_INDEX": str(rank),
                "GANG_SIZE": str(size),
                "GANG_RESTARTS_MAX": str(restarts),
                "GANG_SUPERVISOR_ADDRESS": "127.0.0.1",
                "GANG_SUPERVISOR_PORT": str((ports or {}).get(rank, port)),
                "GANG_SUPERVISOR_KEY_FILE": str(own / "key"),
                "GANG_STOP_GRACE_S": "1",
                "GANG_LOST_CONTACT_S": "20",
                "GANG_PROGRESS_PATH": str(own / "progress"),
                "GANG_RESULT_PATH": str(own / "result"),
                **environ,
            }
            command = [*CONTAINER, sys.executable, "-S", str(supervisor)]
            command += [sys.executable, "-I", "-S", "-c", PRELUDE + program]
            with (own / "out").open("wb") as out, (own / "err").open("wb") as err:
                process = subprocess.Popen(command, env=variables, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
            found.ranks.append(Rank(own, process))
        yield found
    finally:
        for started in found.ranks:
            started.process.kill()
            started.process.wait()
