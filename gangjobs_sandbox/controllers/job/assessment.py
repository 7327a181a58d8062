"""Assesses a Job and its pods: which pods have ended, which run, and whether the result of the Job is decided. Pure.

By a success policy (KEP-3998), some indexes of an Indexed Job are enough for its success.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.job import conditions, failure_policy
from gangjobs_sandbox.controllers.job.indexed_job import Indexes, awaiting_replacement, failed_indexes, valid_index
from gangjobs_sandbox.controllers.job.pods import is_ready, restarts_of
from gangjobs_sandbox.controllers.meta import Obj, parse_time, uid_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gangjobs_sandbox.controllers.job.backoff import BackoffRecord
    from gangjobs_sandbox.controllers.job.pods import ClassifiedPods


def message_of_met_rule(policy: Mapping[str, Any] | None, succeeded: Indexes, completions: int) -> str | None:
    """Return the message of the first rule that is met, or None if no rule is met."""
    if policy is None or not succeeded:
        return None
    for position, rule in enumerate(policy.get("rules") or ()):
        if _is_met(rule, succeeded, completions):
            return f"Matched rules at index {position}"
    return None


def _is_met(rule: Mapping[str, Any], succeeded: Indexes, completions: int) -> bool:
    count = rule.get("succeededCount")
    if rule.get("succeededIndexes") is None:
        return count is not None and len(succeeded) >= count
    wanted = Indexes.parse(rule["succeededIndexes"], completions)
    matched = sum(1 for index in wanted if index in succeeded)
    return bool(wanted) and (matched == len(wanted) or (count is not None and matched >= count))


@dataclass
class Assessment:
    """The counts of one sync. `active`, `ready` and `terminating` include the changes that the sync then makes."""

    active_pods: list[Obj]
    terminating_pods: list[Obj]
    active: int
    ready: int
    terminating: int
    succeeded: int
    failed: int
    backoff: BackoffRecord
    indexes: IndexState | None = None
    """Set for Indexed Jobs only."""
    decision: Obj | None = None
    """The interim condition, which this sync or an earlier one has decided."""

    def count_deleted(self, pods: Iterable[Obj]) -> None:
        """Update the counts after the deletion of these active pods."""
        for pod in pods:
            self.active -= 1
            self.terminating += 1
            self.ready -= is_ready(pod)


@dataclass(frozen=True)
class IndexState:
    """The indexes that have ended. `failed` is None without backoffLimitPerIndex."""

    previously_succeeded: Indexes
    succeeded: Indexes
    failed: Indexes | None = None
    replaceable: Mapping[int, Obj] | None = None
    """For each index that may be retried, the failed pod whose replacement inherits the failure count."""


def is_indexed(job: Mapping[str, Any]) -> bool:
    mode: str | None = job["spec"].get("completionMode")
    return mode == "Indexed"


def is_suspended(job: Mapping[str, Any]) -> bool:
    return bool(job["spec"].get("suspend"))


def uncounted_of(job: Mapping[str, Any], outcome: str) -> set[str]:
    """Return the UIDs of ended pods that are listed in the status and not in a counter yet.

    `outcome` is `succeeded` or `failed`.
    """
    return set(((job.get("status") or {}).get("uncountedTerminatedPods") or {}).get(outcome) or ())


def assess(job: Obj, classified: ClassifiedPods, backoff: BackoffRecord, now: datetime) -> Assessment:
    """Count, then decide. The formula is that of `syncJob`: counters + uncounted + newly ended."""
    status = job["status"]
    new_succeeded = _unrecorded(job, classified.succeeded, "succeeded")
    new_failed = _unrecorded(job, classified.failed, "failed")
    policy = job["spec"].get("podFailurePolicy")
    counted_failed = [pod for pod in new_failed if failure_policy.match(policy, pod).is_counted]
    assessment = Assessment(
        active_pods=classified.active,
        terminating_pods=classified.terminating,
        active=len(classified.active),
        ready=classified.ready,
        terminating=len(classified.terminating),
        succeeded=status.get("succeeded", 0) + len(new_succeeded) + len(uncounted_of(job, "succeeded")),
        failed=status.get("failed", 0) + len(counted_failed) + len(uncounted_of(job, "failed")),
        backoff=backoff.after(new_succeeded, new_failed),
    )
    if is_indexed(job):
        assessment.indexes = _index_state(job, classified)
        assessment.succeeded = len(assessment.indexes.succeeded)
    assessment.decision = conditions.interim_of(job) or _decide(job, classified, assessment, now)
    return assessment


def deadline_of(job: Mapping[str, Any]) -> datetime | None:
    """Return when activeDeadlineSeconds expires, or None if it is unset or the Job has not started."""
    seconds = job["spec"].get("activeDeadlineSeconds")
    started = parse_time(job["status"].get("startTime"))
    if seconds is None or started is None or is_suspended(job):
        return None
    return started + timedelta(seconds=seconds)


def _unrecorded(job: Obj, ended: list[Obj], outcome: str) -> list[Obj]:
    """Return the pods that no earlier sync has recorded. For an Indexed Job, only pods with a valid index count."""
    uncounted = uncounted_of(job, outcome)
    new = [pod for pod in ended if uid_of(pod) not in uncounted]
    if not is_indexed(job):
        return new
    completions = job["spec"]["completions"]
    return [pod for pod in new if valid_index(pod, completions) is not None]


def _index_state(job: Obj, classified: ClassifiedPods) -> IndexState:
    completions = job["spec"]["completions"]
    previous = Indexes.parse(job["status"].get("completedIndexes"), completions)
    new = (index for pod in classified.succeeded if (index := valid_index(pod, completions)) is not None)
    succeeded = previous | Indexes.of(new)
    if job["spec"].get("backoffLimitPerIndex") is None:
        return IndexState(previous, succeeded)
    failed = failed_indexes(job, classified.failed)
    replaceable = awaiting_replacement(job, classified.failed, classified.active, settled=succeeded | failed)
    return IndexState(previous, succeeded, failed, replaceable)


def _decide(job: Obj, classified: ClassifiedPods, assessment: Assessment, now: datetime) -> Obj | None:
    """Return the interim condition. The order of the checks is the precedence of the rules."""
    policy = job["spec"].get("podFailurePolicy")
    for pod in classified.failed if policy else ():
        if message := failure_policy.match(policy, pod).message:
            return conditions.failure("PodFailurePolicy", now, message)
    reason = _failure_reason(job, assessment, now)
    if reason is not None:
        return conditions.failure(reason, now)
    if assessment.indexes is None:
        return None
    completions = job["spec"]["completions"]
    message = message_of_met_rule(job["spec"].get("successPolicy"), assessment.indexes.succeeded, completions)
    return conditions.success_policy_met(message, now) if message else None


def _failure_reason(job: Obj, assessment: Assessment, now: datetime) -> str | None:
    limit = job["spec"].get("backoffLimit", 6)
    if assessment.failed > limit or _restarted_too_often(job, assessment, limit):
        return "BackoffLimitExceeded"
    deadline = deadline_of(job)
    if deadline is not None and now >= deadline:
        return "DeadlineExceeded"
    indexes = assessment.indexes
    if indexes is None or not indexes.failed:
        return None
    failed_max = job["spec"].get("maxFailedIndexes")
    if failed_max is not None and len(indexes.failed) > failed_max:
        return "MaxFailedIndexesExceeded"
    if len(indexes.failed) + len(indexes.succeeded) >= job["spec"]["completions"]:
        return "FailedIndexes"
    return None


def _restarted_too_often(job: Obj, assessment: Assessment, limit: int) -> bool:
    """Return whether the containers restarted too often. With restartPolicy OnFailure, restarts count as failures."""
    if job["spec"]["template"]["spec"].get("restartPolicy") != "OnFailure":
        return False
    restarts = sum(restarts_of(pod) for pod in (*assessment.active_pods, *assessment.terminating_pods))
    return restarts > 0 if limit == 0 else restarts >= limit
