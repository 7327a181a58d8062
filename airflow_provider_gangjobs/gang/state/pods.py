"""Pods: what one pod of a gang says, and an index of all pods of a gang with their counts. Pure.

The status of a pod is final if its phase is terminal, or if the pod is being deleted and was never bound to a node. The
tracking finalizer proves nothing, because the Job controller also removes it from running pods (KEP-2307).

A rank is a completion index; each pod of a Job without indexes is a rank. If a rank has several pods, the pod that has
progressed most decides. `succeeded` and `failed` come from the Job, and all other numbers come from the pods, because
the Job controller does not count pods that were deleted and pods that are duplicates. An update of the index costs only
as much as the pods that have changed.

A webhook may inject a container, such as the proxy of a service mesh. If it does not end, the Job controller never
counts the rank. The main container is the rank, so its end decides:

* If all main containers have succeeded, or one has failed, the follower waits for `SIDECAR_GRACE`.
* The follower records the outcomes of these ranks in the ledger. The exit codes are final, so every follower records
  the same.
* The follower marks each Job that has not ended, and sets its activeDeadlineSeconds to 0, by one patch of the version
  that was judged.
* The Job controller deletes the pods, and the Job fails. Every reader of a Job sees the end that the mark names.
* If the roles are a JobSet whose ranks have all succeeded, the main Job is marked, and the JobSet is deleted.

Containers of the pod template are part of the task, so the gang waits for them. A failure ends a gang only if the Job
controller would fail the Job, too.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.kube.views import (
    PHASES_TERMINAL,
    JobView,
    end_condition,
    parse_indexes,
    parse_number,
    parse_spans,
)
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST, FINALIZER_JOB_TRACKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import ContainerState, ContainerStatus, Meta, PodView, Terminated, Waiting

IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
REASON_EVICTED: Final = "Evicted"
"""Reason of a pod that the kubelet evicted or refused."""
# Reason of a container whose end the kubelet did not observe. The kubelet writes exit code 137, a message of its own,
# and no times for such a container. This is common for evicted pods: the kubelet removes a container of an evicted pod
# as soon as the container has ended, and sometimes before it has read the exit code (`ShouldPodContentBeRemoved` in
# pkg/kubelet/pod_workers.go).
_REASON_CONTAINER_LOST: Final = "ContainerStatusUnknown"
_REASON_GATED: Final = "SchedulingGated"
"""Reason of the condition PodScheduled of a pod with scheduling gates, until the scheduler tries to place it."""
_TROUBLE_REASONS: Final = IMAGE_REASONS | CONFIG_REASONS

# A container that never started has the zero time of its runtime as its start.
_ZERO_TIMES_END: Final = datetime(1971, 1, 1, tzinfo=UTC)


def rank_of(pod: PodView) -> int | None:
    """Return the rank of the pod in its gang: the completion index, and the number of ranks of the roles before."""
    index = role_rank_of(pod)
    offset = pod.metadata.labels.rank_offset
    return index if index is None or offset is None else index + (parse_number(offset) or 0)


def role_rank_of(pod: PodView) -> int | None:
    """Return the completion index of the pod, which is its rank in its role."""
    return parse_number(pod.metadata.annotations.completion_index)


def rank_order(pod: PodView) -> tuple[int, str]:
    """Return the key by which pods are sorted by rank."""
    rank = rank_of(pod)
    return -1 if rank is None else rank, pod.metadata.name


def name_rank(rank: int | None, role: str = "", role_rank: int | None = None, *, pod: str) -> str:
    """Return how messages name a rank: `rank 3`, or `rank 2 of role worker`, or the pod if it has no rank."""
    if rank is None:
        return f"pod {pod}"
    return f"rank {role_rank} of role {role}" if role else f"rank {rank}"


def attempt_of(pod: PodView) -> int | None:
    """Return the number of the attempt to which the pod belongs; `None` if the label is missing."""
    return parse_number(pod.metadata.labels.attempt)


def gang_ref_of(pod: PodView) -> GangRef | None:
    """Return the reference to the pod's Job, which may be gone."""
    name, uid = pod.metadata.labels.gang, owner_uid(pod)
    return GangRef(pod.metadata.namespace, name, uid) if name and uid else None


def owner_uid(pod: PodView) -> str | None:
    """Return the UID of the Job of the pod's gang, which in a gang with roles is the Job of the first role.

    If the pods of a deleted Job are orphaned, the label stays and the owner reference is removed.
    """
    labels = pod.metadata.labels
    by_label = labels.gang_uid or labels.controller_uid
    if by_label:
        return by_label
    return next(
        (owner.uid for owner in pod.metadata.owner_references if owner.controller and owner.kind == "Job"), None
    )


def pods_of(ref: GangRef, pods: Iterable[PodView]) -> list[PodView]:
    return [pod for pod in pods if is_of(ref, pod)]


def is_of(ref: GangRef, pod: PodView) -> bool:
    """Return whether the pod belongs to the Job with this UID. A pod without an owner was selected by the gang
    label."""
    owner = owner_uid(pod)
    return owner == ref.uid or owner is None


def is_terminal(pod: PodView) -> bool:
    """Return whether all containers have ended and the status is final."""
    return pod.status.phase in PHASES_TERMINAL


def has_ended(pod: PodView) -> bool:
    """Return whether the status is final: the pod is terminal, or was deleted before it was bound to a node."""
    return is_terminal(pod) or (pod.metadata.deletion_timestamp is not None and not pod.spec.node_name)


def is_held(pod: PodView) -> bool:
    return FINALIZER_HARVEST in pod.metadata.finalizers


def is_tracked(pod: PodView) -> bool:
    """Return whether the Job controller has yet to count the pod, or to process the deletion of its Job (KEP-2307)."""
    return FINALIZER_JOB_TRACKING in pod.metadata.finalizers


def deletion_requested_at(meta: Meta) -> datetime | None:
    """Return the time at which deletion was requested: `deletionTimestamp` minus the grace period.

    The kubelet deletes a held pod again with a grace period of 0 when its containers have ended.
    """
    if meta.deletion_timestamp is None:
        return None
    return meta.deletion_timestamp - timedelta(seconds=meta.deletion_grace_period_seconds or 0)


def main_container(pod: PodView) -> ContainerStatus | None:
    """Return the status of the main container: the annotated one, or else the first one in the spec."""
    statuses = pod.status.container_statuses
    name = _main_name(pod)
    return next((status for status in statuses if status.name == name), statuses[0] if statuses else None)


def main_end(pod: PodView) -> Terminated | None:
    """Return how the main container ended for good."""
    status = main_container(pod)
    return end_for_good(pod, status) if status is not None and status.name == _main_name(pod) else None


def end_for_good(pod: PodView, status: ContainerStatus) -> Terminated | None:
    """Return how a container of the pod ended, if the kubelet does not restart it."""
    ended = status.state.terminated
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    if ended is None or any(one.restart_policy_rules for one in containers):
        return None  # a rule may restart all containers of the pod
    own = next((one.restart_policy for one in containers if one.name == status.name), "")
    policy = own or pod.spec.restart_policy
    return ended if policy == "Never" or (policy == "OnFailure" and not ended.exit_code) else None


def keeps_running(pod: PodView) -> tuple[str, ...]:
    """Return the names of the containers that keep a pod running whose main container has ended.

    Sidecars that are init containers are left out, because the kubelet ends them.
    """
    statuses = pod.status.container_statuses
    if len(statuses) <= 1 or pod.status.phase != "Running" or pod.metadata.deletion_timestamp is not None:
        return ()
    if main_end(pod) is None:
        return ()
    return tuple(status.name for status in statuses if status.state.terminated is None)


def _main_name(pod: PodView) -> str:
    containers = pod.spec.containers
    return pod.metadata.annotations.default_container or (containers[0].name if containers else "")


def has_started(pod: PodView) -> bool:
    """Return whether the program of the rank has started, now or before a restart."""
    return started_at(pod) is not None or pod.status.phase == "Succeeded"


def may_have_log(pod: PodView) -> bool:
    """Return whether the program of the rank has started, as far as the kubelet knows."""
    return has_started(pod) or has_lost_container(pod)


def has_lost_container(pod: PodView) -> bool:
    """Return whether the kubelet has lost the main container, with its log."""
    main = main_container(pod)
    return main is not None and is_lost(ended_state(main))


def started_at(pod: PodView) -> datetime | None:
    """Return the first start of the rank's program that the pod status contains."""
    status = main_container(pod)
    if status is None:
        return pod.status.start_time if pod.status.phase in {"Running", "Succeeded"} else None
    earlier, now = _start(status.last_state), _start(status.state)
    return earlier if now is None or (earlier is not None and earlier < now) else now


def _start(state: ContainerState) -> datetime | None:
    entry = state.running or state.terminated
    start = entry.started_at if entry else None
    return start if start and start >= _ZERO_TIMES_END else None


def finished_at(pod: PodView) -> datetime | None:
    """Return the time at which the last container ended."""
    ends = [time_of_end(ended) for status in pod.status.container_statuses if (ended := ended_state(status))]
    return max(filter(None, ends), default=None)


def time_of_end(ended: Terminated) -> datetime | None:
    """Return when a container ended; `None` if its runtime did not say."""
    at = ended.finished_at
    return at if at and at >= _ZERO_TIMES_END else None


def ended_state(status: ContainerStatus) -> Terminated | None:
    """Return how a container ended, now or before its last restart."""
    return status.state.terminated or status.last_state.terminated


def has_container_ended(pod: PodView, name: str) -> bool:
    """Return whether a container of a pod that is being deleted has ended for good."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return has_ended(pod) or any(status.name == name and status.state.terminated is not None for status in statuses)


def is_lost(terminated: Terminated | None) -> bool:
    """Return whether the kubelet did not observe how a container ended, nor when."""
    return terminated is not None and terminated.reason == _REASON_CONTAINER_LOST


def has_container_error(pod: PodView) -> bool:
    """Return whether a container cannot be created now. The kubelet may retry."""
    return container_waits(pod, _TROUBLE_REASONS) is not None


def container_waits(pod: PodView, reasons: frozenset[str]) -> tuple[str, Waiting] | None:
    """Return the name and state of the first container that waits for one of these reasons."""
    for statuses in (pod.status.init_container_statuses, pod.status.container_statuses):
        for status in statuses:
            waiting = status.state.waiting
            if waiting is not None and waiting.reason in reasons:
                return status.name, waiting
    return None


def is_prepared_by_node(pod: PodView) -> bool:
    """Return whether the node of the pod still mounts volumes, or makes the sandbox and network of the pod."""
    is_there = pod.metadata.deletion_timestamp is None
    return is_there and any(item.type == "PodReadyToStartContainers" for item in pod.status.conditions)


def gate_names(pod: PodView) -> str:
    return ", ".join(gate.name for gate in pod.spec.scheduling_gates) if pod.spec.scheduling_gates else ""


def refusal(pod: PodView) -> str:
    """Return the message of the scheduler about a pod that it could not place. Pods with scheduling gates have none."""
    if pod.spec.node_name:
        return ""
    scheduled = (item for item in pod.status.conditions if item.type == "PodScheduled" and item.status == "False")
    return next((item.message or item.reason for item in scheduled if item.reason != _REASON_GATED), "")


class Counts(Struct, frozen=True):
    """Numbers of ranks, except `held` and `terminating`, which are pods."""

    ranks: int = 0
    """Number of ranks that run at the same time if no rank fails."""
    created: int = 0
    placed: int = 0
    started: int = 0
    """Ranks that have started, now or earlier."""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    held: int = 0
    """Pods that have the harvest finalizer, ended or not."""
    terminating: int = 0
    """Pods that are being deleted."""


class _PodState(Struct, frozen=True, gc=False):
    """State of one pod, as far as it changes the counts. A gang may have 100,000 pods."""

    rank: Hashable
    """Completion index of the pod, or its UID if it has no index."""
    created: datetime | None
    is_placed: bool
    started: datetime | None
    has_started: bool
    has_ended: bool
    is_running: bool
    """The program of the rank runs."""
    has_succeeded: bool
    is_held: bool
    is_deleted: bool
    refusal: str
    """Message of the scheduler about a pod that it could not place."""
    gates: str
    """Names of the scheduling gates."""


_RANK_STATES: Final = ("is_placed", "has_started", "is_running")
_POD_STATES: Final = ("has_ended", "has_succeeded", "is_held", "is_deleted")


def pod_state(pod: PodView) -> _PodState:
    rank = rank_of(pod)
    started = started_at(pod)
    has_succeeded = pod.status.phase == "Succeeded"
    is_started, is_over = started is not None or has_succeeded, has_ended(pod)
    return _PodState(
        rank=pod.metadata.uid if rank is None else rank,
        created=pod.metadata.creation_timestamp,
        is_placed=bool(pod.spec.node_name),
        started=started,
        has_started=is_started,
        has_ended=is_over,
        is_running=is_started and not is_over and main_end(pod) is None,
        has_succeeded=has_succeeded,
        is_held=is_held(pod),
        is_deleted=pod.metadata.deletion_timestamp is not None,
        refusal=refusal(pod),
        gates=gate_names(pod),
    )


class PodIndex:
    """The pods of one Job. Pods of other Jobs are ignored."""

    def __init__(self, ref: GangRef, pods: Iterable[PodView] = ()) -> None:
        self._ref = ref
        self._states: dict[str, _PodState] = {}
        self._created: Counter[Hashable] = Counter()
        """The number of pods of each rank."""
        self._ranks: dict[str, Counter[Hashable]] = {state: Counter() for state in _RANK_STATES}
        """The number of pods of each rank of which this is true, by the name of the field of `_PodState`."""
        self._pods: Counter[str] = Counter()
        """The number of pods of which this is true, by the name of the field of `_PodState`."""
        self._all_started: tuple[int, datetime | None] | None = None
        self._completed: tuple[str, tuple[range, ...]] = ("", ())
        self.pods_with_errors: dict[str, PodView] = {}
        """Pods with a container that cannot be created, by uid."""
        self.preparing: dict[str, PodView] = {}
        """Pods whose node has not made ready yet what their containers need, by uid."""
        self.lingering: dict[str, PodView] = {}
        """Pods that run on after the end of their main container, by uid."""
        self.refusals: Counter[str] = Counter()
        """Messages of the scheduler about pods that it could not place, with the number of pods for each message."""
        self.gates: Counter[str] = Counter()
        """Names of scheduling gates, with the number of pods that have these gates."""
        self.update(pods)

    def __len__(self) -> int:
        return len(self._states)

    def update(self, pods: Iterable[PodView]) -> None:
        for pod in pods:
            self._put(pod, pod_state(pod) if is_of(self._ref, pod) else None)

    def remove(self, pods: Iterable[PodView]) -> None:
        """Remove pods that do not exist any more."""
        for pod in pods:
            self._put(pod, None)

    @property
    def uids(self) -> AbstractSet[str]:
        return self._states.keys()

    @property
    def succeeded(self) -> int:
        return self._pods["has_succeeded"]

    @property
    def ended_otherwise(self) -> int:
        return self._pods["has_ended"] - self.succeeded

    @property
    def has_one_pod_per_rank(self) -> bool:
        return len(self._states) == len(self._created)

    def has_exactly_ranks(self, ranks: int) -> bool:
        """Return whether the pods have all indexes from 0 to `ranks` - 1, and no other."""
        return len(self._created) == ranks and all(rank in self._created for rank in range(ranks))

    def since(self, start: datetime) -> PodIndex:
        """Return the pods without those of an earlier run, which a suspension of the Job has deleted.

        The numbers of pods that are held, and that are being deleted, stay.

        :param start: When the present run began.
        """
        if not self._pods["is_deleted"]:
            return self
        states = self._states
        earlier = {uid for uid, each in states.items() if each.is_deleted and each.created and each.created < start}
        if not earlier:
            return self
        index = PodIndex(self._ref)
        index._states = {uid: state for uid, state in states.items() if uid not in earlier}
        for state in index._states.values():
            index._count(state, 1)
        index._pods = self._pods.copy()
        index.pods_with_errors = {uid: pod for uid, pod in self.pods_with_errors.items() if uid not in earlier}
        index.preparing = self.preparing  # pods that are being deleted are in neither of the two
        index.lingering = self.lingering
        return index

    def counts(self, gang: StoredGang | None) -> Counts:
        """Return the numbers of ranks and pods in each state, from the pods and the Job."""
        ended, running = gang.ended_ranks if gang else 0, len(self._ranks["is_running"])
        replaced = len(self._states) - len(self._created)  # the Job counts each pod of a rank that failed
        started_ever = max(self._with_completed(self._ranks["has_started"], gang), ended + running - replaced)
        ranks = gang.ranks if gang else len(self._created)
        at_least = min(started_ever, ranks)
        return Counts(
            ranks=ranks,
            created=max(self._with_completed(self._created, gang), at_least),
            placed=max(self._with_completed(self._ranks["is_placed"], gang), at_least),
            started=started_ever,
            running=running,
            succeeded=gang.status.succeeded if gang else 0,
            failed=gang.status.failed if gang else 0,
            held=self._pods["is_held"],
            terminating=self._pods["is_deleted"],
        )

    def all_started_at(self, ranks: int) -> datetime | None:
        """Return the time at which the last of `ranks` ranks started for the first time, of those whose pods exist."""
        if self._all_started is None or self._all_started[0] != ranks:
            first: dict[Hashable, datetime] = {}
            for state in self._states.values():
                if state.started is not None:
                    first[state.rank] = min(state.started, first.get(state.rank, state.started))
            self._all_started = ranks, max(sorted(first.values())[: max(ranks, 1)], default=None)
        return self._all_started[1]

    def _put(self, pod: PodView, now: _PodState | None) -> None:
        uid = pod.metadata.uid
        before = self._states.pop(uid, None)
        if now is not None:
            self._states[uid] = now
        for pods, is_in in (
            (self.pods_with_errors, has_container_error),
            (self.preparing, is_prepared_by_node),
            (self.lingering, keeps_running),
        ):
            pods.pop(uid, None)
            if now is not None and is_in(pod):
                pods[uid] = pod
        if now == before:
            return
        for state, number in ((before, -1), (now, 1)):
            if state is not None:
                self._count(state, number)
        if before is None or now is None or (before.rank, before.started) != (now.rank, now.started):
            self._all_started = None

    def _count(self, state: _PodState, number: int) -> None:
        _add(self._created, state.rank, number)
        for name in _RANK_STATES:
            if getattr(state, name):
                _add(self._ranks[name], state.rank, number)
        for name in _POD_STATES:
            self._pods[name] += number * getattr(state, name)
        for texts, text in ((self.refusals, state.refusal), (self.gates, state.gates)):
            if text:
                _add(texts, text, number)

    def _with_completed(self, ranks: Counter[Hashable], gang: StoredGang | None) -> int:
        """Return the number of these ranks and of those that the Job has completed, whose pods may be gone."""
        done = gang.status.completed_indexes if gang else ""
        if gang is None or not done or len(ranks) >= (gang.view.spec.completions or 0):
            return len(ranks)  # a list of 50,000 parts is parsed only if it can change the result
        if done != self._completed[0]:
            self._completed = done, parse_spans(done)
        return len(ranks) + sum(rank not in ranks for span in self._completed[1] for rank in span)


def _add(counter: Counter[Any], key: Hashable, number: int) -> None:
    """Add to the count of a key, and forget the key when its count is 0."""
    if count := counter.get(key, 0) + number:
        counter[key] = count
    else:
        counter.pop(key, None)


SIDECAR_GRACE: Final = timedelta(seconds=30)
"""How long other containers may run on after the main containers have ended. Istio's proxy drains for 5 seconds."""

_POLICIES: Final = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex")
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class JobRules(Struct, frozen=True):
    """What the specs of a gang's Jobs say about ends of pods. The views of Jobs do not have these fields."""

    containers: frozenset[str]
    """Names of the containers of the pod templates. All other containers of a pod were injected."""
    is_indexed: bool
    """Each pod has a rank."""
    fails_at_once: bool
    """The first pod that fails makes the Job fail."""


class EndByMain(Struct, frozen=True):
    """The end of a gang by its main containers."""

    has_succeeded: bool
    """The main container of each rank has succeeded. Otherwise one has failed."""
    due: datetime
    """The time until which other containers may run on."""
    pods: tuple[PodView, ...]
    """The pods that run on after the end of their main container. Their outcomes must be recorded first."""
    jobs: tuple[JobView, ...]
    """The Jobs to be marked."""


def read_rules(stored: Iterable[Mapping[str, Any]]) -> JobRules:
    """Return the rules of the Jobs of a gang, as the API server sends them."""
    specs = [job["spec"] for job in stored]
    containers = {one["name"] for spec in specs for one in spec["template"]["spec"]["containers"]}
    return JobRules(
        containers=frozenset(containers),
        is_indexed=all(spec.get("completionMode") == "Indexed" for spec in specs),
        fails_at_once=all(spec.get("backoffLimit") == 0 and not any(map(spec.get, _POLICIES)) for spec in specs),
    )


def may_end_by_main(gang: StoredGang) -> bool:
    """Return whether the Job runs, and nobody has decided its end."""
    is_decided = gang.is_over or gang.interim_condition is not None or gang.lacks_jobs
    return not is_decided and not gang.is_suspended and gang.status.start_time is not None


def end_due(gang: StoredGang, pods: PodIndex, rules: JobRules) -> datetime | None:
    """Return when the gang is to end by its main containers, as far as the known pods show."""
    found = _find_end(gang, pods.lingering.values(), rules)
    if found is None:
        return None
    may_be_all = len(found.pods) + pods.succeeded + gang.status.succeeded >= (gang.view.spec.completions or 0)
    return found.due if not found.has_succeeded or may_be_all else None


def decide_end(gang: StoredGang, pods: Iterable[PodView], rules: JobRules) -> EndByMain | None:
    """Return how a gang ends by its main containers, if `may_end_by_main` holds and other containers keep it
    running."""
    known = list(pods)
    found = _find_end(gang, filter(keeps_running, known), rules)
    if found is None or not found.has_succeeded:
        return found
    succeeded = (*found.pods, *(pod for pod in known if pod.status.phase == "Succeeded"))
    ranks = parse_indexes(gang.status.completed_indexes).union(map(rank_of, succeeded))
    return found if ranks >= set(range(gang.view.spec.completions or 0)) else None


def _find_end(gang: StoredGang, running_on: Iterable[PodView], rules: JobRules) -> EndByMain | None:
    """Return the end that the pods which run on show, although further ranks may not have succeeded."""
    ends = [(pod, main_end(pod), keeps_running(pod)) for pod in running_on]
    lingering = [(pod, end) for pod, end, others in ends if end and rules.containers.isdisjoint(others)]
    pods = tuple(pod for pod, _ in lingering)
    jobs: tuple[JobView, ...] = gang.jobs_with_pods or (gang.view,)
    failed = [(_finished_at(end), pod) for pod, end in lingering if end.exit_code]
    if failed:
        at, first = min(failed, key=itemgetter(0))
        jobs = tuple(one for one in jobs if not gang.jobs or first.metadata.is_owned_by(one.metadata.uid))
        found = EndByMain(has_succeeded=False, due=at + SIDECAR_GRACE, pods=pods, jobs=jobs)
        return found if jobs and rules.fails_at_once else None
    may_succeed = rules.is_indexed and 0 < (gang.view.spec.completions or 0) == gang.parallelism
    if not lingering or len(lingering) < len(ends) or not may_succeed:
        return None
    # The JobSet controller deletes all Jobs of a JobSet when one fails, so the main Job has the mark.
    jobs = gang.jobs[:1] if gang.record.has_job_set else tuple(one for one in jobs if not end_condition(one))
    at = max(_finished_at(end) for _, end in lingering)
    return EndByMain(has_succeeded=True, due=at + SIDECAR_GRACE, pods=pods, jobs=jobs)


def _finished_at(end: Terminated) -> datetime:
    return end.finished_at or _LONG_AGO
