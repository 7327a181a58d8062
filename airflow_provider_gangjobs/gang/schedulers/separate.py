"""Functions that the schedulers beside the default scheduler share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.identity import owned_by_job
from airflow_provider_gangjobs.gang.labels import LABEL_PURPOSE, ObjectPurpose
from airflow_provider_gangjobs.gang.schedulers.base import Guarantee

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.schedulers.base import ApiKind, SchedulingGroup, ServedGroup
    from airflow_provider_gangjobs.kube.views import Object


def with_pod_metadata(
    job: Mapping[str, Any],
    *,
    scheduler_name: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return a copy of the Job with further labels and annotations of its pods.

    :param scheduler_name: `schedulerName` of pods that have none.
    """
    template = job["spec"]["template"]
    metadata = dict(template.get("metadata", {}))
    for field, values in (("labels", labels), ("annotations", annotations)):
        if values:
            metadata[field] = {**metadata.get(field, {}), **values}
    pod = {"schedulerName": scheduler_name, **template["spec"]}
    return {**job, "spec": {**job["spec"], "template": {**template, "metadata": metadata, "spec": pod}}}


def pod_metadata(job: Mapping[str, Any], field: str, key: str) -> str | None:
    """Return a label or an annotation of the pods of a Job, or `None`.

    :param field: `labels` or `annotations`.
    """
    metadata = job.get("spec", {}).get("template", {}).get("metadata", {})
    value: str | None = (metadata.get(field) or {}).get(key)
    return value


def pod_group_object(kind: ApiKind, group: SchedulingGroup, job_uid: str, spec: Mapping[str, Any]) -> Object:
    """Render a PodGroup with this spec. The Job owns the PodGroup, so the deletion of the Job deletes both."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": group.name,
            "namespace": group.namespace,
            "labels": {**group.labels, LABEL_PURPOSE: ObjectPurpose.PODGROUP.value},
            "ownerReferences": [owned_by_job(group.name, job_uid)],
        },
        "spec": dict(spec),
    }


def guarantee_of_resource(kind: ApiKind, served: ServedGroup) -> Guarantee:
    """Return the guarantee of a scheduler that reads PodGroups of exactly this version."""
    if kind.plural in served.versions.get(kind.version, ()):
        return Guarantee(True)
    if served.unknown:
        return Guarantee(
            None, f"the provider could not read whether the cluster serves {kind.group} ({served.unknown})"
        )
    found = ", ".join(version for version, plurals in served.versions.items() if kind.plural in plurals)
    missing = f"the cluster does not serve {kind.plural} of {kind.api_version}"
    return Guarantee(False, f"{missing}, only {found}" if found else missing)
