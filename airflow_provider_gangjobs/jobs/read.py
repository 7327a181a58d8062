"""The Jobs and the pods of a gang, as the API server has them now. Nothing is cached here, and nothing is written."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.errors import NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.gang.identity import gang_selector, roles_selectors
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.gang.state.pods import pods_of
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.kube.views import PodView, make_interner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

__all__ = ["get_job", "get_main_job", "list_jobs", "list_pods", "list_role_jobs"]

_NONE: Final[Mapping[str, PodView]] = {}


async def list_pods(
    client: Client, ref: GangRef, cached: Mapping[str, PodView] = _NONE, *, leave_out_cached: bool = False
) -> list[PodView]:
    """Return the pods of the gang as the API server has them now.

    :param cached: Pod views by uid that the caller keeps. A view that is still current is returned again instead of a
        second copy.
    :param leave_out_cached: Do not return pods whose cached view is still current.

    Raises:
        ClusterError: The pods could not be listed.
    """
    found: list[PodView] = []
    intern_value = make_interner()
    pages = client.list_views(PodView, PODS, ref.namespace, label_selector=gang_selector(ref.name))
    async with aclosing(pages):
        async for page in pages:
            for pod in page:
                known = cached.get(pod.metadata.uid)
                if known is None or known.metadata.resource_version != pod.metadata.resource_version:
                    pod.intern(intern_value)
                    found.append(pod)
                elif not leave_out_cached:
                    found.append(known)
    return pods_of(ref, found)


async def get_job(client: Client, ref: GangRef) -> StoredGang | None:
    """Return the Job that has the gang's name now, combined with the other Jobs of its gang; `None` if there is none.

    A gang of one Job costs one request. If the gang has roles, its Jobs are listed, too.

    Raises:
        ClusterError: The Jobs could not be read.
    """
    try:
        stored = await client.get(JOBS, ref.name, ref.namespace)
    except NotFound:
        return None
    if not read_job(stored).has_roles:
        return read_job(stored)
    listed = await client.list(JOBS, ref.namespace, label_selector=gang_selector(ref.name))
    # The list is one moment, so the main Job is taken from it, too.
    main_job = next((job for job in listed if job["metadata"]["name"] == ref.name), None)
    return read_gang(main_job, listed) if main_job is not None else None


async def get_main_job(client: Client, ref: GangRef) -> StoredGang | None:
    """Return the Job with exactly this uid; `None` if it is gone. The other Jobs of a gang with roles are not read.

    Raises:
        ClusterError: The Job could not be read.
    """
    try:
        job = read_job(await client.get(JOBS, ref.name, ref.namespace))
    except NotFound:
        return None
    return job if job.ref == ref else None


async def list_role_jobs(
    client: Client, namespace: str | None, main_jobs: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """Return the Jobs of the other roles of some gangs. Requests are sent only if one of the gangs has roles.

    :param main_jobs: The Jobs of the gangs, which were selected by a label that the other Jobs do not have.

    Raises:
        ClusterError: The Jobs could not be read.
    """
    names = [job["metadata"]["name"] for job in main_jobs if read_job(job).has_roles]
    return await list_jobs(client, namespace, roles_selectors(names))


async def list_jobs(client: Client, namespace: str | None, label_selectors: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the Jobs that one of the label selectors selects, with one list for each.

    Raises:
        ClusterError: The Jobs could not be read.
    """
    jobs: list[Mapping[str, Any]] = []
    for selector in label_selectors:
        jobs += await client.list(JOBS, namespace, label_selector=selector)
    return jobs
