"""The state of a JobSet, read as one Job, so that the rules about the end of a Job hold for it. Pure.

The controller of JobSets writes one condition at the end (`api/jobset/v1alpha2` of kubernetes-sigs/jobset):

    condition of the JobSet   condition of the Job
    -----------------------   --------------------
    Completed                 Complete
    Failed                    Failed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.gang.state.job import Job
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.kube.views import JobMeta, JobSpec, JobStatus, JobView

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import JobSetView, ReplicatedJob

_CONDITIONS: Final = {"Completed": "Complete", "Failed": "Failed"}


def read_job_set(seen: JobSetView) -> Job:
    """Return a JobSet as one Job, with the conditions that say how it has ended."""
    metadata = JobMeta(
        name=seen.metadata.name,
        namespace=seen.metadata.namespace,
        uid=seen.metadata.uid,
        generation=seen.metadata.generation,
        creation_timestamp=seen.metadata.creation_timestamp,
        deletion_timestamp=seen.metadata.deletion_timestamp,
        deletion_grace_period_seconds=seen.metadata.deletion_grace_period_seconds,
    )
    ends = (replace(item, type=_CONDITIONS[item.type]) for item in seen.status.conditions if item.type in _CONDITIONS)
    status = JobStatus(conditions=tuple(ends))
    return Job(JobView(metadata=metadata, spec=JobSpec(suspend=seen.spec.suspend), status=status))


def describe_progress(seen: JobSetView | None, name: str) -> str:
    """Return a line for people about a JobSet that has not ended, or does not exist yet.

    :param name: Namespace and name of the JobSet.
    """
    if seen is None:
        return f"JobSet {name} does not exist yet"
    restarts = seen.status.restarts
    again = f", after {pluralize(restarts, 'restart')}" if restarts else ""
    if seen.spec.suspend:
        return f"JobSet {name} is suspended{again}"
    parts = ", ".join(_describe_role(seen, role) for role in seen.spec.replicated_jobs)
    return f"JobSet {name} is under way{again}: {parts}"


def _describe_role(seen: JobSetView, role: ReplicatedJob) -> str:
    found = next((item for item in seen.status.replicated_jobs_status if item.name == role.name), None)
    ready, succeeded = (found.ready, found.succeeded) if found else (0, 0)
    done = f", {succeeded} complete" if succeeded else ""
    return f"{role.name} {ready + succeeded} of {pluralize(role.replicas, 'Job')} ready{done}"


__all__ = ["describe_progress", "read_job_set"]
