"""Gang watch: what the shared informers know of one gang, one event that wakes its follower, and the gang's observer.

Three informers serve all gangs of a cluster and namespace: Jobs, pods, and PodGroups where the cluster serves them.
PodGroups only help to explain why a gang waits. A gang is followed also where PodGroups cannot be read. The first gang
that waits in a queue of Kueue starts a fourth informer, of Kueue's Workloads.

A sensor waits for gangs by the same informers, without changing anything. Gangs that are selected by name use the
informer of the followers. A sweep removes gangs that have ended from that informer, so the names that the informer does
not have are listed once when a watch begins. Gangs that are selected by submission id share one further informer, and
each label selector has its own.

A look costs only as much as the pods that have changed. The pods of a small gang are indexed again for each
state. The index of a large gang is kept (see `PodIndex`), and changes are processed in batches, between which
other tasks of the loop run.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_gangjobs.cluster.clock import TimeSlice
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.informer import Informer, Notification, Subscription, informers
from airflow_provider_gangjobs.cluster.kueue import Position, pending_positions, watched_workloads
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.served_resources import discover
from airflow_provider_gangjobs.gang.schedulers import separate_scheduler_of
from airflow_provider_gangjobs.gang.state.gang_state import GangState, observe
from airflow_provider_gangjobs.gang.state.phase import has_all_pods
from airflow_provider_gangjobs.gang.state.pods import PodIndex, pods_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_gang, read_gangs
from airflow_provider_gangjobs.gang.state.waiting import NO_EVIDENCE, Evidence
from airflow_provider_gangjobs.jobs.requests import retry_until_answered
from airflow_provider_gangjobs.kube.resources import JOBS, PODS, Resource, podgroups
from airflow_provider_gangjobs.kube.views import JobView, KueueWorkloadView, PodGroupView, PodView
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG, LABEL_KUEUE_JOB_UID

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.awaited import GangSelection, SelectedGang
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


V = TypeVar("V", JobView, PodView, PodGroupView)


def gang_of(seen: JobView | PodView | PodGroupView) -> str | None:
    """Return the name of the gang that an object belongs to. The informers index objects by it."""
    return seen.metadata.labels.gang


def job_of(workload: KueueWorkloadView) -> str | None:
    """Return the uid of the Job of Kueue's Workload. The informer indexes Workloads by it."""
    return workload.metadata.labels.kueue_job_uid


class GangWatch:
    """What the informers know of one gang. `close` must be called at the end."""

    def __init__(self, client: Client, ref: GangRef) -> None:
        self._ref = ref
        self._notification = Notification()
        jobs, pods = _informer(client, JOBS, ref, JobView), _informer(client, PODS, ref, PodView)
        self._informers: list[Informer[Any]] = [jobs, pods]
        self._jobs = jobs.subscribe(ref.name, self._notification)
        self._pods = pods.subscribe(ref.name, self._notification)
        self._groups: Subscription[PodGroupView] | None = None
        self._queue: Subscription[KueueWorkloadView] | None = None
        self._queue_informer: Informer[KueueWorkloadView] | None = None
        self._position: Position | None = None
        self._gone: Mapping[str, JobView] = {}
        """The last views of deleted Jobs."""

    def subscribe_to_groups(self, client: Client, resource: Resource | None) -> None:
        """Watch the PodGroup of the gang too, unless there is no such resource."""
        if resource is not None:
            groups = _informer(client, resource, self._ref, PodGroupView)
            self._informers.append(groups)
            self._groups = groups.subscribe(self._ref.name, self._notification)

    async def subscribe_to_queue(self, client: Client, uid: str) -> None:
        """Watch Kueue's Workload of the gang too, if the cluster serves Kueue's API. Safe to repeat.

        :param uid: UID of the object that Kueue admits.
        """
        if self._queue is not None:
            return
        resource = await watched_workloads(client)
        if resource is not None:
            self._queue_informer = informers().acquire(
                client, resource, self._ref.namespace, LABEL_KUEUE_JOB_UID, decode=KueueWorkloadView, index=job_of
            )
            self._informers.append(self._queue_informer)
            self._queue = self._queue_informer.subscribe(uid, self._notification)

    def subscribe_to_position(self, client: Client, queue: str | None, uid: str) -> None:
        """Learn the position of the gang in this LocalQueue from now on, or stop if there is none. Safe to repeat.

        :param uid: UID of the object that Kueue admits.
        """
        if queue is None:
            self._close_position()
        elif self._position is None:
            self._position = pending_positions().acquire(
                client.config, self._ref.namespace, queue, uid, self._notification
            )

    def _close_position(self) -> None:
        if self._position is not None:
            self._position.close()
            self._position = None

    def close(self) -> None:
        """End the subscriptions. Safe to repeat."""
        self._close_position()
        for informer in self._informers:
            informer.release()

    @property
    def informers(self) -> list[Informer[Any]]:
        """The informers of Jobs and pods. Both must be synced before an absent object is known not to exist."""
        return self._informers[:2]

    @property
    def job(self) -> StoredGang | None:
        """The gang's Job; another Job of the same name if the gang's Job does not exist; or `None`."""
        seen = self._jobs.peek()
        others = (job for job in seen.values() if job.metadata.name == self._ref.name)
        found = seen.get(self._ref.uid) or next(others, None)
        return read_gang(found, seen.values()) if found else None

    @property
    def gone_job(self) -> StoredGang | None:
        """The last view of the gang's Job, if the Job does not exist any more.

        The other Jobs of a gang with roles are deleted with it, so their last views count, too.
        """
        if deleted := self._jobs.take_deleted():
            self._gone = {**self._gone, **deleted}
        found = self._gone.get(self._ref.uid)
        return read_gang(found, {**self._jobs.peek(), **self._gone}.values()) if found else None

    @property
    def pods_by_uid(self) -> Mapping[str, PodView]:
        """The pods of the gang. The mapping changes with the watch, so it must not be iterated across an await."""
        return self._pods.peek()

    @property
    def is_complete_snapshot(self) -> bool:
        """At some moment the gang had the pods of `pods_by_uid` and no others."""
        return self._informers[1].is_complete_snapshot

    @property
    def podgroup(self) -> PodGroupView | None:
        """The PodGroup of the gang; `None` if the gang has none, or if PodGroups are not watched."""
        return next(iter(self._groups.peek().values()), None) if self._groups else None

    @property
    def queue_workload(self) -> KueueWorkloadView | None:
        """Kueue's Workload of the Job, if it exists and can be read."""
        return next(iter(self._queue.peek().values()), None) if self._queue else None

    @property
    def queue_position(self) -> int | None:
        """The position of the Job in its ClusterQueue, from 1; `None` if it is unknown."""
        return self._position.number if self._position else None

    @property
    def shows_queue(self) -> bool:
        """Kueue's Workloads can be read. False if this is not known yet."""
        return self._queue_informer is not None and self._queue_informer.is_synced

    def pop_pod_changes(self, at_most: int) -> tuple[list[PodView], list[PodView]]:
        """Remove and return at most `at_most` changed pods, and the last views of at most `at_most` deleted pods.

        If there are none, the pods that were returned before are the pods at this moment.
        """
        changed, gone = self._pods.take_updated(at_most), self._pods.take_deleted(at_most)
        return list(changed.values()), list(gone.values())

    @property
    def pods_may_lag(self) -> bool:
        """The watch of pods has a problem, so it may take long to show what happens now."""
        return self._informers[1].problem is not None

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait until an object of the gang has changed since the last call, or the time is over.

        Raises:
            InformerClosedError: The informers have ended.
        """
        await self._notification.wait(timeout_s)
        for subscription in (self._jobs, self._pods, self._groups, self._queue):
            if subscription is not None:
                subscription.check()

    def wake(self) -> None:
        """Make `changed` return."""
        self._notification.notify()


def _informer(client: Client, resource: Resource, ref: GangRef, kind: type[V]) -> Informer[V]:
    return informers().acquire(client, resource, ref.namespace, LABEL_GANG, decode=kind, index=gang_of)


def group_resource(job: StoredGang | None) -> Resource | None:
    """Return the resource of the group of another gang scheduler that places the gang of this Job, or `None`."""
    scheduler = separate_scheduler_of(job.placement) if job is not None else None
    return scheduler.watched_group if scheduler is not None else None


async def podgroups_served(client: Client) -> Resource | None:
    """Return the PodGroup resource in the preferred version that the cluster serves, or `None` if there is none."""
    try:
        discovered = await discover(client)
    except ClusterError:
        return None
    served = (v for v in discovered.scheduling_versions if discovered.can_watch(v, "podgroups"))
    version = next(served, None)
    return podgroups(version) if version else None


REINDEXED_MAX: Final = 64
"""The index of a gang with more pods is kept. Ten thousand small gangs would need too much memory for their indexes."""
BATCH_PODS: Final = 250
"""How many pods are processed before other tasks of the loop may run: some 5 ms of work."""
IN_THREAD_MIN: Final = 500
"""Pods that are observed in a thread. In the loop this would delay other gangs by more than 10 ms."""


@dataclass(frozen=True, slots=True)
class ObservedPods:
    """The pods of one gang at one look. The next look may change the index, so nobody keeps this any longer."""

    index: PodIndex
    is_complete_snapshot: bool
    """At some moment the gang had these pods and no others."""

    def are_all(self, job: StoredGang | None, recorded: AbstractSet[str], ref: GangRef) -> bool | None:
        """Return whether these are all pods that the Job ever had; see `has_all_pods`."""
        return has_all_pods(job, self.index, recorded, ref) if self.is_complete_snapshot else None


class GangObserver:
    """Observes one gang. The observer alone takes changes of pods from the watch, and enqueues them for the harvest."""

    def __init__(
        self, ref: GangRef, watch: GangWatch, enqueue: Callable[[Sequence[PodView], Sequence[PodView]], None]
    ) -> None:
        """
        :param enqueue: Called with pods of the gang that have changed, and with the last views of pods that are gone.
        """
        self._ref = ref
        self.watch = watch
        self._enqueue = enqueue
        self._index: PodIndex | None = None
        self._not_indexed: dict[str, PodView] = {}
        """Pods that changed since they were indexed last. Several changes of one pod are indexed once."""

    async def refresh(self) -> ObservedPods:
        """Process all changes, and return the pods. Called once for each look at the gang."""
        await self.process_changes()
        # The watch is read before anything else is awaited, so it is of the moment of the last change.
        is_complete_snapshot = self.watch.is_complete_snapshot
        return ObservedPods(await self.indexed(), is_complete_snapshot)

    async def process_changes(self) -> None:
        """Enqueue all pods that have changed. On return nothing of the watch is left to process."""
        time_slice = loop_local(TimeSlice)
        while True:
            changed, gone = self.watch.pop_pod_changes(BATCH_PODS)
            if not changed and not gone:
                return
            self._note(changed, gone)
            self._enqueue(pods_of(self._ref, changed), pods_of(self._ref, gone))
            await time_slice.yield_if_due()

    def _note(self, changed: Sequence[PodView], gone: Sequence[PodView]) -> None:
        if self._index is None:
            return
        for pod in changed:
            self._not_indexed[pod.metadata.uid] = pod
        for pod in gone:
            self._not_indexed.pop(pod.metadata.uid, None)
        self._index.remove(gone)

    async def indexed(self) -> PodIndex:
        """Return the index of the pods that were processed. The next call may change the index."""
        if self._index is None:
            pods = list(self.watch.pods_by_uid.values())
            index = PodIndex(self._ref)
            async for batch in in_batches(pods):
                index.update(batch)
            if len(pods) > REINDEXED_MAX:
                self._index = index
            return index
        not_indexed, self._not_indexed = self._not_indexed, {}
        async for batch in in_batches(list(not_indexed.values())):
            self._index.update(batch)
        return self._index

    async def add_listed(self, pods: Sequence[PodView]) -> None:
        """Index pods as the API server has listed them, which the watch does not show yet."""
        if pods:
            self._index = await self.indexed()
            self._not_indexed |= {pod.metadata.uid: pod for pod in pods}

    async def observe(
        self, pods: PodIndex, job: StoredGang | None, podgroup: PodGroupView | None, evidence: Evidence = NO_EVIDENCE
    ) -> GangState:
        """Return the state of indexed pods; see `gang.state.gang_state.observe`."""
        has_few_errors = pods.has_one_pod_per_rank and len(pods.pods_with_errors) <= REINDEXED_MAX
        if len(pods) < IN_THREAD_MIN or has_few_errors:
            return observe(job, pods, podgroup, self._ref, evidence)
        return await asyncio.to_thread(observe, job, pods, podgroup, self._ref, evidence)


async def observe_listed(
    job: StoredGang | None, pods: Sequence[PodView], podgroup: PodGroupView | None, ref: GangRef, evidence: Evidence
) -> GangState:
    """Return the state of pods that were listed. Views never change, so a thread may read them."""
    if len(pods) < IN_THREAD_MIN:
        return observe(job, pods, podgroup, ref, evidence)
    return await asyncio.to_thread(observe, job, pods, podgroup, ref, evidence)


async def in_batches(pods: Sequence[PodView]) -> AsyncIterator[Sequence[PodView]]:
    """Yield all pods in batches of at most `BATCH_PODS`, between which other tasks of the loop run.

    All gangs of a loop share one time slice, so several walks in a row do not each get a slice of their own.
    """
    time_slice = loop_local(TimeSlice)
    for first in range(0, len(pods), BATCH_PODS):
        yield pods[first : first + BATCH_PODS]
        await time_slice.yield_if_due()


SYNC_WITHIN_S: Final = 30.0
"""When the informer has not synced for this long, the same request is sent to learn why."""
STALE_S: Final = 600.0
"""The same for an informer that was synced and has received nothing for this long."""


def task_of(seen: JobView) -> str | None:
    """Return the digest of the task or submission id that a Job belongs to. An informer indexes Jobs by it."""
    return seen.metadata.labels.task


def every(_: JobView) -> str | None:
    """Return one key for all Jobs of an informer."""
    return ""


class SelectionWatch:
    """What an informer shows of the selected gangs. `close` must be called at the end."""

    def __init__(self, client: Client, selection: GangSelection, notification: Notification) -> None:
        """
        :param notification: Notified when a Job of the selection changes.
        """
        self._selection = selection
        index: Callable[[JobView], str | None]
        if selection.selector:
            (labels,) = selection.label_selectors
            index, keys = every, [""]
        elif selection.digests:
            index, labels, keys = task_of, LABEL_GANG, list(selection.digests)
        else:
            index, labels, keys = gang_of, LABEL_GANG, list(selection.names or ())
        self._client = client
        self._notification = notification
        self._informer: Informer[JobView] = informers().acquire(
            client, JOBS, selection.namespace, labels, decode=JobView, index=index
        )
        self._subscriptions = [self._informer.subscribe(key, notification) for key in keys]
        self._listed_jobs: dict[str, JobView] = {}
        """Jobs by uid that the informer did not have when the watch began. The informer has those that change."""

    def close(self) -> None:
        """End the subscriptions. Safe to repeat."""
        self._informer.release()

    async def sync(self) -> None:
        """Wait for the first list of the informer, and list the names once that the informer does not have.

        Raises:
            ClusterRefused: the server refuses to list the Jobs.
            InformerClosedError: the informer has ended.
        """
        while not await self._informer.synced(SYNC_WITHIN_S):
            await self._check_access()
        if self._selection.names is None:
            return
        # The watch has subscribed to the names, so no sweep removes them from the informer from now on.
        missing = [subscription.key for subscription in self._subscriptions if not subscription.peek()]
        if not missing:
            return
        for selector in dataclasses.replace(self._selection, names=dict.fromkeys(missing, "")).label_selectors:
            await retry_until_answered(partial(self._list, selector), clock=self._client.clock)

    async def _list(self, selector: str) -> None:
        async for jobs in self._client.list_views(JobView, JOBS, self._selection.namespace, label_selector=selector):
            self._listed_jobs |= {job.metadata.uid: job for job in jobs}

    async def changed(self) -> None:
        """Wait until a Job of the selection has changed, or somebody else has notified.

        Raises:
            ClusterRefused: the informer has received nothing for a long time, and the server refuses to list.
            InformerClosedError: the informer has ended.
        """
        while not await self._notification.wait(STALE_S):
            self._check_open()
            if self._informer.staleness_s >= STALE_S and self._informer.problem:
                await self._check_access()
        self._check_open()

    def _check_open(self) -> None:
        for subscription in self._subscriptions:
            subscription.check()

    async def _check_access(self) -> None:
        """Send a list that needs the permissions of the informer."""
        selector = next(iter(self._selection.label_selectors), None)
        await retry_until_answered(
            lambda: self._client.list(JOBS, self._selection.namespace, label_selector=selector),
            clock=self._client.clock,
        )

    def find(self) -> dict[str, SelectedGang]:
        """Return the selected gangs; see `GangSelection.find`."""
        for subscription in self._subscriptions:
            for uid in subscription.take_deleted():
                self._listed_jobs.pop(uid, None)
        return self._selection.find(read_gangs((self._listed_jobs | self._seen).values()))

    @property
    def _seen(self) -> dict[str, JobView]:
        return {uid: job for subscription in self._subscriptions for uid, job in subscription.peek().items()}
