"""Requests of submissions that do not wait for the pods of earlier attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import Claim
from airflow_provider_gangjobs.submission.submission import SubmissionRequest, TaskRule

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.spec import Policies


def task_request(
    key: TaskKey,
    claim: str,
    *,
    durable: bool = True,
    policies: Policies | None = None,
    max_tries: int | None = None,
    **fields: Any,
) -> SubmissionRequest:
    """Return the request of a task for its gang."""
    rule = TaskRule(durable=durable)
    return SubmissionRequest(key=key, claim=Claim(claim, policies, max_tries), rule=rule, **fields)


def id_request(submission_id: str, **fields: Any) -> SubmissionRequest:
    """Return the request for the gang of an id that the client chose."""
    return replace(SubmissionRequest.of_id(submission_id), previous=None, **fields)
