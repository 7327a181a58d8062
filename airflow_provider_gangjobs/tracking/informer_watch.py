"""Informer watch: the base class of the waits for objects that a shared informer shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from airflow_provider_gangjobs.cluster.informer.store import HasMetadata
from airflow_provider_gangjobs.tracking.retry_until_answered import retry_until_answered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.informer import Informer, Notification
    from airflow_provider_gangjobs.cluster.resources import Resource

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


__all__ = ["InformerWatch"]
