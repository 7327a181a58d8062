"""Why the Job of a gang is suspended, and for how long the gang has assembled in runs that Kueue stopped. Pure.

The conditions of Kueue's Workload say why the gang waits. The texts of Kueue 0.15 and 0.19 were observed with the real
manager (`tests/queues`).

Kueue itself stops a gang whose pods are not all ready in time (`waitForPodsReady`), and counts the time of these runs
in the Workload. `assemble_timeout` adds them up. A stop for another reason ends the sum: `ANNOTATION_ASSEMBLY_BASELINE`
then holds what the Workload counted until that end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.job_annotations import AssemblyBaseline
from airflow_provider_gangjobs.gang.state.stopped import Stopped, Stopper
from airflow_provider_gangjobs.gang.state.waiting import (
    NO_EVIDENCE,
    Evidence,
    Wait,
    WaitCause,
    find_last,
    format_position,
    to_line,
)
from airflow_provider_gangjobs.kube.text import pluralize, to_printable_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

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

    @property
    def by_readiness(self) -> str:
        counts = (
            (self.before_ready, "before all pods were ready"),
            (self.after_ready, "after all pods had been ready"),
        )
        return " and ".join(f"{pluralize(count, 'time')} {when}" for count, when in counts if count)


CODE_GIVEN_UP: Final = "DeactivatedByQueue"
"""Code of the stop of a gang that Kueue has given up."""
_GIVEN_UP: Final = "DeactivatedDueTo"
"""Reasons of the condition Evicted begin with this, if Kueue itself has deactivated a Workload."""
_REFUSAL_EVENT: Final = "Warning"
"""Type of the Events with which Kueue says why it does not admit a Workload. Their reasons depend on a feature gate."""
PODS_READY_TIMEOUT: Final = "PodsReadyTimeout"
"""Reason for which Kueue stops a gang by `waitForPodsReady`."""
_WAIT_FOR_RECOVERY: Final = "WaitForRecovery"
"""The underlying cause of such a stop if all pods had been ready before."""
_EVICTION_EVENT: Final = "EvictedDueTo"
"""Reasons of the Events with which Kueue says that it stops a Workload begin with this."""
_DECISIONS: Final = frozenset({"QuotaReserved", "Admitted", "Evicted"})
_NEVER: Final = frozenset(
    {Category.EXCEEDS_MAX_QUOTA, Category.NO_MATCHING_FLAVOR, Category.QUEUE_MISCONFIGURED, Category.QUEUE_HELD}
)
"""Categories of workloads that the queue cannot admit until somebody changes the workload or the queue."""
_BY_REASON: Final = {
    "NoMatchingFlavor": Category.NO_MATCHING_FLAVOR,
    "ExceedsMaxQuota": Category.EXCEEDS_MAX_QUOTA,
    "Misconfigured": Category.QUEUE_MISCONFIGURED,
    "Suspended": Category.QUEUE_HELD,
    "OnHold": Category.QUEUE_HELD,
    "AdmissionGated": Category.ADMISSION_CHECK,
    "TopologyPlacementFailed": Category.INSUFFICIENT_RESOURCES,
    **dict.fromkeys(
        ("WaitingForQuota", "WaitingForPreemptedWorkloads", "WaitingForPodsReady", "PendingEvaluation"),
        Category.WAITING_FOR_QUOTA,
    ),
}
"""Reasons of the condition QuotaReserved in Kueue 0.20, and in 0.19 with UnadmittedWorkloadsObservability."""
_INADMISSIBLE: Final = "Inadmissible"
"""The reason in earlier versions for all that is wrong with a workload or its queue."""
_NAMED_REASON: Final = re.compile(r"admit the gang(?: yet)? \((\w+)\): ")
_BY_TEXT: Final = (
    (re.compile(r"its Workload \S+ is inactive"), Category.QUEUE_DEACTIVATED),
    (re.compile(r"has stopped the gang, because not all pods"), Category.PODS_READY_TIMEOUT),
    (re.compile(r"again later \(Preempted"), Category.PREEMPTED_BY_QUEUE),
    (re.compile(r"again later \(FlavorMigration"), Category.FLAVOR_MIGRATION),
    (re.compile(r"again later \((?:Cluster|Local)QueueStopped"), Category.QUEUE_HELD),
    (re.compile(r"again later \(AdmissionCheck"), Category.ADMISSION_CHECK),
    (re.compile(r"has stopped the gang"), Category.REQUEUED),
    (re.compile(r"waits for its checks|failed admission checks|Admission is gated"), Category.ADMISSION_CHECK),
    (re.compile(r"Queue \S* is inactive"), Category.QUEUE_HELD),
    (re.compile(r"Queue \S* (?:doesn't exist|not found)|ClusterQueue selector"), Category.QUEUE_MISCONFIGURED),
    (re.compile(r"LimitRange|must not exceed its limits|manageJobsWithoutQueueName"), Category.QUEUE_MISCONFIGURED),
    (re.compile(r"unavailable in ClusterQueue|no requested topology level"), Category.NO_MATCHING_FLAVOR),
)
"""By what the sentences of this module and the messages of Kueue 0.15 to 0.20 say. The first that matches decides."""
_BY_FLAVOR: Final = (
    (re.compile(r"allows? to fit (?:only|any of) \d+"), Category.INSUFFICIENT_RESOURCES),
    (re.compile(r"insufficient unused quota for \S+ in flavor ([^\s,]+)"), Category.WAITING_FOR_QUOTA),
    (re.compile(r"insufficient quota for \S+ in flavor ([^\s,]+)"), Category.EXCEEDS_MAX_QUOTA),
    (re.compile(r"(?<!in )[Ff]lavor (\S+) (?:doesn't|does not|not found|supports only)"), Category.NO_MATCHING_FLAVOR),
    (re.compile(r"untolerated taint .*? in flavor ([^\s,]+)"), Category.NO_MATCHING_FLAVOR),
)
"""What a message says about one flavor, the mildest first. A workload may wait for each flavor."""
_PREFIX: Final = re.compile(r"^couldn't assign flavors to pod set \S+: ")


_MANAGED_WITHOUT_QUEUE: Final = (
    "Kueue has suspended the Job: it lets only Jobs of a queue run here (manageJobsWithoutQueueName), and the gang has "
    "no queue. Give queue_name, or name the queue in the connection"
)
_WITHOUT_WORKLOAD: Final = (
    "does not know the gang: Kueue has made no Workload for the Job. The WorkloadPriorityClass or the PriorityClass of "
    "the gang may not exist, or the manager of Kueue does not run"
)


def explain_suspension(gang: StoredGang, evidence: Evidence = NO_EVIDENCE) -> Wait:
    """Return why a Job is suspended, and who resumes it."""
    workload = evidence.queue_workload
    if gang.stopped is not None and gang.is_stopped:
        return Wait(WaitCause.STOPPED, f"The gang was stopped: {gang.stopped.text}", stopped=gang.stopped)
    if gang.queue and workload is None and evidence.shows_queue:
        return Wait(WaitCause.WORKLOAD_MISSING, f"Kueue queue {gang.queue} {_WITHOUT_WORKLOAD}")
    if gang.queue:
        found = explain_queue(gang.queue, workload, evidence.events)
        position = evidence.queue_position if found.cause is WaitCause.QUEUE else None
        return Wait(found.cause, f"{to_line(found.text)}{format_position(position)}", position)
    if workload is not None:
        return Wait(WaitCause.QUEUE_REFUSED, _MANAGED_WITHOUT_QUEUE)
    if gang.is_suspended and gang.is_kept_suspended:
        return Wait(WaitCause.SUBMISSION, "The Job was submitted to stay suspended: it waits until its user resumes it")
    if gang.is_suspended_again:
        return Wait(WaitCause.SUBMISSION, "The Job was started and then suspended: it waits until its user resumes it")
    if gang.is_suspended:
        return Wait(WaitCause.SUBMISSION, "The Job is suspended: its submission is not complete")
    return Wait(WaitCause.CONTROLLER, "Waits for the Job controller to resume it")


def waits_for_kueue(gang: StoredGang) -> bool:
    """Return whether Kueue's Workload may say why the gang waits."""
    if not gang.is_queued_by_kueue:
        return gang.is_suspended_again
    return gang.is_suspended or gang.started_at is None


def explain_queue(queue: str, workload: KueueWorkloadView | None, events: Iterable[EventView] = ()) -> Wait:
    """Return why a Job waits in its LocalQueue.

    :param events: Events of the Workload, which are used where the Workload itself cannot be read.
    """
    return _explain_events(queue, events) if workload is None else _explain_workload(queue, workload)


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
    counts = count_stops(workload).by_readiness
    if not counts:
        return ""
    return f"Kueue has stopped the gang {counts} (waitForPodsReady)"


_CATEGORY_GIVEN_UP: Final = {
    f"{_GIVEN_UP}MaximumExecutionTimeExceeded": Category.DEADLINE_EXCEEDED,
    f"{_GIVEN_UP}AdmissionCheck": Category.ADMISSION_CHECK,
}
"""By the reason of the condition Evicted. The usual category is QUEUE_DEACTIVATED."""


def stopped_by_queue(workload: KueueWorkloadView | None, last_assembly: str = "") -> Stopped | None:
    """Return the mark of a gang that Kueue itself has given up for good, after a limit of time or of tries.

    :param last_assembly: The last line about the gang while it assembled.
    """
    if workload is None or workload.spec.active:
        return None
    evicted = _find(workload, "Evicted", "True")
    if evicted is None or not evicted.reason.startswith(_GIVEN_UP):
        return None
    evidence = f"Before, the gang was {last_assembly}" if last_assembly else ""
    message = f"{_one_line(evicted.message)} ({evicted.reason})"
    text = ". ".join(filter(None, (message, describe_stops(workload), evidence)))
    category = _CATEGORY_GIVEN_UP.get(evicted.reason, Category.QUEUE_DEACTIVATED)
    return Stopped(Stopper.QUEUE, text, category, CODE_GIVEN_UP, data={"reason": evicted.reason})


def _explain_events(queue: str, events: Iterable[EventView]) -> Wait:
    told = [event for event in events if event.message and (event.type == _REFUSAL_EVENT or _eviction_of(event))]
    if not told:
        return Wait(WaitCause.QUEUE, _waits(queue))
    last = find_last(told)
    eviction = _eviction_of(last)
    if eviction:
        return _explain_eviction(queue, eviction, last.message)
    return _explain_refusal(queue, last.reason, last.message)


def _eviction_of(event: EventView) -> str:
    return event.reason.removeprefix(_EVICTION_EVENT) if event.reason.startswith(_EVICTION_EVENT) else ""


def _explain_workload(queue: str, workload: KueueWorkloadView) -> Wait:
    evicted, refused = _find(workload, "Evicted", "True"), _find(workload, "QuotaReserved", "False")
    if not workload.spec.active:
        inactive = f"because its Workload {workload.metadata.name} is inactive{_because(evicted or refused)}"
        return Wait(WaitCause.QUEUE_REFUSED, f"Kueue queue {queue} does not let the gang run, {inactive}")
    # Evicted stays true until the next admission. QuotaReserved repeats its message until Kueue judges the gang again.
    if evicted is not None and (refused is None or refused.message in {"", evicted.message}):
        return _explain_eviction(queue, evicted.reason, evicted.message, count_stops(workload))
    if _find(workload, "Admitted", "True") is not None:
        return Wait(WaitCause.CONTROLLER, f"Kueue queue {queue} has admitted the gang, and lets it run")
    if holds_quota(workload):
        checks = f"waits for its checks{_because(_find(workload, 'Admitted', 'False'))}"
        return Wait(WaitCause.QUEUE, f"Kueue queue {queue} has reserved quota, and {checks}")
    if refused is not None and refused.message:
        return _explain_refusal(queue, refused.reason, refused.message)
    return Wait(WaitCause.QUEUE, _waits(queue))


def _because(condition: Condition | None) -> str:
    return f": {_one_line(condition.message)}" if condition and condition.message else ""


def _explain_eviction(queue: str, reason: str, message: str, stops: Stops = Stops()) -> Wait:  # noqa: B008
    if reason == PODS_READY_TIMEOUT:
        text = (
            f"Kueue queue {queue} has stopped the gang, because not all pods were ready in time (waitForPodsReady), "
            "and lets all ranks run again later"
        )
        return Wait(WaitCause.QUEUE, ": ".join(filter(None, (text, stops.by_readiness))))
    text = f"Kueue queue {queue} has stopped the gang and lets it run again later ({reason}: {_one_line(message)})"
    return Wait(WaitCause.QUEUE, text)


def _explain_refusal(queue: str, reason: str, message: str) -> Wait:
    """Explain why a workload has no quota. The sentence has the reason if it says more than the message."""
    usual = Category.QUEUE_MISCONFIGURED if reason == _INADMISSIBLE else Category.WAITING_FOR_QUOTA
    category = _BY_REASON.get(reason) or find_category(message) or usual
    cause = WaitCause.QUEUE_REFUSED if category in _NEVER else WaitCause.QUEUE
    verb = "cannot admit the gang" if category in _NEVER else "does not admit the gang yet"
    named = f" ({reason})" if reason in _BY_REASON and (find_category(message) or usual) is not category else ""
    return Wait(cause, f"Kueue queue {queue} {verb}{named}: {_one_line(_PREFIX.sub('', message))}")


def find_category(text: str) -> Category | None:
    """Return why a gang waits in its queue, by a sentence of this module or a message of Kueue.

    Of several flavors, the one for which the gang may still wait decides, as in Kueue (`resolveNoFitReason`).
    """
    named = _NAMED_REASON.search(text)
    if named and named[1] in _BY_REASON:
        return _BY_REASON[named[1]]
    if (found := next((category for pattern, category in _BY_TEXT if pattern.search(text)), None)) is not None:
        return found
    worst: dict[str, int] = {}
    for severity, (pattern, _) in enumerate(_BY_FLAVOR):
        for match in pattern.finditer(text):
            worst[match[1] if match.lastindex else ""] = severity
    return _BY_FLAVOR[min(worst.values())][1] if worst else None


def _waits(queue: str) -> str:
    return f"Waits for admission by Kueue queue {queue}"


def _one_line(message: str) -> str:
    return to_printable_line(message).rstrip(".")


def _find(workload: KueueWorkloadView, kind: str, status: str) -> Condition | None:
    found = (item for item in workload.status.conditions if item.type == kind and item.status == status)
    return next(found, None)


def earlier_assembly_s(gang: StoredGang | None, workload: KueueWorkloadView | None) -> float:
    """Return for how long the gang has assembled in runs that Kueue has stopped before all pods were ready, in seconds.

    Only the runs after the last other stop count.
    """
    if gang is None or workload is None:
        return 0.0
    stops, baseline = count_stops(workload), gang.assembly_baseline
    if not stops.before_ready or stops.others + stops.after_ready != baseline.other_stops:
        return 0.0
    return float(max(workload.status.admitted_before_s - baseline.admitted_s, 0))


def next_assembly_baseline(gang: StoredGang, workload: KueueWorkloadView | None) -> AssemblyBaseline | None:
    """Return the baseline that the Job must get after Kueue has stopped the gang for another reason.

    While Kueue stops a gang, the time of that run is not counted yet.
    """
    if workload is None or gang.is_over or (evicted_at(workload) is not None and holds_quota(workload)):
        return None
    stops = count_stops(workload)
    other_stops = stops.others + stops.after_ready
    if other_stops == gang.assembly_baseline.other_stops:
        return None
    return AssemblyBaseline(other_stops, workload.status.admitted_before_s)
