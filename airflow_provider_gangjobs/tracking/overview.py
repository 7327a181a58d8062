"""Overview of a namespace or cluster: all gangs as a person is told, and what stays of gangs although nobody needs it.

The Jobs are listed page by page. What explains why gangs wait is read for all of them at once: at most `OBJECTS_MAX`
of the pods that wait, of their groups, of Events, and of Kueue's Workloads; and what is free in the cluster.
Gangs that have failed with their ranks, or whose pods are not ready or lack a volume, are read one by one:
`EXPLAINED_MAX` at a time, the latest first. A gang that all this does not explain has the category `Unknown`.

Leaks are read from the Jobs and the held pods. The rules are `gang.gang_lists`;
`ending.sweep` has those of triggerers and `gangjobs tidy`. Nothing is changed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from airflow_provider_gangjobs.cluster.client import PAGE_OBJECTS
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.kueue import recent_position, watched_workloads
from airflow_provider_gangjobs.ending.submissions import is_half_submitted
from airflow_provider_gangjobs.ending.sweep import held_by_gang, last_sign
from airflow_provider_gangjobs.gang.capacity import ClusterUse, PodUse
from airflow_provider_gangjobs.gang.gang_lists import DagUse, Leak, find_leak, leak_of_pods, use_by_dag
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.pods import is_held, is_prepared_by_node, pods_of
from airflow_provider_gangjobs.gang.state.reason import IN_QUEUE, NEVER
from airflow_provider_gangjobs.gang.state.waiting import (
    Evidence,
    explain_suspension,
    find_autoscaler_words,
    queued_uid,
    waits_for_kueue,
)
from airflow_provider_gangjobs.gang.view import GangSnapshot, GangView, counts_of_job, view_gang
from airflow_provider_gangjobs.jobs.gang_secrets import SecretMask
from airflow_provider_gangjobs.kube.resources import EVENTS, PODS
from airflow_provider_gangjobs.kube.views import JSON_ERRORS, EventView, KueueWorkloadView, PodGroupView, PodView
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG, LABEL_KUEUE_JOB_UID
from airflow_provider_gangjobs.tracking.explanation import (
    CAPACITY_WITHIN_S,
    first_of,
    group_resource_of,
    read_snapshot,
)
from airflow_provider_gangjobs.tracking.gang_listing import list_gangs
from airflow_provider_gangjobs.tracking.wait_evidence import AUTOSCALER_EVENTS, demand_of, recent_cluster_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import timedelta
    from decimal import Decimal

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.capacity import Capacity
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.pods import Counts
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.links import LinkTemplate
    from airflow_provider_gangjobs.kube.resources import Resource

T = TypeVar("T")


async def find_leaks(client: Client, namespace: str | None, *, grace: timedelta) -> list[Leak]:
    """Return what stays in a namespace, or in the cluster.

    Raises:
        ClusterError: The Jobs or the pods could not be listed.
    """
    held = await held_pods(client, namespace)
    jobs = await list_gangs(client, namespace)
    now = client.server_clock.now()
    leaks = []
    for job in jobs:
        leak = find_leak(
            job,
            now=now,
            grace=grace,
            held_pods=len(held.pop(job.ref, ())),
            is_half_submitted=is_half_submitted(job, now=now, older_than=grace),
        )
        leaks += [leak] if leak else []
    for ref, pods in held.items():
        since = max(last_sign(pod, now) for pod in pods)
        if now - since >= grace:
            leaks.append(leak_of_pods(ref.namespace, ref.name, len(pods), since))
    return leaks


async def held_pods(client: Client, namespace: str | None) -> dict[GangRef, list[PodView]]:
    """Return the pods that the provider's finalizer holds, by their gang, which may not exist any more.

    Raises:
        ClusterError: The pods could not be listed.
    """
    held: list[PodView] = []
    async with aclosing(client.list_views(PodView, PODS, namespace, label_selector=LABEL_GANG)) as pages:
        async for page in pages:
            held += filter(is_held, page)
    return held_by_gang(held)


OBJECTS_MAX: Final = 2 * PAGE_OBJECTS
"""How many objects of each kind are read that explain why gangs wait."""
QUEUES_MAX: Final = 20
"""In how many queues of Kueue positions are read, at most once a minute each."""
EXPLAINED_MAX: Final = 20
"""How many gangs are read one by one for an overview. Each needs some requests."""
READ_AT_ONCE: Final = 4


@dataclass(frozen=True)
class Overview:
    """All gangs of a namespace or cluster at one moment."""

    gangs: tuple[GangView, ...] = ()
    uses: tuple[tuple[str, DagUse], ...] = ()
    """What the live gangs hold and wait for: pairs of a queue of Kueue, which may be empty, and a DAG's use of it."""
    free: Mapping[str, Decimal] = field(default_factory=dict)
    """What is free in the cluster, by resource; empty if that is unknown, or if no gang waits for nodes."""
    settled: Mapping[str, str] = field(default_factory=dict)
    """By the uid of a gang whose view changes only with its Job: the `resourceVersion` of the Job."""


@dataclass
class _Evidence:
    """What was read besides the Jobs, by the name of a gang, with its namespace."""

    pods: Mapping[str, Sequence[PodView]] = field(default_factory=dict)
    """The pods that wait."""
    raw_pods: Mapping[str, Sequence[msgspec.Raw]] = field(default_factory=dict)
    """The same pods as the server has sent them, which say what they request."""
    has_all_pods: bool = False
    groups: dict[str, PodGroupView] = field(default_factory=dict)
    events: Mapping[str, Sequence[EventView]] = field(default_factory=dict)
    """By the uid of the Job or pod."""
    workloads: Mapping[str, KueueWorkloadView] = field(default_factory=dict)
    """By the uid of the object that Kueue admits."""
    has_all_workloads: bool = False
    positions: dict[str, int | None] = field(default_factory=dict)
    use: ClusterUse | None = None
    links: Sequence[LinkTemplate] = ()


async def read_overview(
    client: Client, namespace: str | None, *, installation: str, before: Overview | None = None
) -> Overview:
    """Return the gangs of a namespace, or of the cluster if it is `None`.

    These are the gangs of the tasks of an Airflow installation, and those that were submitted under an id, unless
    another installation has made them.

    :param installation: Id of the installation; empty if it has none.
    :param before: An earlier overview of the same namespace. Gangs whose Jobs have not changed are not judged again.

    Raises:
        ClusterError: The Jobs could not be listed.
    """
    gangs = [gang for gang in await list_gangs(client, namespace) if _is_of(gang, installation)]
    return await explain_gangs(client, namespace, gangs, before)


def _is_of(gang: StoredGang, installation: str) -> bool:
    return gang.installation == installation or not (gang.installation or gang.record.task)


async def explain_gangs(
    client: Client, namespace: str | None, gangs: Sequence[StoredGang], before: Overview | None = None
) -> Overview:
    """Return an overview of these gangs of a namespace, or of the cluster. See `read_overview`."""
    evidence = _Evidence(links=client.config.links)
    waiting = [gang for gang in gangs if not gang.is_over and phase_of(gang) not in {Phase.RUNNING, Phase.FINISHING}]
    assembling = [gang for gang in waiting if phase_of(gang) is Phase.ASSEMBLING]
    if assembling:
        await _read_assembly(client, namespace, assembling, evidence)
    queued = [gang for gang in waiting if waits_for_kueue(gang)]
    if queued:
        await _read_workloads(client, namespace, queued, evidence)
    overview = await asyncio.to_thread(judge, gangs, evidence, before or Overview())
    unready = {gang.ref.uid for gang in assembling if _has_unready_pods(gang, evidence)}
    unknown = [view for view in overview.gangs if view.uid in unready or _needs_outcomes(view) or _needs_claims(view)]
    return await _explain_alone(client, gangs, overview, [view for view in unknown if view.uid not in overview.settled])


async def _explain_alone(
    client: Client, gangs: Sequence[StoredGang], overview: Overview, unknown: Sequence[GangView]
) -> Overview:
    """Return the overview with what only the pods and outcomes of a gang say, of the latest of some gangs."""
    latest = sorted(unknown, key=lambda view: view.since or view.submitted_at, reverse=True)[:EXPLAINED_MAX]
    by_uid = {gang.ref.uid: gang for gang in gangs}
    slots = asyncio.Semaphore(READ_AT_ONCE)

    async def explain(view: GangView) -> GangView:
        async with slots:
            try:
                return view_gang(await read_snapshot(client, by_uid[view.uid]))
            except ClusterError:
                return view

    read = {view.uid: view for view in await asyncio.gather(*map(explain, latest))}
    settled = {uid: by_uid[uid].view.metadata.resource_version for uid, view in read.items() if view.is_over}
    views = tuple(read.get(view.uid, view) for view in overview.gangs)
    return replace(overview, gangs=views, settled={**overview.settled, **settled})


def _needs_outcomes(view: GangView) -> bool:
    return view.phase is Phase.FAILED and view.category is Category.UNKNOWN


def _needs_claims(view: GangView) -> bool:
    return view.phase is Phase.ASSEMBLING and view.category is Category.VOLUME_UNAVAILABLE


def _has_unready_pods(gang: StoredGang, evidence: _Evidence) -> bool:
    """Return whether a pod neither waits nor is ready. Its program may run, and its Job does not say so."""
    counts = _counts(gang, waiting := _pods_of(gang, evidence))
    return evidence.has_all_pods and len(waiting) < counts.created - counts.started


async def _read_assembly(
    client: Client, namespace: str | None, assembling: Sequence[StoredGang], evidence: _Evidence
) -> None:
    with suppress(ClusterError):
        waiting = "status.phase=Pending"
        pods, evidence.has_all_pods = await _list(client, msgspec.Raw, PODS, namespace, LABEL_GANG, waiting)
        by_gang: dict[str, list[PodView]] = defaultdict(list)
        raw_by_gang: dict[str, list[msgspec.Raw]] = defaultdict(list)
        for raw in pods:
            pod = msgspec.json.decode(raw, type=PodView)
            by_gang[_gang_of(pod)].append(pod)
            raw_by_gang[_gang_of(pod)].append(raw)
        evidence.pods, evidence.raw_pods = by_gang, raw_by_gang
    for resource in set(filter(None, map(group_resource_of, assembling))):
        with suppress(ClusterError):
            groups, _ = await _list(client, PodGroupView, resource, namespace, LABEL_GANG)
            evidence.groups |= {_gang_of(group): group for group in groups}
    views = [pod for gang in assembling for pod in _pods_of(gang, evidence)]
    by_uid: dict[str, list[EventView]] = defaultdict(list)
    lacks_pods = any(_counts(gang, _pods_of(gang, evidence)).created < gang.ranks for gang in assembling)
    wanted = ["involvedObject.kind=Job,reason=FailedCreate"] if lacks_pods else []
    wanted += ["involvedObject.kind=Pod,type=Warning"] if any(map(is_prepared_by_node, views)) else []
    wanted += [AUTOSCALER_EVENTS] if any(not pod.spec.node_name for pod in views) else []
    for selector in wanted:
        with suppress(ClusterError):
            for event in (await _list(client, EventView, EVENTS, namespace, None, selector))[0]:
                by_uid[event.involved_object.uid].append(event)
    evidence.events = by_uid
    with suppress(TimeoutError):
        async with asyncio.timeout(CAPACITY_WITHIN_S):
            evidence.use = await recent_cluster_use(client)


def _gang_of(found: PodView | PodGroupView) -> str:
    return f"{found.metadata.namespace}/{found.metadata.labels.gang}"


async def _list(
    client: Client,
    kind: type[T],
    resource: Resource,
    namespace: str | None,
    label_selector: str | None,
    field_selector: str | None = None,
) -> tuple[list[T], bool]:
    pages = client.list_views(kind, resource, namespace, label_selector=label_selector, field_selector=field_selector)
    return await first_of(pages, OBJECTS_MAX)


async def _read_workloads(
    client: Client, namespace: str | None, queued: Iterable[StoredGang], evidence: _Evidence
) -> None:
    resource = await watched_workloads(client)
    if resource is None:
        return
    try:
        found, evidence.has_all_workloads = await _list(
            client, KueueWorkloadView, resource, namespace, LABEL_KUEUE_JOB_UID
        )
    except ClusterError:
        return
    evidence.workloads = {owner.uid: one for one in found for owner in one.metadata.owner_references}
    queues: set[tuple[str, str | None]] = set()
    for job in queued:
        uid = queued_uid(job)
        workload = evidence.workloads.get(uid)
        if workload is None or explain_suspension(job, Evidence(queue_workload=workload)).cause not in IN_QUEUE:
            continue
        queues.add((job.ref.namespace, job.queue))
        if job.queue is not None and len(queues) <= QUEUES_MAX:
            evidence.positions[uid] = await recent_position(client, job.ref.namespace, job.queue, uid)


# -- pure ------------------------------------------------------------------------------------------------------------


def judge(gangs: Sequence[StoredGang], evidence: _Evidence, before: Overview) -> Overview:
    """Return the overview of these gangs. Pure; it takes two seconds for ten thousand gangs that are new."""
    versions = {gang.ref.uid: gang.view.metadata.resource_version for gang in gangs}
    known = {view.uid: view for view in before.gangs if before.settled.get(view.uid) == versions.get(view.uid)}
    by_queue: dict[str, list[StoredGang]] = defaultdict(list)
    for gang in gangs:
        by_queue[gang.queue or ""].append(gang)
    placed = {gang.ref for gang in gangs if evidence.has_all_pods and _is_placed(gang, evidence)}
    views = tuple(known.get(gang.ref.uid) or view_gang(_snapshot(gang, evidence)) for gang in gangs)
    is_settled = {gang.ref.uid: not gang.record.roles for gang in gangs}
    settled = {
        view.uid
        for view in views
        if view.uid in known or (is_settled[view.uid] and view.phase in _OF_JOB_ALONE and not _needs_outcomes(view))
    }
    never = {view.ref for view in views if view.is_waiting and view.category in NEVER}
    return Overview(
        gangs=views,
        uses=tuple(
            (queue, use) for queue, found in sorted(by_queue.items()) for use in use_by_dag(found, placed, never)
        ),
        free=(evidence.use.free() if evidence.use is not None else None) or {},
        settled={uid: versions[uid] for uid in settled},
    )


_OF_JOB_ALONE: Final = frozenset({Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED})
"""The phases in which nothing but the Job is needed for a view."""


def _snapshot(gang: StoredGang, evidence: _Evidence) -> GangSnapshot:
    of_job, phase = GangSnapshot(gang, links=evidence.links), phase_of(gang)
    lacks_pods = phase is Phase.ASSEMBLING and not evidence.has_all_pods
    if gang.is_over or phase in _OF_JOB_ALONE or lacks_pods:
        return of_job
    pods = _pods_of(gang, evidence)
    if gang.view.metadata.annotations.secrets is not None:
        pods = SecretMask(None).messages(pods)  # the secrets of many gangs are not read
    group = evidence.groups.get(str(gang.ref))
    uids = (gang.ref.uid, *(pod.metadata.uid for pod in pods))
    events = [event for uid in uids for event in evidence.events.get(uid, ())]
    known = Evidence(
        events=events,
        autoscaler=find_autoscaler_words(events),
        queue_workload=evidence.workloads.get(queued_uid(gang)) if waits_for_kueue(gang) else None,
        queue_position=evidence.positions.get(queued_uid(gang)),
        shows_queue=evidence.has_all_workloads,
    )
    snapshot = replace(of_job, pods=pods, podgroup=group, evidence=known, counts=_counts(gang, pods))
    lacks_volume = snapshot.state.reason.category is Category.VOLUME_UNAVAILABLE
    if evidence.use is None or lacks_volume or not snapshot.state.waits_for_nodes:
        return snapshot
    return replace(snapshot, evidence=msgspec.structs.replace(known, capacity=_capacity(gang, group, evidence)))


def _capacity(gang: StoredGang, group: PodGroupView | None, evidence: _Evidence) -> Capacity | None:
    try:
        pods = [msgspec.json.decode(pod, type=PodUse) for pod in evidence.raw_pods.get(str(gang.ref), ())]
    except JSON_ERRORS:
        return None
    demand = demand_of(gang, group, pods)
    return evidence.use.measure(demand) if demand is not None and evidence.use is not None else None


def _pods_of(gang: StoredGang, evidence: _Evidence) -> list[PodView]:
    return pods_of(gang.ref, evidence.pods.get(str(gang.ref), ()))


def _is_placed(gang: StoredGang, evidence: _Evidence) -> bool:
    """Return whether a gang that assembles has a node for each of its ranks."""
    if phase_of(gang) is not Phase.ASSEMBLING or gang.record.roles:  # the Job shows the counts of one role
        return False
    return _counts(gang, _pods_of(gang, evidence)).placed >= gang.ranks


def _counts(gang: StoredGang, waiting: Sequence[PodView]) -> Counts:
    """Return counts from the counters of the Job, and from its pods that wait."""
    counts = counts_of_job(gang)
    created = min(gang.ranks, gang.status.active + gang.ended_ranks)
    without_node = sum(not pod.spec.node_name for pod in waiting)
    return msgspec.structs.replace(counts, created=created, placed=max(counts.started, created - without_node))
