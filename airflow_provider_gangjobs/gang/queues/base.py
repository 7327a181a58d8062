"""Queue: the interface of whoever decides when the Job of a gang may run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.job import Job


class Queue(Protocol):
    """Who decides when a Job may run. The submission creates the Job suspended and completes it first."""

    @property
    def last_step_name(self) -> str:
        """The last step of a submission, for messages."""

    def labels(self) -> dict[str, str]:
        """Return the labels that the Job has from its creation."""

    def annotations(self) -> dict[str, str]:
        """Return the annotations that the Job has from its creation."""

    def pod_annotations(self) -> dict[str, str]:
        """Return the annotations of the pods."""

    def start_patch(self, job: Job) -> dict[str, Any]:
        """Return the merge patch of the last step, with which the Job may run."""

    def is_started(self, job: Job) -> bool:
        """Return whether the last step is done."""
