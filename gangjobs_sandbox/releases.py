"""The differences between Kubernetes releases, as one table.

The Workload API changed in each of 1.35, 1.36 and 1.37 (KEP-4671, KEP-5547). `none` is 1.37 with its defaults, in which
every gate of the Workload API is off: the schema contains the fields, and the server drops them silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RELEASES", "GroupRef", "PodLink", "Release", "min_count_of", "pod_group_of"]


class PodLink(StrEnum):
    """The field of a pod's spec that names its group."""

    WORKLOAD_REF = "workloadRef"
    SCHEDULING_GROUP = "schedulingGroup"


@dataclass(frozen=True)
class Release:
    """One release as a client sees it."""

    name: str
    git_version: str
    schema: str
    """The minor release whose field tables apply."""
    scheduling_versions: tuple[str, ...] = ()
    """The served versions of the Workload API. The first version is the preferred one."""
    pod_link: PodLink | None = None
    job_scheduling: bool = False
    """Whether `Job.spec.scheduling` is kept, and acted upon by the Job controller."""
    has_pod_groups: bool = False
    pod_group_condition: str | None = None
    """Type of the condition that tells whether a PodGroup has been placed."""
    infers_gangs: bool = False
    """Whether the Job controller makes a gang of any Indexed Job whose completions equal its parallelism (1.36)."""
    min_count_mutable: bool = False
    schedules_groups: bool = True
    """Whether the scheduler treats a gang as a unit (1.37): it stops when too few pods of the gang can fit, and evicts
    other pods for the whole gang."""
    suspension_clears_start: bool = True
    """Whether suspending a Job removes its startTime (since 1.36), so that the scheduling of its pods may be
    changed."""
    disabled_group_fields: tuple[str, ...] = ()
    """Fields of groups whose gates are off: known to the schema, and dropped."""

    @property
    def scheduling_version(self) -> str | None:
        """The preferred version of the Workload API, or None if the release does not serve this API."""
        return self.scheduling_versions[0] if self.scheduling_versions else None

    @property
    def minor(self) -> str:
        return self.git_version.removeprefix("v").split(".")[1]


RELEASES: dict[str, Release] = {
    "1.35": Release(
        "1.35",
        "v1.35.4",
        schema="1.35",
        scheduling_versions=("v1alpha1",),
        pod_link=PodLink.WORKLOAD_REF,
        schedules_groups=False,
        suspension_clears_start=False,
    ),
    "1.36": Release(
        "1.36",
        "v1.36.3",
        schema="1.36",
        scheduling_versions=("v1alpha2",),
        pod_link=PodLink.SCHEDULING_GROUP,
        has_pod_groups=True,
        pod_group_condition="PodGroupScheduled",
        infers_gangs=True,
        schedules_groups=False,
        # The gate WorkloadAwarePreemption is taken to be on: priorities and disruption modes of groups are kept.
        disabled_group_fields=("schedulingConstraints", "resourceClaims"),
    ),
    "1.37": Release(
        "1.37",
        "v1.37.1",
        schema="1.37",
        scheduling_versions=("v1beta1", "v1alpha3"),
        pod_link=PodLink.SCHEDULING_GROUP,
        job_scheduling=True,
        has_pod_groups=True,
        pod_group_condition="PodGroupInitiallyScheduled",
        min_count_mutable=True,
        disabled_group_fields=("schedulingConstraints", "resourceClaims", "preemptionPolicy"),
    ),
    "none": Release("none", "v1.37.1", schema="1.37"),
}


class GroupRef(NamedTuple):
    """The group that a pod belongs to, within the pod's namespace."""

    name: str
    """Name of the PodGroup; in 1.35, of the group within the Workload."""
    workload: str | None = None
    """1.35 only: the Workload that holds the group."""
    replica: str | None = None
    """1.35 only: the key of one copy of the group."""


def pod_group_of(pod: Mapping[str, Any]) -> GroupRef | None:
    """Return the group that a link field of the pod's spec names, or None if the spec has no link."""
    spec = pod.get("spec") or {}
    if group := spec.get(PodLink.SCHEDULING_GROUP):
        return GroupRef(group["podGroupName"])
    if reference := spec.get(PodLink.WORKLOAD_REF):
        return GroupRef(reference["podGroup"], reference["name"], reference.get("podGroupReplicaKey"))
    return None


def min_count_of(group: Mapping[str, Any]) -> int | None:
    """Return how many pods must start together, or None if the group is not a gang.

    Takes a PodGroup object, a template of a Workload, or a 1.35 group inside a Workload.
    """
    spec = group.get("spec") or group
    policy = spec.get("schedulingPolicy") or spec.get("policy") or {}
    gang = policy.get("gang")
    return None if gang is None else int(gang.get("minCount") or 1)
