"""Native gang scheduling: the dialects, which are the versions of the Workload API by which a cluster receives a gang.

* 1.36 (`v1alpha2`) and later: a Workload holds templates, to which the PodGroup object of the group refers.
* 1.37, with `gang_scheduler="job-scheduling"`: `Job.spec.scheduling`, from which the Job controller creates the
  objects, and which excludes a `schedulingGroup`. If the feature gate is off in the Job controller, no controller acts
  on the field. The API does not show this, so discovery never selects this dialect.

The disruption mode says that the pods of a group are preempted together, because a gang that loses a rank is lost. A
scheduler that weighs the ranks one by one takes the youngest pods, and ends a whole gang for the place of one pod. A
server whose feature gate is off drops the field, and the gang is placed all the same. Where the gate of
`schedulingConstraints` is off, a gang with a topology is refused (`submission.capabilities`).

To add a dialect, add a class and an entry in `DISCOVERED_DIALECTS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.identity import owned_by, owned_by_job
from airflow_provider_gangjobs.gang.schedulers.base import TEMPLATE_NAME, ApiKind, GangScheduler, SchedulingGroup
from airflow_provider_gangjobs.kube.well_known import LABEL_PURPOSE, ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider_gangjobs.kube.views import Object


API_GROUP = "scheduling.k8s.io"
JOB_SCHEDULING: Final = "job-scheduling"
"""Value of `gang_scheduler` for `Job.spec.scheduling`, and the name of its dialect."""
REQUIRED_RESOURCES: Final = frozenset({"workloads", "podgroups"})
"""Plural names of the resources that a cluster must serve in one version of the Workload API."""


def workloads(version: str) -> ApiKind:
    return ApiKind(API_GROUP, version, "workloads", "Workload")


def pod_groups(version: str) -> ApiKind:
    return ApiKind(API_GROUP, version, "podgroups", "PodGroup")


def metadata(group: SchedulingGroup, purpose: ObjectPurpose, *owners: Object) -> Object:
    return {
        "name": group.name,
        "namespace": group.namespace,
        "labels": {**group.labels, LABEL_PURPOSE: purpose.value},
        "ownerReferences": list(owners),
    }


def constraints(group: SchedulingGroup) -> Object:
    return {"schedulingConstraints": {"topology": [{"key": group.topology}]}} if group.topology else {}


def priority(group: SchedulingGroup) -> Object:
    return {"priorityClassName": group.priority_class} if group.priority_class else {}


def with_pod_field(job: Mapping[str, Any], name: str, value: Any) -> Object:
    template = job["spec"]["template"]
    pod = {**template["spec"], name: value}
    return {**job, "spec": {**job["spec"], "template": {**template, "spec": pod}}}


def pod_field(job: Mapping[str, Any], name: str) -> Any:
    return job.get("spec", {}).get("template", {}).get("spec", {}).get(name)


@dataclass(frozen=True)
class Dialect(GangScheduler):
    """One version of the Workload API of Kubernetes. The version is also the name, unless a class has another one."""

    @property
    def version(self) -> str:
        """Version of scheduling.k8s.io whose objects the dialect uses."""
        return self.name

    def is_served(self, served: Mapping[str, Collection[str]]) -> bool:
        """Return whether a cluster serves the resources of the dialect, by the plural names of each version."""
        return set(served.get(self.version, ())) >= REQUIRED_RESOURCES

    def scheduling(self, group: SchedulingGroup) -> Object:
        """Render how the pods of a group are placed and preempted."""
        policy = {"schedulingPolicy": {"gang": {"minCount": group.min_count}}}
        return {**policy, **constraints(group), "disruptionMode": self.disruption_mode}

    @property
    def disruption_mode(self) -> Any:
        """The value that says that all pods of a group are preempted together."""
        return {"all": {}}

    def workload_with(self, group: SchedulingGroup, job_uid: str, groups: Object) -> Object:
        """Render the Workload with these groups."""
        return {
            "apiVersion": f"{API_GROUP}/{self.version}",
            "kind": "Workload",
            "metadata": metadata(group, ObjectPurpose.WORKLOAD, owned_by_job(group.name, job_uid)),
            "spec": {"controllerRef": {"apiGroup": "batch", "kind": "Job", "name": group.name}, **groups},
        }


@dataclass(frozen=True)
class PodGroupDialect(Dialect):
    """The pods refer to the PodGroup by `spec.schedulingGroup`."""

    link_path: str = "spec.template.spec.schedulingGroup"

    @property
    def objects(self) -> tuple[ApiKind, ...]:
        return workloads(self.version), pod_groups(self.version)

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Link the pods to the PodGroup. The link also keeps the Job controller from creating a PodGroup of its own."""
        return with_pod_field(job, "schedulingGroup", {"podGroupName": group.name})

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        stored = pod_field(job, "schedulingGroup") or {}
        return bool(stored.get("podGroupName") == group.name)

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        template = {"name": TEMPLATE_NAME, **self.scheduling(group), **priority(group)}
        return self.workload_with(group, job_uid, {"podGroupTemplates": [template]})

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """Render the PodGroup, which repeats its template."""
        owners = (
            owned_by_job(group.name, job_uid),
            owned_by(f"{API_GROUP}/{self.version}", "Workload", group.name, workload_uid),
        )
        return {
            "apiVersion": f"{API_GROUP}/{self.version}",
            "kind": "PodGroup",
            "metadata": metadata(group, ObjectPurpose.PODGROUP, *owners),
            "spec": {**self.template_reference(group), **self.scheduling(group), **priority(group)},
        }

    def template_reference(self, group: SchedulingGroup) -> Object:
        """Return the field by which a PodGroup of this version refers to its template."""
        return {"workloadRef": {"workloadName": group.name, "templateName": TEMPLATE_NAME}}


@dataclass(frozen=True)
class V1Alpha2Dialect(PodGroupDialect):
    """The PodGroup of 1.36 refers to its template by `spec.podGroupTemplateRef.workload`."""

    name: str = "v1alpha2"

    @property
    def disruption_mode(self) -> Any:
        return "PodGroup"

    def template_reference(self, group: SchedulingGroup) -> Object:
        reference = {"workloadName": group.name, "podGroupTemplateName": TEMPLATE_NAME}
        return {"podGroupTemplateRef": {"workload": reference}}


@dataclass(frozen=True)
class JobSchedulingDialect(Dialect):
    """The Job itself has the scheduling policy, and the Job controller creates the objects."""

    name: str = JOB_SCHEDULING
    link_path: str = "spec.scheduling"

    @property
    def version(self) -> str:
        return "v1beta1"

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        return {**job, "spec": {**job["spec"], "scheduling": self.scheduling(group)}}

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        policy = job.get("spec", {}).get("scheduling", {}).get("schedulingPolicy", {})
        return bool(policy.get("gang", {}).get("minCount") == group.min_count)


DISCOVERED_DIALECTS: Final[tuple[Dialect, ...]] = (
    PodGroupDialect("v1beta1"),
    PodGroupDialect("v1alpha3"),
    V1Alpha2Dialect(),
)
"""Dialects that discovery may select, best first."""

_VERSION: Final = re.compile(r"v\d+((alpha|beta)\d+)?")


def dialects_of(gang_scheduler: str | None) -> tuple[Dialect, ...]:
    """Return the known dialects that may place a gang with this `gang_scheduler`, the best first."""
    return (JobSchedulingDialect(),) if gang_scheduler == JOB_SCHEDULING else DISCOVERED_DIALECTS


def select_dialect(
    served: Mapping[str, Collection[str]], gang_scheduler: str | None = None, *, proven: Collection[str] = ()
) -> Dialect | None:
    """Return the best dialect that a cluster serves.

    :param served: Version of scheduling.k8s.io -> plural names of the resources that the cluster serves.
    :param proven: Newer versions for which a dry run has shown that the server keeps the link and the group.
    """
    newer = [PodGroupDialect(version) for version in proven if gang_scheduler != JOB_SCHEDULING]
    return next((dialect for dialect in (*dialects_of(gang_scheduler), *newer) if dialect.is_served(served)), None)


def wanted_versions(gang_scheduler: str | None = None) -> dict[str, frozenset[str]]:
    """Return the versions of scheduling.k8s.io that can be used, the best first, each with its required resources."""
    return {dialect.version: REQUIRED_RESOURCES for dialect in dialects_of(gang_scheduler)}


def newer_dialects(served: Mapping[str, Collection[str]]) -> list[PodGroupDialect]:
    """Return the dialects of served versions that this release of the provider does not know.

    They are expected to have the fields of the newest known version, which a dry run must show.
    """
    known = {dialect.version for dialect in DISCOVERED_DIALECTS}
    newer = (PodGroupDialect(version) for version in served if version not in known and _VERSION.fullmatch(version))
    return [dialect for dialect in newer if dialect.is_served(served)]


def find_dialect(name: str) -> Dialect | None:
    """Return the dialect with this name, whatever a cluster serves. An unknown version names a newer dialect."""
    known = (dialect for dialect in (*DISCOVERED_DIALECTS, JobSchedulingDialect()) if dialect.name == name)
    return next(known, PodGroupDialect(name) if _VERSION.fullmatch(name) else None)
