"""How far a submission has come: what its steps share, and how one of them says that it cannot go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.render.job import group_of
from airflow_provider_gangjobs.gang.render.policy import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.state.job import Job, read_job

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import Attempt, GangRef
    from airflow_provider_gangjobs.gang.render.dialects import Dialect, SchedulingGroup
    from airflow_provider_gangjobs.gang.render.shape import Shape
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.submission.requests import Object, RetryingRequests


@dataclass
class Progress:
    """One attempt on its way into the cluster. Only its steps change it."""

    requests: RetryingRequests
    spec: GangSpec
    """Its manifest, if any, is data."""
    shape: Shape
    attempt: Attempt
    decision: PlacementDecision
    dialect: Dialect | None
    job: Object = field(default_factory=dict)
    """As it was last seen; empty before it exists."""
    workload_uid: str = ""
    adopted: bool = False
    dry_run: bool = False
    """Whether the server is to judge the Job before anything is created."""
    notes: list[str] = field(default_factory=list)
    """Guarantees that were lost on the way, for the log and for an event on the Job."""

    @property
    def ref(self) -> GangRef:
        """The Job, once it exists."""
        return self.stored.ref

    @property
    def stored(self) -> Job:
        """What the Job says, as it was last seen. The Job must exist."""
        return read_job(self.job)

    @property
    def where(self) -> str:
        """namespace/name, for messages."""
        return f"{self.attempt.namespace}/{self.attempt.name}"

    @property
    def group(self) -> SchedulingGroup:
        """The group of the Job's pods."""
        return group_of(self.job, self.shape)

    @property
    def gang_dialect(self) -> Dialect | None:
        """The dialect, if these pods are (still) to become a gang."""
        return self.dialect if self.decision.placement is Placement.GANG else None

    def fall_back(self, reason: str) -> None:
        """Go on without the guarantee, and remember why."""
        self.decision = PlacementDecision(Placement.BASIC, reason)
        self.notes.append(f"Not a gang: {reason}")

    def failed(self, step: str, cause: str, *, transient: bool, advice: str = "") -> SubmissionFailed:
        """The error of a step that could not be done."""
        return SubmissionFailed(self.where, step, cause, transient, advice)


class RestartSubmission(Exception):  # noqa: N818 - not an error: it goes back to the list of the task's Jobs
    """This attempt cannot be completed, another one can."""

    def __init__(self, reason: str, *, min_attempt: int = 0) -> None:
        super().__init__(reason)
        self.min_attempt = min_attempt
        """Attempts below this one are used up."""
