"""The state of a gang with roles: its Jobs as one Job, so that every rule about a Job holds for the whole gang. Pure.

The combined Job has the metadata and `spec.suspend` of the record, the sums of the sizes and of the counters, and these
conditions. The first row that applies decides:

    Jobs of the gang                                             condition of the combined Job
    -----------------------------------------------------------  ------------------------------
    one has failed, or is missing although the gang was started,
    and all others have ended                                    Failed
    one has failed, is going to fail, or is missing              FailureTarget
    all are complete                                             Complete
    all are complete or going to be                              SuccessCriteriaMet

The reason is that of the Job that failed first. A Job that ended by a deadline comes after the others, because the
follower ends the other Jobs of a gang by a deadline of zero.

`combine` is the only function that knows that a gang may consist of several objects. A kind of object that contains the
Jobs of a gang itself needs another function that returns a `Job`, such as `gang.state.job_set.read_job_set`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.gang.state.halt import HALTED_DEADLINE_S
from airflow_provider_gangjobs.gang.state.indexes import parse_spans
from airflow_provider_gangjobs.gang.state.job import REASON_JOB_DEADLINE, Job
from airflow_provider_gangjobs.kube.views import Condition, JobSpec, JobStatus, JobView, condition, view

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_gangjobs.gang.roles import RoleRanks

REASON_JOB_MISSING: Final = "JobOfRoleDeleted"


def read_gang(record: JobView | Mapping[str, Any], others: Iterable[JobView | Mapping[str, Any]]) -> Job:
    """Read a gang from its record and from further Jobs. Jobs of other gangs are ignored.

    Without roles, this is the same as `read_job`.

    :param others: All Jobs with the gang's label at one moment, with the record or without it.
    """
    seen = _view(record)
    if seen.metadata.annotations.roles is None:
        return Job(seen)
    uid = seen.metadata.uid
    jobs = map(_view, others)
    by_role = {job.metadata.labels.gang_role: job for job in jobs if _is_role_of(job, uid)}
    return combine(seen, by_role)


def read_gangs(stored: Iterable[JobView | Mapping[str, Any]]) -> list[Job]:
    """Read the gangs of some Jobs, which were selected by the gang's label.

    Jobs of roles whose record is missing are left out.
    """
    views = [_view(job) for job in stored]
    of_roles: dict[tuple[str, str | None], list[JobView]] = {}
    for job in filter(is_role_job, views):
        of_roles.setdefault(_gang_of(job), []).append(job)
    return [read_gang(job, of_roles.get(_gang_of(job), ())) for job in views if not is_role_job(job)]


def is_role_job(job: JobView) -> bool:
    """Return whether the Job belongs to a role that is not the first one, and another Job is the record of its gang."""
    return job.metadata.labels.gang_role is not None and job.metadata.annotations.roles is None


def combine(record: JobView, by_role: Mapping[str | None, JobView]) -> Job:
    """Return the Jobs of a gang with roles as one Job.

    :param record: The Job of the first role.
    :param by_role: The Jobs of the other roles, as far as they exist.
    """
    roles = Job(record).roles
    found = [(roles[0], record), *((role, by_role[role.name]) for role in roles[1:] if role.name in by_role)]
    parts = tuple(job for _, job in found)
    missing = [role.name for role in roles[1:] if role.name not in by_role]
    spec = JobSpec(
        suspend=record.spec.suspend,
        parallelism=sum(role.size for role in roles),
        completions=sum(role.size for role in roles),
        active_deadline_seconds=record.spec.active_deadline_seconds,
    )
    metadata = replace(record.metadata, generation=max(job.metadata.generation for job in parts))
    status = _status(found, missing, is_started=_is_started(record))
    return Job(JobView(metadata=metadata, spec=spec, status=status), parts)


def parts_to_end(job: Job) -> list[JobView]:
    """Return the Jobs of a gang with roles that have not ended and have no deadline of zero yet."""
    return [
        part
        for part in job.parts
        if not Job(part).has_end_condition and part.spec.active_deadline_seconds != HALTED_DEADLINE_S
    ]


def ttl_patch(job: Job) -> dict[str, Any] | None:
    """Return the merge patch with which the record of a gang with roles is deleted later; `None` if there is none."""
    ttl_s = job.view.metadata.annotations.ttl
    return {"spec": {"ttlSecondsAfterFinished": int(ttl_s)}} if ttl_s is not None and ttl_s.isdecimal() else None


def _view(job: JobView | Mapping[str, Any]) -> JobView:
    return job if isinstance(job, JobView) else view(JobView, dict(job))


def _gang_of(job: JobView) -> tuple[str, str | None]:
    return job.metadata.namespace, job.metadata.labels.gang


def _is_role_of(job: JobView, record_uid: str) -> bool:
    return is_role_job(job) and job.metadata.is_owned_by(record_uid)


def _is_started(record: JobView) -> bool:
    """The record was started, which is the last step of a submission, and is not being deleted."""
    return not record.spec.suspend and record.metadata.deletion_timestamp is None


def _status(found: Sequence[tuple[RoleRanks, JobView]], missing: Sequence[str], *, is_started: bool) -> JobStatus:
    statuses = [job.status for _, job in found]
    starts = [status.start_time for status in statuses]
    ends = [status.completion_time for status in statuses]
    return JobStatus(
        active=sum(status.active for status in statuses),
        ready=sum(status.ready for status in statuses),
        succeeded=sum(status.succeeded for status in statuses),
        failed=sum(status.failed for status in statuses),
        terminating=sum(status.terminating for status in statuses),
        completed_indexes=",".join(filter(None, (_shifted(role, job) for role, job in found))),
        start_time=None if missing or None in starts else max(filter(None, starts)),
        completion_time=None if missing or None in ends else max(filter(None, ends)),
        conditions=tuple(_conditions(found, missing if is_started else (), is_whole=not missing)),
    )


def _shifted(role: RoleRanks, job: JobView) -> str:
    """Return the completed indexes of a Job as ranks in the gang, in the format of the Job controller."""
    spans = parse_spans(job.status.completed_indexes)
    ranks = ((span[0] + role.offset, span[-1] + role.offset) for span in spans)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranks)


def _conditions(
    found: Sequence[tuple[RoleRanks, JobView]], lost: Sequence[str], *, is_whole: bool
) -> Iterable[Condition]:
    suspended = condition(found[0][1].status.conditions, "Suspended")
    if suspended is not None:
        yield suspended
    jobs = [Job(job) for _, job in found]
    failure = _failure(found, lost)
    if failure is not None:
        yield replace(failure, type="Failed" if all(job.has_end_condition for job in jobs) else "FailureTarget")
    elif is_whole and all(condition(job.status.conditions, "Complete") for job in jobs):
        yield max((_complete(job) for job in jobs), key=_when)
    elif is_whole and all(_announces_success(job) for job in jobs):
        yield Condition("SuccessCriteriaMet", "True", last_transition_time=max(map(_announced_at, jobs)))


def _failure(found: Sequence[tuple[RoleRanks, JobView]], lost: Sequence[str]) -> Condition | None:
    """Return the condition of the Job that failed first."""
    failures = [
        replace(failed, message=f"Job {job.metadata.name} of role {role.name}: {failed.message}")
        for role, job in found
        for failed in (_condition(job, "Failed") or _condition(job, "FailureTarget"),)
        if failed is not None
    ]
    missing = [Condition("Failed", "True", REASON_JOB_MISSING, f"The Job of role {role} was deleted") for role in lost]
    ordered = sorted([*failures, *missing], key=lambda failed: (failed.reason == REASON_JOB_DEADLINE, _when(failed)))
    return next(iter(ordered), None)


def _condition(job: JobView, kind: str) -> Condition | None:
    return condition(job.status.conditions, kind)


def _complete(job: Job) -> Condition:
    found = _condition(job.view, "Complete")
    assert found is not None, "the caller has checked the condition"
    return found


def _announces_success(job: Job) -> bool:
    return any(_condition(job.view, kind) for kind in ("Complete", "SuccessCriteriaMet"))


def _announced_at(job: Job) -> datetime:
    found = (_condition(job.view, kind) for kind in ("SuccessCriteriaMet", "Complete"))
    return next((_when(item) for item in found if item is not None), _NEVER)


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def _when(found: Condition) -> datetime:
    return found.last_transition_time or _NEVER


__all__ = [
    "combine",
    "is_role_job",
    "parts_to_end",
    "read_gang",
    "read_gangs",
    "ttl_patch",
]
