"""What makes a gang halted: its Job is suspended, and carries the reason."""

from __future__ import annotations

from typing import Any

from airflow_provider_gangjobs.gang.labels import ANNOTATION_HALTED


def halt_patch(reason: str) -> dict[str, Any]:
    """The merge patch that suspends a Job for good and says why."""
    return {"metadata": {"annotations": {ANNOTATION_HALTED: reason}}, "spec": {"suspend": True}}
