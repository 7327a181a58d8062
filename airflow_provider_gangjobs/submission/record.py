"""What a submission returns, and the record of a submission, which is stored in the Job and nowhere else.

The Job with its labels and annotations outlives every process. A label has the digest of the id, so one list finds all
attempts. The record does not show what a pod waits for and which rank failed: follow the gang for these facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - the schema of the REST interface reads the annotations at run time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.identity import ALL_GANGS, GangRef
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.gang.state.phase import Phase, SubmissionState, phase_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG_ROLE

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang

__all__ = [
    "FailureCause",
    "Submission",
    "SubmissionPage",
    "SubmissionRecord",
    "find_record",
    "list_records",
    "record_of",
]


@dataclass(frozen=True)
class Submission:
    """The one live gang of a task."""

    ref: GangRef
    attempt: int
    workers: int
    """The number of ranks."""
    submission_id: str
    decision: str
    """The value of the Job's annotation: `gang:v1beta1`, `basic:<reason>`, `brought` or `off`."""
    adopted: bool
    """Whether the gang existed before, from an earlier try or a concurrent submitter."""
    state: SubmissionState
    """In progress; or the gang had succeeded before; or it had failed before, and its failure was not handled."""
    requests: int
    """How many requests the submission has sent."""
    is_suspended: bool = False
    """Whether the Job of a gang in progress is suspended. Kueue starts it, or the user with `keep_suspended`."""
    disruptions: int = 0
    """How many attempts in a row were lost to disruptions before this one."""
    notes: tuple[str, ...] = ()
    """Guarantees that were requested with `preferred` and that the gang does not have, for the log."""
    queue: str | None = None
    """The Kueue queue that decides when the Job runs."""
    queue_defaults: tuple[str, ...] = ()
    """Which of `queue_name` and `queue_priority` a new gang has from the connection."""
    restarts_max: int = 0
    """How often the programs of the ranks may be restarted in their pods."""


@dataclass(frozen=True)
class FailureCause:
    """Why a submission failed."""

    reason: str
    """The reason of the Job's Failed condition, the class of the error that stopped the submission, or `Halted`."""
    message: str


@dataclass(frozen=True)
class SubmissionRecord:
    """The current state of one submission."""

    submission_id: str
    ref: GangRef
    attempt: int
    state: SubmissionState
    phase: Phase
    """The phase as in the trigger's log, derived from the counters of the Job only."""
    decision: str
    """The value of the Job's annotation: `gang:v1beta1`, `basic:<reason>`, `brought` or `off`."""
    spec_hash: str
    workers: int
    ready: int
    """The number of ranks that run and are ready."""
    submitted_at: datetime
    installation: str = ""
    """Id of the Airflow installation that made the gang. Empty if the Job does not name it."""
    started_at: datetime | None = None
    """When the Job was started."""
    ended_at: datetime | None = None
    delivered_at: datetime | None = None
    error: FailureCause | None = None


def record_of(job: StoredGang) -> SubmissionRecord:
    """Return the record of the submission that a stored Job belongs to."""
    assert job.created_at is not None, "a stored Job has a creation time"
    phase = phase_of(job)
    return SubmissionRecord(
        submission_id=job.submission_id or "",
        ref=job.ref,
        attempt=job.attempt_number,
        state=_state(job, phase),
        phase=phase,
        decision=job.decision or "",
        spec_hash=job.spec_hash or "",
        workers=job.workers,
        ready=job.status.ready,
        submitted_at=job.created_at,
        installation=job.installation,
        started_at=job.started_at,
        ended_at=job.ended_at,
        delivered_at=job.delivered_at,
        error=FailureCause(*job.failure_cause) if job.failure_cause else None,
    )


def _state(job: StoredGang, phase: Phase) -> SubmissionState:
    """Return the state as a user reads it. A gang that was halted has failed, and the phase shows how a gang ended."""
    if job.is_being_deleted:
        return SubmissionState.DELETING
    if job.is_ending_by_halt:
        return SubmissionState.FAILED
    return _STATE_OF.get(phase, SubmissionState.IN_PROGRESS)


_STATE_OF: Final = {Phase.SUCCEEDED: SubmissionState.SUCCEEDED, Phase.FAILED: SubmissionState.FAILED}


async def find_record(client: Client, submission_id: str, *, namespace: str) -> SubmissionRecord | None:
    """Return the record of the newest attempt of a submission, or None if there is no such submission.

    Raises:
        ClusterError: this is unknown.
    """
    from airflow_provider_gangjobs.ending.delete_submission import jobs_of
    from airflow_provider_gangjobs.jobs.requests import RetryingRequests

    requests = RetryingRequests(client, namespace)
    jobs = await jobs_of(requests, submission_id)
    return record_of(await requests.read_gang(jobs[0])) if jobs else None


@dataclass(frozen=True)
class SubmissionPage:
    """One page of a list of submissions."""

    records: tuple[SubmissionRecord, ...]
    continue_token: str | None
    """The token of the next page. None on the last page."""


async def list_records(
    client: Client,
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
    has_roles = any(read_job(job).has_roles for job in jobs)
    others = await client.list(JOBS, namespace, label_selector=LABEL_GANG_ROLE) if has_roles else ()
    records = tuple(record_of(read_gang(job, others)) for job in jobs)
    return SubmissionPage(records, (decoded.get("metadata") or {}).get("continue") or None)
