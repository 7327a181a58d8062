"""The main Job of a gang whose roles are a JobSet in a queue of Kueue.

The main Job is no object of Kueue, and never has the label of a queue. The submission gives the JobSet to the queue,
and starts the main Job after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from airflow_provider_gangjobs.gang.labels import ANNOTATION_QUEUE, ANNOTATION_QUEUED

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.job import Job


class QueueOfJobSet(Struct, frozen=True):
    """A LocalQueue of Kueue that has the JobSet of the main Job.

    Attributes:
        name: the name of the LocalQueue.
    """

    name: str
    last_step_name: str = "start the main Job of the gang"

    def labels(self) -> dict[str, str]:
        """Return no labels."""
        return {}

    def annotations(self) -> dict[str, str]:
        """Return the annotation that names the queue for whoever completes the gang."""
        return {ANNOTATION_QUEUE: self.name}

    def pod_annotations(self) -> dict[str, str]:
        """Return no annotations."""
        return {}

    def start_patch(self, job: Job) -> dict[str, Any]:
        """Return the patch that says that the gang is complete. The main Job has no pods that could start."""
        return {"metadata": {"annotations": {ANNOTATION_QUEUED: "true"}}, "spec": {"suspend": False}}

    def is_started(self, job: Job) -> bool:
        """Return whether the submission has completed the gang."""
        return job.is_given_to_queue
