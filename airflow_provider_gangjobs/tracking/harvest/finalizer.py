"""Finalizer: removes the harvest finalizer from pods, with one patch for each pod and many patches at once.

The pod's uid is a precondition of the patch, so a new pod of the same name is not touched. A pod that does not exist
counts as released. Nothing is recorded here; the caller records outcomes first.
"""

from __future__ import annotations

import asyncio
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import PatchType, ResponseFormat
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Invalid, NotFound
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.gang.labels import FINALIZER_HARVEST
from airflow_provider_gangjobs.gang.state.pods import is_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.kube.views import PodView

PATCHES_IN_FLIGHT_MAX: Final = 16
"""Of one gang. Each uses a TLS connection, whose handshake costs both sides as much as ten patches. With 16 in flight
a server that answers in 30 ms takes 500 patches a second."""
LOOP_IN_FLIGHT_MAX: Final = 64
"""Of all gangs of a loop, out of the hundred connections that a client may open. When a thousand gangs end at once, the
one request that each event waits for must not queue behind releases that nobody waits for."""
BULK_PATCH_PODS_MIN: Final = 128
"""Each bulk patch opens connections of its own, which cost as much as this many ordinary patches."""
BULK_PATCH_RUNS_MAX: Final = 2
"""At once, in a loop. Other gangs are released pod by pod."""


async def release_all(
    client: Client,
    pods: Sequence[PodView],
    done: Callable[[PodView, ClusterError | None], None],
    *,
    in_flight: int = PATCHES_IN_FLIGHT_MAX,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Release pods. A pod that fails does not stop the others.

    :param done: Called with each pod when it is released, or with the error.
    :param until: No further release is started when this returns true.
    """
    rest: Iterator[PodView] = takewhile(lambda _: not until(), pods)
    if len(pods) >= BULK_PATCH_PODS_MIN:
        rest = await _release_in_bulk(client, rest, done, in_flight)
    await _one_by_one(client, rest, done, min(in_flight, len(pods)))


class _Limits:
    """Limits of one event loop."""

    def __init__(self) -> None:
        self.in_flight = asyncio.Semaphore(LOOP_IN_FLIGHT_MAX)
        self.bulk_runs = 0


async def _release_in_bulk(
    client: Client, pods: Iterator[PodView], done: Callable[[PodView, ClusterError | None], None], in_flight: int
) -> Iterator[PodView]:
    """Release as many pods as possible in bulk. Return the pods that were not tried."""
    limits = loop_local(_Limits)
    if limits.bulk_runs >= BULK_PATCH_RUNS_MAX:
        return pods
    limits.bulk_runs += 1
    try:
        goes = True
        while goes and (first := next(pods, None)) is not None:
            pods = chain((first,), pods)
            left, goes = await client.patch_many(
                PODS,
                ((pod, pod.metadata.name, pod.metadata.namespace, release_patch(pod.metadata.uid)) for pod in pods),
                lambda pod: done(pod, None),
                patch_type=PatchType.STRATEGIC,
                ignore_not_found=True,
                connections=in_flight,
            )
            await _one_by_one(client, iter(left), done, min(in_flight, len(left)))
    finally:
        limits.bulk_runs -= 1
    return pods


async def _one_by_one(
    client: Client, pods: Iterator[PodView], done: Callable[[PodView, ClusterError | None], None], in_flight: int
) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(in_flight):
            group.create_task(_release_from(client, pods, done), name=f"release-{number}")


async def _release_from(
    client: Client, pods: Iterator[PodView], done: Callable[[PodView, ClusterError | None], None]
) -> None:
    of_all_gangs = loop_local(_Limits).in_flight
    for pod in pods:
        try:
            async with of_all_gangs:
                await release_pod(client, pod)
        except ClusterError as exc:
            done(pod, exc)
        else:
            done(pod, None)


async def release_pod(client: Client, pod: PodView) -> None:
    """Remove the finalizer from this pod, unless the pod does not exist. Safe to repeat.

    Raises:
        ClusterError: The pod may still be held.
    """
    if not is_held(pod):
        return
    meta = pod.metadata
    try:
        patch = release_patch(meta.uid)
        await client.patch(
            PODS,
            meta.name,
            meta.namespace,
            patch,
            patch_type=PatchType.STRATEGIC,
            response_format=ResponseFormat.METADATA,
        )
    except NotFound:
        return
    except (Conflict, Invalid):
        # Either another pod has this name now, or the server stopped retrying because of concurrent writers.
        if await _is_there(client, pod):
            raise


def release_patch(uid: str) -> dict[str, Any]:
    """Return a strategic merge patch that removes only the harvest finalizer, from the pod of this uid."""
    return {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER_HARVEST]}}


async def _is_there(client: Client, pod: PodView) -> bool:
    try:
        there = await client.get(PODS, pod.metadata.name, pod.metadata.namespace)
    except NotFound:
        return False
    return bool(there["metadata"]["uid"] == pod.metadata.uid)
