"""One container from start to end: its output, its memory, its stop, and the record of its exit.

Invariant: when the shim is gone, so is every descendant, and `exit.json` says how the container
ended. The container ends when its main process does, when it is told to, when it exceeds its
memory, or when the node is gone (end of file on standard input), unless it outlives the node.

Control: lines written to the FIFO `control` in the container's folder, `stop <grace seconds>` or
`kill`. Reports: one JSON line on standard output when started and one when ended.
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
"""Output that is still in the pipes when all is dead is waited for within this time."""
_DRAIN_LATE_S = 30.0
"""What has come by then is read for so much longer, by a supervisor that gets the processor late."""
_READ_BYTES = 64 * 1024


def main(spec_path: str) -> None:
    """Run the container that the file describes; the exit is in its folder afterwards."""
    spec = read_spec(spec_path)
    held = _lock(spec)  # noqa: F841 - held until the process ends: this is how a node sees that the shim lives
    control = _open_control(spec)
    if IS_LINUX:
        become_subreaper()
    wakeup = _watch_signals()
    # Before the start, so that a container that has started always has a log.
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
    """Looks after one running process."""

    def __init__(self, spec: Spec, process: Process, output: Output, *, control: int, wakeup: int) -> None:
        self._spec = spec
        self._process = process
        self._output = output
        self._streams = {process.stdout: "stdout", process.stderr: "stderr"}
        self._handlers = {control: self._handle_command, wakeup: self._note_signal}
        self._poll = select.poll()
        for fd in (*self._streams, *self._handlers):
            self._poll.register(fd, select.POLLIN)
        if not spec.outlives_node:
            self._handlers[0] = self._note_node
            self._poll.register(0, select.POLLIN)
        self._kill_at = float("inf")
        self._measure_at = time.monotonic() + _MEMORY_INTERVAL_S if spec.memory_limit_bytes else float("inf")
        self._status: int | None = None
        self.reason = ""
        self.message = ""

    def run(self) -> int:
        """The exit code; nothing of the container is left afterwards."""
        while self._status is None:
            self._turn()
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

    def _turn(self) -> None:
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
        """Ask the main process to end; a second request may only shorten the time it has."""
        if self._kill_at == float("inf"):
            self._signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + grace_s)

    def _kill(self) -> None:
        self._kill_at = float("inf")
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def _note_signal(self, wakeup: int) -> None:
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

    def _note_node(self, stdin: int) -> None:
        """The node never writes here, so this is the end of the file: the node is gone."""
        self._poll.unregister(stdin)
        self.message = "the node program ended while the container was running"
        self._kill()

    def _check_memory(self) -> None:
        limit, shim = self._spec.memory_limit_bytes, os.getpid()
        # The cheap sum counts shared pages more than once, so it only decides when to look closer.
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
    """Opened for reading and writing, so that it never reports the end of the file."""
    path = os.path.join(spec.directory, CONTROL_FILE)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def _watch_signals() -> int:
    """A file descriptor that gets one byte, its number, for each signal."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


def _finish(spec: Spec, ending: Exit) -> None:
    write_json(os.path.join(spec.directory, EXIT_FILE), ending._asdict())
    _report({"event": "exited", **ending._asdict()})


def _report(message: dict[str, Any]) -> None:
    """Tell the node, which may be gone."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # Python flushes once more at exit and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
