"""Coscheduling: the plugin of scheduler-plugins 0.34, and a PodGroup of scheduling.x-k8s.io.

The plugin finds the PodGroup by a label of the pods. The PodGroup has no conditions, so only the pods say why they
wait: the pod whose placement failed has the cause, and most pods have a message that refers to this failure. The
plugin may overwrite the cause with such a message.
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

    from airflow_provider_gangjobs.kube.views import Object

POD_GROUPS: Final = ApiKind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
LABEL_GROUP: Final = "scheduling.x-k8s.io/pod-group"
"""Name of the PodGroup. On the pods."""
_GROUP_REFUSED: Final = (
    "optimistic rejection in PostFilter",
    "rejection in Unreserve",
    "rejected due to timeout after waiting",
)
"""Messages of the other pods of a gang that the plugin could not place as a whole. A pod with the last one had found a
node, and has waited there for the other pods (`permitWaitingTimeSeconds`)."""
_GROUP_INCOMPLETE: Final = ("PodGroup not found", "cannot find enough sibling pods")
"""Messages of pods whose gang the plugin has not tried to place yet."""


class Coscheduling(SeparateScheduler, frozen=True):
    """A scheduler with the plugin Coscheduling places the pods of a PodGroup."""

    name: str = "coscheduling"
    scheduler_names: tuple[str, ...] = ("scheduler-plugins-scheduler", "coscheduling")
    """The name in the Helm chart of scheduler-plugins, and the name of the plugin."""
    link_path: str = f"spec.template.metadata.labels[{LABEL_GROUP}]"
    link_keys: frozenset[str] = frozenset({LABEL_GROUP})
    objects: tuple[ApiKind, ...] = (POD_GROUPS,)

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Return a copy of the Job whose pods name the PodGroup."""
        return with_pod_metadata(job, scheduler_name=self.scheduler_names[0], labels={LABEL_GROUP: group.name})

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Return whether the pods of a stored Job name the PodGroup."""
        return pod_metadata(job, "labels", LABEL_GROUP) == group.name

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """Render the PodGroup. The plugin places the pods when `minMember` pods fit."""
        return pod_group_object(POD_GROUPS, group, job_uid, {"minMember": group.min_count})

    def names_cause(self, message: str) -> bool:
        """Return whether the message names a cause, and not the failure of another pod."""
        return not any(text in message for text in (*_GROUP_REFUSED, *_GROUP_INCOMPLETE))

    def says_refused(self, message: str) -> bool:
        """Return whether the message says that the plugin could not place another pod of the gang.

        The plugin rejects all pods of a group when one of them finds no node. A pod that is tried again before the
        plugin has rejected all of them is rejected, too, so that no pod of the group has a message that names the
        cause (`Unreserve` and `PostFilter` in pkg/coscheduling/coscheduling.go of scheduler-plugins 0.34).
        """
        return any(text in message for text in _GROUP_REFUSED)
