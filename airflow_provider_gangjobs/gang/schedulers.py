"""Gang schedulers: the ways in which a cluster places all pods of a gang, or none of them. Pure.

The scheduler that the user names is used, else the scheduler that owns the `schedulerName` of the pods, else the one
that the connection names, else the Workload API of Kubernetes. A gang scheduler links the pods of a Job to a group,
renders the objects of the group, and reads from them why the pods wait. It also checks whether a stored Job still has
the link: an API server whose feature gate is off drops the field silently. To add a scheduler, add a class and an entry
in `SEPARATE_SCHEDULERS`.

Native gang scheduling has dialects, which are the versions of the Workload API by which a cluster receives a gang. To
add a dialect, add a class and an entry in `DISCOVERED_DIALECTS`.

* 1.36 (`v1alpha2`) and later: a Workload holds templates, to which the PodGroup object of the group refers.
* 1.37, with `gang_scheduler="job-scheduling"`: `Job.spec.scheduling`, from which the Job controller creates the
  objects, and which excludes a `schedulingGroup`. If the feature gate is off in the Job controller, no controller acts
  on the field. The API does not show this, so discovery never selects this dialect.

The disruption mode says that the pods of a group are preempted together, because a gang that loses a rank is lost. A
scheduler that weighs the ranks one by one takes the youngest pods, and ends a whole gang for the place of one pod. A
server whose feature gate is off drops the field, and the gang is placed all the same. Where the gate of
`schedulingConstraints` or of `resourceClaims` is off, a gang that needs the field is refused
(`submission.capabilities`).

The others run beside the scheduler of Kubernetes:

* **Kueue** places a gang by its topology aware scheduling. A flavor with a Topology makes Kueue choose the node of
  every pod, and admit a Job only if all of its pods fit. A quota alone counts the sum of the resources and not the
  nodes.
* **Volcano** 1.10 to 1.14 has queues, and a PodGroup of scheduling.volcano.sh. Its conditions have the opposite
  polarity to those of the Workload API: `Unschedulable` is True while the group waits.
* **Coscheduling**, the plugin of scheduler-plugins 0.34, has a PodGroup of scheduling.x-k8s.io without conditions, so
  only the pods say why they wait: the pod whose placement failed has the cause, and most pods have a message that
  refers to it. The plugin may overwrite the cause with such a message.
* **YuniKorn** 1.8 has task groups, which annotations of the pods describe, and no object for a group. It reserves the
  places by placeholder pods of its own, which hold the capacity and belong to the first pod of the gang. Until all
  places are reserved, the pods of the gang have no condition. With the style `Soft`, the default, a gang whose
  placeholders time out runs without gang scheduling, so the provider sets `Hard`, in which the pods fail. In both
  styles YuniKorn places the pods one by one if a placeholder pod cannot be created.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import digest_of, owned_by, owned_by_job
from airflow_provider_gangjobs.kube.resources import Resource, podgroups, workloads
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM, LABEL_GANG, LABEL_PURPOSE, ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider_gangjobs.kube.views import Object, PodGroupView, ServedGroup

TEMPLATE_NAME: Final = "gang"
"""Name of the only group template in a Workload, and of the only task group of YuniKorn."""
DEFAULT_SCHEDULER: Final = "default-scheduler"
"""The `schedulerName` that the API server sets on pods that have none."""


class SchedulingGroup(Struct, frozen=True):
    """The pods that the scheduler places together. Workload and PodGroup have the name of the Job."""

    name: str
    namespace: str
    min_count: int
    """Number of pods that the scheduler places together or not at all."""
    priority_class: str | None = None
    """Priority class of the pods. Since 1.37 all pods of a group must have the priority of the group (KEP-5710)."""
    pod_annotations: Mapping[str, str] = {}
    """Annotations of the pods. Some schedulers read settings from them, such as the name of a queue."""
    topology: str | None = None
    """Label of nodes. All pods of the group get nodes with the same value of it."""
    resource_claims: tuple[Mapping[str, Any], ...] = ()
    """Claims of devices that all pods of the group share."""


class Guarantee(Struct, frozen=True):
    """Whether a scheduler places all pods of a gang or none in a cluster. `kept` is `None` if this is unknown."""

    kept: bool | None
    reason: str = ""
    advice: str = ""
    """What to do; empty for the usual advice."""


class GangScheduler(Struct, frozen=True):
    """One way to place the pods of a gang. By default, the provider creates no objects beside the Job."""

    name: str = ""
    """Name in `PlacementDecision.detail`. Names are never changed, because Jobs carry them."""
    link_path: str = ""
    """Path of the link in a Job, for messages."""

    @property
    def objects(self) -> tuple[Resource, ...]:
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


class SeparateScheduler(GangScheduler, frozen=True):
    """A gang scheduler that runs beside the default scheduler, and places the pods that name it."""

    scheduler_names: tuple[str, ...] = ()
    """Values of `schedulerName` that belong to the scheduler by default. The first one is set on pods that have
    none."""
    link: tuple[str, str] = ("", "")
    """`labels` or `annotations`, and the key by which the pods name their group. If a user sets it, the provider makes
    no group."""
    pod_groups: Resource | None = None
    """The resource of the PodGroup; `None` if the scheduler has no API of its own."""
    watched_group: Resource | None = None
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
    def objects(self) -> tuple[Resource, ...]:
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


def object_of_group(resource: Resource, group: SchedulingGroup, spec: Mapping[str, Any], *owners: Object) -> Object:
    """Render a Workload or a PodGroup with this spec, with the name of the group."""
    purpose = ObjectPurpose.WORKLOAD if resource.kind == "Workload" else ObjectPurpose.PODGROUP
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": group.name,
            "namespace": group.namespace,
            "labels": {LABEL_GANG: group.name, LABEL_PURPOSE: purpose.value},
            "ownerReferences": list(owners),
        },
        "spec": dict(spec),
    }


def _guarantee_of_resource(resource: Resource, served: ServedGroup) -> Guarantee:
    if resource.plural in served.versions.get(resource.version, ()):
        return Guarantee(True)
    if served.unknown:
        return Guarantee(
            None, f"the provider could not read whether the cluster serves {resource.group} ({served.unknown})"
        )
    found = ", ".join(version for version, plurals in served.versions.items() if resource.plural in plurals)
    missing = f"the cluster does not serve {resource.plural} of {resource.api_version}"
    return Guarantee(False, f"{missing}, only {found}" if found else missing)


JOB_SCHEDULING: Final = "job-scheduling"
"""Value of `gang_scheduler` for `Job.spec.scheduling`, and the name of its dialect."""
REQUIRED_RESOURCES: Final = frozenset({"workloads", "podgroups"})
"""Plural names of the resources that a cluster must serve in one version of the Workload API."""


def _priority(group: SchedulingGroup) -> Object:
    return {"priorityClassName": group.priority_class} if group.priority_class else {}


class Dialect(GangScheduler, frozen=True):
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
        policy: Object = {"schedulingPolicy": {"gang": {"minCount": group.min_count}}}
        if group.topology:
            policy["schedulingConstraints"] = {"topology": [{"key": group.topology}]}
        if group.resource_claims:
            policy["resourceClaims"] = list(group.resource_claims)
        return {**policy, "disruptionMode": self.disruption_mode}

    @property
    def disruption_mode(self) -> Any:
        """The value that says that all pods of a group are preempted together."""
        return {"all": {}}


class PodGroupDialect(Dialect, frozen=True):
    """The pods refer to the PodGroup by `spec.schedulingGroup`."""

    link_path: str = "spec.template.spec.schedulingGroup"

    @property
    def objects(self) -> tuple[Resource, ...]:
        return (workloads(self.version), podgroups(self.version))

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Link the pods to the PodGroup. The link also keeps the Job controller from creating a PodGroup of its own."""
        template = job["spec"]["template"]
        pod = {**template["spec"], "schedulingGroup": {"podGroupName": group.name}}
        return {**job, "spec": {**job["spec"], "template": {**template, "spec": pod}}}

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        stored = job.get("spec", {}).get("template", {}).get("spec", {}).get("schedulingGroup") or {}
        return bool(stored.get("podGroupName") == group.name)

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        template = {"name": TEMPLATE_NAME, **self.scheduling(group), **_priority(group)}
        controller = {"apiGroup": "batch", "kind": "Job", "name": group.name}
        spec = {"controllerRef": controller, "podGroupTemplates": [template]}
        return object_of_group(self.objects[0], group, spec, owned_by_job(group.name, job_uid))

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """Render the PodGroup, which repeats its template."""
        workload, pod_groups = self.objects
        spec = {**self.template_reference(group), **self.scheduling(group), **_priority(group)}
        owner = owned_by(workload.api_version, workload.kind, group.name, workload_uid)
        return object_of_group(pod_groups, group, spec, owned_by_job(group.name, job_uid), owner)

    def template_reference(self, group: SchedulingGroup) -> Object:
        """Return the field by which a PodGroup of this version refers to its template."""
        return {"workloadRef": {"workloadName": group.name, "templateName": TEMPLATE_NAME}}


class _V1Alpha2Dialect(PodGroupDialect, frozen=True):
    """The PodGroup of 1.36 refers to its template by `spec.podGroupTemplateRef.workload`."""

    name: str = "v1alpha2"

    @property
    def disruption_mode(self) -> Any:
        return "PodGroup"

    def template_reference(self, group: SchedulingGroup) -> Object:
        reference = {"workloadName": group.name, "podGroupTemplateName": TEMPLATE_NAME}
        return {"podGroupTemplateRef": {"workload": reference}}


class JobSchedulingDialect(Dialect, frozen=True):
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
    _V1Alpha2Dialect(),
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


KUEUE: Final = "kueue"
HOSTNAME: Final = "kubernetes.io/hostname"
"""The lowest level of a Topology in which Kueue chooses nodes, and not only groups of nodes."""


class KueueTopology(GangScheduler, frozen=True):
    """Kueue places the pods by the flavors of the queue. The Job needs no link and no further objects."""

    name: str = KUEUE

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        return dict(job)

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        return True


def flavor_names(cluster_queue: Mapping[str, Any]) -> list[str]:
    """Return the names of the ResourceFlavors of a ClusterQueue, each once."""
    groups = cluster_queue.get("spec", {}).get("resourceGroups") or ()
    return list(dict.fromkeys(str(flavor["name"]) for group in groups for flavor in group.get("flavors") or ()))


class QueueTopologies(Struct, frozen=True):
    """The flavors of a queue, and the Topologies that they name."""

    flavors: Mapping[str, str | None] = {}
    """The name of the Topology by ResourceFlavor; `None` for a flavor without a Topology."""
    levels: Mapping[str, Sequence[str]] = {}
    """The node labels of each Topology, from the top."""
    missing: Sequence[str] = ()
    """Objects that the queue or its flavors name and that do not exist, such as `ResourceFlavor gpu`."""

    @property
    def all_levels(self) -> tuple[str, ...] | None:
        """The levels of all Topologies, each once; `None` if the queue is not complete."""
        return (
            None if self.missing else tuple(dict.fromkeys(level for levels in self.levels.values() for level in levels))
        )


def topology_guarantee(queue: str, topologies: QueueTopologies) -> Guarantee:
    """Return whether all pods of a gang are placed or none, if Kueue admits the gang in this LocalQueue."""
    if topologies.missing:
        return Guarantee(False, f"{topologies.missing[0]} of Kueue queue {queue} does not exist", _ADVICE_MISSING)
    if not topologies.flavors:
        return Guarantee(False, f"Kueue queue {queue} has no flavors")
    for flavor, topology in topologies.flavors.items():
        if topology is None:
            return Guarantee(
                False,
                f"Kueue queue {queue} counts a quota and not nodes: its flavor {flavor} has no Topology, so a gang may "
                "be placed in part",
            )
        if HOSTNAME not in topologies.levels[topology][-1:]:
            return Guarantee(
                False, f"Topology {topology} of flavor {flavor} of Kueue queue {queue} does not end with {HOSTNAME}"
            )
    return Guarantee(True)


_ADVICE_MISSING: Final = "Ask the administrator of Kueue to create this object, or name another queue"


VOLCANO_POD_GROUPS: Final = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
VOLCANO_ANNOTATION_GROUP: Final = "scheduling.k8s.io/group-name"
"""Name of the PodGroup. On the pods."""
VOLCANO_QUEUE: Final = "scheduling.volcano.sh/queue-name"
"""Name of Volcano's queue. On the pods, where the user sets it; the provider copies it into the PodGroup."""
DEFAULT_QUEUE: Final = "default"
"""The queue that Volcano creates when it starts."""


class Volcano(SeparateScheduler, frozen=True):
    """Volcano's scheduler places the pods of a PodGroup."""

    name: str = "volcano"
    link_path: str = f"spec.template.metadata.annotations[{VOLCANO_ANNOTATION_GROUP}]"
    scheduler_names: tuple[str, ...] = ("volcano",)
    link: tuple[str, str] = ("annotations", VOLCANO_ANNOTATION_GROUP)
    pod_groups: Resource | None = VOLCANO_POD_GROUPS
    watched_group: Resource | None = VOLCANO_POD_GROUPS
    no_causes: tuple[str, ...] = ("can possibly be assigned", "pod group is not ready")
    """The message of a pod that would fit, and the message of the whole group, which each pod has."""

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        queue = group.pod_annotations.get(VOLCANO_QUEUE, DEFAULT_QUEUE)
        spec = {"minMember": group.min_count, "queue": queue, **_priority(group)}
        return object_of_group(VOLCANO_POD_GROUPS, group, spec, owned_by_job(group.name, job_uid))

    def explain_silence(self, group: PodGroupView | None) -> tuple[str, str] | None:
        """Return that Volcano has not processed the PodGroup, which has no status then.

        Volcano ignores a PodGroup whose queue does not exist, and sets the phase of any other one within a second.
        """
        if group is None or group.status.phase or group.status.conditions:
            return None
        return "VolcanoSilent", group.spec.queue

    def group_reason(self, group: PodGroupView) -> str:
        """Return the message of the condition `Unschedulable`, which is True while the group waits."""
        waits = (c for c in group.status.conditions if c.type == "Unschedulable" and c.status == "True")
        return next((condition.message for condition in waits), "")


COSCHEDULING_POD_GROUPS: Final = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
LABEL_GROUP: Final = "scheduling.x-k8s.io/pod-group"
"""Name of the PodGroup. On the pods."""


class Coscheduling(SeparateScheduler, frozen=True):
    """A scheduler with the plugin Coscheduling places the pods of a PodGroup.

    When one pod of a group finds no node, the plugin rejects all of them. A pod that is tried again before that is
    rejected, too, so that no pod names the cause (`Unreserve` and `PostFilter` in pkg/coscheduling/coscheduling.go).
    """

    name: str = "coscheduling"
    link_path: str = f"spec.template.metadata.labels[{LABEL_GROUP}]"
    scheduler_names: tuple[str, ...] = ("scheduler-plugins-scheduler", "coscheduling")
    """The name in the Helm chart of scheduler-plugins, and the name of the plugin."""
    link: tuple[str, str] = ("labels", LABEL_GROUP)
    pod_groups: Resource | None = COSCHEDULING_POD_GROUPS
    refusals: tuple[str, ...] = (
        "optimistic rejection in PostFilter",
        "rejection in Unreserve",
        "rejected due to timeout after waiting",
    )
    """A pod with the last one had found a node, and waited there for the others (`permitWaitingTimeSeconds`)."""
    no_causes: tuple[str, ...] = ("PodGroup not found", "cannot find enough sibling pods")
    """Messages of pods whose gang the plugin has not tried to place yet."""

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        spec = {"minMember": group.min_count}
        return object_of_group(COSCHEDULING_POD_GROUPS, group, spec, owned_by_job(group.name, job_uid))


LABEL_APPLICATION: Final = "applicationId"
APPLICATION_DIGEST_LENGTH: Final = 10
YUNIKORN_PREFIX: Final = "yunikorn.apache.org"
YUNIKORN_ANNOTATION_GROUP: Final = f"{YUNIKORN_PREFIX}/task-group-name"
YUNIKORN_ANNOTATION_GROUPS: Final = f"{YUNIKORN_PREFIX}/task-groups"
YUNIKORN_ANNOTATION_PARAMETERS: Final = f"{YUNIKORN_PREFIX}/schedulingPolicyParameters"
PLACEHOLDER_TIMEOUT_S: Final = 7 * 24 * 3600
"""How long YuniKorn keeps the places of a gang that is not complete. The deadlines of the task end the gang earlier."""
_POD_FIELDS: Final = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints")
"""Fields of the pods that decide about their nodes. The placeholders have the same fields."""


class YuniKorn(SeparateScheduler, frozen=True):
    """YuniKorn places the pods of a task group.

    No message about a pod refers to other pods. Without YuniKorn, the pods wait and none is placed. No request shows
    whether the cluster lets YuniKorn create its placeholder pods.
    """

    nonce: str = ""
    """Random text of one submission, which tells its application from that of an earlier Job with the same name and
    claim."""
    name: str = "yunikorn"
    link_path: str = f"spec.template.metadata.annotations[{YUNIKORN_ANNOTATION_GROUP}]"
    scheduler_names: tuple[str, ...] = ("yunikorn",)
    link: tuple[str, str] = ("annotations", YUNIKORN_ANNOTATION_GROUP)

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        task_group = _task_group(job["spec"]["template"]["spec"], group)
        annotations = {
            YUNIKORN_ANNOTATION_GROUP: TEMPLATE_NAME,
            YUNIKORN_ANNOTATION_GROUPS: json.dumps([task_group], sort_keys=True),
            YUNIKORN_ANNOTATION_PARAMETERS: (
                f"gangSchedulingStyle=Hard placeholderTimeoutInSeconds={PLACEHOLDER_TIMEOUT_S}"
            ),
        }
        return with_pod_metadata(
            job,
            scheduler_name=self.scheduler_names[0],
            labels={LABEL_APPLICATION: _application_id(job, group, self.nonce)},
            annotations=annotations,
        )

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        application = pod_metadata(job, "labels", LABEL_APPLICATION) or ""
        return pod_metadata(job, "annotations", YUNIKORN_ANNOTATION_GROUP) == TEMPLATE_NAME and application.startswith(
            group.name
        )

    def explain_silence(self, group: PodGroupView | None) -> tuple[str, str] | None:
        return "YuniKornReserves", ""


def _application_id(job: Mapping[str, Any], group: SchedulingGroup, nonce: str) -> str:
    """Return the id of the application, as a label value of at most 63 characters.

    YuniKorn places a task group as a whole only when it first sees the application. Ids are unique in the whole
    cluster, and known for half a minute after the pods are gone. So each namespace, try and creation of a Job has
    another id.
    """
    claim = job.get("metadata", {}).get("annotations", {}).get(ANNOTATION_CLAIM, "")
    return f"{group.name}-{digest_of(group.namespace, claim, nonce)[:APPLICATION_DIGEST_LENGTH]}"


def _task_group(pod: Mapping[str, Any], group: SchedulingGroup) -> Object:
    from airflow_provider_gangjobs.kube import quantity

    placed_by = {name: pod[name] for name in _POD_FIELDS if pod.get(name)}
    amounts = quantity.format_amounts(quantity.requests_of(pod))
    return {"name": TEMPLATE_NAME, "minMember": group.min_count, "minResource": amounts, **placed_by}


AUTO: Final = "auto"
"""Value of `gang_scheduler` that leaves the choice to `select_scheduler`, as does no value."""
NATIVE: Final = "native"
"""Value of `gang_scheduler` for the Workload API of Kubernetes, in the dialect that discovery selects."""
SEPARATE_SCHEDULERS: Final[tuple[SeparateScheduler, ...]] = (Volcano(), Coscheduling(), YuniKorn())
"""Gang schedulers that run beside the default scheduler."""
LINK_KEYS: Final = frozenset(scheduler.link[1] for scheduler in SEPARATE_SCHEDULERS)
"""Labels and annotations by which a user links pods to a group of one of these schedulers."""
SCHEDULER_NAMES: Final = (NATIVE, JOB_SCHEDULING, KUEUE, *(scheduler.name for scheduler in SEPARATE_SCHEDULERS))


def select_scheduler(
    named: str | None, scheduler_name: str | None, default: str | None = None
) -> SeparateScheduler | None:
    """Return the scheduler beside the default scheduler that places a gang; `None` for the Workload API.

    :param named: `gang_scheduler` of the gang.
    :param scheduler_name: `schedulerName` of the pods.
    :param default: `gang_scheduler` of the connection.
    """
    if named not in (None, AUTO):
        return find_separate(named)
    owner = owner_of(scheduler_name)
    if owner is not None or scheduler_name == DEFAULT_SCHEDULER:
        return owner
    return find_separate(default)


def find_separate(name: str | None) -> SeparateScheduler | None:
    return next((scheduler for scheduler in SEPARATE_SCHEDULERS if scheduler.name == name), None)


def owner_of(scheduler_name: str | None) -> SeparateScheduler | None:
    """Return the scheduler to which a `schedulerName` belongs by default, or `None`."""
    return next((scheduler for scheduler in SEPARATE_SCHEDULERS if scheduler_name in scheduler.scheduler_names), None)


def find_scheduler(detail: str) -> GangScheduler | None:
    """Return the scheduler that `PlacementDecision.detail` of a gang names, or `None`."""
    return KueueTopology() if detail == KUEUE else find_separate(detail) or find_dialect(detail)


def separate_scheduler_of(decision: str | None) -> SeparateScheduler | None:
    """Return the scheduler beside the default scheduler that an annotation such as `gang:volcano` names."""
    placement, _, detail = (decision or "").partition(":")
    return find_separate(detail) if placement == "gang" else None


def names_cause(message: str) -> bool:
    """Return whether a scheduler's message about one pod names the cause for which its gang waits."""
    no_causes = (text for scheduler in SEPARATE_SCHEDULERS for text in scheduler.no_causes)
    return not says_refused(message) and not any(text in message for text in no_causes)


def says_refused(message: str) -> bool:
    """Return whether a scheduler's message about one pod says that its gang could not be placed, but not why."""
    return any(text in message for scheduler in SEPARATE_SCHEDULERS for text in scheduler.refusals)
