"""Submissions with a fault at one request, and a gang with every object that a submission creates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.errors import Conflict, ReplyLost, ServerError, TooManyRequests, Unreachable
from airflow_provider_gangjobs.ending.submissions import selector_of
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.resources import JOBS
from tests.crashes import Crash, CrashingClient, ProcessDied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.service import GangService

SPEC = GangSpec(
    image="python:3.12",
    command=["python", "-c", "import time; time.sleep(600)"],
    workers=2,
    resources={"cpu": "100m"},
    files={"a.txt": "a"},
    termination_grace_s=1,
)

FAULTS: dict[str, tuple[Callable[[], BaseException], bool]] = {
    "dies before": (ProcessDied, False),
    "dies after": (ProcessDied, True),
    "409": (lambda: Conflict(409, request="request", reason="Conflict"), False),
    "429": (lambda: TooManyRequests(429, request="request", reason="TooManyRequests", retry_after_s=0.1), False),
    "500 before": (lambda: ServerError(500, request="request", reason="InternalError"), False),
    "500 after": (lambda: ServerError(500, request="request", reason="InternalError"), True),
    "503": (lambda: ServerError(503, request="request", reason="ServiceUnavailable"), False),
    "unreachable": (lambda: Unreachable("request", "injected"), False),
    "reply lost before": (lambda: ReplyLost("request", "injected"), False),
    "reply lost after": (lambda: ReplyLost("request", "injected"), True),
}
"""The error of the request, and whether the API server has applied the request."""


async def fail_at(
    at: int, fault: tuple[Callable[[], BaseException], bool], gangs: GangService, submit: Callable[..., Awaitable[Any]]
) -> None:
    """Submit a gang with a client that has the fault at this request. If the submission fails, it may be retried."""
    error, applied = fault
    try:
        await submit(CrashingClient(gangs.client, Crash(at, applied), error=error))
    except ProcessDied:
        return
    except SubmissionFailed as failed:
        if not failed.retryable:
            raise


async def live_jobs(gangs: GangService, submission_id: str) -> list[dict[str, Any]]:
    """Return the Jobs of a submission that have not ended."""
    jobs = await gangs.client.list(JOBS, gangs.namespace, label_selector=selector_of(submission_id))
    return [job for job in jobs if state_of(read_job(job)) is SubmissionState.IN_PROGRESS]
