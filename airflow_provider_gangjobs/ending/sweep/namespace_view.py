"""The view of a namespace: where a sweep reads the gangs of a namespace from, the shared informers or one list."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.gang.state.pods import gang_ref_of, is_held
from airflow_provider_gangjobs.kube.labels import LABEL_GANG
from airflow_provider_gangjobs.kube.views import JobView, PodView

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.informer import Informer
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.kube.views import Meta


class NamespaceView(Protocol):
    """The gangs of a namespace, as informers or a list show them."""

    @property
    def is_complete(self) -> bool:
        """Whether the view has all Jobs, so that a Job that is missing does not exist."""

    def gangs(self) -> Collection[str]:
        """Return the keys of the gangs of which the view has Jobs or pods."""

    def jobs(self, gang: str) -> Iterable[JobView]:
        """Return the Jobs of the gang."""

    def pods(self, gang: str) -> Iterable[PodView]:
        """Return the pods of the gang."""


@dataclass(frozen=True)
class ListedView:
    """The gangs of a namespace or cluster, as one list showed them.

    The pods are listed first: a pod is made after its Job, so the list of Jobs has the Job of each pod, if it exists.
    """

    by_gang: Mapping[str, tuple[list[JobView], list[PodView]]]
    """By namespace and name."""
    is_complete: bool = True

    @classmethod
    async def read(cls, client: Client, namespace: str | None) -> ListedView:
        """List the Jobs and the held pods of a namespace; of the whole cluster if the namespace is None.

        Raises:
            ClusterError: they could not be listed.
        """
        by_gang: dict[str, tuple[list[JobView], list[PodView]]] = {}
        async with aclosing(client.list_views(PodView, PODS, namespace, label_selector=LABEL_GANG)) as pod_pages:
            async for pods in pod_pages:
                for pod in filter(is_held, pods):
                    by_gang.setdefault(_gang_of(pod.metadata), ([], []))[1].append(pod)
        async with aclosing(client.list_views(JobView, JOBS, namespace, label_selector=LABEL_GANG)) as job_pages:
            async for jobs in job_pages:
                for job in jobs:
                    by_gang.setdefault(_gang_of(job.metadata), ([], []))[0].append(job)
        return cls(by_gang)

    def gangs(self) -> Collection[str]:
        """Return the keys of the gangs of which there are Jobs or held pods."""
        return self.by_gang.keys()

    def jobs(self, gang: str) -> Iterable[JobView]:
        """Return the Jobs of the gang."""
        return self.by_gang[gang][0]

    def pods(self, gang: str) -> Iterable[PodView]:
        """Return the held pods of the gang."""
        return self.by_gang[gang][1]


@dataclass(frozen=True)
class InformerView:
    """The gangs of a namespace, as the shared informers show them."""

    job_informer: Informer[JobView]
    pod_informer: Informer[PodView]

    @property
    def is_complete(self) -> bool:
        """Whether the Jobs are all Jobs of the server at one moment."""
        return self.job_informer.is_complete_snapshot and self.job_informer.problem is None

    def gangs(self) -> Collection[str]:
        """Return the names of the gangs of which there are Jobs or pods."""
        return {*self.job_informer.keys(), *self.pod_informer.keys()}

    def jobs(self, gang: str) -> Iterable[JobView]:
        """Return the Jobs of this name."""
        return self.job_informer.objects(gang).values()

    def pods(self, gang: str) -> Iterable[PodView]:
        """Return the pods of the gang of this name."""
        return self.pod_informer.objects(gang).values()


def _gang_of(metadata: Meta) -> str:
    return f"{metadata.namespace}/{metadata.labels.gang}"


def held_by_gang(pods: Iterable[PodView]) -> dict[GangRef, list[PodView]]:
    """Return the held pods by their gang. A pod that does not say which Job made it is left out."""
    held: dict[GangRef, list[PodView]] = {}
    for pod in pods:
        if is_held(pod) and (ref := gang_ref_of(pod)) is not None:
            held.setdefault(ref, []).append(pod)
    return held


__all__ = ["InformerView", "ListedView", "NamespaceView", "held_by_gang"]
