"""Queues: who decides when the Job of a gang may run. Nobody (`no_queue`), Kueue for a Job (`kueue`), or Kueue for the
JobSet of the roles (`job_set`)."""

from airflow_provider_gangjobs.gang.queues.base import Queue
from airflow_provider_gangjobs.gang.queues.kueue import QueueOfJobSet
from airflow_provider_gangjobs.gang.queues.no_queue import NoQueue
from airflow_provider_gangjobs.gang.queues.selection import queue_of_job, requested_queue

__all__ = ["NoQueue", "Queue", "QueueOfJobSet", "queue_of_job", "requested_queue"]
