"""What a single pod of a gang says about itself: rank, owner, start, whether it has ended, whether it is held.

The rule that makes the harvest correct is `has_ended`: a pod's status is final when its phase is
terminal, or when it is being deleted and was never bound to a node. The absence of the Job
controller's tracking finalizer proves nothing: it also goes while a pod still runs (KEP-2307).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.labels import FINALIZER_HARVEST
from airflow_provider_gangjobs.kube.views import PHASES_TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.kube.views import (
        ContainerState,
        ContainerStatus,
        Meta,
        PodView,
        Terminated,
        Waiting,
    )

IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_TROUBLES: Final = IMAGE_REASONS | CONFIG_REASONS

# A container that never started has the zero of its runtime's clock as its start.
_ZERO_TIMES_END: Final = datetime(1971, 1, 1, tzinfo=UTC)


def rank_of(pod: PodView) -> int | None:
    """Completion index of the pod, `None` if its Job has none."""
    return _number(pod.metadata.annotations.completion_index)


def attempt_of(pod: PodView) -> int | None:
    """Attempt of the gang that the pod belongs to."""
    return _number(pod.metadata.labels.attempt)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def owner_uid(pod: PodView) -> str | None:
    """UID of the pod's Job, or `None` if the pod does not tell.

    The label stays when the Job is deleted with its pods orphaned; the owner reference does not.
    """
    labels = pod.metadata.labels
    by_label = labels.controller_uid or labels.controller_uid_before_1_27
    if by_label:
        return by_label
    return next(
        (owner.uid for owner in pod.metadata.owner_references if owner.controller and owner.kind == "Job"), None
    )


def pods_of(ref: GangRef, pods: Iterable[PodView]) -> list[PodView]:
    """The pods that belong to this very Job."""
    return [pod for pod in pods if is_of(ref, pod)]


def is_of(ref: GangRef, pod: PodView) -> bool:
    """It belongs to this very Job. A pod that does not tell its owner is taken at its gang label."""
    owner = owner_uid(pod)
    return owner == ref.uid or owner is None


def is_terminal(pod: PodView) -> bool:
    """Its containers have ended and its status is final."""
    return pod.status.phase in PHASES_TERMINAL


def has_ended(pod: PodView) -> bool:
    """Its status will not change any more: it is terminal, or deleted before it was bound to a node."""
    return is_terminal(pod) or (pod.metadata.deletion_timestamp is not None and not pod.spec.node_name)


def is_held(pod: PodView) -> bool:
    """Our finalizer keeps it."""
    return FINALIZER_HARVEST in pod.metadata.finalizers


def deletion_requested_at(meta: Meta) -> datetime | None:
    """When deletion was asked for: `deletionTimestamp` is that time plus the grace period.

    Of a held pod that its kubelet has done with (its grace period is 0 then) it is a later time: that of its removal.
    """
    if meta.deletion_timestamp is None:
        return None
    return meta.deletion_timestamp - timedelta(seconds=meta.deletion_grace_period_seconds or 0)


def main_container(pod: PodView) -> ContainerStatus | None:
    """Status of the container that is the rank: the annotated one, else the first of the spec."""
    statuses = pod.status.container_statuses
    wanted = pod.metadata.annotations.default_container
    if not wanted and pod.spec.containers:
        wanted = pod.spec.containers[0].name
    for status in statuses:
        if status.name == wanted:
            return status
    return statuses[0] if statuses else None


def has_started(pod: PodView) -> bool:
    """The rank's program has begun, now or earlier."""
    return started_at(pod) is not None or pod.status.phase == "Succeeded"


def started_at(pod: PodView) -> datetime | None:
    """When the rank's program started first, as far as the pod still tells; `None` if it never did."""
    status = main_container(pod)
    if status is None:
        return pod.status.start_time if pod.status.phase in {"Running", "Succeeded"} else None
    earlier, now = _start(status.last_state), _start(status.state)
    return earlier if now is None or (earlier is not None and earlier < now) else now


def _start(state: ContainerState) -> datetime | None:
    told = state.running or state.terminated
    start = told.started_at if told else None
    return start if start and start >= _ZERO_TIMES_END else None


def finished_at(pod: PodView) -> datetime | None:
    """When its last container ended."""
    ends = [ended.finished_at for status in pod.status.container_statuses if (ended := ended_state(status))]
    return max((end for end in ends if end and end >= _ZERO_TIMES_END), default=None)


def ended_state(status: ContainerStatus) -> Terminated | None:
    """How a container ended, now or before its restart."""
    return status.state.terminated or status.last_state.terminated


def has_container_trouble(pod: PodView) -> bool:
    """A container of it cannot be made, at least for now."""
    return container_waits(pod, _TROUBLES) is not None


def container_waits(pod: PodView, reasons: frozenset[str]) -> tuple[str, Waiting] | None:
    """The first container that waits for one of these reasons."""
    for statuses in (pod.status.init_container_statuses, pod.status.container_statuses):
        for status in statuses:
            waiting = status.state.waiting
            if waiting is not None and waiting.reason in reasons:
                return status.name, waiting
    return None


def refusal(pod: PodView) -> str:
    """Why the scheduler could not place it, in its words; empty if it could, or has not tried."""
    if pod.spec.node_name:
        return ""
    scheduled = (item for item in pod.status.conditions if item.type == "PodScheduled" and item.status == "False")
    return next((item.message or item.reason for item in scheduled), "")
