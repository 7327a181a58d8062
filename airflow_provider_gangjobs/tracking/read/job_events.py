"""Evidence: the events of a Job, fetched when it does not get on and nothing else says why.

Only refused pods (a quota, a webhook) make it necessary: they leave no object behind, just an event
on the Job. Best effort: without permission to list events the gang is followed all the same.
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
    """Events of the Job itself; none if they could not be read."""
    try:
        found = await client.list(EVENTS, ref.namespace, field_selector=f"involvedObject.uid={ref.uid}")
        return tuple(view(EventView, event) for event in found)
    except (ClusterError, msgspec.ValidationError):
        return ()
