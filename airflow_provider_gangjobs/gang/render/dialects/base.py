"""Dialect: the protocol of one version of the Workload API.

The methods of a dialect are pure. A dialect links the pods of a Job to a scheduling group, and renders the objects that
describe the group. It also checks whether a stored Job still has the link, because an API server whose feature gate is
off drops the field silently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

TEMPLATE_NAME: Final = "gang"
"""Name of the only group template in a Workload. It is a DNS label."""

Object = dict[str, Any]


@dataclass(frozen=True)
class SchedulingGroup:
    """The pods that the scheduler places together. Workload and PodGroup have the name of the Job."""

    name: str
    namespace: str
    size: int
    min_count: int
    """Number of pods that the scheduler places together or not at all."""
    priority_class: str | None = None
    """Priority class of the pods. Since 1.37 all pods of a group must have the priority of the group (KEP-5710)."""
    labels: Mapping[str, str] = field(default_factory=dict)


class Dialect(Protocol):
    """One version of the Workload API."""

    @property
    def name(self) -> str:
        """Name in `PlacementDecision.detail` and in the spec's `dialect`."""

    @property
    def version(self) -> str:
        """Version of scheduling.k8s.io whose objects the dialect uses."""

    @property
    def required_resources(self) -> frozenset[str]:
        """Plural names of the resources that the cluster must serve in this version."""

    @property
    def link_path(self) -> str:
        """Path of the link in a Job, for messages."""

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """Return a copy of the Job whose pods are linked to the group."""

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Return whether a stored Job has the link."""

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        """Render the Workload, owned by the Job; `None` if the Job controller creates it."""

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """Render the PodGroup, owned by the Job and the Workload; `None` if the provider does not create one."""
