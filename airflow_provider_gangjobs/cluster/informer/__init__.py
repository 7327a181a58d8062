"""The informer: one shared watch for every waiting gang.

async with informers().lease(config, JOBS, "team", "gangjobs.airflow/gang", decode=JobView, index=by_name) as jobs:
    await jobs.synced()
    job = jobs.subscribe("train-k3j9x2-0")
    while not done(job.objects()):
        await job.changed(timeout_s=60)
"""

from airflow_provider_gangjobs.cluster.informer.factory import Informer, Informers, informers
from airflow_provider_gangjobs.cluster.informer.health import InformerStatistics
from airflow_provider_gangjobs.cluster.informer.notify import Wake
from airflow_provider_gangjobs.cluster.informer.store import InformerClosedError, Subscription

__all__ = ["Informer", "InformerClosedError", "InformerStatistics", "Informers", "Subscription", "Wake", "informers"]
