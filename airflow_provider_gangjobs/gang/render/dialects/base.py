"""What a dialect is: one form in which a cluster is told that pods belong together.

A dialect is pure data to data. It links the Job's pods to a group, renders the objects that describe
the group, and can tell from the stored Job whether the link survived: a server whose feature is off
drops the field without a word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

TEMPLATE_NAME: Final = "gang"
"""Name of the only group template in a Workload; a DNS label."""

Object = dict[str, Any]


@dataclass(frozen=True)
class SchedulingGroup:
    """One gang as the scheduler sees it. Workload and PodGroup are named like the Job."""

    name: str
    namespace: str
    size: int
    min_count: int
    """How many pods are placed together or not at all."""
    priority_class: str | None = None
    """The pods' own: from 1.37 on all pods of a group must have the group's priority (KEP-5710)."""
    labels: Mapping[str, str] = field(default_factory=dict)


class Dialect(Protocol):
    """One row of the registry."""

    @property
    def name(self) -> str:
        """What `Decision.detail` and the spec's `dialect` call it."""

    @property
    def version(self) -> str:
        """The scheduling.k8s.io version whose objects it uses."""

    @property
    def required_resources(self) -> frozenset[str]:
        """Resources (plural names) that the cluster must serve in that version."""

    @property
    def link_path(self) -> str:
        """Where the link stands in a Job, for messages."""

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        """The Job with its pods linked to the group; the argument is not changed."""

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        """Whether a stored Job still has the link."""

    def workload(self, group: SchedulingGroup, job_uid: str) -> Object | None:
        """The Workload, owned by the Job; None where the Job controller makes it."""

    def pod_group(self, group: SchedulingGroup, job_uid: str, workload_uid: str) -> Object | None:
        """The PodGroup, owned by Job and Workload; None where there is none or the Job controller makes it."""
