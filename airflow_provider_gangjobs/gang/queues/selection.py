"""Select the queue of a gang: the one that the user names, or the one that the cluster has given to the stored Job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang.queues.kueue import Kueue, QueueOfJobSet
from airflow_provider_gangjobs.gang.queues.no_queue import NoQueue

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.queues.base import Queue
    from airflow_provider_gangjobs.gang.state.job import Job


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
