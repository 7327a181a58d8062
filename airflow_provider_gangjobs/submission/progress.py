"""The progress of a submission, which its steps share, and the exception that restarts the submission."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.render.job import group_of
from airflow_provider_gangjobs.gang.render.policy import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.state.job import Job, read_job

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import Attempt, GangRef
    from airflow_provider_gangjobs.gang.render.shape import Shape
    from airflow_provider_gangjobs.gang.schedulers.base import GangScheduler, SchedulingGroup
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.kube.objects import Object
    from airflow_provider_gangjobs.submission.retrying_requests import RetryingRequests


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
    role_jobs: dict[str, Object] = field(default_factory=dict)
    """The Jobs of the roles after the first one, by role, as they were last read."""
    job_set: Object = field(default_factory=dict)
    """The JobSet of the roles of a gang in a queue, as it was last read."""
    role_uids: dict[str, str] = field(default_factory=dict)
    """The UIDs of the Jobs of the JobSet, by role."""
    workload_uid: str = ""
    confirm: ConfirmTry | None = None
    """Confirms, before each write after which pods may run, that the task still wants the gang."""
    adopted: bool = False
    dry_run: bool = False
    """Whether the server validates the Job in a dry run before anything is created."""
    notes: list[str] = field(default_factory=list)
    """Guarantees that the submission has lost, for the log and for an event on the Job."""
    _read: tuple[Object, Job] | None = field(default=None, repr=False)
    """The last value of `job` that was parsed, and the parsed Job."""

    @property
    def ref(self) -> GangRef:
        """The reference to the Job. The Job must exist."""
        return self.stored.ref

    @property
    def stored(self) -> Job:
        """The parsed Job, as it was last read. The Job must exist."""
        if self._read is None or self._read[0] is not self.job:
            self._read = (self.job, read_job(self.job))
        return self._read[1]

    @property
    def has_job_set(self) -> bool:
        """Whether the roles of the gang are one JobSet."""
        if self.job:
            return self.stored.has_job_set
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


class RestartSubmission(Exception):  # noqa: N818 - not an error: the submission lists the Jobs again
    """This attempt cannot be completed, but another attempt can be submitted."""

    def __init__(self, reason: str, *, min_attempt: int = 0) -> None:
        super().__init__(reason)
        self.min_attempt = min_attempt
        """The attempt numbers below this one are used."""


class ConfirmTry(Protocol):
    """Confirms that the try that submits the gang is the one that Airflow runs.

    A process that was stopped may wake up after its task has ended, and would start a gang that nobody wants.
    """

    async def __call__(self, *, always: bool = False) -> None:
        """Return if the try runs.

        :param always: Ask Airflow in any case, and not only if much time has passed since Airflow last said so.

        Raises:
            UnconfirmedTry: the try has ended, or Airflow does not say whether the try runs.
        """


class UnconfirmedTry(Exception):  # noqa: N818 - the caller of the submission knows the task, and raises the error
    """The try does not run any more, or that is unknown. Nothing was written after that."""

    def __init__(self, *, has_ended: bool) -> None:
        super().__init__()
        self.has_ended = has_ended
        """Whether Airflow has said that the try has ended. Otherwise Airflow has said nothing."""
