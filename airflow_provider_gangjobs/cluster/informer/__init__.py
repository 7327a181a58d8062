"""The informer: one shared watch for all waiting gangs.

async with informers().acquire(config, JOBS, "team", "gangjobs.airflow/gang", decode=JobView, index=by_name) as jobs:
    await jobs.synced()
    job = jobs.subscribe("train-k3j9x2-0")
    while not done(job.objects()):
        await job.changed(timeout_s=60)
"""

from airflow_provider_gangjobs.cluster.informer.factory import Informer, InformerFactory, informers
from airflow_provider_gangjobs.cluster.informer.health import InformerStatistics
from airflow_provider_gangjobs.cluster.informer.store import InformerClosedError, Subscription
from airflow_provider_gangjobs.cluster.loop_local import Notification

__all__ = [
    "Informer",
    "InformerClosedError",
    "InformerFactory",
    "InformerStatistics",
    "Notification",
    "Subscription",
    "informers",
]
