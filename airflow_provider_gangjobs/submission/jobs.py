"""What a stored Job tells about its submission. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.labels import (
    ANNOTATION_DELIVERED,
    ANNOTATION_DISRUPTIONS,
    ANNOTATION_HALTED,
    ANNOTATION_SPEC_FIELDS,
    LABEL_ATTEMPT,
    LABEL_DROPPED,
    LABEL_KUEUE_QUEUE,
)

Job = Mapping[str, Any]


class JobState(StrEnum):
    """Where a Job stands, as far as another submission of the same task is concerned."""

    LIVE = "live"
    """Submitted, perhaps half, and not ended."""
    SUCCEEDED = "succeeded"
    """Complete, and nobody has been told yet."""
    FAILED = "failed"
    DELIVERED = "delivered"
    """Ended, and its outcome was handed over."""
    HALTED = "halted"
    """Suspended for good."""
    TERMINATING = "terminating"
    DROPPED = "dropped"
    """Its submission was deleted; the Job was kept, and is nobody's."""


def state_of(job: Job) -> JobState:
    """The state; only final conditions count, interim ones are still live."""
    metadata = job["metadata"]
    if "deletionTimestamp" in metadata:
        return JobState.TERMINATING
    if LABEL_DROPPED in (metadata.get("labels") or {}):
        return JobState.DROPPED
    if annotation(job, ANNOTATION_DELIVERED) is not None:
        return JobState.DELIVERED
    if has_condition(job, "Complete"):
        return JobState.SUCCEEDED
    if has_condition(job, "Failed"):
        return JobState.FAILED
    return JobState.LIVE if annotation(job, ANNOTATION_HALTED) is None else JobState.HALTED


def has_condition(job: Job, kind: str) -> bool:
    """Whether a condition is True."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)


def annotation(job: Job, name: str) -> str | None:
    """An annotation's value, or None."""
    value = (job["metadata"].get("annotations") or {}).get(name)
    return None if value is None else str(value)


def attempt_number(job: Job) -> int:
    """The attempt; 0 if the label was taken away."""
    value = str((job["metadata"].get("labels") or {}).get(LABEL_ATTEMPT, ""))
    return int(value) if value.isdecimal() else 0


def disruptions_before(job: Job) -> int:
    """How many attempts in a row were lost to disruptions before this one."""
    value = annotation(job, ANNOTATION_DISRUPTIONS) or ""
    return int(value) if value.isdecimal() else 0


def is_suspended(job: Job) -> bool:
    """Whether the Job has not been let run, or not any more."""
    return bool(job["spec"].get("suspend"))


def never_ran(job: Job) -> bool:
    """Whether the Job is as it was created: suspended, and nothing was ever started by it.

    One in a queue of Kueue is not counted as such: Kueue may have stopped it after it ran.
    """
    status = job.get("status") or {}
    started = any(status.get(name) for name in ("startTime", "active", "succeeded", "failed", "terminating"))
    return is_suspended(job) and not started and not is_queued(job)


def is_queued(job: Job) -> bool:
    """Whether Kueue decides when the Job runs."""
    return LABEL_KUEUE_QUEUE in (job["metadata"].get("labels") or {})


def is_left_to_others(job: Job) -> bool:
    """Whether someone else starts the Job: Kueue, or the user who submitted it with `keep_suspended`."""
    return is_queued(job) or "keep_suspended" in given_digests(job)


def given_digests(job: Job) -> dict[str, str]:
    """Digest of each parameter that the Job was submitted with; empty if it does not tell."""
    try:
        given = json.loads(annotation(job, ANNOTATION_SPEC_FIELDS) or "null")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def ref_of(job: Job) -> GangRef:
    """Namespace, name and uid."""
    metadata = job["metadata"]
    return GangRef(metadata["namespace"], metadata["name"], metadata["uid"])
