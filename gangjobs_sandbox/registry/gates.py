"""Drops the fields whose feature gate is off without an error, as `DropDisabledFields` of the API server does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.releases import PodLink

if TYPE_CHECKING:
    from gangjobs_sandbox.releases import Release
    from gangjobs_sandbox.store import Object

__all__ = ["drop_from_job", "drop_from_pod"]


def drop_from_pod(spec: Object, release: Release) -> None:
    """Remove the group links that the release does not have from a pod spec."""
    for link in PodLink:
        if link is not release.pod_link:
            spec.pop(link, None)


def drop_from_job(spec: Object, release: Release) -> None:
    """Remove the group links that the release does not have from the pod template of a Job.

    If the gate `WorkloadWithJob` is off, also remove `scheduling`.
    """
    drop_from_pod(spec["template"]["spec"], release)
    if not release.job_scheduling:
        spec.pop("scheduling", None)
