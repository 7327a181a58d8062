"""Reports what the time of a gang that has ended was used for: in the log of its task, and as metrics.

A worker and a triggerer end tasks, so both report. `docs/operations.md` lists the metrics.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.outcome.time_use import describe_use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent

log = logging.getLogger(__name__)

PREFIX: Final = "gangjobs."
USES: Final = ("queued", "assembling", "useful", "lost", "stopped")
HOUR_USES: Final = ("useful", "lost", "waiting")
"""Last parts of the names of metrics, and fields of `gang.outcome.time_use`."""


def report_use(event: GangEvent, dag_id: str, task_id: str, task_log: Logger) -> None:
    """Log what the time of a gang that has ended was used for, and send it as metrics. Does not raise.

    :param task_log: The log of the task.
    """
    if event.time_use is not None:
        task_log.info("%s", describe_use(event.time_use, event.counts.get("ranks", 0) or len(event.ranks)))
    try:
        for name, value, tags in _metrics_of(event):
            airflow_stats().incr(f"{PREFIX}{name}", value, tags={"dag_id": dag_id, "task_id": task_id, **tags})
    except Exception as error:  # a metrics library may raise anything
        log.debug("The metrics of gang %s were not sent: %r", event.ref, error)


def _metrics_of(event: GangEvent) -> Iterator[tuple[str, int, dict[str, str]]]:
    if event.restarts_total:
        yield "restarts", event.restarts_total, {}
    if event.time_use is None:
        return
    for use in USES:
        if seconds := round(getattr(event.time_use, f"{use}_s") or 0):
            yield f"time_s.{use}", seconds, {}
    for resource, hours in event.time_use.hours.items():
        for use in HOUR_USES:
            if seconds := round((getattr(hours, use) or 0.0) * 3600):
                yield f"resource_s.{use}", seconds, {"resource": resource}


def airflow_stats() -> Any:
    """Return the stats of Airflow, which `[metrics]` configures."""
    try:
        from airflow.observability.stats import Stats
    except ImportError:  # Airflow before 3.2
        from airflow.stats import Stats  # type: ignore[assignment]
    return Stats
