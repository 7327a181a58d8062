"""Sights: what the shared informers show of one gang, and one event that wakes whoever follows it.

Three watches serve all gangs of a cluster and namespace: Jobs, pods, and PodGroups where they are
served. PodGroups are evidence only; the gang is followed also where they cannot be read.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_gangjobs.cluster.discovery import Capabilities, discover
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.informer import Informer, InformerClosedError, Subscription, informers
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS, Resource, podgroups
from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from airflow_provider_gangjobs.objects.views import JobView, PodGroupView, PodView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

V = TypeVar("V", JobView, PodView, PodGroupView)


def gang_of(seen: JobView | PodView | PodGroupView) -> str | None:
    """The gang that an object belongs to, by which the informers index."""
    return seen.metadata.labels.gang


class Sights:
    """What is seen of one gang now."""

    def __init__(
        self,
        ref: GangRef,
        jobs: Subscription[JobView],
        pods: Subscription[PodView],
        podgroups: Subscription[PodGroupView] | None,
    ) -> None:
        self._ref = ref
        self._jobs = jobs
        self._pods = pods
        self._podgroups = podgroups
        self._wake = asyncio.Event()

    @property
    def job(self) -> JobView | None:
        """The Job; if it is not there, another one of its name; or `None`."""
        seen = self._jobs.objects()
        others = (job for job in seen.values() if job.metadata.name == self._ref.name)
        return seen.get(self._ref.uid) or next(others, None)

    @property
    def pods(self) -> list[PodView]:
        return list(self._pods.objects().values())

    @property
    def podgroup(self) -> PodGroupView | None:
        seen = self._podgroups.objects() if self._podgroups else {}
        return next(iter(seen.values()), None)

    def take_pods(self) -> tuple[list[PodView], list[PodView]]:
        """The pods that have changed since the last call, and the last views of those that have gone."""
        return list(self._pods.take_updated().values()), list(self._pods.take_deleted().values())

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait until something of the gang has changed since the last call, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def wake(self) -> None:
        """Have the follower look again."""
        self._wake.set()

    def relays(self) -> list[Coroutine[Any, Any, None]]:
        """To be run beside the follower: they turn the changes of all subscriptions into one event.

        Each raises InformerClosedError when nothing more will be seen.
        """
        return [self._relay_from(one) for one in (self._jobs, self._pods, self._podgroups) if one is not None]

    async def _relay_from(self, subscription: Subscription[Any]) -> None:
        while True:
            await subscription.changed()
            self._wake.set()


@asynccontextmanager
async def sights(client: Client, ref: GangRef) -> AsyncIterator[tuple[Sights, tuple[Informer[Any], ...]]]:
    """Lease the informers for one gang. Also gives those that must be synced before their word counts."""
    async with AsyncExitStack() as stack:
        jobs = await stack.enter_async_context(_lease(client, JOBS, ref, JobView))
        pods = await stack.enter_async_context(_lease(client, PODS, ref, PodView))
        groups = None
        resource = _podgroups(await _capabilities(client))
        if resource is not None:
            groups = await stack.enter_async_context(_lease(client, resource, ref, PodGroupView))
        seen = Sights(
            ref, jobs.subscribe(ref.name), pods.subscribe(ref.name), groups.subscribe(ref.name) if groups else None
        )
        yield seen, (jobs, pods)


@asynccontextmanager
async def _lease(client: Client, resource: Resource, ref: GangRef, kind: type[V]) -> AsyncIterator[Informer[V]]:
    lease = informers().lease(client, resource, ref.namespace, LABEL_GANG, decode=kind, index=gang_of)
    async with lease as informer:
        yield informer


async def _capabilities(client: Client) -> Capabilities | None:
    try:
        return await discover(client)
    except ClusterError:
        return None


def _podgroups(capabilities: Capabilities | None) -> Resource | None:
    if capabilities is None:
        return None
    served = (v for v in capabilities.scheduling_versions if capabilities.can_watch(v, "podgroups"))
    version = next(served, None)
    return podgroups(version) if version else None


__all__ = ["InformerClosedError", "Sights", "gang_of", "sights"]
