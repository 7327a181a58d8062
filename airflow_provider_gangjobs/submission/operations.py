"""Submissions as operations: by an id that the client chose, to be polled, listed and deleted (FLIP-236).

The record is the Job with its labels and annotations, so it outlives every process. The id's digest is
the label by which one list finds all its attempts; the id itself stands in an annotation and is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.identity import OperationKey, parse_default_trigger_id
from airflow_provider_gangjobs.gang.selectors import ALL_GANGS, submission_selector
from airflow_provider_gangjobs.gang.state.job import read_job
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.submission.adopt import decide_operation_action
from airflow_provider_gangjobs.submission.record import SubmissionRecord, record_of
from airflow_provider_gangjobs.submission.requests import Api, Objects, RetryingRequests
from airflow_provider_gangjobs.submission.submit import Submission, SubmissionRequest, submit_by

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources
    from airflow_provider_gangjobs.gang.spec import GangSpec

TRIGGER_ID_CHARACTERS_MAX: Final = 512


async def submit_operation(
    client: Api,
    spec: GangSpec,
    *,
    trigger_id: str,
    discovered: DiscoveredResources,
    namespace: str = "default",
    dry_run: bool = False,
    clock: Clock | None = None,
) -> Submission:
    """Create the gang of this id, or return the one that is there, also if it has succeeded.

    One that has failed is submitted again, as the next attempt. One that can never be submitted as a whole
    is left halted, with the error, for `find` to show. Safe to repeat, to interrupt and to race.

    Raises:
        InvalidGangSpec: the request is wrong; nothing was asked.
        GangUnsupported: a gang is required and cannot be had.
        SubmissionConflict: the id stands for a gang that was made from other parameters.
        SubmissionFailed: the server refused a step, or could not be reached.
        JobDeleted: someone deleted the Job during the submission.
    """
    if problem := problem_with_trigger_id(trigger_id):
        raise InvalidGangSpec((problem,))
    require_valid(spec)
    # All who submit an id answer for it together, so a second one takes no claim away.
    request = SubmissionRequest(
        OperationKey(trigger_id), f"operation:{trigger_id}", decide_operation_action, dry_run, keep_failed=True
    )
    return await submit_by(client, spec, request, discovered=discovered, namespace=namespace, clock=clock)


def problem_with_trigger_id(trigger_id: str) -> Problem | None:
    """What is wrong with an id that a client chose."""
    if not trigger_id.strip() or not trigger_id.isprintable():
        return Problem("trigger_id", f"is {trigger_id!r:.80}", "Give printable text")
    if len(trigger_id) > TRIGGER_ID_CHARACTERS_MAX:
        return Problem("trigger_id", f"has {len(trigger_id)} characters", f"At most {TRIGGER_ID_CHARACTERS_MAX}")
    if parse_default_trigger_id(trigger_id):
        return Problem("trigger_id", f"is {trigger_id}, which has the form of a task's own ids", "Choose another")
    return None


def selector_of(trigger_id: str) -> str:
    """The label selector of all Jobs of an id, be it chosen by a client or a task's default one."""
    digest, attempt = parse_default_trigger_id(trigger_id) or (OperationKey(trigger_id).digest, None)
    return submission_selector(digest, attempt)


async def jobs_of(requests: RetryingRequests, trigger_id: str) -> Objects:
    """All Jobs of an id, the newest attempt first. One request."""
    jobs = await requests.list(JOBS, selector_of(trigger_id))
    return sorted(jobs, key=lambda job: read_job(job).attempt_number, reverse=True)


async def find(client: Api, trigger_id: str, *, namespace: str) -> SubmissionRecord | None:
    """The submission as it stands, its newest attempt if it was submitted again; None if there is none.

    Raises:
        ClusterError: that is not known.
    """
    jobs = await jobs_of(RetryingRequests(client, namespace), trigger_id)
    return record_of(read_job(jobs[0])) if jobs else None


@dataclass(frozen=True)
class SubmissionPage:
    """Some of a namespace's submissions."""

    records: tuple[SubmissionRecord, ...]
    continue_token: str | None
    """Gives the next page; None on the last one."""


async def page(
    client: Api,
    *,
    namespace: str | None,
    selector: str | None = None,
    limit: int,
    continue_token: str | None = None,
) -> SubmissionPage:
    """A page of all submissions of a namespace (of the cluster if None) that a label selector picks. One request.

    Raises:
        Gone: the token is too old; begin again.
        ClusterError: the list could not be read.
    """
    raw = await client.list_page(
        JOBS,
        namespace,
        label_selector=f"{ALL_GANGS},{selector}" if selector else ALL_GANGS,
        limit=limit,
        continue_token=continue_token,
    )
    decoded: dict[str, Any] = msgspec.json.decode(raw)
    records = tuple(record_of(read_job(job)) for job in decoded.get("items") or ())
    return SubmissionPage(records, (decoded.get("metadata") or {}).get("continue") or None)
