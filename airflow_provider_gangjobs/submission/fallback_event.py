"""Record a lost guarantee as an event on the Job, where users look for it. A failure never fails the submission."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import EVENTS

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.objects import Object
    from airflow_provider_gangjobs.submission.context import Progress

log = logging.getLogger(__name__)

REASON = "NotAGang"
MESSAGE_CHARACTERS_MAX = 1000


class RecordFallbackEvent(Struct, frozen=True):
    """POST an event if the pods are placed without gang scheduling although a gang was preferred."""

    name: str = "record the fallback event"

    def is_needed(self, progress: Progress) -> bool:
        """Return whether the submission has lost a guarantee."""
        return bool(progress.notes)

    async def apply(self, progress: Progress) -> Object:
        """Create the event. Its name is fixed, so a repeated step creates no second event."""
        try:
            await progress.requests.create(EVENTS, event_of(progress, datetime.now(UTC)))
        except ClusterError as error:
            log.debug("The event for %s could not be created: %s", progress.where, error)
        return progress.job

    async def find(self, progress: Progress) -> Object | None:
        """Return the Job: the event is not read back."""
        return progress.job

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Return true: the gang runs with or without the event."""
        return True


def event_of(progress: Progress, at: datetime) -> Object:
    """Return an event of type Warning on the Job."""
    ref, moment = progress.ref, at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{ref.name}.not-a-gang", "namespace": ref.namespace},
        "involvedObject": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
        },
        "type": "Warning",
        "reason": REASON,
        "message": "; ".join(progress.notes)[:MESSAGE_CHARACTERS_MAX],
        "source": {"component": "gangjobs"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
