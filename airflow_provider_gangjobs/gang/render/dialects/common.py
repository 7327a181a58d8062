"""What the dialects share: metadata with owners, the gang policy, and setting one field deep in a Job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.labels import LABEL_ROLE, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.render.dialects.base import Object, SchedulingGroup

API_GROUP = "scheduling.k8s.io"


def controller_ref(group: SchedulingGroup) -> Object:
    """Names the Job in a Workload. It has no uid and no version."""
    return {"apiGroup": "batch", "kind": "Job", "name": group.name}


def metadata(group: SchedulingGroup, role: Role, *owners: Object) -> Object:
    """Metadata of a Workload or PodGroup."""
    return {
        "name": group.name,
        "namespace": group.namespace,
        "labels": {**group.labels, LABEL_ROLE: role.value},
        "ownerReferences": list(owners),
    }


def gang_policy(group: SchedulingGroup) -> Object:
    """All of `min_count` at once, or none."""
    return {"gang": {"minCount": group.min_count}}


def priority(group: SchedulingGroup) -> Object:
    """The priority class, if the pods have one."""
    return {"priorityClassName": group.priority_class} if group.priority_class else {}


def with_pod_field(job: Mapping[str, Any], name: str, value: Any) -> Object:
    """A copy of the Job whose pods' spec has one more field."""
    template = job["spec"]["template"]
    pod = {**template["spec"], name: value}
    return {**job, "spec": {**job["spec"], "template": {**template, "spec": pod}}}


def pod_field(job: Mapping[str, Any], name: str) -> Any:
    """A field of the pods' spec in a Job, or None."""
    return job.get("spec", {}).get("template", {}).get("spec", {}).get(name)
