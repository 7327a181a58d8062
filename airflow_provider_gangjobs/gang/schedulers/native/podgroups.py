"""Kubernetes 1.36 and later: a Workload holds templates, and a PodGroup object represents the group.

The releases differ in the API version and in the field by which a PodGroup refers to its template.

Functions that the dialects share: metadata with owners, the gang policy, and access to fields of the pod spec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.identity import owned_by, owned_by_job
from airflow_provider_gangjobs.gang.labels import LABEL_PURPOSE, ObjectPurpose
from airflow_provider_gangjobs.gang.schedulers.base import TEMPLATE_NAME, ApiKind, SchedulingGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.schedulers.base import SchedulingGroup
    from airflow_provider_gangjobs.kube.views import Object


API_GROUP = "scheduling.k8s.io"


def workloads(version: str) -> ApiKind:
    """Return the resource of Workloads."""
    return ApiKind(API_GROUP, version, "workloads", "Workload")


def pod_groups(version: str) -> ApiKind:
    """Return the resource of PodGroups."""
    return ApiKind(API_GROUP, version, "podgroups", "PodGroup")


def controller_ref(group: SchedulingGroup) -> Object:
    """Render the reference to the Job in a Workload. The reference has no uid and no version."""
    return {"apiGroup": "batch", "kind": "Job", "name": group.name}


def metadata(group: SchedulingGroup, purpose: ObjectPurpose, *owners: Object) -> Object:
    """Render the metadata of a Workload or PodGroup."""
    return {
        "name": group.name,
        "namespace": group.namespace,
        "labels": {**group.labels, LABEL_PURPOSE: purpose.value},
        "ownerReferences": list(owners),
    }


def gang_policy(group: SchedulingGroup) -> Object:
    """Render the policy that places `min_count` pods at once or none."""
    return {"gang": {"minCount": group.min_count}}


def priority(group: SchedulingGroup) -> Object:
    """Render the priority class; empty if the pods have none."""
    return {"priorityClassName": group.priority_class} if group.priority_class else {}


def with_pod_field(job: Mapping[str, Any], name: str, value: Any) -> Object:
    """Return a copy of the Job with a field set in its pod spec."""
    template = job["spec"]["template"]
    pod = {**template["spec"], name: value}
    return {**job, "spec": {**job["spec"], "template": {**template, "spec": pod}}}


def pod_field(job: Mapping[str, Any], name: str) -> Any:
    """Return a field of the pod spec of a Job, or `None`."""
    return job.get("spec", {}).get("template", {}).get("spec", {}).get(name)


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
