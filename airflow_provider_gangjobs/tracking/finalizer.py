"""Our finalizer, and how it is taken off pods: one patch each, many at once.

A pod's uid is a precondition of its patch, so that of two pods of one name the right one is meant. A pod that is
gone is free. Nothing is recorded here; that comes first, and is somebody else's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import Answer, Patch
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Invalid, NotFound
from airflow_provider_gangjobs.cluster.per_loop import of_running_loop
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.gang.labels import FINALIZER_HARVEST
from airflow_provider_gangjobs.gang.pods import is_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.objects.views import PodView

PATCHES_IN_FLIGHT_MAX: Final = 16
"""Of a gang. Each is a TLS connection, whose handshake costs both sides as much as ten patches. A server that answers
in 30 ms takes 500 a second of so many."""
LOOP_IN_FLIGHT_MAX: Final = 64
"""For all gangs of a loop, of the hundred connections that a client may open. A thousand gangs that end at once must
not queue up, for the one request that each event waits for, behind a thousand releases that nobody waits for."""


async def release_all(
    client: Client,
    pods: Sequence[PodView],
    told: Callable[[PodView, ClusterError | None], None],
    *,
    in_flight: int = PATCHES_IN_FLIGHT_MAX,
) -> None:
    """Release each, and tell of each as it is done; one that fails does not stop the others."""
    rest = iter(pods)
    async with asyncio.TaskGroup() as group:
        for number in range(min(in_flight, len(pods))):
            group.create_task(_release_from(client, rest, told), name=f"release-{number}")


class _Limit:
    """One a loop."""

    def __init__(self) -> None:
        self.in_flight = asyncio.Semaphore(LOOP_IN_FLIGHT_MAX)


async def _release_from(
    client: Client, pods: Iterator[PodView], told: Callable[[PodView, ClusterError | None], None]
) -> None:
    of_all_gangs = of_running_loop(_Limit).in_flight
    for pod in pods:
        try:
            async with of_all_gangs:
                await release_pod(client, pod)
        except ClusterError as exc:
            told(pod, exc)
        else:
            told(pod, None)


async def release_pod(client: Client, pod: PodView) -> None:
    """On return our finalizer is gone from this pod, or the pod is. Safe to repeat.

    Raises:
        ClusterError: it may still be held.
    """
    if not is_held(pod):
        return
    meta = pod.metadata
    try:
        patch = release_patch(meta.uid)
        await client.patch(PODS, meta.name, meta.namespace, patch, kind=Patch.STRATEGIC, answer=Answer.METADATA)
    except NotFound:
        return
    except (Conflict, Invalid):
        # Either another pod has this name now, or the server gave up on concurrent writers.
        if await _is_there(client, pod):
            raise


def release_patch(uid: str) -> dict[str, Any]:
    """A strategic merge patch that removes our finalizer from the pod of this uid and touches nothing else."""
    return {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER_HARVEST]}}


async def _is_there(client: Client, pod: PodView) -> bool:
    try:
        there = await client.get(PODS, pod.metadata.name, pod.metadata.namespace)
    except NotFound:
        return False
    return bool(there["metadata"]["uid"] == pod.metadata.uid)
