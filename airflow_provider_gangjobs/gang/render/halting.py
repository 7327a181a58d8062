"""What makes a gang halted: its Job is suspended, and carries the reason."""

from __future__ import annotations

from typing import Any

from airflow_provider_gangjobs.gang.labels import ANNOTATION_HALTED


def halt_patch(reason: str, *, queued: bool = False) -> dict[str, Any]:
    """The merge patch that suspends a Job for good and says why.

    A Job that is `queued` belongs to Kueue, which lets an admitted Job run again as soon as it is suspended, and a
    waiting one when its turn comes. So it is also left with no pod to start and a second to live: let run, it fails
    with `DeadlineExceeded` and gives its quota back.
    """
    never_again: dict[str, Any] = {"parallelism": 0, "activeDeadlineSeconds": 1} if queued else {}
    return {"metadata": {"annotations": {ANNOTATION_HALTED: reason}}, "spec": {"suspend": True, **never_again}}
