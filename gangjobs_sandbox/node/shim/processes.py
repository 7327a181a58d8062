"""The descendants of the shim: finds them, measures their memory, and kills them.

On Linux the shim is a subreaper, so all descendants stay below it, even those that left their session. Elsewhere the
process tree comes from `ps`, which misses a grandchild whose parent has ended and that left its process group.
"""

import contextlib
import os
import signal
import time

from .kernel import IS_LINUX

KILL_TIMEOUT_S = 10.0
"""The time after which the killing stops: a process that is stuck in the kernel cannot be reaped."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def descendants(root: int) -> list[int]:
    """Return the process IDs below `root`, parents first."""
    children = _children_proc() if IS_LINUX else _children_ps()
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def kill_descendants(root: int, group: int) -> None:
    """Kill and reap everything below `root` and the process group. Returns when nothing is left."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        if not _reap() and IS_LINUX:
            return
        alive = descendants(root)
        if not alive:
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def memory_bytes(root: int, *, exact: bool) -> int:
    """Return the resident memory of everything below `root`, in bytes.

    `exact` divides a shared page among the processes that map it, which requires a walk of their page tables. Otherwise
    a shared page counts once for each process, so the sum is an upper bound.
    """
    measure = _proportional_bytes if exact and IS_LINUX else _resident_bytes
    return sum(measure(pid) for pid in descendants(root))


def _reap() -> bool:
    """Reap ended children. Returns False if no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children_proc() -> dict[int, list[int]]:
    table: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = _read(f"/proc/{entry}/stat")
            if stat:
                # The command is in parentheses and may itself contain parentheses.
                table.setdefault(int(stat.rpartition(b")")[2].split()[1]), []).append(int(entry))
    return table


def _resident_bytes(pid: int) -> int:
    if not IS_LINUX:
        return sum(1024 * int(line) for line in _ps("-o", "rss=", "-p", str(pid)))
    pages = _read(f"/proc/{pid}/statm").split()
    return int(pages[1]) * _PAGE_BYTES if pages else 0


def _proportional_bytes(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return _resident_bytes(pid)


def _read(path: str) -> bytes:
    """Return the content of a file in /proc, or nothing if the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _children_ps() -> dict[int, list[int]]:
    table: dict[int, list[int]] = {}
    for line in _ps("-axo", "pid=,ppid="):
        pid, parent = line.split()
        table.setdefault(int(parent), []).append(int(pid))
    return table


def _ps(*arguments: str) -> list[str]:
    import subprocess

    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout.splitlines()
