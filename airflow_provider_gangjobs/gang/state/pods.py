"""Functions of a single pod: its rank, owner and start, whether it has ended, and whether the finalizer holds it.

The status of a pod is final if its phase is terminal, or if the pod is being deleted and was never bound to a node. The
tracking finalizer proves nothing, because the Job controller also removes it from running pods (KEP-2307).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.kube.views import PHASES_TERMINAL
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST, FINALIZER_JOB_TRACKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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


_DIGITS_MAX: Final = 18
"""Anybody who may change Jobs may write an annotation of any size, and Python refuses to read thousands of digits."""


def parse_number(text: str | None) -> int | None:
    """Return the whole number that a label or an annotation has, if it has one."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _DIGITS_MAX else None


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
    ended = status.state.terminated if status else None
    if status is None or ended is None or status.name != _main_name(pod):
        return None
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    if any(one.restart_policy_rules for one in containers):  # a rule may restart all containers of the pod
        return None
    own = next((one.restart_policy for one in pod.spec.containers if one.name == status.name), "")
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
