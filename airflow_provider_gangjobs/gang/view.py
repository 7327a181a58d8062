"""View: what a person is told about a gang. The tab, the page, REST, the command line and the hook show it. Pure.

`view_gang` builds it from the Jobs of the gang, from what was observed of the gang, from the outcomes of its ranks, and
from the event by which the task has learned of the end. `view_end` has only the event. Whoever shows a view chooses
what to show of it, and judges nothing.

The fields are a contract: `docs/gang.schema.json` describes them, and fields are only added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import asdict
from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.gang.identity import GangRef, gang_selector
from airflow_provider_gangjobs.gang.outcome.end_reason import reason_of
from airflow_provider_gangjobs.gang.outcome.event import PHASES_OF_TIMES
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
from airflow_provider_gangjobs.gang.outcome.rank_rows import (
    WITHOUT_POD,
    RankRow,
    Tone,
    build_rows,
    count_by_state,
    merge_outcomes,
    outcome_row,
)
from airflow_provider_gangjobs.gang.outcome.restarts import (
    Progress,
    Progressed,
    Restart,
    SupervisorReport,
    TimeUse,
    describe_use,
)
from airflow_provider_gangjobs.gang.record import FOREIGN_REMEDY, read_mark
from airflow_provider_gangjobs.gang.render.placement import describe_placement
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.gang_state import (
    PARAMETERS,
    Deadlines,
    GangState,
    next_limit,
    observe,
    observe_counters,
)
from airflow_provider_gangjobs.gang.state.phase import (
    FINAL_PHASES,
    PHASE_OF_STATUS,
    Phase,
    Status,
    SubmissionState,
    deadline_of,
    end_of,
)
from airflow_provider_gangjobs.gang.state.pods import Counts, PodIndex
from airflow_provider_gangjobs.gang.state.reason import Reason, because, reword
from airflow_provider_gangjobs.gang.state.stopped import EXECUTION_TIMEOUT
from airflow_provider_gangjobs.gang.state.waiting import NO_EVIDENCE, Evidence
from airflow_provider_gangjobs.kube.links import GANG_FIELDS, RANK_FIELDS, fill
from airflow_provider_gangjobs.kube.text import cut_end, format_duration, to_printable_line, to_sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent, RankEnd
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.links import LinkTemplate
    from airflow_provider_gangjobs.kube.views import PodGroupView, PodView

WAITING: Final = frozenset({Phase.SUBMITTED, Phase.QUEUED, Phase.ASSEMBLING})
"""The phases of a gang that waits: not all of its ranks have started."""
RUNNING: Final = frozenset({Phase.RUNNING, Phase.FINISHING})
FAILED: Final = frozenset({Phase.FAILED, Phase.DELETED})
_UNKNOWN: Final = datetime.fromtimestamp(0, UTC)
REQUESTS_CHARACTERS_MAX: Final = 250
SINCE_START: Final = "since start"
"""What a gang did since its Job was started, if it is not known when all ranks had started."""


class GangView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of a gang, as a person is told. Times are those of the API server."""

    namespace: str
    name: str
    """Name of the Job."""
    uid: str
    attempt: int
    """Number of the attempt, from 0."""
    dag_id: str = ""
    """Empty for a gang that was submitted under an id."""
    task_id: str = ""
    run_id: str = ""
    map_index: int = -1
    installation: str = ""
    submission_id: str = ""
    exists: bool = True
    """The Job exists. Otherwise this is what Airflow recorded of the gang."""
    source: str = ""
    """Connection and namespace by which the gang was found, where several clusters are shown."""
    claim: str = ""
    """Who answers for the gang: the id of the task instance that follows it."""

    phase: Phase
    state: SubmissionState
    """How far the submission is. A gang whose Job has ended or was stopped has an end, also while its pods end."""
    since: datetime | None = None
    """When the phase began."""
    times: dict[Phase, datetime] = {}
    """When each phase began that the gang has reached, as far as it is known."""
    delivered_at: datetime | None = None
    """When Airflow got the outcome."""
    kept_until: datetime | None = None
    """When Kubernetes deletes the Job of a gang that has ended. Absent if nobody does."""
    deadline: datetime | None = None
    """The next deadline."""
    deadline_parameter: str = ""
    """The parameter of the task that sets the next deadline."""

    category: Category
    """Why the gang is in its phase."""
    summary: str = ""
    """What the gang waits for, or how it has ended, in a sentence."""
    remedy: str = ""
    """What to do; empty if there is nothing to do."""
    code: str = ""
    """The reason of events and errors, which is finer than the category."""
    room: int | None = None
    """How many ranks the cluster has room for now, if the gang waits for nodes and this is known."""

    ranks: int
    ready: int
    """Number of ranks that run and are ready."""
    succeeded: int = 0
    failed: int = 0
    states: dict[str, int] = {}
    """Number of pods in each state, and of ranks without a pod."""
    pods: tuple[RankRow, ...] = ()
    """The pods that are known, the most informative first."""
    pods_omitted: int = 0
    """Number of ranks of which no pod is known."""

    requests: dict[str, str] = {}
    """What all ranks request together, by resource."""
    roles: dict[str, int] = {}
    """Number of ranks of each role."""
    queue: str = ""
    """Queue of Kueue."""
    placement: str = ""
    """How the pods are placed: `gang:v1beta1`, `basic:<reason>`, `brought` or `off`."""
    spec_hash: str = ""
    restarts: tuple[Restart, ...] = ()
    """The last restarts of the programs in their pods."""
    restarts_total: int | None = None
    restarts_max: int | None = None
    """Absent if the gang has no supervisors."""
    progress: Progress | None = None
    time_use: TimeUse | None = None
    """What the time of an ended gang was used for."""
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """Plural names of resources that could not be read."""
    links: dict[str, str] = {}
    """Addresses of the gang in other systems, by the name of the link. `pods` have those of the ranks."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def ref(self) -> GangRef:
        return GangRef(self.namespace, self.name, self.uid)

    @property
    def task(self) -> str:
        """The task with its map index, as Airflow writes it; empty for a gang that was submitted under an id."""
        return f"{self.task_id}[{self.map_index}]" if self.map_index >= 0 else self.task_id

    @property
    def submitted_at(self) -> datetime:
        return self.times.get(Phase.SUBMITTED) or min(self.times.values(), default=_UNKNOWN)

    @property
    def started_at(self) -> datetime | None:
        """When the Job was started, or last resumed. From then on the pods wait for nodes."""
        return self.times.get(Phase.ASSEMBLING)

    @property
    def ended_at(self) -> datetime | None:
        return next((at for phase, at in self.times.items() if phase in FINAL_PHASES), None)

    @property
    def started(self) -> int:
        """Number of ranks that are ready or have succeeded."""
        return min(self.ready + self.succeeded, self.ranks)

    @property
    def is_waiting(self) -> bool:
        """Not all ranks have started."""
        return self.phase in WAITING

    @property
    def is_running(self) -> bool:
        """All ranks have started, and the Job has not ended."""
        return self.phase in RUNNING and self.state is SubmissionState.IN_PROGRESS

    @property
    def has_failed(self) -> bool:
        """The gang failed, was stopped, or is being deleted."""
        return self.phase in FAILED or self.state is SubmissionState.FAILED

    @property
    def is_over(self) -> bool:
        """The gang has ended, and nothing of it changes any more."""
        return self.phase in FINAL_PHASES

    @property
    def urgency(self) -> int:
        """The place in a list for somebody who is on call: those that failed, wait, run, and have succeeded."""
        return 0 if self.has_failed else 1 if self.is_waiting else 2 if not self.is_over else 3

    @property
    def restarts_told(self) -> str:
        """How many restarts in place there were, of how many; empty if there can be none, or if that is unknown."""
        is_known = self.restarts_max and self.restarts_total is not None
        return f"{self.restarts_total} of {self.restarts_max}" if is_known else ""

    @property
    def details(self) -> dict[str, str]:
        """What a person is told beside the phase and its reason: names and values, without empty ones."""
        left_s = self.progress.eta_s if self.progress is not None and not self.is_over else None
        details = {
            "Roles": ", ".join(f"{size} {role}" for role, size in self.roles.items()),
            "Ranks": f"{self.ranks:,}" if self.ranks else "",
            "Requests": self.requests_told,
            "Queue": self.queue,
            "Placement": describe_placement(self.placement) if self.placement else "",
            "Airflow installation": self.installation,
            "Followed by": f"task instance {self.claim}" if self.claim and not self.is_over else "",
            "Progress": str(self.progress) if self.progress is not None else "",
            "Estimated time left": format_duration(left_s) if left_s is not None else "",
            "Restarts in place": self.restarts_told,
            "Time used": describe_use(self.time_use, self.requests, self.ranks) if self.time_use is not None else "",
        }
        return {name: value for name, value in details.items() if value}

    @property
    def requests_told(self) -> str:
        """What all ranks request together in one text. What each program requests comes last."""
        names = sorted(self.requests, key=lambda name: (name in {"cpu", "memory"}, name))
        text = ", ".join(f"{self.requests[name]} {name}" for name in names)
        return cut_end(to_printable_line(text), REQUESTS_CHARACTERS_MAX)

    @property
    def all_notes(self) -> list[str]:
        """The notes, and what could not be read."""
        return [*self.notes, *(f"The {what} could not be read." for what in self.unread)]

    @property
    def command(self) -> str:
        """The command that lists the pods."""
        return f"kubectl -n {self.namespace} get pods -o wide -l {gang_selector(self.name)}"

    @property
    def first_links(self) -> dict[str, str]:
        """The links of the gang, and those of the rank that says most."""
        first = next((row for row in self.pods if row.links), None)
        of_rank = {} if first is None else {f"{name} of {first.name}": url for name, url in first.links.items()}
        return self.links | of_rank

    def waited(self, now: datetime) -> timedelta:
        """Return for how long the gang has waited until its Job was started, or until now."""
        return max((self.started_at or self.ended_at or now) - self.submitted_at, timedelta())

    def ran(self, now: datetime) -> timedelta | None:
        """Return the time since the Job was started, or until it ended; `None` for a Job that was not started."""
        return None if self.started_at is None else max((self.ended_at or now) - self.started_at, timedelta())

    def spans(self, now: datetime) -> list[tuple[str, datetime, timedelta]]:
        """Return what the gang did one after the other: the phase, its begin, and how long it lasted."""
        times = sorted(self.times.items(), key=lambda item: item[1])
        ends = [at for _, at in times[1:]] + [now]
        spans = [(self._name_span(phase), at, end - at) for (phase, at), end in zip(times, ends, strict=True)]
        return [span for span in (spans[:-1] if self.is_over else spans) if span[2] > timedelta()]

    def _name_span(self, phase: Phase) -> str:
        if phase is Phase.SUBMITTED and self.queue:
            return str(Phase.QUEUED)
        is_past = self.phase is not Phase.ASSEMBLING and Phase.RUNNING not in self.times
        return SINCE_START if phase is Phase.ASSEMBLING and is_past else str(phase)


@dataclass(frozen=True)
class GangSnapshot:
    """What was read of a gang whose Job exists."""

    gang: StoredGang
    pods: Sequence[PodView] | None = None
    """`None` if only the Jobs were read."""
    outcomes: Sequence[Outcome] | None = None
    """The recorded outcomes; `None` if they were not read."""
    podgroup: PodGroupView | None = None
    evidence: Evidence = NO_EVIDENCE
    """What explains why the gang waits."""
    counts: Counts | None = None
    """What is known of the ranks, if it is more than the counters of the Job, and not all pods were read."""
    is_whole: bool = False
    """`pods` and `outcomes` are complete."""
    unread: tuple[str, ...] = ()
    """Plural names of resources that could not be read."""
    links: Sequence[LinkTemplate] = ()
    """Links of the connection to other systems."""

    @property
    def ref(self) -> GangRef:
        return self.gang.ref

    @cached_property
    def state(self) -> GangState:
        """What the pods show or, if some are not known, the counters of the Job."""
        if self.is_whole:
            return observe(self.gang, self.pods or (), self.podgroup, self.ref, self.evidence)
        sample = PodIndex(self.ref, self.pods or ())
        counts = self.counts or counts_of_job(self.gang)
        return observe_counters(self.gang, sample, self.podgroup, counts, self.evidence)

    @property
    def phase(self) -> Phase:
        """The phase. A gang whose Job has ended has ended, also while its pods wait for their harvest."""
        verdict = self.state.verdict
        return self.state.phase if verdict is None else PHASE_OF_STATUS[verdict.status]

    @cached_property
    def known_outcomes(self) -> list[Outcome] | None:
        """The recorded outcomes, and those of pods that have ended and are not recorded; `None` if they are unknown."""
        return None if self.outcomes is None else merge_outcomes(self.pods or (), self.outcomes)


def view_gang(
    snapshot: GangSnapshot,
    event: GangEvent | None = None,
    *,
    deadlines: Deadlines | None = None,
    ends_by: datetime | None = None,
    now: datetime | None = None,
) -> GangView:
    """Return what a person is told about a gang whose Job exists.

    :param event: The event by which the task has learned of the end.
    :param deadlines: The deadlines of the task, as far as they are known.
    :param ends_by: When the time limit of the task itself passes.
    :param now: The time until which the pods have run. By default the view has no pods.
    """
    gang, observed, key = snapshot.gang, snapshot.state, snapshot.gang.record.task
    reason, capacity = _explain(snapshot, event), observed.capacity
    rows = _rows(snapshot, now) if now is not None else ()
    phase, times = snapshot.phase, _times(snapshot, event)
    limit = None if phase in FINAL_PHASES else _next_limit(observed, deadlines or Deadlines(), ends_by)
    view = GangView(
        namespace=gang.ref.namespace,
        name=gang.ref.name,
        uid=gang.ref.uid,
        attempt=gang.attempt,
        installation=gang.installation,
        submission_id=gang.record.submission_id,
        claim=gang.claim.id,
        phase=phase,
        state=_state(gang),
        since=times.get(phase),
        times=times,
        delivered_at=_delivered_at(gang),
        kept_until=kept_until(gang),
        deadline=limit[1] if limit else None,
        deadline_parameter=limit[0] if limit else "",
        category=reason.category,
        summary=reason.summary,
        remedy=reason.remedy,
        code=reason.code,
        room=capacity.room if capacity else None,
        ranks=gang.workers,
        ready=gang.status.ready,
        succeeded=gang.status.succeeded,
        failed=gang.status.failed,
        states=_states(snapshot, rows) if now is not None else {},
        pods=rows,
        pods_omitted=max(0, gang.ranks - len(rows)) if now is not None and not snapshot.is_whole else 0,
        requests=gang.record.requests,
        roles={role.name: role.size for role in gang.record.roles},
        queue=gang.queue or "",
        placement=gang.placement,
        spec_hash=gang.record.spec_hash,
        notes=event.notes if event is not None else (),
        unread=snapshot.unread,
        **({} if key is None else key.to_mapping()),  # type: ignore[arg-type]
        **_history(read_mark(Progressed, gang.view.metadata.annotations.progress).report, gang.record.restarts, event),
    )
    return _with_links(view, snapshot.links)


def _with_links(view: GangView, links: Sequence[LinkTemplate]) -> GangView:
    if not links:
        return view
    start = view.started_at or min(view.times.values(), default=None)
    times = {"start": _milliseconds(start), "end": _milliseconds(view.ended_at) or "now"}
    values = {name: getattr(view, name, None) for name in GANG_FIELDS} | {"job": view.name, **times}
    of_ranks = [link for link in links if link.is_of_ranks]
    rows = view.pods
    if of_ranks:
        own = ({name: getattr(row, name) for name in RANK_FIELDS} for row in rows)
        rows = tuple(replace(row, links=fill(of_ranks, values | one)) for row, one in zip(rows, own, strict=True))
    return with_fields(view, pods=rows, links=fill((link for link in links if not link.is_of_ranks), values))


def _milliseconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


def view_job(gang: StoredGang) -> GangView:
    """Return what a person is told about a gang of which only the Jobs were read."""
    return view_gang(GangSnapshot(gang))


def view_end(
    event: GangEvent,
    key: TaskKey,
    links: Sequence[LinkTemplate] = (),
    *,
    at: datetime | None = None,
    notes: Sequence[str] = (),
) -> GangView:
    """Return what a person is told about a gang of which only the event of its end is known.

    :param links: Links of the connection to other systems.
    :param at: When the event was recorded, which is the end if the event does not say when it was.
    :param notes: Further notes, which come first.
    """
    phase = PHASE_OF_STATUS.get(event.status, event.phase)
    times = _times_of_event(event)
    if phase in FINAL_PHASES and (ended := event.times.get("ended", at)) is not None:
        times[phase] = ended
    has_cause = event.status is Status.FAILED
    rows = tuple(_row_of_end(rank, follows=number > 0 or not has_cause) for number, rank in enumerate(event.ranks))
    ranks = event.counts.get("ranks", len(rows))
    reason = _explain_event(event, ranks)
    states = {name: event.counts[name] for name in ("failed", "succeeded") if event.counts.get(name)}
    view = GangView(
        namespace=event.namespace,
        name=event.name,
        uid=event.uid,
        attempt=event.attempt or 0,
        installation=key.installation,
        exists=False,
        phase=phase,
        state=_STATE_OF.get(phase, SubmissionState.DELETING),
        since=times.get(phase),
        times=times,
        category=reason.category,
        summary=reason.summary,
        remedy=reason.remedy,
        code=reason.code,
        ranks=ranks,
        ready=0,
        succeeded=event.counts.get("succeeded", 0),
        failed=event.counts.get("failed", 0),
        states=states,
        pods=rows,
        pods_omitted=max(0, ranks - len(rows)),
        requests=event.requests,
        queue=event.queue,
        placement=event.placement,
        notes=(*notes, *event.notes),
        **key.to_mapping(),  # type: ignore[arg-type]
        **_history(SupervisorReport(), event.restarts_max, event),
    )
    return _with_links(view, links)


def counts_of_job(gang: StoredGang) -> Counts:
    """Return counts from the Job's counters, which do not distinguish the pods that have not started."""
    started, ranks = gang.started_ranks, gang.ranks
    return Counts(
        ranks=ranks,
        created=ranks,
        placed=started,
        started=started,
        running=gang.status.ready,
        succeeded=gang.status.succeeded,
        failed=gang.status.failed,
    )


def _delivered_at(gang: StoredGang) -> datetime | None:
    try:
        return datetime.fromisoformat(gang.view.metadata.annotations.delivered or "")
    except ValueError:  # anybody who may change Jobs may write any text
        return None


def kept_until(gang: StoredGang) -> datetime | None:
    """Return when Kubernetes deletes the Job of a gang that has ended; `None` if nothing is known to delete it."""
    ttl_s = gang.view.spec.ttl_seconds_after_finished
    if ttl_s is None:  # the Job of a gang with roles gets its time to live at the end
        ttl_s = gang.record.ttl_s
    if ttl_s is None or gang.ended_at is None:
        return None
    try:
        return gang.ended_at + timedelta(seconds=ttl_s)
    except OverflowError:  # anybody who may change Jobs may write an annotation of any size
        return None


# -- why -------------------------------------------------------------------------------------------------------------

NOT_READ: Final = "Not all ranks have started. What the gang waits for was not read."


def _explain(snapshot: GangSnapshot, event: GangEvent | None) -> Reason:
    """Return why a gang is in its phase. What its Jobs and ranks say comes before what its task was told."""
    gang, observed, known = snapshot.gang, snapshot.state, snapshot.known_outcomes
    if gang.problem:
        return because("Told", text=to_sentence(gang.problem), remedy=FOREIGN_REMEDY)
    reason = reason_of(observed, known or ())
    if observed.is_stopped:
        return _explain_stop(gang, reason)
    if snapshot.phase is Phase.FINISHING:
        return because("Told", category=Category.FINISHING, since=observed.since)
    if snapshot.phase is Phase.SUCCEEDED:
        return reword(reason, summary=_describe_success(gang.workers))
    if observed.verdict is None:
        return _explain_live(snapshot, reason)
    if known is not None or reason.category is not Category.UNKNOWN:
        return reason
    # Without the outcomes of the ranks, nothing is known about a Job that failed with its pods.
    if event is not None and event.status in PHASE_OF_STATUS:
        return _explain_event(event, gang.workers)
    return reword(reason, summary=to_sentence(reason.summary), remedy="")


def _explain_live(snapshot: GangSnapshot, reason: Reason) -> Reason:
    observed, ranks = snapshot.state, snapshot.gang.ranks
    if observed.phase is Phase.ASSEMBLING and snapshot.pods is None:
        return because("Told", text=NOT_READ, since=observed.since)
    if reason.cause == "Running":
        started = "Its only rank has started." if ranks == 1 else f"All {ranks:,} ranks have started."
        return reword(reason, summary=started)
    return reword(reason, summary=f"{reason.summary}. {observed.room}") if observed.room else reason


def _explain_stop(gang: StoredGang, reason: Reason) -> Reason:
    if (deadline := deadline_of(gang)) is not None:
        phase = Phase(deadline.phase)
        return reword(reason, summary=_describe_deadline(PARAMETERS.get(phase, ""), phase, deadline.text))
    summary = gang.stopped.text if gang.stopped is not None else reason.summary
    remedy = _raise(_EXECUTION_TIMEOUT) if reason.code == EXECUTION_TIMEOUT else reason.remedy
    return reword(reason, summary=summary, remedy=remedy)


def _explain_event(event: GangEvent, ranks: int) -> Reason:
    """Return why a gang has ended, by the event alone. A category of a later version is unknown."""
    summary, remedy = event.message, event.remedy
    if event.status is Status.SUCCEEDED:
        summary = summary or _describe_success(ranks)
    if event.status is Status.TIMEOUT:
        parameter = _EXECUTION_TIMEOUT if event.reason == EXECUTION_TIMEOUT else PARAMETERS.get(event.phase, "")
        summary, remedy = _describe_deadline(parameter, event.phase, event.message), remedy or _raise(parameter)
    usual = Category.SUCCEEDED if event.status is Status.SUCCEEDED else Category.UNKNOWN
    category = next((known for known in Category if known == event.category), usual)
    return because("Told", category=category, code=event.reason, text=summary, remedy=remedy)


_EXECUTION_TIMEOUT: Final = "execution_timeout"


def _describe_success(ranks: int) -> str:
    return "Its only rank succeeded." if ranks == 1 else f"All {ranks:,} ranks succeeded."


def _describe_deadline(parameter: str, phase: str, what: str) -> str:
    """Return the sentence about a gang that a deadline has ended: which deadline, and what the gang waited for."""
    passed = f"The gang was {phase} when {parameter or 'a deadline'} passed"
    return f"{passed}: {what}" if what else f"{passed}."


def _raise(parameter: str) -> str:
    return f"Raise {parameter}." if parameter else ""


# -- when ------------------------------------------------------------------------------------------------------------


def _times(snapshot: GangSnapshot, event: GangEvent | None) -> dict[Phase, datetime]:
    """Return when each phase began. Pods that are gone have left it in their outcomes, or in the event."""
    observed = snapshot.state
    times = dict(observed.began)
    if Phase.RUNNING not in times and (at := _all_started(snapshot)) is not None:
        times[Phase.RUNNING] = at
    if event is None or event.status not in PHASE_OF_STATUS:
        return times
    if snapshot.phase in FINAL_PHASES and "ended" in event.times:
        times.setdefault(snapshot.phase, event.times["ended"])
    return _times_of_event(event) | times


def _times_of_event(event: GangEvent) -> dict[Phase, datetime]:
    return {phase: event.times[name] for name, phase in PHASES_OF_TIMES.items() if name in event.times}


def _all_started(snapshot: GangSnapshot) -> datetime | None:
    """Return when the last rank started in the last run of the Job; `None` if not all are known to have started."""
    begin, known = snapshot.gang.status.start_time, snapshot.known_outcomes or ()
    starts = {one.rank: one.started for one in known if begin and one.started and one.started >= begin}
    return max(starts.values()) if starts and len(starts) >= snapshot.gang.workers else None


def _next_limit(observed: GangState, deadlines: Deadlines, ends_by: datetime | None) -> tuple[str, datetime] | None:
    limit = next_limit(observed, deadlines)
    limits = [(PARAMETERS[limit.phase], limit.at)] if limit is not None else []
    limits += [(_EXECUTION_TIMEOUT, ends_by)] if ends_by is not None else []
    return min(limits, key=lambda one: one[1], default=None)


# -- the rest --------------------------------------------------------------------------------------------------------

_STATE_OF: Final = {Phase.SUCCEEDED: SubmissionState.SUCCEEDED, Phase.FAILED: SubmissionState.FAILED}


def _state(gang: StoredGang) -> SubmissionState:
    if gang.is_being_deleted:
        return SubmissionState.DELETING
    if gang.problem:
        return SubmissionState.FOREIGN
    if gang.ends_by_stop:
        return SubmissionState.FAILED
    return end_of(gang)


def _rows(snapshot: GangSnapshot, now: datetime) -> tuple[RankRow, ...]:
    rows = build_rows(snapshot.pods or (), snapshot.known_outcomes or (), now)
    if not snapshot.state.is_stopped:
        return tuple(rows)
    return tuple(replace(row, tone=Tone.QUIET) if row.tone is Tone.BAD else row for row in rows)  # none is the cause


def _states(snapshot: GangSnapshot, rows: Sequence[RankRow]) -> dict[str, int]:
    if snapshot.is_whole:
        is_over = snapshot.phase in FINAL_PHASES
        return dict(count_by_state(rows, ranks=snapshot.gang.ranks, is_over=is_over))
    status = snapshot.gang.status
    with_pods = status.active + status.succeeded + status.failed + status.terminating
    counts = {
        "failed": status.failed,
        "waiting or starting": max(0, status.active - status.ready),
        "running": status.ready,
        "terminating": status.terminating,
        "succeeded": status.succeeded,
        WITHOUT_POD: max(0, snapshot.gang.ranks - with_pods),
    }
    return {state: number for state, number in counts.items() if number}


def _history(report: SupervisorReport, restarts_max: int | None, event: GangEvent | None) -> dict[str, Any]:
    """Return progress and restarts, by the event of the end if it has them."""
    if event is not None and event.restarts_total is not None:
        report = SupervisorReport(restarts=event.restarts, total=event.restarts_total, progress=event.progress)
    return {
        "restarts": report.restarts,
        "restarts_total": report.total,
        "restarts_max": restarts_max,
        "progress": report.progress,
        "time_use": event.time_use if event is not None else None,
    }


def _row_of_end(end: RankEnd, *, follows: bool) -> RankRow:
    known = {name: value for name, value in asdict(end).items() if name != "seconds"}
    return replace(outcome_row(Outcome(uid="", **known), follows=follows), seconds=end.seconds)


def with_end(view: GangView, end: GangView) -> GangView:
    """Return the view of a gang of which only the Jobs were read, with what its task was told at the end.

    A Job that has not ended was read before the task was told.
    """
    if view.state is SubmissionState.IN_PROGRESS:
        return with_fields(end, source=view.source)
    told = ["notes", "restarts", "restarts_total", "progress", "time_use"]
    told += ["category", "summary", "remedy", "code"] if view.category == Category.UNKNOWN else []
    return with_fields(view, times=end.times | view.times, **{name: getattr(end, name) for name in told})
