"""The time limit of a Job: activeDeadlineSeconds, from the time limits of the task.

Triggerers enforce the limits of a task, and say which one has passed. The API server enforces this one if no triggerer
does, so that a gang that nobody is responsible for any more does not run forever. The limit counts from the start of
the Job, begins again when a queue resumes the Job, and does not count while the Job is suspended.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.labels import ANNOTATION_TIME_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.gang.state.job import Job

MARGIN_S: Final = 600
"""The triggerers' own deadlines pass earlier, also if all triggerers are restarted."""


class TimeLimit(Struct, frozen=True):
    """The time limit of a Job."""

    seconds: int
    """The value of activeDeadlineSeconds."""
    source: str
    """The parameters of the task from which the limit was computed, for messages."""
    is_of_try: bool = False
    """The limit holds for one try of the task, and the next try has the whole time again."""


def time_limit(spec: GangSpec, manifest: Mapping[str, Any]) -> TimeLimit | None:
    """Return the limit of the Job. `None` if the task has no limits, or if the manifest has a limit of its own."""
    if manifest.get("spec", {}).get("activeDeadlineSeconds") is not None:
        return None
    limits = []
    if spec.assemble_timeout_s is not None and spec.run_timeout_s is not None:
        source = f"assemble_timeout ({spec.assemble_timeout_s:g} s) and run_timeout ({spec.run_timeout_s:g} s)"
        limits.append(_with_margin(spec.assemble_timeout_s + spec.run_timeout_s, source))
    if spec.execution_timeout_s is not None:
        source = f"execution_timeout ({spec.execution_timeout_s:g} s)"
        limits.append(_with_margin(spec.execution_timeout_s, source, is_of_try=True))
    return min(limits, key=lambda limit: limit.seconds, default=None)


def limit_patch_on_adoption(job: Job, limit: TimeLimit | None) -> dict[str, Any]:
    """Return the merge patch of the limit of a Job that another try adopts; empty if the limit stays as it is.

    :param limit: The limit of the try that adopts the Job.
    """
    before_s = job.active_deadline_s
    if job.time_limit is None or before_s is None or job.is_ended or job.is_halted:
        return {}
    if limit is None:
        return {"metadata": {"annotations": {ANNOTATION_TIME_LIMIT: None}}, "spec": {"activeDeadlineSeconds": None}}
    # The Job is younger than its limit. So the sum leaves the try its whole time, whatever the clocks say.
    seconds = before_s + limit.seconds if limit.is_of_try else max(before_s, limit.seconds)
    if (seconds, limit.source) == (before_s, job.time_limit):
        return {}
    return {
        "metadata": {"annotations": {ANNOTATION_TIME_LIMIT: limit.source}},
        "spec": {"activeDeadlineSeconds": seconds},
    }


def _with_margin(seconds: float, source: str, *, is_of_try: bool = False) -> TimeLimit:
    return TimeLimit(math.ceil(seconds) + MARGIN_S, source, is_of_try)
