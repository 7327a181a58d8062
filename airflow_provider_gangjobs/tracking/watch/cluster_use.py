"""Cluster use: reads the nodes and the pods of a cluster, to say whether a gang fits now, later or never.

This needs rights in the whole cluster, which are optional (`docs/rbac-capacity.yaml`). Without them the answer is
unknown, and the right is asked for again after some minutes. Each cluster is read once a minute at most for all gangs
of an event loop, and only while a gang waits for nodes. Reading is best effort: it takes at most `READ_WITHIN_S`, and
nothing is logged.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from airflow_provider_gangjobs.cluster.clock import TimeSlice
from airflow_provider_gangjobs.cluster.discovery import is_allowed
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.loop_local import Answer, cached_read, loop_local
from airflow_provider_gangjobs.cluster.resources import NODES, PODS
from airflow_provider_gangjobs.gang.capacity import Capacity, ClusterUse, GangDemand, NodeView, PodUse
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.state.waiting import placed_at_once

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodGroupView

READ_EVERY_S: Final = 60.0
NOT_ALLOWED_READ_EVERY_S: Final = 600.0
READ_WITHIN_S: Final = 10.0
"""The follower of a gang does nothing else meanwhile."""
PODS_MAX: Final = 20_000
"""The pods of a larger cluster are not read. It is then only known whether a gang can never fit."""
IN_THREAD_MIN: Final = 200
"""Nodes with which the loop would be blocked for more than some milliseconds."""
_PLACED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


async def measure_capacity(client: Client, job: StoredGang, podgroup: PodGroupView | None) -> Capacity | None:
    """Return whether a gang whose pods exist fits into its cluster, or `None` if this is unknown."""
    use = await recent_cluster_use(client)
    if use is None:
        return None
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            demand = await _read_demand(client, job, placed_at_once(job, podgroup))
    except (TimeoutError, ClusterError, msgspec.ValidationError):
        return None
    if demand is None:
        return None
    return use.measure(demand) if use.size < IN_THREAD_MIN else await asyncio.to_thread(use.measure, demand)


async def _read_demand(client: Client, job: StoredGang, at_once: int) -> GangDemand | None:
    """Return what the gang needs, by the first page of its pods."""
    ref = job.ref
    pages = client.list_views(PodUse, PODS, ref.namespace, label_selector=gang_selector(ref.name))
    async with aclosing(pages):
        first = await anext(pages)
    return GangDemand.of(first, namespace=ref.namespace, name=ref.name, ranks=job.ranks, at_once=at_once)


async def recent_cluster_use(client: Client) -> ClusterUse | None:
    """Return the nodes of the cluster and who uses them, as they were at most a minute ago, or `None` if unknown.

    Concurrent callers wait for one read. The use is also unknown if a request of a pod is no quantity, or if an object
    has another format.
    """
    return await cached_read(
        client,
        (recent_cluster_use,),
        partial(_read, client),
        within_s=READ_WITHIN_S,
        unanswered=Answer(None, READ_EVERY_S),
    )


async def _read(client: Client) -> Answer[ClusterUse | None]:
    if not await is_allowed(client, "list", NODES):
        return Answer(None, NOT_ALLOWED_READ_EVERY_S)
    nodes = [node async for page in client.list_views(NodeView, NODES) for node in page]
    if not await is_allowed(client, "list", PODS):
        return Answer(ClusterUse(nodes, knows_pods=False), NOT_ALLOWED_READ_EVERY_S)
    use, count = ClusterUse(nodes), 0
    async for page in _placed_pods(client):
        count += len(page)
        if count > PODS_MAX:
            return Answer(ClusterUse(nodes, knows_pods=False), READ_EVERY_S)
        use.add(page)
    return Answer(use, READ_EVERY_S)


async def _placed_pods(client: Client) -> AsyncIterator[list[PodUse]]:
    """Yield the pods of the cluster that have a node and have not ended, some at a time."""
    time_slice = loop_local(TimeSlice)
    async with aclosing(client.list_views(PodUse, PODS, field_selector=_PLACED)) as pages:
        async for page in pages:
            for first in range(0, len(page), _BATCH_PODS):
                yield page[first : first + _BATCH_PODS]
                await time_slice.yield_if_due()


_BATCH_PODS: Final = 100
"""Some 5 ms of work."""
