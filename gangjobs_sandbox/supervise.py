"""Runs a program that ends when the process that started it ends, in whatever way.

The calling process starts a supervisor, this module run by `python -m`, and the supervisor starts the program. The
calling process holds the write end of a pipe, the *lifeline*. When that process ends, even by SIGKILL, the pipe closes.
The supervisor then sends SIGTERM to the program, and kills all its descendants after a grace period. On Linux the
supervisor is a subreaper, so it also finds descendants that left their session or lost their parent. Elsewhere it finds
the descendants that `ps` shows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from gangjobs_sandbox.node.shim.kernel import IS_LINUX, become_subreaper
from gangjobs_sandbox.node.shim.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Supervised", "start"]

GRACE_S = 10.0
KILL_TIMEOUT_S = 5.0
"""How long to retry SIGKILL. A process that is stuck in the kernel may never end."""


@dataclass
class Supervised:
    """A running program, and the lifeline whose closing ends it."""

    process: subprocess.Popen[bytes]
    lifeline: int = field(repr=False)

    def poll(self) -> int | None:
        """Return the exit code of the program, or None while the program or a descendant runs."""
        return self.process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        return self.process.wait(timeout_s)

    def stop(self) -> None:
        """Send SIGTERM to the program. After the grace period, kill the program and its descendants."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output: IO[Any] | None = None,
    grace_s: float = GRACE_S,
    own_session: bool = True,
    keep_open: Sequence[int] = (),
) -> Supervised:
    """Start a program that ends at the latest when the calling process ends.

    With `own_session`, signals of the terminal do not reach the program, and its standard input is empty. Without
    `output`, the program writes to the standard output of the caller. `grace_s` is the time in seconds between SIGTERM
    and SIGKILL. The file descriptors `keep_open`, for example of locks, stay open until all descendants have ended; the
    program does not inherit them.

    Raises:
        OSError: the process cannot be started.
    """
    reading, writing = os.pipe()
    # -P: Python must not import a file in the caller's folder instead of a module.
    command = [sys.executable, "-P", "-m", __name__, f"--lifeline={reading}", f"--grace={grace_s}", "--", *argv]
    try:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL if own_session else None,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=own_session,
            pass_fds=[reading, *keep_open],
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return Supervised(process, writing)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a program until it ends or the lifeline closes.")
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--grace", type=float, default=GRACE_S)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if IS_LINUX:
        become_subreaper()
    wakeup, signals = os.pipe()
    for end in (wakeup, signals):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        child = subprocess.Popen(options.command, restore_signals=True)
    except OSError as error:
        print(f"cannot run {options.command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    known_descendants: set[int] = set()
    try:
        return _supervise(child, options.lifeline, wakeup, options.grace, known_descendants)
    finally:
        _kill(known_descendants)


def _supervise(
    child: subprocess.Popen[bytes], lifeline: int, wakeup: int, grace_s: float, known_descendants: set[int]
) -> int:
    """Wait until the program ends, and return its exit code. Stop it when the lifeline closes or SIGTERM arrives.

    This process ignores SIGINT, because a terminal sends SIGINT to the program as well. Before SIGTERM, the descendants
    of the program are added to `known_descendants`: without a subreaper they cannot be found after their parents have
    ended.
    """
    kill_at: float | None = None
    watched = [lifeline, wakeup]
    while (code := _ended(child)) is None:
        timeout_s = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select(watched, [], [], timeout_s)
        requested = set(os.read(wakeup, 512) if wakeup in ready else b"") & {signal.SIGTERM, signal.SIGHUP}
        if lifeline in ready or (requested and lifeline in watched):
            watched = [wakeup]
            kill_at = time.monotonic() + grace_s
            known_descendants.update(() if IS_LINUX else descendants(child.pid))
            os.kill(child.pid, signal.SIGTERM)
        elif kill_at is not None and time.monotonic() >= kill_at:
            kill_at = None
            os.kill(child.pid, signal.SIGKILL)
    return code


def _ended(child: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of the program as a shell reports it, or None while the program runs. Also reap orphans."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child.pid:
                code = os.waitstatus_to_exitcode(ended[1])
                child.returncode = code  # so that Popen does not wait for it again
                return code if code >= 0 else 128 - code
    return None


def _kill(known_descendants: set[int]) -> None:
    """Kill the processes in `known_descendants` and all descendants of this process, until none is left."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while time.monotonic() < deadline and (alive := known_descendants | set(descendants(os.getpid()))):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        known_descendants.clear()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
