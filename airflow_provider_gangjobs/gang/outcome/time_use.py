"""For how long what a gang requested was useful, lost, or waited. Pure.

A gang holds what it requests from the moment at which it may run until it ends. Work counts as lost if it was done
again, or if the gang did not succeed: since the last checkpoint, if ranks report checkpoints, and otherwise from the
start of the program. A gang that its queue has stopped is counted from its last start on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from airflow_provider_gangjobs.kube.quantity import parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorReport

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
