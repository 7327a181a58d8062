"""Kubernetes 1.36 and later: a Workload holds templates, and a PodGroup object represents the group.

The releases differ in the API version and in the field by which a PodGroup refers to its template.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.labels import ObjectPurpose
from airflow_provider_gangjobs.gang.owner_references import owned_by, owned_by_job
from airflow_provider_gangjobs.gang.schedulers.base import TEMPLATE_NAME, ApiKind, SchedulingGroup
from airflow_provider_gangjobs.gang.schedulers.native.common import (
    API_GROUP,
    controller_ref,
    gang_policy,
    metadata,
    pod_field,
    pod_groups,
    priority,
    with_pod_field,
    workloads,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.kube.objects import Object


@dataclass(frozen=True)
class PodGroupDialect:
    """The pods refer to the PodGroup by `spec.schedulingGroup`."""

    version: str
    required_resources: frozenset[str] = frozenset({"workloads", "podgroups"})
    link_path: str = "spec.template.spec.schedulingGroup"

    @property
    def name(self) -> str:
        """The API version, which is also the name of the dialect."""
        return self.version

    @property
    def objects(self) -> tuple[ApiKind, ...]:
        """The Workload, to which the PodGroup refers, and the PodGroup."""
        return workloads(self.version), pod_groups(self.version)

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Return a copy of the Job whose pods refer to the PodGroup.

        The reference also prevents the Job controller from creating its own PodGroup.
        """
        return with_pod_field(job, "schedulingGroup", {"podGroupName": group.name})

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Return whether a stored Job has the reference."""
        stored = pod_field(job, "schedulingGroup") or {}
        return bool(stored.get("podGroupName") == group.name)

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        """Render the Workload, which has one template."""
        template = {"name": TEMPLATE_NAME, "schedulingPolicy": gang_policy(group), **priority(group)}
        return {
            "apiVersion": f"{API_GROUP}/{self.version}",
            "kind": "Workload",
            "metadata": metadata(group, ObjectPurpose.WORKLOAD, owned_by_job(group.name, job_uid)),
            "spec": {"controllerRef": controller_ref(group), "podGroupTemplates": [template]},
        }

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """Render the PodGroup, which repeats the policy of its template."""
        owners = (
            owned_by_job(group.name, job_uid),
            owned_by(f"{API_GROUP}/{self.version}", "Workload", group.name, workload_uid),
        )
        return {
            "apiVersion": f"{API_GROUP}/{self.version}",
            "kind": "PodGroup",
            "metadata": metadata(group, ObjectPurpose.PODGROUP, *owners),
            "spec": {
                **self.template_reference(group),
                "schedulingPolicy": gang_policy(group),
                **priority(group),
            },
        }

    def template_reference(self, group: SchedulingGroup) -> Object:
        """Return the field by which a PodGroup of this version refers to its template."""
        return {"workloadRef": {"workloadName": group.name, "templateName": TEMPLATE_NAME}}
