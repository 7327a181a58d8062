"""The order of the steps of a submission. `submit` explains why the order works on every release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, SERVICES
from airflow_provider_gangjobs.gang.queues import requested_queue
from airflow_provider_gangjobs.gang.render.job import render_files, render_service
from airflow_provider_gangjobs.gang.roles import roles_of
from airflow_provider_gangjobs.submission.dry_run import Preflight, RequireUploads
from airflow_provider_gangjobs.submission.fallback_event import RecordFallbackEvent
from airflow_provider_gangjobs.submission.job_set import (
    CheckJobSets,
    FindJobsOfJobSet,
    GiveJobSetToQueue,
    create_job_set,
)
from airflow_provider_gangjobs.submission.placement import CheckGangLink, WaitForWorkload, group_steps
from airflow_provider_gangjobs.submission.queue_check import CheckQueue
from airflow_provider_gangjobs.submission.steps import CreateJob, CreateOwned, StartJob, StartRole, create_role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.submission.context import Progress
    from airflow_provider_gangjobs.submission.steps import ConfirmStart, Step


def steps_of(progress: Progress, confirm: ConfirmStart) -> Sequence[Step]:
    """Return all steps in order. A step that has nothing to do is skipped.

    The start is confirmed before the Job is created, because a queue may start the Job from then on, and before the
    provider starts the Job.
    """
    service = CreateOwned(SERVICES, lambda p: render_service(p.spec, p.attempt, p.ref.uid))
    files = CreateOwned(CONFIGMAPS, lambda p: render_files(p.spec, p.attempt, p.ref.uid))
    start = StartJob(requested_queue(progress.shape.kueue_queue))
    if progress.has_job_set:
        return (
            CheckQueue(),
            CheckJobSets(),
            RequireUploads(),
            Preflight(),
            confirm,
            CreateJob(),
            create_job_set(),
            service,
            files,
            FindJobsOfJobSet(),
            confirm,
            GiveJobSetToQueue(),
            start,
            RecordFallbackEvent(),
        )
    group = group_steps(progress.scheduler) if progress.scheduler else ()
    other_roles = roles_of(progress.spec)[1:]
    return (
        CheckQueue(),
        RequireUploads(),
        Preflight(),
        confirm,
        CreateJob(),
        CheckGangLink(),
        *map(create_role, other_roles),
        service,
        files,
        *group,
        WaitForWorkload(),
        confirm,
        *(StartRole(role.name) for role in other_roles),
        start,
        RecordFallbackEvent(),
    )
