"""What one gang does at present and why: a snapshot of its state, and the explanation of the snapshot.

A snapshot is bounded however large the gang is. Nothing is changed. Of a gang of up to a thousand ranks all pods and
outcomes are read. Of a larger gang the counters of the Job are used, and only the pods that failed or wait are read, up
to a limit. Only the verbs `get` and `list` are used. What may not be read, apart from the Job, is left out and named.
What only Kueue shows is left out and not named.

Whoever shows why a gang waits or has ended, in a terminal or on a page, takes the `Diagnosis` from here, which has the
texts of the task's log. A gang that waits for nodes is explained by what its follower would read, too: the words of the
scheduler that a pod has lost, and the capacity of the cluster, where the rights allow it. Everything but the functions
that read is pure.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations at run time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.cluster.client import PAGE_OBJECTS
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.kueue import list_workloads, recent_position
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.gang.gang_lists import GangRow, format_amount, kept_until, row_of
from airflow_provider_gangjobs.gang.identity import gang_selector, task_selector
from airflow_provider_gangjobs.gang.outcome.outcome_diagnosis import diagnose
from airflow_provider_gangjobs.gang.outcome.rank_rows import RankRow, build_rows, merge_outcomes
from airflow_provider_gangjobs.gang.state.category import Category, Diagnosis
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.gang.state.observation import Observation, observe, observe_counters
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.pod_index import Counts, PodIndex
from airflow_provider_gangjobs.gang.state.pods import is_prepared_by_node, pods_of
from airflow_provider_gangjobs.gang.state.queue_wait import explain_suspension, waits_for_kueue
from airflow_provider_gangjobs.gang.state.waiting import NO_EVIDENCE, Evidence, WaitCause, find_named_refusal
from airflow_provider_gangjobs.jobs.gang_secrets import NO_SECRETS, read_mask
from airflow_provider_gangjobs.jobs.requests import list_role_jobs
from airflow_provider_gangjobs.kube.quantity import requests_of
from airflow_provider_gangjobs.kube.views import KueueWorkloadView, PodGroupView, PodView
from airflow_provider_gangjobs.tracking.gang_watch import group_resource, podgroups_served
from airflow_provider_gangjobs.tracking.harvest.ledger import read_ledger
from airflow_provider_gangjobs.tracking.wait_evidence import (
    find_claim_problem,
    gang_events,
    measure_capacity,
    queue_events,
    refusal_events,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import EventView


V = TypeVar("V", bound=msgspec.Struct)


WHOLE_RANKS_MAX: Final = 1000
"""A gang of up to so many ranks is read as a whole: two pages of pods and at most 4.3 MB of ledger."""
WHOLE_PAGES_MAX: Final = 4
"""Pages of 500 pods. A Job that made more than twice as many pods as it has ranks is not read as a whole."""
SAMPLE_PODS: Final = 200
"""How many failed pods, and how many waiting pods, are read of a large gang."""


@dataclass(frozen=True)
class GangSnapshot:
    """What the API server has."""

    jobs: Sequence[Mapping[str, Any]] = ()
    """All attempts of the task, the latest first."""
    job: Mapping[str, Any] | None = None
    """The Job whose pods and outcomes were read, if there is one."""
    role_jobs: Sequence[Mapping[str, Any]] = ()
    """The Jobs of the other roles of all these gangs."""
    pods: Sequence[PodView] = ()
    outcomes: Sequence[Outcome] = ()
    podgroup: PodGroupView | None = None
    evidence: Evidence = NO_EVIDENCE
    """What explains why the gang waits. `explanation.read_explained` adds the capacity, and what pods have lost."""
    is_whole: bool = True
    """`pods` and `outcomes` are complete."""
    unread: tuple[str, ...] = ()
    """Plural names of resources that could not be read."""


async def read_snapshot(client: Client, namespace: str, digest: str, uid: str | None = None) -> GangSnapshot:
    """Read the attempts of a task, and pods and outcomes of the attempt with this uid, by default of the latest.

    The secrets of its gang are masked in all messages.

    :param digest: The value of `LABEL_TASK` of the task or submission id.

    Raises:
        ClusterError: The Jobs, or the secrets of the gang, could not be read.
    """
    found = await client.list(JOBS, namespace, label_selector=task_selector(digest))
    jobs = sorted(found, key=lambda job: str(job["metadata"].get("creationTimestamp")), reverse=True)
    chosen = next((job for job in jobs if uid in (None, job["metadata"]["uid"])), None)
    snapshot = GangSnapshot(jobs=jobs, job=chosen, role_jobs=await list_role_jobs(client, namespace, jobs))
    if chosen is None:
        return snapshot
    job = job_of(snapshot)
    read = await _Reader(client, job).read(snapshot)
    mask = await read_mask(client, job.ref, [chosen, *snapshot.role_jobs])
    if mask is NO_SECRETS:
        return read
    return replace(read, **{name: mask.messages(getattr(read, name)) for name in ("pods", "outcomes", "evidence")})


class _Reader:
    """Reads what belongs to one gang."""

    def __init__(self, client: Client, job: StoredGang) -> None:
        self.client = client
        self.job = job
        self.ref = job.ref
        self.unread: list[str] = []

    async def read(self, snapshot: GangSnapshot) -> GangSnapshot:
        pods, is_whole = await self._pods()
        outcomes = await self._outcomes(is_whole)
        podgroup, events = await self._evidence_of_pods(pods, is_whole=is_whole)
        evidence = Evidence(events)
        if (waits_for_kueue(self.job) or self._assembles_in_queue) and not self.job.is_over:
            workload, shows_queue = await self._workload()
            if workload is None and not self._assembles_in_queue:
                of_workload = await queue_events(self.client, self.ref)
                shows_queue = shows_queue and not of_workload
                events = (*events, *of_workload)
            evidence = Evidence(events, workload, await self._position(workload, events), shows_queue)
        return replace(
            snapshot,
            pods=pods_of(self.ref, pods),
            outcomes=outcomes,
            podgroup=podgroup,
            evidence=evidence,
            is_whole=is_whole,
            unread=tuple(self.unread),
        )

    @property
    def _assembles_in_queue(self) -> bool:
        """Kueue lets the gang run, and its Workload shows for how long the gang has assembled before."""
        return self.job.is_queued_by_kueue and phase_of(self.job) is Phase.ASSEMBLING

    async def _evidence_of_pods(
        self, pods: Sequence[PodView], *, is_whole: bool
    ) -> tuple[PodGroupView | None, tuple[EventView, ...]]:
        """Return what says why pods are missing, have no node, or are not ready. A suspended Job is to have no pods."""
        if self.job.is_suspended:
            return None, ()
        lacks_pods = len(pods) < self.job.ranks
        is_waiting = lacks_pods or any(not pod.spec.node_name for pod in pods)
        podgroup = await self._podgroup() if is_waiting else None
        has_events = (lacks_pods and is_whole) or any(map(is_prepared_by_node, pods))
        return podgroup, await gang_events(self.client, self.ref, pods) if has_events else ()

    async def _workload(self) -> tuple[KueueWorkloadView | None, bool]:
        """Return Kueue's Workload, and whether Workloads can be read. They only explain why a gang waits."""
        try:
            found = await list_workloads(self.client, self.ref.namespace, self.job.queued_uid)
        except ClusterError:
            return None, False
        return (found[0].view if found else None), True

    async def _position(self, workload: KueueWorkloadView | None, events: Sequence[EventView]) -> int | None:
        evidence = Evidence(events, queue_workload=workload)
        if self.job.queue is None or explain_suspension(self.job, evidence).cause is not WaitCause.QUEUE:
            return None
        return await recent_position(self.client, self.ref.namespace, self.job.queue, self.job.queued_uid)

    async def _pods(self) -> tuple[list[PodView], bool]:
        try:
            if self.job.ranks <= WHOLE_RANKS_MAX:
                pods, is_whole = await self._list(PodView, PODS, pages_max=WHOLE_PAGES_MAX)
                if is_whole:
                    return pods, True
            failed, _ = await self._list(PodView, PODS, field_selector="status.phase=Failed", limit=SAMPLE_PODS)
            pending, _ = await self._list(PodView, PODS, field_selector="status.phase=Pending", limit=SAMPLE_PODS)
        except ClusterError:
            self.unread.append("pods")
            return [], False
        return [*failed, *pending], False

    async def _outcomes(self, is_whole: bool) -> list[Outcome]:
        try:
            return await read_ledger(self.client, self.ref, is_sample=not is_whole)
        except ClusterError:
            self.unread.append("configmaps")
            return []

    async def _podgroup(self) -> PodGroupView | None:
        """Return the PodGroup, or `None` if it cannot be read. It only explains why a gang waits."""
        resource = group_resource(self.job) or await podgroups_served(self.client)
        if resource is None:
            return None
        try:
            found, _ = await self._list(PodGroupView, resource, limit=1)
        except ClusterError:
            self.unread.append("podgroups")
            return None
        return next(iter(found), None)

    async def _list(self, kind: type[V], resource: Resource, **limits: Any) -> tuple[list[V], bool]:
        selector = gang_selector(self.ref.name)
        return await list_first(self.client, kind, resource, self.ref.namespace, label_selector=selector, **limits)


async def list_first(
    client: Client,
    kind: type[V],
    resource: Resource,
    namespace: str | None,
    *,
    label_selector: str,
    field_selector: str | None = None,
    limit: int = PAGE_OBJECTS,
    pages_max: int = 1,
) -> tuple[list[V], bool]:
    """Return the first objects of a namespace or of the cluster, and whether these are all.

    Only the last page is not full.

    Raises:
        ClusterError: The objects could not be listed.
    """
    found: list[V] = []
    pages = client.list_views(
        kind, resource, namespace, label_selector=label_selector, field_selector=field_selector, limit=limit
    )
    async with aclosing(pages):
        async for page in pages:
            found += page
            if len(found) >= pages_max * limit:
                return found, False
    return found, True


CAPACITY_WITHIN_S: Final = 5.0
"""A person waits for the page, so it is shown without the capacity of a cluster that takes longer to be read."""


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
    """When the phase began."""
    line: str
    """The line of the task's log: the phase, counts of ranks, and what the gang waits for."""
    diagnosis: Diagnosis
    capacity: Room | None
    """How much is free of what the gang waits for; `None` if that is unknown, or the gang can never fit."""


@dataclass(frozen=True)
class GangState:
    """Everything that is shown of one gang."""

    row: GangRow
    why: GangReason
    is_over: bool
    times: tuple[tuple[Phase, datetime], ...]
    """When each phase began that the gang has reached."""
    ranks: tuple[RankRow, ...] = ()
    requests: Mapping[str, str] = field(default_factory=dict)
    """Requests of one rank, by resource; empty for a gang with roles."""
    placement: str = ""
    unread: tuple[str, ...] = ()
    """Plural names of resources that could not be read."""


async def read_state(client: Client, job: StoredGang) -> GangState:
    """Read what there is of a gang, in a bounded number of requests.

    Raises:
        ClusterError: The Jobs could not be read.
    """
    snapshot = await read_explained(client, job.ref.namespace, job.task_digest or "", job.ref.uid)
    if snapshot.job is None:  # the Job was deleted meanwhile
        return _state_of(job, observe(None, (), None, job.ref), ())
    state = state_of_snapshot(snapshot, client.server_clock.now())
    return replace(state, row=with_fields(state.row, kept_until=kept_until(job)))


async def read_explained(client: Client, namespace: str, digest: str, uid: str | None = None) -> GangSnapshot:
    """Read a snapshot, and why the cluster has no room for a gang that waits for nodes. See `read_snapshot`."""
    snapshot = await read_snapshot(client, namespace, digest, uid)
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
    outcomes = merge_outcomes(snapshot.pods, snapshot.outcomes)
    assert snapshot.job is not None, "the caller has checked that the Job exists"
    return replace(
        _state_of(job, observe_snapshot(snapshot), outcomes),
        ranks=tuple(build_rows(snapshot.pods, outcomes, now)),
        requests={} if job.has_roles else requests_of_rank(snapshot.job),
        placement=job.decision or "",
        unread=snapshot.unread,
    )


def _state_of(job: StoredGang, observation: Observation, outcomes: Sequence[Outcome]) -> GangState:
    phase, capacity = observation.phase, observation.wait.capacity
    why = GangReason(
        namespace=job.ref.namespace,
        name=job.ref.name,
        phase=phase,
        since=observation.since,
        line=observation.line,
        diagnosis=diagnose(observation, outcomes),
        capacity=Room(capacity.room, capacity.ranks, capacity.text) if capacity else None,
    )
    return GangState(
        row=row_of(job),
        why=why,
        is_over=observation.verdict is not None or phase is Phase.FAILED,
        times=tuple((each, observation.began[each]) for each in Phase if each in observation.began),
    )


def requests_of_rank(stored: Mapping[str, Any]) -> dict[str, str]:
    """Return the requests of each rank of a Job, by resource; empty if they cannot be read."""
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
    return observe_counters(job, sample, snapshot.podgroup, counts_of_job(job), snapshot.evidence)


def counts_of_job(job: StoredGang) -> Counts:
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
