"""The supervisor of a rank starts its program, and starts it again in place when a program of the gang fails.

    python3 gangjobs_supervisor.py COMMAND [ARGUMENT...]

The first process of each rank's main container runs this file if the task has `restarts`, `progress_timeout` or
`checkpoints`. The Python of the image runs it, so it uses only the standard library of Python 3.8. It runs on Linux.

The supervisor of rank 0 is the coordinator. The other supervisors connect to it, and both sides prove that they have
the gang's key. The coordinator sends what it wants of all ranks, and each rank reports the state of its program. Both
always send the whole state and repeat it, so a lost message or connection loses nothing. The functions `next_wanted`
and `next_action` make all decisions about restarts.

One rule makes restarts safe: the coordinator wants restart k + 1 to run only after every rank has confirmed that no
process of its programs up to restart k is left, and a rank that has confirmed never starts such a program again. No
clock is part of this rule. Time limits only end an attempt.

In local mode, without the address of a coordinator, a supervisor decides for its own rank only.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # the folder of this file has files of the user, which could have the name of a module

import asyncio
import contextlib
import ctypes
import hashlib
import hmac
import json
import math
import os
import secrets
import select
import signal
import socket
import stat
import subprocess
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

RUNNING = "running"
STOPPED = "stopped"
EXITED = "exited"
STATES = (RUNNING, STOPPED, EXITED)

RUN = "run"
END = "end"
WANTS = (RUN, STOPPED, END)

EXIT = "exit"
SIGNAL = "signal"
HUNG = "hung"
NOT_STARTED = "not_started"

NOTHING = "nothing"
START = "start"
STOP = "stop"

HUNG_EXIT_CODE = 124
"""The exit code of a rank whose program has reported no progress for too long. `timeout` of coreutils has it, too."""
SIGTERM_EXIT_CODE = 128 + signal.SIGTERM
FIRST_CONTACT_S = 600.0
"""How long ranks wait for each other in the beginning, because nodes pull images at different speed."""
CONFIRM_EXTRA_S = 30.0
"""How much longer than its grace and a lost connection a rank may need to confirm that its program has stopped."""
HEARTBEAT_S = 5.0
TICK_S = 1.0
KILL_PAUSE_S = 0.01
KILL_PAUSE_MAX_S = 0.5
HANDSHAKE_S = 15.0
CONNECT_PAUSE_MAX_S = 3.0
PROGRESS_INTERVAL_S = 30.0
STACKS_WAIT_S = 2.0
STACKS_BYTES_MAX = 256 * 1024
FILE_BYTES_MAX = 16 * 1024
"""How much is read of a progress file or a result file. The kubelet keeps 4096 bytes of a result."""
MESSAGE_BYTES_MAX = 64 * 1024
UNSENT_BYTES_MAX = 1024 * 1024
"""A connection is cut if the other side has not read so much."""
LINE_BYTES_MAX = 2048
ERROR_CHARACTERS_MAX = 300
METRICS_MAX = 8
RESTARTS_LISTED_MAX = 20
LINE_START = "gangjobs-supervisor "

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_FORWARDED = frozenset(
    {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS}
    | {signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ}
)
"""Signals that a process cannot handle, or that the kernel sends because of what the process itself does."""
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, getattr(signal, "SIGRTMIN", 34) + 3}
"""Signals by which a kubelet ends a container: SIGTERM, or the STOPSIGNAL of the image."""


# -- values ---------------------------------------------------------------------------------------------------


class SettingsError(Exception):
    """The environment or the image lacks what the supervisor needs."""


class ProtocolError(Exception):
    """The other side of a connection does not have the key, or sends what no supervisor sends."""


@dataclass(frozen=True)
class Settings:
    """What the environment says. Durations are in seconds."""

    rank: int
    size: int
    restarts_max: int = 0
    no_restart_codes: FrozenSet[int] = frozenset()
    progress_timeout_s: Optional[float] = None
    progress_path: str = ""
    result_path: str = ""
    address: str = ""
    """The host name of rank 0. In local mode the address is empty."""
    listen: str = ""
    """The own IP address on which rank 0 listens. Empty means all addresses."""
    port: int = 29501
    key: bytes = b""
    grace_s: float = 30.0
    lost_contact_s: float = 60.0
    first_contact_s: float = FIRST_CONTACT_S

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings.

        Raises:
            SettingsError: a value is malformed, or the key cannot be read.
        """
        try:
            address, size = environ.get("GANG_SUPERVISOR_ADDRESS", ""), int(environ.get("GANG_SIZE") or 1)
            address = address if size > 1 else ""
            timeout = environ.get("GANG_PROGRESS_TIMEOUT_S")
            key_path = environ.get("GANG_SUPERVISOR_KEY_FILE", "/gang/files/gangjobs.key")
            return cls(
                rank=int(environ.get("JOB_COMPLETION_INDEX") or 0) + int(environ.get("GANG_RANK_OFFSET") or 0),
                size=size,
                restarts_max=int(environ.get("GANG_RESTARTS_MAX") or 0),
                no_restart_codes=frozenset(
                    int(code) for code in environ.get("GANG_NO_RESTART_ON_EXIT_CODES", "").split(",") if code.strip()
                ),
                progress_timeout_s=float(timeout) if timeout else None,
                progress_path=environ.get("GANG_PROGRESS_PATH", ""),
                result_path=environ.get("GANG_RESULT_PATH", ""),
                address=address,
                listen=environ.get("GANG_SUPERVISOR_LISTEN", ""),
                port=int(environ.get("GANG_SUPERVISOR_PORT") or 29501),
                key=_read_key(key_path) if address else b"",
                grace_s=float(environ.get("GANG_STOP_GRACE_S") or 30),
                lost_contact_s=float(environ.get("GANG_LOST_CONTACT_S") or 60),
                first_contact_s=float(environ.get("GANG_FIRST_CONTACT_S") or FIRST_CONTACT_S),
            )
        except (ValueError, OSError) as error:
            raise SettingsError(f"The supervisor cannot read its settings: {error}") from None

    @property
    def is_coordinator(self) -> bool:
        return not self.address or self.rank == 0

    @property
    def ranks(self) -> Tuple[int, ...]:
        """The ranks for which a coordinator decides."""
        return tuple(range(self.size)) if self.address else (self.rank,)

    @property
    def confirm_s(self) -> float:
        """How long the coordinator waits for a rank to confirm that its program has stopped."""
        return self.grace_s + self.lost_contact_s + CONFIRM_EXTRA_S

    @property
    def tick_s(self) -> float:
        return min(TICK_S, self.lost_contact_s / 10, (self.progress_timeout_s or math.inf) / 5)

    @property
    def heartbeat_s(self) -> float:
        return min(HEARTBEAT_S, self.lost_contact_s / 6)


@dataclass(frozen=True)
class Report:
    """The state of a rank's program, as its supervisor sees it.

    Attributes:
        restart: `running` and `exited` are about the program of this restart. `stopped` means that no process of an
            earlier restart is left, and that none will be started again.
        kind: why the program has failed; empty if it has not failed.
        code: the exit code of the container if it ended now; 128 + n after signal n.
        terminating: the kubelet ends this container, so its program will not be started again.
        ending: the supervisor itself ends after this report.
        silent_s: time since the program last reported progress, `None` before the first report.
        checkpoint_age_s: time since the program has last written a checkpoint.
    """

    restart: int = 0
    state: str = RUNNING
    kind: str = ""
    code: int = 0
    signal: int = 0
    terminating: bool = False
    ending: bool = False
    error: str = ""
    silent_s: Optional[float] = None
    step: Optional[float] = None
    total: Optional[float] = None
    metrics: Dict[str, float] = field(default_factory=dict)
    checkpoint_age_s: Optional[float] = None

    @property
    def has_succeeded(self) -> bool:
        return self.state == EXITED and not self.kind


@dataclass(frozen=True)
class Wanted:
    """What the coordinator wants of all ranks.

    Attributes:
        want: `run`: the programs of this restart run. `stopped`: all programs of earlier restarts are stopped. `end`:
            nothing is started again.
        rank: the rank whose failure is the reason of `stopped` or `end`. `None` with `end` means that all ranks have
            succeeded, except those that are missing.
        kind: how this rank has failed.
        reason: why an `end` is no restart.
        missing: the ranks that have not confirmed, or have not been heard of.
    """

    restart: int = 0
    want: str = RUN
    rank: Optional[int] = None
    kind: str = ""
    reason: str = ""
    missing: Tuple[int, ...] = ()


def to_message(value: Union[Report, Wanted]) -> Dict[str, Any]:
    """Return the value as a JSON object without the fields that have their default."""
    return {key: item for key, item in asdict(value).items() if item or item == 0}


Value = TypeVar("Value", Report, Wanted)
_KNOWN: Dict[type, Tuple[str, Tuple[str, ...]]] = {Report: ("state", STATES), Wanted: ("want", WANTS)}


def from_message(kind: Type[Value], message: Mapping[str, Any]) -> Value:
    """Return the report, or what is wanted, of a message.

    Raises:
        ProtocolError: no supervisor sends this message.
    """
    try:
        value = kind(**message)
    except TypeError as error:
        raise ProtocolError(str(error)) from None
    name, known = _KNOWN[kind]
    if getattr(value, name) not in known or type(value.restart) is not int:
        raise ProtocolError(f"This is no state of a rank or of a gang: {message!r:.200}")
    return value


# -- decisions ------------------------------------------------------------------------------------------------


def lost_ranks(silent_s: Mapping[int, float], reports: Mapping[int, Report], settings: Settings) -> FrozenSet[int]:
    """Return the ranks that the coordinator has lost: the supervisor of such a rank has ended, or will end by itself.

    Args:
        silent_s: how long each rank has not been heard of.
        reports: the last report of each rank that has ever connected.
    """

    def is_lost(rank: int) -> bool:
        if rank not in reports:
            return silent_s[rank] > settings.first_contact_s
        return reports[rank].ending or silent_s[rank] > settings.confirm_s

    return frozenset(filter(is_lost, silent_s))


def next_wanted(
    wanted: Wanted,
    reports: Mapping[int, Report],
    waited_s: float,
    settings: Settings,
    lost: FrozenSet[int] = frozenset(),
) -> Wanted:
    """Return what the coordinator wants next.

    Args:
        wanted: what the coordinator wants now.
        reports: the last report of each rank that has ever connected, in the order in which failures became known.
        waited_s: how long the coordinator has wanted this.
        lost: the ranks that have not been heard of for too long. Nobody waits for their success. Their own pods say
            whether they have succeeded.
    """
    if wanted.want == END:
        return wanted
    is_terminating = any(report.terminating or report.ending for report in reports.values())
    if wanted.want == STOPPED:
        confirmed = {rank for rank, one in reports.items() if one.state == STOPPED and one.restart == wanted.restart}
        missing = tuple(rank for rank in settings.ranks if rank not in confirmed)
        if not missing and not is_terminating:
            return Wanted(wanted.restart, RUN)
        if is_terminating:
            return replace(wanted, want=END, reason="terminating")
        limit_s = settings.confirm_s if all(rank in reports for rank in missing) else settings.first_contact_s
        if waited_s > limit_s:
            return replace(wanted, want=END, reason="not_confirmed", missing=missing)
        return wanted
    current = {rank: report for rank, report in reports.items() if report.restart == wanted.restart}
    failed = next(((rank, report) for rank, report in current.items() if report.kind), None)
    if failed is not None:
        rank, report = failed
        reason = _reason_against_restart(report, wanted.restart, settings)
        if is_terminating and not reason:
            reason = "terminating"
        if reason:
            return Wanted(wanted.restart, END, rank, report.kind, reason)
        return Wanted(wanted.restart + 1, STOPPED, rank, report.kind)
    missing = tuple(rank for rank in settings.ranks if rank not in current or not current[rank].has_succeeded)
    if lost.issuperset(missing):
        return Wanted(wanted.restart, END, reason="lost_contact" if missing else "", missing=missing)
    return wanted


def _reason_against_restart(report: Report, restart: int, settings: Settings) -> str:
    if report.kind == NOT_STARTED:
        return NOT_STARTED
    if report.kind != HUNG and report.code in settings.no_restart_codes:
        return "exit_code"
    return "used_up" if restart >= settings.restarts_max else ""


def next_action(report: Report, wanted: Wanted, rank: int) -> str:
    """Return what the supervisor of a rank does: `start` or `stop` its program, `exit` itself, or `nothing`.

    What the coordinator has wanted before is never done: a lower number than that of the own state is no order.

    The rank that has failed ends the attempt by its exit. If it does not confirm that its program has stopped, perhaps
    it never can, because its node is gone or the kernel does not end its program. Then rank 0 exits instead.
    """
    if wanted.want == END:
        is_over = report.state != RUNNING and wanted.rank is None and wanted.restart == report.restart
        failed = 0 if wanted.rank in wanted.missing else wanted.rank
        has_failed = failed == rank and (report.state != RUNNING or rank in wanted.missing)
        return EXIT if is_over or has_failed else NOTHING
    if report.terminating:
        return NOTHING
    if wanted.want == STOPPED and wanted.restart > report.restart:
        return STOP
    if wanted.want == RUN and wanted.restart == report.restart and report.state == STOPPED:
        return START
    return NOTHING


def silence_verdict(report: Report, silent_s: float, settings: Settings, *, was_connected: bool) -> str:
    """Return what a rank does that hears nothing of rank 0: `stop` its program and fail, `exit`, or `nothing`.

    A program that has ended makes no restart unsafe, and a rank without it cannot be restarted without rank 0. So such
    a rank exits as it would without a supervisor. A program that runs before the first contact goes on.
    """
    if silent_s <= (settings.lost_contact_s if was_connected else settings.first_contact_s):
        return NOTHING
    if report.state == RUNNING:
        return STOP if was_connected else NOTHING
    return EXIT


def exit_code(status: int) -> Tuple[str, int, int]:
    """Return the kind of failure, the exit code, and the signal of a wait status, as a container runtime does."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return SIGNAL, 128 + number, number
    code = os.WEXITSTATUS(status)
    return (EXIT if code else "", code, 0)


def read_progress(content: bytes, now: float) -> Dict[str, Any]:
    """Return the fields of a report, and the fields `pid` and `stacks`, of the content of a progress file.

    Any program may write this file, so everything that is not as expected is left out.

    Args:
        now: Unix time, in seconds.
    """
    try:
        values = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    found: Dict[str, Any] = {key: values[key] for key in ("step", "total") if _is_number(values.get(key))}
    metrics = values.get("metrics")
    if isinstance(metrics, dict):
        named = [(key[:60], value) for key, value in metrics.items() if _is_number(value)]
        found["metrics"] = dict(named[:METRICS_MAX])
    if _is_number(values.get("checkpoint_at")):
        found["checkpoint_age_s"] = max(0.0, now - values["checkpoint_at"])
    if values.get("stacks") is True and type(values.get("pid")) is int:
        found.update(stacks=True, pid=values["pid"])
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18


# -- sentences ------------------------------------------------------------------------------------------------

REASONS = {
    "exit_code": "the task does not restart on this exit code",
    "not_started": "the program cannot be started",
    "lost_contact": "rank 0 does not answer",
    "terminating": "a pod of the gang is being ended",
}


def describe_failure(rank: int, report: Report, settings: Settings) -> str:
    """Return a sentence without its full stop."""
    if report.kind == HUNG:
        return describe_hung(rank, report.step, settings)
    if report.kind == SIGNAL:
        text = f"Rank {rank} has been ended by {_signal_name(report.signal)}"
    elif report.kind == NOT_STARTED:
        text = f"The program of rank {rank} could not be started"
    else:
        text = f"Rank {rank} has failed with exit code {report.code}"
    return text + (f" ({report.error})" if report.error else "")


def describe_hung(rank: int, step: Optional[float], settings: Settings) -> str:
    """Return a sentence without its full stop."""
    since = "" if step is None else f", since step {step:g}"
    return f"Rank {rank} has reported no progress for {settings.progress_timeout_s or 0:g} s{since}"


def describe_reason(wanted: Wanted, settings: Settings) -> str:
    """Return why there is no restart, as the part of a sentence."""
    if wanted.reason == "used_up":
        count = settings.restarts_max
        return "the task has no restarts" if not count else f"all {count} restarts are used up"
    if wanted.reason == "not_confirmed":
        programs = "their programs have" if len(wanted.missing) > 1 else "its program has"
        return f"{_missing(wanted)} not confirmed within {settings.confirm_s:g} s that {programs} stopped"
    if wanted.reason == "lost_contact":
        return f"{_missing(wanted)} ended, or was not heard of for too long"
    return REASONS.get(wanted.reason, wanted.reason)


def _missing(wanted: Wanted) -> str:
    """Return the missing ranks as the beginning of a sentence."""
    names = ", ".join(str(rank) for rank in wanted.missing[:10]) + (" ..." if len(wanted.missing) > 10 else "")
    return f"ranks {names} have" if len(wanted.missing) > 1 else f"rank {names} has"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def encode_line(event: Mapping[str, Any]) -> bytes:
    """Return the line of an event: ASCII, and short enough that no pipe divides it."""
    event = _known(event)
    while True:
        line = LINE_START.encode() + to_json(event) + b"\n"
        if len(line) <= LINE_BYTES_MAX:
            return line
        listed = event.get("restarts")
        if listed:
            event["restarts"] = listed[1:]
            continue
        longest = max((key for key in event if key != "event"), key=lambda key: len(json.dumps(event[key])))
        value = event[longest]
        event[longest] = value[: len(value) // 2] if isinstance(value, (str, list)) else None


def to_json(value: Mapping[str, Any]) -> bytes:
    """Return an object as JSON in ASCII. Half of a character becomes `?`: the provider would not read its escape."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return json.dumps(json.loads(text), separators=(",", ":")).encode("ascii")


def _known(values: Mapping[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


# -- processes ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=None)  # noqa: UP033 - Python 3.8 has no cache
def read_environ() -> Dict[bytes, bytes]:
    """Return the environment of the container, which the script that starts this program has copied to a file.

    That of this process has no variables that the shell cannot name, and may have an LC_CTYPE that Python has added.
    """
    copy = os.path.join(os.path.dirname(os.environ.get("GANG_PROGRESS_PATH", "")), "environ")
    has_copy = os.path.exists(copy)
    with open(copy if has_copy else "/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    if has_copy:
        os.remove(copy)  # it may have secrets
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)


def descendants(root: int) -> List[int]:
    """Return the process ids of all processes below `root`. Processes that start or end meanwhile may be missing."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program is in parentheses and may itself contain parentheses.
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


class Program:
    """One run of a program after the other, each with all its descendants.

    This process is the first one of its container, or a subreaper. So a process whose parent ends becomes a child of
    this process, and no descendant is left exactly if this process has no child: waitpid then fails with ECHILD.
    """

    def __init__(self, libc: ctypes.CDLL, on_end: Callable[[int], None]) -> None:
        self._libc = libc
        self._on_end = on_end
        self._pid = 0
        self._status: Optional[int] = None
        self._clearing: Optional[asyncio.Task[None]] = None
        self._kill_timer: Optional[asyncio.TimerHandle] = None

    def start(self, command: Sequence[str], environ: Mapping[bytes, bytes]) -> None:
        """Start the program in a session of its own, because it was the leader of a session without the supervisor.

        Raises:
            OSError: the program cannot be executed.
        """
        supervisor, prctl = os.getpid(), self._libc.prctl

        def die_with_supervisor() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(1)

        process = subprocess.Popen(
            list(command), env=environ, close_fds=False, start_new_session=True, preexec_fn=die_with_supervisor
        )
        process.returncode = 0  # `reap` waits for the process, and Popen must not
        self._pid, self._status = process.pid, None

    @property
    def is_running(self) -> bool:
        """Whether the program or a descendant of it may still exist."""
        return self._pid != 0

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, if it has not ended."""
        if self._pid and self._status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, number)

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and kill everything after the grace period."""
        if not self._pid:
            return
        self.send_signal(signal.SIGTERM)
        self._kill_timer = asyncio.get_running_loop().call_later(grace_s, self._begin_to_clear)

    def reap(self) -> bool:
        """Reap what has ended, and return whether no child is left. If the program has ended, the rest is killed."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._pid and self._status is None:
                self._status = status
                self._begin_to_clear()

    def _begin_to_clear(self) -> None:
        if self._pid and self._clearing is None:
            self._clearing = asyncio.get_running_loop().create_task(self._clear())

    async def _clear(self) -> None:
        """Kill until no descendant is left. A process that the kernel does not end keeps this rank from confirming."""
        pause_s = KILL_PAUSE_S
        while not self.reap():
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, KILL_PAUSE_MAX_S)
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        status = self._status if self._status is not None else signal.SIGKILL
        self._pid, self._clearing, self._kill_timer = 0, None, None
        self._on_end(status)


class ProgressFile:
    """The file by which the program of a rank reports progress."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: Optional[Tuple[int, int, int]] = None
        self.silent_s: Optional[float] = None
        self.content = b""

    @property
    def stacks_path(self) -> str:
        return os.path.join(os.path.dirname(self._path), "stacks")

    def clear(self) -> None:
        """Forget the reports of an earlier program."""
        self._seen, self.silent_s, self.content = None, None, b""
        for path in (self._path, self.stacks_path) if self._path else ():
            with contextlib.suppress(OSError):
                os.unlink(path)

    def look(self, elapsed_s: float) -> None:
        """Find out whether the file was written or touched within the time that has passed since the last look."""
        if self.silent_s is not None:
            self.silent_s += elapsed_s
        try:
            status = os.stat(self._path)
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
            if seen != self._seen:
                self._seen, self.silent_s, self.content = seen, 0.0, _read_start(self._path)
        except OSError:
            return


def _read_start(path: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Return the beginning of a file; nothing if it is no file, such as a named pipe, for whose end nobody waits."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            return file.read(bytes_max) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a named pipe. Nobody reads a pipe when its program has ended."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def _read_key(path: str) -> bytes:
    with open(path, "rb") as file:
        key = file.read().strip()
    if len(key) < 32:
        raise ValueError(f"the key in {path} is too short")
    return key


class Lines:
    """Writes events to standard error. A thread writes, because standard error may be a full pipe."""

    def __init__(self) -> None:
        self._writer = ThreadPoolExecutor(1)
        self._last: Any = None

    def write(self, event: str, message: str, **values: Any) -> None:
        """Write one line."""
        self.write_raw(encode_line({"event": event, "at": round(time.time(), 3), "message": message, **values}))

    def write_raw(self, content: bytes) -> None:
        """Write bytes as they are."""
        self._last = self._writer.submit(_write_all, 2, content)

    def flush(self, timeout_s: float) -> None:
        """Wait until all lines are written, but not longer."""
        if self._last is not None:
            wait([self._last], timeout=timeout_s)


def _write_all(fd: int, content: bytes) -> None:
    while content:
        try:
            content = content[os.write(fd, content) :]
        except BlockingIOError:  # the program has made standard error, which it shares, non-blocking
            select.select([], [fd], [], 1.0)
        except OSError:
            return


# -- one rank -------------------------------------------------------------------------------------------------


class RankSupervisor:
    """Supervises the program of this rank.

    Attributes:
        report: the state of the program. `send` has got it, or will get it with the next heartbeat.
        finished: the exit code of this process, once it is known.
    """

    def __init__(self, settings: Settings, command: Sequence[str], lines: Lines, libc: ctypes.CDLL) -> None:
        self._settings = settings
        self._command = command
        self._lines = lines
        self._environ = read_environ()
        self.program = Program(libc, self._handle_end)
        self._progress = ProgressFile(settings.progress_path)
        self._wanted = Wanted()
        self._is_stopping = False
        self._failure: Optional[Tuple[int, str]] = None  # the exit code and the error after the program has stopped
        self._heard_s = 0.0  # time since rank 0 was last heard of
        self._was_connected = settings.is_coordinator
        self.report = Report()
        self.send: Callable[[Report], None] = lambda report: None
        self.finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.hurry = asyncio.Event()
        """Set when the kubelet ends the container, so that nothing is waited for any more."""

    def start(self) -> None:
        """Start the program of the restart that the report names."""
        settings, restart = self._settings, self.report.restart
        self._progress.clear()
        if restart:
            with contextlib.suppress(OSError):
                os.truncate(settings.result_path, 0)
        self._is_stopping = False
        try:
            self.program.start(self._command, {**self._environ, b"GANG_RESTART": str(restart).encode()})
            self._change(Report(restart, RUNNING))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reason = f'exec: "{self._command[0]}": {getattr(error, "strerror", None) or error}'
            write_error(settings.result_path, reason)
            os.write(2, (reason + "\n").encode("utf-8", "replace"))
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._change(Report(restart, EXITED, NOT_STARTED, code, error=reason[:ERROR_CHARACTERS_MAX]))

    def receive(self, wanted: Wanted) -> None:
        """Do what the coordinator wants."""
        self._wanted = wanted
        self.hear()
        self._act()

    def hear(self) -> None:
        """Note that rank 0 was heard of."""
        self._heard_s, self._was_connected = 0.0, True

    def _act(self) -> None:
        action = next_action(self.report, self._wanted, self._settings.rank)
        if self.finished.done() or self._failure is not None or action == NOTHING:
            return
        if action == START:
            self.start()
        elif action == EXIT:
            self._exit_after(self._wanted)
        elif self.report.state == RUNNING:
            self._stop()
        else:
            self._change(self._stopped(self.report.kind, self.report.code))

    def _stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            asyncio.get_running_loop().create_task(self._dump_and_stop(self.report.restart))

    async def _dump_and_stop(self, restart: int) -> None:
        timeout_s = self._settings.progress_timeout_s
        is_hung = HUNG in (self.report.kind, self._wanted.kind)
        if is_hung and timeout_s and (self._progress.silent_s or 0.0) >= timeout_s / 2:
            await self._dump_stacks()
        if self.report.restart == restart:  # the program may have ended meanwhile
            self.program.stop(self._settings.grace_s)

    async def _dump_stacks(self) -> None:
        """Let a program in Python write the stacks of its threads, and copy them to the log of this rank."""
        progress, path = read_progress(self._progress.content, time.time()), self._progress.stacks_path
        if not progress.get("stacks") or progress["pid"] not in descendants(os.getpid()):
            return
        with contextlib.suppress(OSError):
            os.kill(progress["pid"], signal.SIGUSR2)
        size, deadline = -1, time.monotonic() + STACKS_WAIT_S
        while time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            with contextlib.suppress(OSError):
                previous, size = size, os.stat(path).st_size
                if size > 0 and size == previous:
                    break
        content = _read_start(path, STACKS_BYTES_MAX)
        if content:
            title = f"The stacks of rank {self._settings.rank}, which reports no progress:\n"
            self._lines.write_raw(title.encode() + content.rstrip(b"\n") + b"\n")

    def _stopped(self, kind: str, code: int) -> Report:
        """Return the confirmation, with the exit code that the container has if it ends before the next program."""
        return Report(
            self._wanted.restart,
            STOPPED,
            code=code if kind and code else SIGTERM_EXIT_CODE,
            terminating=self.report.terminating,
        )

    def _handle_end(self, status: int) -> None:
        """Handle the end of the program and of all its descendants."""
        kind, code, number = exit_code(status)
        if self._failure is not None:
            self._finish(*self._failure)
        elif self.report.terminating:
            if not kind and not self._is_stopping:
                self.report = replace(self.report, state=EXITED)
            self._finish(SIGTERM_EXIT_CODE if self._is_stopping and not code else code)
        elif self._is_stopping and self._wanted.want == STOPPED and self._wanted.restart > self.report.restart:
            self._change(self._stopped(self.report.kind, self.report.code))
        elif self.report.kind:  # hung, and reported before
            self._change(replace(self.report, state=EXITED))
        elif self._is_stopping:  # for a restart that has become impossible meanwhile
            self._change(replace(self.report, state=STOPPED, code=code or SIGTERM_EXIT_CODE))
        else:
            error = read_error(self._settings.result_path) if kind else ""
            self._look_at_progress(0.0)
            self._change(replace(self.report, state=EXITED, kind=kind, code=code, signal=number, error=error))
        self._act()

    def handle_signal(self, number: int) -> None:
        """Forward a signal to the program. A stop by the kubelet also rules out that the program starts again."""
        if number not in STOP_SIGNALS:
            self.program.send_signal(number)
            return
        self.hurry.set()
        if self.finished.done():
            return
        if self.report.state != RUNNING:
            self._finish(self.report.code)
            return
        if not self._is_stopping:
            self.program.send_signal(number)
        self._change(replace(self.report, terminating=True))

    def tick(self, elapsed_s: float) -> None:
        """Look at what changes with time. A supervisor that was stopped for long counts only a little time."""
        self._look_at_progress(elapsed_s)
        if self.finished.done() or self._failure is not None:
            return
        timeout_s, silent_s = self._settings.progress_timeout_s, self._progress.silent_s
        is_undisturbed = self.report.state == RUNNING and not self._is_stopping and not self.report.terminating
        if is_undisturbed and timeout_s and silent_s is not None and silent_s > timeout_s:
            self._fail_as_hung()
        if not self._settings.is_coordinator and not self.report.terminating:
            self._heard_s += elapsed_s
            verdict = silence_verdict(self.report, self._heard_s, self._settings, was_connected=self._was_connected)
            if verdict != NOTHING:
                self.lose_contact(f"Rank {self._settings.rank} has not heard of rank 0 for {self._heard_s:.0f} s")

    def _look_at_progress(self, elapsed_s: float) -> None:
        if self.report.state == RUNNING and self._settings.progress_path:
            self._progress.look(elapsed_s)
            values = read_progress(self._progress.content, time.time())
            values.pop("stacks", None)
            values.pop("pid", None)
            self.report = replace(self.report, silent_s=self._progress.silent_s, **values)

    def _fail_as_hung(self) -> None:
        error = describe_hung(self._settings.rank, self.report.step, self._settings)
        self._change(replace(self.report, kind=HUNG, code=HUNG_EXIT_CODE, error=error))
        self._stop()

    def lose_contact(self, error: str) -> None:
        """End this rank, which cannot be started again any more. If its program has succeeded, so has the rank."""
        if self.finished.done() or self._failure is not None:
            return
        if self.report.has_succeeded:
            self._finish(0)
            return
        message = error + ": it is not restarted any more"
        self._lines.write("no_restart", message, rank=self._settings.rank, reason="lost_contact")
        code = self.report.code if self.report.state == EXITED else 1
        self._failure = (code, error)
        if self.report.state == RUNNING:
            self._stop()
        else:
            self._finish(*self._failure)

    def _exit_after(self, wanted: Wanted) -> None:
        if wanted.rank is None and self.report.has_succeeded:
            self._finish(0)
            return
        note = "" if wanted.reason in ("used_up", "exit_code") else describe_reason(wanted, self._settings)
        if wanted.rank not in (None, self._settings.rank):
            self._finish(1, f"Not restarted: {note}", keep=True)
        elif HUNG in (wanted.kind, self.report.kind):
            self._finish(
                self.report.code, self.report.error or describe_hung(self._settings.rank, None, self._settings)
            )
        else:
            self._finish(self.report.code, f"Not restarted: {note}" if note else "", keep=True)

    def _finish(self, code: int, error: str = "", *, keep: bool = False) -> None:
        """End this supervisor. `keep` adds the error to that of the program."""
        if self.finished.done():
            return
        if error:
            own = read_error(self._settings.result_path) if keep else ""
            write_error(self._settings.result_path, f"{own} ({error})" if own else error)
        self.finished.set_result(code)
        self._change(replace(self.report, ending=True))

    def _change(self, report: Report) -> None:
        self.report = report
        self.send(report)


def read_error(path: str) -> str:
    """Return the error that a program has written to its result file, or nothing."""
    try:
        value = json.loads(_read_start(path).decode("utf-8"))
        error = str(value["error"]) if isinstance(value, dict) and "error" in value else ""
        return error.encode("utf-8", "replace").decode()[:ERROR_CHARACTERS_MAX]
    except (ValueError, RecursionError):
        return ""


def write_error(path: str, error: str) -> None:
    """Write the error that the provider quotes. If the file cannot be written, the log of the rank says why."""
    try:
        with open(path, "wb", opener=_open_at_once) as file:
            file.write(to_json({"error": error[: 2 * ERROR_CHARACTERS_MAX], "at": time.time()}))
    except OSError as problem:
        with contextlib.suppress(OSError):
            os.write(
                2, f"{error}\nThis could not be written to GANG_RESULT_PATH: {problem}\n".encode("utf-8", "replace")
            )


# -- the coordinator ------------------------------------------------------------------------------------------


class Coordinator:
    """Decides for all ranks, tells them, and writes the events of the gang."""

    def __init__(self, settings: Settings, lines: Lines, broadcast: Callable[[Wanted], None]) -> None:
        self._settings = settings
        self._lines = lines
        self._broadcast = broadcast
        self._waited_s = 0.0
        self._silent_s = {rank: 0.0 for rank in settings.ranks if rank != settings.rank}
        self._began = self._run_began = time.monotonic()
        self._failed_at: Optional[float] = None
        self._failure = Report()
        self._failed_ran_s = self._failed_lost_s = 0.0
        self._events: List[Dict[str, Any]] = []
        self._ran_s = self._stopped_s = self._lost_s = 0.0
        self._last_progress: Tuple[float, Dict[str, Any]] = (-math.inf, {})
        self.wanted = Wanted()
        self.reports: Dict[int, Report] = {}
        self.is_acknowledged = asyncio.Event()
        """Set when all other ranks that are not missing have said that they end."""

    def receive(self, rank: int, report: Report) -> None:
        """Take the report of a rank, and decide."""
        if rank in self._silent_s:
            self._silent_s[rank] = 0.0
        previous = self.reports.get(rank)
        if previous is None or (report.kind and not previous.kind):
            self.reports.pop(rank, None)  # so that failures are in the order in which they became known
        self.reports[rank] = report
        self._decide()

    def tick(self, elapsed_s: float) -> None:
        """Decide again, because time has passed."""
        self._waited_s += elapsed_s
        for rank in self._silent_s:
            self._silent_s[rank] += elapsed_s
        self._decide()
        self._write_progress()

    def _decide(self) -> None:
        lost = lost_ranks(self._silent_s, self.reports, self._settings)
        wanted = next_wanted(self.wanted, self.reports, self._waited_s, self._settings, lost)
        if wanted != self.wanted:
            self._waited_s = 0.0
            ran, self.wanted = self.wanted.want == RUN, wanted
            self._note(wanted, is_failure=ran)
            self._broadcast(wanted)
        if self._failed_at is not None and wanted.want == RUN and self._all_have_started():
            self._note_restarted(time.monotonic() - self._failed_at)
        others = self._silent_s.keys() - set(wanted.missing)
        if wanted.want == END and all(rank in self.reports and self.reports[rank].ending for rank in others):
            self.is_acknowledged.set()

    def _all_have_started(self) -> bool:
        reports = [self.reports.get(rank) for rank in self._settings.ranks]
        return all(r is not None and r.restart == self.wanted.restart and r.state != STOPPED for r in reports)

    def _note(self, wanted: Wanted, *, is_failure: bool) -> None:
        """Write what is wanted now. It is no failure if the restart that a failure has begun becomes impossible."""
        now = time.monotonic()
        if wanted.rank is None and wanted.missing:
            reason = describe_reason(wanted, self._settings)
            message = (
                f"{reason[0].upper()}{reason[1:]}. The programs of all other ranks have succeeded, and these ranks end."
            )
            self._lines.write("no_restart", message, reason=wanted.reason, missing=list(wanted.missing))
        if wanted.want == RUN or wanted.rank is None:
            return
        rank = wanted.rank
        if is_failure:
            self._failure = self.reports[rank]
            # Nothing is lost if not all ranks have run again since the failure before.
            self._failed_ran_s = now - self._run_began if self._failed_at is None else 0.0
            self._failed_lost_s = self._lost_of(self._failed_ran_s)
            self._ran_s += self._failed_ran_s
            self._lost_s += self._failed_lost_s
            self._failed_at = now if self._failed_at is None else self._failed_at
        failure, settings = self._failure, self._settings
        sentence = describe_failure(rank, failure, settings)
        values: Dict[str, Any] = {
            "rank": rank,
            "kind": failure.kind,
            "code": failure.code,
            "signal": failure.signal or None,
            "step": failure.step,
        }
        error = failure.error or None
        if wanted.want == END:
            message = f"{sentence}. It is not restarted: {describe_reason(wanted, settings)}."
            missing = list(wanted.missing) or None
            self._lines.write("no_restart", message, **values, error=error, reason=wanted.reason, missing=missing)
            return
        values.update(number=wanted.restart, lost_s=round(self._failed_lost_s, 1))
        self._events.append({**_known(values), "at": round(time.time(), 3)})
        message = f"{sentence}. Restart {wanted.restart} of {settings.restarts_max} begins."
        ran_s = round(self._failed_ran_s, 1)
        self._lines.write("restart", message, **values, error=error, of=settings.restarts_max, ran_s=ran_s)

    def _note_restarted(self, took_s: float) -> None:
        number = self.wanted.restart
        self._stopped_s += took_s
        self._events[-1]["took_s"] = round(took_s, 2)
        self._run_began, self._failed_at = time.monotonic(), None
        count = len(self._settings.ranks)
        who = f"All {count} ranks run" if count > 1 else f"Rank {self._settings.ranks[0]} runs"
        message = f"{who} again, {took_s:.1f} s after the failure (restart {number})."
        self._lines.write("restarted", message, number=number, took_s=round(took_s, 2))

    def _lost_of(self, ran_s: float) -> float:
        """Return the seconds of work that a failure loses: those since all ranks have written a checkpoint."""
        ages = [report.checkpoint_age_s for report in self.reports.values() if report.checkpoint_age_s is not None]
        return min(ran_s, max(ages, default=ran_s))

    def _progress_of_gang(self) -> Dict[str, Any]:
        current = [
            self.reports[rank]
            for rank in self._settings.ranks
            if rank in self.reports and self.reports[rank].restart == self.wanted.restart
        ]
        steps = [report.step for report in current if report.step is not None]
        if not steps:
            return {}
        own = self.reports[self._settings.ranks[0]]
        total = max((report.total for report in current if report.total is not None), default=None)
        metrics = own.metrics if own.restart == self.wanted.restart else {}
        return {
            "restart": self.wanted.restart,
            "ranks": len(steps),
            "step": min(steps),
            "total": total,
            "metrics": metrics,
        }

    def _write_progress(self) -> None:
        now, (last_at, last) = time.monotonic(), self._last_progress
        values = self._progress_of_gang()
        if self.wanted.want != RUN or not values or values == last or now - last_at < PROGRESS_INTERVAL_S:
            return
        self._last_progress = (now, values)
        step, total, rate = values["step"], values["total"], None
        if last.get("restart") == values["restart"] and step > last["step"]:
            rate = (step - last["step"]) / (now - last_at)
        eta_s = (total - step) / rate if rate and total is not None and total >= step else None
        share = f" of {total:g} ({100 * step / total:.0f} %)" if total else ""
        parts = [f"Step {step:g}{share}"]
        parts += [f"{rate:.3g} steps/s"] if rate else []
        parts += [f"{name} {value:.4g}" for name, value in values["metrics"].items()]
        parts += [f"about {eta_s:.0f} s left"] if eta_s is not None else []
        self._lines.write(
            "progress",
            ", ".join(parts) + ".",
            **values,
            rate=None if rate is None else float(f"{rate:.4g}"),
            eta_s=None if eta_s is None else round(eta_s),
        )

    def summarize(self) -> None:
        """Write the last event."""
        now = time.monotonic()
        if self._failed_at is None:
            self._ran_s += now - self._run_began
            if self.wanted.want != END:  # the container was ended while the programs ran
                self._lost_s += self._lost_of(now - self._run_began)
        elif self.wanted.want != END:
            self._stopped_s += now - self._failed_at
        count = len(self._events)
        times = "once" if count == 1 else f"{count} times"
        message = f"The programs have been restarted {times}." if count else "The programs have not been restarted."
        progress = self._progress_of_gang()
        self._lines.write(
            "summary",
            message,
            restarts=self._events[-RESTARTS_LISTED_MAX:],
            restarts_total=count,
            step=progress.get("step"),
            total=progress.get("total"),
            metrics=progress.get("metrics"),
            ran_s=round(self._ran_s, 1),
            stopped_s=round(self._stopped_s, 1),
            lost_s=round(self._lost_s, 1),
        )


# -- connections ----------------------------------------------------------------------------------------------

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


def proof(key: bytes, *parts: object) -> str:
    """Return what only somebody with the key can compute from the parts."""
    return hmac.new(key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def _send(writer: Writer, message: Mapping[str, Any]) -> None:
    if writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
        writer.transport.abort()
        return
    writer.write(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n")


async def _receive(reader: Reader) -> Dict[str, Any]:
    """Return the next message.

    Raises:
        ProtocolError: the connection has ended, or this is no message.
    """
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise ProtocolError("the connection has ended")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ProtocolError("a message is a JSON object")
    return message


class Server:
    """The connections of the other ranks to the coordinator."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._id = secrets.token_hex(16)
        self._writers: Dict[int, Writer] = {}
        self._instances: Dict[int, str] = {}
        self._server: Any = None
        self.receive: Callable[[int, Report], None] = lambda rank, report: None
        self.wanted: Callable[[], Wanted] = Wanted
        self.is_ending: Callable[[], bool] = lambda: False

    async def listen(self) -> None:
        """Accept connections.

        Raises:
            SettingsError: the address cannot be used.
        """
        try:
            listener = _listening_socket(self._settings)
            self._server = await asyncio.start_server(self._serve, sock=listener, limit=MESSAGE_BYTES_MAX)
        except OSError as error:
            raise SettingsError(f"The supervisor cannot listen on port {self._settings.port}: {error}") from None

    def broadcast(self, wanted: Wanted) -> None:
        """Send what is wanted to all ranks that are connected."""
        message = to_message(wanted)
        for writer in list(self._writers.values()):
            _send(writer, message)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        rank = -1
        try:
            rank = await asyncio.wait_for(self._greet(reader, writer), HANDSHAKE_S)
            previous = self._writers.pop(rank, None)
            if previous is not None:
                previous.transport.abort()
            self._writers[rank] = writer
            _send(writer, to_message(self.wanted()))
            while True:
                report = from_message(Report, await _receive(reader))
                if self._writers.get(rank) is not writer:
                    return
                self.receive(rank, report)
        except (OSError, ValueError, RecursionError, asyncio.TimeoutError, ProtocolError):
            return
        finally:
            if self._writers.get(rank) is writer:
                del self._writers[rank]
            writer.close()

    async def _greet(self, reader: Reader, writer: Writer) -> int:
        """Return the rank of a connection.

        Raises:
            ProtocolError: it is no rank of this gang, or another supervisor has been connected under this rank before.
        """
        key, challenge = self._settings.key, secrets.token_hex(16)
        _send(writer, {"challenge": challenge})
        hello = await _receive(reader)
        rank, instance, own = hello.get("rank"), hello.get("instance"), hello.get("challenge")
        expected = proof(key, "rank", rank, instance, own, challenge)
        if not hmac.compare_digest(expected.encode(), str(hello.get("proof")).encode("utf-8", "replace")):
            raise ProtocolError("the proof is wrong")
        if type(rank) is not int or not 0 < rank < self._settings.size:
            raise ProtocolError(f"The gang has no rank {rank!r:.20}")
        if self.is_ending() and self._instances.get(rank) != instance:
            raise ProtocolError("this pod is being ended, and the rank may belong to the pods that replace it")
        is_refused = self._instances.setdefault(rank, str(instance)) != instance
        answer = proof(key, "rank 0", self._id, is_refused, challenge, own)
        _send(writer, {"id": self._id, "refused": is_refused, "proof": answer})
        if is_refused:
            await writer.drain()
            raise ProtocolError("another supervisor has this rank")
        return rank


def _listening_socket(settings: Settings) -> socket.socket:
    port = settings.port
    if settings.listen:
        family = socket.AF_INET6 if ":" in settings.listen else socket.AF_INET
        return socket.create_server((settings.listen, port), family=family, backlog=1024)
    try:
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    except (OSError, ValueError):  # the pod has no IPv6
        return socket.create_server(("", port), backlog=1024)


class Client:
    """The connection of a rank to the coordinator, which is made again and again."""

    def __init__(self, settings: Settings, supervisor: RankSupervisor) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._instance = secrets.token_hex(16)
        self._coordinator: Optional[str] = None
        self._writer: Optional[Writer] = None

    def send(self, report: Report) -> None:
        """Send the report if there is a connection. Each new connection begins with the report of that moment."""
        if self._writer is not None:
            _send(self._writer, to_message(report))

    async def close(self) -> None:
        """Send what is still unsent."""
        if self._writer is not None:
            self._writer.close()
            await self._writer.wait_closed()

    async def keep_connected(self) -> None:
        """Connect, and receive what is wanted, until this rank ends.

        A rank that is being ended does not connect again: a rank 0 that answers may have replaced that of this rank.
        """
        pause_s, supervisor = 0.1, self._supervisor
        while not supervisor.finished.done() and not supervisor.hurry.is_set():
            began = time.monotonic()
            try:
                await self._connect_once()
            except RefusedError as error:
                supervisor.lose_contact(str(error))
                return
            except (OSError, ValueError, RecursionError, asyncio.TimeoutError, ProtocolError):
                pass
            pause_s = 0.1 if time.monotonic() - began > HANDSHAKE_S else min(2 * pause_s, CONNECT_PAUSE_MAX_S)
            await asyncio.sleep(pause_s * (0.5 + secrets.randbelow(1000) / 1000))

    async def _connect_once(self) -> None:
        settings, supervisor = self._settings, self._supervisor
        silence_s = max(settings.lost_contact_s / 3, 2 * settings.heartbeat_s)
        opening = asyncio.open_connection(settings.address, settings.port, limit=MESSAGE_BYTES_MAX)
        reader, writer = await asyncio.wait_for(opening, HANDSHAKE_S)
        try:
            await asyncio.wait_for(self._greet(reader, writer), HANDSHAKE_S)
            supervisor.hear()
            self._writer = writer
            self.send(supervisor.report)
            while True:
                message = await asyncio.wait_for(_receive(reader), silence_s)
                supervisor.receive(from_message(Wanted, message))
        finally:
            if not supervisor.finished.done():  # else `close` sends the last report
                self._writer = None
                writer.close()

    async def _greet(self, reader: Reader, writer: Writer) -> None:
        """Prove to rank 0 that this is a rank of the gang, and have it proven that rank 0 is the one of the gang.

        Raises:
            RefusedError: this rank cannot be a part of the gang any more.
            ProtocolError: the other side does not have the key.
        """
        settings, own = self._settings, secrets.token_hex(16)
        challenge = str((await _receive(reader)).get("challenge"))
        hello = proof(settings.key, "rank", settings.rank, self._instance, own, challenge)
        _send(writer, {"rank": settings.rank, "instance": self._instance, "challenge": own, "proof": hello})
        answer = await _receive(reader)
        coordinator, is_refused = answer.get("id"), answer.get("refused")
        expected = proof(settings.key, "rank 0", coordinator, is_refused, challenge, own)
        if not hmac.compare_digest(expected.encode(), str(answer.get("proof")).encode("utf-8", "replace")):
            raise ProtocolError("the proof is wrong")
        if is_refused:
            raise RefusedError(f"Another supervisor of rank {settings.rank} has been connected to rank 0 before")
        if self._coordinator not in (None, coordinator):
            raise RefusedError("The supervisor of rank 0 is another one than before")
        self._coordinator = str(coordinator)


class RefusedError(Exception):
    """This rank cannot be a part of its gang any more."""


# -- the process ----------------------------------------------------------------------------------------------


async def supervise(settings: Settings, command: Sequence[str], lines: Lines, libc: ctypes.CDLL) -> int:
    """Run the program until the rank ends, and return the exit code.

    Raises:
        SettingsError: rank 0 cannot listen.
    """
    supervisor = RankSupervisor(settings, command, lines, libc)
    handle_signals(supervisor)
    coordinator: Optional[Coordinator] = None
    server: Optional[Server] = None
    client: Optional[Client] = None
    if settings.is_coordinator:
        server = Server(settings)
        coordinator = _connect_own(settings, supervisor, server, lines)
        if settings.address:
            await server.listen()
    else:
        client = Client(settings, supervisor)
        supervisor.send = client.send
    supervisor.start()
    tasks = [asyncio.ensure_future(_keep_time(settings, supervisor, coordinator, server))]
    if client is not None:
        tasks.append(asyncio.ensure_future(client.keep_connected()))
    code = await supervisor.finished
    if coordinator is not None:
        if code == 0 and not supervisor.hurry.is_set():
            await _say_goodbye(settings, supervisor, coordinator, libc)
        coordinator.summarize()
    if client is not None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(client.close(), 2.0)
    return code


def _connect_own(settings: Settings, supervisor: RankSupervisor, server: Server, lines: Lines) -> Coordinator:
    """Connect the coordinator with the ranks: by `server`, and its own rank directly."""
    loop = asyncio.get_running_loop()

    def broadcast(wanted: Wanted) -> None:
        server.broadcast(wanted)
        loop.call_soon(supervisor.receive, wanted)  # later, because the own report may be the reason

    coordinator = Coordinator(settings, lines, broadcast)
    supervisor.send = lambda report: coordinator.receive(settings.rank, report)
    server.receive, server.wanted = coordinator.receive, lambda: coordinator.wanted
    server.is_ending = supervisor.hurry.is_set
    return coordinator


async def _keep_time(
    settings: Settings, supervisor: RankSupervisor, coordinator: Optional[Coordinator], server: Optional[Server]
) -> None:
    last = sent = time.monotonic()
    while True:
        await asyncio.sleep(settings.tick_s)
        now = time.monotonic()
        elapsed_s, last = min(now - last, 2 * settings.tick_s), now
        supervisor.tick(elapsed_s)
        if coordinator is not None:
            coordinator.tick(elapsed_s)
            supervisor.send(supervisor.report)
        if now - sent >= settings.heartbeat_s:
            sent = now
            if server is not None and coordinator is not None:
                server.broadcast(coordinator.wanted)
            else:
                supervisor.send(supervisor.report)


async def _say_goodbye(
    settings: Settings, supervisor: RankSupervisor, coordinator: Coordinator, libc: ctypes.CDLL
) -> None:
    """Wait until the other ranks know that all have succeeded, and remove the checkpoints if the task wants that."""
    waits = [asyncio.ensure_future(event.wait()) for event in (coordinator.is_acknowledged, supervisor.hurry)]
    await asyncio.wait(waits, timeout=settings.lost_contact_s, return_when=asyncio.FIRST_COMPLETED)
    knows_all = (settings.address or settings.size == 1) and not coordinator.wanted.missing
    if knows_all and os.environ.get("GANG_KEEP_CHECKPOINTS") == "0" and not supervisor.hurry.is_set():
        helper = os.path.join(os.environ.get("GANG_FILES", "/gang/files"), "gangjobs_rank.py")
        removed = asyncio.Event()
        remover = Program(libc, lambda status: removed.set())
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, remover.reap)
        with contextlib.suppress(OSError):
            remover.start([sys.executable, helper, "remove"], read_environ())
            waits = [asyncio.ensure_future(event.wait()) for event in (removed, supervisor.hurry)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


def handle_signals(supervisor: RankSupervisor) -> None:
    """Forward every signal that can be forwarded. A signal that is ignored stays ignored here and in the program."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, supervisor.program.reap)
    for number in signal.valid_signals() - NOT_FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            with contextlib.suppress(ValueError, RuntimeError, OSError):
                loop.add_signal_handler(number, supervisor.handle_signal, int(number))


def become_reaper() -> ctypes.CDLL:
    """Let orphans below this process become its children, and return the C library.

    Raises:
        SettingsError: the system is not Linux, or the image lacks what Python needs for this.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
            return libc
        reason = os.strerror(ctypes.get_errno())
    except (OSError, AttributeError) as error:
        reason = str(error)
    raise SettingsError(f"The supervisor needs Linux with prctl: {reason}")


def main(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Supervise the command, and return the exit code of this process."""
    lines = Lines()
    try:
        if not command:
            raise SettingsError("The supervisor needs the command of the rank")
        code = asyncio.run(_run(Settings.of(environ), command, lines))
    except SettingsError as error:
        print(error, file=sys.stderr)
        write_error(environ.get("GANG_RESULT_PATH", ""), str(error))
        return 1
    return code


async def _run(settings: Settings, command: Sequence[str], lines: Lines) -> int:
    code = await supervise(settings, command, lines, become_reaper())
    lines.flush(2.0)
    os._exit(code)  # a thread may still look up the name of rank 0, and a program that is stuck is not waited for


if __name__ == "__main__":
    # `die_with_supervisor` calls only functions that are safe after a fork beside another thread.
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.exit(main(sys.argv[1:], os.environ))
