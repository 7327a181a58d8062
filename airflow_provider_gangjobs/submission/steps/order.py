"""The order of the steps of a submission, and the checks before anything is created.

A check that refuses leaves no object behind. `submit` explains why the order works on every version.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.errors import AlreadyExists, BadRequest, Invalid
from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, JOBS, SERVICES
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.queues import Queue
from airflow_provider_gangjobs.gang.render.files import KEY_BYTES
from airflow_provider_gangjobs.gang.render.job_manifest import render_files, render_job, render_role, render_service
from airflow_provider_gangjobs.gang.roles import roles_of
from airflow_provider_gangjobs.submission.steps.jobs import (
    CHECK_JOB_SETS,
    CREATE_JOB_SET,
    FIND_JOBS,
    CreateJob,
    CreateOwned,
    GiveJobSetToQueue,
    StartJob,
    StartRole,
    create_role,
)
from airflow_provider_gangjobs.submission.steps.placement import (
    CHECK_GANG_LINK,
    CHECK_QUEUE,
    CHECK_UNNAMED_QUEUE,
    WAIT_FOR_WORKLOAD,
    check_gang_link,
    group_steps,
)
from airflow_provider_gangjobs.submission.steps.step import CREATE_FALLBACK_EVENT, RepeatableStep, refused_fields_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.steps.step import Progress, Step


async def require_uploads(progress: Progress) -> None:
    """Check that the uploads exist that the pods mount. A pod whose upload is missing would never start.

    Raises:
        InvalidGangSpec: an upload does not exist.
    """
    missing = [name for name in progress.spec.uploads if await progress.requests.find(CONFIGMAPS, name) is None]
    if missing:
        where = f"does not exist in namespace {progress.attempt.namespace}"
        raise InvalidGangSpec(
            tuple(Problem(f"uploads.{name}", where, "Upload the files to this namespace first") for name in missing)
        )


REQUIRE_UPLOADS: Final = RepeatableStep(
    "check the uploaded files", lambda progress: bool(progress.spec.uploads) and not progress.job, require_uploads
)


async def validate_by_dry_run(progress: Progress) -> None:
    """POST the Job as a dry run. The server validates the Job, checks quota and permissions, and stores nothing.

    Raises:
        InvalidGangSpec: the server refuses the Job. Each cause in the answer becomes a problem.
        GangUnsupported: the server would drop the pods' link to their group, and a gang is required.
    """
    body = render_job(progress.spec, progress.attempt, progress.decision, progress.scheduler, progress.shape)
    stored = await _dry_run(progress, body, progress.spec)
    if stored is None:
        return
    check_gang_link(progress, stored)
    for role in roles_of(progress.spec)[1:]:
        scheduler = progress.gang_scheduler
        body = render_role(progress.spec, role, progress.attempt, progress.decision, scheduler, main_job_uid="")
        del body["metadata"]["ownerReferences"]  # the owner does not exist yet
        of_role = replace(progress.spec, roles={role.name: (progress.spec.roles or {})[role.name]})
        await _dry_run(progress, body, of_role, role.name)


async def _dry_run(progress: Progress, job: Object, spec: GangSpec, role: str = "") -> Object | None:
    """Return the Job that the server would store; None if a Job of this name exists.

    :param spec: The part of the parameters from which the Job was made.
    :param role: The name of the role, unless it is the first one.
    """
    try:
        return await progress.requests.create(JOBS, job, dry_run=True)
    except AlreadyExists:
        return None  # created by a concurrent submitter, or a conflict: the next step shows which
    except (Invalid, BadRequest) as error:
        unnamed = Problem("Job", error.message, "Correct the fields that the server names")
        problems = refused_fields_of(error, spec) or (unnamed,)
        raise InvalidGangSpec(tuple(_with_role(each, role) if role else each for each in problems)) from error


def _with_role(problem: Problem, role: str) -> Problem:
    """Return the problem with the role in its path, which a field that the user did not write lacks."""
    if problem.path.startswith((f"roles.{role}", "pod_overrides", "manifest")):
        return problem
    return Problem(f"roles.{role}: {problem.path}", problem.what, problem.remedy)


DRY_RUN: Final = RepeatableStep(
    "validate the Job by a dry run", lambda progress: progress.dry_run and not progress.job, validate_by_dry_run
)


def steps_of(progress: Progress) -> Sequence[Step]:
    """Return all steps in order. A step that has nothing to do is skipped."""
    service = CreateOwned(SERVICES, lambda p: render_service(p.spec, p.attempt, p.ref.uid))
    key = secrets.token_hex(KEY_BYTES)
    files = CreateOwned(CONFIGMAPS, lambda p: render_files(p.spec, p.attempt, p.ref.uid, supervisor_key=key))
    check: tuple[Step, ...]
    create: tuple[Step, ...]
    prepare: tuple[Step, ...]
    if progress.has_job_set:
        check, create, prepare = (CHECK_JOB_SETS,), (CREATE_JOB_SET,), (FIND_JOBS, GiveJobSetToQueue())
    else:
        roles = roles_of(progress.spec)[1:]
        group = group_steps(progress.scheduler) if progress.scheduler else ()
        check, create = (), (CHECK_GANG_LINK, *map(create_role, roles))
        prepare = (*group, WAIT_FOR_WORKLOAD, *(StartRole(role.name) for role in roles))
    return (
        CHECK_QUEUE,
        *check,
        CHECK_UNNAMED_QUEUE,
        REQUIRE_UPLOADS,
        DRY_RUN,
        CreateJob(),
        *create,
        service,
        files,
        *prepare,
        StartJob(Queue(progress.shape.kueue_queue)),
        CREATE_FALLBACK_EVENT,
    )
