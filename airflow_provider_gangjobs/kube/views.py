"""Views: the few fields of Kubernetes objects that tracking reads, decoded straight from the wire.

One decoded pod costs a few microseconds and less than a kilobyte, a dict costs ten times both.
What is not named here is skipped, labels and annotations too, so newer servers and talkative add-ons do no
harm. Views are read-only and hold no cycles, hence `gc=False`: thousands of them do not lengthen a full
garbage collection. Views are read from the API; what is written to it stays a dict.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - msgspec reads the annotations at run time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr as _set

from airflow_provider_gangjobs.kube import metadata_keys as keys

if TYPE_CHECKING:
    from collections.abc import Callable

View = TypeVar("View", bound=msgspec.Struct)


class _View(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    pass


class OwnerReference(_View, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Labels(_View, frozen=True):
    """The labels that are read, of whatever kind of object; `None` for those that it does not have."""

    gang: str | None = msgspec.field(name=keys.LABEL_GANG, default=None)
    attempt: str | None = msgspec.field(name=keys.LABEL_ATTEMPT, default=None)
    controller_uid: str | None = msgspec.field(name=keys.LABEL_CONTROLLER_UID, default=None)
    controller_uid_before_1_27: str | None = msgspec.field(name=keys.LABEL_CONTROLLER_UID_BEFORE_1_27, default=None)
    kueue_queue: str | None = msgspec.field(name=keys.LABEL_KUEUE_QUEUE, default=None)


class Annotations(_View, frozen=True):
    """The annotations that are read. Networks and meshes add long ones to every pod, which are not kept."""

    completion_index: str | None = msgspec.field(name=keys.ANNOTATION_COMPLETION_INDEX, default=None)
    default_container: str | None = msgspec.field(name=keys.ANNOTATION_DEFAULT_CONTAINER, default=None)


class Meta(_View, frozen=True):
    """`metadata`. Times are the server's."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    """Of the spec, counted from 1; 0 for objects that have none."""
    labels: Labels = Labels()
    annotations: Annotations = Annotations()
    finalizers: tuple[str, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    """When the grace period of the deletion ends, not when the deletion was asked for."""
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[OwnerReference, ...] = ()


class JobLabels(Labels, frozen=True):
    """The labels of a Job that are read."""

    task: str | None = msgspec.field(name=keys.LABEL_TASK, default=None)
    dropped: str | None = msgspec.field(name=keys.LABEL_DROPPED, default=None)


class JobAnnotations(Annotations, frozen=True):
    """The annotations of a Job that are read. Pods do not carry them, and their views are kept small."""

    trigger_id: str | None = msgspec.field(name=keys.ANNOTATION_TRIGGER_ID, default=None)
    spec_hash: str | None = msgspec.field(name=keys.ANNOTATION_SPEC_HASH, default=None)
    spec_fields: str | None = msgspec.field(name=keys.ANNOTATION_SPEC_FIELDS, default=None)
    claim: str | None = msgspec.field(name=keys.ANNOTATION_CLAIM, default=None)
    delivered: str | None = msgspec.field(name=keys.ANNOTATION_DELIVERED, default=None)
    disruptions: str | None = msgspec.field(name=keys.ANNOTATION_DISRUPTIONS, default=None)
    halted: str | None = msgspec.field(name=keys.ANNOTATION_HALTED, default=None)
    task: str | None = msgspec.field(name=keys.ANNOTATION_TASK, default=None)
    gang: str | None = msgspec.field(name=keys.ANNOTATION_GANG, default=None)


class JobMeta(Meta, frozen=True):
    """`metadata` of a Job."""

    labels: JobLabels = JobLabels()
    annotations: JobAnnotations = JobAnnotations()


class Condition(_View, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class JobSpec(_View, frozen=True):
    suspend: bool = False
    parallelism: int | None = None
    completions: int | None = None


class JobStatus(_View, frozen=True):
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0
    completed_indexes: str = ""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class JobView(_View, frozen=True):
    """A Job as the server has it. What it means is said by `gang.state.job.Job`."""

    metadata: JobMeta = JobMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class ContainerSpec(_View, frozen=True):
    name: str = ""
    image: str = ""


class PodSpec(_View, frozen=True):
    node_name: str = ""
    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] = ()


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


class PodStatus(_View, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    """Those of `POD_CONDITIONS`; the others, of which each pod has four or more, are dropped."""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()

    def __post_init__(self) -> None:
        if self.conditions:
            told = POD_CONDITIONS.get
            _set(self, "conditions", tuple([item for item in self.conditions if told(item.type) == item.status]))


class PodView(_View, frozen=True):
    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def share(self, one: Callable[[Any], Any], before: PodView | None = None, other: PodView | None = None) -> None:
        """Let what is equal in many pods be one object, of which `one` tells which.

        For whoever has decoded this, before anyone else sees it. A live pod's status is that of all pods that have
        come as far in the same second; how a pod ended is its own.

        :param before: An earlier view of the same pod. What has not changed is taken from it: to compare costs less
            than to ask `one`, and dictionaries keep the first uid that they got, so later ones would be there besides.
        :param other: The pod that was shared last, of which the same is true where there is no earlier view, and of its
            status: what happens to one happens to many in the same second.
        """
        known = before or other or _NO_POD
        meta, was = self.metadata, known.metadata
        if before is not None:
            _set(meta, "uid", was.uid)
            _set(meta, "name", was.name)
            if meta.annotations == was.annotations:
                _set(meta, "annotations", was.annotations)
        _set(meta, "namespace", was.namespace if meta.namespace == was.namespace else one(meta.namespace))
        created = meta.creation_timestamp
        _set(meta, "creation_timestamp", was.creation_timestamp if created == was.creation_timestamp else one(created))
        _set(meta, "labels", was.labels if meta.labels == was.labels else one(meta.labels))
        _set(meta, "finalizers", was.finalizers if meta.finalizers == was.finalizers else one(meta.finalizers))
        owners = meta.owner_references
        _set(meta, "owner_references", was.owner_references if owners == was.owner_references else one(owners))
        _set(self, "spec", known.spec if self.spec == known.spec else one(self.spec))
        if self.status == known.status:
            _set(self, "status", known.status)
        elif other is not None and self.status == other.status:
            _set(self, "status", other.status)
        elif self.status.phase in PHASES_TERMINAL:
            self._share_end(one, known.status)
        else:
            _set(self, "status", one(self.status))

    def _share_end(self, one: Callable[[Any], Any], known: PodStatus) -> None:
        status = self.status
        _set(status, "phase", one(status.phase))
        _set(
            status, "start_time", known.start_time if status.start_time == known.start_time else one(status.start_time)
        )
        for container in status.container_statuses:
            _set(container, "name", one(container.name))
            _set(container, "last_state", _NO_STATE if container.last_state == _NO_STATE else one(container.last_state))
            ended = container.state.terminated
            if ended is not None:
                _set(ended, "reason", one(ended.reason))
                _set(ended, "started_at", one(ended.started_at))
                _set(ended, "finished_at", one(ended.finished_at))


_NO_STATE: Final = ContainerState()
_NO_POD: Final = PodView()
PHASES_TERMINAL: Final = frozenset({"Succeeded", "Failed"})
POD_CONDITIONS: Final = {"PodScheduled": "False", "DisruptionTarget": "True"}
"""What is read of a pod's conditions, with the value at which they tell something."""


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
