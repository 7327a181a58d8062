"""Views: the fields of Kubernetes objects that tracking reads, decoded directly from JSON.

A view takes a tenth of the time and memory of a dict. All other fields, labels and annotations are skipped. Views are
read-only and contain no cycles, hence `gc=False`: they do not lengthen a garbage collection. Objects that are written
to the API stay dicts, of the type `Object`.

An interner stores equal values once: 100,000 pods of one gang differ in name, uid, version, and little else.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - msgspec reads the annotations at run time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr as _set

from airflow_provider_gangjobs.kube import well_known as keys

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


Object = dict[str, Any]
"""One Kubernetes object as decoded JSON: the name of each field and its value."""


V = TypeVar("V")

JSON_ERRORS: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""The errors of msgspec for a text that is no JSON of the expected type. The last two are of a text that is not UTF-8,
or is nested too deep."""
VALUES_MAX: Final = 8192
"""Limits the distinct values: node names, timestamps, and messages of schedulers and kubelets. A few megabytes."""


class ServedGroup(msgspec.Struct, frozen=True):
    """What a cluster serves of one API group."""

    versions: Mapping[str, Mapping[str, Collection[str]]] = {}
    """Verbs by plural of the resources, by version, the server's preferred version first. Empty if the cluster does not
    serve the group."""
    unknown: str = ""
    """Why the group, or a version of it, is unknown; empty if the cluster is known to serve nothing else."""


def make_interner(values_max: int = VALUES_MAX) -> Callable[[Any], Any]:
    """Return a function that maps each hashable value to the first equal value that it received.

    It forgets the least recently used of more than `values_max` values.
    """
    return lru_cache(maxsize=values_max)(_identity)


def interner_of(kind: type[V]) -> Callable[[V, V | None], None] | None:
    """Return a function that interns the values of a view, given the previous view of the same object, if views of this
    kind have a method `intern`."""
    intern = getattr(kind, "intern", None)
    if intern is None:
        return None
    intern_value = make_interner()
    latest: V | None = None

    def intern_view(view: V, previous: V | None) -> None:
        nonlocal latest
        intern(view, intern_value, previous, latest)
        latest = view

    return intern_view


def _identity(value: Any) -> Any:
    return value


View = TypeVar("View", bound=msgspec.Struct)


class _View(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    pass


class _OwnerReference(_View, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Labels(_View, frozen=True):
    """The labels that are read from objects of any kind. A missing label is `None`."""

    gang: str | None = msgspec.field(name=keys.LABEL_GANG, default=None)
    task: str | None = msgspec.field(name=keys.LABEL_TASK, default=None)
    dropped: str | None = msgspec.field(name=keys.LABEL_DROPPED, default=None)
    attempt: str | None = msgspec.field(name=keys.LABEL_ATTEMPT, default=None)
    installation: str | None = msgspec.field(name=keys.LABEL_INSTALLATION, default=None)
    gang_uid: str | None = msgspec.field(name=keys.LABEL_JOB_UID, default=None)
    gang_role: str | None = msgspec.field(name=keys.LABEL_GANG_ROLE, default=None)
    rank_offset: str | None = msgspec.field(name=keys.LABEL_RANK_OFFSET, default=None)
    controller_uid: str | None = msgspec.field(name=keys.LABEL_CONTROLLER_UID, default=None)
    kueue_queue: str | None = msgspec.field(name=keys.LABEL_KUEUE_QUEUE, default=None)
    kueue_job_uid: str | None = msgspec.field(name=keys.LABEL_KUEUE_JOB_UID, default=None)


class Annotations(_View, frozen=True):
    """The annotations that are read. Long annotations that network plugins and meshes add to every pod are skipped."""

    completion_index: str | None = msgspec.field(name=keys.COMPLETION_INDEX, default=None)
    default_container: str | None = msgspec.field(name=keys.DEFAULT_CONTAINER, default=None)


class Meta(_View, frozen=True):
    """`metadata`. Timestamps are from the server's clock."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    """The generation of the spec, starting with 1, or 0 for objects without one."""
    labels: Labels = Labels()
    annotations: Annotations = Annotations()
    finalizers: tuple[str, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    """When the grace period of the deletion ends, not when the deletion was requested."""
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[_OwnerReference, ...] = ()

    def is_owned_by(self, uid: str) -> bool:
        return any(owner.uid == uid for owner in self.owner_references)


class _ApiResource(_View, frozen=True):
    resource: str
    verbs: tuple[str, ...] = ()


class _ApiVersion(_View, frozen=True):
    version: str
    freshness: str = ""
    """`Stale` if the API server could not refresh what it says of the version, or has never known it."""
    resources: tuple[_ApiResource, ...] = ()


class ApiGroupView(_View, frozen=True):
    """One group in a response of aggregated discovery (apidiscovery.k8s.io/v2)."""

    metadata: Meta
    versions: tuple[_ApiVersion, ...] = ()
    """The server's preferred version first."""

    def served(self) -> ServedGroup:
        stale = [one.version for one in self.versions if one.freshness == "Stale"]
        return ServedGroup(
            {
                one.version: {resource.resource: resource.verbs for resource in one.resources}
                for one in self.versions
                if one.version not in stale
            },
            unknown=f"the API server could not refresh {', '.join(stale)} of {self.metadata.name}" if stale else "",
        )


class _JobAnnotations(Annotations, frozen=True):
    """The annotations of a Job that are read. Pods do not carry them, and their views are kept small."""

    record: str | None = msgspec.field(name=keys.ANNOTATION_RECORD, default=None)
    claim: str | None = msgspec.field(name=keys.ANNOTATION_CLAIM, default=None)
    submitted: str | None = msgspec.field(name=keys.ANNOTATION_SUBMITTED, default=None)
    assembly_baseline: str | None = msgspec.field(name=keys.ANNOTATION_ASSEMBLY_BASELINE, default=None)
    progress: str | None = msgspec.field(name=keys.ANNOTATION_PROGRESS, default=None)
    secrets: str | None = msgspec.field(name=keys.ANNOTATION_SECRETS, default=None)
    delivered: str | None = msgspec.field(name=keys.ANNOTATION_DELIVERED, default=None)
    deleted_by: str | None = msgspec.field(name=keys.ANNOTATION_DELETED_BY, default=None)
    stopped: str | None = msgspec.field(name=keys.ANNOTATION_STOPPED, default=None)


class _JobMeta(Meta, frozen=True):
    annotations: _JobAnnotations = _JobAnnotations()


class Condition(_View, frozen=True):
    """An item of `status.conditions` of any object. `status` is `True`, `False` or `Unknown`."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class JobSpec(_View, frozen=True):
    """The fields of the `spec` of a Job that are read. Deadline and time to live are in seconds."""

    suspend: bool = False
    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None


class JobStatus(_View, frozen=True):
    """`status` of a Job. `active` counts pods that wait or run; `ready` counts those of them that are ready."""

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
    """A Job as the server has it. `gang.state.stored_gang.StoredGang` interprets the fields."""

    metadata: _JobMeta = _JobMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class _RestartRule(_View, frozen=True):
    action: str = ""


class _ContainerSpec(_View, frozen=True):
    """A container of `spec.containers` or `spec.initContainers`."""

    name: str = ""
    image: str = ""
    restart_policy: str = ""
    """The policy of this container; empty if the policy of the pod applies."""
    restart_policy_rules: tuple[_RestartRule, ...] = ()


class _SchedulingGate(_View, frozen=True):
    """An item of `spec.schedulingGates`. The scheduler does not try to place a pod that has one."""

    name: str = ""


class PodSpec(_View, frozen=True):
    """The fields of the `spec` of a pod that are read. Without a node, `node_name` is empty."""

    node_name: str = ""
    restart_policy: str = ""
    scheduling_gates: tuple[_SchedulingGate, ...] = ()
    containers: tuple[_ContainerSpec, ...] = ()
    init_containers: tuple[_ContainerSpec, ...] = ()


class Waiting(_View, frozen=True):
    reason: str = ""
    message: str = ""


class Running(_View, frozen=True):
    """Since when a container runs."""

    started_at: datetime | None = None


class Terminated(_View, frozen=True):
    """How a container ended. `message` is its termination message, at most 4096 bytes."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(_View, frozen=True):
    """The state of a container, of which one field is set; none of them for a container that was not seen."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_View, frozen=True):
    """`state` is the present state, and `last_state` the one before the last restart."""

    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0


class _PodStatus(_View, frozen=True):
    """`status` of a pod. `reason` is set by whoever ended the pod, such as `Evicted`."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    """Those in `POD_CONDITIONS`, and in `PHASE_CONDITIONS` for the phase."""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()

    def __post_init__(self) -> None:
        if self.conditions:
            kept_status = PHASE_CONDITIONS.get(self.phase, POD_CONDITIONS).get
            kept = [item for item in self.conditions if kept_status(item.type) == item.status]
            _set(self, "conditions", tuple(kept))


class PodView(_View, frozen=True):
    """A pod as the server has it. `gang.state.pods` interprets the fields."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: _PodStatus = _PodStatus()

    def intern(
        self, intern_value: Callable[[Any], Any], previous: PodView | None = None, latest: PodView | None = None
    ) -> None:
        """Replace values of this view by equal values of other views, so that each is stored once, before the view is
        shared.

        A running pod has the same status as all pods that reached the same state in the same second.

        :param intern_value: Returns the stored value that equals its argument.
        :param previous: An earlier view of the same pod. Comparing with it costs less than `intern_value`. Dictionaries
            keep its uid as their key, so it replaces the new one.
        :param latest: The view that was interned last, which replaces a missing `previous`. Many pods change in the
            same way in the same second.
        """
        known = previous or latest or _NO_POD
        if previous is not None:
            _set(self.metadata, "uid", previous.metadata.uid)
            _set(self.metadata, "name", previous.metadata.name)
            if self.metadata.annotations == previous.metadata.annotations:
                _set(self.metadata, "annotations", previous.metadata.annotations)
        names = ("namespace", "creation_timestamp", "labels", "finalizers", "owner_references")
        _share(self.metadata, known.metadata, names, intern_value)
        _share(self, known, ("spec",), intern_value)
        if latest is not None and self.status == latest.status != known.status:
            _set(self, "status", latest.status)
        elif self.status == known.status or self.status.phase not in PHASES_TERMINAL:
            _share(self, known, ("status",), intern_value)
        else:
            self._intern_terminated(intern_value, known.status)

    def _intern_terminated(self, intern_value: Callable[[Any], Any], known: _PodStatus) -> None:
        _share(self.status, known, ("phase", "start_time"), intern_value)
        for container in self.status.container_statuses:
            _share(container, _NO_CONTAINER, ("name", "last_state"), intern_value)
            terminated = container.state.terminated
            if terminated is not None:
                _share(terminated, _NO_END, ("reason", "started_at", "finished_at"), intern_value)


def _share(own: _View, known: _View, names: tuple[str, ...], intern_value: Callable[[Any], Any]) -> None:
    """Replace the values of these fields by equal values: those of the known view, or interned ones."""
    for name in names:
        value, known_value = getattr(own, name), getattr(known, name)
        _set(own, name, known_value if value == known_value else intern_value(value))


_NO_CONTAINER: Final = ContainerStatus()
_NO_END: Final = Terminated()
_NO_POD: Final = PodView()
PHASES_TERMINAL: Final = frozenset({"Succeeded", "Failed"})
POD_CONDITIONS: Final = {"PodScheduled": "False", "DisruptionTarget": "True"}
"""The pod conditions that are read, with the status at which a condition is relevant."""
PHASE_CONDITIONS: Final = {
    "Pending": {**POD_CONDITIONS, "PodReadyToStartContainers": "False"},
    "Failed": {**POD_CONDITIONS, "Ready": "False"},
}
"""The same for pods of these phases. The condition `Ready` has the time at which the kubelet saw the end."""


class _GangSchedulingPolicy(_View, frozen=True):
    """The gang policy of a PodGroup: how many pods are placed together."""

    min_count: int = 1


class _SchedulingPolicy(_View, frozen=True):
    gang: _GangSchedulingPolicy | None = None


class _PodGroupSpec(_View, frozen=True):
    scheduling_policy: _SchedulingPolicy = _SchedulingPolicy()
    min_member: int | None = None
    """The same as `gang.min_count`, in PodGroups of Volcano and of coscheduling."""
    queue: str = ""


class _PodGroupStatus(_View, frozen=True):
    """`status` of a PodGroup. Those of the Workload API have no phase."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class PodGroupView(_View, frozen=True):
    """A PodGroup of scheduling.k8s.io, in any version, or of another gang scheduler."""

    metadata: Meta = Meta()
    spec: _PodGroupSpec = _PodGroupSpec()
    status: _PodGroupStatus = _PodGroupStatus()


class _KueueWorkloadSpec(_View, frozen=True):
    active: bool = True
    queue_name: str = ""


class _KueueEvictions(_View, frozen=True):
    """How often Kueue has stopped a Workload for one cause."""

    reason: str = ""
    underlying_cause: str = ""
    count: int = 0


class _KueueSchedulingStats(_View, frozen=True):
    evictions: tuple[_KueueEvictions, ...] = ()


class _KueueWorkloadStatus(_View, frozen=True):
    conditions: tuple[Condition, ...] = ()
    scheduling_stats: _KueueSchedulingStats = _KueueSchedulingStats()
    accumulated_past_execution_time_seconds: int = 0
    """For how long the Workload was admitted before Kueue took its quota back, in all such runs together."""
    accumulated_past_exexcution_time_seconds: int = 0
    """The same in v1beta1, which spells the name so."""

    @property
    def admitted_before_s(self) -> int:
        """For how long the Workload was admitted in all runs that have ended, in seconds."""
        return self.accumulated_past_execution_time_seconds or self.accumulated_past_exexcution_time_seconds


class KueueWorkloadView(_View, frozen=True):
    """A Workload of kueue.x-k8s.io, in any version."""

    metadata: Meta = Meta()
    spec: _KueueWorkloadSpec = _KueueWorkloadSpec()
    status: _KueueWorkloadStatus = _KueueWorkloadStatus()


class _PendingWorkload(_View, frozen=True):
    """One Workload that waits in a LocalQueue."""

    position_in_cluster_queue: int
    """The position, from 0."""
    metadata: Meta = Meta()


class PendingWorkloadsView(_View, frozen=True):
    """A PendingWorkloadsSummary of visibility.kueue.x-k8s.io: the Workloads that wait in a LocalQueue."""

    items: tuple[_PendingWorkload, ...]


class _InvolvedObject(_View, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _EventSeries(_View, frozen=True):
    """The repetitions of an Event that its source has recorded as `events.k8s.io/v1`."""

    last_observed_time: datetime | None = None


class EventView(_View, frozen=True):
    """A core/v1 Event. A repetition increases `count` and updates `last_timestamp`, or updates `series`."""

    metadata: Meta = Meta()
    involved_object: _InvolvedObject = _InvolvedObject()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: _EventSeries | None = None

    @property
    def seen(self) -> datetime | None:
        repeated = self.series.last_observed_time if self.series else None
        first = self.event_time or self.first_timestamp or self.metadata.creation_timestamp
        return repeated or self.last_timestamp or first


def view(kind: type[View], obj: dict[str, Any]) -> View:
    """Return the view of a Kubernetes object that is a dict.

    Raises:
        msgspec.ValidationError: a field of the view has an unexpected type.
    """
    return msgspec.convert(obj, kind)


def find_true_condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """Return the condition of this type if its status is `True`, and `None` otherwise."""
    return next((item for item in conditions if item.type == kind and item.status == "True"), None)


def end_condition(job: JobView) -> Condition | None:
    """Return the condition with which a Job has ended; `None` if it has not."""
    conditions = job.status.conditions
    return find_true_condition(conditions, "Complete") or find_true_condition(conditions, "Failed")


def parse_spans(text: str) -> tuple[range, ...]:
    """Return the parts of `status.completedIndexes`, such as `0-3,5,7-9`, each a range of indexes.

    Raises:
        ValueError: The text is not a compact list.
    """
    return tuple(_parse_span(part) for part in text.split(",") if part)


def parse_indexes(text: str) -> frozenset[int]:
    """Return the indexes in `status.completedIndexes`.

    Raises:
        ValueError: The text is not a compact list.
    """
    return frozenset[int]().union(*parse_spans(text))


def _parse_span(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


_DIGITS_MAX: Final = 18
"""Anybody who may change Jobs may write an annotation of any size, and Python refuses to read thousands of digits."""


def parse_number(text: str | None) -> int | None:
    """Return the whole number that a label or an annotation has, if it has one."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _DIGITS_MAX else None
