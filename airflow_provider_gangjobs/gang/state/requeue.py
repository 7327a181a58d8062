"""Requeue: rules of a gang that goes back to its queue because not all of its ranks ran in time.

A quota counts the sum of the resources, and not the nodes. So a queue of Kueue may let a gang run whose pods do not all
fit on the nodes, and the pods that fit hold their places. A gang with `gang="preferred"` is then returned to its queue
when `assemble_timeout` has passed: its Workload is deactivated, Kueue suspends the Job and takes the quota back, and
the Workload is activated again when no pod is left. This happens at most `REQUEUES_MAX` times.

The annotation `ANNOTATION_REQUEUES` of the Job holds the state, so that another follower can continue at any step.

Kueue itself returns a gang whose pods are not all ready in the time of its `waitForPodsReady`, and counts the returns
and the time of these runs in the Workload. `assemble_timeout` adds these runs up. A run that Kueue has stopped for
another reason, such as a preemption, ends the sum: `ANNOTATION_ASSEMBLY_BASELINE` then holds what the Workload counted
until that end.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.job import AssemblyBaseline, Requeues
from airflow_provider_gangjobs.gang.state.queue_wait import count_stops, evicted_at, holds_quota

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.kube.views import KueueWorkloadView

REQUEUES_MAX: Final = 3
"""How often a gang is returned to its queue. When `assemble_timeout` passes after that, the gang is halted."""
PAUSE_BASE_S: Final = 10.0
"""How long a gang stays out of its queue the first time, in seconds, so that Kueue lets other gangs run. Each further
time doubles the pause."""
PAUSE_CAP_S: Final = 300.0


class RequeueStep(StrEnum):
    """The next step of a gang that is being returned to its queue."""

    NOTHING = "nothing"
    """The gang is not being returned."""
    DEACTIVATE = "deactivate"
    """Deactivate the Workload."""
    WAIT = "wait"
    """Kueue suspends the Job, pods end, or the quota is not returned yet."""
    ACTIVATE = "activate"
    """Activate the Workload when the pause is over."""
    FINISH = "finish"
    """Remove the mark: the gang is in its queue, or Kueue has let it run again."""


def may_be_requeued(job: Job) -> bool:
    """Return whether a follower may return the gang to its queue."""
    is_plain = (job.decision or "").startswith("basic:")
    return is_plain and job.is_queued_by_kueue and job.requeues is not None and not job.is_over


def begin_requeue(job: Job) -> Requeues | None:
    """Return the mark of a gang whose `assemble_timeout` has passed; `None` if the gang has to be halted."""
    done = job.requeues
    if done is None or done.start is not None or done.count >= REQUEUES_MAX or not may_be_requeued(job):
        return None
    return Requeues(done.count + 1, job.started_at)


def next_step(job: Job, workload: KueueWorkloadView | None) -> RequeueStep:
    """Return the next step.

    :param workload: Kueue's Workload of the Job; `None` if there is none, or if it cannot be read.
    """
    if not job.is_being_requeued or not may_be_requeued(job):
        return RequeueStep.NOTHING
    start = job.requeues.start if job.requeues else None
    has_started = job.started_at is not None and not job.is_suspended
    if has_started and job.started_at != start:
        return RequeueStep.FINISH
    if workload is None:
        return RequeueStep.DEACTIVATE if has_started else RequeueStep.WAIT
    if workload.spec.active:
        return RequeueStep.DEACTIVATE if has_started else RequeueStep.FINISH
    if has_started or job.has_pods_left or holds_quota(workload):
        return RequeueStep.WAIT
    return RequeueStep.ACTIVATE


def pause_ends_at(job: Job, workload: KueueWorkloadView | None) -> datetime | None:
    """Return the time at which the gang may be queued again; `None` if it may be queued at once."""
    evicted = evicted_at(workload)
    if evicted is None or job.requeues is None:
        return None
    return evicted + timedelta(seconds=min(PAUSE_BASE_S * 2.0 ** (job.requeues.count - 1), PAUSE_CAP_S))


def earlier_assembly_s(job: Job | None, workload: KueueWorkloadView | None) -> float:
    """Return for how long the gang has assembled in runs that Kueue has stopped before all pods were ready, in seconds.

    The runs since the gang has run, or was stopped for another reason, count. Without the Workload, none does.
    """
    if job is None or workload is None:
        return 0.0
    stops, baseline = count_stops(workload), job.assembly_baseline
    if not stops.before_ready or stops.others + stops.after_ready != baseline.other_stops:
        return 0.0
    return float(max(workload.status.admitted_before_s - baseline.admitted_s, 0))


def next_assembly_baseline(job: Job, workload: KueueWorkloadView | None) -> AssemblyBaseline | None:
    """Return the baseline that the Job must get, after Kueue has stopped the gang for another reason.

    While Kueue stops a gang, the time of that run is not counted yet.
    """
    if workload is None or job.is_over or (evicted_at(workload) is not None and holds_quota(workload)):
        return None
    stops = count_stops(workload)
    other_stops = stops.others + stops.after_ready
    if other_stops == job.assembly_baseline.other_stops:
        return None
    return AssemblyBaseline(other_stops, workload.status.admitted_before_s)


def describe_requeue(job: Job) -> str:
    """Return the sentence for the log while the gang is being returned."""
    count = job.requeues.count if job.requeues else 0
    return (
        f"Returned to Kueue queue {job.queue} ({count} of at most {REQUEUES_MAX} times), because not all ranks ran "
        "within assemble_timeout. The gang is queued again when its pods have ended"
    )
