"""Functions that the dialects share: metadata with owners, the gang policy, and access to fields of the pod spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.labels import LABEL_PURPOSE, ObjectPurpose
from airflow_provider_gangjobs.gang.schedulers.base import ApiKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.schedulers.base import SchedulingGroup
    from airflow_provider_gangjobs.kube.objects import Object

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
