"""YuniKorn 1.8: gang scheduling by task groups, which annotations of the pods describe.

YuniKorn has no object for a group. It reserves the places by placeholder pods of its own, which are not ranks, and
replaces them by the pods of the gang. Until all places are reserved, the pods of the gang have no condition, and the
placeholder pods hold the capacity of the places that are reserved. The first pod of the gang owns the placeholder pods,
so they are deleted with the gang. With the style `Soft`, the default of YuniKorn, a gang whose placeholders time out
runs without gang scheduling; so the provider sets the style `Hard`, in which the pods fail. In both styles YuniKorn
places the pods one by one if a placeholder pod cannot be created.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.identity import digest_of
from airflow_provider_gangjobs.gang.labels import ANNOTATION_CLAIM
from airflow_provider_gangjobs.gang.schedulers.base import (
    TEMPLATE_NAME,
    SchedulingGroup,
    SeparateScheduler,
    pod_metadata,
    with_pod_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.kube.views import Object, PodGroupView

LABEL_APPLICATION: Final = "applicationId"
APPLICATION_DIGEST_LENGTH: Final = 10
PREFIX: Final = "yunikorn.apache.org"
ANNOTATION_GROUP: Final = f"{PREFIX}/task-group-name"
ANNOTATION_GROUPS: Final = f"{PREFIX}/task-groups"
ANNOTATION_PARAMETERS: Final = f"{PREFIX}/schedulingPolicyParameters"
PLACEHOLDER_TIMEOUT_S: Final = 7 * 24 * 3600
"""How long YuniKorn keeps the places of a gang that is not complete. The deadlines of the task end the gang earlier."""
_POD_FIELDS: Final = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints")
"""Fields of the pods that decide about their nodes. The placeholders have the same fields."""


class YuniKorn(SeparateScheduler, frozen=True):
    """YuniKorn places the pods of a task group.

    It has no object for a gang, and no message about a pod refers to other pods. Without YuniKorn, the pods wait and
    none is placed. No request shows whether the cluster lets YuniKorn create its placeholder pods.
    """

    nonce: str = ""
    """Random text of one submission. It tells the application of a new Job from that of an earlier Job with the same
    name and claim. The same text gives the same manifest."""
    name: str = "yunikorn"
    scheduler_names: tuple[str, ...] = ("yunikorn",)
    link_path: str = f"spec.template.metadata.annotations[{ANNOTATION_GROUP}]"
    link_keys: frozenset[str] = frozenset({ANNOTATION_GROUP})

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Return a copy of the Job whose pods are one application of YuniKorn with one task group."""
        task_group = _task_group(job["spec"]["template"]["spec"], group)
        annotations = {
            ANNOTATION_GROUP: TEMPLATE_NAME,
            ANNOTATION_GROUPS: json.dumps([task_group], sort_keys=True),
            ANNOTATION_PARAMETERS: (f"gangSchedulingStyle=Hard placeholderTimeoutInSeconds={PLACEHOLDER_TIMEOUT_S}"),
        }
        return with_pod_metadata(
            job,
            scheduler_name=self.scheduler_names[0],
            labels={LABEL_APPLICATION: _application_id(job, group, self.nonce)},
            annotations=annotations,
        )

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Return whether the pods of a stored Job name the task group and the application."""
        application = pod_metadata(job, "labels", LABEL_APPLICATION) or ""
        return pod_metadata(job, "annotations", ANNOTATION_GROUP) == TEMPLATE_NAME and application.startswith(
            group.name
        )

    def explain_silence(self, group: PodGroupView | None) -> str:
        """Return where the cause is shown: not in the pods of the gang."""
        return (
            "Waits until YuniKorn has reserved a place for each pod; "
            "YuniKorn's placeholder pods in the namespace show the cause"
        )


def _application_id(job: Mapping[str, Any], group: SchedulingGroup, nonce: str) -> str:
    """Return the id of the application, as a label value of at most 63 characters.

    YuniKorn places a task group as a whole only when it sees its application for the first time. Ids are unique in the
    whole cluster, and YuniKorn remembers an id for half a minute after the pods are gone. So a Job of the same name
    needs another id if it is in another namespace, belongs to another try of the task, or is created again.
    """
    claim = job.get("metadata", {}).get("annotations", {}).get(ANNOTATION_CLAIM, "")
    return f"{group.name}-{digest_of(group.namespace, claim, nonce)[:APPLICATION_DIGEST_LENGTH]}"


def _task_group(pod: Mapping[str, Any], group: SchedulingGroup) -> Object:
    """Return the task group: how many pods of which size are placed together, and on which nodes."""
    from airflow_provider_gangjobs.kube import quantity

    placed_by = {name: pod[name] for name in _POD_FIELDS if pod.get(name)}
    amounts = quantity.format_amounts(quantity.requests_of(pod))
    return {"name": TEMPLATE_NAME, "minMember": group.min_count, "minResource": amounts, **placed_by}
