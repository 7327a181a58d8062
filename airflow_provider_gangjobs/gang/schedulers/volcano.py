"""Volcano 1.10 to 1.14: a scheduler with queues, and a PodGroup of scheduling.volcano.sh.

Its conditions have the opposite polarity to those of the Workload API: `Unschedulable` is True while the group waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.schedulers.base import ApiKind, SchedulingGroup, SeparateScheduler, pod_group_object

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import Object, PodGroupView

POD_GROUPS: Final = ApiKind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
ANNOTATION_GROUP: Final = "scheduling.k8s.io/group-name"
"""Name of the PodGroup. On the pods."""
ANNOTATION_QUEUE: Final = "scheduling.volcano.sh/queue-name"
"""Name of Volcano's queue. On the pods, where the user sets it; the provider copies it into the PodGroup."""
DEFAULT_QUEUE: Final = "default"
"""The queue that Volcano creates when it starts."""
NOT_PROCESSED: Final = "Volcano has not processed the PodGroup"
"""Begin of the text about a gang of which Volcano says nothing."""


@dataclass(frozen=True)
class Volcano(SeparateScheduler):
    """Volcano's scheduler places the pods of a PodGroup."""

    name: str = "volcano"
    link_path: str = f"spec.template.metadata.annotations[{ANNOTATION_GROUP}]"
    scheduler_names: tuple[str, ...] = ("volcano",)
    link: tuple[str, str] = ("annotations", ANNOTATION_GROUP)
    pod_groups: ApiKind | None = POD_GROUPS
    watched_group: ApiKind | None = POD_GROUPS
    no_causes: tuple[str, ...] = ("can possibly be assigned", "pod group is not ready")
    """The message of a pod that would fit, and the message of the whole group, which each pod has."""

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        spec: Object = {
            "minMember": group.min_count,
            "queue": group.pod_annotations.get(ANNOTATION_QUEUE, DEFAULT_QUEUE),
        }
        if group.priority_class:
            spec["priorityClassName"] = group.priority_class
        return pod_group_object(POD_GROUPS, group, job_uid, spec)

    def explain_silence(self, group: PodGroupView | None) -> str:
        """Return that Volcano has not processed the PodGroup, which has no status then.

        Volcano ignores a PodGroup whose queue does not exist, and sets the phase of any other one within a second.
        """
        if group is None or group.status.phase or group.status.conditions:
            return ""
        return f"{NOT_PROCESSED}: its queue {group.spec.queue} may not exist, or Volcano does not run"

    def group_reason(self, group: PodGroupView) -> str:
        """Return the message of the condition `Unschedulable`, which is True while the group waits."""
        waits = (c for c in group.status.conditions if c.type == "Unschedulable" and c.status == "True")
        return next((condition.message for condition in waits), "")
