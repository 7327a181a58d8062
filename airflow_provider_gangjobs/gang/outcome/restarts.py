"""Restarts, progress, and the use of time of a gang, as its supervisors report them in the log of rank 0. Pure.

A program may write such a line, too. So a line decides nothing: what it says is shown, and only within the limits here.

The time of a gang was useful, lost, or waited. A gang holds what it requests from the moment at which it may run until
it ends. Work counts as lost if it was done again, or if the gang did not succeed: since the last checkpoint, if ranks
report checkpoints, and otherwise from the start of the program. A gang that its queue has stopped is counted from its
last start on.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec.structs import replace

from airflow_provider_gangjobs.kube.quantity import parse
from airflow_provider_gangjobs.kube.text import cut_end, pluralize, to_printable_line
from airflow_provider_gangjobs.kube.views import JSON_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LINE_START: Final = b"gangjobs-supervisor {"
LINE_BYTES_MAX: Final = 4096
"""A supervisor writes at most 2 KiB."""
MARKS_MAX: Final = 32
"""How many beginnings of a line are tried. What a supervisor quotes of a program has fewer."""
MESSAGE_CHARACTERS_MAX: Final = 1000
RESTARTS_KEPT: Final = 20
"""How many restarts are kept, the last ones."""
METRICS_MAX: Final = 8
NAME_CHARACTERS_MAX: Final = 64

Whole = Annotated[int, msgspec.Meta(ge=-(10**18), le=10**18)]
"""A supervisor writes no larger number. Python cannot format every int as a float."""
Number = Whole | float


class Restart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One restart of the programs of a gang in its pods."""

    number: int
    """From 1."""
    rank: int | None = None
    """The rank whose program failed."""
    kind: str = ""
    """`exit`, `signal` or `hung`."""
    code: int | None = None
    signal: int | None = None
    step: Number | None = None
    at: Number | None = None
    """When the program failed, as Unix time by the clock of rank 0."""
    took_s: Number | None = None
    """From the failure until all ranks ran again; `None` if it is not known."""
    lost_s: Number | None = None
    """How much work was lost: since the last checkpoint, or else since the start of the program."""

    @property
    def cause(self) -> str:
        """What the rank did, such as `rank 1 exited with code 3`."""
        rank = "a rank" if self.rank is None else f"rank {self.rank}"
        if self.kind == "hung":
            return f"{rank} was silent"
        if self.signal is not None:
            return f"{rank} was ended by signal {self.signal}"
        return f"{rank} failed" if self.code is None else f"{rank} exited with code {self.code}"


class Progress(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far the programs of a gang are."""

    step: Number | None = None
    """The lowest step of the ranks."""
    total: Number | None = None
    rate: Number | None = None
    """Steps a second."""
    eta_s: Number | None = None
    metrics: dict[str, Number] = {}
    """What rank 0 has reported."""
    at: Number | None = None
    """Unix time by the clock of rank 0."""

    @property
    def percent(self) -> float | None:
        """From 0 to 100; `None` if the number of steps is not known."""
        if self.step is None or not self.total or not 0 <= self.step <= self.total:
            return None
        return 100 * self.step / self.total

    def __str__(self) -> str:
        of = f" of {self.total:g}" if self.total else ""
        percent = "" if self.percent is None else f" ({self.percent:.0f} %)"
        parts = [f"step {self.step:g}{of}{percent}"] if self.step is not None else []
        parts += [f"{self.rate:.3g} steps/s"] if self.rate else []
        parts += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        return ", ".join(parts)


class SupervisorReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is known of the restarts and the progress of a gang. `None` means that it is not known."""

    restarts: tuple[Restart, ...] = ()
    """The last restarts, in order."""
    total: int | None = None
    """How many restarts there were, as far as they are known."""
    progress: Progress | None = None
    stopped_s: Number | None = None
    """How long the programs were stopped between restarts. Known at the end."""
    ran_s: Number | None = None
    """How long programs ran. Known at the end."""
    lost_s: Number | None = None
    """How much of that was lost. Known at the end."""
    is_final: bool = False
    """The supervisor of rank 0 has ended, and has reported all restarts."""
    pod: str = ""
    """The pod of rank 0. A gang that its queue has stopped, and that runs again, has others."""

    def with_line(self, line: SupervisorLine) -> SupervisorReport:
        """Return the report with what a line says."""
        match line.event:
            case "restart" if line.number is not None:
                return self._with_restart(line.to_restart(line.number))
            case "restarted" if line.number is not None:
                known = next((one for one in self.restarts if one.number == line.number), Restart(number=line.number))
                return self._with_restart(replace(known, took_s=line.took_s))
            case "progress":
                return replace(self, progress=line.to_progress())
            case "summary":
                return self._with_summary(line)
        return self

    def _with_restart(self, restart: Restart) -> SupervisorReport:
        others = [one for one in self.restarts if one.number != restart.number]
        kept = sorted([*others, restart], key=lambda one: one.number)[-RESTARTS_KEPT:]
        return replace(self, restarts=tuple(kept), total=max(self.total or 0, restart.number))

    def _with_summary(self, line: SupervisorLine) -> SupervisorReport:
        report = self  # a line may be too short for all restarts, of which earlier lines have told some
        for one in line.restarts:
            if one.number is not None:
                report = report._with_restart(one.to_restart(one.number))
        step = line.to_progress()
        return replace(
            report,
            total=report.total if line.restarts_total is None else max(line.restarts_total, 0),
            progress=self.progress if step.step is None else step,
            stopped_s=line.stopped_s,
            ran_s=line.ran_s,
            lost_s=line.lost_s,
            is_final=True,
        )


class StreamedTo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far logs were streamed into the log of a task (`tracking.logs.gang_streams`)."""

    log: str
    """Names the log of the task. Positions for another log are of no use."""
    process: str
    """Names the process that has streamed."""
    every_s: float = 0.0
    """After how many seconds the process writes its positions again; 0 if they are the last ones of the stream."""
    positions: dict[str, str] = {}
    """The positions by `LogSource.key`."""


class Progressed(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The mark on the Job of a gang whose logs are streamed (`ANNOTATION_PROGRESS`)."""

    report: SupervisorReport = SupervisorReport()
    streamed: StreamedTo | None = None


class SupervisorLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a supervisor. Fields that are not listed here are ignored."""

    event: str = ""
    message: str = ""
    at: Number | None = None
    number: Whole | None = None
    rank: Whole | None = None
    kind: str | None = None
    code: Whole | None = None
    signal: Whole | None = None
    step: Number | None = None
    total: Number | None = None
    rate: Number | None = None
    eta_s: Number | None = None
    metrics: dict[str, Number | None] | None = None
    took_s: Number | None = None
    lost_s: Number | None = None
    stopped_s: Number | None = None
    ran_s: Number | None = None
    restarts: tuple[SupervisorLine, ...] = ()
    restarts_total: Whole | None = None

    def to_restart(self, number: int) -> Restart:
        """Return the restart that the line describes."""
        line = replace(self, number=number, kind=(self.kind or "")[:NAME_CHARACTERS_MAX])
        return msgspec.convert(line, Restart, from_attributes=True)

    def to_progress(self) -> Progress:
        """Return the progress that the line describes."""
        given = (self.metrics or {}).items()
        metrics = {to_printable_line(name)[:NAME_CHARACTERS_MAX]: value for name, value in given if value is not None}
        line = replace(self, metrics=dict(list(metrics.items())[:METRICS_MAX]))
        return msgspec.convert(line, Progress, from_attributes=True)


def parse_line(line: bytes) -> tuple[bytes, SupervisorLine] | None:
    """Return what stands before the line of a supervisor in a line of a log, and that line; `None` if there is none.

    The program of the rank may have left an unfinished line, which the line of the supervisor follows, and which may
    itself have the beginning of such a line.
    """
    at = len(line)
    for _ in range(MARKS_MAX):
        at = line.rfind(LINE_START, max(0, len(line) - LINE_BYTES_MAX), at)
        if at < 0:
            break
        with suppress(*JSON_ERRORS):
            found = msgspec.json.decode(line[at + len(LINE_START) - 1 :], type=SupervisorLine)
            if message := cut_end(to_printable_line(found.message), MESSAGE_CHARACTERS_MAX) if found.event else "":
                return line[:at], replace(found, message=message)
    return None


def readable_line(before: bytes, line: SupervisorLine) -> bytes:
    """Return the text that is shown in place of a line of a supervisor."""
    return b" ".join(filter(None, (before.rstrip(), line.message.encode())))


def readable(text: bytes) -> bytes:
    """Return a text of several lines with the message in place of each line of a supervisor."""
    return b"\n".join(_map_lines(text, readable_line)) if LINE_START in text else text


def without_lines(text: str) -> str:
    """Return the text without the lines of supervisors: what the program itself has written."""
    if LINE_START.decode() not in text:
        return text
    lines = _map_lines(text.encode(errors="replace"), lambda before, _: before.rstrip() or None)
    return b"\n".join(lines).decode()


def _map_lines(text: bytes, change: Callable[[bytes, SupervisorLine], bytes | None]) -> Iterator[bytes]:
    for line in text.split(b"\n"):
        found = parse_line(line)
        changed = line if found is None else change(*found)
        if changed is not None:
            yield changed


class ReadableChunks:
    """Puts messages in place of the lines of supervisors in a log that arrives in chunks.

    Only what may be the beginning of such a line is held.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what is ready after the next chunk."""
        text = self._held + chunk
        at = self._unfinished(text)
        self._held = text[at:]
        return readable(text[:at])

    def end(self) -> bytes:
        """Return what is held."""
        held, self._held = self._held, b""
        return readable(held)

    @staticmethod
    def _unfinished(text: bytes) -> int:
        begins = text.rfind(b"\n") + 1
        at = text.find(LINE_START, max(begins, len(text) - LINE_BYTES_MAX))
        if at >= 0:
            return at
        tail = range(max(begins, len(text) - len(LINE_START) + 1), len(text))
        return next((at for at in tail if LINE_START.startswith(text[at:])), len(text))


def describe_restarts(report: SupervisorReport, limit: int) -> str:
    """Return what was done before a gang failed for good, as a sentence; empty if nothing is known of restarts."""
    if not report.total:
        return ""
    why = f", the last time because {report.restarts[-1].cause}" if report.restarts else ""
    return f"The programs were restarted in their pods {pluralize(report.total, 'time')} of {limit}{why}."


def to_time(at: Number | None) -> datetime | None:
    """Return a Unix time; `None` if it is none."""
    try:
        return None if at is None else datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return None


CPU: Final = "cpu"
MEMORY: Final = "memory"
GIB: Final = 2**30
_GPU_SUFFIX: Final = "/gpu"
_UNITS: Final = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))


class TimeUse(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for which a gang held what it requests, by what they were used for. All are known, or all are `None`."""

    useful_s: float | None = None
    lost_s: float | None = None
    waiting_s: float | None = None
    """While the gang assembled, and between restarts."""


def time_use_of(
    times: Mapping[str, datetime], *, succeeded: bool, restarts_max: int | None, report: SupervisorReport
) -> TimeUse | None:
    """Return what the time of one attempt was used for; `None` if it is not known when the attempt began and ended.

    :param times: The times of the gang, as in `GangEvent.times`.
    :param restarts_max: How often the programs may be restarted in place; `None` for a gang without supervisors.
    """
    ended = times.get("ended")
    if ended is None or "submitted" not in times:
        return None
    admitted = min(times.get("admitted", ended), ended)
    running = max(min(times.get("running", ended), ended), admitted)
    ran_s = (ended - running).total_seconds()
    losses = _losses(ran_s, succeeded=succeeded, restarts_max=restarts_max, report=report)
    if losses is None:
        return TimeUse()
    stopped_s, lost_s = losses
    return TimeUse(
        useful_s=round(max(ran_s - stopped_s - lost_s, 0.0), 3),
        lost_s=round(lost_s, 3),
        waiting_s=round((running - admitted).total_seconds() + stopped_s, 3),
    )


def _losses(
    ran_s: float, *, succeeded: bool, restarts_max: int | None, report: SupervisorReport
) -> tuple[float, float] | None:
    """Return how long the programs were stopped between restarts, and how much of their work was lost, in seconds."""
    if restarts_max is None:
        return 0.0, 0.0 if succeeded else ran_s
    if report.is_final and report.stopped_s is not None and report.lost_s is not None:
        stopped_s = min(max(float(report.stopped_s), 0.0), ran_s)
        lost_s = min(max(float(report.lost_s), 0.0), ran_s - stopped_s)
        if not succeeded:  # with the time until all pods had ended
            useful_s = max(float(report.ran_s or 0.0) - lost_s, 0.0)
            lost_s = max(ran_s - stopped_s - useful_s, lost_s)
        return stopped_s, lost_s
    return (0.0, 0.0) if succeeded and restarts_max == 0 else None


def add_uses(first: TimeUse | None, second: TimeUse | None) -> TimeUse | None:
    """Return the sum of two attempts, of which either may be missing. What is unknown of one is unknown of both."""
    if first is None or second is None:
        return first or second
    pairs = {name: (getattr(first, name), getattr(second, name)) for name in TimeUse.__struct_fields__}
    return TimeUse(**{name: None if None in pair else round(sum(pair), 3) for name, pair in pairs.items()})


def amounts_of(requests: Mapping[str, str]) -> dict[str, float]:
    """Return how much of each resource all ranks request together: cores, GiB of memory, or devices."""
    amounts = {}
    for name, quantity in requests.items():
        with suppress(ValueError, TypeError):
            amounts[name] = float(parse(quantity)) / (GIB if name == MEMORY else 1)
    return amounts


def describe_use(use: TimeUse, requests: Mapping[str, str], ranks: int) -> str:
    """Return text such as `32.8 GPU h, of which 30.9 useful, 1.2 lost, 0.7 waiting`.

    It counts GPUs, or else cores, or else ranks.
    """
    if use.useful_s is None or use.lost_s is None or use.waiting_s is None:
        return "unknown, because no summary was found in the log of rank 0"
    amounts = amounts_of(requests)
    gpus = next((amount for name, amount in amounts.items() if name.endswith(_GPU_SUFFIX) and amount), None)
    what, amount = ("GPU", gpus) if gpus is not None else ("CPU", amounts[CPU]) if CPU in amounts else ("rank", ranks)
    total_s = use.useful_s + use.lost_s + use.waiting_s
    unit_s, unit = next((each for each in _UNITS if total_s >= each[0]), _UNITS[-1])
    total, useful, lost, waiting = (
        f"{seconds * amount / unit_s:.1f}" for seconds in (total_s, use.useful_s, use.lost_s, use.waiting_s)
    )
    return f"{total} {what} {unit}, of which {useful} useful, {lost} lost, {waiting} waiting"
