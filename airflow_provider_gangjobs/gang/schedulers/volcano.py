"""Volcano 1.10 to 1.14: a scheduler with queues, and a PodGroup of scheduling.volcano.sh.

Volcano finds the PodGroup by an annotation of the pods. Its conditions have the opposite polarity to those of the
Workload API: `Unschedulable` is True while the group waits, and `Scheduled` is True after the group was placed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.schedulers.base import (
    ApiKind,
    SchedulingGroup,
    SeparateScheduler,
    pod_group_object,
    pod_metadata,
    with_pod_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

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
# Volcano gives a pod that would fit this message, and gives each pod the message of the whole group.
_NO_CAUSE: Final = ("can possibly be assigned", "pod group is not ready")


class Volcano(SeparateScheduler, frozen=True):
    """Volcano's scheduler places the pods of a PodGroup."""

    name: str = "volcano"
    scheduler_names: tuple[str, ...] = ("volcano",)
    link_path: str = f"spec.template.metadata.annotations[{ANNOTATION_GROUP}]"
    link_keys: frozenset[str] = frozenset({ANNOTATION_GROUP})
    objects: tuple[ApiKind, ...] = (POD_GROUPS,)
    watched_group: ApiKind | None = POD_GROUPS

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Return a copy of the Job whose pods name the PodGroup."""
        return with_pod_metadata(
            job, scheduler_name=self.scheduler_names[0], annotations={ANNOTATION_GROUP: group.name}
        )

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Return whether the pods of a stored Job name the PodGroup."""
        return pod_metadata(job, "annotations", ANNOTATION_GROUP) == group.name

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """Render the PodGroup, in the queue that the pods name."""
        spec: Object = {
            "minMember": group.min_count,
            "queue": group.pod_annotations.get(ANNOTATION_QUEUE, DEFAULT_QUEUE),
        }
        if group.priority_class:
            spec["priorityClassName"] = group.priority_class
        return pod_group_object(POD_GROUPS, group, job_uid, spec)

    def explain_silence(self, group: PodGroupView | None) -> str:
        """Return that Volcano has not processed the PodGroup, which has no status then.

        Volcano ignores a PodGroup whose queue does not exist. It sets the phase of any other one within a second.
        """
        if group is None or group.status.phase or group.status.conditions:
            return ""
        return f"{NOT_PROCESSED}: its queue {group.spec.queue} may not exist, or Volcano does not run"

    def names_cause(self, message: str) -> bool:
        """Return whether the message is about this pod, and not about the group."""
        return not any(text in message for text in _NO_CAUSE)

    def group_reason(self, group: PodGroupView) -> str:
        """Return the message of the condition `Unschedulable`, which is True while the group waits."""
        waits = (c for c in group.status.conditions if c.type == "Unschedulable" and c.status == "True")
        return next((condition.message for condition in waits), "")
