"""Selection watch: the selected gangs of a namespace, as the shared informers of Jobs show them.

Gangs that are selected by name use the informer that all followers of the namespace share. A sweep removes gangs that
have ended from that informer, so the names that the informer does not have are listed once when a watch begins. Gangs
that are selected by task or submission id share one further informer, and each label selector has its own.

Informer watch: the base class of the waits for objects that a shared informer shows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from airflow_provider_gangjobs.cluster.informer import Informer, Notification, informers
from airflow_provider_gangjobs.cluster.informer.store import HasMetadata
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gangs
from airflow_provider_gangjobs.kube.views import JobView
from airflow_provider_gangjobs.tracking.retry_until_answered import retry_until_answered
from airflow_provider_gangjobs.tracking.watch.gang_watch import gang_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.informer import Informer, Notification
    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.gang.awaited_gangs import GangSelection, SelectedGang

__all__ = ["InformerWatch", "SelectionWatch"]


V = TypeVar("V", bound=HasMetadata)

SYNC_WITHIN_S: Final = 30.0
"""When the informer has not synced for this long, the same request is sent to learn why."""
STALE_S: Final = 600.0
"""The same for an informer that was synced and has received nothing for this long."""


class InformerWatch(Generic[V]):
    """Some keys of a shared informer. `close` must be called at the end."""

    def __init__(self, client: Client, informer: Informer[V], keys: Iterable[str], notification: Notification) -> None:
        """
        :param informer: The handle is released by `close`.
        :param notification: Notified when an object of the keys changes.
        """
        self._client = client
        self._informer = informer
        self._notification = notification
        self._subscriptions = [informer.subscribe(key, notification) for key in keys]

    @property
    def _listed(self) -> tuple[Resource, str, str | None]:
        """The resource, namespace and label selector of a list that needs the same permissions as the informer."""
        raise NotImplementedError

    def close(self) -> None:
        """End the subscriptions. Safe to repeat."""
        self._informer.release()

    async def sync(self) -> None:
        """Wait for the first list, so that an object that is not found does not exist.

        Raises:
            ClusterRefused: the server refuses to list the objects.
            NotFound: the server does not serve the resource.
            InformerClosedError: the informer has ended.
        """
        while not await self._informer.synced(SYNC_WITHIN_S):
            await self._check_access()

    async def changed(self, within_s: float | None = None) -> None:
        """Wait until an object has changed, somebody else has notified, or `within_s` seconds have passed.

        Raises:
            ClusterRefused: the informer has received nothing for a long time, and the server refuses to list.
            NotFound: the server does not serve the resource any more.
            InformerClosedError: the informer has ended.
        """
        while not await self._notification.wait(STALE_S if within_s is None else within_s):
            self._check_open()
            if self._informer.staleness_s >= STALE_S and self._informer.problem:
                await self._check_access()
            if within_s is not None:
                return
        self._check_open()

    def _check_open(self) -> None:
        for subscription in self._subscriptions:
            subscription.check()

    async def _check_access(self) -> None:
        resource, namespace, selector = self._listed
        await retry_until_answered(
            lambda: self._client.list(resource, namespace, label_selector=selector), clock=self._client.clock
        )


def task_of(seen: JobView) -> str | None:
    """Return the digest of the task or submission id that a Job belongs to. An informer indexes Jobs by it."""
    return seen.metadata.labels.task


def every(_: JobView) -> str | None:
    """Return one key for all Jobs of an informer."""
    return ""


class SelectionWatch(InformerWatch[JobView]):
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
            index, labels, keys = task_of, LABEL_GANG, [digest for each in selection.digests for digest in each]
        else:
            index, labels, keys = gang_of, LABEL_GANG, list(selection.names or ())
        informer: Informer[JobView] = informers().acquire(
            client, JOBS, selection.namespace, labels, decode=JobView, index=index
        )
        super().__init__(client, informer, keys, notification)
        self._listed_jobs: dict[str, JobView] = {}
        """Jobs by uid that the informer did not have when the watch began. The informer has those that change."""

    async def sync(self) -> None:
        """Wait for the first list of the informer, and list the names once that the informer does not have.

        Raises:
            ClusterRefused: the server refuses to list the Jobs.
            InformerClosedError: the informer has ended.
        """
        await super().sync()
        if self._selection.names is None:
            return
        # The watch has subscribed to the names, so no sweep removes them from the informer from now on.
        missing = [subscription.key for subscription in self._subscriptions if not subscription.peek()]
        if not missing:
            return
        for selector in replace(self._selection, names=dict.fromkeys(missing, "")).label_selectors:
            await retry_until_answered(partial(self._list, selector), clock=self._client.clock)

    async def _list(self, selector: str) -> None:
        async for jobs in self._client.list_views(JobView, JOBS, self._selection.namespace, label_selector=selector):
            self._listed_jobs |= {job.metadata.uid: job for job in jobs}

    def find(self) -> dict[str, SelectedGang]:
        """Return the selected gangs; see `GangSelection.find`."""
        for subscription in self._subscriptions:
            for uid in subscription.take_deleted():
                self._listed_jobs.pop(uid, None)
        return self._selection.find(read_gangs((self._listed_jobs | self._seen).values()))

    @property
    def _seen(self) -> dict[str, JobView]:
        return {uid: job for subscription in self._subscriptions for uid, job in subscription.peek().items()}

    @property
    def _listed(self) -> tuple[Resource, str, str | None]:
        return JOBS, self._selection.namespace, next(iter(self._selection.label_selectors), None)
