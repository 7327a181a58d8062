"""Outcome: how one pod of a gang ended, which outcome caused the others, and which ones hold results. Pure.

An outcome is a function of the pod's final status, so two observers record equal outcomes. The ledger keeps them by the
UID of the pod, so none is counted twice. Kubernetes terms keep their meaning: a pod is `preempted` only if a pod of
higher priority took its place.

A rank whose result is large returns the address of an object, and the task that uses the result opens the address with
the rights of its worker. A rank may write any address. So the task that runs the gang marks the addresses of objects in
its own folder, and only marked addresses are followed. A rank cannot write the mark: `without_marks` removes the mark
from everything that a rank has written.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_provider_gangjobs.container_programs.gangjobs_result import parse
from airflow_provider_gangjobs.gang.outcome.restarts import without_lines
from airflow_provider_gangjobs.gang.state import pods as podutil
from airflow_provider_gangjobs.gang.state.pods import REASON_EVICTED
from airflow_provider_gangjobs.kube.text import cut_end
from airflow_provider_gangjobs.kube.views import Condition, PodView, Terminated, find_true_condition
from airflow_provider_gangjobs.kube.well_known import TERMINATION_MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

POD_MESSAGE_BYTES_MAX: Final = 12 * 1024
"""The kubelet divides this among all containers of a pod (`MaxPodTerminationMessageLogLength`)."""
STATUS_CHARACTERS_MAX: Final = 256
HEADLINE_CHARACTERS_MAX: Final = 256
SIGNAL_EXIT_CODE_BASE: Final = 128
"""Shells and container runtimes report an end by signal n as exit code 128 + n."""
SIGNAL_MAX: Final = 64
SIGKILL: Final = 9
SIGTERM: Final = 15


class OutcomeKind(StrEnum):
    """Kind of an outcome: how a pod ended. The values are part of the ledger format and of events."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The pod failed because of its program, image or configuration."""
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    LOST = "lost"
    """The node of the pod went away, and the end of the pod was not observed."""
    DELETED = "deleted"
    """A person deleted the pod, or the Job controller did when the end of the gang was decided."""
    UNKNOWN = "unknown"
    """The pod had not ended when tracking stopped."""


DISRUPTIONS: Final = frozenset({OutcomeKind.PREEMPTED, OutcomeKind.EVICTED, OutcomeKind.LOST})

REASONS_NODE_SHUTDOWN: Final = ("Terminated", "NodeShutdown")
"""Reasons of a pod that the kubelet ended or refused because its node shuts down."""

_BY_KUBELET: Final = "TerminationByKubelet"
# Reason of the pod condition DisruptionTarget (KEP-3329) -> kind.
_BY_DISRUPTION: Final = {
    "PreemptionByScheduler": OutcomeKind.PREEMPTED,
    "EvictionByEvictionAPI": OutcomeKind.EVICTED,
    "DeletionByTaintManager": OutcomeKind.EVICTED,
    _BY_KUBELET: OutcomeKind.EVICTED,
    "DeletionByPodGC": OutcomeKind.LOST,
}
# `status.reason` of a pod, written by the kubelet and the node controllers -> kind. `Evicted` is absent: a kubelet that
# evicts a pod because its node lacks resources sets the condition DisruptionTarget. `Evicted` without the condition
# means that the pod used more storage than its own limit, or that the kubelet refused the pod.
_BY_POD_REASON: Final = {
    **dict.fromkeys(REASONS_NODE_SHUTDOWN, OutcomeKind.EVICTED),
    "Preempting": OutcomeKind.PREEMPTED,
    "NodeLost": OutcomeKind.LOST,
}
# Part of the message of a pod that the kubelet refused because its node lacks resources (`nodeConditionMessageFmt` in
# pkg/kubelet/eviction/helpers.go). Such a pod has the reason `Evicted` and no condition DisruptionTarget.
_REFUSED_UNDER_PRESSURE: Final = "The node had condition: "
REMOVED_WITHIN: Final = timedelta(minutes=5)
"""In what time the kubelet removes a pod that was deleted: its containers have ended, and it unmounts the volumes."""
CLOCKS_DIFFER_MAX: Final = timedelta(seconds=10)
"""By how much the clock of a node, which times the ends of containers, may differ from that of the control plane."""


class Outcome(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """How one pod ended. All times come from the cluster. Fields are added and never renamed."""

    uid: str
    pod: str
    outcome: OutcomeKind
    rank: int | None = None
    """Rank in the gang."""
    role: str = ""
    """Role of the pod; empty if the gang has one Job only."""
    role_rank: int | None = None
    """Rank in the role."""
    attempt: int | None = None
    node: str = ""
    phase: str = ""
    container: str = ""
    """Name of the container that determined the outcome; empty if it is the main container."""
    exit_code: int | None = None
    """Exit code of the container; `None` if the kubelet did not observe the end of the container."""
    signal: int | None = None
    reason: str = ""
    message: str = ""
    """Termination message. The message of a succeeded pod is the result of the rank."""
    message_cut: bool = False
    """The message has the maximum length that the kubelet keeps, so its end may be missing."""
    created: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    caused: datetime | None = None
    """Time of the event that ended the pod: the disruption, the request to delete the pod, or else the end of the
    pod."""
    restarts: int = 0
    disruption: str = ""
    """Reason of the DisruptionTarget condition."""
    status_message: str = ""
    """Message of the pod status if something other than the program caused the end, for example which resource the node
    lacked."""

    @property
    def is_counted(self) -> bool:
        """The pod succeeded as a whole, so its Job counts it. False if only its main container succeeded."""
        return self.outcome is OutcomeKind.SUCCEEDED and self.phase not in {"Running", "Failed"}

    @property
    def is_deleted_success(self) -> bool:
        """The main container succeeded, and the pod was deleted before its other containers had ended."""
        return self.outcome is OutcomeKind.SUCCEEDED and self.phase == "Failed"

    @property
    def name(self) -> str:
        return podutil.name_rank(self.rank, self.role, self.role_rank, pod=self.pod)

    @property
    def seconds(self) -> float | None:
        """Run time of the program in seconds; `None` if the start or the end is unknown."""
        return (self.finished - self.started).total_seconds() if self.started and self.finished else None

    @property
    def result(self) -> Any:
        """Result that the rank wrote to `GANG_RESULT_PATH`: a JSON value, or text that is not JSON.

        `None` if the rank did not succeed, wrote nothing, or wrote a message that was cut or what Airflow cannot store.
        Marks that `read_result` would follow are removed.
        """
        value, problem = self._result
        return None if problem else without_marks(value)

    @property
    def result_problem(self) -> str:
        """What Airflow cannot store of the result, with its place, such as `result["loss"] is NaN`; else empty."""
        return self._result[1]

    @property
    def _result(self) -> tuple[Any, str]:
        has_result = self.outcome is OutcomeKind.SUCCEEDED and not self.message_cut and self.message.strip()
        return parse(self.message) if has_result else (None, "")

    @property
    def error(self) -> str:
        """Error message of a failed rank, which may write `{"error": "..."}` to `GANG_RESULT_PATH`."""
        return _reported_error(self.message)[0] if self.outcome is OutcomeKind.FAILED else ""

    @property
    def headline(self) -> str:
        """What the failed rank said about its failure in one line: `error`, or the exception at the end of its
        output."""
        if self.error or self.outcome is not OutcomeKind.FAILED:
            return self.error
        return cut_end(_exception_line(self.message), HEADLINE_CHARACTERS_MAX)


_FRAME: Final = re.compile(r"^ +File \".*\", line \d+.*$", re.MULTILINE)
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?")
_EXCEPTION_BY_NAME: Final = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?")


def _exception_line(output: str) -> str:
    """Return the line of a Python traceback that names the exception, if the output ends with one.

    The line follows the last frame. Without a frame, only the last line counts, and only if it names the class of an
    exception.
    """
    *_, after = _FRAME.split(output)
    lines = [line.rstrip() for line in after.splitlines() if line.strip()]
    if after != output:
        line = next((line for line in lines if not line[0].isspace()), "")
        return line if _EXCEPTION.fullmatch(line) else ""
    return lines[-1] if lines and _EXCEPTION_BY_NAME.fullmatch(lines[-1]) else ""


_BLANK: Final = " \t\r\n\ufeff"


def _reported_error(message: str) -> tuple[str, float]:
    """Return the error that the program reports, and its time in seconds since 1970 by the clock of the node.

    The message is read as leniently as a result, because a program whose numbers diverge writes NaN with its error. If
    the program has written several lines, the last one counts.
    """
    text = message.strip(_BLANK)
    for part in (text, text.rpartition("\n")[2].lstrip(_BLANK)):
        value = parse(part)[0] if part.startswith("{") else None
        if isinstance(value, dict) and isinstance(error := value.get("error"), str):
            at = value.get("at")
            return error.encode(errors="replace").decode().strip(), at if isinstance(at, int | float) else 0.0
    return "", 0.0


def outcome_of(pod: PodView, *, ended: bool = True) -> Outcome:
    """Return the outcome of a pod. A pod that was removed before it was terminal counts as deleted.

    :param ended: False if tracking stopped before the pod ended.
    """
    container, terminated = _deciding_container(pod)
    disruption = _find_disruption(pod, terminated)
    kind = _kind_of(pod, terminated, disruption) if ended else OutcomeKind.UNKNOWN
    observed = None if podutil.is_lost(terminated) else terminated
    ended_main = podutil.time_of_end(terminated) if terminated is not None and not container else None
    finished = caused = ended_main or podutil.finished_at(pod)
    role = pod.metadata.labels.gang_role or ""
    message = observed.message if observed else ""
    if kind is not OutcomeKind.SUCCEEDED:  # a rank that has succeeded has written its result itself, or nothing
        message = message or pod.status.message
    is_cut = len(message.encode()) >= _message_bytes_max(pod)
    if kind is not OutcomeKind.SUCCEEDED:
        message = without_lines(message)  # the kubelet may have taken the end of the log
    if kind is not OutcomeKind.SUCCEEDED or pod.status.phase == "Failed":
        caused = _caused_at(pod, kind, disruption) or _failed_at(pod, kind, message) or finished or _reported_at(pod)
    return Outcome(
        uid=pod.metadata.uid,
        pod=pod.metadata.name,
        outcome=kind,
        rank=podutil.rank_of(pod),
        role=role,
        role_rank=podutil.role_rank_of(pod) if role else None,
        attempt=podutil.attempt_of(pod),
        node=pod.spec.node_name,
        phase=pod.status.phase,
        container=container,
        exit_code=observed.exit_code if observed else None,
        signal=_signal(observed),
        reason=_reason(pod, terminated),
        message=_cut(message),
        message_cut=is_cut,
        created=pod.metadata.creation_timestamp,
        started=podutil.started_at(pod),
        finished=finished,
        caused=caused,
        restarts=max((status.restart_count for status in pod.status.container_statuses), default=0),
        disruption=disruption.reason if disruption else "",
        status_message="" if kind is OutcomeKind.SUCCEEDED else cut_end(pod.status.message, STATUS_CHARACTERS_MAX),
    )


def _deciding_container(pod: PodView) -> tuple[str, Terminated | None]:
    """Return the name and the end of the container that determined the outcome of the pod.

    This is the main container, whose name is empty, unless only another one failed, and nobody had asked for the end of
    the pod.
    """
    main = podutil.main_container(pod)
    terminated = podutil.ended_state(main) if main else None
    if pod.status.phase == "Succeeded" or (terminated and terminated.exit_code) or _ended_by_main(pod) is not None:
        return "", terminated
    others = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    failed = ((status.name, end) for status in others if (end := podutil.ended_state(status)) and end.exit_code)
    return next(failed, ("", terminated))


def _find_disruption(pod: PodView, terminated: Terminated | None) -> Condition | None:
    """Return the condition of the disruption that ended the pod.

    A drain and a taint of the node also mark a pod that has ended and is held. The kubelet marks only a pod that it
    ends.

    :param terminated: The end of the container that determined the outcome.
    """
    found = find_true_condition(pod.status.conditions, "DisruptionTarget")
    if found is None or found.last_transition_time is None or found.reason == _BY_KUBELET:
        return found
    main = podutil.main_container(pod)
    if terminated is None or not terminated.exit_code or (main is not None and main.state.running is not None):
        return found
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    is_final = any(podutil.end_for_good(pod, status) is terminated for status in statuses)
    ended = podutil.time_of_end(terminated)
    is_later = ended is not None and found.last_transition_time - ended >= CLOCKS_DIFFER_MAX
    return None if is_final and is_later else found


def _kind_of(pod: PodView, terminated: Terminated | None, disruption: Condition | None) -> OutcomeKind:
    if pod.status.phase == "Succeeded":
        return OutcomeKind.SUCCEEDED
    if disruption is not None:
        return _BY_DISRUPTION.get(disruption.reason, OutcomeKind.EVICTED)
    if pod.status.reason in _BY_POD_REASON:
        return _BY_POD_REASON[pod.status.reason]
    if pod.status.reason == REASON_EVICTED and _REFUSED_UNDER_PRESSURE in pod.status.message:
        return OutcomeKind.EVICTED
    if podutil.is_lost(terminated) and not pod.status.reason:
        return OutcomeKind.LOST
    if (end := _ended_by_main(pod)) is not None:
        return OutcomeKind.FAILED if end.exit_code else OutcomeKind.SUCCEEDED
    if pod.status.phase != "Failed" or _was_deleted_first(pod, terminated):
        return OutcomeKind.DELETED
    return OutcomeKind.FAILED


def _ended_by_main(pod: PodView) -> Terminated | None:
    """Return the end of the main container, if it was the end of the rank although other containers ran on.

    If the pod has ended, its deletion was requested later, and no other container had failed before.
    """
    end = podutil.main_end(pod)
    if end is None or len(pod.status.container_statuses) == 1:
        return None
    if pod.metadata.deletion_timestamp is None:
        return None if podutil.is_terminal(pod) else end
    others = (podutil.ended_state(status) for status in pod.status.container_statuses)
    failed_first = any(
        other and other is not end and other.exit_code and not _was_deleted_first(pod, other) for other in others
    )
    is_first = not pod.status.reason and not _was_deleted_first(pod, end)
    return end if is_first and (end.exit_code or not failed_first) else None


def _was_deleted_first(pod: PodView, terminated: Terminated | None) -> bool:
    requested = podutil.deletion_requested_at(pod.metadata)
    # A pod has a reason of its own if the kubelet refused the pod, or ended the pod for another reason than a deletion.
    if requested is None or pod.status.reason:
        return False
    if terminated is None or terminated.finished_at is None:
        return True
    if terminated.finished_at > requested:
        return True
    # Times have whole seconds. If both times are equal, only the signal that the kubelet sends shows that the deletion
    # came first. The signal also decides if the kubelet has finished with the pod: it deletes the pod with a grace
    # period of 0, and the time of this deletion overwrites the time of the first request. The API server gives the same
    # grace period to every deletion of a pod that has ended, which may come much later.
    has_no_grace = pod.metadata.deletion_grace_period_seconds == 0 and terminated.reason != "OOMKilled"
    is_overwritten = has_no_grace and requested - terminated.finished_at < REMOVED_WITHIN
    return (terminated.finished_at == requested or is_overwritten) and _signal(terminated) in {SIGTERM, SIGKILL}


_ENDED_BY_DELETION: Final = frozenset({OutcomeKind.DELETED, OutcomeKind.SUCCEEDED})
"""Kinds of pods that did not succeed as a whole, whose end a deletion caused."""


def _caused_at(pod: PodView, kind: OutcomeKind, disruption: Condition | None) -> datetime | None:
    if kind in DISRUPTIONS and disruption is not None:
        return disruption.last_transition_time
    requested = podutil.deletion_requested_at(pod.metadata) if kind in _ENDED_BY_DELETION else None
    finished = podutil.finished_at(pod)
    return min(requested, finished) if requested and finished else requested


def _reported_at(pod: PodView) -> datetime | None:
    """Return the time at which the kubelet refused the pod, or saw that the pod had ended.

    The start time of a refused pod is the time of the refusal. A pod whose containers were removed before the kubelet
    had read their end is declared not ready when it is declared failed, unless it was not ready before.
    """
    if not pod.status.container_statuses and not pod.status.init_container_statuses:
        return pod.status.start_time
    unready = (item.last_transition_time for item in pod.status.conditions if item.type == "Ready")
    return next(unready, None)


def _failed_at(pod: PodView, kind: OutcomeKind, message: str) -> datetime | None:
    """Return the time of failure that the program reports, if the container ran then.

    Its fractions of a second matter, because the peers of a failed rank end within the same second.
    """
    started, finished = podutil.started_at(pod), podutil.finished_at(pod)
    if kind is not OutcomeKind.FAILED or started is None or finished is None:
        return None
    _, moment = _reported_error(message)
    # Kubernetes cuts the times of containers to whole seconds.
    if not started.timestamp() <= moment < finished.timestamp() + 1:
        return None
    return datetime.fromtimestamp(moment, UTC)


def _signal(terminated: Terminated | None) -> int | None:
    if terminated is None:
        return None
    by_code = terminated.exit_code - SIGNAL_EXIT_CODE_BASE
    return terminated.signal or (by_code if 0 < by_code <= SIGNAL_MAX else None)


def _reason(pod: PodView, terminated: Terminated | None) -> str:
    # A pod has a reason of its own if something other than the program caused the end: the container was only stopped.
    of_container = terminated.reason if terminated and terminated.reason != "Completed" else ""
    return pod.status.reason or of_container


def _message_bytes_max(pod: PodView) -> int:
    containers = len(pod.status.container_statuses) + len(pod.status.init_container_statuses)
    return min(TERMINATION_MESSAGE_BYTES_MAX, POD_MESSAGE_BYTES_MAX // max(containers, 1))


def _cut(message: str) -> str:
    raw = message.encode()
    if len(raw) <= TERMINATION_MESSAGE_BYTES_MAX:
        return message
    return raw[:TERMINATION_MESSAGE_BYTES_MAX].decode(errors="ignore")


# Controllers set these reasons minutes after a node stopped responding. The peers of the rank have failed by then.
_DETECTED_LATE: Final = frozenset({"DeletionByPodGC", "DeletionByTaintManager"})


def _was_lost_with_node(outcome: Outcome) -> bool:
    """The node was lost before the recorded time. An end that the node itself reported has a reliable time."""
    return outcome.disruption in _DETECTED_LATE and outcome.exit_code is None


# Among outcomes of the same second, the outcome that can cause others comes first: a disruption or an eviction before
# the failures of its peers, and a failure before the deletions by which the Job controller reacts to it. Only a failed
# program can report fractions of a second, because the times of the cluster have none.
_ORDER: Final = {
    OutcomeKind.PREEMPTED: 0,
    OutcomeKind.EVICTED: 0,
    OutcomeKind.LOST: 0,
    OutcomeKind.FAILED: 1,
    OutcomeKind.DELETED: 2,
}


def root_cause(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the outcome that caused the others: the earliest one of a pod that the Job does not count as succeeded.

    Outcomes of pods that were replaced are ignored. Peers of a failed rank end later, by SIGTERM or by their lost
    connection. A rank that was lost with its node comes first, because the loss is detected late.
    """
    last = last_pods(list(outcomes))
    ends = (outcome for outcome in last if outcome.outcome in _ORDER or outcome.is_deleted_success)
    return min(ends, key=_causal_order, default=None)


def last_pods(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Yield the outcomes of pods that were not replaced. A queue may run the gang again, and a plain Job replaces
    pods."""
    newest: dict[int | None, str] = {}
    for outcome in outcomes:
        newest[outcome.rank] = max(newest.get(outcome.rank, ""), _created(outcome))
    return (o for o in outcomes if o.rank is None or _created(o) == newest[o.rank])


class FailedRanks:
    """Counts the ranks whose last pod did not succeed, from outcomes in any order. An unknown outcome is no failure."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._last: dict[int | str, tuple[str, bool]] = {}
        for outcome in outcomes:
            self.add(outcome)

    def __len__(self) -> int:
        return sum(has_failed for _, has_failed in self._last.values())

    def add(self, outcome: Outcome) -> None:
        key = outcome.uid if outcome.rank is None else outcome.rank
        end = (_created(outcome), outcome.outcome in _ORDER)
        self._last[key] = max(self._last.get(key, end), end)


def _created(outcome: Outcome) -> str:
    return outcome.created.isoformat() if outcome.created else ""


def _causal_order(outcome: Outcome) -> tuple[bool, bool, float, int, float, int]:
    second, fraction = divmod(outcome.caused.timestamp(), 1) if outcome.caused else (0.0, 0.0)
    order = 0 if outcome.reason == REASON_EVICTED else _ORDER.get(outcome.outcome, _ORDER[OutcomeKind.DELETED])
    return not _was_lost_with_node(outcome), outcome.caused is None, second, order, fraction, _rank(outcome)


def _rank(outcome: Outcome) -> int:
    return -1 if outcome.rank is None else outcome.rank


def failures_first(outcomes: Iterable[Outcome], limit: int) -> list[Outcome]:
    """Return at most `limit` outcomes: failures in the order in which they happened, then successes by rank.

    Failures of pods that were replaced come after the other failures.
    """
    found = list(outcomes)
    last = {outcome.uid for outcome in last_pods(found)}
    failures = [outcome for outcome in found if outcome.outcome in _ORDER]
    others = [outcome for outcome in found if outcome.outcome not in _ORDER]
    failures.sort(key=lambda one: (one.uid not in last, _causal_order(one)))
    others.sort(key=lambda one: (one.outcome is OutcomeKind.SUCCEEDED, one.uid not in last, _rank(one)))
    return [*failures, *others][:limit]


def result_outcomes(outcomes: Iterable[Outcome], completed: Collection[int]) -> dict[int, Outcome]:
    """Return the outcome that holds the result of each rank that the Job counts as completed.

    This is the pod that finished first. If only main containers succeeded, it is the newest pod, because a queue may
    have suspended the gang before the others counted.
    """
    found: dict[int, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.outcome is OutcomeKind.SUCCEEDED and outcome.rank is not None and outcome.rank in completed:
            found[outcome.rank].append(outcome)
    return {rank: _result_of(found[rank]) for rank in sorted(found)}


def _result_of(succeeded: Sequence[Outcome]) -> Outcome:
    counted = [outcome for outcome in succeeded if outcome.is_counted]
    if not counted:
        return max(succeeded, key=lambda outcome: (_created(outcome), outcome.uid))
    return min(counted, key=end_order)


def end_order(outcome: Outcome) -> tuple[bool, datetime | None, str]:
    """Return the place of an outcome in the order in which pods ended. An unknown end comes last."""
    return outcome.finished is None, outcome.finished, outcome.uid


def format_table(outcomes: Iterable[Outcome]) -> str:
    """Format outcomes as a text table, ordered by rank and creation."""
    ordered = sorted(outcomes, key=lambda o: (o.rank is None, o.rank, str(o.created), o.uid))
    rows: list[tuple[str, ...]] = [("rank", "outcome", "exit code", "seconds", "node"), *map(_row, ordered)]
    if any(outcome.role for outcome in ordered):
        roles = ("role", *(outcome.role for outcome in ordered))
        rows = [(role, *row) for role, row in zip(roles, rows, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(outcome: Outcome) -> tuple[str, str, str, str, str]:
    seconds = "" if outcome.seconds is None else f"{outcome.seconds:.0f}"
    code = "" if outcome.exit_code is None else str(outcome.exit_code)
    number = outcome.role_rank if outcome.role else outcome.rank
    rank = "" if number is None else str(number)
    return rank, str(outcome.outcome), code, seconds, outcome.node


ADDRESS: Final = "gang_result"
"""Key of the address of a stored result. `operators.gangjobs_result`, which runs on the ranks, writes it."""
SIZE: Final = "bytes"
MARK: Final = "gang_result_folder"
"""Key of the folder that the address was found to be in. The task that runs the gang writes it."""

_OBJECT: Final = re.compile(r"attempt-\d+/(?:rank-\d+|pod-[A-Za-z0-9.-]+)\.json", re.ASCII)
_STEP: Final = re.compile(r"\.{0,2}")


def is_address(value: Any) -> bool:
    """Return whether the value is the address of a stored result, with or without the mark."""
    is_shaped = isinstance(value, Mapping) and value.keys() - {MARK} == {ADDRESS, SIZE}
    types = {ADDRESS: str, SIZE: int, MARK: str}
    return is_shaped and all(isinstance(item, types[name]) for name, item in value.items())


def with_mark(value: Any, folder: str | None) -> Any:
    """Return an address with its mark if it is that of a rank's object in the folder, else the value."""
    if folder is None or not is_address(value) or not _OBJECT.fullmatch(path_in(folder, value[ADDRESS])):
        return value
    return {**value, MARK: folder}


def without_marks(value: Any) -> Any:
    """Remove all marks from a JSON value, at any depth, and return the value."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            item.pop(MARK, None)
            pending += item.values()
        elif isinstance(item, list):
            pending += item
    return value


def path_in(folder: str, address: str) -> str:
    """Return the path from the folder to the object; empty if it is not below the folder."""
    root = folder.rstrip("/") + "/"
    path = address.removeprefix(root) if address.startswith(root) else ""
    steps = path.split("/")
    # fsspec takes "a::b" as the path a in the file system b.
    return "" if "::" in path or any(_STEP.fullmatch(step) for step in steps) else path
