"""Coscheduling: the plugin of scheduler-plugins 0.34, and a PodGroup of scheduling.x-k8s.io.

The PodGroup has no conditions, so only the pods say why they wait: the pod whose placement failed has the cause, and
most pods have a message that refers to it. The plugin may overwrite the cause with such a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.schedulers.base import ApiKind, SchedulingGroup, SeparateScheduler, pod_group_object

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import Object

POD_GROUPS: Final = ApiKind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
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
    pod_groups: ApiKind | None = POD_GROUPS
    refusals: tuple[str, ...] = (
        "optimistic rejection in PostFilter",
        "rejection in Unreserve",
        "rejected due to timeout after waiting",
    )
    """A pod with the last one had found a node, and waited there for the others (`permitWaitingTimeSeconds`)."""
    no_causes: tuple[str, ...] = ("PodGroup not found", "cannot find enough sibling pods")
    """Messages of pods whose gang the plugin has not tried to place yet."""

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        return pod_group_object(POD_GROUPS, group, job_uid, {"minMember": group.min_count})
