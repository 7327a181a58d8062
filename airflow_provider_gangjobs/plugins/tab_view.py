"""Build the view of a gang from a snapshot of the cluster and from Airflow's record of the task. Pure.

The page and the trigger's log use the same functions for phases, waits and diagnoses, so their texts are the same.
For a gang of any size the view has at most `ROWS_MAX` rows, one for each pod, the most informative first, and counts of
all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict
from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.attempt.messages import describe_placement
from airflow_provider_gangjobs.gang.gang_lists import GangRow, row_of
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.outcome.outcome_diagnosis import diagnose
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
from airflow_provider_gangjobs.gang.outcome.rank_rows import (
    WITHOUT_POD,
    RankRow,
    Tone,
    build_rows,
    count_by_state,
    merge_outcomes,
    outcome_row,
    tone_of,
)
from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorReport
from airflow_provider_gangjobs.gang.outcome.time_use import describe_use
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.deadlines import PARAMETERS, next_limit
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.gang.state.observation import observe
from airflow_provider_gangjobs.gang.state.phase import FINAL_PHASES, Phase, VerdictKind
from airflow_provider_gangjobs.gang.state.pods import rank_of
from airflow_provider_gangjobs.gang.state.stop import deadline_of
from airflow_provider_gangjobs.gang.state.stopped import EXECUTION_TIMEOUT
from airflow_provider_gangjobs.gang.state.waiting import WaitCause
from airflow_provider_gangjobs.plugins.page_rows import PHASE_OF_STATUS
from airflow_provider_gangjobs.plugins.page_text import format_duration, format_requests
from airflow_provider_gangjobs.tracking.explanation import observe_snapshot, requests_of_rank
from airflow_provider_gangjobs.tracking.logs.last_lines import may_have_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent, RankEnd
    from airflow_provider_gangjobs.gang.outcome.restarts import Restart
    from airflow_provider_gangjobs.gang.state.category import Diagnosis
    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.plugins.locator import GangLocator
    from airflow_provider_gangjobs.tracking.explanation import GangSnapshot


ROWS_MAX: Final = 200
ATTEMPTS_MAX: Final = 20
SPAN_WIDTH_MIN: Final = 2.0
"""In percent of the bar, so that a short phase is visible."""
_EXECUTION_TIMEOUT: Final = "execution_timeout"
_COLUMNS: Final = ("exit_code", "seconds", "node", "restarts", "message")


@dataclass(frozen=True)
class DeadlineView:
    """A deadline: the parameter of the task that sets it, and its time."""

    parameter: str
    at: datetime


@dataclass(frozen=True)
class PhaseSpan:
    """A phase as a part of the bar."""

    phase: str
    began: datetime
    seconds: float
    start: float
    """In percent of the width of the bar, and so is `width`."""
    width: float


@dataclass(frozen=True)
class GangView:
    """Everything that the page shows of a gang, in the order of the page."""

    title: str
    """`<namespace>/<name>` of the Job."""
    phase: str
    tone: Tone
    attempt: int | None = None
    """Number of the attempt, from 0."""
    since: datetime | None = None
    """When the phase began."""
    is_over: bool = False
    """Whether the gang has ended."""
    category: str = ""
    """The `Category` of the diagnosis; empty if it is unknown."""
    summary: str = ""
    """A sentence that says what the gang waits for, or why the gang failed."""
    remedy: str = ""
    """A sentence that says what the user can do; empty if there is nothing to do."""
    details: tuple[tuple[str, str], ...] = ()
    """Pairs of a name and a value."""
    spans: tuple[PhaseSpan, ...] = ()
    deadline: DeadlineView | None = None
    """The next deadline."""
    state_counts: tuple[tuple[str, int], ...] = ()
    """Pairs of a state and the number of ranks in that state."""
    rows: tuple[RankRow, ...] = ()
    rows_omitted: int = 0
    """The number of ranks that have no row."""
    ranks_with_log: frozenset[int] = frozenset()
    """The ranks of which a pod exists that may have a log."""
    restarts: tuple[Restart, ...] = ()
    """The last restarts of the programs in their pods, the latest first."""
    other_attempts: tuple[GangRow, ...] = ()
    """The `reason` of each says why it failed, by the outcomes of its ranks as far as they are known."""
    notes: tuple[str, ...] = ()
    command: str = ""
    """The command that lists the pods; empty if there are none any more."""
    is_final: bool = False
    """Whether the view will not change any more."""

    @property
    def columns(self) -> frozenset[str]:
        """The fields of rows that some row has."""
        return frozenset(name for name in _COLUMNS if any(getattr(row, name) not in {None, "", 0} for row in self.rows))


def build_view(
    locator: GangLocator, snapshot: GangSnapshot, now: datetime, ends: Mapping[str, str] | None = None
) -> GangView:
    """Return the view of the gang that `locator` names.

    :param ends: Why other attempts ended, by the uid of their Jobs, as far as it is known (`describe_end`).
    """
    if snapshot.job is None:
        view = _view_without_job(locator)
    else:
        job = read_gang(snapshot.job, snapshot.role_jobs)
        requests = "" if job.has_roles else format_requests(requests_of_rank(snapshot.job))
        view = _view_of_job(locator, snapshot, job, requests, now)
    others = [read_gang(job, snapshot.role_jobs) for job in snapshot.jobs if job is not snapshot.job]
    return replace(view, other_attempts=tuple(_row_of_attempt(job, ends or {}) for job in others[:ATTEMPTS_MAX]))


# -- the Job exists --------------------------------------------------------------------------------------------------


def _view_of_job(
    locator: GangLocator, snapshot: GangSnapshot, job: StoredGang, requests: str, now: datetime
) -> GangView:
    observation = observe_snapshot(snapshot)
    phase = observation.phase
    outcomes = merge_outcomes(snapshot.pods, snapshot.outcomes)
    diagnosis = diagnose(observation, outcomes)
    summary = _summary(observation, job, diagnosis, requests)
    rows = build_rows(snapshot.pods, outcomes, now)
    if observation.wait.cause is WaitCause.STOPPED:
        rows = [replace(row, tone=Tone.QUIET) if row.tone is Tone.BAD else row for row in rows]
    ranks = observation.counts.ranks
    is_over = observation.verdict is not None or phase is Phase.FAILED
    first = Phase.QUEUED if job.queue else Phase.SUBMITTED
    times = [(first if began is Phase.SUBMITTED else began, at) for began, at in observation.began.items()]
    end, report = locator.end, SupervisorReport.parse(job.view.metadata.annotations.progress)
    if end is not None and end.restarts_total is not None:
        report = _report_of_end(end)
    details = {
        "Roles": ", ".join(f"{role.size} {role.name}" for role in job.roles),
        "Ranks": f"{ranks:,}",
        "Requests of each rank": "" if requests in summary else requests,
        "Placement": describe_placement(job.decision) if job.decision else "",
        "Airflow installation": job.installation,
        **_details_of_programs(report, job.restarts_max, end),
    }
    return GangView(
        title=str(job.ref),
        phase=str(phase),
        tone=tone_of(phase),
        attempt=job.attempt_number,
        since=observation.since,
        is_over=is_over and phase in FINAL_PHASES,
        category=diagnosis.category,
        summary=summary,
        remedy=diagnosis.remedy,
        details=_present(details),
        spans=_spans(times, None if phase in FINAL_PHASES else now),
        deadline=None if is_over else _next_deadline(locator, observation),
        state_counts=(
            count_by_state(rows, ranks=ranks, is_over=is_over) if snapshot.is_whole else _state_counts_of_job(job)
        ),
        rows=tuple(rows[:ROWS_MAX]),
        rows_omitted=max(0, (len(rows) if snapshot.is_whole else ranks) - len(rows[:ROWS_MAX])),
        ranks_with_log=frozenset(
            rank for pod in snapshot.pods if may_have_log(pod) and (rank := rank_of(pod)) is not None
        ),
        restarts=report.restarts[::-1],
        notes=tuple(f"The connection may not list {what} in this namespace." for what in snapshot.unread),
        command=f"kubectl -n {job.ref.namespace} get pods -o wide -l {gang_selector(job.ref.name)}",
        is_final=locator.is_finished and is_over,
    )


def _spans(times: Iterable[tuple[str, datetime]], until: datetime | None) -> tuple[PhaseSpan, ...]:
    """Return the phases between these times as parts of a bar.

    :param until: The end of the last phase that has begun; `None` if this is its end.
    """
    ordered = sorted(times, key=lambda one: one[1])
    ends = [*ordered, *([("", until)] if until is not None else [])]
    spans = [(str(phase), at, (end - at).total_seconds()) for (phase, at), (_, end) in pairwise(ends) if end > at]
    whole = sum(seconds for _, _, seconds in spans)
    widths = [max(SPAN_WIDTH_MIN, 100 * seconds / whole) for _, _, seconds in spans]
    found, start = [], 0.0
    for (phase, at, seconds), width in zip(spans, widths, strict=True):
        part = 100 * width / sum(widths)
        found.append(PhaseSpan(phase, at, seconds, round(start, 2), round(part, 2)))
        start += part
    return tuple(found)


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


def _summary(observation: Observation, job: StoredGang, diagnosis: Diagnosis, requests: str) -> str:
    ranks = observation.counts.ranks
    if ended := _describe_failure(observation, job, diagnosis):
        return ended
    if observation.phase is Phase.SUCCEEDED:
        return _describe_success(ranks)
    if observation.phase is Phase.FINISHING:
        return Category.FINISHING.meaning
    capacity = observation.wait.capacity
    text = ". ".join(filter(None, (observation.wait.text, capacity.text if capacity else "")))
    is_told = capacity is not None and bool(capacity.resources)  # the text says what is needed
    lacks_nodes = observation.phase is Phase.ASSEMBLING and observation.counts.placed < ranks
    if lacks_nodes and requests and not is_told:
        return f"Needs {ranks} x ({requests}) at once. {text}"
    if observation.phase is Phase.RUNNING:
        return "Its only rank has started." if ranks == 1 else f"All {ranks:,} ranks have started."
    return text


def _describe_success(ranks: int) -> str:
    return "Its only rank succeeded." if ranks == 1 else f"All {ranks:,} ranks succeeded."


def _describe_failure(observation: Observation, job: StoredGang, diagnosis: Diagnosis) -> str:
    """Return why a gang has ended that did not succeed; empty for other gangs."""
    if (stopped := deadline_of(job)) is not None:
        return describe_deadline(PARAMETERS.get(Phase(stopped.phase), ""), stopped.phase, stopped.text)
    if observation.wait.cause is WaitCause.STOPPED and job.failure_cause is not None:
        return job.failure_cause[1]
    if observation.verdict is not None and observation.verdict.kind is not VerdictKind.SUCCEEDED:
        return diagnosis.summary
    return ""


def describe_deadline(parameter: str, phase: str, what: str, seconds: float | None = None) -> str:
    """Return the sentence about a gang that a deadline has ended: which deadline, and what the gang waited for."""
    limit = f" ({format_duration(seconds)})" if seconds is not None else ""
    passed = f"The gang was {phase} when {parameter or 'a deadline'}{limit} passed"
    return f"{passed}: {what}" if what else f"{passed}."


def _next_deadline(locator: GangLocator, observation: Observation) -> DeadlineView | None:
    deadlines = []
    limit = next_limit(observation, locator.deadlines)
    if limit is not None:
        deadlines.append(DeadlineView(PARAMETERS[limit.phase], limit.at))
    if locator.deadline is not None:
        deadlines.append(DeadlineView(_EXECUTION_TIMEOUT, datetime.fromtimestamp(locator.deadline, UTC)))
    return min(deadlines, key=lambda deadline: deadline.at, default=None)


def _present(details: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in details.items() if value)


def _details_of_programs(report: SupervisorReport, restarts_max: int | None, end: GangEvent | None) -> dict[str, str]:
    """Return the progress and the restarts of the programs, and what the time of an ended gang was used for."""
    details: dict[str, str] = {}
    if report.progress is not None and str(report.progress):
        details["Progress"] = str(report.progress)
        if report.progress.eta_s is not None and end is None:
            details["Estimated time left"] = _span(report.progress.eta_s)
    if restarts_max and report.total is not None:
        details["Restarts in place"] = f"{report.total} of {restarts_max}"
    if end is not None and end.time_use is not None:
        ranks = end.counts.get("ranks", 0) or len(end.ranks)
        details["Time used"] = describe_use(end.time_use, end.requests, ranks)
    return details


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min" if seconds >= 60 else "1 min"


def _report_of_end(end: GangEvent) -> SupervisorReport:
    return SupervisorReport(restarts=end.restarts, total=end.restarts_total, progress=end.progress)


def _row_of_attempt(job: StoredGang, ends: Mapping[str, str]) -> GangRow:
    return with_fields(row_of(job), reason=ends.get(job.ref.uid) or describe_end(job, ()))


def describe_end(job: StoredGang, outcomes: Sequence[Outcome]) -> str:
    """Return why an attempt failed, by the outcomes of its ranks as far as they are known; else empty."""
    observation = observe(job, (), None, job.ref)
    return _describe_failure(observation, job, diagnose(observation, outcomes))


# -- the Job does not exist, or the cluster cannot be read -----------------------------------------------------------

JOB_NOT_FOUND: Final = "The gang's Job does not exist in the cluster."
FROM_END_EVENT: Final = "The page shows what Airflow recorded when the gang ended."
JOB_DELETED: Final = "The Job was deleted after the end of the gang. The page shows what Airflow recorded of it."


def view_without_cluster(locator: GangLocator, error: str) -> GangView | None:
    """Return the view from Airflow's records alone; `None` if Airflow has no record of the gang's end."""
    return _view_of_end(locator, locator.end, f"{error} {FROM_END_EVENT}") if locator.end is not None else None


def _view_without_job(locator: GangLocator) -> GangView:
    if locator.end is not None:
        return _view_of_end(locator, locator.end, JOB_DELETED)
    return GangView(
        title=str(locator.ref),
        phase=str(Phase.DELETED),
        tone=Tone.WAIT,
        summary=JOB_NOT_FOUND,
        is_over=True,
        is_final=locator.is_finished,
    )


_PHASES_OF_TIMES: Final = {"admitted": Phase.ASSEMBLING, "running": Phase.RUNNING, "ended": Phase.FINISHING}
"""The phase that began at a time in the event; `submitted` is the first one."""


def _view_of_end(locator: GangLocator, end: GangEvent, note: str) -> GangView:
    has_cause = end.status is Status.FAILED
    rows = [_row_of_end(rank, follows=number > 0 or not has_cause) for number, rank in enumerate(end.ranks)]
    ranks = end.counts.get("ranks", len(rows))
    first = Phase.QUEUED if end.queue or end.phase is Phase.QUEUED else Phase.SUBMITTED
    times = [(_PHASES_OF_TIMES.get(name, first), at) for name, at in end.times.items()]
    details = {
        "Ranks": f"{ranks:,}" if ranks else "",
        "Requests": ", ".join(f"{n} {name}" for name, n in end.requests.items()),
        "Queue": end.queue,
        **_details_of_programs(_report_of_end(end), end.restarts_max, end),
    }
    return GangView(
        title=str(locator.ref),
        phase=str(PHASE_OF_STATUS.get(end.status, end.status)),
        tone=Tone.GOOD if end.status is Status.SUCCEEDED else Tone.BAD,
        attempt=end.attempt,
        since=end.times.get("ended"),
        is_over=True,
        category=end.category,
        summary=_summary_of_end(end, ranks),
        remedy=_remedy_of_end(end),
        details=_present(details),
        spans=_spans(times, None),
        restarts=end.restarts[::-1],
        state_counts=tuple((name, end.counts[name]) for name in ("failed", "succeeded") if end.counts.get(name)),
        rows=tuple(rows),
        rows_omitted=max(0, ranks - len(rows)),
        notes=(note, *end.notes),
        is_final=locator.is_finished,
    )


def _summary_of_end(end: GangEvent, ranks: int) -> str:
    if end.status is Status.SUCCEEDED:
        return end.message or _describe_success(ranks)
    if end.status is Status.TIMEOUT:
        return describe_deadline(_passed_parameter(end), end.phase, end.message, end.seconds)
    return end.message


def _remedy_of_end(end: GangEvent) -> str:
    if end.status is Status.TIMEOUT and not end.remedy and (parameter := _passed_parameter(end)):
        return f"Raise {parameter}."
    return end.remedy


def _passed_parameter(end: GangEvent) -> str:
    return _EXECUTION_TIMEOUT if end.reason == EXECUTION_TIMEOUT else PARAMETERS.get(end.phase, "")


def _row_of_end(end: RankEnd, *, follows: bool) -> RankRow:
    known = {name: value for name, value in asdict(end).items() if name != "seconds"}
    return replace(outcome_row(Outcome(uid="", **known), follows=follows), seconds=end.seconds)
