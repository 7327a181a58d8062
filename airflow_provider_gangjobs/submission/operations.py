"""Submissions under an id that the client chooses. They can be polled, listed, and deleted (FLIP-236).

The record of a submission is the Job with its labels and annotations, so the record outlives every process. A label has
the digest of the id, so one list finds all attempts. An annotation has the id itself, which is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.ending.delete_submission import jobs_of
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.identity import ALL_GANGS, OperationKey, parse_default_submission_id
from airflow_provider_gangjobs.gang.labels import LABEL_GANG_ROLE
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.gang.state.job import read_job
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.jobs.retrying_requests import RetryingRequests
from airflow_provider_gangjobs.submission.adopt_or_submit import decide_operation_action
from airflow_provider_gangjobs.submission.record import SubmissionRecord, record_of
from airflow_provider_gangjobs.submission.submit import SubmissionRequest, submit_by

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client_protocol import ClientProtocol
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.submission.previous_attempts import PreviousGangs
    from airflow_provider_gangjobs.submission.record import Submission

SUBMISSION_ID_CHARACTERS_MAX: Final = 512


async def submit_operation(
    client: ClientProtocol,
    spec: GangSpec,
    *,
    submission_id: str,
    discovered: DiscoveredResources,
    namespace: str = "default",
    dry_run: bool = False,
    previous: PreviousGangs | None = None,
    clock: Clock | None = None,
) -> Submission:
    """Create the gang of this id, or return the gang that exists, also if it has succeeded.

    A gang that has failed is submitted again, as the next attempt. If a gang can never be submitted completely, its Job
    is halted with the error, and `find` returns the error. Safe to repeat, to interrupt, and to run concurrently.

    Raises:
        InvalidGangSpec: the spec or the id is invalid. No request was sent, or the server refused the Job.
        GangUnsupported: a gang is required, and the cluster does not support it.
        SubmissionConflict: the gang of this id was created from other parameters.
        SubmissionFailed: the server refused a step, or could not be reached.
        PreviousAttemptRunning: pods of an earlier attempt still run.
        JobDeleted: someone deleted the Job during the submission.
    """
    if problem := problem_with_submission_id(submission_id):
        raise InvalidGangSpec((problem,))
    require_valid(spec)
    # All clients that submit an id share one claim, so a second client takes the claim from nobody.
    request = SubmissionRequest(
        OperationKey(submission_id), f"operation:{submission_id}", decide_operation_action, dry_run, keep_failed=True
    )
    return await submit_by(
        client, spec, request, discovered=discovered, namespace=namespace, previous=previous, clock=clock
    )


def problem_with_submission_id(submission_id: str) -> Problem | None:
    """Return the problem with an id that a client chose, or None if the id is valid."""
    if not submission_id.strip() or not submission_id.isprintable():
        return Problem("submission_id", f"is {submission_id!r:.80}", "Give printable text")
    if len(submission_id) > SUBMISSION_ID_CHARACTERS_MAX:
        return Problem(
            "submission_id", f"has {len(submission_id)} characters", f"At most {SUBMISSION_ID_CHARACTERS_MAX}"
        )
    if parse_default_submission_id(submission_id):
        return Problem(
            "submission_id", f"is {submission_id}, which has the form of the ids of tasks", "Choose another id"
        )
    return None


async def find(client: ClientProtocol, submission_id: str, *, namespace: str) -> SubmissionRecord | None:
    """Return the record of the newest attempt of a submission, or None if there is no such submission.

    Raises:
        ClusterError: this is unknown.
    """
    requests = RetryingRequests(client, namespace)
    jobs = await jobs_of(requests, submission_id)
    return record_of(await requests.read_gang(jobs[0])) if jobs else None


@dataclass(frozen=True)
class SubmissionPage:
    """One page of a list of submissions."""

    records: tuple[SubmissionRecord, ...]
    continue_token: str | None
    """The token of the next page. None on the last page."""


async def page(
    client: ClientProtocol,
    *,
    namespace: str | None,
    selector: str | None = None,
    limit: int,
    continue_token: str | None = None,
) -> SubmissionPage:
    """Return a page of submissions. Sends one request, and another one if a gang of the page has roles.

    :param namespace: The namespace. None means the whole cluster.
    :param selector: A label selector. By default all submissions are listed.

    Raises:
        Gone: the token has expired. Start again with the first page.
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
    jobs = decoded.get("items") or ()
    if any(read_job(job).has_roles for job in jobs):
        others = await client.list(JOBS, namespace, label_selector=LABEL_GANG_ROLE)
        records = tuple(record_of(read_gang(job, others)) for job in jobs)
    else:
        records = tuple(record_of(read_job(job)) for job in jobs)
    return SubmissionPage(records, (decoded.get("metadata") or {}).get("continue") or None)
