"""Queue: who decides when the Job of a gang may run. Nobody, Kueue for a Job, or Kueue for the JobSet of the roles.

The submission creates the Job suspended. Its last step, when all else exists, lets the Job run or gives it to its
queue: Kueue takes a Job that has the label of a queue, and lets it run whatever else exists. The label is never removed
from a Job, because Kueue would keep the quota of the Job for as long as the Job exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.labels import (
    ANNOTATION_QUEUE,
    ANNOTATION_QUEUED,
    LABEL_KUEUE_PRIORITY,
    LABEL_KUEUE_QUEUE,
)

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.job import Job


class Queue(Struct, frozen=True):
    """Who decides when a Job may run. The submission creates the Job suspended and completes it first."""

    @property
    def last_step_name(self) -> str:
        """The last step of a submission, for messages."""
        raise NotImplementedError

    def labels(self) -> dict[str, str]:
        """Return the labels that the Job has from its creation."""
        return {}

    def annotations(self) -> dict[str, str]:
        """Return the annotations that the Job has from its creation."""
        return {}

    def pod_annotations(self) -> dict[str, str]:
        """Return the annotations of the pods."""
        return {}

    def start_patch(self, job: Job) -> dict[str, Any]:
        """Return the merge patch of the last step, with which the Job may run."""
        return {"spec": {"suspend": False}}

    def is_started(self, job: Job) -> bool:
        """Return whether the last step is done."""
        return job.is_given_to_queue


class NoQueue(Queue, frozen=True):
    """The Job may run as soon as it is complete."""

    @property
    def last_step_name(self) -> str:
        return "unsuspend the Job"

    def is_started(self, job: Job) -> bool:
        """Return whether the Job is not suspended."""
        return not job.is_suspended


MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"
"""The controller that runs Jobs in other clusters: `spec.managedBy` of such a Job, and `spec.controllerName` of an
AdmissionCheck."""


class Kueue(Queue, frozen=True):
    """A LocalQueue of Kueue in the namespace of the gang.

    Attributes:
        name: the name of the LocalQueue.
        priority: the name of a WorkloadPriorityClass; `None` for the priority of the pods.
        topology: `required:LABEL` or `preferred:LABEL`; `None` for any nodes.
    """

    name: str
    priority: str | None = None
    topology: str | None = None

    @property
    def last_step_name(self) -> str:
        return "give the Job to its queue"

    def labels(self) -> dict[str, str]:
        """Return the label of the priority. The label of the queue follows when the Job is complete."""
        return {LABEL_KUEUE_PRIORITY: self.priority} if self.priority else {}

    def annotations(self) -> dict[str, str]:
        """Return the annotation that names the queue for whoever completes the Job."""
        return {ANNOTATION_QUEUE: self.name}

    def pod_annotations(self) -> dict[str, str]:
        """Return the annotation of the pods that asks Kueue for nodes of one topology domain."""
        found = parse_topology(self.topology) if self.topology else None
        return {f"kueue.x-k8s.io/podset-{found[0]}-topology": found[1]} if found else {}

    def start_patch(self, job: Job) -> dict[str, Any]:
        """Return the patch that adds the label of the queue.

        Kueue does not accept another queue for a Job that it has let run, so such a Job stays in its queue.
        """
        metadata: dict[str, Any] = {"annotations": {ANNOTATION_QUEUED: "true"}}
        if job.queue is None or job.is_suspended:
            metadata["labels"] = {LABEL_KUEUE_QUEUE: self.name}
        return {"metadata": metadata}


def parse_topology(value: str) -> tuple[str, str] | None:
    """Return the mode and the node label of `required:LABEL` or `preferred:LABEL`; `None` for any other text."""
    mode, colon, label = value.partition(":")
    return (mode, label) if mode in {"required", "preferred"} and colon and label else None


class QueueOfJobSet(Queue, frozen=True):
    """A LocalQueue of Kueue that has the JobSet of the main Job.

    Attributes:
        name: the name of the LocalQueue.
    """

    name: str

    @property
    def last_step_name(self) -> str:
        return "start the main Job of the gang"

    def annotations(self) -> dict[str, str]:
        """Return the annotation that names the queue for whoever completes the gang."""
        return {ANNOTATION_QUEUE: self.name}

    def start_patch(self, job: Job) -> dict[str, Any]:
        """Return the patch that says that the gang is complete. The main Job has no pods that could start."""
        return {"metadata": {"annotations": {ANNOTATION_QUEUED: "true"}}, "spec": {"suspend": False}}


def requested_queue(name: str | None, priority: str | None = None, topology: str | None = None) -> Queue:
    """Return the queue that the user asks for; see `Kueue` for the parameters."""
    return NoQueue() if name is None else Kueue(name, priority, topology)


def queue_of_job(job: Job) -> Queue:
    """Return the queue of a stored Job.

    A LocalQueue of the name `default` takes every Job that names no queue: the API server adds the label to the Job.
    """
    if job.has_job_set:
        return QueueOfJobSet(str(job.requested_queue))
    return requested_queue(job.requested_queue or job.queue)
