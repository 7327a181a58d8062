"""Gang schedulers that run beside the one of Kubernetes, and the choice of the gang scheduler of a gang. Pure.

The scheduler that the user names is used, else the scheduler that owns the `schedulerName` of the pods, else the one
that the connection names, else the Workload API of Kubernetes.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import digest_of
from airflow_provider_gangjobs.gang.schedulers.base import (
    DEFAULT_SCHEDULER,
    TEMPLATE_NAME,
    ApiKind,
    GangScheduler,
    Guarantee,
    SchedulingGroup,
    SeparateScheduler,
    pod_group_object,
    pod_metadata,
    with_pod_metadata,
)
from airflow_provider_gangjobs.gang.schedulers.workload_api import JOB_SCHEDULING, find_dialect
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.kube.views import Object, PodGroupView


KUEUE: Final = "kueue"
HOSTNAME: Final = "kubernetes.io/hostname"
"""The lowest level of a Topology in which Kueue chooses nodes, and not only groups of nodes."""


@dataclass(frozen=True)
class KueueTopology(GangScheduler):
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


VOLCANO_POD_GROUPS: Final = ApiKind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
VOLCANO_ANNOTATION_GROUP: Final = "scheduling.k8s.io/group-name"
"""Name of the PodGroup. On the pods."""
VOLCANO_QUEUE: Final = "scheduling.volcano.sh/queue-name"
"""Name of Volcano's queue. On the pods, where the user sets it; the provider copies it into the PodGroup."""
DEFAULT_QUEUE: Final = "default"
"""The queue that Volcano creates when it starts."""


@dataclass(frozen=True)
class Volcano(SeparateScheduler):
    """Volcano's scheduler places the pods of a PodGroup."""

    name: str = "volcano"
    link_path: str = f"spec.template.metadata.annotations[{VOLCANO_ANNOTATION_GROUP}]"
    scheduler_names: tuple[str, ...] = ("volcano",)
    link: tuple[str, str] = ("annotations", VOLCANO_ANNOTATION_GROUP)
    pod_groups: ApiKind | None = VOLCANO_POD_GROUPS
    watched_group: ApiKind | None = VOLCANO_POD_GROUPS
    no_causes: tuple[str, ...] = ("can possibly be assigned", "pod group is not ready")
    """The message of a pod that would fit, and the message of the whole group, which each pod has."""

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        spec: Object = {
            "minMember": group.min_count,
            "queue": group.pod_annotations.get(VOLCANO_QUEUE, DEFAULT_QUEUE),
        }
        if group.priority_class:
            spec["priorityClassName"] = group.priority_class
        return pod_group_object(VOLCANO_POD_GROUPS, group, job_uid, spec)

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


COSCHEDULING_POD_GROUPS: Final = ApiKind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
LABEL_GROUP: Final = "scheduling.x-k8s.io/pod-group"
"""Name of the PodGroup. On the pods."""


@dataclass(frozen=True)
class Coscheduling(SeparateScheduler):
    """A scheduler with the plugin Coscheduling places the pods of a PodGroup.

    When one pod of a group finds no node, the plugin rejects all of them. A pod that is tried again before that is
    rejected, too, so that no pod names the cause (`Unreserve` and `PostFilter` in pkg/coscheduling/coscheduling.go).
    """

    name: str = "coscheduling"
    link_path: str = f"spec.template.metadata.labels[{LABEL_GROUP}]"
    scheduler_names: tuple[str, ...] = ("scheduler-plugins-scheduler", "coscheduling")
    """The name in the Helm chart of scheduler-plugins, and the name of the plugin."""
    link: tuple[str, str] = ("labels", LABEL_GROUP)
    pod_groups: ApiKind | None = COSCHEDULING_POD_GROUPS
    refusals: tuple[str, ...] = (
        "optimistic rejection in PostFilter",
        "rejection in Unreserve",
        "rejected due to timeout after waiting",
    )
    """A pod with the last one had found a node, and waited there for the others (`permitWaitingTimeSeconds`)."""
    no_causes: tuple[str, ...] = ("PodGroup not found", "cannot find enough sibling pods")
    """Messages of pods whose gang the plugin has not tried to place yet."""

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        return pod_group_object(COSCHEDULING_POD_GROUPS, group, job_uid, {"minMember": group.min_count})


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


@dataclass(frozen=True)
class YuniKorn(SeparateScheduler):
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
