"""What the time of a gang was used for, and how much of each resource that was. Pure.

A gang holds what it requests from the moment at which it may run until it ends. Work counts as lost if it was done
again, or if the gang did not succeed: since the last checkpoint, if ranks report checkpoints, and otherwise from the
start of the program. A gang that its queue has stopped is counted from its last start on.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations at run time
from datetime import datetime  # noqa: TC003
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from airflow_provider_gangjobs.kube.quantity import parse
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorReport

CPU: Final = "cpu"
MEMORY: Final = "memory"
GIB: Final = 2**30
_GPU_SUFFIX: Final = "/gpu"
_UNITS: Final = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))


class ResourceHours(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Hours of one resource: of cores, of GiB of memory, or of devices. `None` is unknown."""

    total: float
    useful: float | None = None
    lost: float | None = None
    waiting: float | None = None
    """While the gang assembled, and between restarts."""


class TimeUse(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Seconds of a gang, by what they were used for. `None` is unknown."""

    attempts: int = 1
    """How many attempts in a row these are, which is more than one after disruptions."""
    queued_s: float | None = None
    assembling_s: float | None = None
    useful_s: float | None = None
    lost_s: float | None = None
    stopped_s: float | None = None
    """Between restarts."""
    held_s: float | None = None
    """How long the gang held what it requests."""
    restarts: int | None = None
    hours: dict[str, ResourceHours] = {}
    """By resource: what all ranks requested together, times the time for which they held it."""


Use = TypeVar("Use", TimeUse, ResourceHours)


def time_use_of(
    times: Mapping[str, datetime],
    requests: Mapping[str, str],
    *,
    succeeded: bool,
    restarts_max: int | None,
    report: SupervisorReport,
) -> TimeUse | None:
    """Return what the time of one attempt was used for; `None` if it is not known when the attempt began and ended.

    :param times: The times of the gang, as in `GangEvent.times`.
    :param requests: What all ranks request together.
    :param restarts_max: How often the programs may be restarted in place; `None` for a gang without supervisors.
    """
    ended, submitted = times.get("ended"), times.get("submitted")
    if ended is None or submitted is None:
        return None
    admitted = min(times.get("admitted", ended), ended)
    running = max(min(times.get("running", ended), ended), admitted)
    ran_s = (ended - running).total_seconds()
    stopped_s, lost_s = _losses(ran_s, succeeded=succeeded, restarts_max=restarts_max, report=report)
    useful_s = None if stopped_s is None or lost_s is None else max(ran_s - stopped_s - lost_s, 0.0)
    seconds: dict[str, float | None] = {
        "queued_s": max((admitted - submitted).total_seconds(), 0.0),
        "assembling_s": (running - admitted).total_seconds(),
        "useful_s": useful_s,
        "lost_s": lost_s,
        "stopped_s": stopped_s,
        "held_s": (ended - admitted).total_seconds(),
    }
    rounded: dict[str, Any] = {name: None if value is None else round(value, 3) for name, value in seconds.items()}
    return TimeUse(
        **rounded,
        restarts=report.total if restarts_max else 0,
        hours=_hours(requests, seconds),
    )


def _losses(
    ran_s: float, *, succeeded: bool, restarts_max: int | None, report: SupervisorReport
) -> tuple[float | None, float | None]:
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
    return (0.0, 0.0) if succeeded and restarts_max == 0 else (None, None)


def _hours(requests: Mapping[str, str], seconds: Mapping[str, float | None]) -> dict[str, ResourceHours]:
    hours = {}
    for name, amount in requests.items():
        try:
            number = float(parse(amount)) / (GIB if name == MEMORY else 1)
        except (ValueError, TypeError):
            continue
        assembling_s, stopped_s = seconds["assembling_s"], seconds["stopped_s"]
        waiting_s = None if stopped_s is None or assembling_s is None else assembling_s + stopped_s
        hours[name] = ResourceHours(
            total=_product(number, seconds["held_s"]) or 0.0,
            useful=_product(number, seconds["useful_s"]),
            lost=_product(number, seconds["lost_s"]),
            waiting=_product(number, waiting_s),
        )
    return hours


def _product(amount: float, seconds: float | None) -> float | None:
    return None if seconds is None else round(amount * seconds / 3600, 6)


def add_uses(first: TimeUse | None, second: TimeUse | None) -> TimeUse | None:
    """Return the sum of two attempts, of which either may be missing. What is unknown of one is unknown of both."""
    if first is None or second is None:
        return first or second
    none = ResourceHours(total=0.0, useful=0.0, lost=0.0, waiting=0.0)
    names = sorted({*first.hours, *second.hours})
    hours = {name: _sum(first.hours.get(name, none), second.hours.get(name, none)) for name in names}
    return replace(_sum(first, second), hours=hours)


def _sum(first: Use, second: Use) -> Use:
    """Return the sums of all numbers of two uses. What is unknown of one is unknown of both."""
    numbers = {
        name: (getattr(first, name), getattr(second, name)) for name in first.__struct_fields__ if name != "hours"
    }
    return replace(first, **{name: None if None in pair else round(sum(pair), 6) for name, pair in numbers.items()})


def describe_use(use: TimeUse, ranks: int) -> str:
    """Return one line such as `8 ranks x 4.1 h: 32.8 GPU h, 30.9 useful, 1.2 lost in 2 restarts, 0.7 waiting`."""
    held_s = use.held_s or 0.0
    per, unit = _unit_of(held_s)
    what, hours = _main_resource(use, ranks)

    def amount(number: float | None) -> str:
        return "unknown" if number is None else f"{number * 3600 / per:.1f}"

    total = f"{pluralize(ranks, 'rank')} x {held_s / per:.1f} {unit}: {amount(hours.total)} {what} {unit}"
    parts = f"{amount(hours.useful)} useful, {amount(hours.lost)} lost{_ends(use)}, {amount(hours.waiting)} waiting"
    if hours.useful is None and hours.lost is None:
        parts = "how much was useful is unknown, because no summary was found in the log of rank 0"
    queued = f"; queued for {_span(use.queued_s)} before" if use.queued_s is not None and use.queued_s >= 1 else ""
    return f"{total}, {parts}{queued}"


def _ends(use: TimeUse) -> str:
    """Return in what the work was lost, as the end of a phrase."""
    ends = [pluralize(use.restarts, "restart")] if use.restarts else []
    ends += [pluralize(use.attempts, "attempt")] if use.attempts > 1 else []
    return f" in {' and '.join(ends)}" if ends else ""


def _main_resource(use: TimeUse, ranks: int) -> tuple[str, ResourceHours]:
    """Return the resource that the line shows: GPUs, or else cores, or else ranks."""
    for name, hours in use.hours.items():
        if name.endswith(_GPU_SUFFIX) and hours.total:
            return "GPU", hours
    if CPU in use.hours:
        return "CPU", use.hours[CPU]
    seconds = {name: getattr(use, name) for name in ("held_s", "useful_s", "lost_s", "stopped_s", "assembling_s")}
    return "rank", _hours({"rank": str(ranks)}, seconds)["rank"]


def _unit_of(seconds: float) -> tuple[float, str]:
    """Return the seconds of the unit in which a span is written, and its name."""
    return next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])


def _span(seconds: float) -> str:
    per, unit = _unit_of(seconds)
    return f"{seconds / per:.1f} {unit}"
