"""The watch of the gangs that somebody waits for. Nothing is changed.

Gangs that are selected by name use the informer that all followers of the namespace share. A sweep removes gangs that
have ended from that informer, so the names that the informer does not have are listed once when a watch begins. Gangs
that are selected by submission id share one further informer, and each label selector has its own.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.informer import Informer, Notification, informers
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gangs
from airflow_provider_gangjobs.jobs.requests import retry_until_answered
from airflow_provider_gangjobs.kube.views import JobView
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG
from airflow_provider_gangjobs.tracking.gang_watch import gang_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.awaited import GangSelection, SelectedGang


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
