"""The order of the steps of a submission. `submit` explains why the order works on every release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, SERVICES
from airflow_provider_gangjobs.gang.queues import requested_queue
from airflow_provider_gangjobs.gang.render.job import render_files, render_service
from airflow_provider_gangjobs.gang.roles import roles_of
from airflow_provider_gangjobs.submission.dry_run import Preflight, RequireUploads
from airflow_provider_gangjobs.submission.fallback_event import RecordFallbackEvent
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
        CreateOwned(SERVICES, lambda p: render_service(p.spec, p.attempt, p.ref.uid)),
        CreateOwned(CONFIGMAPS, lambda p: render_files(p.spec, p.attempt, p.ref.uid)),
        *group,
        WaitForWorkload(),
        confirm,
        *(StartRole(role.name) for role in other_roles),
        StartJob(requested_queue(progress.shape.kueue_queue)),
        RecordFallbackEvent(),
    )
