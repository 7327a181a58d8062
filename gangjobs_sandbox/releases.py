"""The differences between Kubernetes releases, as one table.

The Workload API differs in 1.36 and 1.37 (KEP-4671, KEP-5547). `none` is 1.37 with its defaults, in which
every gate of the Workload API is off: the schema contains the fields, and the server drops them silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["POD_LINK", "RELEASES", "Release", "min_count_of", "pod_group_of"]


POD_LINK: Final = "schedulingGroup"
"""The field of a pod's spec that names its group."""


@dataclass(frozen=True)
class Release:
    """One release as a client sees it."""

    name: str
    git_version: str
    schema: str
    """The minor release whose field tables apply."""
    scheduling_versions: tuple[str, ...] = ()
    """The served versions of the Workload API. The first version is the preferred one."""
    job_scheduling: bool = False
    """Whether `Job.spec.scheduling` is kept, and acted upon by the Job controller."""
    has_pod_groups: bool = False
    """Whether pods keep their link to a group, and PodGroups are served."""
    pod_group_condition: str | None = None
    """Type of the condition that tells whether a PodGroup has been placed."""
    infers_gangs: bool = False
    """Whether the Job controller makes a gang of any Indexed Job whose completions equal its parallelism (1.36)."""
    min_count_mutable: bool = False
    schedules_groups: bool = True
    """Whether the scheduler treats a gang as a unit (1.37): it stops when too few pods of the gang can fit, and evicts
    other pods for the whole gang."""
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
    "1.36": Release(
        "1.36",
        "v1.36.3",
        schema="1.36",
        scheduling_versions=("v1alpha2",),
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
        job_scheduling=True,
        has_pod_groups=True,
        pod_group_condition="PodGroupInitiallyScheduled",
        min_count_mutable=True,
        disabled_group_fields=("schedulingConstraints", "resourceClaims", "preemptionPolicy"),
    ),
    "none": Release("none", "v1.37.1", schema="1.37"),
}


def pod_group_of(pod: Mapping[str, Any]) -> str | None:
    """Return the name of the PodGroup to which the pod's spec links, or None if the spec has no link."""
    group = (pod.get("spec") or {}).get(POD_LINK)
    return str(group["podGroupName"]) if group else None


def min_count_of(group: Mapping[str, Any]) -> int | None:
    """Return how many pods must start together, or None if the group is not a gang.

    Takes a PodGroup object, or a template of a Workload.
    """
    spec = group.get("spec") or group
    gang = (spec.get("schedulingPolicy") or {}).get("gang")
    return None if gang is None else int(gang.get("minCount") or 1)
