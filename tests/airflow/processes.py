"""Airflow's programs as separate processes, which a test can start, stop, kill and start again."""

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
    """One program and all processes that it starts. They share a session, as they would share a container."""

    name: str
    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    _leader: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the program. Its output is added to that of earlier runs."""
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
        """The output of all runs of the program."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the program."""
        for pid in pids_of_session(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill all processes at once, as the loss of a machine does."""
        self.signal(signal.SIGKILL)
        self._wait(None)

    def terminate(self, timeout_s: float = 60.0) -> None:
        """Ask the program to end, as a deployment does, and wait until it has ended."""
        assert self._leader is not None
        self._leader.terminate()
        self._wait(timeout_s)

    def stop(self) -> None:
        """End all processes, gracefully if possible. Tasks have their own process groups, but share the session."""
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
        """Start all processes again that have ended, as systemd or Kubernetes would."""
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
    """Return the processes of a session, including processes whose parents have ended."""
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found
