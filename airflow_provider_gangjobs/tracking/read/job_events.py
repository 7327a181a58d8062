"""Job events: the Kubernetes Events of a Job, read when a gang makes no progress and no object says why.

Pods that were refused (by a quota or a webhook) leave no object behind, only an Event of the Job. Where Kueue's
Workloads cannot be read, their Events say why a gang waits in its queue. A scheduler may overwrite in a pod why it
could not place the pod, and the Events of the pod still say it. Reading is best effort: a gang is followed also where
the service account may not list Events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import EVENTS
from airflow_provider_gangjobs.kube.views import EventView, view

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef


_ADMISSIONS: Final = ("QuotaReserved", "Admitted", "PreemptedWorkload")
"""Reasons of the Events of Workloads that have quota, which are of no use for a gang that waits."""


async def queue_events(client: Client, ref: GangRef) -> tuple[EventView, ...]:
    """Return the Events with which Kueue says why it does not admit the Job, or none if they could not be read.

    They are Events of the Workload of the Job, or of the JobSet of its roles. Its name contains the kind and the name.
    Their reasons depend on the release and on the feature gates of Kueue.
    """
    names = f"job-{ref.name}-", f"jobset-{ref.name}-"
    others = ",".join(f"reason!={reason}" for reason in _ADMISSIONS)
    events = await _list_events(client, ref.namespace, f"involvedObject.kind=Workload,{others}")
    return tuple(event for event in events if event.involved_object.name.startswith(names))


async def refusal_events(client: Client, ref: GangRef, pods: AbstractSet[str]) -> tuple[EventView, ...]:
    """Return the Events with which a scheduler says that it could not place these pods, or none if they are not read.

    :param pods: The uids of the pods.
    """
    events = await _list_events(client, ref.namespace, "involvedObject.kind=Pod,reason=FailedScheduling")
    return tuple(event for event in events if event.involved_object.uid in pods)


async def job_events(client: Client, ref: GangRef) -> tuple[EventView, ...]:
    """Return the Events of the Job itself, or none if the Events could not be read."""
    return await _list_events(client, ref.namespace, f"involvedObject.uid={ref.uid}")


async def _list_events(client: Client, namespace: str, field_selector: str) -> tuple[EventView, ...]:
    try:
        found = await client.list(EVENTS, namespace, field_selector=field_selector)
        return tuple(view(EventView, event) for event in found)
    except (ClusterError, msgspec.ValidationError):
        return ()
