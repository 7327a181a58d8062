"""What the tab shows of a view: the bar of phases, the list of details, and the rows. Pure. Nothing is judged here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_gangjobs.attempt.messages import describe_placement
from airflow_provider_gangjobs.gang.outcome.time_use import describe_use
from airflow_provider_gangjobs.gang.view import GangSnapshot, GangView, view_end, view_gang
from airflow_provider_gangjobs.plugins.page_text import format_requests

if TYPE_CHECKING:
    from airflow_provider_gangjobs.plugins.locator import GangLocator


ROWS_MAX: Final = 200
ATTEMPTS_MAX: Final = 20
SPAN_WIDTH_MIN: Final = 2.0
"""In percent of the bar, so that a short phase is visible."""
JOB_NOT_FOUND: Final = "The gang's Job does not exist in the cluster."
FROM_END_EVENT: Final = "The page shows what Airflow recorded when the gang ended."
JOB_DELETED: Final = "The Job was deleted after the end of the gang. The page shows what Airflow recorded of it."


def view_task(locator: GangLocator, snapshot: GangSnapshot | None, error: str, now: datetime) -> GangView | None:
    """Return the view of the gang of a task; `None` if neither the cluster nor Airflow has it.

    :param snapshot: `None` if the Job does not exist, or if the cluster could not be read.
    :param error: Why the cluster could not be read; empty if it was read.
    """
    if snapshot is not None:
        ends_by = datetime.fromtimestamp(locator.deadline, UTC) if locator.deadline is not None else None
        return view_gang(snapshot, locator.end, deadlines=locator.deadlines, ends_by=ends_by, now=now)
    if locator.end is None:
        return None
    return view_end(locator.end, locator.key, notes=(f"{error} {FROM_END_EVENT}" if error else JOB_DELETED,))


class BarPart(NamedTuple):
    """A phase as a part of the bar."""

    phase: str
    began: datetime
    seconds: float
    start: float
    """In percent of the width of the bar, and so is `width`."""
    width: float

    @property
    def style(self) -> str:
        """The class of the element."""
        return f"of-{self.phase.replace(' ', '-')}"


def bar_of(view: GangView, now: datetime) -> list[BarPart]:
    """Return the phases of a gang as parts of a bar."""
    spans = [(phase, at, lasted / timedelta(seconds=1)) for phase, at, lasted in view.spans(now)]
    whole = sum(seconds for _, _, seconds in spans)
    widths = [max(SPAN_WIDTH_MIN, 100 * seconds / whole) for _, _, seconds in spans]
    found, start = [], 0.0
    for (phase, at, seconds), width in zip(spans, widths, strict=True):
        part = 100 * width / sum(widths)
        found.append(BarPart(phase, at, seconds, round(start, 2), round(part, 2)))
        start += part
    return found


def details_of(view: GangView) -> dict[str, str]:
    """Return names and values, without those that are empty."""
    progress = view.progress
    left_s = progress.eta_s if progress is not None and not view.is_over else None
    details = {
        "Roles": ", ".join(f"{size} {role}" for role, size in view.roles.items()),
        "Ranks": f"{view.ranks:,}" if view.ranks else "",
        "Requests": format_requests(view.requests),
        "Queue": view.queue,
        "Placement": describe_placement(view.placement) if view.placement else "",
        "Airflow installation": view.installation,
        "Progress": str(progress) if progress is not None else "",
        "Estimated time left": _span(left_s) if left_s is not None else "",
        "Restarts in place": view.restarts_told,
        "Time used": describe_use(view.time_use, view.requests, view.ranks) if view.time_use is not None else "",
    }
    return {name: value for name, value in details.items() if value}


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min" if seconds >= 60 else "1 min"


def notes_of(view: GangView) -> list[str]:
    """Return the notes of a view, and what the connection may not read."""
    return [*view.notes, *(f"The connection may not list {what} in this namespace." for what in view.unread)]


_COLUMNS: Final = ("has_log", "exit_code", "seconds", "node", "restarts", "message", "links")


def columns_of(view: GangView) -> frozenset[str]:
    """Return the fields of rows that some row has."""
    rows = view.pods[:ROWS_MAX]
    return frozenset(name for name in _COLUMNS if any(getattr(row, name) not in (None, "", 0, {}) for row in rows))
