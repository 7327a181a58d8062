"""Airflow's programs as processes of their own: started, stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.airflow.api import Api

STOP_TIMEOUT_S = 15.0


@dataclass
class Process:
    """One program, and all it starts: they share a session, as they would share a container."""

    name: str
    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    _leader: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it; output is added to that of its former lives."""
        with (self.folder / f"{self.name}.log").open("a") as log:
            self._leader = subprocess.Popen(
                self.command,
                env=dict(self.environment),
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._leader is not None, f"{self.name} was never started"
        return self._leader.pid

    @property
    def is_alive(self) -> bool:
        return self._leader is not None and self._leader.poll() is None

    @property
    def output(self) -> str:
        """What it has said in all its lives."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each process of it, at once."""
        for pid in pids_of_session(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """As a lost machine: everything is gone at once, and nothing was said."""
        self.signal(signal.SIGKILL)
        self._wait(None)

    def terminate(self, timeout_s: float = 60.0) -> None:
        """As a deployment: it is asked to end, and ends by itself."""
        assert self._leader is not None
        self._leader.terminate()
        self._wait(timeout_s)

    def stop(self) -> None:
        """End it, gently if that works; tasks have groups, but no sessions, of their own."""
        if self._leader is None:
            return
        try:
            self.terminate(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._leader.kill()
            self._wait(None)
        self.signal(signal.SIGKILL)

    def _wait(self, timeout_s: float | None) -> None:
        assert self._leader is not None
        self._leader.wait(timeout_s)


@dataclass(frozen=True)
class Airflow:
    """A running Airflow: its API, and its processes by name."""

    api: Api
    processes: dict[str, Process]

    def revive(self) -> None:
        """Start again whatever has ended, as systemd or Kubernetes would."""
        for process in self.processes.values():
            if not process.is_alive:
                process.start()


@contextmanager
def stopped_at_the_end(processes: Mapping[str, Process]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes.values():
            process.stop()


def pids_of_session(session: int) -> list[int]:
    """Processes of a session, also those whose parents are gone."""
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found
