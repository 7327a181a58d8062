"""The order of the steps of a submission. `submit` explains why the order works on every release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, SERVICES
from airflow_provider_gangjobs.gang.queues import requested_queue
from airflow_provider_gangjobs.gang.render.job import render_files, render_service
from airflow_provider_gangjobs.gang.roles import roles_of
from airflow_provider_gangjobs.submission.dry_run import dry_run_step, require_uploads_step
from airflow_provider_gangjobs.submission.fallback_event import fallback_event_step
from airflow_provider_gangjobs.submission.job_set import (
    GiveJobSetToQueue,
    check_job_sets_step,
    create_job_set,
    find_jobs_step,
)
from airflow_provider_gangjobs.submission.job_steps import CreateJob, CreateOwned, StartJob, StartRole, create_role
from airflow_provider_gangjobs.submission.placement import check_gang_link_step, group_steps, wait_for_workload_step
from airflow_provider_gangjobs.submission.queue_check import check_queue_step, check_unnamed_queue_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.submission.progress import Progress
    from airflow_provider_gangjobs.submission.steps import Step


def steps_of(progress: Progress) -> Sequence[Step]:
    """Return all steps in order. A step that has nothing to do is skipped."""
    service = CreateOwned(SERVICES, lambda p: render_service(p.spec, p.attempt, p.ref.uid))
    files = CreateOwned(CONFIGMAPS, lambda p: render_files(p.spec, p.attempt, p.ref.uid))
    start = StartJob(requested_queue(progress.shape.kueue_queue))
    if progress.has_job_set:
        return (
            check_queue_step(),
            check_job_sets_step(),
            check_unnamed_queue_step(),
            require_uploads_step(),
            dry_run_step(),
            CreateJob(),
            create_job_set(),
            service,
            files,
            find_jobs_step(),
            GiveJobSetToQueue(),
            start,
            fallback_event_step(),
        )
    group = group_steps(progress.scheduler) if progress.scheduler else ()
    other_roles = roles_of(progress.spec)[1:]
    return (
        check_queue_step(),
        check_unnamed_queue_step(),
        require_uploads_step(),
        dry_run_step(),
        CreateJob(),
        check_gang_link_step(),
        *map(create_role, other_roles),
        service,
        files,
        *group,
        wait_for_workload_step(),
        *(StartRole(role.name) for role in other_roles),
        start,
        fallback_event_step(),
    )
