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
_SYNONYMS: Final = {"@annually": "@yearly", "@midnight": "@daily"}
"""Words of Kubernetes that Airflow does not know."""
_HISTORY: Final = "Airflow keeps the history of the runs"
_CURES: Final = {
    "startingDeadlineSeconds": "Airflow starts a late run as soon as it can, and no run of the past",
    "successfulJobsHistoryLimit": _HISTORY,
    "failedJobsHistoryLimit": _HISTORY,
}


def convert(document: Document) -> Task:
    """Return the workload of a CronJob.

    Raises:
        ConversionError: the schedule is no cron expression.
    """
    spec = dict(document.data["spec"])
    template, schedule, zone = spec.pop("jobTemplate"), spec.pop("schedule"), spec.pop("timeZone", None)
    own = {name: document.data["metadata"][name] for name in ("name", "namespace") if name in document.data["metadata"]}
    metadata = {**template.get("metadata", {}), **own}
    task = job.convert(replace(document, data={**document.data, "metadata": metadata, "spec": template["spec"]}))
    if found := _ZONE.fullmatch(schedule):
        zone, schedule = found[1], found[2]
    if schedule.startswith("@every"):
        raise document.error(f"has the schedule {schedule}", "Give a cron expression", "schedule")
    schedule = _SYNONYMS.get(str(schedule), str(schedule))
    task.dag["schedule"] = schedule
    if zone:
        task.dag["schedule"] = Code(f"CronTriggerTimetable({quoted(schedule)}, timezone={quoted(str(zone))})")
    policy = spec.pop("concurrencyPolicy", "Allow")
    if policy != "Allow":
        task.dag["max_active_runs"] = 1
    if policy == "Replace":
        task.note("concurrencyPolicy was Replace: a run waits for the end of the one before, and does not end it")
    if spec.pop("suspend", False):
        task.dag["is_paused_upon_creation"] = True
    task.leave_out(spec, _CURES)
    return task
