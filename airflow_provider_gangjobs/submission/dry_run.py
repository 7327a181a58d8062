"""Preflight: what can be asked before anything is created, so that a refusal leaves nothing behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import AlreadyExists, BadRequest, Invalid
from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, JOBS
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.render.job import render_job
from airflow_provider_gangjobs.submission.placement import check_gang_link

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.errors import ApiError
    from airflow_provider_gangjobs.submission.context import Progress
    from airflow_provider_gangjobs.submission.requests import Object


@dataclass(frozen=True)
class RequireUploads:
    """Look for what the pods will mount: without it they would wait for ever to be started."""

    name: str = "look for the uploaded files"

    def is_needed(self, progress: Progress) -> bool:
        """For a new Job that refers to some."""
        return bool(progress.spec.uploads) and not progress.job

    async def apply(self, progress: Progress) -> Object:
        """Nothing is written.

        Raises:
            InvalidGangSpec: something is not there.
        """
        missing = [name for name in progress.spec.uploads if await progress.requests.find(CONFIGMAPS, name) is None]
        if missing:
            where = f"is not in namespace {progress.attempt.namespace}"
            raise InvalidGangSpec(
                tuple(Problem(f"uploads.{name}", where, "Upload the files there first") for name in missing)
            )
        return progress.job

    async def find(self, progress: Progress) -> Object | None:
        """Nothing is written; it is asked again."""
        return None

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Judged when applied."""
        return True


@dataclass(frozen=True)
class Preflight:
    """POST the Job as a dry run: validation, admission, quota and rights are asked, and nothing is stored."""

    name: str = "try the Job out"

    def is_needed(self, progress: Progress) -> bool:
        """If asked for, and not for a Job that is there."""
        return progress.dry_run and not progress.job

    async def apply(self, progress: Progress) -> Object:
        """What would be stored, with the pods' link to their group.

        Raises:
            InvalidGangSpec: the server refuses the Job; every cause that it names is a problem.
            GangUnsupported: the link would be dropped, and a gang is required.
        """
        body = render_job(progress.spec, progress.attempt, progress.decision, progress.dialect)
        try:
            stored = await progress.requests.dry_run_create(JOBS, body)
        except AlreadyExists:
            return {}  # a racing submitter's, or a conflict: the next step tells which
        except (Invalid, BadRequest) as error:
            raise InvalidGangSpec(_problems(error)) from error
        check_gang_link(progress, stored)
        return stored

    async def find(self, progress: Progress) -> Object | None:
        """Nothing is there; it is tried again."""
        return None

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Judged when applied."""
        return True


def _problems(error: ApiError) -> tuple[Problem, ...]:
    causes = [cause for cause in error.details.get("causes") or () if isinstance(cause, dict)]
    told = tuple(Problem(str(cause.get("field") or "Job"), str(cause.get("message") or "")) for cause in causes)
    return told or (Problem("Job", error.message, "Correct what the server names"),)
