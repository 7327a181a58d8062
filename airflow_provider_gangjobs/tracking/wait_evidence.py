"""What explains why a gang waits, in addition to its Job, its pods, and its groups: Events, and the use of the cluster.

The follower asks what is due after each look. Each kind of Events is read only when no object says why the gang waits.
Pods that were refused (by a quota or a webhook) leave no object behind, only an Event of the Job. What a node lacks
to prepare a pod, such as a Secret in a volume, is only in the Events of the pod. Where Kueue's Workloads cannot be
read, their Events say why a gang waits in its queue. A scheduler may overwrite in a pod why it could not place the pod,
and the Events of the pod still say it. Whether Cluster Autoscaler adds nodes is in its Events about the pods. A volume
that cannot be used is in the words of the scheduler, and its cause is not. Reading is best effort: a gang is followed
also where the service account may not list Events.

The nodes and the pods of the cluster say whether a gang fits now, later or never. This needs rights in the whole
cluster, which are optional (`rbac/rbac-capacity.yaml`). Without them the answer is unknown, and the right is asked for
again after some minutes. Each cluster is read once a minute at most for all gangs of an event loop, and only while a
gang waits for nodes. Reading takes at most `READ_WITHIN_S`, and nothing is logged.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_provider_gangjobs.cluster.clock import TimeSlice
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.loop_local import Answer, cached_read, loop_local
from airflow_provider_gangjobs.cluster.served_resources import is_allowed
from airflow_provider_gangjobs.gang.capacity import Capacity, ClusterUse, GangDemand, NodeView, PodUse
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.pods import is_prepared_by_node, rank_order
from airflow_provider_gangjobs.gang.state.reason import IN_QUEUE, NO_CAUSE_NAMED, REFUSED_BY_QUEUE, UNPLACED, Reason
from airflow_provider_gangjobs.gang.state.waiting import (
    Evidence,
    explain_claim,
    find_autoscaler_words,
    find_named_refusal,
    placed_at_once,
)
from airflow_provider_gangjobs.kube.resources import CLAIMS, EVENTS, JOBS, NODES, PODS
from airflow_provider_gangjobs.kube.views import EventView, view

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.gang_state import GangState
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodGroupView, PodView
    from airflow_provider_gangjobs.tracking.gang_watch import GangWatch


READ_EVERY_S: Final = 60.0
NOT_ALLOWED_READ_EVERY_S: Final = 600.0
READ_WITHIN_S: Final = 10.0
"""The follower of a gang does nothing else meanwhile."""
PODS_MAX: Final = 20_000
"""The pods of a larger cluster are not read. It is then only known whether a gang can never fit."""
IN_THREAD_MIN: Final = 200
"""Nodes with which the loop would be blocked for more than some milliseconds."""
_PLACED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


async def measure_capacity(
    client: Client, job: StoredGang, podgroup: PodGroupView | None, pods: Sequence[PodUse] | None = None
) -> Capacity | None:
    """Return whether a gang whose pods exist fits into its cluster, or `None` if this is unknown.

    :param pods: Pods of the gang, if they were just read.
    """
    use = await recent_cluster_use(client)
    if use is None:
        return None
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            pods = await _read_pods(client, job.ref) if pods is None else pods
    except (TimeoutError, ClusterError, msgspec.ValidationError):
        return None
    demand = demand_of(job, podgroup, pods)
    if demand is None:
        return None
    return use.measure(demand) if use.size < IN_THREAD_MIN else await asyncio.to_thread(use.measure, demand)


def demand_of(job: StoredGang, podgroup: PodGroupView | None, pods: Sequence[PodUse]) -> GangDemand | None:
    """Return what a gang asks of a cluster; `None` if its pods do not show it."""
    ref, at_once = job.ref, placed_at_once(job, podgroup)
    return GangDemand.of(pods, namespace=ref.namespace, name=ref.name, ranks=job.ranks, at_once=at_once)


async def _read_pods(client: Client, ref: GangRef) -> list[PodUse]:
    """Return the first page of the pods of a gang, which shows what its ranks need."""
    async with aclosing(
        client.list_views(PodUse, PODS, ref.namespace, label_selector=gang_selector(ref.name))
    ) as pages:
        return await anext(pages)


async def recent_cluster_use(client: Client) -> ClusterUse | None:
    """Return the nodes of the cluster and who uses them, as they were at most a minute ago, or `None` if unknown.

    Concurrent callers wait for one read. The use is also unknown if a request of a pod is no quantity, or if an object
    has another format.
    """
    return await cached_read(
        client,
        (recent_cluster_use,),
        partial(_read, client),
        within_s=READ_WITHIN_S,
        unanswered=Answer(None, READ_EVERY_S),
    )


async def _read(client: Client) -> Answer[ClusterUse | None]:
    if not await is_allowed(client, "list", NODES):
        return Answer(None, NOT_ALLOWED_READ_EVERY_S)
    nodes = [node async for page in client.list_views(NodeView, NODES) for node in page]
    if not await is_allowed(client, "list", PODS):
        return Answer(ClusterUse(nodes, knows_pods=False), NOT_ALLOWED_READ_EVERY_S)
    use, count = ClusterUse(nodes), 0
    async for page in _placed_pods(client):
        count += len(page)
        if count > PODS_MAX:
            return Answer(ClusterUse(nodes, knows_pods=False), READ_EVERY_S)
        use.add(page)
    return Answer(use, READ_EVERY_S)


async def _placed_pods(client: Client) -> AsyncIterator[list[PodUse]]:
    """Yield the pods of the cluster that have a node and have not ended, some at a time."""
    time_slice = loop_local(TimeSlice)
    async with aclosing(client.list_views(PodUse, PODS, field_selector=_PLACED)) as pages:
        async for page in pages:
            for first in range(0, len(page), _BATCH_PODS):
                yield page[first : first + _BATCH_PODS]
                await time_slice.yield_if_due()


_BATCH_PODS: Final = 100
"""Some 5 ms of work."""


_ADMISSIONS: Final = ("QuotaReserved", "Admitted", "PreemptedWorkload")
"""Reasons of the Events of Workloads that have quota, which are of no use for a gang that waits."""


async def queue_events(client: Client, ref: GangRef) -> tuple[EventView, ...]:
    """Return the Events with which Kueue says why it does not admit the Job, or none if they could not be read.

    They are Events of the Workload of the Job, or of the JobSet of its roles. Its name contains the kind and the name.
    Their reasons depend on the release and on the feature gates of Kueue.
    """
    names = f"job-{ref.name}-", f"jobset-{ref.name}-"
    others = ",".join(f"reason!={reason}" for reason in _ADMISSIONS)
    events = await _list_events(client, ref.namespace, f"involvedObject.kind=Workload,{others}")
    return tuple(event for event in events if event.involved_object.name.startswith(names))


async def refusal_events(client: Client, ref: GangRef, pods: AbstractSet[str]) -> tuple[EventView, ...]:
    """Return the Events with which a scheduler says that it could not place these pods, or none if they are not read.

    :param pods: The uids of the pods.
    """
    events = await _list_events(client, ref.namespace, "involvedObject.kind=Pod,reason=FailedScheduling")
    return tuple(event for event in events if event.involved_object.uid in pods)


AUTOSCALER_EVENTS: Final = "involvedObject.kind=Pod,source=cluster-autoscaler"
"""The Events of Cluster Autoscaler about pods."""


async def read_autoscaler(client: Client, ref: GangRef, pods: AbstractSet[str]) -> str:
    """Return what the autoscaler says about these pods, in its own words; empty if it says nothing, or is not read.

    :param pods: The uids of the pods.
    """
    events = await _list_events(client, ref.namespace, AUTOSCALER_EVENTS)
    return find_autoscaler_words(event for event in events if event.involved_object.uid in pods)


async def gang_events(client: Client, ref: GangRef, pods: Iterable[PodView]) -> tuple[EventView, ...]:
    """Return the Events of the Job itself and of one pod that its node prepares, or none if they could not be read.

    One pod is enough: a node prepares a pod within seconds, unless something is wrong.
    """
    pod = min(filter(is_prepared_by_node, pods), key=rank_order, default=None)
    uids = (ref.uid, pod.metadata.uid) if pod is not None else (ref.uid,)
    return tuple(
        [each for uid in uids for each in await _list_events(client, ref.namespace, f"involvedObject.uid={uid}")]
    )


async def _list_events(client: Client, namespace: str, field_selector: str) -> tuple[EventView, ...]:
    try:
        found = await client.list(EVENTS, namespace, field_selector=field_selector)
        return tuple(view(EventView, event) for event in found)
    except (ClusterError, msgspec.ValidationError):
        return ()


CLAIMS_MAX: Final = 20
"""How many PersistentVolumeClaims of a gang are looked for."""
_UNBOUND: Final = ("ProvisioningFailed", "FailedBinding")
"""Reasons of the Events of a PersistentVolumeClaim that cannot be bound."""


async def find_claim_problem(
    client: Client, ref: GangRef, template: Mapping[str, Any] | None = None, *, claims_max: int = CLAIMS_MAX
) -> Reason | None:
    """Return which PersistentVolumeClaim of a gang does not exist or cannot be bound; `None` if that is unknown.

    Whether a claim exists needs an optional right. Why it cannot be bound, such as a StorageClass that does not exist,
    is in its Events.

    :param template: The pod template of the Job, if it was just read.
    """
    with suppress(ClusterError):
        template = template or (await client.get(JOBS, ref.name, ref.namespace))["spec"]["template"]
        volumes = template["spec"].get("volumes") or ()
        claims = [one["persistentVolumeClaim"]["claimName"] for one in volumes if one.get("persistentVolumeClaim")]
        if claims and await is_allowed(client, "get", CLAIMS, ref.namespace):
            for claim in claims[:claims_max]:
                try:
                    await client.get(CLAIMS, claim, ref.namespace)
                except NotFound:
                    return explain_claim(claim, ref.namespace)
        own = tuple(f"{ref.name}-" for one in volumes if one.get("ephemeral"))  # the beginning of the names of its pods
        for event in reversed(await _list_events(client, ref.namespace, f"involvedObject.kind={CLAIMS.kind}")):
            name = event.involved_object.name
            if event.reason in _UNBOUND and (name in claims or name.startswith(own)):
                return explain_claim(name, ref.namespace, event.message)
    return None


_PODS_MISSING: Final = frozenset({"PodsNotCreated", "PodsRefused", "PriorityClassMissing", "ServiceAccountMissing"})
_NODE_PROBLEMS: Final = frozenset({"VolumeNotAttached", "VolumeNotMounted", "PodSandboxFailed"})
_EVENT_CAUSES: Final = _PODS_MISSING | _NODE_PROBLEMS | {"Starting"}
EVENTS_AFTER_S: Final = 20.0
"""Pods that are missing for this long were refused, or the Job controller is busy. Nodes prepare a pod in less time."""
QUEUE_EVENTS_AFTER_S: Final = 3.0
"""Where Kueue's Workloads cannot be read, their Events are read after this time. It is one list for each gang."""
EVENTS_EVERY_S: Final = 300.0
"""When Events that were read are read again, because the cause may have changed."""
REFUSAL_EVENTS_AFTER_S: Final = 2.0
"""How long the scheduler may take to name the cause in a pod before the Events of the pods are read."""
CAPACITY_AFTER_S: Final = 5.0
CAPACITY_EVERY_S: Final = 300.0
"""When the capacity of the cluster is read for a gang that waits for nodes, and read again."""
AUTOSCALER_AFTER_S: Final = 60.0
"""When its words are read: by then an autoscaler has said whether it adds nodes."""
_ASSEMBLY_PROBLEMS: Final = UNPLACED | _NODE_PROBLEMS | {"ImagePullFailed", "ConfigInvalid"}


class WaitEvidence:
    """The evidence that one follower has collected. Only the follower calls it."""

    def __init__(self, client: Client, ref: GangRef, watch: GangWatch) -> None:
        self._client = client
        self._ref = ref
        self._watch = watch
        self._clock = client.clock
        self._events: tuple[EventView, ...] = ()
        self._events_due = 0.0
        self._queue_events: tuple[EventView, ...] = ()
        self._queue_events_due: float | None = None
        self._refusal: Reason | None = None
        self._capacity: Capacity | None = None
        self._capacity_due: float | None = None
        self._claim_problem: Reason | None = None
        self._autoscaler = ""
        self._ran_after_start: datetime | None = None
        self._autoscaler_due = 0.0
        self._has_read_refusal = False
        self._was_queued = False
        self.assembly_reason: Reason | None = None
        """Why the gang did not assemble in its last run, if the follower has seen that run."""
        self.assembly_line = ""
        """The line about the gang in that run; empty if the follower has not seen that run."""

    @property
    def has_events(self) -> bool:
        """Events of the Job or of its Workload were read, and there are some."""
        return bool(self._events or self._queue_events)

    def with_events(self, *events: EventView) -> Evidence:
        """Return the evidence with further Events of the Job."""
        return Evidence(
            events=(*self._events, *self._queue_events, *events),
            queue_workload=self._watch.queue_workload,
            queue_position=self._watch.queue_position,
            shows_queue=self._watch.shows_queue,
            capacity=self._capacity,
            earlier_refusal=self._refusal,
            claim_problem=self._claim_problem,
            autoscaler=self._autoscaler,
            ran_after_start=self._ran_after_start,
        )

    def keep(self, state: GangState) -> None:
        """Keep what later looks may not show any more.

        Kept are why the gang does not assemble, because its queue may stop it; why the scheduler cannot place the gang,
        because the scheduler may overwrite the message that says so; and that all ranks have started, because a pod may
        be deleted before the Job shows its end.
        """
        if state.phase is Phase.RUNNING:
            self._ran_after_start = state.began.get(Phase.ASSEMBLING)
        if state.phase is Phase.RUNNING or (state.phase is Phase.ASSEMBLING and self._was_queued):
            self.assembly_reason, self.assembly_line = None, ""
        if state.phase is Phase.ASSEMBLING and self._is_better(state.reason):
            self.assembly_reason, self.assembly_line = state.reason, state.line
        self._was_queued = state.phase is Phase.QUEUED
        if not state.waits_for_nodes:
            self._capacity = self._capacity_due = None
            self._claim_problem, self._autoscaler = None, ""
        if state.phase is not Phase.ASSEMBLING:
            self._has_read_refusal = False
            self._refusal = None
        elif state.refusal is not None:
            self._refusal = state.refusal
        if state.phase is Phase.QUEUED:  # the pods of the next start may be missing for another reason
            self._events, self._events_due = (), 0.0
        else:  # and the gang may be queued again for another reason
            self._queue_events_due = None
            self._queue_events = ()

    def _is_better(self, reason: Reason) -> bool:
        """Return whether a reason says more than the one that was kept, such as the pods that end in a stop."""
        before = self.assembly_reason
        return reason.cause in _ASSEMBLY_PROBLEMS or before is None or before.cause not in _ASSEMBLY_PROBLEMS

    @property
    def _lacks_cause(self) -> bool:
        return self._refusal is not None and self._refusal.cause in NO_CAUSE_NAMED

    async def read_due(self, state: GangState, age_s: float) -> float | None:
        """Read the Events that are due, and return in how many seconds the next are due.

        :param age_s: For how long the gang has been in its phase.
        :return: Zero if Events were read, so that the gang is observed again; `None` if no Events are of use.
        """
        cause = state.reason.cause
        if cause in _EVENT_CAUSES:
            wait_s = max(EVENTS_AFTER_S - age_s, self._events_due - self._clock.monotonic())
            if wait_s > 0:
                return wait_s
            every_s = EVENTS_EVERY_S if cause in _PODS_MISSING else READ_EVERY_S
            self._events_due = self._clock.monotonic() + every_s
            self._events = await gang_events(self._client, self._ref, self._watch.pods_by_uid.values())
            return 0.0
        if self._lacks_cause and not self._has_read_refusal:
            if age_s < REFUSAL_EVENTS_AFTER_S:
                return REFUSAL_EVENTS_AFTER_S - age_s
            await self.read_refusal()
            return 0.0
        if state.waits_for_nodes:
            return await self._read_cluster_if_due(state)
        if cause in IN_QUEUE | REFUSED_BY_QUEUE and not self._watch.shows_queue:
            now = self._clock.monotonic()
            if self._queue_events_due is None:
                self._queue_events_due = now + QUEUE_EVENTS_AFTER_S
            if now < self._queue_events_due:
                return self._queue_events_due - now
            self._queue_events_due = now + EVENTS_EVERY_S
            self._queue_events = await queue_events(self._client, self._ref)
            return 0.0
        return None

    async def _read_cluster_if_due(self, state: GangState) -> float:
        """Read what the words of the scheduler do not contain: about claims, or about the capacity of the cluster."""
        now = self._clock.monotonic()
        if self._capacity_due is None:
            self._capacity_due, self._autoscaler_due = now + CAPACITY_AFTER_S, now + AUTOSCALER_AFTER_S
        if now >= self._autoscaler_due:
            self._autoscaler_due, before = now + CAPACITY_EVERY_S, self._autoscaler
            self._autoscaler = await read_autoscaler(self._client, self._ref, self._watch.pods_by_uid.keys())
            if self._autoscaler != before:
                return 0.0
        if now < self._capacity_due:
            return min(self._capacity_due, self._autoscaler_due) - now
        self._capacity_due = now + CAPACITY_EVERY_S
        was_known = self._capacity, self._claim_problem
        if state.reason.category is Category.VOLUME_UNAVAILABLE:
            self._claim_problem = await find_claim_problem(self._client, self._ref)
        if not self._claim_problem:
            self._capacity = await self._measure_capacity()
        is_same = was_known == (self._capacity, self._claim_problem)
        return min(self._capacity_due, self._autoscaler_due) - now if is_same else 0.0

    async def read_capacity(self) -> None:
        """Read whether the gang fits into the cluster. If that is unknown now, the answer before still counts."""
        self._capacity = await self._measure_capacity() or self._capacity

    async def _measure_capacity(self) -> Capacity | None:
        job = self._watch.job
        return await measure_capacity(self._client, job, self._watch.podgroup) if job is not None else None

    async def read_refusal(self) -> None:
        """Read the cause from the Events of the pods, if the scheduler has overwritten it in the pods."""
        if not self._lacks_cause:
            return
        self._has_read_refusal = True
        events = await refusal_events(self._client, self._ref, frozenset(self._watch.pods_by_uid))
        self._refusal = find_named_refusal(events) or self._refusal
