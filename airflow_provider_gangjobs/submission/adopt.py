"""Adopt or submit: what a task does, given the Jobs that it already has. Pure.

A gang whose outcome nobody has been told is never run again by accident, and what was delivered, has
failed or is being deleted is never waited for again. So a retry after a lost worker reattaches, and
clearing a finished task runs it anew, without guessing from try numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang.labels import ANNOTATION_CLAIM, ANNOTATION_SPEC_FIELDS, ANNOTATION_SPEC_HASH
from airflow_provider_gangjobs.gang.spec import GangSpec, Reattach
from airflow_provider_gangjobs.submission.jobs import Job, JobState, annotation, attempt_number, never_ran, state_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Adopt:
    """Go on with this Job."""

    job: Job


@dataclass(frozen=True)
class SubmitNew:
    """Submit another attempt, after deleting what it supersedes."""

    number: int
    superseded: tuple[Job, ...] = ()


@dataclass(frozen=True)
class Refuse:
    """This Job is live and was made from other parameters."""

    job: Job


Choice = Adopt | SubmitNew | Refuse


def choose(jobs: Sequence[Job], *, reattach: Reattach, claim: str, spec_hash: str, least_number: int = 0) -> Choice:
    """What to do. `jobs` are all that the task has; `least_number` is the lowest attempt that is free to use.

    1. What this very claim has submitted before is its own, whatever the policy.
    2. Otherwise a live gang is adopted, or superseded where the policy is `never`. One made from other
       parameters is refused, unless it never ran: then it was half submitted, and is superseded.
    3. With no live one, a success that nobody was told of is adopted if the policy says so.
    """
    newest = sorted(jobs, key=attempt_number, reverse=True)
    live = [job for job in newest if state_of(job) is JobState.LIVE]
    number = max([least_number, *(attempt_number(job) + 1 for job in jobs)])
    own = next((job for job in newest if annotation(job, ANNOTATION_CLAIM) == claim and _goes_on(job)), None)
    if own is not None and (state_of(own) is JobState.LIVE or _same(own, spec_hash)):
        return _adopt(own, spec_hash, number)
    if reattach is Reattach.NEVER:
        return SubmitNew(number, tuple(live))
    if live:
        return _adopt(live[0], spec_hash, number)
    last = newest[0] if newest else None
    wanted = reattach is Reattach.RUNNING_OR_SUCCEEDED and last is not None and state_of(last) is JobState.SUCCEEDED
    if wanted and last is not None and _same(last, spec_hash):
        return Adopt(last)
    return SubmitNew(number)


def differing(spec: GangSpec, job: Job) -> tuple[str, ...]:
    """Parameters whose digests differ between the spec and what the Job was made from."""
    try:
        theirs = json.loads(annotation(job, ANNOTATION_SPEC_FIELDS) or "null")
    except ValueError:
        return ()
    if not isinstance(theirs, dict):
        return ()
    ours = spec.field_digests
    return tuple(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)))


def _goes_on(job: Job) -> bool:
    return state_of(job) in {JobState.LIVE, JobState.SUCCEEDED}


def _same(job: Job, spec_hash: str) -> bool:
    return annotation(job, ANNOTATION_SPEC_HASH) == spec_hash


def _adopt(job: Job, spec_hash: str, number: int) -> Choice:
    if _same(job, spec_hash):
        return Adopt(job)
    return SubmitNew(number, (job,)) if never_ran(job) else Refuse(job)
