"""The outcomes of a gang: those in the ledger, and, after a success, also those that are not recorded yet.

The task calls `collect_outcomes` after the trigger has reported success. The function records outcomes of pods that are
still held, releases these pods, and reads the status of pods that cannot be recorded. `read_outcomes` only reads the
ledger, during a gang and after it, as long as its Job exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_provider_gangjobs import exceptions
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, outcome_of
from airflow_provider_gangjobs.gang.outcome.task_result import (
    Ranks,
    completed_ranks_in_event,
    completed_ranks_in_job,
    completed_ranks_without_job,
    find_missing_outcomes,
)
from airflow_provider_gangjobs.gang.state.pods import has_ended, is_held
from airflow_provider_gangjobs.jobs.requests import get_job, list_pods
from airflow_provider_gangjobs.tracking.harvest.ledger import read_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.kube.views import PodView


class SeenEnd(Struct, frozen=True):
    """What the follower of a gang has seen of its end, which needs not be read again."""

    outcomes: Sequence[Outcome] = ()
    """Outcomes that the ledger has: of a large gang only some."""
    pods: Sequence[PodView] = ()
    is_first_recorder: bool = False
    """Whether no other process had recorded an outcome of the gang when this wait recorded its first one."""


async def read_outcomes(client: Client, ref: GangRef) -> list[Outcome]:
    """Return every recorded outcome, one per pod, ordered by rank and then by creation.

    Raises:
        LedgerUnavailable: The ledger could not be read.
    """
    try:
        found = await read_ledger(client, ref)
    except ClusterError as exc:
        raise exceptions.LedgerUnavailable(str(ref), str(exc)) from exc
    return sorted(found, key=rank_order)


def rank_order(outcome: Outcome) -> tuple[bool, int, str, str]:
    """Return a sort key: by rank and then by creation. Pods without a rank come last."""
    created = outcome.created.isoformat() if outcome.created else ""
    return outcome.rank is None, outcome.rank or 0, created, outcome.uid


class CollectedOutcomes(Struct, frozen=True):
    """The outcomes of a gang that succeeded, as far as the ledger and the pods still have them."""

    outcomes: Sequence[Outcome]
    """One outcome per pod, ordered by rank and then by creation."""
    completed: Ranks | None
    """The ranks that the Job counts as completed; `None` if neither the event nor the cluster has this information."""
    missing: Ranks = 0
    """Completed ranks without an outcome."""
    job_is_gone: bool = False
    """The Job does not exist or is being deleted. Its ledger is deleted with it."""
    held: int = 0
    """Number of pods that the finalizer still holds, because their outcomes could not be recorded."""
    problem: str = ""
    """The error that prevented the recording of outcomes; empty if there was none."""

    @property
    def is_complete(self) -> bool:
        """The outcome of every completed rank was read."""
        return self.completed is not None and not self.missing


async def collect_outcomes(client: Client, event: GangEvent, known: Sequence[Outcome] = ()) -> CollectedOutcomes:
    """Return the outcomes of a gang that succeeded, also of pods whose outcomes are not recorded.

    The function sends one request if the ledger has the outcome of every completed rank and no pod is held, and none if
    these outcomes are known. Otherwise it reads the Job and lists the pods, records the outcomes that can be recorded
    now, and releases their pods. It reads the outcomes of all other pods from their status. These pods stay held, so a
    later try can read them again.

    :param known: Outcomes that the ledger has.

    Raises:
        LedgerUnavailable: The ledger, the Job or the pods could not be read. This does not mean that an outcome is
            missing.
    """
    ref, completed = event.ref, completed_ranks_in_event(event)
    if _is_settled(event, known, completed):
        return CollectedOutcomes(sorted(known, key=rank_order), completed)
    recorded = await read_outcomes(client, ref)
    if _is_settled(event, recorded, completed):
        return CollectedOutcomes(recorded, completed)
    try:
        job = await get_job(client, ref)
        job = job if job is not None and job.ref == ref else None
        if completed is None and job is not None:
            completed = completed_ranks_in_job(job.view)
            if _is_settled(event, recorded, completed):
                return CollectedOutcomes(recorded, completed)
        pods = await list_pods(client, ref)
    except ClusterError as exc:
        raise exceptions.LedgerUnavailable(str(ref), str(exc)) from exc
    job_is_gone = job is None or job.is_being_deleted
    outcomes = _add_outcomes_of_pods(recorded, pods)
    held, problem = await _harvest(client, ref, pods, has_ledger=not job_is_gone)
    completed = completed_ranks_without_job(event) if completed is None else completed
    missing = find_missing_outcomes(outcomes, completed) if completed is not None else 0
    return CollectedOutcomes(outcomes, completed, missing, job_is_gone=job_is_gone, held=held, problem=problem)


def _is_settled(event: GangEvent, outcomes: Sequence[Outcome], completed: Ranks | None) -> bool:
    return completed is not None and not find_missing_outcomes(outcomes, completed) and not event.counts.get("held", 0)


def _add_outcomes_of_pods(recorded: Sequence[Outcome], pods: Sequence[PodView]) -> list[Outcome]:
    known = {outcome.uid for outcome in recorded}
    unrecorded = [outcome_of(pod) for pod in pods if has_ended(pod) and pod.metadata.uid not in known]
    return sorted((*recorded, *unrecorded), key=rank_order)


async def _harvest(client: Client, ref: GangRef, pods: Sequence[PodView], *, has_ledger: bool) -> tuple[int, str]:
    """Record the outcomes of held pods and release these pods, as far as possible now.

    Without a ledger no pod is released: the pods are the only place that has their outcomes.

    :return: The number of pods that are still held, and the error; the error is empty if there was none.
    """
    held = [pod for pod in pods if is_held(pod)]
    if not has_ledger or not held:
        return len(held), ""
    # Pods are rarely held here, and the process of a task ends soon: it does not load the harvest for nothing.
    from airflow_provider_gangjobs.tracking.harvest.final_harvest import harvest_once

    still_held, error = await harvest_once(client, ref, held)
    return still_held, "" if error is None else str(error)
