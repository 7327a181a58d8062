"""Outcome: how one pod of a gang ended, kept after the pod is gone.

An outcome is a function of the pod's final status, so two observers write down the same one, and
it is keyed by the pod's uid: counting it twice is impossible. The Kubernetes words keep their
meaning: `preempted` only if something of higher priority took the place.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_provider_gangjobs.gang.labels import RESULT_BYTES_MAX
from airflow_provider_gangjobs.gang.state import pods as podutil
from airflow_provider_gangjobs.kube.views import Condition, PodView, Terminated, condition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

POD_MESSAGE_BYTES_MAX: Final = 12 * 1024
"""The kubelet divides this among all containers of a pod (`MaxPodTerminationMessageLogLength`)."""
SIGNAL_EXIT_CODE_BASE: Final = 128
"""A shell and the container runtimes report a death by signal n as exit code 128 + n."""
SIGKILL: Final = 9
SIGTERM: Final = 15


class OutcomeKind(StrEnum):
    """How a pod ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """By its own doing: its program, image or configuration."""
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    LOST = "lost"
    """Its node went away; nobody saw it end."""
    DELETED = "deleted"
    """By a person, or by the Job controller when the gang's fate was decided."""
    UNKNOWN = "unknown"
    """It had not ended when tracking stopped."""


DISRUPTIONS: Final = frozenset({OutcomeKind.PREEMPTED, OutcomeKind.EVICTED, OutcomeKind.LOST})

# Reasons of the pod condition DisruptionTarget (KEP-3329).
_BY_DISRUPTION: Final = {
    "PreemptionByScheduler": OutcomeKind.PREEMPTED,
    "EvictionByEvictionAPI": OutcomeKind.EVICTED,
    "DeletionByTaintManager": OutcomeKind.EVICTED,
    "TerminationByKubelet": OutcomeKind.EVICTED,
    "DeletionByPodGC": OutcomeKind.LOST,
}
# `status.reason` of a pod, written by the kubelet and the node controllers. `Evicted` is none of them: a kubelet that
# evicts a pod for its node's sake says so by the condition; without it the pod used more storage than its own limit.
_BY_POD_REASON: Final = {
    "NodeShutdown": OutcomeKind.EVICTED,
    "Shutdown": OutcomeKind.EVICTED,
    "Terminated": OutcomeKind.EVICTED,
    "Preempting": OutcomeKind.PREEMPTED,
    "NodeLost": OutcomeKind.LOST,
}
# Reason of a container whose end its kubelet never saw.
_CONTAINER_LOST: Final = "ContainerStatusUnknown"


class Outcome(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """How one pod ended. Times are the cluster's; fields are added to, never renamed."""

    uid: str
    pod: str
    outcome: OutcomeKind
    rank: int | None = None
    attempt: int | None = None
    node: str = ""
    phase: str = ""
    container: str = ""
    """The container that tells, if it is not the rank's own."""
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    message: str = ""
    """Termination message as kept by the kubelet; of a succeeded pod it is the rank's result."""
    message_cut: bool = False
    """The message is as long as the kubelet keeps, so its end is missing."""
    created: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    caused: datetime | None = None
    """When what ended it began: the disruption, the request to delete it, or else its own end."""
    restarts: int = 0
    disruption: str = ""
    """Reason of the DisruptionTarget condition."""

    @property
    def is_disruption(self) -> bool:
        """The cluster took the pod away, through no fault of its program."""
        return self.outcome in DISRUPTIONS

    @property
    def seconds(self) -> float | None:
        """How long the rank's program ran."""
        return (self.finished - self.started).total_seconds() if self.started and self.finished else None

    @property
    def result(self) -> Any:
        """What the rank wrote to `GANG_RESULT_PATH`: its JSON value, else its text; `None` if nothing or cut."""
        if self.outcome is not OutcomeKind.SUCCEEDED or self.message_cut or not self.message.strip():
            return None
        try:
            return msgspec.json.decode(self.message)
        except msgspec.DecodeError:
            return self.message

    @property
    def error(self) -> str:
        """Why it failed, where it says so: a failing rank may write `{"error": "..."}` to `GANG_RESULT_PATH`."""
        said = _said(self.message) if self.outcome is OutcomeKind.FAILED else None
        return said.error.strip() if said else ""


class _Error(msgspec.Struct, gc=False):
    error: str
    at: float = 0.0
    """When, in seconds since 1970, by the clock of its node."""


def _said(message: str) -> _Error | None:
    if not message.startswith("{"):
        return None
    try:
        return msgspec.json.decode(message, type=_Error)
    except msgspec.DecodeError:
        return None


def outcome_of(pod: PodView, *, ended: bool = True) -> Outcome:
    """Write down how a pod ended. With `ended=False`: that it had not, when tracking stopped.

    A pod that vanished before it was terminal is told by its last view, as deleted.
    """
    container, told = _telling(pod)
    disruption = condition(pod.status.conditions, "DisruptionTarget")
    ending = _ending(pod, told, disruption) if ended else OutcomeKind.UNKNOWN
    finished = caused = podutil.finished_at(pod)
    message = (told.message if told else "") or pod.status.message
    if ending is not OutcomeKind.SUCCEEDED:
        caused = _caused(pod, ending, disruption) or _failed_at(pod, ending, message) or finished
    return Outcome(
        uid=pod.metadata.uid,
        pod=pod.metadata.name,
        outcome=ending,
        rank=podutil.rank_of(pod),
        attempt=podutil.attempt_of(pod),
        node=pod.spec.node_name,
        phase=pod.status.phase,
        container=container,
        exit_code=told.exit_code if told else None,
        signal=_signal(told),
        reason=_reason(pod, told, ending),
        message=_cut(message),
        message_cut=len(message.encode()) >= _message_bytes_max(pod),
        created=pod.metadata.creation_timestamp,
        started=podutil.started_at(pod),
        finished=finished,
        caused=caused,
        restarts=max((status.restart_count for status in pod.status.container_statuses), default=0),
        disruption=disruption.reason if disruption else "",
    )


def _telling(pod: PodView) -> tuple[str, Terminated | None]:
    """The container whose end is the pod's: the rank's own unless only another one failed."""
    main = podutil.main_container(pod)
    told = podutil.ended_state(main) if main else None
    if pod.status.phase == "Succeeded" or (told and told.exit_code):
        return "", told
    others = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    failed = ((status.name, end) for status in others if (end := podutil.ended_state(status)) and end.exit_code)
    return next(failed, ("", told))


def _ending(pod: PodView, told: Terminated | None, disruption: Condition | None) -> OutcomeKind:
    if pod.status.phase == "Succeeded":
        return OutcomeKind.SUCCEEDED
    if disruption is not None:
        return _BY_DISRUPTION.get(disruption.reason, OutcomeKind.EVICTED)
    if pod.status.reason in _BY_POD_REASON:
        return _BY_POD_REASON[pod.status.reason]
    if told is not None and told.reason == _CONTAINER_LOST:
        return OutcomeKind.LOST
    if pod.status.phase != "Failed" or _was_deleted_first(pod, told):
        return OutcomeKind.DELETED
    return OutcomeKind.FAILED


def _was_deleted_first(pod: PodView, told: Terminated | None) -> bool:
    asked = podutil.deletion_requested_at(pod.metadata)
    if asked is None:
        return False
    if told is None or told.finished_at is None:
        # Without a word of its own it never ran; a kubelet that refused it says why.
        return not pod.status.reason
    if told.finished_at > asked:
        return True
    # Times have whole seconds: within the same one, only a death by the kubelet's signal tells. So it does where the
    # kubelet has said its last word, a deletion without grace: that one's time has replaced when the first was asked.
    is_overwritten = pod.metadata.deletion_grace_period_seconds == 0 and told.reason != "OOMKilled"
    return (told.finished_at == asked or is_overwritten) and _signal(told) in {SIGTERM, SIGKILL}


def _caused(pod: PodView, ending: OutcomeKind, disruption: Condition | None) -> datetime | None:
    if ending in DISRUPTIONS and disruption is not None:
        return disruption.last_transition_time
    asked = podutil.deletion_requested_at(pod.metadata) if ending is OutcomeKind.DELETED else None
    finished = podutil.finished_at(pod)
    return min(asked, finished) if asked and finished else asked


def _failed_at(pod: PodView, ending: OutcomeKind, message: str) -> datetime | None:
    """When it says that it failed, to the fraction of a second: its peers end within the same one.

    Not if its container did not run then: a program may say anything.
    """
    said = _said(message) if ending is OutcomeKind.FAILED else None
    started, finished = podutil.started_at(pod), podutil.finished_at(pod)
    if said is None or started is None or finished is None:
        return None
    # The times of containers are cut to whole seconds.
    if not started.timestamp() <= said.at < finished.timestamp() + 1:
        return None
    return datetime.fromtimestamp(said.at, UTC)


def _signal(told: Terminated | None) -> int | None:
    if told is None:
        return None
    by_code = (
        told.exit_code - SIGNAL_EXIT_CODE_BASE
        if SIGNAL_EXIT_CODE_BASE < told.exit_code <= SIGNAL_EXIT_CODE_BASE + 64
        else None
    )
    return told.signal or by_code


def _reason(pod: PodView, told: Terminated | None, ending: OutcomeKind) -> str:
    of_container = told.reason if told and told.reason != "Completed" else ""
    if ending in DISRUPTIONS:
        return pod.status.reason or of_container
    return of_container or pod.status.reason


def _message_bytes_max(pod: PodView) -> int:
    containers = len(pod.status.container_statuses) + len(pod.status.init_container_statuses)
    return min(RESULT_BYTES_MAX, POD_MESSAGE_BYTES_MAX // max(containers, 1))


def _cut(message: str) -> str:
    raw = message.encode()
    return message if len(raw) <= RESULT_BYTES_MAX else raw[:RESULT_BYTES_MAX].decode(errors="ignore")


# Their conditions are set minutes after a node went silent, when its peers have long failed for want of it.
_NOTICED_LATE: Final = frozenset({"DeletionByPodGC", "DeletionByTaintManager"})


def _vanished(outcome: Outcome) -> bool:
    """Its node was given up, and nobody saw its program end: that happened long before it was noticed.

    An end that the node itself reported (a drained node's, say) has a time to go by.
    """
    return outcome.disruption in _NOTICED_LATE and outcome.exit_code is None


# Among ends of the same second the one that can bring others down comes first: a lost place before a
# crash of its peers, and a crash before the deletions by which the Job controller answers it. Only of crashes
# may it be known when, within the second: the cluster's times have none of its fractions.
_ORDER: Final = {
    OutcomeKind.PREEMPTED: 0,
    OutcomeKind.EVICTED: 0,
    OutcomeKind.LOST: 0,
    OutcomeKind.FAILED: 1,
    OutcomeKind.DELETED: 2,
}
_CauseOrder = tuple[bool, bool, float, int, float, int]


def root_cause(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The outcome that the gang's other ends followed from: the earliest that was no success, and was not made good.

    Peers of a failed rank get SIGTERM from the Job controller, or lose their connection to it; both come later.
    Only of a rank that vanished with its node is the time not known; its peers fail of that before it is noticed.
    """
    last = _last_pods(list(outcomes))
    return min((outcome for outcome in last if outcome.outcome in _ORDER), key=_cause_order, default=None)


def _last_pods(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Without the pods that were replaced: by a queue that let the gang run anew, or one by one in plain Jobs."""
    newest: dict[int | None, str] = {}
    for outcome in outcomes:
        newest[outcome.rank] = max(newest.get(outcome.rank, ""), _created(outcome))
    return (o for o in outcomes if o.rank is None or _created(o) == newest[o.rank])


def _created(outcome: Outcome) -> str:
    return outcome.created.isoformat() if outcome.created else ""


def _cause_order(outcome: Outcome) -> _CauseOrder:
    second, fraction = divmod(outcome.caused.timestamp(), 1) if outcome.caused else (0.0, 0.0)
    rank = -1 if outcome.rank is None else outcome.rank
    return not _vanished(outcome), outcome.caused is None, second, _ORDER[outcome.outcome], fraction, rank


def failures_first(outcomes: Iterable[Outcome], limit: int) -> list[Outcome]:
    """At most `limit` outcomes: what went wrong first in the order it happened, then successes by rank.

    What went wrong with pods that were replaced comes after the rest of it.
    """
    ends = list(outcomes)
    last = {outcome.uid for outcome in _last_pods(ends)}
    return sorted(ends, key=lambda outcome: _telling_order(outcome, replaced=outcome.uid not in last))[:limit]


def _telling_order(outcome: Outcome, *, replaced: bool) -> tuple[int, bool, _CauseOrder, int]:
    if outcome.outcome in _ORDER:
        return 0, replaced, _cause_order(outcome), 0
    rank = -1 if outcome.rank is None else outcome.rank
    return 1 + (outcome.outcome is OutcomeKind.SUCCEEDED), replaced, (False, False, 0.0, 0, 0.0, 0), rank


def result_outcomes(outcomes: Iterable[Outcome], completed: Collection[int]) -> dict[int, Outcome]:
    """The outcome that holds the result of each rank: a succeeded pod of an index that the Job counts as complete.

    A pod that succeeded beside the counted one is passed over; of several the first to finish is taken.
    """
    found: dict[int, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.outcome is OutcomeKind.SUCCEEDED and outcome.rank is not None and outcome.rank in completed:
            found[outcome.rank].append(outcome)
    return {rank: min(found[rank], key=lambda o: (o.finished is None, o.finished, o.uid)) for rank in sorted(found)}


def format_table(outcomes: Iterable[Outcome]) -> str:
    """Outcomes as text: rank, outcome, exit code, seconds, node; ordered by rank, then by start."""
    ordered = sorted(outcomes, key=lambda o: (o.rank is None, o.rank, str(o.created), o.uid))
    rows = [("rank", "outcome", "exit code", "seconds", "node"), *map(_row, ordered)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(outcome: Outcome) -> tuple[str, str, str, str, str]:
    seconds = "" if outcome.seconds is None else f"{outcome.seconds:.0f}"
    code = "" if outcome.exit_code is None else str(outcome.exit_code)
    rank = "" if outcome.rank is None else str(outcome.rank)
    return rank, str(outcome.outcome), code, seconds, outcome.node
