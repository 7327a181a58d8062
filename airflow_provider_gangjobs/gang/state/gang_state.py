"""GangState: the state of a gang at one moment, from its Job, pods, PodGroup and events, and its deadlines. Pure.

All times are the server's, so a restarted triggerer computes the same state. Phases only move forward, unless a
queue suspends a running gang, which is then `queued` again.

Kubernetes has no time limit for a gang that is never admitted or never fits. So there are three deadlines, each for a
phase that the cluster does not limit. All of them count from times of
the API server, so the restart of a triggerer does not change them. A gang that is finishing has no deadline.

Kueue may stop a gang that assembles and let it run again (`waitForPodsReady`). The deadline of assembling counts all of
these runs, and has passed in the queue if they took all of its time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.state.phase import (
    PHASE_OF_STATUS,
    REASON_DELETED,
    REASON_DELETED_ON_PURPOSE,
    REASON_REPLACED,
    Phase,
    Status,
    Verdict,
    judge,
    phase_at,
)
from airflow_provider_gangjobs.gang.state.pods import PodIndex
from airflow_provider_gangjobs.gang.state.reason import (
    IN_QUEUE,
    NO_CAUSE_NAMED,
    REFUSED_BY_QUEUE,
    UNPLACED,
    Reason,
    because,
)
from airflow_provider_gangjobs.gang.state.stopped import REASON_JOB_DEADLINE
from airflow_provider_gangjobs.gang.state.stored_gang import REASON_JOB_MISSING
from airflow_provider_gangjobs.gang.state.waiting import (
    NO_EVIDENCE,
    Evidence,
    WaitInputs,
    earlier_assembly_s,
    evicted_at,
    explain_assembly,
    explain_run,
    explain_suspension,
    known_capacity,
)
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_gangjobs.gang.capacity import Capacity
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.pods import Counts
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodGroupView, PodView


class GangState(Struct, frozen=True):
    """State of a gang at one moment."""

    ref: GangRef
    phase: Phase
    began: Mapping[Phase, datetime]
    """Time at which each phase began that the gang has reached, as far as the objects in the cluster contain it."""
    counts: Counts
    reason: Reason
    """Why the gang is in its phase, and what to do."""
    verdict: Verdict | None = None
    earlier_assembly_s: float = 0.0
    """For how long the gang has assembled in earlier runs that Kueue has stopped, in seconds."""
    capacity: Capacity | None = None
    """How much is free of what the gang waits for. Its numbers move, so they are no part of the reason."""
    autoscaler: str = ""
    """What the autoscaler says about the pods of a gang that waits for nodes, in its own words."""
    is_stopped: bool = False
    """The gang ends, or has ended, because it was stopped."""

    @property
    def since(self) -> datetime | None:
        return self.began.get(self.phase)

    @property
    def refusal(self) -> Reason | None:
        """Why the scheduler cannot place the gang, in its own words; `None` if the gang waits for something else.

        The next state takes this as evidence, because a scheduler may overwrite the message that says it.
        """
        is_found = "claim" in self.reason.data or "never_fits" in self.reason.data
        return self.reason if self.waits_for_nodes and not is_found else None

    @property
    def waits_for_nodes(self) -> bool:
        """The scheduler cannot place the gang."""
        return self.phase is Phase.ASSEMBLING and self.reason.cause in UNPLACED

    @property
    def names_no_cause(self) -> bool:
        """The scheduler says that it cannot place the gang, and not why."""
        return self.reason.cause in NO_CAUSE_NAMED

    @property
    def room(self) -> str:
        """How much is free of what the gang waits for, and whether there will be more; empty if neither is known."""
        return ". ".join(filter(None, (self.capacity.text if self.capacity else "", self.autoscaler)))

    @property
    def line(self) -> str:
        """Line for a log, for example `assembling: 8 pods, 3 placed. Insufficient nvidia.com/gpu on 3 of 3 nodes`."""
        numbers = _format_counts(self.phase, self.counts)
        details = ". ".join(filter(None, (numbers, self.reason.text, self.room)))
        return f"{self.phase}: {details}" if details else str(self.phase)


def observe(
    gang: StoredGang | None,
    pods: PodIndex | Iterable[PodView],
    podgroup: PodGroupView | None,
    ref: GangRef,
    evidence: Evidence = NO_EVIDENCE,
) -> GangState:
    """Observe a gang. Pods of other Jobs are ignored.

    :param gang: The Job; `None` only if the API server has no Job with this name.
    """
    pods = pods if isinstance(pods, PodIndex) else PodIndex(ref, pods)
    own_job = gang if gang is not None and gang.ref.uid == ref.uid else None
    start = own_job.status.start_time if own_job is not None and own_job.interim_condition is None else None
    if own_job is not None and start is not None:
        starts = (one.status.start_time or start for one in own_job.jobs_with_pods)
        pods = pods.since(min(starts, default=start))
    counts = pods.counts(own_job)
    ran_after_start = evidence.ran_after_start
    if own_job is not None and ran_after_start is not None and own_job.status.start_time == ran_after_start:
        counts = replace(counts, started=max(counts.started, counts.ranks))
    inputs = WaitInputs(own_job, pods, podgroup, counts, evidence)
    return _state_in(ref, inputs, judge(gang, ref), started=counts.started)


def observe_counters(
    gang: StoredGang, sample: PodIndex, podgroup: PodGroupView | None, counts: Counts, evidence: Evidence = NO_EVIDENCE
) -> GangState:
    """Observe a gang of which only some pods are known, which explain why it waits, by the counters of its Job.

    The time at which all ranks had started is not known.

    :param counts: The numbers of ranks that the Job shows.
    """
    inputs = WaitInputs(gang, sample, podgroup, counts, evidence)
    return _state_in(gang.ref, inputs, judge(gang, gang.ref), started=0)


def _state_in(ref: GangRef, inputs: WaitInputs, verdict: Verdict | None, *, started: int) -> GangState:
    """Return the state of a gang with this verdict.

    :param started: How many ranks have started, as far as their pods show it.
    """
    phase, workload = phase_at(inputs.job, verdict, inputs.counts), inputs.evidence.queue_workload
    began = _times(phase, inputs.job, inputs.pods, replace(inputs.counts, started=started), verdict)
    if phase is Phase.QUEUED and Phase.QUEUED not in began and (evicted := evicted_at(workload)):
        began[Phase.QUEUED] = evicted
    reason = _reason(phase, inputs, verdict)
    return GangState(
        ref,
        phase,
        began,
        inputs.counts,
        reason if reason.since is not None else replace(reason, since=began.get(phase)),
        verdict,
        earlier_assembly_s(inputs.job, workload),
        known_capacity(reason, inputs) if phase is Phase.ASSEMBLING else None,
        inputs.evidence.autoscaler if phase is Phase.ASSEMBLING and reason.cause in UNPLACED else "",
        is_stopped=inputs.job is not None and inputs.job.ends_by_stop,
    )


def _times(
    phase: Phase, gang: StoredGang | None, pods: PodIndex, counts: Counts, verdict: Verdict | None
) -> dict[Phase, datetime]:
    began: dict[Phase, datetime | None] = {}
    if gang is not None:
        began[Phase.SUBMITTED] = gang.created_at
        began[Phase.QUEUED] = gang.suspended_condition.last_transition_time if gang.suspended_condition else None
        if phase is Phase.QUEUED:
            # A Job in a queue is queued from its creation, before the Job controller has processed it. If Kueue has
            # stopped the Job, the time is unknown until then: Kueue removes startTime before that.
            began[Phase.QUEUED] = began[Phase.QUEUED] or (gang.created_at if _was_never_admitted(gang) else None)
        else:
            # Pods that failed and are gone may be of other ranks than the pods that exist: perhaps all ranks have run.
            gone = gang.status.failed - pods.ended_otherwise
            may_have_run = counts.started < counts.ranks <= counts.started + gone
            is_known = phase is not Phase.ASSEMBLING or not may_have_run
            began[Phase.ASSEMBLING] = gang.status.start_time if is_known else None
            began[Phase.FINISHING] = gang.interim_condition.last_transition_time if gang.interim_condition else None
    if counts.ranks and counts.started >= counts.ranks and phase is not Phase.QUEUED:
        began[Phase.RUNNING] = pods.all_started_at(counts.ranks)
    if verdict is not None:
        began[Phase.FINISHING] = began.get(Phase.FINISHING) or verdict.at
        began[PHASE_OF_STATUS[verdict.status]] = verdict.at
    elif gang is not None and phase is Phase.FAILED:
        ended = gang.suspended_condition or gang.interim_condition
        began[Phase.FAILED] = ended.last_transition_time if ended else None
    return {reached: at for reached, at in began.items() if at is not None}


def _was_never_admitted(gang: StoredGang) -> bool:
    """Kueue has not admitted the Job yet, as far as is known: an admission changes the spec."""
    return not gang.has_run and gang.view.metadata.generation == 1


def _reason(phase: Phase, inputs: WaitInputs, verdict: Verdict | None) -> Reason:
    if inputs.job is not None and inputs.job.ends_by_stop:
        return explain_suspension(inputs.job)
    if verdict is not None:
        return reason_of_verdict(verdict)
    match phase:
        case Phase.SUBMITTED | Phase.QUEUED:
            assert inputs.job is not None, "a gang without a Job is in none of these phases"
            if not inputs.job.is_suspended and phase is not Phase.QUEUED:
                return because("JobNotProcessed")
            return explain_suspension(inputs.job, inputs.evidence)
        case Phase.ASSEMBLING:
            return explain_assembly(inputs)
        case Phase.RUNNING:
            return explain_run(inputs.pods)
        case _:
            condition = inputs.job.interim_condition if inputs.job else None
            return because("Finishing", said=condition.reason if condition else "")


_OF_VERDICT: Final = {
    REASON_DELETED: "JobDeleted",
    REASON_JOB_MISSING: "JobOfRoleDeleted",
    REASON_DELETED_ON_PURPOSE: "GangDeleted",
    REASON_REPLACED: "JobReplaced",
    REASON_JOB_DEADLINE: "JobDeadline",
    "BackoffLimitExceeded": "NoOutcome",
}
"""By the reason of a verdict."""


def reason_of_verdict(verdict: Verdict) -> Reason:
    """Return why a Job has ended, without the outcomes of its pods."""
    code = verdict.reason or "Failed"
    if verdict.status is Status.SUCCEEDED:
        return because("Succeeded", since=verdict.at, code="Succeeded")
    if verdict.reason == REASON_JOB_DEADLINE and verdict.limited_by:
        limit, said = verdict.limited_by, verdict.message
        return because("TaskDeadline", limited_by=limit, evidence=said, since=verdict.at, code=code)
    cause = _OF_VERDICT.get(verdict.reason, "JobFailed")
    return because(cause, said=verdict.reason, evidence=verdict.message, since=verdict.at, code=code)


def _format_counts(phase: Phase, counts: Counts) -> str:
    match phase:
        case Phase.ASSEMBLING:
            ranks = pluralize(counts.ranks, "pod")
            pods = ranks if counts.created >= counts.ranks else f"{counts.created} of {ranks}"
            started = f", {counts.started} started" if counts.started else ""
            return f"{pods}, {counts.placed or 'none'} placed{started}"
        case Phase.RUNNING:
            ended = max(counts.ranks - counts.running, 0)
            return f"{counts.ranks - ended}/{counts.ranks} ranks" + (f", {ended} ended" if ended else "")
        case Phase.FINISHING | Phase.SUCCEEDED | Phase.FAILED:
            held = f", {pluralize(counts.held, 'pod')} not recorded yet" if counts.held else ""
            return f"{pluralize(counts.succeeded, 'rank')} succeeded, {counts.failed} failed{held}"
        case _:
            return ""


class Deadlines(Struct, frozen=True):
    """Limit of each phase in seconds. `None` means no limit."""

    queue_s: float | None = None
    """Counts from the creation of the Job, or from the time at which a queue suspended the Job again."""
    assemble_s: float | None = None
    """Counts from the time at which the Job was resumed, less the time of the runs that Kueue has stopped."""
    run_s: float | None = None
    """Counts from the start of the last rank."""

    @classmethod
    def of(cls, limits: Mapping[str, float]) -> Self:
        """Return the deadlines of the parameters of a task, in seconds by name."""
        return cls(*(limits.get(PARAMETERS[phase]) for phase in (Phase.QUEUED, Phase.ASSEMBLING, Phase.RUNNING)))


def allowed_s(phase: Phase, deadlines: Deadlines) -> float | None:
    """Return the limit of a phase in seconds; `None` if it has no limit."""
    by_phase = {
        Phase.QUEUED: deadlines.queue_s,
        Phase.ASSEMBLING: deadlines.assemble_s,
        Phase.RUNNING: deadlines.run_s,
    }
    return by_phase.get(phase)


class Limit(Struct, frozen=True):
    """The deadline that limits a gang now."""

    phase: Phase
    """`queued`, `assembling` or `running`."""
    seconds: float
    """The limit of the phase."""
    at: datetime


def next_limit(state: GangState, deadlines: Deadlines) -> Limit | None:
    """Return the deadline that passes next; `None` if the present phase has no limit."""
    limited_as = Phase.QUEUED if state.phase is Phase.SUBMITTED else state.phase
    since, earlier_s = state.since, state.earlier_assembly_s
    if since is None:
        return None
    if limited_as is Phase.QUEUED and deadlines.assemble_s is not None and earlier_s >= deadlines.assemble_s:
        return Limit(Phase.ASSEMBLING, deadlines.assemble_s, since)
    allowed = allowed_s(limited_as, deadlines)
    if allowed is None:
        return None
    left_s = allowed - earlier_s if limited_as is Phase.ASSEMBLING else allowed
    return Limit(limited_as, allowed, since + timedelta(seconds=left_s))


PARAMETERS: Final = {
    Phase.QUEUED: "queue_timeout",
    Phase.ASSEMBLING: "assemble_timeout",
    Phase.RUNNING: "run_timeout",
}
"""The parameter of the task that limits a phase."""


def missing_limit(state: GangState, deadlines: Deadlines) -> str | None:
    """Return the parameter of the task that would limit the wait of a gang for its queue or for nodes.

    `None` if the wait has a limit, or if the gang does not wait for these.
    """
    is_queued = state.reason.cause in IN_QUEUE | REFUSED_BY_QUEUE
    waits = (is_queued or state.waits_for_nodes) and next_limit(state, deadlines) is None
    return PARAMETERS.get(state.phase) if waits else None


def next_deadline(state: GangState, deadlines: Deadlines) -> datetime | None:
    """Return the time at which the present phase must be over; `None` if it has no limit."""
    limit = next_limit(state, deadlines)
    return limit.at if limit is not None else None


def deadline_exceeded(state: GangState, deadlines: Deadlines, now: datetime) -> Limit | None:
    """Return the deadline that has passed at `now`, or `None`."""
    limit = next_limit(state, deadlines)
    return limit if limit is not None and now >= limit.at else None
