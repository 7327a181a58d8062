"""Gang scheduler: the base class of one way in which a cluster places all pods of a gang, or none of them. Pure.

A gang scheduler links the pods of a Job to a group, renders the objects of the group, and reads from them why the pods
wait. It also checks whether a stored Job still has the link: an API server whose feature gate is off drops the field
silently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import owned_by_job
from airflow_provider_gangjobs.kube.well_known import LABEL_PURPOSE, ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider_gangjobs.kube.views import Object, PodGroupView


TEMPLATE_NAME: Final = "gang"
"""Name of the only group template in a Workload, and of the only task group of YuniKorn."""
DEFAULT_SCHEDULER: Final = "default-scheduler"
"""The `schedulerName` that the API server sets on pods that have none."""


class ApiKind(NamedTuple):
    """A resource of the API, with the fields of `cluster.resources.Resource`."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


@dataclass(frozen=True)
class SchedulingGroup:
    """The pods that the scheduler places together. Workload and PodGroup have the name of the Job."""

    name: str
    namespace: str
    size: int
    min_count: int
    """Number of pods that the scheduler places together or not at all."""
    priority_class: str | None = None
    """Priority class of the pods. Since 1.37 all pods of a group must have the priority of the group (KEP-5710)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the pods. Some schedulers read settings from them, such as the name of a queue."""
    topology: str | None = None
    """Label of nodes. All pods of the group get nodes with the same value of it."""


class Guarantee(Struct, frozen=True):
    """Whether a scheduler places all pods of a gang or none in a cluster. `kept` is `None` if this is unknown."""

    kept: bool | None
    reason: str = ""
    advice: str = ""
    """What to do; empty for the usual advice."""


class ServedGroup(Struct, frozen=True):
    """What a cluster serves of the API group of a scheduler."""

    versions: Mapping[str, Collection[str]] = {}
    """Plural names of the resources, by version."""
    unknown: str = ""
    """Why the versions could not be read; empty if they were read."""


@dataclass(frozen=True)
class GangScheduler:
    """One way to place the pods of a gang. By default, the provider creates no objects beside the Job."""

    name: str = ""
    """Name in `PlacementDecision.detail`. Names are never changed, because Jobs carry them."""
    link_path: str = ""
    """Path of the link in a Job, for messages."""

    @property
    def objects(self) -> tuple[ApiKind, ...]:
        """The resources of the objects that the provider creates beside the Job, in this order."""
        return ()

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Return a copy of the Job whose pods are linked to the group."""
        raise NotImplementedError

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        raise NotImplementedError

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        """Render the Workload, owned by the Job, if the provider creates one."""
        return None

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """Render the PodGroup, owned by the Job and the Workload, if the provider creates one."""
        return None


@dataclass(frozen=True)
class SeparateScheduler(GangScheduler):
    """A gang scheduler that runs beside the default scheduler, and places the pods that name it."""

    scheduler_names: tuple[str, ...] = ()
    """Values of `schedulerName` that belong to the scheduler by default. The first one is set on pods that have
    none."""
    link: tuple[str, str] = ("", "")
    """`labels` or `annotations`, and the key by which the pods name their group. If a user sets it, the provider makes
    no group."""
    pod_groups: ApiKind | None = None
    """The resource of the PodGroup; `None` if the scheduler has no API of its own."""
    watched_group: ApiKind | None = None
    """The resource of the object that says why a gang waits; `None` if no object says this."""
    refusals: tuple[str, ...] = ()
    """Parts of messages about one pod that say that the gang could not be placed, but not why."""
    no_causes: tuple[str, ...] = ()
    """Parts of further messages about one pod that do not name the cause for which the gang waits."""

    @property
    def api_group(self) -> str | None:
        """The API group whose versions discovery reads; `None` if the scheduler has no API of its own."""
        return self.pod_groups.group if self.pod_groups else None

    @property
    def objects(self) -> tuple[ApiKind, ...]:
        return () if self.pod_groups is None else (self.pod_groups,)

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        kind, key = self.link
        return with_pod_metadata(job, scheduler_name=self.scheduler_names[0], **{kind: {key: group.name}})

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        return pod_metadata(job, *self.link) == group.name

    def guarantee(self, served: ServedGroup) -> Guarantee:
        """Return whether a gang is placed as a whole in a cluster that serves these versions."""
        return Guarantee(True) if self.pod_groups is None else _guarantee_of_resource(self.pod_groups, served)

    def explain_silence(self, group: PodGroupView | None) -> tuple[str, str] | None:
        """Return what a gang waits for while its pods have no condition, if this is known.

        It is a cause of `gang.state.reason`, and the queue that the cause is about.
        """
        return None

    def group_reason(self, group: PodGroupView) -> str:
        """Return why the group waits, if its object says this."""
        return ""


def with_pod_metadata(
    job: Mapping[str, Any],
    *,
    scheduler_name: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return a copy of the Job with further labels and annotations of its pods, and a `schedulerName` if they have
    none."""
    template = job["spec"]["template"]
    metadata = dict(template.get("metadata", {}))
    for kind, values in (("labels", labels), ("annotations", annotations)):
        if values:
            metadata[kind] = {**metadata.get(kind, {}), **values}
    pod = {"schedulerName": scheduler_name, **template["spec"]}
    return {**job, "spec": {**job["spec"], "template": {**template, "metadata": metadata, "spec": pod}}}


def pod_metadata(job: Mapping[str, Any], field: str, key: str) -> str | None:
    """Return a label or an annotation of the pods of a Job. The field is `labels` or `annotations`."""
    metadata = job.get("spec", {}).get("template", {}).get("metadata", {})
    value: str | None = (metadata.get(field) or {}).get(key)
    return value


def pod_group_object(kind: ApiKind, group: SchedulingGroup, job_uid: str, spec: Mapping[str, Any]) -> Object:
    """Render a PodGroup with this spec, which the Job owns."""
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


def _guarantee_of_resource(kind: ApiKind, served: ServedGroup) -> Guarantee:
    if kind.plural in served.versions.get(kind.version, ()):
        return Guarantee(True)
    if served.unknown:
        return Guarantee(
            None, f"the provider could not read whether the cluster serves {kind.group} ({served.unknown})"
        )
    found = ", ".join(version for version, plurals in served.versions.items() if kind.plural in plurals)
    missing = f"the cluster does not serve {kind.plural} of {kind.api_version}"
    return Guarantee(False, f"{missing}, only {found}" if found else missing)
