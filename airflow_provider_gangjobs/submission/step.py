"""The steps of a submission: the progress that they share, and the loop that runs each of them.

Each step has three parts: a write that may be repeated, a read of the object, and a check whether the object is the
wanted one. Only `run_step` decides whether to continue, to read the object, to retry, or to fail. So a lost answer, a
crash, and a second submitter are handled in the same way: read the object and check it.
"""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import (
    AlreadyExists,
    BadRequest,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    causes_in,
    is_webhook_unavailable,
)
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.render.job_manifest import group_of
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.jobs.requests import TRIES_MAX, RestartSubmission

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.errors import ApiError
    from airflow_provider_gangjobs.exceptions import Problem
    from airflow_provider_gangjobs.gang.identity import Attempt, GangRef
    from airflow_provider_gangjobs.gang.render.placement import Shape
    from airflow_provider_gangjobs.gang.schedulers import GangScheduler, SchedulingGroup
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.jobs.requests import RetryingRequests
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.submission import ConfirmTry


@dataclass
class Progress:
    """The progress of one attempt. Only the steps of the submission change it."""

    requests: RetryingRequests
    spec: GangSpec
    """The manifest of the spec, if any, is parsed."""
    shape: Shape
    attempt: Attempt
    decision: PlacementDecision
    scheduler: GangScheduler | None
    job: Object = field(default_factory=dict)
    """The Job as it was last read. Empty before the Job exists. A step replaces the object and never changes it."""
    owned: dict[tuple[str, str], Object] = field(default_factory=dict)
    """The objects that the Job owns, by kind and name, as they were last read."""
    role_uids: dict[str, str] = field(default_factory=dict)
    """The UIDs of the Jobs of the JobSet, by role."""
    confirm: ConfirmTry | None = None
    """Called before each write that lets pods run; see `SubmissionRequest`."""
    adopted: bool = False
    dry_run: bool = False
    """Whether the server validates the Job in a dry run before anything is created."""
    notes: list[str] = field(default_factory=list)
    """Guarantees that the submission has lost, for the log."""

    @property
    def ref(self) -> GangRef:
        """The reference to the Job. The Job must exist."""
        return self.stored.ref

    @property
    def stored(self) -> StoredGang:
        """The parsed Job, as it was last read. The Job must exist."""
        return read_job(self.job)

    @property
    def has_job_set(self) -> bool:
        """Whether the roles of the gang are one JobSet."""
        if self.job:
            return self.stored.record.has_job_set
        return self.spec.roles is not None and self.shape.kueue_queue is not None

    @property
    def where(self) -> str:
        """The namespace and name of the Job, for messages."""
        return f"{self.attempt.namespace}/{self.attempt.name}"

    @property
    def group(self) -> SchedulingGroup:
        """The scheduling group of the Job's pods."""
        return group_of(self.job, self.shape)

    @property
    def gang_scheduler(self) -> GangScheduler | None:
        """The gang scheduler, if the pods are placed as a gang. None after a fallback."""
        return self.scheduler if self.decision.placement is Placement.GANG else None

    def fall_back(self, reason: str) -> None:
        """Continue without gang scheduling, and note the reason."""
        self.decision = PlacementDecision(Placement.BASIC, reason)
        self.notes.append(f"Not a gang: {reason}")

    def failed(self, step: str, cause: str, *, transient: bool, advice: str = "") -> SubmissionFailed:
        """Return the error for a step that failed."""
        return SubmissionFailed(self.where, step, cause, transient, advice)

    def superseded(self, reason: str) -> RestartSubmission:
        """Return the error for an attempt that cannot be completed. The next attempt has another name."""
        return RestartSubmission(reason, min_attempt=self.attempt.number + 1)


log = logging.getLogger(__name__)


class Step(Struct, frozen=True):
    """One write of a submission."""

    conflict_errors: ClassVar[tuple[type[ClusterError], ...]] = (AlreadyExists, Conflict)
    """The answers that show that the object exists already, or has changed since it was read."""
    lets_pods_run: ClassVar[bool] = False
    """Whether pods may run after the write, so that the try of the task is confirmed directly before the write."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the step does, for messages, such as `create PodGroup`."""

    @abstractmethod
    def is_needed(self, progress: Progress) -> bool:
        """Return whether the step has anything to do."""

    @abstractmethod
    async def apply(self, progress: Progress) -> Object:
        """Send the write once. Returns the object as the server stored it."""

    async def find(self, progress: Progress) -> Object | None:
        """Return the stored object, or None, so that the write is repeated."""
        return None

    def accept(self, progress: Progress, stored: Object, *, is_found: bool) -> bool:
        """Note the stored object in `progress`. Returns false if the write must be repeated.

        :param is_found: Whether `find` has returned the object. Otherwise `apply` has.

        Raises:
            GangJobError, RestartSubmission: the stored object prevents the submission.
        """
        return True

    def not_found(self, progress: Progress, error: NotFound) -> Exception | None:
        """Return the error after the answer 404 (Not Found) to the write. None if the answer has no special meaning."""
        return None


class RepeatableStep(Step, frozen=True):
    """A step that is one function. It stores nothing that has to be read and checked, so it is repeated as a whole."""

    name: str
    condition: Callable[[Progress], bool]
    function: Callable[[Progress], Awaitable[None]]
    """What the step does. A `GangJobError` or a `RestartSubmission` ends the submission."""

    def is_needed(self, progress: Progress) -> bool:
        return self.condition(progress)

    async def apply(self, progress: Progress) -> Object:
        await self.function(progress)
        return progress.job


async def run_step(step: Step, progress: Progress) -> None:
    """Run a step until it is done, by this submitter or by another one.

    Raises:
        SubmissionFailed: the server refused the write, or could not be reached for too long.
        GangJobError, RestartSubmission: the stored object prevents the submission.
        UnconfirmedTry: the task may not want the gang any more, and the write lets pods run.
    """
    if not step.is_needed(progress):
        return
    backoff = progress.requests.backoff()
    last: ClusterError | None = None
    webhook_backoff, webhook_give_up_at = progress.requests.backoff(), inf
    tries = 0
    while tries < TRIES_MAX:
        if step.lets_pods_run and progress.confirm is not None:
            await progress.confirm()
        is_found = False
        try:
            stored: Object | None = await step.apply(progress)
        except ClusterError as error:
            last = error
            if is_webhook_unavailable(error):
                now = progress.requests.clock.monotonic()
                if webhook_give_up_at == inf:
                    webhook_give_up_at = now + WEBHOOK_WAIT_S
                    log.warning(_WEBHOOK_UNAVAILABLE, progress.where, step.name, error)
                if now < webhook_give_up_at and await progress.requests.sleep_before_retry(webhook_backoff.next()):
                    continue
            _raise_if_refused(step, progress, error)
            if not (error.may_have_applied or isinstance(error, step.conflict_errors)):
                tries += 1
                if not await progress.requests.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    break
                continue
            stored, is_found = await _find_stored(step, progress), True
        tries += 1
        if stored is not None and step.accept(progress, stored, is_found=is_found):
            return
        if not await progress.requests.sleep_before_retry(backoff.next()):
            break
    raise progress.failed(step.name, str(last or "The write was undone by others"), transient=True) from last


WEBHOOK_WAIT_S: Final = 90.0
"""How long a write is repeated while the server cannot call an admission webhook. The manager of Kueue is away for less
than this when it is updated. The deadline of the submission applies, too."""
_WEBHOOK_UNAVAILABLE: Final = "The submission of %s waits, because the API server cannot call a webhook (%s): %s"


async def _find_stored(step: Step, progress: Progress) -> Object | None:
    try:
        return await step.find(progress)
    except ClusterError as error:
        raise progress.failed(step.name, str(error), transient=error.transient) from error


# Kubernetes 1.36 refuses a PodGroup while the API server does not see the Workload that it has just stored.
_NOT_READY: Final = ("not yet ready to handle request", "not found")
_MISSING_PERMISSION: Final = re.compile(r'User ".*" cannot ')
"""Part of the message of a request without the permission. A RoleBinding whose Role does not exist adds "not found".
Admission plugins and webhooks also answer 403, for example if a PriorityClass does not exist."""


def _raise_if_refused(step: Step, progress: Progress, error: ClusterError) -> None:
    if error.transient or error.may_have_applied or isinstance(error, step.conflict_errors):
        return
    if isinstance(error, Forbidden) and _is_not_ready(error.message):
        return
    if isinstance(error, NotFound) and (meaning := step.not_found(progress, error)) is not None:
        raise meaning from error
    advice = permission_advice(error)
    if isinstance(error, (BadRequest, Invalid)):
        advice = " ".join(map(str, refused_fields_of(error, progress.spec)))
    raise progress.failed(step.name, str(error), transient=_is_quota_exceeded(error), advice=advice) from error


def permission_advice(error: ClusterError) -> str:
    """Return what to do if the service account lacks a permission; empty if the request failed for another reason."""
    if isinstance(error, Forbidden) and _MISSING_PERMISSION.search(error.message):
        return "Give the service account this permission; see the documented Role"
    return ""


def refused_fields_of(error: ApiError, spec: GangSpec) -> tuple[Problem, ...]:
    """Return a problem for each field that the server refuses, at its place in the parameters, if it names any."""
    from airflow_provider_gangjobs.gang.validation.refused_fields import refused_fields

    return refused_fields(error.message, [*causes_in(error.details)], spec)


def _is_not_ready(message: str) -> bool:
    return any(text in message for text in _NOT_READY) and not _MISSING_PERMISSION.search(message)


def _is_quota_exceeded(error: ClusterError) -> bool:
    """Return whether a quota is exceeded. A retry may find free quota, but it does not find a missing permission."""
    return isinstance(error, Forbidden) and "exceeded quota" in error.message
