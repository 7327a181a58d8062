"""No queue: the submission itself starts the Job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.job import Job


class NoQueue(Struct, frozen=True):
    """The Job may run as soon as it is complete."""

    last_step_name: str = "unsuspend the Job"

    def labels(self) -> dict[str, str]:
        """Return no labels."""
        return {}

    def annotations(self) -> dict[str, str]:
        """Return no annotations."""
        return {}

    def pod_annotations(self) -> dict[str, str]:
        """Return no annotations."""
        return {}

    def start_patch(self, job: Job) -> dict[str, Any]:
        """Return the patch that resumes the Job."""
        return {"spec": {"suspend": False}}

    def is_started(self, job: Job) -> bool:
        """Return whether the Job is not suspended."""
        return not job.is_suspended
