"""Reads what stays of gangs in a namespace or cluster: from their Jobs, the held pods, and the Leases of triggerers.

Nothing is changed. The rules are `gang.gang_lists`; `ending.sweep` has those of triggerers and `gangjobs tidy`.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.ending.half_submitted import is_half_submitted
from airflow_provider_gangjobs.ending.sweep.leases import read_leases
from airflow_provider_gangjobs.ending.sweep.sweep import held_by_gang, last_sign
from airflow_provider_gangjobs.gang.gang_lists import Leak, find_leak, leak_of_pods
from airflow_provider_gangjobs.gang.state.pods import is_held
from airflow_provider_gangjobs.kube.views import PodView
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG
from airflow_provider_gangjobs.tracking.gang_list import list_gangs

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef


async def find_leaks(client: Client, namespace: str | None, *, grace: timedelta) -> tuple[list[Leak], str]:
    """Return what stays in a namespace, or in the cluster, and why it is unknown who follows the gangs.

    The second value is empty if the Leases of the triggerers could be read.

    Raises:
        ClusterError: The Jobs or the pods could not be listed.
    """
    held = await held_pods(client, namespace)
    jobs = await list_gangs(client, namespace)
    is_followed, unknown = await _followers(client, namespace)
    now = client.server_clock.now()
    leaks = []
    for job in jobs:
        leak = find_leak(
            job,
            now=now,
            grace=grace,
            held_pods=len(held.pop(job.ref, ())),
            is_followed=is_followed(job.ref),
            is_half_submitted=is_half_submitted(job, now=now, older_than=grace),
        )
        leaks += [leak] if leak else []
    for ref, pods in held.items():
        since = max(last_sign(pod, now) for pod in pods)
        if now - since >= grace:
            leaks.append(leak_of_pods(ref.namespace, ref.name, len(pods), since))
    return leaks, unknown


async def held_pods(client: Client, namespace: str | None) -> dict[GangRef, list[PodView]]:
    """Return the pods that the provider's finalizer holds, by their gang, which may not exist any more.

    Raises:
        ClusterError: The pods could not be listed.
    """
    held: list[PodView] = []
    async with aclosing(client.list_views(PodView, PODS, namespace, label_selector=LABEL_GANG)) as pages:
        async for page in pages:
            held += filter(is_held, page)
    return held_by_gang(held)


async def _followers(client: Client, namespace: str | None) -> tuple[Callable[[GangRef], bool | None], str]:
    try:
        leases = await read_leases(client, namespace)
    except ClusterError as error:
        return (lambda _: None), str(error)
    now = client.server_clock.now()
    valid = [lease for lease in leases if lease.is_valid(now)]
    return (lambda ref: any(lease.names(ref) for lease in valid)), ""


__all__ = ["find_leaks", "held_pods"]
