"""Adopt or submit: what a task does, given the Jobs that it already has. Pure.

A gang whose outcome nobody has been told is never run again by accident, and what was delivered, has
failed or is being deleted is never waited for again. So a retry after a lost worker reattaches, and
clearing a finished task runs it anew, without guessing from try numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang.spec import GangSpec, Reattach
from airflow_provider_gangjobs.submission.jobs import JobState, job_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.state.job import Job


@dataclass(frozen=True)
class Adopt:
    """Go on with this Job, after deleting what it supersedes."""

    job: Job
    superseded: tuple[Job, ...] = ()


@dataclass(frozen=True)
class SubmitNew:
    """Submit another attempt, after deleting what it supersedes."""

    number: int
    superseded: tuple[Job, ...] = ()


@dataclass(frozen=True)
class Refuse:
    """This Job is live and was made from other parameters."""

    job: Job


@dataclass(frozen=True)
class TakenOver:
    """Another try answers for this Job or for what follows it."""

    job: Job


@dataclass(frozen=True)
class LostAttempt:
    """The attempt that was lost to a disruption, and that another one is to follow within the same try."""

    attempt: int
    disruptions: int
    """How many were lost so in a row, with it."""


SubmissionAction = Adopt | SubmitNew | Refuse | TakenOver


def decide_action(
    jobs: Sequence[Job],
    *,
    reattach: Reattach,
    claim: str,
    spec_hash: str,
    min_attempt: int = 0,
    return_failed: bool = False,
) -> SubmissionAction:
    """What to do, so that one gang of the task is live afterwards, or none where it is refused.

    `jobs` are all that the task has; `min_attempt` is the lowest attempt that is free to use.

    1. What this very claim has submitted before is its own, whatever the policy.
    2. Otherwise a live gang is adopted, or superseded where the policy is `never`. One made from other
       parameters is refused, unless it never ran: then it was half submitted, and is superseded.
    3. With no live one, a success that nobody was told of is adopted if the policy says so; and so is, where
       `return_failed` is asked for, a failure of the last attempt, so that somebody looks at what it came of.
    """
    newest = sorted(jobs, key=_attempt, reverse=True)
    own = [job for job in newest if job.holds_claim(claim)]
    live = [job for job in newest if job_state(job) is JobState.LIVE]
    number = _next_number(jobs, min_attempt)
    candidates = [job for job in live if job in own] or (live if reattach is not Reattach.NEVER else [])
    if candidates:
        return _adopt_newest(candidates, live, spec_hash, number)
    undelivered = own[:1]
    if reattach is Reattach.RUNNING_OR_SUCCEEDED:
        undelivered += newest[:1]
    for job in undelivered:
        if job_state(job) is JobState.SUCCEEDED and _has_spec_hash(job, spec_hash):
            return Adopt(job, tuple(live))
    if return_failed and (last := _undelivered_failure(newest, own, reattach, spec_hash)) is not None:
        return Adopt(last, tuple(live))
    return SubmitNew(number, tuple(live))


def _undelivered_failure(newest: list[Job], own: list[Job], reattach: Reattach, spec_hash: str) -> Job | None:
    failed = [job for job in newest[:1] if job_state(job) is JobState.FAILED and _has_spec_hash(job, spec_hash)]
    return next((job for job in failed if job in own or reattach is not Reattach.NEVER), None)


def decide_action_after_loss(
    jobs: Sequence[Job], *, lost: LostAttempt, claim: str, spec_hash: str, min_attempt: int = 0
) -> SubmissionAction:
    """What to do after an attempt was lost, within the try that `claim` stands for: the next one, unless another try
    of the task has taken the lost one over, or has submitted the next one itself.
    """
    since = [job for job in jobs if job.attempt_number >= lost.attempt and job_state(job) is not JobState.DROPPED]
    theirs = next((job for job in since if not job.holds_claim(claim)), None)
    if theirs is not None:
        return TakenOver(theirs)
    min_attempt = max(min_attempt, lost.attempt + 1)
    return decide_action(jobs, reattach=Reattach.NEVER, claim=claim, spec_hash=spec_hash, min_attempt=min_attempt)


def decide_operation_action(jobs: Sequence[Job], *, spec_hash: str, min_attempt: int = 0) -> SubmissionAction:
    """What to do for a submission id that a client chose: the same id is the same gang, also when it has succeeded.

    One that stands and was made from other parameters is refused. One that has failed, was halted or is
    being deleted stands no more: the next attempt takes its place, from whatever parameters.
    """
    standing = [job for job in sorted(jobs, key=_attempt, reverse=True) if _is_current(job)]
    if not standing:
        return SubmitNew(_next_number(jobs, min_attempt))
    same = next((job for job in standing if _has_spec_hash(job, spec_hash)), None)
    if same is None:
        return Refuse(standing[0])
    return Adopt(same, tuple(job for job in standing if job is not same and job_state(job) is JobState.LIVE))


def _is_current(job: Job) -> bool:
    state = job_state(job)
    given_up = state in {JobState.TERMINATING, JobState.DROPPED}
    return state is JobState.LIVE or (job.complete is not None and not given_up)


def _next_number(jobs: Sequence[Job], min_attempt: int) -> int:
    return max([min_attempt, *(job.attempt_number + 1 for job in jobs)])


def _adopt_newest(candidates: list[Job], live: list[Job], spec_hash: str, number: int) -> SubmissionAction:
    """The newest of the candidates that was made from these parameters; all other live ones give way to it."""
    same = next((job for job in candidates if _has_spec_hash(job, spec_hash)), None)
    if same is not None:
        return Adopt(same, tuple(job for job in live if job is not same))
    ran = next((job for job in candidates if not job.never_ran), None)
    return SubmitNew(number, tuple(live)) if ran is None else Refuse(ran)


def differing_fields(spec: GangSpec, job: Job) -> tuple[str, ...]:
    """Parameters whose digests differ between the spec and what the Job was made from."""
    ours, theirs = spec.field_digests, job.field_digests
    if not theirs:
        return ()
    return tuple(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)))


def _has_spec_hash(job: Job, spec_hash: str) -> bool:
    return job.spec_hash == spec_hash


def _attempt(job: Job) -> int:
    return job.attempt_number
