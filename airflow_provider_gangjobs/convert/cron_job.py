"""A CronJob is a DAG with a schedule, whose task is its Job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.convert import job
from airflow_provider_gangjobs.convert.dag_source import quoted
from airflow_provider_gangjobs.convert.task import Code, Task

if TYPE_CHECKING:
    from airflow_provider_gangjobs.convert.documents import Document

_ZONE: Final = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)")
"""The time zone of a schedule before Kubernetes had the field `timeZone`, with which it refuses this one."""
_IDENTITY: Final = ("name", "generateName", "namespace")
_FIELD: Final = r"(?:\d|[A-Za-z]{3}|[*/,-])+"
_SCHEDULE: Final = re.compile(rf"@[a-z]+|(?:{_FIELD} ){{4}}{_FIELD}")
"""The five fields of Kubernetes, or a word. Airflow also reads fields of seconds and letters such as `L` and `R`."""


def convert(document: Document) -> Task:
    """Return the workload of a CronJob.

    Raises:
        ConversionError: Kubernetes or Airflow would refuse the schedule or the time zone, or the schedule has no date.
    """
    spec = dict(document.data["spec"])
    template, schedule, zone = spec.pop("jobTemplate"), spec.pop("schedule"), spec.pop("timeZone", None)
    own = {name: value for name, value in document.data["metadata"].items() if name in _IDENTITY}
    metadata = {**template.get("metadata", {}), **own}
    task = job.convert(replace(document, data={**document.data, "metadata": metadata, "spec": template["spec"]}))
    if zone is None and (found := _ZONE.fullmatch(schedule)):
        zone, schedule = found[1], found[2]
    schedule = " ".join(schedule.replace("?", "*").split())  # they mean the same in Kubernetes
    _require_dates(document, schedule, "UTC" if zone is None else zone)
    task.dag["schedule"] = schedule
    if zone is not None:
        task.dag["schedule"] = Code(f"CronTriggerTimetable({quoted(schedule)}, timezone={quoted(zone)})")
    policy = spec.pop("concurrencyPolicy", "Allow")
    if policy != "Allow":
        task.dag["max_active_runs"] = 1
    if policy == "Replace":
        task.note("concurrencyPolicy was Replace: a run waits for the end of the one before, and does not end it")
    if spec.pop("suspend", False):
        task.dag["is_paused_upon_creation"] = True
    task.leave_out(spec)
    return task


def _require_dates(document: Document, schedule: str, zone: str) -> None:
    """Ask the timetable of the DAG for a date, because the DAG would fail only when Airflow reads it."""
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.trigger import CronTriggerTimetable
    from pendulum import now

    try:
        timetable = CronTriggerTimetable("@daily", timezone=zone)
    except ValueError as error:
        remedy = "Give a name of the IANA database, such as Europe/Zurich"
        raise document.error(f'has the unknown time zone "{zone}"', remedy, zone or "timeZone:") from error
    try:
        timetable = CronTriggerTimetable(schedule if _SCHEDULE.fullmatch(schedule) else "", timezone=zone)
        timetable.next_dagrun_info(last_automated_data_interval=None, restriction=TimeRestriction(now(), None, True))
    except ValueError as error:
        remedy = "Give the five fields of a cron expression that has dates, or a word such as @daily"
        raise document.error(f'has the schedule "{schedule}"', remedy, "schedule:") from error
