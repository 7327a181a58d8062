"""Outcomes: who ended how, read from the ledger, and where the ledger lacks some, from the pods that still tell.

Works during a gang and after it, while its Job or its pods exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, outcome_of
from airflow_provider_gangjobs.gang.outcome.results import (
    NONE_MISSING,
    Completed,
    Missing,
    completed_by,
    completed_in,
    completed_without_job,
    missing,
)
from airflow_provider_gangjobs.gang.state.pods import has_ended, is_held
from airflow_provider_gangjobs.kube.views import JobView, view
from airflow_provider_gangjobs.tracking.harvest.harvest_task import harvest_once
from airflow_provider_gangjobs.tracking.ledger import read_ledger
from airflow_provider_gangjobs.tracking.read.pods import list_pods

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.kube.views import PodView


@dataclass(frozen=True)
class Evidence:
    """All that can still be read of how the ranks of a succeeded gang ended."""

    outcomes: Sequence[Outcome]
    """One per pod, by rank and then by creation."""
    completed: Completed | None
    """`None`: nobody can say any more which ranks the Job counted as completed."""
    missing: Missing = NONE_MISSING
    """Completed ranks without an outcome."""
    job_is_gone: bool = False
    """The Job was looked for and is not there, or is being deleted. The ledger goes with it."""
    held: int = 0
    """Pods that the finalizer still holds, because their outcome could not be recorded."""
    problem: str = ""
    """What hindered reading or recording outcomes of pods."""

    @property
    def is_complete(self) -> bool:
        """The outcome of every completed rank was read."""
        return self.completed is not None and not self.missing


async def outcomes(client: Client, ref: GangRef) -> list[Outcome]:
    """Every outcome that is recorded, one per pod, by rank and then by creation.

    Raises:
        LedgerUnavailable: the ledger could not be read.
    """
    try:
        found = await read_ledger(client, ref)
    except ClusterError as exc:
        raise LedgerUnavailable(str(ref), str(exc)) from exc
    return sorted(found, key=_order)


async def evidence_of_success(client: Client, event: GangEvent) -> Evidence:
    """The outcomes of a gang that succeeded, also of pods that are not recorded.

    One request if the ledger has the outcome of every completed rank and no pod is held. Otherwise the Job and the pods
    are looked at. Pods that can be recorded now are recorded and released. The outcome of the others is read from their
    status, and they stay held, so that a later try can read it again.

    Raises:
        LedgerUnavailable: the ledger, the Job or the pods could not be read; that is not an outcome that is missing.
    """
    ref = event.ref
    found, completed = await outcomes(client, ref), completed_by(event)
    if completed is not None and not missing(found, completed) and not event.counts.get("held"):
        return Evidence(found, completed)
    try:
        job = await _job(client, ref)
        if completed is None and job is not None:
            completed = completed_in(job)
            if not missing(found, completed) and not event.counts.get("held"):
                return Evidence(found, completed)
        pods = await list_pods(client, ref)
    except ClusterError as exc:
        raise LedgerUnavailable(str(ref), str(exc)) from exc
    is_gone = job is None or job.metadata.deletion_timestamp is not None
    found = _with_pods(found, pods)
    held, problem = await _harvest(client, ref, pods, has_ledger=not is_gone)
    completed = completed or completed_without_job(event, found)
    lacking = missing(found, completed) if completed is not None else NONE_MISSING
    return Evidence(found, completed, lacking, job_is_gone=is_gone, held=held, problem=problem)


async def _job(client: Client, ref: GangRef) -> JobView | None:
    """The Job of this uid, if it is there."""
    try:
        job = view(JobView, await client.get(JOBS, ref.name, ref.namespace))
    except NotFound:
        return None
    return job if job.metadata.uid == ref.uid else None


def _with_pods(recorded: Sequence[Outcome], pods: Sequence[PodView]) -> list[Outcome]:
    known = {outcome.uid for outcome in recorded}
    unrecorded = [outcome_of(pod) for pod in pods if has_ended(pod) and pod.metadata.uid not in known]
    return sorted((*recorded, *unrecorded), key=_order)


async def _harvest(client: Client, ref: GangRef, pods: Sequence[PodView], *, has_ledger: bool) -> tuple[int, str]:
    """Record and release what can be recorded now. How many pods are still held, and what hindered.

    Without a ledger nothing is released: the pods are the only place that has their outcomes.
    """
    held = [pod for pod in pods if is_held(pod)]
    if not has_ledger or not held:
        return len(held), ""
    still_held, error = await harvest_once(client, ref, held)
    return still_held, "" if error is None else str(error)


def _order(outcome: Outcome) -> tuple[bool, int, str, str]:
    created = outcome.created.isoformat() if outcome.created else ""
    return outcome.rank is None, outcome.rank or 0, created, outcome.uid
