"""Job events: the Kubernetes Events of a Job, read when a gang makes no progress and no object says why.

Pods that were refused (by a quota or a webhook) leave no object behind, only an Event of the Job. Reading is best
effort: a gang is followed also where the service account may not list Events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import EVENTS
from airflow_provider_gangjobs.kube.views import EventView, view

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef


async def job_events(client: Client, ref: GangRef) -> tuple[EventView, ...]:
    """Return the Events of the Job itself, or none if the Events could not be read."""
    try:
        found = await client.list(EVENTS, ref.namespace, field_selector=f"involvedObject.uid={ref.uid}")
        return tuple(view(EventView, event) for event in found)
    except (ClusterError, msgspec.ValidationError):
        return ()
