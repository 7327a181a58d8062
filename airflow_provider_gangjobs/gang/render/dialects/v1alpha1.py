"""Kubernetes 1.35: groups are written inside the Workload, and there is no PodGroup object.

A gang that does not fit holds what it has got for five minutes and starves its neighbours, which
1.36 no longer does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.labels import Role
from airflow_provider_gangjobs.gang.render.dialects.base import TEMPLATE_NAME, Object, SchedulingGroup
from airflow_provider_gangjobs.gang.render.dialects.common import (
    API_GROUP,
    controller_ref,
    gang_policy,
    metadata,
    pod_field,
    with_pod_field,
)
from airflow_provider_gangjobs.gang.render.owner_references import owned_by_job

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class V1Alpha1Dialect:
    """`spec.workloadRef` of the pods names the Workload and the group in it."""

    name: str = "v1alpha1"
    version: str = "v1alpha1"
    required_resources: frozenset[str] = frozenset({"workloads"})
    link_path: str = "spec.template.spec.workloadRef"

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """The Job whose pods refer to the group inside the Workload."""
        return with_pod_field(job, "workloadRef", _link(group))

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Whether the reference is still there."""
        stored = pod_field(job, "workloadRef") or {}
        return all(stored.get(name) == value for name, value in _link(group).items())

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        """The Workload with its one group."""
        return {
            "apiVersion": f"{API_GROUP}/{self.version}",
            "kind": "Workload",
            "metadata": metadata(group, Role.WORKLOAD, owned_by_job(group.name, job_uid)),
            "spec": {
                "controllerRef": controller_ref(group),
                "podGroups": [{"name": TEMPLATE_NAME, "policy": gang_policy(group)}],
            },
        }

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """None: 1.35 has no such object."""
        return None


def _link(group: SchedulingGroup) -> Object:
    return {"name": group.name, "podGroup": TEMPLATE_NAME}
