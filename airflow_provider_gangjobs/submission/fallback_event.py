"""Report a lost guarantee as an event on the Job, where users look for it. A failure never fails the submission."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import EVENTS
from airflow_provider_gangjobs.submission.steps import RepeatableStep

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.objects import Object
    from airflow_provider_gangjobs.submission.progress import Progress

log = logging.getLogger(__name__)

REASON = "NotAGang"
MESSAGE_CHARACTERS_MAX = 1000


def fallback_event_step() -> RepeatableStep:
    """Return the step that creates the event if the submission has lost a guarantee."""
    return RepeatableStep("create the fallback event", lambda progress: bool(progress.notes), create_fallback_event)


async def create_fallback_event(progress: Progress) -> None:
    """POST an event on the Job that says why the pods are placed without gang scheduling. Raises no `ClusterError`.

    The name of the event is fixed, so a repeated step creates no second event.
    """
    try:
        await progress.requests.create(EVENTS, event_of(progress, datetime.now(UTC)))
    except ClusterError as error:
        log.debug("The event for %s could not be created: %s", progress.where, error)


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
