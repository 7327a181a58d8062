"""YuniKorn 1.8: gang scheduling by task groups, which annotations of the pods describe.

YuniKorn has no object for a group. It reserves the places by placeholder pods of its own, which hold the capacity and
belong to the first pod of the gang. Until all places are reserved, the pods of the gang have no condition. With the
style `Soft`, the default, a gang whose placeholders time out runs without gang scheduling, so the provider sets `Hard`,
in which the pods fail. In both styles YuniKorn places the pods one by one if a placeholder pod cannot be created.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.identity import digest_of
from airflow_provider_gangjobs.gang.schedulers.base import (
    TEMPLATE_NAME,
    SchedulingGroup,
    SeparateScheduler,
    pod_metadata,
    with_pod_metadata,
)
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM

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
    link_path: str = f"spec.template.metadata.annotations[{ANNOTATION_GROUP}]"
    scheduler_names: tuple[str, ...] = ("yunikorn",)
    link: tuple[str, str] = ("annotations", ANNOTATION_GROUP)

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
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
        application = pod_metadata(job, "labels", LABEL_APPLICATION) or ""
        return pod_metadata(job, "annotations", ANNOTATION_GROUP) == TEMPLATE_NAME and application.startswith(
            group.name
        )

    def explain_silence(self, group: PodGroupView | None) -> str:
        return (
            "Waits until YuniKorn has reserved a place for each pod; "
            "YuniKorn's placeholder pods in the namespace show the cause"
        )


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
