"""Build the view of a gang from a snapshot of the cluster and from Airflow's record of the task. Pure.

The page and the trigger's log use the same functions for phases, waits and diagnoses, so their texts are the same.
For a gang of any size the view has at most `ROWS_MAX` rows, one for each pod, the most informative first, and counts of
all ranks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from airflow_provider_gangjobs.attempt.messages import describe_placement
from airflow_provider_gangjobs.gang.outcome.diagnosis import diagnose
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind, failures_first, outcome_of
from airflow_provider_gangjobs.gang.state import pods as podutil
from airflow_provider_gangjobs.gang.state.deadlines import next_limit
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.gang.state.observation import Observation, observe, observe_counters
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.pod_index import Counts, PodIndex
from airflow_provider_gangjobs.gang.state.pods import refusal
from airflow_provider_gangjobs.gang.state.verdict import VerdictKind
from airflow_provider_gangjobs.gang.state.waiting import (
    WAIT_TEXT_CHARACTERS_MAX,
    Evidence,
    WaitCause,
    summarize_scheduler_message,
    to_line,
)
from airflow_provider_gangjobs.kube.quantity import format_bytes, format_cpu, requests_of
from airflow_provider_gangjobs.kube.text import keep_end, pluralize
from airflow_provider_gangjobs.submission.record import SubmissionRecord, record_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent, RankEnd
    from airflow_provider_gangjobs.gang.roles import RoleRanks
    from airflow_provider_gangjobs.gang.state.category import Diagnosis
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.plugins.locator import GangLocator
    from airflow_provider_gangjobs.tracking.snapshot import GangSnapshot


_NORMAL_WAITS: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons for which a container waits during a normal start."""


class Tone(StrEnum):
    """The CSS class of a state: a colour and a symbol, so that the colour is never the only sign."""

    BAD = "bad"
    WAIT = "wait"
    BUSY = "busy"
    GOOD = "good"


@dataclass(frozen=True)
class RankRow:
    """One pod. A rank has one pod, unless the Job was allowed to replace the pod."""

    rank: int | None
    """Rank in the gang."""
    state: str
    tone: Tone
    exit_code: int | None = None
    seconds: float | None = None
    """How long the pod's program has run."""
    node: str = ""
    restarts: int = 0
    message: str = ""
    role: str = ""
    """Role of the pod; empty if the gang has one Job only."""
    role_rank: int | None = None
    """Rank in the role."""

    @property
    def label(self) -> str:
        """The text of the column of ranks."""
        if self.rank is None:
            return ""
        return f"{self.role} {self.role_rank}" if self.role else str(self.rank)


WITHOUT_POD: Final = "without a pod"
_UNSCHEDULED: Final = "waiting for a node"
_RUNNING: Final = "running"
_LIVE_STATES: Final = {_UNSCHEDULED: 0, "starting": 1, "terminating": 2, _RUNNING: 3}
"""The states of pods that have not ended, with their order in the table."""


def merge_outcomes(pods: Iterable[PodView], recorded: Iterable[Outcome]) -> list[Outcome]:
    """Return the recorded outcomes, and the outcomes of ended pods that are not recorded yet."""
    outcomes = {outcome.uid: outcome for outcome in recorded}
    for pod in pods:
        if pod.metadata.uid not in outcomes and podutil.has_ended(pod):
            outcomes[pod.metadata.uid] = outcome_of(pod)
    return list(outcomes.values())


def build_rows(pods: Iterable[PodView], outcomes: Sequence[Outcome], now: datetime) -> list[RankRow]:
    """Return the rows in the order of the table.

    Pods that did not succeed come first, in the order in which they ended. Pods that wait, pods that run, and pods
    that succeeded follow.
    """
    ended_uids = {outcome.uid for outcome in outcomes}
    live = sorted((pod for pod in pods if pod.metadata.uid not in ended_uids), key=_live_order)
    ordered = failures_first(outcomes, len(outcomes))
    bad = [outcome_row(outcome) for outcome in ordered if outcome.outcome is not OutcomeKind.SUCCEEDED]
    good = [outcome_row(outcome) for outcome in ordered if outcome.outcome is OutcomeKind.SUCCEEDED]
    return [*bad, *(_live_row(pod, now) for pod in live), *good]


def count_by_state(rows: Sequence[RankRow], *, ranks: int, is_over: bool) -> tuple[tuple[str, int], ...]:
    """Return pairs of a state and its number of pods, in the order of the rows.

    While the gang is not over, the last pair is the number of ranks without a pod, if there are any.
    """
    counts = Counter(row.state for row in rows)
    missing = 0 if is_over else ranks - len({row.rank if row.rank is not None else id(row) for row in rows})
    return (*counts.items(), (WITHOUT_POD, missing)) if missing > 0 else tuple(counts.items())


def outcome_row(outcome: Outcome) -> RankRow:
    """Return the row of a pod that has ended. The row omits the rank's result, which only readers of XComs may see."""
    succeeded = outcome.outcome is OutcomeKind.SUCCEEDED
    # The reason "Error" says no more than the exit code.
    reason = "" if outcome.reason == "Error" else outcome.reason
    kept = to_line(outcome.error) or _end_of(outcome.message)
    message = () if succeeded else (outcome.disruption, reason, kept)
    return RankRow(
        rank=outcome.rank,
        state=str(outcome.outcome),
        tone=Tone.GOOD if succeeded else Tone.BAD,
        exit_code=outcome.exit_code,
        seconds=outcome.seconds,
        node=outcome.node,
        restarts=outcome.restarts,
        message=": ".join(filter(None, message)),
        role=outcome.role,
        role_rank=outcome.role_rank,
    )


def _end_of(output: str) -> str:
    """Return the end of what was kept of the output of a rank, on one line: the end says why the program failed."""
    return keep_end(" ".join(output.split()), WAIT_TEXT_CHARACTERS_MAX)


def _live_row(pod: PodView, now: datetime) -> RankRow:
    state = _live_state(pod)
    started = podutil.started_at(pod)
    return RankRow(
        rank=podutil.rank_of(pod),
        state=state,
        tone=Tone.BUSY if state == _RUNNING else Tone.WAIT,
        seconds=max(0.0, (now - started).total_seconds()) if started else None,
        node=pod.spec.node_name,
        restarts=max((status.restart_count for status in pod.status.container_statuses), default=0),
        message=_wait_message(pod),
        role=pod.metadata.labels.gang_role or "",
        role_rank=podutil.role_rank_of(pod),
    )


def _live_state(pod: PodView) -> str:
    if pod.metadata.deletion_timestamp is not None:
        return "terminating"
    if podutil.started_at(pod) is not None:
        return _RUNNING
    return "starting" if pod.spec.node_name else _UNSCHEDULED


def _wait_message(pod: PodView) -> str:
    if refused := refusal(pod):
        return summarize_scheduler_message(refused)
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    waits = (status.state.waiting for status in statuses)
    found = next((waiting for waiting in waits if waiting and waiting.reason not in _NORMAL_WAITS), None)
    return to_line(": ".join(filter(None, (found.reason, found.message)))) if found else ""


def _live_order(pod: PodView) -> tuple[int, int, int]:
    rank = podutil.rank_of(pod)
    return _message_order(pod), _LIVE_STATES[_live_state(pod)], -1 if rank is None else rank


def _message_order(pod: PodView) -> int:
    """Return 0 if the pod's message explains why the gang waits, 1 if the message is generic, and 2 without a message.

    Since Kubernetes 1.36, the scheduler reports the cause at few pods. The messages of most pods only say that too few
    pods of the gang fit.
    """
    message = _wait_message(pod)
    if not message:
        return 2
    refused = refusal(pod)
    return int(bool(refused) and message == to_line(refused))


ROWS_MAX: Final = 200
ATTEMPTS_MAX: Final = 20
_EXECUTION_TIMEOUT: Final = "execution_timeout"
_TIMEOUT_PARAMETERS: Final = {
    Phase.SUBMITTED: "queue_timeout",
    Phase.QUEUED: "queue_timeout",
    Phase.ASSEMBLING: "assemble_timeout",
    Phase.RUNNING: "run_timeout",
}
_TONES: Final = {
    Phase.RUNNING: Tone.BUSY,
    Phase.FINISHING: Tone.BUSY,
    Phase.SUCCEEDED: Tone.GOOD,
    Phase.FAILED: Tone.BAD,
    Phase.DELETED: Tone.BAD,
}
_BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")


@dataclass(frozen=True)
class DeadlineView:
    """A deadline: the parameter of the task that sets it, and its time."""

    parameter: str
    at: datetime


@dataclass(frozen=True)
class AttemptRow:
    """The row of another attempt of the same task."""

    number: int
    name: str
    phase: str
    tone: Tone
    submitted: datetime | None
    ended: datetime | None
    message: str


@dataclass(frozen=True)
class GangView:
    """Everything that the page shows of a gang, in the order of the page."""

    title: str
    """`<namespace>/<name>` of the Job."""
    phase: str
    tone: Tone
    attempt: int | None = None
    since: datetime | None = None
    """When the phase began."""
    category: str = ""
    """The `Category` of the diagnosis; empty if it is unknown."""
    summary: str = ""
    """A sentence that says what the gang waits for, or why the gang failed."""
    remedy: str = ""
    """A sentence that says what the user can do; empty if there is nothing to do."""
    details: tuple[tuple[str, str], ...] = ()
    """Pairs of a name and a value."""
    phase_times: tuple[tuple[str, datetime], ...] = ()
    """Pairs of a phase and the time at which the phase began."""
    deadline: DeadlineView | None = None
    """The next deadline."""
    state_counts: tuple[tuple[str, int], ...] = ()
    """Pairs of a state and the number of ranks in that state."""
    rows: tuple[RankRow, ...] = ()
    rows_omitted: int = 0
    """The number of ranks that have no row."""
    other_attempts: tuple[AttemptRow, ...] = ()
    notes: tuple[str, ...] = ()
    is_final: bool = False
    """Whether the view will not change any more."""


def build_view(locator: GangLocator, snapshot: GangSnapshot, now: datetime) -> GangView:
    """Return the view of the gang that `locator` names."""
    if snapshot.job is None:
        view = _view_without_job(locator)
    else:
        job = read_gang(snapshot.job, snapshot.role_jobs)
        requests = "" if job.has_roles else _format_requests(snapshot.job)
        view = _view_of_job(locator, snapshot, job, requests, now)
    others = [record_of(read_gang(job, snapshot.role_jobs)) for job in snapshot.jobs if job is not snapshot.job]
    return replace(view, other_attempts=tuple(map(_attempt_row, others[:ATTEMPTS_MAX])))


# -- the Job exists --------------------------------------------------------------------------------------------------


def _view_of_job(
    locator: GangLocator, snapshot: GangSnapshot, job: StoredGang, requests: str, now: datetime
) -> GangView:
    record = record_of(job)
    observation = _observation(snapshot, job)
    phase = observation.phase
    outcomes = merge_outcomes(snapshot.pods, snapshot.outcomes)
    diagnosis = diagnose(observation, outcomes)
    summary = _summary(observation, record, diagnosis, requests)
    rows = build_rows(snapshot.pods, outcomes, now)
    ranks = observation.counts.ranks
    is_over = observation.verdict is not None or phase is Phase.FAILED
    return GangView(
        title=str(record.ref),
        phase=str(phase),
        tone=_TONES.get(phase, Tone.WAIT),
        attempt=record.attempt,
        since=observation.since,
        category=diagnosis.category,
        summary=summary,
        remedy=diagnosis.remedy,
        details=tuple(_details(record, "" if requests in summary else requests, ranks, job.roles)),
        phase_times=tuple((str(phase), at) for phase in Phase if (at := observation.began.get(phase)) is not None),
        deadline=None if is_over else _next_deadline(locator, observation),
        state_counts=(
            count_by_state(rows, ranks=ranks, is_over=is_over) if snapshot.is_whole else _state_counts_of_job(job)
        ),
        rows=tuple(rows[:ROWS_MAX]),
        rows_omitted=max(0, (len(rows) if snapshot.is_whole else ranks) - len(rows[:ROWS_MAX])),
        notes=tuple(f"The connection may not list {what} in this namespace." for what in snapshot.unread),
        is_final=locator.is_finished and is_over,
    )


def _observation(snapshot: GangSnapshot, job: StoredGang) -> Observation:
    evidence = Evidence(snapshot.events, snapshot.queue_workload, snapshot.queue_position, snapshot.shows_queue)
    if snapshot.is_whole:
        return observe(job, snapshot.pods, snapshot.podgroup, job.ref, evidence)
    sample = PodIndex(job.ref, snapshot.pods)
    return observe_counters(job, sample, snapshot.podgroup, _counts_of_job(job), evidence)


def _counts_of_job(job: StoredGang) -> Counts:
    """Return counts from the Job's counters, which do not distinguish the pods that have not started."""
    started, ranks = job.started_ranks, job.ranks
    return Counts(
        ranks=ranks,
        created=ranks,
        placed=started,
        started=started,
        running=job.status.ready,
        succeeded=job.status.succeeded,
        failed=job.status.failed,
    )


def _state_counts_of_job(job: StoredGang) -> tuple[tuple[str, int], ...]:
    status = job.status
    with_pods = status.active + status.succeeded + status.failed + status.terminating
    counts = {
        "failed": status.failed,
        "waiting or starting": max(0, status.active - status.ready),
        "running": status.ready,
        "terminating": status.terminating,
        "succeeded": status.succeeded,
        WITHOUT_POD: max(0, job.ranks - with_pods),
    }
    return tuple((state, number) for state, number in counts.items() if number)


def _summary(observation: Observation, record: SubmissionRecord, diagnosis: Diagnosis, requests: str) -> str:
    if observation.wait.cause is WaitCause.HALTED and record.error is not None:
        return record.error.message
    if observation.verdict is not None and observation.verdict.kind is not VerdictKind.SUCCEEDED:
        return diagnosis.summary
    text = observation.wait.text
    if observation.phase is Phase.ASSEMBLING and observation.counts.placed < observation.counts.ranks and requests:
        return f"Needs {observation.counts.ranks} x ({requests}) at once. {text}"
    if observation.phase is Phase.RUNNING:
        return f"All {pluralize(observation.counts.ranks, 'rank')} have started."
    return text


def _next_deadline(locator: GangLocator, observation: Observation) -> DeadlineView | None:
    deadlines = []
    limit = next_limit(observation, locator.deadlines)
    if limit is not None:
        deadlines.append(DeadlineView(_TIMEOUT_PARAMETERS[limit.phase], limit.at))
    if locator.deadline is not None:
        deadlines.append(DeadlineView(_EXECUTION_TIMEOUT, datetime.fromtimestamp(locator.deadline, UTC)))
    return min(deadlines, key=lambda deadline: deadline.at, default=None)


def _details(record: SubmissionRecord, requests: str, ranks: int, roles: Sequence[RoleRanks]) -> list[tuple[str, str]]:
    details = [
        ("Roles", ", ".join(f"{role.size} {role.name}" for role in roles)),
        ("Ranks", str(ranks)),
        ("Requests of each rank", requests),
        ("Placement", describe_placement(record.decision) if record.decision else ""),
        ("Airflow installation", record.installation),
        ("Delivered to Airflow", f"{record.delivered_at:%Y-%m-%d %H:%M:%S} UTC" if record.delivered_at else ""),
    ]
    return [(name, value) for name, value in details if value]


def _format_requests(job: Mapping[str, Any]) -> str:
    try:
        requests = requests_of(job["spec"]["template"]["spec"])
    except (KeyError, TypeError, ValueError):
        return ""
    common = ("cpu", "memory")
    names = sorted(requests, key=lambda name: (common.index(name) if name in common else -1, name))
    return ", ".join(f"{_format_amount(name, requests[name])} {name}" for name in names if requests[name])


def _format_amount(name: str, amount: Any) -> str:
    return format_bytes(amount) if name.startswith(_BYTES) else format_cpu(amount)


def _attempt_row(record: SubmissionRecord) -> AttemptRow:
    return AttemptRow(
        number=record.attempt,
        name=record.ref.name,
        phase=str(record.phase),
        tone=_TONES.get(record.phase, Tone.WAIT),
        submitted=record.submitted_at,
        ended=record.ended_at,
        message=f"{record.error.reason}: {record.error.message}".strip(": ") if record.error else "",
    )


# -- the Job does not exist, or the cluster cannot be read -----------------------------------------------------------

JOB_NOT_FOUND: Final = "The gang's Job does not exist in the cluster."
FROM_END_EVENT: Final = "The page shows what Airflow recorded when the gang ended."


def view_without_cluster(locator: GangLocator, error: str) -> GangView | None:
    """Return the view from Airflow's records alone; `None` if Airflow has no record of the gang's end."""
    return _view_of_end(locator, locator.end, f"{error} {FROM_END_EVENT}") if locator.end is not None else None


def _view_without_job(locator: GangLocator) -> GangView:
    if locator.end is not None:
        return _view_of_end(locator, locator.end, f"{JOB_NOT_FOUND} {FROM_END_EVENT}")
    return GangView(
        title=str(locator.ref),
        phase=str(Phase.DELETED),
        tone=Tone.WAIT,
        summary=JOB_NOT_FOUND,
        is_final=locator.is_finished,
    )


def _view_of_end(locator: GangLocator, end: GangEvent, note: str) -> GangView:
    rows = [_row_of_end(rank) for rank in end.ranks]
    ranks = end.counts.get("ranks", len(rows))
    return GangView(
        title=str(locator.ref),
        phase=str(end.status),
        tone=Tone.GOOD if end.status is Status.SUCCEEDED else Tone.BAD,
        attempt=end.attempt,
        category=end.category,
        summary=end.message,
        remedy=end.remedy,
        details=(("Ranks", str(ranks)),),
        state_counts=tuple((name, end.counts[name]) for name in ("failed", "succeeded") if end.counts.get(name)),
        rows=tuple(rows),
        rows_omitted=max(0, ranks - len(rows)),
        notes=(note, *end.notes),
        is_final=locator.is_finished,
    )


def _row_of_end(end: RankEnd) -> RankRow:
    known = {name: value for name, value in asdict(end).items() if name != "seconds"}
    return replace(outcome_row(Outcome(uid="", **known)), seconds=end.seconds)
