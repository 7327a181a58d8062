"""Board: what is shown of a gang, out of what the server said of it and what Airflow knows. Pure.

The texts are those of the trigger's log: phases, what is waited for and diagnoses are made in one place for both.
However large the gang is, the board has at most `ROWS_MAX` ranks, those that tell most first, and numbers for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.outcome.diagnosis import diagnose_end
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
from airflow_provider_gangjobs.gang.state.deadlines import next_deadline
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.gang.state.observation import Observation, observe
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
from airflow_provider_gangjobs.gang.state.progress import Counts
from airflow_provider_gangjobs.gang.state.verdict import Ended, judge
from airflow_provider_gangjobs.gang.state.waiting import Cause, Seen, Wait, many, while_assembling, while_suspended
from airflow_provider_gangjobs.kube.quantity import format_bytes, format_cpu, requests_of
from airflow_provider_gangjobs.operators.messages import placed
from airflow_provider_gangjobs.plugins.rank_rows import Row, Tone, ended_of, ended_row, rows_of, tally_of
from airflow_provider_gangjobs.submission.record import SubmissionRecord, record_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent, RankEnd
    from airflow_provider_gangjobs.plugins.locator import Lead
    from airflow_provider_gangjobs.tracking.read.snapshot import GangSnapshot

ROWS_MAX: Final = 200
ATTEMPTS_MAX: Final = 20
EXECUTION_TIMEOUT: Final = "execution_timeout"
_TIMEOUTS: Final = {
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
class Due:
    """A deadline, and by which parameter."""

    parameter: str
    at: datetime


@dataclass(frozen=True)
class AttemptLine:
    """Another gang of the same task, in short."""

    number: int
    name: str
    phase: str
    tone: Tone
    submitted: datetime | None
    ended: datetime | None
    said: str


@dataclass(frozen=True)
class Board:
    """All that is shown, in the order in which it is."""

    title: str
    """`<namespace>/<name>` of the Job."""
    phase: str
    tone: Tone
    attempt: int | None = None
    since: datetime | None = None
    says: str = ""
    """What it waits for, or why it failed, in a sentence."""
    remedy: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    """Name and value."""
    times: tuple[tuple[str, datetime], ...] = ()
    """When each phase began."""
    due: Due | None = None
    tally: tuple[tuple[str, int], ...] = ()
    """Number of ranks by state."""
    rows: tuple[Row, ...] = ()
    rows_left_out: int = 0
    attempts: tuple[AttemptLine, ...] = ()
    notes: tuple[str, ...] = ()
    is_over: bool = False
    """Nothing of this will change."""


def board(lead: Lead, seen: GangSnapshot, now: datetime) -> Board:
    """What is shown of the gang that `lead` leads to."""
    if seen.job is None:
        shown = _gone(lead)
    else:
        shown = _standing(lead, seen, read_job(seen.job), _asks(seen.job), now)
    others = [record_of(read_job(job)) for job in seen.jobs if job is not seen.job]
    return replace(shown, attempts=tuple(map(_attempt, others[:ATTEMPTS_MAX])))


# -- a gang whose Job is there ---------------------------------------------------------------------------------------


def _standing(lead: Lead, seen: GangSnapshot, job: Job, asks: str, now: datetime) -> Board:
    record = record_of(job)
    observation = _observation(seen, job)
    phase = observation.phase
    ended = ended_of(seen.pods, seen.outcomes)
    says, remedy = _says(observation, record, ended, asks)
    rows = rows_of(seen.pods, ended, now)
    ranks = observation.counts.ranks
    is_over = observation.verdict is not None or phase is Phase.FAILED
    return Board(
        title=str(record.ref),
        phase=str(phase),
        tone=_TONES.get(phase, Tone.WAIT),
        attempt=record.attempt,
        since=observation.since,
        says=says,
        remedy=remedy,
        facts=tuple(_facts(record, "" if asks in says else asks, ranks)),
        times=tuple((str(phase), at) for phase in Phase if (at := observation.began.get(phase)) is not None),
        due=None if is_over else _due(lead, observation),
        tally=tally_of(rows, ranks=ranks, is_over=is_over) if seen.is_whole else _tally_of_job(job),
        rows=tuple(rows[:ROWS_MAX]),
        rows_left_out=max(0, (len(rows) if seen.is_whole else ranks) - len(rows[:ROWS_MAX])),
        notes=tuple(f"The connection may not list {what} in this namespace." for what in seen.unread),
        is_over=lead.is_finished and is_over,
    )


def _observation(seen: GangSnapshot, job: Job) -> Observation:
    if seen.is_whole:
        return observe(job, seen.pods, seen.podgroup, job.ref, events=seen.events)
    counts = _counts_of_job(job)
    phase = phase_of(job)
    evidence = Seen(job, PodIndex(job.ref, seen.pods), seen.podgroup, counts, seen.events)
    verdict = judge(job, job.ref)
    began = {Phase.SUBMITTED: job.created_at, Phase.ASSEMBLING: job.started_at}
    if verdict is not None:
        began[phase] = verdict.at
    known = {phase: at for phase, at in began.items() if at is not None}
    return Observation(job.ref, phase, known, counts, _wait_of_job(phase, evidence, job), verdict)


def _wait_of_job(phase: Phase, seen: Seen, job: Job) -> Wait:
    if job.ends_by_halt or phase in (Phase.QUEUED, Phase.SUBMITTED):
        return while_suspended(job)
    return while_assembling(seen) if phase is Phase.ASSEMBLING else Wait(Cause.RANKS)


def _counts_of_job(job: Job) -> Counts:
    """By the Job's counters alone: of the pods that do not run nothing is said."""
    up, ranks = job.started_ranks, job.ranks
    return Counts(
        ranks=ranks,
        created=ranks,
        placed=up,
        started=up,
        running=job.status.ready,
        succeeded=job.status.succeeded,
        failed=job.status.failed,
    )


def _tally_of_job(job: Job) -> tuple[tuple[str, int], ...]:
    status = job.status
    with_pods = status.active + status.succeeded + status.failed + status.terminating
    numbers = {
        "failed": status.failed,
        "waiting or starting": max(0, status.active - status.ready),
        "running": status.ready,
        "terminating": status.terminating,
        "succeeded": status.succeeded,
        "without a pod": max(0, job.ranks - with_pods),
    }
    return tuple((state, number) for state, number in numbers.items() if number)


def _says(
    observation: Observation, record: SubmissionRecord, outcomes: Sequence[Outcome], asks: str
) -> tuple[str, str]:
    """Why it is as it is, and what to do."""
    if observation.verdict is not None and observation.verdict.ended is not Ended.SUCCEEDED:
        found = diagnose_end(observation.verdict, outcomes)
        return found.summary, found.remedy
    if observation.wait.cause is Cause.HALTED and record.error is not None:
        return record.error.message, ""
    text = observation.wait.text
    if observation.phase is Phase.ASSEMBLING and observation.counts.placed < observation.counts.ranks and asks:
        return f"Needs {observation.counts.ranks} x ({asks}) at once. {text}", ""
    if observation.phase is Phase.RUNNING:
        return f"All {many(observation.counts.ranks, 'rank')} have started.", ""
    return text, ""


def _due(lead: Lead, observation: Observation) -> Due | None:
    """The next deadline of those that are known."""
    found = []
    at = next_deadline(observation, lead.deadlines)
    if at is not None:
        found.append(Due(_TIMEOUTS[observation.phase], at))
    if lead.deadline is not None:
        found.append(Due(EXECUTION_TIMEOUT, datetime.fromtimestamp(lead.deadline, UTC)))
    return min(found, key=lambda due: due.at, default=None)


def _facts(record: SubmissionRecord, asks: str, ranks: int) -> list[tuple[str, str]]:
    facts = [
        ("Ranks", str(ranks)),
        ("Each asks for", asks),
        ("Placement", placed(record.decision) if record.decision else ""),
        ("Delivered to Airflow", f"{record.delivered_at:%Y-%m-%d %H:%M:%S} UTC" if record.delivered_at else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _asks(job: Mapping[str, Any]) -> str:
    """What one rank asks of a node: `1 nvidia.com/gpu, 4 cpu, 16Gi memory`; the rarest first."""
    try:
        asked = requests_of(job["spec"]["template"]["spec"])
    except (KeyError, TypeError, ValueError):
        return ""
    common = ("cpu", "memory")
    names = sorted(asked, key=lambda name: (common.index(name) if name in common else -1, name))
    return ", ".join(f"{_amount(name, asked[name])} {name}" for name in names if asked[name])


def _amount(name: str, amount: Any) -> str:
    return format_bytes(amount) if name.startswith(_BYTES) else format_cpu(amount)


def _attempt(record: SubmissionRecord) -> AttemptLine:
    return AttemptLine(
        number=record.attempt,
        name=record.ref.name,
        phase=str(record.phase),
        tone=_TONES.get(record.phase, Tone.WAIT),
        submitted=record.submitted_at,
        ended=record.ended_at,
        said=f"{record.error.reason}: {record.error.message}".strip(": ") if record.error else "",
    )


# -- a gang whose Job is gone, or out of sight ------------------------------------------------------------------------


def told(lead: Lead, trouble: str) -> Board | None:
    """What Airflow alone knows of a gang that could not be looked at; `None` if that is nothing."""
    return _ended(lead, lead.end, f"{trouble} {TOLD}") if lead.end is not None else None


def _gone(lead: Lead) -> Board:
    if lead.end is not None:
        return _ended(lead, lead.end, f"{GONE} {TOLD}")
    return Board(title=str(lead.ref), phase=str(Phase.DELETED), tone=Tone.WAIT, says=GONE, is_over=lead.is_finished)


def _ended(lead: Lead, end: GangEvent, note: str) -> Board:
    phase = str(end.status)
    rows = [replace(ended_row(_outcome(rank)), seconds=rank.seconds) for rank in end.ranks]
    ranks = end.counts.get("ranks", len(rows))
    return Board(
        title=str(lead.ref),
        phase=phase,
        tone=Tone.GOOD if end.status is Status.SUCCEEDED else Tone.BAD,
        attempt=end.attempt,
        says=end.message,
        remedy=end.remedy,
        facts=(("Ranks", str(ranks)),),
        tally=tuple((name, end.counts[name]) for name in ("failed", "succeeded") if end.counts.get(name)),
        rows=tuple(rows),
        rows_left_out=max(0, ranks - len(rows)),
        notes=(note, *end.notes),
        is_over=lead.is_finished,
    )


GONE: Final = "Its Job is not in the cluster (any more)."
TOLD: Final = "This is what the task was told when the gang ended."


def _outcome(end: RankEnd) -> Outcome:
    return Outcome(
        uid="",
        pod=end.pod,
        outcome=end.outcome,
        rank=end.rank,
        node=end.node,
        exit_code=end.exit_code,
        reason=end.reason,
        message=end.message,
        disruption=end.disruption,
    )
