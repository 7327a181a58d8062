"""Supervises one container from start to end: its output, its memory, its stop, and the record of its exit.

Invariant: when the shim has ended, all descendants have ended, and `exit.json` describes the end of the container. The
container ends when its main process ends, when the node stops it, when it exceeds its memory limit, or when the node
ends (end of file on standard input), unless the container outlives the node.

The node writes the commands `stop <grace seconds>` and `kill` as lines to the FIFO `control` in the container's folder.
The shim writes one JSON line to standard output at the start of the process and one at its end.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any

from .kernel import IS_LINUX, become_subreaper
from .launch import Process, StartError, launch
from .output import Output
from .processes import kill_descendants, memory_bytes
from .spec import (
    CONTROL_FILE,
    EXIT_FILE,
    LOCK_FILE,
    LOG_FILE,
    REASON_OOM,
    REASON_START,
    START_ERROR_CODE,
    STARTED_FILE,
    Exit,
    Spec,
    read_spec,
    write_json,
)

_MEMORY_INTERVAL_S = 0.5
_DRAIN_TIMEOUT_S = 1.0
"""The time to wait for output that is still in the pipes after all processes have ended."""
_DRAIN_LATE_S = 30.0
"""The additional time to read output that has arrived by then, for a supervisor that gets little CPU time."""
_READ_BYTES = 64 * 1024


def main(spec_path: str) -> None:
    """Run the container that the file describes. The exit is then in the container's folder."""
    spec = read_spec(spec_path)
    lock_fd = _lock(spec)  # noqa: F841 - held until the process ends: this is how a node sees that the shim lives
    control = _open_control(spec)
    if IS_LINUX:
        become_subreaper()
    wakeup = _watch_signals()
    # Open the log before the start, so that every started container has a log.
    output = Output(os.path.join(spec.directory, LOG_FILE), bytes_max=spec.log_bytes_max)
    try:
        process = launch(spec)
    except StartError as error:
        output.close()
        now = time.time()
        _finish(spec, Exit(START_ERROR_CODE, REASON_START, str(error), 0.0, now))
        return
    started = time.time()
    write_json(os.path.join(spec.directory, STARTED_FILE), {"pid": process.pid, "at": started})
    _report({"event": "started", "pid": process.pid, "at": started})
    supervisor = Supervisor(spec, process, output, control=control, wakeup=wakeup)
    code = supervisor.run()
    _finish(spec, Exit(code, supervisor.reason, supervisor.message, started, time.time()))


class Supervisor:
    """Supervises one running process."""

    def __init__(self, spec: Spec, process: Process, output: Output, *, control: int, wakeup: int) -> None:
        self._spec = spec
        self._process = process
        self._output = output
        self._streams = {process.stdout: "stdout", process.stderr: "stderr"}
        self._handlers = {control: self._handle_command, wakeup: self._handle_signal}
        self._poll = select.poll()
        for fd in (*self._streams, *self._handlers):
            self._poll.register(fd, select.POLLIN)
        if not spec.outlives_node:
            self._handlers[0] = self._handle_node_end
            self._poll.register(0, select.POLLIN)
        self._kill_at = float("inf")
        self._measure_at = time.monotonic() + _MEMORY_INTERVAL_S if spec.memory_limit_bytes else float("inf")
        self._status: int | None = None
        self.reason = ""
        self.message = ""

    def run(self) -> int:
        """Run until the process ends. Returns its exit code. No descendant is left then."""
        while self._status is None:
            self._poll_once()
            now = time.monotonic()
            if now >= self._kill_at:
                self._kill()
            if now >= self._measure_at:
                self._measure_at = now + _MEMORY_INTERVAL_S
                self._check_memory()
        kill_descendants(os.getpid(), self._process.pid)
        self._drain()
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _poll_once(self) -> None:
        timeout = min(self._kill_at, self._measure_at) - time.monotonic()
        for fd, _ in self._poll.poll(None if timeout == float("inf") else max(0.0, timeout) * 1000 + 1):
            if fd in self._streams:
                self._copy(fd)
            elif fd in self._handlers:
                self._handlers[fd](fd)

    def _copy(self, fd: int) -> None:
        data = os.read(fd, _READ_BYTES)
        if data:
            self._output.feed(self._streams[fd], data)
        else:
            self._poll.unregister(fd)
            del self._streams[fd]

    def _handle_command(self, control: int) -> None:
        for command in os.read(control, _READ_BYTES).decode().splitlines():
            verb, _, argument = command.partition(" ")
            if verb == "stop":
                self._stop(float(argument))
            elif verb == "kill":
                self._kill()

    def _stop(self, grace_s: float) -> None:
        """Send SIGTERM to the main process. A second request can only shorten the grace period."""
        if self._kill_at == float("inf"):
            self._signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + grace_s)

    def _kill(self) -> None:
        self._kill_at = float("inf")
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def _handle_signal(self, wakeup: int) -> None:
        numbers = os.read(wakeup, _READ_BYTES)
        if any(number != signal.SIGCHLD for number in numbers):
            self._kill()
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._process.pid:
                    self._status = status

    def _handle_node_end(self, stdin: int) -> None:
        """Handle the end of the node. The node never writes to standard input, so only its end makes this readable."""
        self._poll.unregister(stdin)
        self.message = "the node program ended while the container was running"
        self._kill()

    def _check_memory(self) -> None:
        limit, shim = self._spec.memory_limit_bytes, os.getpid()
        # The cheap sum counts shared pages several times, so it only decides whether to measure exactly.
        if memory_bytes(shim, exact=False) > limit and memory_bytes(shim, exact=True) > limit:
            self.reason = REASON_OOM
            self._kill()

    def _drain(self) -> None:
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        while self._streams:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select(list(self._streams), [], [], max(0.0, left_s))
            if not ready or left_s < -_DRAIN_LATE_S:
                break
            for fd in ready:
                self._copy(fd)
        self._output.close()


def _lock(spec: Spec) -> int:
    fd = os.open(os.path.join(spec.directory, LOCK_FILE), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def _open_control(spec: Spec) -> int:
    """Open the FIFO for reading and writing, so that it never reports the end of the file."""
    path = os.path.join(spec.directory, CONTROL_FILE)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def _watch_signals() -> int:
    """Return a file descriptor that receives one byte, the signal number, for each signal."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


def _finish(spec: Spec, exit_record: Exit) -> None:
    write_json(os.path.join(spec.directory, EXIT_FILE), exit_record._asdict())
    _report({"event": "exited", **exit_record._asdict()})


def _report(message: dict[str, Any]) -> None:
    """Report to the node. The node may have ended."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # Python flushes again at exit and would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
