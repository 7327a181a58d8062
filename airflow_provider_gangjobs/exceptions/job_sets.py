"""Exceptions of waiting for a JobSet that somebody else has created."""

# These names appear in logs and retry policies, where the suffix "Error" would add nothing.
# ruff: noqa: N818

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_gangjobs.exceptions.base import GangJobError


@dataclass(eq=False, repr=False)
class JobSetFailed(GangJobError):
    """The JobSet failed."""

    ref: str
    reason: str
    """The reason of the JobSet's Failed condition."""
    message: str = ""
    """Which Job failed first and how its pods ended, as far as they could be read."""

    @property
    def what(self) -> str:
        return f"JobSet {self.ref} failed ({self.reason})"

    @property
    def evidence(self) -> str:
        return self.message


@dataclass(eq=False, repr=False)
class JobSetDeleted(GangJobError):
    """The JobSet was deleted before its end, or another JobSet has its name now."""

    ref: str
    other_uid: str = ""
    """UID of the JobSet that has the name now; empty if there is none."""

    @property
    def what(self) -> str:
        """What happened: the JobSet was deleted, or was replaced."""
        if self.other_uid:
            return f"JobSet {self.ref} was replaced by another JobSet (uid {self.other_uid}) before its end was seen"
        return f"JobSet {self.ref} was deleted before its end was seen"

    @property
    def remedy(self) -> str:
        return "Find out who deleted the JobSet: a user, its ttlSecondsAfterFinished, or a clean-up of the namespace"


@dataclass(eq=False, repr=False)
class JobSetUnavailable(GangJobError):
    """JobSets cannot be read, so it is unknown whether the JobSet has ended."""

    ref: str
    cause: str
    is_served: bool = True
    """False if the cluster serves no JobSets in a version that the provider knows."""

    @property
    def retryable(self) -> bool:
        """True if the cluster serves JobSets: then a permission or the connection is the cause."""
        return self.is_served

    @property
    def what(self) -> str:
        return f"JobSet {self.ref} could not be read"

    @property
    def evidence(self) -> str:
        return self.cause

    @property
    def remedy(self) -> str:
        """What to install, or which permission to give."""
        if not self.is_served:
            return "Install the JobSet controller, or check that the connection is of the right cluster"
        return "The service account of the connection needs get, list and watch on jobsets of jobset.x-k8s.io"
