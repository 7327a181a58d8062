"""Why the Job of a gang is suspended, and for how long the gang has assembled in runs that Kueue stopped. Pure.

The conditions of Kueue's Workload say why the gang waits. The texts of Kueue 0.15 and 0.19 were observed with the real
manager (`tests/queues`).

Kueue itself stops a gang whose pods are not all ready in time (`waitForPodsReady`), and counts the time of these runs
in the Workload. `assemble_timeout` adds them up. A stop for another reason ends the sum: `ANNOTATION_ASSEMBLY_BASELINE`
then holds what the Workload counted until that end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.marks import AssemblyBaseline, read_mark
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.messages import read_queue_refusal, to_clause
from airflow_provider_gangjobs.gang.state.reason import (
    GIVEN_UP,
    IN_QUEUE,
    QUEUE_NEVER,
    Reason,
    because,
    count_of_stops,
    reason_of_stop,
    stopped_by_queue,
)
from airflow_provider_gangjobs.gang.state.waiting import NO_EVIDENCE, Evidence, find_last

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from airflow_provider_gangjobs.gang.state.stopped import Stopped
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import Condition, EventView, KueueWorkloadView


class Stops(Struct, frozen=True):
    """How often Kueue has stopped a gang since its Workload exists."""

    before_ready: int = 0
    """Not all pods became ready in the time that `waitForPodsReady` of Kueue's configuration allows."""
    after_ready: int = 0
    """All pods had been ready, and one of them was not ready for longer than `waitForPodsReady` allows."""
    others: int = 0
    """Kueue has preempted the gang, or has stopped the gang for yet another reason."""


_REFUSAL_EVENT: Final = "Warning"
"""Type of the Events with which Kueue says why it does not admit a Workload. Their reasons depend on a feature gate."""
PODS_READY_TIMEOUT: Final = "PodsReadyTimeout"
"""Reason for which Kueue stops a gang by `waitForPodsReady`."""
_WAIT_FOR_RECOVERY: Final = "WaitForRecovery"
"""The underlying cause of such a stop if all pods had been ready before."""
_EVICTION_EVENT: Final = "EvictedDueTo"
"""Reasons of the Events with which Kueue says that it stops a Workload begin with this."""
_DECISIONS: Final = frozenset({"QuotaReserved", "Admitted", "Evicted"})
_EVICTIONS: Final = {
    "Preempted": Category.PREEMPTED_BY_QUEUE,
    "FlavorMigration": Category.FLAVOR_MIGRATION,
    "ClusterQueueStopped": Category.QUEUE_HELD,
    "LocalQueueStopped": Category.QUEUE_HELD,
    "AdmissionCheck": Category.ADMISSION_CHECK,
}
"""By the reason of the condition Evicted."""


def explain_suspension(gang: StoredGang, evidence: Evidence = NO_EVIDENCE) -> Reason:
    """Return why a Job is suspended, and who resumes it."""
    workload = evidence.queue_workload
    if gang.stopped is not None and gang.is_stopped:
        return reason_of_stop(gang.stopped)
    if gang.queue and workload is None and evidence.shows_queue:
        return because("WorkloadMissing", queue=gang.queue)
    if gang.queue:
        return explain_queue(gang.queue, workload, evidence.events, position=evidence.queue_position)
    if workload is not None:
        return because("ManagedWithoutQueue")
    if gang.is_suspended and gang.record.is_kept_suspended:
        return because("KeptSuspended")
    if gang.is_suspended_again:
        return because("SuspendedAgain")
    return because("SubmissionIncomplete" if gang.is_suspended else "JobNotResumed")


def queued_uid(gang: StoredGang) -> str:
    """Return the UID of the object that Kueue admits: the JobSet of the roles, if it is known, or else the Job."""
    if not gang.record.has_job_set:
        return gang.ref.uid
    owners = (owner for one in gang.jobs_with_pods for owner in one.metadata.owner_references)
    return next((owner.uid for owner in owners if owner.controller), gang.ref.uid)


def waits_for_kueue(gang: StoredGang) -> bool:
    """Return whether Kueue's Workload may say why the gang waits."""
    if gang.queue is None:
        return gang.is_suspended_again
    return gang.is_suspended or gang.status.start_time is None


def explain_queue(
    queue: str,
    workload: KueueWorkloadView | None,
    events: Iterable[EventView] = (),
    *,
    position: int | None = None,
) -> Reason:
    """Return why a Job waits in its LocalQueue.

    :param events: Events of the Workload, which are used where the Workload itself cannot be read.
    :param position: The position in the ClusterQueue, from 1, if it is known.
    """
    found = _explain_events(events) if workload is None else _explain_workload(workload)
    known = {"queue": queue} | ({"position": str(position)} if position and found.cause in IN_QUEUE else {})
    return replace(found, data={**found.data, **known})


def evicted_at(workload: KueueWorkloadView | None) -> datetime | None:
    """Return the time at which Kueue has taken the quota back, if it has not given it again."""
    evicted = _find(workload, "Evicted", "True") if workload is not None else None
    return evicted.last_transition_time if evicted else None


def has_queue_decision(workload: KueueWorkloadView | None) -> bool:
    """Return whether Kueue has decided about the Job. Kueue 0.19 writes the condition PodsReady before that."""
    return workload is not None and any(item.type in _DECISIONS for item in workload.status.conditions)


def holds_quota(workload: KueueWorkloadView) -> bool:
    return _find(workload, "QuotaReserved", "True") is not None


def count_stops(workload: KueueWorkloadView | None) -> Stops:
    """Return how often Kueue has stopped the gang; never, if the Workload is not known."""
    before_ready = after_ready = others = 0
    for stops in workload.status.scheduling_stats.evictions if workload is not None else ():
        if stops.reason != PODS_READY_TIMEOUT:
            others += stops.count
        elif stops.underlying_cause == _WAIT_FOR_RECOVERY:
            after_ready += stops.count
        else:
            before_ready += stops.count
    return Stops(before_ready, after_ready, others)


def describe_stops(workload: KueueWorkloadView | None) -> str:
    """Return the sentence on how often Kueue has stopped the gang by `waitForPodsReady`."""
    stops = count_stops(workload)
    counts = count_of_stops(stops.before_ready, stops.after_ready)
    return f"Kueue has stopped the gang {counts} (waitForPodsReady)" if counts else ""


def given_up(workload: KueueWorkloadView | None, last_assembly: str = "") -> Stopped | None:
    """Return the mark of a gang that Kueue itself has given up for good, after a limit of time or of tries.

    :param last_assembly: The last line about the gang while it assembled.
    """
    if workload is None or workload.spec.active:
        return None
    evicted = _find(workload, "Evicted", "True")
    if evicted is None or not evicted.reason.startswith(GIVEN_UP):
        return None
    evidence = f"Before, the gang was {last_assembly}" if last_assembly else ""
    message = f"{to_clause(evicted.message)} ({evicted.reason})"
    return stopped_by_queue(evicted.reason, ". ".join(filter(None, (message, describe_stops(workload), evidence))))


def _explain_events(events: Iterable[EventView]) -> Reason:
    told = [event for event in events if event.message and (event.type == _REFUSAL_EVENT or _eviction_of(event))]
    if not told:
        return because("QueueWaits")
    last = find_last(told)
    eviction = _eviction_of(last)
    return _explain_eviction(eviction, last.message) if eviction else _explain_refusal(last.reason, last.message)


def _eviction_of(event: EventView) -> str:
    return event.reason.removeprefix(_EVICTION_EVENT) if event.reason.startswith(_EVICTION_EVENT) else ""


def _explain_workload(workload: KueueWorkloadView) -> Reason:
    evicted, refused = _find(workload, "Evicted", "True"), _find(workload, "QuotaReserved", "False")
    if not workload.spec.active:
        return because("WorkloadInactive", workload=workload.metadata.name, evidence=_message(evicted or refused))
    # Evicted stays true until the next admission. QuotaReserved repeats its message until Kueue judges the gang again.
    if evicted is not None and (refused is None or refused.message in {"", evicted.message}):
        return _explain_eviction(evicted.reason, evicted.message, count_stops(workload))
    if _find(workload, "Admitted", "True") is not None:
        return because("QueueAdmitted")
    if holds_quota(workload):
        return because("QueueChecks", evidence=_message(_find(workload, "Admitted", "False")))
    if refused is not None and refused.message:
        return _explain_refusal(refused.reason, refused.message)
    return because("QueueWaits")


def _message(condition: Condition | None) -> str:
    return to_clause(condition.message) if condition else ""


def _explain_eviction(reason: str, message: str, stops: Stops = Stops()) -> Reason:  # noqa: B008
    if reason == PODS_READY_TIMEOUT:
        before, after = stops.before_ready or None, stops.after_ready or None
        return because("NotReadyInTime", before_ready=before, after_ready=after)
    return because("QueueStops", category=_EVICTIONS.get(reason), reason=reason, evidence=to_clause(message))


def _explain_refusal(reason: str, message: str) -> Reason:
    """Explain why a workload has no quota."""
    found = read_queue_refusal(reason, message)
    cause = "QueueRefuses" if found.category in QUEUE_NEVER else "QueuePending"
    topology = "yes" if found.is_about_topology else ""
    return because(cause, category=found.category, reason=found.reason, topology=topology, evidence=found.message)


def _find(workload: KueueWorkloadView, kind: str, status: str) -> Condition | None:
    found = (item for item in workload.status.conditions if item.type == kind and item.status == status)
    return next(found, None)


def earlier_assembly_s(gang: StoredGang | None, workload: KueueWorkloadView | None) -> float:
    """Return for how long the gang has assembled in runs that Kueue has stopped before all pods were ready, in seconds.

    Only the runs after the last other stop count.
    """
    if gang is None or workload is None:
        return 0.0
    stops, baseline = count_stops(workload), _baseline_of(gang)
    if not stops.before_ready or stops.others + stops.after_ready != baseline.other_stops:
        return 0.0
    return float(max(workload.status.admitted_before_s - baseline.admitted_s, 0))


def _baseline_of(gang: StoredGang) -> AssemblyBaseline:
    return read_mark(AssemblyBaseline, gang.view.metadata.annotations.assembly_baseline)


def next_assembly_baseline(gang: StoredGang, workload: KueueWorkloadView | None) -> AssemblyBaseline | None:
    """Return the baseline that the Job must get after Kueue has stopped the gang for another reason.

    While Kueue stops a gang, the time of that run is not counted yet.
    """
    if workload is None or gang.is_over or (evicted_at(workload) is not None and holds_quota(workload)):
        return None
    stops = count_stops(workload)
    other_stops = stops.others + stops.after_ready
    if other_stops == _baseline_of(gang).other_stops:
        return None
    return AssemblyBaseline(other_stops, workload.status.admitted_before_s)
