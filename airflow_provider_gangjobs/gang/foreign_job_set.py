"""A JobSet that somebody else has created: its state as one Job, and why it failed. Pure.

The controller of JobSets writes one condition at the end (`api/jobset/v1alpha2` of kubernetes-sigs/jobset): `Completed`
is read as `Complete`, and `Failed` as `Failed`. When a Job fails, the controller deletes the Jobs that still run. Those
that have failed stay until the JobSet is deleted, and say why it failed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.gang.outcome.diagnosis import diagnose_outcome
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind, failures_first, outcome_of
from airflow_provider_gangjobs.gang.state.pods import has_ended
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.kube.views import JobMeta, JobSpec, JobStatus, JobView, find_true_condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.kube.views import JobSetView, PodView, ReplicatedJob


_CONDITIONS: Final = {"Completed": "Complete", "Failed": "Failed"}


def read_job_set(seen: JobSetView) -> StoredGang:
    """Return a JobSet as one Job, with the conditions that say how it has ended."""
    metadata = JobMeta(
        name=seen.metadata.name,
        namespace=seen.metadata.namespace,
        uid=seen.metadata.uid,
        generation=seen.metadata.generation,
        creation_timestamp=seen.metadata.creation_timestamp,
        deletion_timestamp=seen.metadata.deletion_timestamp,
        deletion_grace_period_seconds=seen.metadata.deletion_grace_period_seconds,
    )
    ends = (replace(item, type=_CONDITIONS[item.type]) for item in seen.status.conditions if item.type in _CONDITIONS)
    status = JobStatus(conditions=tuple(ends))
    return StoredGang(JobView(metadata=metadata, spec=JobSpec(suspend=seen.spec.suspend), status=status))


def describe_progress(seen: JobSetView | None, name: str) -> str:
    """Return a line for people about a JobSet that has not ended, or does not exist yet."""
    if seen is None:
        return f"JobSet {name} does not exist yet"
    restarts = seen.status.restarts
    again = f", after {pluralize(restarts, 'restart')}" if restarts else ""
    if seen.spec.suspend:
        return f"JobSet {name} is suspended{again}"
    parts = ", ".join(_describe_role(seen, role) for role in seen.spec.replicated_jobs)
    return f"JobSet {name} is under way{again}: {parts}"


def _describe_role(seen: JobSetView, role: ReplicatedJob) -> str:
    found = next((item for item in seen.status.replicated_jobs_status if item.name == role.name), None)
    ready, succeeded = (found.ready, found.succeeded) if found else (0, 0)
    done = f", {succeeded} complete" if succeeded else ""
    return f"{role.name} {ready + succeeded} of {pluralize(role.replicas, 'Job')} ready{done}"


PODS_SHOWN_MAX: Final = 3


def jobs_of(uid: str, jobs: Iterable[JobView]) -> list[JobView]:
    """Return the Jobs that the JobSet with this UID controls."""
    return [job for job in jobs if job.metadata.is_owned_by(uid)]


def describe_failure(jobs: Sequence[JobView], pods: Iterable[PodView]) -> tuple[str, str]:
    """Return which Job of a JobSet failed first and how its pods ended, and what to do about it. Both are empty if none
    failed."""
    failed = sorted((job for job in jobs if find_true_condition(job.status.conditions, "Failed")), key=_failed_at)
    if not failed:
        return "", ""
    first = failed[0]
    found = find_true_condition(first.status.conditions, "Failed")
    assert found is not None, "the Job was selected by this condition"
    also = f" {len(failed) - 1} more failed after it." if len(failed) > 1 else ""
    why = ": ".join(filter(None, (found.reason, found.message)))
    outcomes = _failures(pod for pod in pods if pod.metadata.is_owned_by(first.metadata.uid))
    diagnoses = [diagnose_outcome(outcome) for outcome in outcomes[:PODS_SHOWN_MAX]]
    more = len(outcomes) - len(diagnoses)
    ends = "; ".join((*(each.summary for each in diagnoses), *((f"{more} more pods failed",) if more else ())))
    text = f"Job {first.metadata.name} failed first ({why}).{also} {_capitalized(ends)}".rstrip()
    return text, diagnoses[0].remedy.replace("this rank", "this pod") if diagnoses else ""


def _failures(pods: Iterable[PodView]) -> list[Outcome]:
    outcomes = [replace(outcome_of(pod), rank=None) for pod in pods if has_ended(pod)]
    failures = [outcome for outcome in outcomes if outcome.outcome is not OutcomeKind.SUCCEEDED]
    return failures_first(failures, len(failures))


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _failed_at(job: JobView) -> datetime:
    found = find_true_condition(job.status.conditions, "Failed")
    return (found.last_transition_time if found else None) or datetime.max.replace(tzinfo=UTC)
