"""Read whether a queue of Kueue places all pods of a gang or none. Where a permission is missing, this is unknown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import Forbidden, NotFound
from airflow_provider_gangjobs.cluster.kueue import VERSIONS
from airflow_provider_gangjobs.cluster.resources import KUEUE_GROUP, Resource
from airflow_provider_gangjobs.gang.schedulers.base import Guarantee
from airflow_provider_gangjobs.gang.schedulers.kueue_topology import flavor_names, topology_guarantee

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.objects import Object
    from airflow_provider_gangjobs.submission.retrying_requests import RetryingRequests


async def read_topology_guarantee(requests: RetryingRequests, queue: str) -> Guarantee:
    """Return whether Kueue keeps gangs together in this queue of the namespace.

    Raises:
        ClusterError: the cluster could not be reached.
    """
    for version in VERSIONS:
        try:
            return await requests.retry(partial(_read, requests, version, queue))
        except NotFound:
            continue
        except Forbidden as error:
            return Guarantee(None, f"it is unknown whether Kueue queue {queue} keeps gangs together: {error}")
    return Guarantee(False, "the cluster does not serve a known version of kueue.x-k8s.io")


async def _read(requests: RetryingRequests, version: str, queue: str) -> Guarantee:
    found = await requests.list_once(Resource(KUEUE_GROUP, version, "localqueues", "LocalQueue"))
    local = next((item for item in found if item["metadata"]["name"] == queue), None)
    if local is None:
        return Guarantee(False, f"{queue} is no LocalQueue of namespace {requests.namespace}")
    cluster_queue = await read_cluster_object(
        requests, version, "clusterqueues", "ClusterQueue", local["spec"]["clusterQueue"]
    )
    flavors: dict[str, str | None] = {}
    levels: dict[str, list[str]] = {}
    for name in flavor_names(cluster_queue):
        flavor = await read_cluster_object(requests, version, "resourceflavors", "ResourceFlavor", name)
        topology = flavors[name] = flavor.get("spec", {}).get("topologyName")
        if topology is not None and topology not in levels:
            stored = await read_cluster_object(requests, version, "topologies", "Topology", topology)
            levels[topology] = [str(level["nodeLabel"]) for level in stored.get("spec", {}).get("levels") or ()]
    return topology_guarantee(queue, flavors, levels)


async def read_cluster_object(requests: RetryingRequests, version: str, plural: str, kind: str, name: str) -> Object:
    """Return an object of Kueue that has no namespace; an empty one if the object does not exist. Not retried."""
    return await requests.find_once(Resource(KUEUE_GROUP, version, plural, kind, namespaced=False), name) or {}
