"""Overview of a namespace or cluster: all gangs with their diagnoses, and what stays of gangs although nobody needs it.

The Jobs are listed page by page. What explains why gangs wait is read for all of them at once: at most `PAGES_MAX`
pages of the pods that wait, and as many of Kueue's Workloads. A gang that these do not explain has no diagnosis, since
unknown is a third answer; `tracking.explanation` reads one gang as a whole.

Leaks are read from the Jobs and the held pods. The rules are `gang.gang_lists`;
`ending.sweep` has those of triggerers and `gangjobs tidy`. Nothing is changed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.kueue import recent_position, watched_workloads
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.ending.submissions import is_half_submitted
from airflow_provider_gangjobs.ending.sweep import held_by_gang, last_sign
from airflow_provider_gangjobs.gang.gang_lists import DagUse, GangRow, Leak, find_leak, leak_of_pods, row_of, use_by_dag
from airflow_provider_gangjobs.gang.outcome.outcome_diagnosis import diagnose
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.observation import observe_counters
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.pod_index import Counts, PodIndex
from airflow_provider_gangjobs.gang.state.pods import is_held, pods_of
from airflow_provider_gangjobs.gang.state.queue_wait import explain_suspension, waits_for_kueue
from airflow_provider_gangjobs.gang.state.waiting import Evidence, WaitCause
from airflow_provider_gangjobs.jobs.gang_secrets import SecretMask
from airflow_provider_gangjobs.kube.views import KueueWorkloadView, PodView
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG, LABEL_KUEUE_JOB_UID
from airflow_provider_gangjobs.tracking.explanation import counts_of_job, list_first
from airflow_provider_gangjobs.tracking.gang_listing import list_gangs
from airflow_provider_gangjobs.tracking.wait_evidence import recent_cluster_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import timedelta
    from decimal import Decimal

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.category import Diagnosis
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


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


PAGES_MAX: Final = 2
"""How many pages of waiting pods, and of Kueue's Workloads, are read: 500 objects each."""
QUEUES_MAX: Final = 20
"""In how many queues of Kueue positions are read, at most once a minute each."""


@dataclass(frozen=True)
class ListedGang:
    """One gang in an overview."""

    row: GangRow
    diagnosis: Diagnosis | None = None
    """`None` if what was read does not explain why the gang waits or failed."""
    requests: Mapping[str, str] = field(default_factory=dict)
    """What all ranks request together: resource -> quantity; empty if the Job does not say."""
    version: str = ""
    """`resourceVersion` of the Job, if the Job alone decides about the row and the diagnosis; else empty."""


@dataclass(frozen=True)
class QueueUse:
    """What the live gangs of one queue hold and wait for, by DAG."""

    queue: str
    """Queue of Kueue; empty for the gangs that have none."""
    dags: tuple[DagUse, ...]


@dataclass(frozen=True)
class Overview:
    """All gangs of a namespace or cluster at one moment."""

    gangs: tuple[ListedGang, ...] = ()
    uses: tuple[QueueUse, ...] = ()
    free: Mapping[str, Decimal] = field(default_factory=dict)
    """What is free in the cluster, by resource; empty if that is unknown, or if no gang waits for nodes."""


@dataclass
class _Evidence:
    """What was read besides the Jobs."""

    pods: Mapping[str, Sequence[PodView]] = field(default_factory=dict)
    """The pods that wait, by the name of their gang, with its namespace."""
    has_all_pods: bool = False
    workloads: Mapping[str, KueueWorkloadView] = field(default_factory=dict)
    """By the uid of the object that Kueue admits."""
    has_all_workloads: bool = False
    positions: dict[str, int | None] = field(default_factory=dict)
    free: Mapping[str, Decimal] = field(default_factory=dict)


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
    jobs = [job for job in await list_gangs(client, namespace) if _is_of(job, installation)]
    evidence = _Evidence()
    waiting = [job for job in jobs if not job.is_over and phase_of(job) not in {Phase.RUNNING, Phase.FINISHING}]
    if any(phase_of(job) is Phase.ASSEMBLING for job in waiting):
        await _read_pods(client, namespace, evidence)
        use = await recent_cluster_use(client)
        evidence.free = (use.free() if use is not None else None) or {}
    queued = [job for job in waiting if waits_for_kueue(job)]
    if queued:
        await _read_workloads(client, namespace, queued, evidence)
    return await asyncio.to_thread(judge, jobs, evidence, before or Overview())


def _is_of(job: StoredGang, installation: str) -> bool:
    return job.installation == installation or not (job.installation or job.task)


async def _read_pods(client: Client, namespace: str | None, evidence: _Evidence) -> None:
    try:
        pods, evidence.has_all_pods = await list_first(
            client,
            PodView,
            PODS,
            namespace,
            label_selector=LABEL_GANG,
            field_selector="status.phase=Pending",
            pages_max=PAGES_MAX,
        )
    except ClusterError:
        return
    by_gang: dict[str, list[PodView]] = defaultdict(list)
    for pod in pods:
        by_gang[f"{pod.metadata.namespace}/{pod.metadata.labels.gang}"].append(pod)
    evidence.pods = by_gang


async def _read_workloads(
    client: Client, namespace: str | None, queued: Iterable[StoredGang], evidence: _Evidence
) -> None:
    resource = await watched_workloads(client)
    if resource is None:
        return
    try:
        found, evidence.has_all_workloads = await list_first(
            client, KueueWorkloadView, resource, namespace, label_selector=LABEL_KUEUE_JOB_UID, pages_max=PAGES_MAX
        )
    except ClusterError:
        return
    evidence.workloads = {owner.uid: one for one in found for owner in one.metadata.owner_references}
    queues: set[tuple[str, str | None]] = set()
    for job in queued:
        workload = evidence.workloads.get(job.queued_uid)
        if workload is None or explain_suspension(job, Evidence(queue_workload=workload)).cause is not WaitCause.QUEUE:
            continue
        queues.add((job.ref.namespace, job.queue))
        if job.queue is not None and len(queues) <= QUEUES_MAX:
            position = await recent_position(client, job.ref.namespace, job.queue, job.queued_uid)
            evidence.positions[job.queued_uid] = position


# -- pure ------------------------------------------------------------------------------------------------------------


def judge(jobs: Sequence[StoredGang], evidence: _Evidence, before: Overview) -> Overview:
    """Return the overview of these gangs. Pure; it takes two seconds for ten thousand gangs that are new."""
    known = {gang.row.uid: gang for gang in before.gangs if gang.version}
    by_queue: dict[str, list[StoredGang]] = defaultdict(list)
    for job in jobs:
        by_queue[job.queue or ""].append(job)
    placed = {job.ref for job in jobs if evidence.has_all_pods and _is_placed(job, evidence)}
    return Overview(
        gangs=tuple(_listed(job, evidence, known.get(job.ref.uid)) for job in jobs),
        uses=tuple(QueueUse(queue, tuple(use_by_dag(found, placed))) for queue, found in sorted(by_queue.items())),
        free=evidence.free,
    )


def _listed(job: StoredGang, evidence: _Evidence, known: ListedGang | None) -> ListedGang:
    version = job.view.metadata.resource_version
    if known is not None and known.version == version:
        return known
    row = row_of(job)
    is_alone = not job.has_roles and row.phase in _OF_JOB_ALONE
    return ListedGang(row, _diagnose(job, evidence), job.requests, version=version if is_alone else "")


_OF_JOB_ALONE: Final = frozenset({Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED})
"""The phases in which nothing but the Job is needed for a row and a diagnosis."""


def _diagnose(job: StoredGang, evidence: _Evidence) -> Diagnosis | None:
    pods = pods_of(job.ref, evidence.pods.get(str(job.ref), ()))
    if job.view.metadata.annotations.secrets is not None:
        pods = SecretMask(None).messages(pods)  # the secrets of many gangs are not read
    counts = _counts(job, pods)
    is_explained = evidence.has_all_pods and counts.created >= job.ranks
    if phase_of(job) is Phase.ASSEMBLING and not job.is_over and not is_explained:
        return None
    known = Evidence(
        queue_workload=evidence.workloads.get(job.queued_uid) if waits_for_kueue(job) else None,
        queue_position=evidence.positions.get(job.queued_uid),
        shows_queue=evidence.has_all_workloads,
    )
    found = diagnose(observe_counters(job, PodIndex(job.ref, pods), None, counts, known), ())
    # Without the outcomes of the ranks, nothing is known about a Job that failed with its pods.
    return None if job.is_ended and found.category is Category.UNKNOWN else found


def _is_placed(job: StoredGang, evidence: _Evidence) -> bool:
    """Return whether a gang that assembles has a node for each of its ranks."""
    if phase_of(job) is not Phase.ASSEMBLING or job.has_roles:  # the Job shows the counts of one role
        return False
    return _counts(job, pods_of(job.ref, evidence.pods.get(str(job.ref), ()))).placed >= job.ranks


def _counts(job: StoredGang, waiting: Sequence[PodView]) -> Counts:
    """Return counts from the counters of the Job, and from its pods that wait."""
    counts = counts_of_job(job)
    created = min(job.ranks, job.status.active + job.ended_ranks)
    without_node = sum(not pod.spec.node_name for pod in waiting)
    return replace(counts, created=created, placed=max(counts.started, created - without_node))
