"""Kubernetes 1.37, on request: `Job.spec.scheduling`, from which the Job controller makes the objects.

Never together with a `schedulingGroup`. Where the gate is off in the controller the field is kept and
nothing acts on it, which the API cannot tell; so this dialect is used only when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.render.dialects.common import gang_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.render.dialects.base import Object, SchedulingGroup


@dataclass(frozen=True)
class NativeDialect:
    """The Job says it itself."""

    name: str = "native"
    version: str = "v1beta1"
    required_resources: frozenset[str] = frozenset({"workloads", "podgroups"})
    link_path: str = "spec.scheduling"

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """The Job with its scheduling policy."""
        return {**job, "spec": {**job["spec"], "scheduling": {"schedulingPolicy": gang_policy(group)}}}

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Whether the policy is still there."""
        policy = job.get("spec", {}).get("scheduling", {}).get("schedulingPolicy", {})
        return bool(policy.get("gang", {}).get("minCount") == group.min_count)

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        """None: the Job controller's."""
        return None

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """None: the Job controller's."""
        return None
