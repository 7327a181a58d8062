"""The process of a container as the node sees it: a shim that the node started or adopted, and its control channel.

There is no thread and no signal handler for each process. The shim reports through a pipe, and the end of the pipe is
the end of the shim. An adopted shim has no pipe, so the node watches the lock of the shim.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gangjobs_sandbox.node.shim.spec import (
    CONTROL_FILE,
    DIAGNOSTICS_FILE,
    LOCK_FILE,
    LOST_CODE,
    LOST_MESSAGE,
    REASON_LOST,
    STARTED_FILE,
    Exit,
    Spec,
    read_exit,
    read_json,
    write_spec,
)

__all__ = ["SPEC_FILE", "ContainerProcess"]

SPEC_FILE = "spec.json"
_SHIM = str(Path(__file__).parent / "shim")
_ADOPTED_INTERVAL_S = 0.2
_REAP_INTERVAL_S = 0.002
_DIAGNOSTICS_BYTES = 1024


class ContainerProcess:
    """One run of one container. Exactly one task may await `wait`."""

    def __init__(self, directory: str, *, pid: int = 0, started: float = 0.0) -> None:
        self.directory = directory
        self.pid = pid
        self.started = started
        self._outlives_node = False
        self._shim: subprocess.Popen[bytes] | None = None
        self._reports: asyncio.StreamReader | None = None
        self._transport: asyncio.BaseTransport | None = None
        self._exit: Exit | None = None

    @classmethod
    async def start(cls, spec: Spec) -> ContainerProcess:
        """Start the shim. Returns when the program runs, or could not be started: then `wait` returns the reason."""
        process = cls(spec.directory)
        try:
            await process._launch(spec)
        except BaseException:
            await process.end()
            raise
        return process

    @classmethod
    def adopt(cls, directory: str) -> ContainerProcess:
        """Adopt the process that an earlier node started in this folder, whether it still runs or not."""
        try:
            started = read_json(os.path.join(directory, STARTED_FILE))
        except FileNotFoundError:
            return cls(directory)
        return cls(directory, pid=started["pid"], started=started["at"])

    @property
    def running(self) -> bool:
        return self.pid != 0 and self._exit is None

    async def wait(self) -> Exit:
        """Wait for the end of the process and return its exit. No descendant is left then."""
        try:
            if self._reports is not None:
                await self._read_reports(self._reports)
            await self._reap()
        finally:
            self.abandon()
        self._exit = self._exit or read_exit(self.directory) or self._lost_exit()
        return self._exit

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM now and SIGKILL after `grace_s`, unless an earlier call set a shorter time."""
        self._send_command(f"stop {grace_s}\n")

    def kill(self) -> None:
        self._send_command("kill\n")

    def abandon(self) -> None:
        """Close the pipes. This ends the process, unless it has `outlives_node`."""
        if self._transport is not None:
            self._transport.close()
        if self._shim is not None and self._shim.stdin is not None:
            self._shim.stdin.close()
            if self._outlives_node:
                # Nobody waits for this process any more. A return code prevents the ResourceWarning of Popen.
                self._shim.returncode = self._shim.poll() or 0

    async def end(self) -> None:
        """Kill the process and wait until no descendant is left. Safe to repeat, also while `wait` is pending."""
        self.kill()
        self.abandon()
        await self._reap()

    async def _launch(self, spec: Spec) -> None:
        self._outlives_node = spec.outlives_node
        os.makedirs(spec.directory, exist_ok=True)
        path = os.path.join(spec.directory, SPEC_FILE)
        write_spec(spec, path)
        command = [sys.executable, "-I", "-S", _SHIM, path]
        with open(os.path.join(spec.directory, DIAGNOSTICS_FILE), "ab") as diagnostics:  # noqa: ASYNC230 - local and small
            # asyncio's subprocess support would use one thread for each container on Python 3.11.
            self._shim = subprocess.Popen(  # noqa: ASYNC220
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=diagnostics,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", "")},
            )
        loop = asyncio.get_running_loop()
        self._reports = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(self._reports)
        self._transport, _ = await loop.connect_read_pipe(lambda: protocol, self._shim.stdout)
        self._handle_report(await self._reports.readline())

    async def _read_reports(self, reports: asyncio.StreamReader) -> None:
        while line := await reports.readline():
            self._handle_report(line)

    def _handle_report(self, line: bytes) -> None:
        if not line:
            return
        report: dict[str, Any] = json.loads(line)
        if report.pop("event") == "started":
            self.pid, self.started = report["pid"], report["at"]
        else:
            self._exit = Exit(**report)

    async def _reap(self) -> None:
        """Wait for the shim to end. A started shim is polled, and the lock of an adopted shim is polled."""
        while self._shim is not None and self._shim.poll() is None:  # noqa: ASYNC110 - takes a moment at most
            await asyncio.sleep(_REAP_INTERVAL_S)
        while self._shim is None and _is_locked(self.directory):  # noqa: ASYNC110 - a lock of another process
            await asyncio.sleep(_ADOPTED_INTERVAL_S)

    def _lost_exit(self) -> Exit:
        """Return the exit of a killed shim. The kernel killed the main process too, but its group may be left."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        message = LOST_MESSAGE
        with contextlib.suppress(FileNotFoundError):
            text = Path(self.directory, DIAGNOSTICS_FILE).read_bytes()[-_DIAGNOSTICS_BYTES:]
            message = text.decode(errors="replace").strip() or message
        return Exit(LOST_CODE, REASON_LOST, message, self.started, time.time())

    def _send_command(self, command: str) -> None:
        try:
            fd = os.open(os.path.join(self.directory, CONTROL_FILE), os.O_WRONLY | os.O_NONBLOCK)
            with open(fd, "wb", buffering=0) as control:
                control.write(command.encode())
        except OSError as error:
            # Nobody reads the FIFO, or its reader has ended since it was opened: the process has ended, which is the
            # purpose of each command.
            if error.errno not in (errno.ENXIO, errno.ENOENT, errno.EPIPE):
                raise


def _is_locked(directory: str) -> bool:
    """Return whether a shim runs in this folder."""
    try:
        fd = os.open(os.path.join(directory, LOCK_FILE), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
