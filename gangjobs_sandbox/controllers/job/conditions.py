"""The conditions of a Job: the interim conditions that decide its result, and the final conditions that follow. Pure.

`SuccessCriteriaMet` and `FailureTarget` say how the Job will end while pods may still run. `Complete` and `Failed`
follow when every pod is terminal and counted (KEP-3939 and KEP-4368, both always on since 1.35).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.controllers import meta
from gangjobs_sandbox.controllers.meta import Obj, find_condition, has_condition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

SUCCESS_CRITERIA_MET = "SuccessCriteriaMet"
FAILURE_TARGET = "FailureTarget"
COMPLETE = "Complete"
FAILED = "Failed"
SUSPENDED = "Suspended"

_FINAL = {SUCCESS_CRITERIA_MET: COMPLETE, FAILURE_TARGET: FAILED}

_FAILURES = {
    "BackoffLimitExceeded": "Job has reached the specified backoff limit",
    "DeadlineExceeded": "Job was active longer than specified deadline",
    "MaxFailedIndexesExceeded": "Job has exceeded the specified maximal number of failed indexes",
    "FailedIndexes": "Job has failed indexes",
}


def new(kind: str, status: str, reason: str, message: str, now: datetime) -> Obj:
    """Build a Job condition. Unlike conditions of other kinds, it has a probe time."""
    return {**meta.condition(kind, status, reason, message, now), "lastProbeTime": timestamp(now)}


def failure(reason: str, now: datetime, message: str | None = None) -> Obj:
    """Build the interim condition of a Job that is going to fail."""
    return new(FAILURE_TARGET, "True", reason, message or _FAILURES[reason], now)


def completions_reached(now: datetime) -> Obj:
    """Build the interim condition of a Job whose pods have succeeded."""
    return new(SUCCESS_CRITERIA_MET, "True", "CompletionsReached", "Reached expected number of succeeded pods", now)


def success_policy_met(message: str, now: datetime) -> Obj:
    """Build the interim condition of a Job whose success policy is met."""
    return new(SUCCESS_CRITERIA_MET, "True", "SuccessPolicy", message, now)


def interim_of(job: Mapping[str, Any]) -> Obj | None:
    """Return the decision that an earlier sync has recorded."""
    for kind in (SUCCESS_CRITERIA_MET, FAILURE_TARGET):
        if has_condition(job, kind):
            return find_condition(job, kind)
    return None


def final_for(interim: Mapping[str, Any], now: datetime) -> Obj:
    """Return `Complete` or `Failed`, with the reason and message of the interim condition."""
    return new(_FINAL[interim["type"]], "True", interim.get("reason", ""), interim.get("message", ""), now)


def is_success(interim: Mapping[str, Any] | None) -> bool:
    """Return whether the interim condition, if any, decides that the Job succeeds."""
    return interim is not None and interim["type"] == SUCCESS_CRITERIA_MET


def is_finished(job: Mapping[str, Any]) -> bool:
    """Return whether the Job has the condition `Complete` or `Failed`."""
    return has_condition(job, COMPLETE) or has_condition(job, FAILED)


def ensure(status: Obj, wanted: Obj) -> bool:
    """Add the condition to the status if it changes anything. Returns whether the status changed.

    A `False` condition is not added if the status has no condition of that type.
    """
    conditions: list[Obj] = status.setdefault("conditions", [])
    for position, old in enumerate(conditions):
        if old["type"] == wanted["type"]:
            if all(old.get(field) == wanted[field] for field in ("status", "reason", "message")):
                return False
            conditions[position] = wanted
            return True
    if wanted["status"] == "False":
        return False
    conditions.append(wanted)
    return True
