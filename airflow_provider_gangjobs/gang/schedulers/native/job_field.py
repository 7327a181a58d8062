"""Kubernetes 1.37, opt-in: `Job.spec.scheduling`, from which the Job controller creates the objects.

A Job must not have this field together with a `schedulingGroup`. If the feature gate is off in the Job controller, the
API server keeps the field and no controller acts on it. The API does not show this, so discovery never selects this
dialect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.schedulers.native.podgroups import gang_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.schedulers.base import ApiKind, SchedulingGroup
    from airflow_provider_gangjobs.kube.views import Object


@dataclass(frozen=True)
class NativeDialect:
    """The Job itself has the scheduling policy."""

    name: str = "native"
    version: str = "v1beta1"
    required_resources: frozenset[str] = frozenset({"workloads", "podgroups"})
    link_path: str = "spec.scheduling"
    objects: tuple[ApiKind, ...] = ()

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Return a copy of the Job with the scheduling policy."""
        return {**job, "spec": {**job["spec"], "scheduling": {"schedulingPolicy": gang_policy(group)}}}

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Return whether a stored Job has the policy."""
        policy = job.get("spec", {}).get("scheduling", {}).get("schedulingPolicy", {})
        return bool(policy.get("gang", {}).get("minCount") == group.min_count)

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        """Return `None`: the Job controller creates the object."""
        return None

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """Return `None`: the Job controller creates the object."""
        return None
