"""Validates the status of a Job and its changes.

A finished Job stays finished, has no running pods, and has counted all its pods (KEP-2307, KEP-4368). The checks are
those of `validateJobStatus` and `getStatusValidationOptions`, and apply to what the write changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.clock import parse_time
from gangjobs_sandbox.errors import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gangjobs_sandbox.store import Object

__all__ = ["status_causes"]

_COUNTERS = ("active", "succeeded", "failed", "ready", "terminating")
_TERMINAL = ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")
_CONFLICTS = (
    ("Complete", "Failed"),
    ("Complete", "FailureTarget"),
    ("SuccessCriteriaMet", "Failed"),
    ("SuccessCriteriaMet", "FailureTarget"),
)
_REQUIRED_INTERIM = (("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet"))


def status_causes(new: Object, old: Object) -> list[Cause]:
    """Return all errors in a write to a Job's status."""
    status, before = new.get("status") or {}, old.get("status") or {}
    causes = [
        errors.invalid_value(f"status.{field}", status[field], "must be greater than or equal to 0")
        for field in _COUNTERS
        if (status.get(field) or 0) < 0
    ]
    causes.extend(_time_causes(new["spec"], status, before))
    causes.extend(_condition_causes(_true_conditions(status), _true_conditions(before)))
    causes.extend(_finished_causes(new["spec"], status, before))
    causes.extend(_counter_causes(new["spec"], status, before))
    causes.extend(_index_causes(new["spec"], status, before))
    return causes


def _true_conditions(status: Mapping[str, Any]) -> set[str]:
    return {c["type"] for c in status.get("conditions") or () if c.get("status") == "True"}


def _omitted(detail: str) -> Cause:
    """Build a cause about the whole list of conditions. The message does not repeat the list."""
    return Cause("FieldValueInvalid", "status.conditions", f"Invalid value: {detail}")


def _condition_causes(now: set[str], before: set[str]) -> Iterator[Cause]:
    for one, other in _CONFLICTS:
        if {one, other} <= now:
            yield _omitted(f"cannot set {one}=True and {other}=true conditions")
    for final, interim in _REQUIRED_INTERIM:
        if final in now and final not in before and interim not in now:
            yield _omitted(f"cannot set {final}=True condition without the {interim}=true condition")
    for kind in _TERMINAL:
        if kind in before and kind not in now:
            yield _omitted(f"cannot disable the terminal {kind}=True condition")


def _finished_causes(spec: Mapping[str, Any], status: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Cause]:
    """Return the errors in the status of a finished Job. After the write that finishes the Job, only changes count."""
    finals = {"Complete", "Failed"}
    if not finals & _true_conditions(status):
        return
    ends_now = not finals & _true_conditions(before)
    for field, is_wrong, detail in (
        ("active", status.get("active"), "active>0 is invalid for finished job"),
        ("uncountedTerminatedPods", any(_uncounted(status).values()), "must be empty for finished job"),
        ("terminating", status.get("terminating"), "terminating>0 is invalid for finished job"),
    ):
        if is_wrong and (ends_now or status.get(field) != before.get(field)):
            yield errors.invalid_value(f"status.{field}", status[field], detail)
    never_ran = spec.get("suspend") and spec.get("completions") == 0
    if not status.get("startTime") and ends_now and not never_ran:
        yield errors.required("status.startTime", "startTime is required for finished job")


def _uncounted(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return status.get("uncountedTerminatedPods") or {}


def _time_causes(spec: Mapping[str, Any], status: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Cause]:
    started, completed = status.get("startTime"), status.get("completionTime")
    is_complete = "Complete" in _true_conditions(status)
    if completed and not is_complete:
        detail = "cannot set completionTime when there is no Complete=True condition"
        yield errors.invalid_value("status.completionTime", completed, detail)
    if is_complete and not completed:
        yield errors.required("status.completionTime", "completionTime is required for Complete jobs")
    if started and completed and parse_time(completed) < parse_time(started):
        yield errors.invalid_value("status.completionTime", completed, "must be equal to or after `startTime`")
    if before.get("completionTime") and is_complete and completed != before["completionTime"]:
        yield errors.immutable("status.completionTime", completed)
    resumes = "Suspended" in _true_conditions(before) and "Suspended" not in _true_conditions(status)
    if before.get("startTime") and started != before["startTime"] and not spec.get("suspend") and not resumes:
        yield errors.invalid_value("status.startTime", started, "field is immutable for unsuspended job once set")


def _counter_causes(spec: Mapping[str, Any], status: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Cause]:
    elastic = spec["completionMode"] == "Indexed" and spec.get("completions") == spec["parallelism"]
    for field in ("failed",) if elastic else ("succeeded", "failed"):
        if (status.get(field) or 0) < (before.get(field) or 0):
            yield errors.invalid_value(
                f"status.{field}", status.get(field) or 0, f"cannot decrease the {field} counter"
            )
    changed = any(status.get(field) != before.get(field) for field in ("ready", "active"))
    if changed and (status.get("ready") or 0) > (status.get("active") or 0):
        yield errors.invalid_value("status.ready", status.get("ready") or 0, "cannot set more ready pods than active")


def _index_causes(spec: Mapping[str, Any], status: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Cause]:
    indexes = status.get("completedIndexes") or ""
    if indexes == (before.get("completedIndexes") or "") or not indexes:
        return
    field = "status.completedIndexes"
    if spec["completionMode"] != "Indexed":
        detail = "cannot set non-empty completedIndexes when non-indexed completion mode"
        yield errors.invalid_value(field, indexes, detail)
    elif problem := _problem_with_indexes(indexes, spec.get("completions") or 0):
        yield errors.invalid_value(field, indexes, f"error parsing completedIndexes: {problem}")


def _problem_with_indexes(text: str, completions: int) -> str | None:
    last = -1
    for part in text.split(","):
        bounds = part.split("-")
        if len(bounds) > 2:
            rule = "an index interval can have at most two parts separated by '-'"
            return f'the fragment "{part}" violates the requirement that {rule}'
        if wrong := next((bound for bound in bounds if not bound.isdecimal()), None):
            return f'cannot convert string to integer for index: "{wrong}"'
        numbers = [int(bound) for bound in bounds]
        if numbers[-1] >= completions:
            return f'too large index: "{numbers[-1]}"'
        if numbers[0] <= last or numbers != sorted(numbers):
            return f"non-increasing order, previous: {last}, current: {numbers[0]}"
        last = numbers[-1]
    return None
