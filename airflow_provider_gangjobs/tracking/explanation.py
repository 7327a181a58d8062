"""Explanation: what one gang does at present and why, from a snapshot, by the functions of the task's log.

Whoever shows why a gang waits or has ended, in a terminal or on a page, takes the `Diagnosis` from here. A gang that
waits for nodes is explained by what its follower would read, too: the words of the scheduler that a pod has lost, and
the capacity of the cluster, where the rights allow it. Everything but the functions that read is pure.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations at run time
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.gang.gang_lists import GangRow, format_amount, kept_until, row_of
from airflow_provider_gangjobs.gang.outcome.diagnosis import diagnose
from airflow_provider_gangjobs.gang.outcome.rank_rows import RankRow, Tone, build_rows, merge_outcomes, tone_of
from airflow_provider_gangjobs.gang.state.category import Category, Diagnosis
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.gang.state.observation import Observation, observe, observe_counters
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.pod_index import Counts, PodIndex
from airflow_provider_gangjobs.gang.state.waiting import find_named_refusal
from airflow_provider_gangjobs.kube.quantity import requests_of
from airflow_provider_gangjobs.tracking.snapshot import read_snapshot
from airflow_provider_gangjobs.tracking.watch.cluster_use import measure_capacity
from airflow_provider_gangjobs.tracking.watch.wait_evidence import find_claim_problem, refusal_events

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.capacity import Capacity
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.tracking.snapshot import GangSnapshot

CAPACITY_WITHIN_S: Final = 5.0
"""A person waits for the page, so it is shown without the capacity of a cluster that takes longer to be read."""


@dataclass(frozen=True)
class GangState:
    """Everything that is shown of one gang."""

    row: GangRow
    phase: Phase
    tone: Tone
    since: datetime | None
    """When the phase began."""
    line: str
    """The line of the task's log: the phase, counts of ranks, and what the gang waits for."""
    diagnosis: Diagnosis
    times: tuple[tuple[Phase, datetime], ...]
    """When each phase began that the gang has reached."""
    ranks: tuple[RankRow, ...]
    requests: Mapping[str, str]
    """Requests of one rank, by resource; empty for a gang with roles."""
    placement: str
    is_over: bool
    unread: tuple[str, ...]
    """Plural names of resources that could not be read."""
    capacity: Capacity | None = None
    """How much is free of what the gang waits for; `None` if that is unknown, or the gang can never fit."""


class Room(Struct, frozen=True):
    """How many ranks of a gang the cluster has room for."""

    room: int | None
    ranks: int
    text: str


class GangReason(Struct, frozen=True):
    """What one gang does and why: the answer of `gangjobs why`, and of the REST interface."""

    namespace: str
    name: str
    phase: Phase
    since: datetime | None
    line: str
    diagnosis: Diagnosis
    capacity: Room | None


async def read_state(client: Client, job: StoredGang) -> GangState:
    """Read what there is of a gang, in a bounded number of requests.

    Raises:
        ClusterError: The Jobs could not be read.
    """
    snapshot = await read_explained(client, job.ref.namespace, (job.task_digest or "",), job.ref.uid)
    if snapshot.job is None:  # the Job was deleted meanwhile
        return _state_without_job(job)
    state = state_of_snapshot(snapshot, client.server_clock.now())
    return replace(state, row=with_fields(state.row, kept_until=kept_until(job)))


async def read_explained(
    client: Client, namespace: str, digests: Sequence[str], uid: str | None = None
) -> GangSnapshot:
    """Read a snapshot, and why the cluster has no room for a gang that waits for nodes. See `read_snapshot`."""
    snapshot = await read_snapshot(client, namespace, digests, uid)
    if snapshot.job is None or not observe_snapshot(snapshot).waits_for_nodes:
        return snapshot
    job = job_of(snapshot)
    if observe_snapshot(snapshot).wait.names_no_cause:
        events = await refusal_events(client, job.ref, frozenset(pod.metadata.uid for pod in snapshot.pods))
        snapshot = _with_evidence(snapshot, earlier_refusal=find_named_refusal(events))
    with suppress(TimeoutError):
        async with asyncio.timeout(CAPACITY_WITHIN_S):
            if observe_snapshot(snapshot).diagnosis.category is Category.VOLUME_UNAVAILABLE:
                snapshot = _with_evidence(snapshot, claim_problem=await find_claim_problem(client, job.ref))
            return _with_evidence(snapshot, capacity=await measure_capacity(client, job, snapshot.podgroup))
    return snapshot


def _with_evidence(snapshot: GangSnapshot, **more: Any) -> GangSnapshot:
    return replace(snapshot, evidence=with_fields(snapshot.evidence, **more))


def state_of_snapshot(snapshot: GangSnapshot, now: datetime) -> GangState:
    """Return what a snapshot shows of its gang."""
    job = job_of(snapshot)
    observation = observe_snapshot(snapshot)
    outcomes = merge_outcomes(snapshot.pods, snapshot.outcomes)
    assert snapshot.job is not None, "the caller has checked that the Job exists"
    return GangState(
        row=row_of(job),
        phase=observation.phase,
        tone=tone_of(observation.phase),
        since=observation.since,
        line=observation.line,
        diagnosis=diagnose(observation, outcomes),
        times=tuple((phase, at) for phase in Phase if (at := observation.began.get(phase)) is not None),
        ranks=tuple(build_rows(snapshot.pods, outcomes, now)),
        requests={} if job.has_roles else _requests(snapshot.job),
        placement=job.decision or "",
        is_over=observation.verdict is not None or observation.phase is Phase.FAILED,
        unread=snapshot.unread,
        capacity=observation.wait.capacity,
    )


def reason_of(state: GangState) -> GangReason:
    """Return the part of the state that answers why a gang is in its phase."""
    capacity = state.capacity
    return GangReason(
        namespace=state.row.namespace,
        name=state.row.name,
        phase=state.phase,
        since=state.since,
        line=state.line,
        diagnosis=state.diagnosis,
        capacity=Room(capacity.room, capacity.ranks, capacity.text) if capacity else None,
    )


def _state_without_job(job: StoredGang) -> GangState:
    observation = observe(None, (), None, job.ref)
    phase = observation.phase
    found = diagnose(observation, ())
    return GangState(row_of(job), phase, tone_of(phase), None, observation.line, found, (), (), {}, "", True, ())


def _requests(stored: Mapping[str, Any]) -> dict[str, str]:
    try:
        requests = requests_of(stored["spec"]["template"]["spec"])
    except (KeyError, TypeError, ValueError):
        return {}
    return {name: format_amount(name, amount) for name, amount in sorted(requests.items()) if amount}


def job_of(snapshot: GangSnapshot) -> StoredGang:
    """Return the gang whose pods were read."""
    assert snapshot.job is not None, "the caller has checked that the Job exists"
    return read_gang(snapshot.job, snapshot.role_jobs)


def observe_snapshot(snapshot: GangSnapshot) -> Observation:
    """Return the observation of the pods or, if the snapshot does not have all pods, of the counters of the Job."""
    job = job_of(snapshot)
    if snapshot.is_whole:
        return observe(job, snapshot.pods, snapshot.podgroup, job.ref, snapshot.evidence)
    sample = PodIndex(job.ref, snapshot.pods)
    return observe_counters(job, sample, snapshot.podgroup, _counts_of_job(job), snapshot.evidence)


def _counts_of_job(job: StoredGang) -> Counts:
    """Return counts from the Job's counters, which do not distinguish the pods that have not started."""
    started, ranks = job.started_ranks, job.ranks
    return Counts(
        ranks=ranks,
        created=ranks,
        placed=started,
        started=started,
        running=job.status.ready,
        succeeded=job.status.succeeded,
        failed=job.status.failed,
    )


__all__ = [
    "GangReason",
    "GangState",
    "job_of",
    "observe_snapshot",
    "read_explained",
    "read_state",
    "reason_of",
    "state_of_snapshot",
]
