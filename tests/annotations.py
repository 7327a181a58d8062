"""The annotations of a gang's Job, as the product writes them."""

from __future__ import annotations

from typing import Any

from airflow_provider_gangjobs.gang.record import Record, StoredClaim, Submitted, to_text
from airflow_provider_gangjobs.gang.spec import OnFinish, OnKill, Policies, RoleRanks, WaitUntil
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM, ANNOTATION_RECORD, ANNOTATION_SUBMITTED

LEADER_AND_WORKERS = (RoleRanks("leader", 1, 0), RoleRanks("worker", 3, 1))


def recorded(**fields: Any) -> dict[str, str]:
    """Return the record with these fields."""
    return {ANNOTATION_RECORD: Record(**fields).to_text()}


def claimed(claim: str = "ti-1", **fields: Any) -> dict[str, str]:
    """Return the claim of a task instance. Without `policies` among the fields, it has none."""
    return {ANNOTATION_CLAIM: to_text(StoredClaim(id=claim, **fields))}


def submitted(**fields: Any) -> dict[str, str]:
    """Return what the last step of a submission has found."""
    return {ANNOTATION_SUBMITTED: to_text(Submitted(**fields))}


def policies(on_kill: str = "delete", on_finish: str = "delete_succeeded", wait_until: str = "ended") -> Policies:
    """Return the policies of a task."""
    return Policies(OnKill(on_kill), OnFinish(on_finish), WaitUntil(wait_until))
