"""Read whether a queue of Kueue places all pods of a gang or none. Where a permission is missing, this is unknown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import Forbidden, NotFound
from airflow_provider_gangjobs.cluster.kueue import VERSIONS
from airflow_provider_gangjobs.cluster.resources import KUEUE_GROUP, Resource
from airflow_provider_gangjobs.gang.schedulers.base import Guarantee
from airflow_provider_gangjobs.gang.schedulers.kueue_topology import (
    QueueTopologies,
    flavor_names,
    topology_guarantee,
)

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
    return topology_guarantee(queue, await read_topologies(requests, version, local["spec"]["clusterQueue"]))


async def read_topologies(requests: RetryingRequests, version: str, cluster_queue: str) -> QueueTopologies:
    """Return the flavors of a ClusterQueue and their Topologies. Not retried.

    Raises:
        Forbidden: a permission is missing.
    """
    find = partial(find_cluster_object, requests, version)
    stored = await find("clusterqueues", "ClusterQueue", cluster_queue)
    if stored is None:
        return QueueTopologies(missing=(f"ClusterQueue {cluster_queue}",))
    flavors: dict[str, str | None] = {}
    levels: dict[str, list[str]] = {}
    missing: list[str] = []
    for name in flavor_names(stored):
        flavor = await find("resourceflavors", "ResourceFlavor", name)
        if flavor is None:
            missing.append(f"ResourceFlavor {name}")
            continue
        topology = flavors[name] = flavor.get("spec", {}).get("topologyName")
        if topology is None or topology in levels:
            continue
        found = await find("topologies", "Topology", topology)
        if found is None:
            missing.append(f"Topology {topology} of flavor {name}")
            continue
        levels[topology] = [str(level["nodeLabel"]) for level in found.get("spec", {}).get("levels") or ()]
    return QueueTopologies(flavors, levels, missing)


async def find_cluster_object(
    requests: RetryingRequests, version: str, plural: str, kind: str, name: str
) -> Object | None:
    """Return an object of Kueue that has no namespace; `None` if the object does not exist. Not retried."""
    return await requests.find_once(Resource(KUEUE_GROUP, version, plural, kind, namespaced=False), name)
