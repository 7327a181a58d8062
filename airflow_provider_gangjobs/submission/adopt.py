"""Adopt or submit: what a task does, given the Jobs that it already has. Pure.

A gang whose outcome nobody has been told is never run again by accident, and what was delivered, has
failed or is being deleted is never waited for again. So a retry after a lost worker reattaches, and
clearing a finished task runs it anew, without guessing from try numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang.spec import GangSpec, Reattach
from airflow_provider_gangjobs.submission.jobs import JobState, state_of

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
class LeaveAlone:
    """Another try answers for this Job or for what follows it."""

    job: Job


@dataclass(frozen=True)
class LostAttempt:
    """The attempt that was lost to a disruption, and that another one is to follow within the same try."""

    attempt: int
    disruptions: int
    """How many were lost so in a row, with it."""


Choice = Adopt | SubmitNew | Refuse | LeaveAlone


def choose(
    jobs: Sequence[Job],
    *,
    reattach: Reattach,
    claim: str,
    spec_hash: str,
    least_number: int = 0,
    return_failed: bool = False,
) -> Choice:
    """What to do, so that one gang of the task is live afterwards, or none where it is refused.

    `jobs` are all that the task has; `least_number` is the lowest attempt that is free to use.

    1. What this very claim has submitted before is its own, whatever the policy.
    2. Otherwise a live gang is adopted, or superseded where the policy is `never`. One made from other
       parameters is refused, unless it never ran: then it was half submitted, and is superseded.
    3. With no live one, a success that nobody was told of is adopted if the policy says so; and so is, where
       `return_failed` is asked for, a failure of the last attempt, so that somebody looks at what it came of.
    """
    newest = sorted(jobs, key=_attempt, reverse=True)
    own = [job for job in newest if job.holds_claim(claim)]
    live = [job for job in newest if state_of(job) is JobState.LIVE]
    number = _next_number(jobs, least_number)
    candidates = [job for job in live if job in own] or (live if reattach is not Reattach.NEVER else [])
    if candidates:
        return _among(candidates, live, spec_hash, number)
    told_nobody = own[:1]
    if reattach is Reattach.RUNNING_OR_SUCCEEDED:
        told_nobody += newest[:1]
    for job in told_nobody:
        if state_of(job) is JobState.SUCCEEDED and _same(job, spec_hash):
            return Adopt(job, tuple(live))
    if return_failed and (last := _untold_failure(newest, own, reattach, spec_hash)) is not None:
        return Adopt(last, tuple(live))
    return SubmitNew(number, tuple(live))


def _untold_failure(newest: list[Job], own: list[Job], reattach: Reattach, spec_hash: str) -> Job | None:
    failed = [job for job in newest[:1] if state_of(job) is JobState.FAILED and _same(job, spec_hash)]
    return next((job for job in failed if job in own or reattach is not Reattach.NEVER), None)


def choose_after(
    jobs: Sequence[Job], *, lost: LostAttempt, claim: str, spec_hash: str, least_number: int = 0
) -> Choice:
    """What to do after an attempt was lost, within the try that `claim` stands for: the next one, unless another try
    of the task has taken the lost one over, or has submitted the next one itself.
    """
    since = [job for job in jobs if job.attempt_number >= lost.attempt and state_of(job) is not JobState.DROPPED]
    theirs = next((job for job in since if not job.holds_claim(claim)), None)
    if theirs is not None:
        return LeaveAlone(theirs)
    least_number = max(least_number, lost.attempt + 1)
    return choose(jobs, reattach=Reattach.NEVER, claim=claim, spec_hash=spec_hash, least_number=least_number)


def choose_operation(jobs: Sequence[Job], *, spec_hash: str, least_number: int = 0) -> Choice:
    """What to do for a submission id that a client chose: the same id is the same gang, also when it has succeeded.

    One that stands and was made from other parameters is refused. One that has failed, was halted or is
    being deleted stands no more: the next attempt takes its place, from whatever parameters.
    """
    standing = [job for job in sorted(jobs, key=_attempt, reverse=True) if _stands(job)]
    if not standing:
        return SubmitNew(_next_number(jobs, least_number))
    same = next((job for job in standing if _same(job, spec_hash)), None)
    if same is None:
        return Refuse(standing[0])
    return Adopt(same, tuple(job for job in standing if job is not same and state_of(job) is JobState.LIVE))


def _stands(job: Job) -> bool:
    state = state_of(job)
    given_up = state in {JobState.TERMINATING, JobState.DROPPED}
    return state is JobState.LIVE or (job.complete is not None and not given_up)


def _next_number(jobs: Sequence[Job], least_number: int) -> int:
    return max([least_number, *(job.attempt_number + 1 for job in jobs)])


def _among(candidates: list[Job], live: list[Job], spec_hash: str, number: int) -> Choice:
    """The newest of the candidates that was made from these parameters; all other live ones give way to it."""
    same = next((job for job in candidates if _same(job, spec_hash)), None)
    if same is not None:
        return Adopt(same, tuple(job for job in live if job is not same))
    ran = next((job for job in candidates if not job.never_ran), None)
    return SubmitNew(number, tuple(live)) if ran is None else Refuse(ran)


def differing(spec: GangSpec, job: Job) -> tuple[str, ...]:
    """Parameters whose digests differ between the spec and what the Job was made from."""
    ours, theirs = spec.field_digests, job.field_digests
    if not theirs:
        return ()
    return tuple(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)))


def _same(job: Job, spec_hash: str) -> bool:
    return job.spec_hash == spec_hash


def _attempt(job: Job) -> int:
    return job.attempt_number
