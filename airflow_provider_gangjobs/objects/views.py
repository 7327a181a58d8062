"""Views: the few fields of Kubernetes objects that tracking reads, decoded straight from the wire.

One decoded pod costs a few microseconds and about a kilobyte, a dict costs seven times both.
Fields that are not named here are skipped, so newer servers do no harm. Views are read-only and
hold no cycles, hence `gc=False`: thousands of them do not lengthen a full garbage collection.
Views are read from the API; what is written to it stays a dict.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - msgspec reads the annotations at run time
from typing import Any, TypeVar

import msgspec

View = TypeVar("View", bound=msgspec.Struct)


class _View(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    pass


class OwnerReference(_View, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(_View, frozen=True):
    """`metadata`. Times are the server's."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    """When the grace period of the deletion ends, not when the deletion was asked for."""
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(_View, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class UncountedPods(_View, frozen=True):
    """UIDs of ended pods that the Job controller has noted but not yet counted (KEP-2307)."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobSpec(_View, frozen=True):
    suspend: bool = False
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None


class JobStatus(_View, frozen=True):
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0
    completed_indexes: str = ""
    failed_indexes: str = ""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    uncounted_terminated_pods: UncountedPods = UncountedPods()


class JobView(_View, frozen=True):
    metadata: Meta = Meta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class ContainerSpec(_View, frozen=True):
    name: str = ""


class SchedulingGroup(_View, frozen=True):
    pod_group_name: str = ""


class PodSpec(_View, frozen=True):
    node_name: str = ""
    priority_class_name: str = ""
    containers: tuple[ContainerSpec, ...] = ()
    scheduling_group: SchedulingGroup | None = None


class Waiting(_View, frozen=True):
    reason: str = ""
    message: str = ""


class Running(_View, frozen=True):
    started_at: datetime | None = None


class Terminated(_View, frozen=True):
    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(_View, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_View, frozen=True):
    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0
    ready: bool = False


class PodStatus(_View, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class PodView(_View, frozen=True):
    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Gang(_View, frozen=True):
    min_count: int = 1


class SchedulingPolicy(_View, frozen=True):
    gang: Gang | None = None


class PodGroupSpec(_View, frozen=True):
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class PodGroupStatus(_View, frozen=True):
    conditions: tuple[Condition, ...] = ()


class PodGroupView(_View, frozen=True):
    """A PodGroup of scheduling.k8s.io, of every version that has one."""

    metadata: Meta = Meta()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class InvolvedObject(_View, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class EventView(_View, frozen=True):
    """A core/v1 Event. A repeated one counts up and moves `last_timestamp`."""

    metadata: Meta = Meta()
    involved_object: InvolvedObject = InvolvedObject()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None

    @property
    def seen(self) -> datetime | None:
        """When it happened last."""
        return self.last_timestamp or self.event_time or self.first_timestamp or self.metadata.creation_timestamp


def view(kind: type[View], obj: dict[str, Any]) -> View:
    """Read a Kubernetes object that came as a dict.

    Raises:
        msgspec.ValidationError: a field that is read has another type than Kubernetes gives it.
    """
    return msgspec.convert(obj, kind)


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """The condition of this type if it is true; a false or unknown one is as good as none."""
    return next((item for item in conditions if item.type == kind and item.status == "True"), None)
