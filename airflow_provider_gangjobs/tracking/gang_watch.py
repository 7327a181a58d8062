"""GangWatch: what the shared informers show of one gang, and one event that wakes whoever follows it.

Three watches serve all gangs of a cluster and namespace: Jobs, pods, and PodGroups where they are
served. PodGroups are evidence only; the gang is followed also where they cannot be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_gangjobs.cluster.discovery import discover
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.informer import Informer, InformerClosedError, Subscription, Wake, informers
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS, Resource, podgroups
from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.kube.views import JobView, PodGroupView, PodView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

V = TypeVar("V", JobView, PodView, PodGroupView)


def gang_of(seen: JobView | PodView | PodGroupView) -> str | None:
    """The gang that an object belongs to, by which the informers index."""
    return seen.metadata.labels.gang


class GangWatch:
    """What is seen of one gang now. To be closed."""

    __slots__ = ("_gone", "_groups", "_informers", "_jobs", "_pods", "_ref", "_wake")

    def __init__(self, client: Client, ref: GangRef) -> None:
        self._ref = ref
        self._wake = Wake()
        jobs, pods = _take(client, JOBS, ref, JobView), _take(client, PODS, ref, PodView)
        self._informers: list[Informer[Any]] = [jobs, pods]
        self._jobs = jobs.subscribe(ref.name, self._wake)
        self._pods = pods.subscribe(ref.name, self._wake)
        self._groups: Subscription[PodGroupView] | None = None
        self._gone: JobView | None = None

    async def find_podgroups(self, client: Client) -> None:
        """See the PodGroup too, if the cluster has such."""
        resource = await podgroups_served(client)
        if resource is not None:
            groups = _take(client, resource, self._ref, PodGroupView)
            self._informers.append(groups)
            self._groups = groups.subscribe(self._ref.name, self._wake)

    def close(self) -> None:
        """See nothing more; safe to repeat."""
        for informer in self._informers:
            informer.give_back()

    @property
    def watches(self) -> list[Informer[Any]]:
        """Those that must be synced before their word counts."""
        return self._informers[:2]

    @property
    def job(self) -> Job | None:
        """The Job; if it is not there, another one of its name; or `None`."""
        seen = self._jobs.peek()
        others = (job for job in seen.values() if job.metadata.name == self._ref.name)
        found = seen.get(self._ref.uid) or next(others, None)
        return read_job(found) if found else None

    @property
    def gone_job(self) -> Job | None:
        """The last that was seen of the gang's own Job, if that has gone."""
        self._gone = self._jobs.take_deleted().get(self._ref.uid, self._gone)
        return read_job(self._gone) if self._gone else None

    @property
    def pod_count(self) -> int:
        return len(self._pods.peek())

    @property
    def pods(self) -> list[PodView]:
        return list(self._pods.peek().values())

    @property
    def pods_by_uid(self) -> Mapping[str, PodView]:
        """The same, live and not copied: to look one up at any time, not to be walked over an await."""
        return self._pods.peek()

    @property
    def shows_all_pods_of_a_moment(self) -> bool:
        """No pod existed then that is not among `pods`."""
        return self._informers[1].shows_all_of_a_moment

    @property
    def podgroup(self) -> PodGroupView | None:
        return next(iter(self._groups.peek().values()), None) if self._groups else None

    def take_pods(self, at_most: int) -> tuple[list[PodView], list[PodView]]:
        """Pods that have changed, and the last views of those that have gone, each once; so many of both at most.

        If there are none, then what was taken is how the pods are at this moment.
        """
        changed, gone = self._pods.take_updated(at_most), self._pods.take_deleted(at_most)
        return list(changed.values()), list(gone.values())

    @property
    def pods_may_lag(self) -> bool:
        """The watch of pods has trouble: it will not show what happens now soon."""
        return self._informers[1].problem is not None

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait until something of the gang has changed since the last call, or the time is over.

        Raises:
            InformerClosedError: nothing more will be seen.
        """
        await self._wake.sleep(timeout_s)
        self._jobs.check()
        self._pods.check()
        if self._groups is not None:
            self._groups.check()

    def wake(self) -> None:
        """Have the follower look again."""
        self._wake.set()


def _take(client: Client, resource: Resource, ref: GangRef, kind: type[V]) -> Informer[V]:
    return informers().take(client, resource, ref.namespace, LABEL_GANG, decode=kind, index=gang_of)


async def podgroups_served(client: Client) -> Resource | None:
    """PodGroups in the version that the cluster serves best, `None` if it serves none or does not tell."""
    try:
        capabilities = await discover(client)
    except ClusterError:
        return None
    served = (v for v in capabilities.scheduling_versions if capabilities.can_watch(v, "podgroups"))
    version = next(served, None)
    return podgroups(version) if version else None


__all__ = ["GangWatch", "InformerClosedError", "gang_of", "podgroups_served"]
