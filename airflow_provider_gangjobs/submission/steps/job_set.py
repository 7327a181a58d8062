"""The steps of a gang with roles in a queue of Kueue: one JobSet, whose Jobs are those of the roles.

Kueue makes a Workload for each Job, and one Workload for a JobSet. A Job of a JobSet cannot be the main Job of a gang,
because the JobSet controller deletes and creates these Jobs. So the main Job is a Job without pods, which owns the
JobSet, and everything else is as for every gang. docs/decisions/gang.md gives the reasons for the order:

1. The main Job and the JobSet are created, both suspended. The JobSet controller creates the Jobs, also suspended.
2. When all Jobs exist, their UIDs are known. A Job that the JobSet controller creates later has another UID
   and does not belong to the gang.
3. The JobSet gets the label of its queue. From then on Kueue may let it run.
4. The main Job is started, with the UIDs in an annotation. Now the submission is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.resources import JOB_SETS, JOBS
from airflow_provider_gangjobs.exceptions import GangUnsupported, JobDeleted
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.render.job_manifest import render_job_set
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.submission.steps.job import CreateOwned
from airflow_provider_gangjobs.submission.steps.step import RepeatableStep

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.steps.step import Progress

CONTROLLER_TIMEOUT_S: Final = 60.0
"""A JobSet controller without other work creates the Jobs of a JobSet within a second."""
CONTROLLER_PAUSE_S: Final = 0.25


async def check_job_sets(progress: Progress) -> None:
    """Check that the cluster serves JobSets, before anything is created.

    Raises:
        GangUnsupported: the cluster does not serve JobSets in the version that is known.
    """
    try:
        await progress.requests.list(JOB_SETS, gang_selector(progress.attempt.name))
    except NotFound as error:
        raise GangUnsupported(
            f"the roles of a gang in a queue are one JobSet, and the cluster does not serve {JOB_SETS.api_version}",
            "Install JobSet, and enable its integration in Kueue, or submit the gang without a queue",
        ) from error


CHECK_JOB_SETS: Final = RepeatableStep(
    "check that the cluster serves JobSets", lambda progress: not progress.job, check_job_sets
)


def create_job_set() -> CreateOwned:
    """Return the step that creates the JobSet, suspended and without its queue."""

    def body(progress: Progress) -> Object:
        return render_job_set(progress.spec, progress.attempt, progress.decision, progress.shape, progress.ref.uid)

    def on_created(progress: Progress, stored: Object) -> None:
        progress.job_set = stored

    return CreateOwned(JOB_SETS, body, on_created)


_FIND_JOBS: Final = "wait for the Jobs of the JobSet"


async def find_jobs_of_job_set(progress: Progress) -> None:
    """Wait until the JobSet controller has created the Job of each role, and note the Jobs in `progress`.

    Raises:
        SubmissionFailed: the Jobs do not exist in time.
    """
    requests = progress.requests
    give_up_at = requests.clock.monotonic() + CONTROLLER_TIMEOUT_S
    while True:
        gang = read_gang(progress.job, await requests.list(JOBS, gang_selector(progress.attempt.name)))
        if len(gang.jobs_with_pods) == len(gang.roles):
            uids = [one.metadata.uid for one in gang.jobs_with_pods]
            progress.role_uids = dict(zip(gang.role_names, uids, strict=True))
            return
        if requests.clock.monotonic() >= give_up_at or not await requests.sleep_before_retry(CONTROLLER_PAUSE_S):
            cause = f"The JobSet controller has created {len(gang.jobs_with_pods)} of {len(gang.roles)} Jobs"
            advice = "Look at the events of the JobSet and at the log of the JobSet controller, then run the task again"
            raise progress.failed(_FIND_JOBS, cause, transient=True, advice=advice)


FIND_JOBS: Final = RepeatableStep(
    _FIND_JOBS, lambda progress: not progress.stored.is_submission_complete, find_jobs_of_job_set
)


class GiveJobSetToQueue(Struct, frozen=True):
    """PATCH the JobSet with the label of its queue, in the version that was read."""

    name: str = "give the JobSet to its queue"
    conflict_errors: ClassVar[tuple[type[ClusterError], ...]] = (AlreadyExists, Conflict)
    lets_pods_run: ClassVar[bool] = True

    def is_needed(self, progress: Progress) -> bool:
        return not _has_queue(progress.job_set)

    async def apply(self, progress: Progress) -> Object:
        metadata = progress.job_set["metadata"]
        labels = {LABEL_KUEUE_QUEUE: progress.stored.requested_queue}
        return await progress.requests.patch_version(JOB_SETS, metadata, {"metadata": {"labels": labels}})

    async def find(self, progress: Progress) -> Object | None:
        stored = await progress.requests.find(JOB_SETS, progress.attempt.name)
        if stored is None or stored["metadata"]["uid"] != progress.job_set["metadata"]["uid"]:
            raise _gone(progress)
        return stored

    def accept(self, progress: Progress, stored: Object, *, is_found: bool) -> bool:
        if "deletionTimestamp" in stored["metadata"]:
            raise _gone(progress)
        progress.job_set = stored
        return _has_queue(stored)

    def not_found(self, progress: Progress, error: NotFound) -> Exception | None:
        return _gone(progress)


def _has_queue(job_set: Object) -> bool:
    return LABEL_KUEUE_QUEUE in job_set["metadata"].get("labels", {})


def _gone(progress: Progress) -> JobDeleted:
    return JobDeleted(progress.where, "submitted", "Its JobSet was deleted before it was given to its queue")


__all__ = ["CHECK_JOB_SETS", "FIND_JOBS", "GiveJobSetToQueue", "create_job_set"]
