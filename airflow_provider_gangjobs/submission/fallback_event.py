"""Tell of a lost guarantee where people look: an event on the Job. Best effort, it never fails a submission."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import EVENTS

if TYPE_CHECKING:
    from airflow_provider_gangjobs.submission.context import Progress
    from airflow_provider_gangjobs.submission.requests import Object

log = logging.getLogger(__name__)

REASON = "NotAGang"
MESSAGE_CHARACTERS_MAX = 1000


@dataclass(frozen=True)
class RecordFallbackEvent:
    """POST an event if the pods are placed as plain ones although a gang was preferred."""

    name: str = "tell of the fallback"

    def is_needed(self, progress: Progress) -> bool:
        """If there is something to tell."""
        return bool(progress.notes)

    async def apply(self, progress: Progress) -> Object:
        """Create the event; its name is fixed, so that telling twice is telling once."""
        try:
            await progress.requests.create(EVENTS, event_of(progress, datetime.now(UTC)))
        except ClusterError as error:
            log.debug("no event for %s: %s", progress.where, error)
        return progress.job

    async def find(self, progress: Progress) -> Object | None:
        """Not looked for."""
        return progress.job

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Told or not, the gang runs."""
        return True


def event_of(progress: Progress, at: datetime) -> Object:
    """A Warning on the Job."""
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
