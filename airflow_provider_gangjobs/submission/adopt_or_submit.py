"""Adopt or submit: the rules that decide what a task does, given the Jobs that the task already has. Pure.

A gang whose outcome was not delivered is never run again by accident. A gang that has failed, whose outcome was
delivered, or that is being deleted is never waited for again. So a retry after a lost worker reattaches to the gang,
and a finished task that is cleared runs a new gang. The rules do not use Airflow's try numbers, which begin again if a
DAG run is deleted and created with the same id. Airflow gives each try a new id, a UUID version 7. These ids are
ordered by time, so the id that a Job has as its claim may show that the submission comes too late
(`gang_of_later_try`).

A try may have other parameters than the gang that it finds, because somebody has edited the DAG, or because a template
renders differently at each try. Only a user who clears the task asks for a gang of the new parameters, so only a clear
ends a gang of other parameters. `max_tries` of the task instance shows the clear (`_continues`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import Struct

from airflow_provider_gangjobs.gang.spec import GangSpec, Reattach
from airflow_provider_gangjobs.gang.state.job_state import JobState, job_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.state.job import Job


class Adopt(Struct, frozen=True):
    """Continue with this Job, after the deletion of the superseded Jobs."""

    job: Job
    superseded: tuple[Job, ...] = ()


class SubmitNew(Struct, frozen=True):
    """Submit the attempt of this number, after the deletion of the superseded Jobs."""

    number: int
    superseded: tuple[Job, ...] = ()


class Refuse(Struct, frozen=True):
    """Refuse to submit: this Job was created from other parameters, and it is not known which parameters are wanted."""

    job: Job


class TakenOver(Struct, frozen=True):
    """Do nothing: another try of the task is responsible for this Job, or for the attempt that follows the Job."""

    job: Job


class LostAttempt(Struct, frozen=True):
    """An attempt that was lost to a disruption. The next attempt follows within the same try of the task."""

    attempt: int
    disruptions: int
    """How many attempts in a row were lost to disruptions, including this one."""


SubmissionAction = Adopt | SubmitNew | Refuse | TakenOver


def decide_action(
    jobs: Sequence[Job],
    *,
    reattach: Reattach,
    claim: str,
    spec_hash: str,
    min_attempt: int = 0,
    return_failed: bool = False,
    max_tries: int | None = None,
) -> SubmissionAction:
    """Return the action after which one gang of the task is live. After `Refuse`, the live gang is unchanged.

    1. A gang that the same claim has submitted before is adopted, whatever the policy.
    2. Otherwise a live gang is adopted, or superseded if the policy is `never`. A live gang that was created from other
       parameters is adopted, too, unless a user has cleared the task since, or the gang cannot be continued, because
       its submission is incomplete: then it is superseded. Without `max_tries` it is refused.
    3. If no gang is live, a success that was not delivered is adopted if the policy allows it. With `return_failed`, a
       failure of the last attempt is adopted in the same way, so that the caller can diagnose it. A gang of other
       parameters is adopted if no user has cleared the task since.

    :param jobs: All Jobs of the task.
    :param min_attempt: The lowest attempt number that is free.
    :param max_tries: `max_tries` of the task instance; `None` if no task of Airflow submits the gang.
    """
    newest = sorted(jobs, key=_attempt, reverse=True)
    own = [job for job in newest if job.holds_claim(claim)]
    live = [job for job in newest if job_state(job) is JobState.LIVE]
    number = _next_number(jobs, min_attempt)
    candidates = [job for job in live if job in own] or (live if reattach is not Reattach.NEVER else [])
    if candidates:
        return _adopt_newest(candidates, live, spec_hash, number, max_tries)
    undelivered = own[:1]
    if reattach is Reattach.RUNNING_OR_SUCCEEDED:
        undelivered += newest[:1]
    for job in undelivered:
        if job_state(job) is JobState.SUCCEEDED and _continues(job, spec_hash, max_tries):
            return Adopt(job, tuple(live))
    failed = [job for job in newest[:1] if job_state(job) is JobState.FAILED and return_failed]
    for job in failed:
        if _continues(job, spec_hash, max_tries) and (job in own or reattach is not Reattach.NEVER):
            return Adopt(job, tuple(live))
    return SubmitNew(number, tuple(live))


def gang_of_later_try(jobs: Sequence[Job], claim: str) -> Job | None:
    """Return the newest Job whose claim is the id of a try that seems to be later than the try that holds `claim`.

    Such a Job is a suspicion. A worker that was stopped for longer than Airflow waits for its heartbeat may continue
    while the next try runs, and must then change nothing. But the ids are as right as the clocks of the processes that
    create them: after a clock was ahead, the try that runs has an earlier id than the try before it. So Airflow is
    asked which try runs.
    """
    later = (job for job in jobs if _has_later_claim(job, claim))
    return max(later, key=_attempt, default=None)


def _has_later_claim(job: Job, claim: str) -> bool:
    theirs, ours = _created_ms(job.claim or ""), _created_ms(claim)
    is_later = theirs is not None and ours is not None and theirs > ours
    return is_later and job_state(job) is not JobState.DROPPED


def _created_ms(claim: str) -> int | None:
    """Return the time in a UUID version 7, in milliseconds since 1970. `None` for a claim of another form."""
    try:
        uuid = UUID(claim)
    except ValueError:
        return None
    return uuid.int >> 80 if uuid.version == 7 else None


def _continues(job: Job, spec_hash: str, max_tries: int | None) -> bool:
    """Return whether the task may continue with a gang, as far as the parameters of the gang decide that.

    A gang of other parameters is continued unless a user has cleared the task since another task instance claimed it.
    When a user clears a task, Airflow sets `max_tries` to the number of the last try plus `retries`; a retry leaves
    `max_tries` as it is, also after an edit of the DAG. The version of the DAG is no criterion: an edit of another task
    changes it, and so does each parse of a DAG file that writes the present time into the DAG. If the Job has no
    `max_tries`, it is not known whether the task was cleared, and the gang is continued.
    """
    if max_tries is None or _has_spec_hash(job, spec_hash):
        return _has_spec_hash(job, spec_hash)
    return job.max_tries is None or job.max_tries == max_tries


def decide_action_after_loss(
    jobs: Sequence[Job],
    *,
    lost: LostAttempt,
    claim: str,
    spec_hash: str,
    min_attempt: int = 0,
    max_tries: int | None = None,
) -> SubmissionAction:
    """Return the action after an attempt was lost, within the try of the task that holds `claim`.

    The action is to submit the next attempt, unless another try of the task has adopted the lost attempt or has
    submitted the next attempt.
    """
    since = [job for job in jobs if job.attempt_number >= lost.attempt and job_state(job) is not JobState.DROPPED]
    theirs = next((job for job in since if not job.holds_claim(claim)), None)
    if theirs is not None:
        return TakenOver(theirs)
    min_attempt = max(min_attempt, lost.attempt + 1)
    return decide_action(
        jobs,
        reattach=Reattach.NEVER,
        claim=claim,
        spec_hash=spec_hash,
        min_attempt=min_attempt,
        max_tries=max_tries,
    )


def decide_operation_action(jobs: Sequence[Job], *, spec_hash: str, min_attempt: int = 0) -> SubmissionAction:
    """Return the action for a submission id that a client chose.

    The same id is the same gang, also after the gang has succeeded. If the gang was created from other parameters, the
    submission is refused. A gang that has failed, was halted, or is being deleted is followed by the next attempt,
    which may have other parameters.
    """
    current = [job for job in sorted(jobs, key=_attempt, reverse=True) if _is_current(job)]
    if not current:
        return SubmitNew(_next_number(jobs, min_attempt))
    same = next((job for job in current if _has_spec_hash(job, spec_hash)), None)
    if same is None:
        return Refuse(current[0])
    return Adopt(same, tuple(job for job in current if job is not same and job_state(job) is JobState.LIVE))


def _is_current(job: Job) -> bool:
    state = job_state(job)
    is_abandoned = state in {JobState.TERMINATING, JobState.DROPPED}
    return state is JobState.LIVE or (job.complete_condition is not None and not is_abandoned)


def _next_number(jobs: Sequence[Job], min_attempt: int) -> int:
    return max([min_attempt, *(job.attempt_number + 1 for job in jobs)])


def _adopt_newest(
    candidates: list[Job], live: list[Job], spec_hash: str, number: int, max_tries: int | None
) -> SubmissionAction:
    """Adopt the newest candidate that the task may continue with, and supersede all other live gangs.

    A candidate that was created from these parameters comes first. An incomplete submission of other parameters cannot
    be completed, because the stored Job does not contain the parameters.
    """
    found = next((job for job in candidates if _has_spec_hash(job, spec_hash)), None)
    if found is None:
        ran = [job for job in candidates if not job.never_ran]
        if ran and max_tries is None:
            return Refuse(ran[0])
        complete = (job for job in ran if job.is_submission_complete)
        found = next((job for job in complete if _continues(job, spec_hash, max_tries)), None)
    if found is None:
        return SubmitNew(number, tuple(live))
    return Adopt(found, tuple(job for job in live if job is not found))


def differing_fields(spec: GangSpec, job: Job) -> tuple[str, ...]:
    """Return the names of the parameters whose digests differ between the spec and the Job, sorted."""
    ours, theirs = spec.field_digests, job.field_digests
    if not theirs:
        return ()
    return tuple(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)))


def _has_spec_hash(job: Job, spec_hash: str) -> bool:
    return job.spec_hash == spec_hash


def _attempt(job: Job) -> int:
    return job.attempt_number
