"""The pods of a gang, listed from the API server."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.gang.selectors import gang_selector
from airflow_provider_gangjobs.gang.state.pods import pods_of
from airflow_provider_gangjobs.kube.interning import make_interner
from airflow_provider_gangjobs.kube.views import PodView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

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
