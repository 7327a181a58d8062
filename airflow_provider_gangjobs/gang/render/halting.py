"""Halting: the patch that suspends a Job for good and records the reason."""

from __future__ import annotations

from typing import Any

from airflow_provider_gangjobs.gang.labels import ANNOTATION_HALTED


def halt_patch(reason: str, *, queued: bool = False) -> dict[str, Any]:
    """Return the merge patch that suspends a Job for good.

    :param reason: The value of `ANNOTATION_HALTED`.
    :param queued: Kueue owns `spec.suspend`. Kueue resumes an admitted Job as soon as somebody suspends it, and a
        waiting Job when it is admitted. The patch therefore also sets parallelism to 0 and activeDeadlineSeconds to 1.
        If Kueue resumes the Job, the Job fails with `DeadlineExceeded` and returns its quota.
    """
    limits: dict[str, Any] = {"parallelism": 0, "activeDeadlineSeconds": 1} if queued else {}
    return {"metadata": {"annotations": {ANNOTATION_HALTED: reason}}, "spec": {"suspend": True, **limits}}
