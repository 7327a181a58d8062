"""Kubernetes 1.35: the Workload contains the groups, and no PodGroup object exists.

A gang that does not fit keeps the nodes that it got for five minutes, and other gangs wait. Kubernetes 1.36 and later
do not have this behavior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.identity import owned_by_job
from airflow_provider_gangjobs.gang.labels import ObjectPurpose
from airflow_provider_gangjobs.gang.schedulers.base import TEMPLATE_NAME, ApiKind, SchedulingGroup
from airflow_provider_gangjobs.gang.schedulers.native.podgroups import (
    API_GROUP,
    controller_ref,
    gang_policy,
    metadata,
    pod_field,
    with_pod_field,
    workloads,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.kube.views import Object


@dataclass(frozen=True)
class V1Alpha1Dialect:
    """The pods refer to the Workload and to the group in it by `spec.workloadRef`."""

    name: str = "v1alpha1"
    version: str = "v1alpha1"
    required_resources: frozenset[str] = frozenset({"workloads"})
    link_path: str = "spec.template.spec.workloadRef"

    @property
    def objects(self) -> tuple[ApiKind, ...]:
        """The Workload, which contains the group."""
        return (workloads(self.version),)

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Return a copy of the Job whose pods refer to the group in the Workload."""
        return with_pod_field(job, "workloadRef", _workload_ref(group))

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Return whether a stored Job has the reference."""
        stored = pod_field(job, "workloadRef") or {}
        return all(stored.get(name) == value for name, value in _workload_ref(group).items())

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        """Render the Workload, which has one group."""
        return {
            "apiVersion": f"{API_GROUP}/{self.version}",
            "kind": "Workload",
            "metadata": metadata(group, ObjectPurpose.WORKLOAD, owned_by_job(group.name, job_uid)),
            "spec": {
                "controllerRef": controller_ref(group),
                "podGroups": [{"name": TEMPLATE_NAME, "policy": gang_policy(group)}],
            },
        }

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """Return `None`: Kubernetes 1.35 has no PodGroup objects."""
        return None


def _workload_ref(group: SchedulingGroup) -> Object:
    return {"name": group.name, "podGroup": TEMPLATE_NAME}
