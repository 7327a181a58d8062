"""Selection watch: the selected gangs of a namespace, as the shared informers of Jobs show them.

Gangs that are selected by name use the informer that all followers of the namespace share. Gangs that are selected by
task or submission id share one further informer, and each label selector has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.informer import Informer, Notification, Subscription, informers
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from airflow_provider_gangjobs.gang.state.roles import read_gangs
from airflow_provider_gangjobs.kube.views import JobView
from airflow_provider_gangjobs.tracking.cluster_requests import retry_until_answered
from airflow_provider_gangjobs.tracking.gang_watch import gang_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.selection import GangSelection, SelectedGang

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
        self._client = client
        self._selection = selection
        self._notification = notification
        index: Callable[[JobView], str | None]
        if selection.selector:
            index, labels, keys = every, selection.label_selector, [""]
        elif selection.digests:
            index, labels, keys = task_of, LABEL_GANG, [digest for each in selection.digests for digest in each]
        else:
            index, labels, keys = gang_of, LABEL_GANG, list(selection.names or ())
        self._informer: Informer[JobView] = informers().acquire(
            client, JOBS, selection.namespace, labels, decode=JobView, index=index
        )
        self._jobs: list[Subscription[JobView]] = [self._informer.subscribe(key, notification) for key in keys]

    def close(self) -> None:
        """End the subscriptions. Safe to repeat."""
        self._informer.release()

    async def sync(self) -> None:
        """Wait for the first list, so that a gang that is not found does not exist.

        Raises:
            ClusterRefused: the server refuses to list Jobs.
            InformerClosedError: the informer has ended.
        """
        while not await self._informer.synced(SYNC_WITHIN_S):
            await self._check_access()

    def find(self) -> dict[str, SelectedGang]:
        """Return the selected gangs; see `GangSelection.find`."""
        views = (view for subscription in self._jobs for view in subscription.peek().values())
        return self._selection.find(read_gangs(views))

    async def changed(self, within_s: float | None = None) -> None:
        """Wait until a selected Job has changed, somebody else has notified, or `within_s` seconds have passed.

        Raises:
            ClusterRefused: the informer has received nothing for a long time, and the server refuses to list Jobs.
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
        for subscription in self._jobs:
            subscription.check()

    async def _check_access(self) -> None:
        selection = self._selection
        await retry_until_answered(
            lambda: self._client.list(JOBS, selection.namespace, label_selector=selection.label_selector),
            clock=self._client.clock,
        )


__all__ = ["SelectionWatch"]
