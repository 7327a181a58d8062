"""Reads what one gang does at present, and what explains it: a `GangSnapshot`, from which `gang.view` makes a view.

A snapshot is bounded however large the gang is. Nothing is changed. Of a gang of up to a thousand ranks all pods and
outcomes are read. Of a larger gang the counters of the Job are used, and only the pods that failed or wait are read, up
to a limit. Only the verbs `get` and `list` are used, and nothing is read twice. What may not be read, apart from the
Job, is left out and named. What only Kueue shows is left out and not named.

A gang that waits for nodes is explained by what its follower would read, too: the words of the scheduler that a pod has
lost, and the capacity of the cluster, where the rights allow it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.cluster.client import PAGE_OBJECTS
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.kueue import list_workloads, recent_position
from airflow_provider_gangjobs.gang.capacity import Capacity, PodUse
from airflow_provider_gangjobs.gang.gang_lists import ListedJobSpec
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.schedulers import find_dialect
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.pods import is_prepared_by_node, pods_of
from airflow_provider_gangjobs.gang.state.reason import IN_QUEUE, Reason
from airflow_provider_gangjobs.gang.state.waiting import (
    Evidence,
    explain_suspension,
    find_named_refusal,
    queued_uid,
    waits_for_kueue,
)
from airflow_provider_gangjobs.gang.view import GangSnapshot, GangView, view_gang
from airflow_provider_gangjobs.jobs.gang_secrets import NO_SECRETS, read_mask
from airflow_provider_gangjobs.kube.resources import PODS, podgroups
from airflow_provider_gangjobs.kube.views import JSON_ERRORS, KueueWorkloadView, PodGroupView, PodView
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_SECRETS
from airflow_provider_gangjobs.tracking.gang_watch import group_resource
from airflow_provider_gangjobs.tracking.harvest.ledger import read_ledger
from airflow_provider_gangjobs.tracking.wait_evidence import (
    find_claim_problem,
    gang_events,
    measure_capacity,
    queue_events,
    read_autoscaler,
    refusal_events,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.resources import Resource
    from airflow_provider_gangjobs.kube.views import EventView


V = TypeVar("V")


WHOLE_RANKS_MAX: Final = 1000
"""A gang of up to so many ranks is read as a whole: two pages of pods and at most 4.3 MB of ledger."""
WHOLE_PODS_MAX: Final = 2 * WHOLE_RANKS_MAX
"""A Job that made more than twice as many pods as it may have ranks is not read as a whole."""
SAMPLE_PODS: Final = 200
"""How many failed pods, and how many waiting pods, are read of a large gang."""
CLAIMS_MAX: Final = 2
"""How many PersistentVolumeClaims are looked for."""
CAPACITY_WITHIN_S: Final = 5.0
"""A person waits for the answer, which has no capacity of a cluster that takes longer to be read."""


async def read_view(client: Client, gang: StoredGang) -> GangView:
    """Read what there is of a gang, and return what a person is told. Raises as `read_snapshot` does."""
    return view_gang(await read_snapshot(client, gang), now=client.server_clock.now())


async def read_snapshot(client: Client, gang: StoredGang) -> GangSnapshot:
    """Read what there is of a gang. Its secrets are masked in all messages.

    Raises:
        ClusterError: The secrets of the gang could not be read.
    """
    reader = _Reader(client, gang)
    snapshot = await reader.read()
    mask = NO_SECRETS
    if gang.main.view.metadata.annotations.secrets is not None:
        mask = await read_mask(client, gang.ref, _objects_of(gang))
    if mask is not NO_SECRETS:
        masked = {name: mask.messages(getattr(snapshot, name)) for name in ("pods", "outcomes", "evidence")}
        snapshot = replace(snapshot, **masked)
    return await reader.explain(snapshot) if snapshot.state.waits_for_nodes else snapshot


def _objects_of(gang: StoredGang) -> list[Mapping[str, Any]] | None:
    """Return the Jobs of a gang as far as `read_mask` reads them; `None` if it has to read them itself."""
    jobs = gang.jobs or (gang.view,)
    return [
        {
            "metadata": {
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "annotations": {ANNOTATION_SECRETS: job.metadata.annotations.secrets},
            },
            "spec": {"template": json.loads(bytes(job.spec.template))},
        }
        for job in jobs
        if isinstance(job.spec, ListedJobSpec)
    ] or None


class _Reader:
    """Reads what belongs to one gang."""

    def __init__(self, client: Client, job: StoredGang) -> None:
        self.client = client
        self.job = job
        self.ref = job.ref
        self.unread: list[str] = []
        self._raw_pods: list[msgspec.Raw] = []

    async def read(self) -> GangSnapshot:
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
        return GangSnapshot(
            self.job,
            pods=pods_of(self.ref, pods),
            outcomes=outcomes,
            podgroup=podgroup,
            evidence=evidence,
            is_whole=is_whole,
            unread=tuple(self.unread),
            links=self.client.config.links,
        )

    async def explain(self, snapshot: GangSnapshot) -> GangSnapshot:
        """Return the snapshot of a gang that waits for nodes with what the scheduler does not say about its pods."""
        pods = {pod.metadata.uid for pod in snapshot.pods or ()}
        if snapshot.state.names_no_cause:
            events = await refusal_events(self.client, self.ref, pods)
            snapshot = _with_evidence(snapshot, earlier_refusal=find_named_refusal(events))
        snapshot = _with_evidence(snapshot, autoscaler=await read_autoscaler(self.client, self.ref, pods))
        with suppress(TimeoutError):
            async with asyncio.timeout(CAPACITY_WITHIN_S):
                if snapshot.state.reason.category is Category.VOLUME_UNAVAILABLE:
                    return _with_evidence(snapshot, claim_problem=await self._claim_problem())
                return _with_evidence(snapshot, capacity=await self._capacity(snapshot.podgroup))
        return snapshot

    async def _claim_problem(self) -> Reason | None:
        objects = _objects_of(self.job)
        template = objects[0]["spec"]["template"] if objects else None
        return await find_claim_problem(self.client, self.ref, template, claims_max=CLAIMS_MAX)

    async def _capacity(self, podgroup: PodGroupView | None) -> Capacity | None:
        try:
            pods = [msgspec.json.decode(pod, type=PodUse, strict=False) for pod in self._raw_pods]
        except JSON_ERRORS:
            return None
        return await measure_capacity(self.client, self.job, podgroup, pods)

    @property
    def _assembles_in_queue(self) -> bool:
        """Kueue lets the gang run, and its Workload shows for how long the gang has assembled before."""
        return self.job.queue is not None and phase_of(self.job) is Phase.ASSEMBLING

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
            _, found = await list_workloads(self.client, self.ref.namespace, queued_uid(self.job))
        except ClusterError:
            return None, False
        return (found[0] if found else None), True

    async def _position(self, workload: KueueWorkloadView | None, events: Sequence[EventView]) -> int | None:
        evidence = Evidence(events, queue_workload=workload)
        if self.job.queue is None or explain_suspension(self.job, evidence).cause not in IN_QUEUE:
            return None
        return await recent_position(self.client, self.ref.namespace, self.job.queue, queued_uid(self.job))

    async def _pods(self) -> tuple[list[PodView], bool]:
        try:
            if self.job.ranks <= WHOLE_RANKS_MAX:
                self._raw_pods, is_whole = await self._list(msgspec.Raw, PODS, at_most=WHOLE_PODS_MAX)
                if is_whole:
                    return list(map(_decode_pod, self._raw_pods)), True
            failed, _ = await self._list(PodView, PODS, at_most=SAMPLE_PODS, field_selector="status.phase=Failed")
            waiting = "status.phase=Pending"
            self._raw_pods, _ = await self._list(msgspec.Raw, PODS, at_most=SAMPLE_PODS, field_selector=waiting)
        except ClusterError:
            self.unread.append("pods")
            return [], False
        return [*failed, *map(_decode_pod, self._raw_pods)], False

    async def _outcomes(self, is_whole: bool) -> list[Outcome] | None:
        if not (self.job.is_over or self.job.status.failed or self.job.ended_ranks or self.job.interim_condition):
            return []  # of this run
        try:
            return await read_ledger(self.client, self.ref, is_sample=not is_whole)
        except ClusterError:
            self.unread.append("configmaps")
            return None

    async def _podgroup(self) -> PodGroupView | None:
        """Return the PodGroup, or `None` if it cannot be read. It only explains why a gang waits."""
        resource = group_resource_of(self.job)
        try:
            found = (await self._list(PodGroupView, resource, at_most=1))[0] if resource is not None else ()
        except NotFound:  # the cluster serves this version no more
            return None
        except ClusterError:
            self.unread.append("podgroups")
            return None
        return next(iter(found), None)

    async def _list(
        self, kind: type[V], resource: Resource, *, at_most: int, field_selector: str | None = None
    ) -> tuple[list[V], bool]:
        pages = self.client.list_views(
            kind,
            resource,
            self.ref.namespace,
            label_selector=gang_selector(self.ref.name),
            field_selector=field_selector,
            limit=min(at_most, PAGE_OBJECTS),
        )
        return await first_of(pages, at_most)


def group_resource_of(gang: StoredGang) -> Resource | None:
    """Return the resource of the group of a gang in the version of its submission; `None` if it has no group."""
    separate = group_resource(gang)
    decision = PlacementDecision.parse(gang.placement)
    is_native = decision.placement is Placement.GANG and separate is None
    dialect = find_dialect(decision.detail) if is_native else None
    return podgroups(dialect.version) if dialect is not None else separate


def _decode_pod(raw: msgspec.Raw) -> PodView:
    return msgspec.json.decode(raw, type=PodView)


def _with_evidence(snapshot: GangSnapshot, **more: Any) -> GangSnapshot:
    return replace(snapshot, evidence=with_fields(snapshot.evidence, **more))


async def first_of(pages: AsyncGenerator[list[V], None], at_most: int) -> tuple[list[V], bool]:
    """Return the first objects of a list, and whether these are all.

    :param pages: What `Client.list_views` returns. Only its last page is not full.

    Raises:
        ClusterError: The objects could not be listed.
    """
    found: list[V] = []
    async with aclosing(pages):
        async for page in pages:
            found += page
            if len(found) >= at_most:
                return found, False
    return found, True
