"""Observation: the state of a gang at one moment, computed from its Job, pods, PodGroup and events. Pure.

All times are the server's, so a restarted triggerer computes the same observation. Phases only move forward, unless a
queue suspends a running gang, which is then `queued` again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.diagnosis import diagnose_verdict, diagnose_wait
from airflow_provider_gangjobs.gang.state.phase import PHASE_OF_VERDICT, Phase, Verdict, judge, phase_of
from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
from airflow_provider_gangjobs.gang.state.queue_wait import earlier_assembly_s, evicted_at, explain_suspension
from airflow_provider_gangjobs.gang.state.waiting import (
    NO_EVIDENCE,
    NODE_CAUSES,
    Evidence,
    Wait,
    WaitCause,
    WaitInputs,
    explain_assembly,
    explain_run,
)
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.category import Diagnosis
    from airflow_provider_gangjobs.gang.state.pod_index import Counts
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodGroupView, PodView


@dataclass(frozen=True)
class Observation:
    """State of a gang at one moment."""

    ref: GangRef
    phase: Phase
    began: Mapping[Phase, datetime]
    """Time at which each phase began that the gang has reached, as far as the objects in the cluster contain it."""
    counts: Counts
    wait: Wait
    verdict: Verdict | None = None
    earlier_assembly_s: float = 0.0
    """For how long the gang has assembled in earlier runs that Kueue has stopped, in seconds."""

    ended: Diagnosis | None = None
    """Why the gang has ended, if its outcomes are known."""

    @property
    def diagnosis(self) -> Diagnosis:
        """Why the gang is in its phase, and what to do."""
        if self.ended is not None:
            return self.ended
        if self.verdict is not None and self.wait.cause is not WaitCause.STOPPED:
            return diagnose_verdict(self.verdict)
        return diagnose_wait(self.wait, since=self.since)

    @property
    def since(self) -> datetime | None:
        return self.began.get(self.phase)

    @property
    def refusal(self) -> str:
        """Why the scheduler cannot place the gang; empty if the gang waits for something else.

        The next observation takes this as evidence, because a scheduler may overwrite the message that says it.
        """
        return self.wait.text if self.wait.cause is WaitCause.UNSCHEDULABLE and not self.wait.never_fits else ""

    @property
    def waits_for_nodes(self) -> bool:
        """The scheduler cannot place the gang."""
        return self.wait.cause in NODE_CAUSES

    @property
    def waiting_for(self) -> str:
        """Sentence on what the gang waits for; empty if this is unknown."""
        return self.wait.text

    @property
    def line(self) -> str:
        """Line for a log, for example `assembling: 8 pods, 3 placed. Insufficient nvidia.com/gpu on 3 of 3 nodes`."""
        numbers = _format_counts(self.phase, self.counts)
        capacity = self.wait.capacity.text if self.wait.capacity else ""
        details = ". ".join(filter(None, (numbers, self.wait.text, capacity)))
        return f"{self.phase}: {details}" if details else str(self.phase)


def observe(
    gang: StoredGang | None,
    pods: PodIndex | Iterable[PodView],
    podgroup: PodGroupView | None,
    ref: GangRef,
    evidence: Evidence = NO_EVIDENCE,
) -> Observation:
    """Observe a gang. Pods of other Jobs are ignored.

    :param gang: The Job; `None` only if the API server has no Job with this name.
    """
    pods = pods if isinstance(pods, PodIndex) else PodIndex(ref, pods)
    own_job = gang if gang is not None and gang.ref.uid == ref.uid else None
    start = own_job.started_at if own_job is not None and own_job.interim_condition is None else None
    if own_job is not None and start is not None:
        starts = (one.status.start_time or start for one in own_job.jobs_with_pods)
        pods = pods.since(min(starts, default=start))
    counts = pods.counts(own_job)
    ran_after_start = evidence.ran_after_start
    if own_job is not None and ran_after_start is not None and own_job.started_at == ran_after_start:
        counts = replace(counts, started=max(counts.started, counts.ranks))
    inputs = WaitInputs(own_job, pods, podgroup, counts, evidence)
    return _observation(ref, inputs, phase_of(own_job, counts), judge(gang, ref), started=counts.started)


def observe_counters(
    gang: StoredGang, sample: PodIndex, podgroup: PodGroupView | None, counts: Counts, evidence: Evidence = NO_EVIDENCE
) -> Observation:
    """Observe a gang of which only some pods are known, which explain why it waits, by the counters of its Job.

    The time at which all ranks had started is not known.

    :param counts: The numbers of ranks that the Job shows.
    """
    inputs = WaitInputs(gang, sample, podgroup, counts, evidence)
    return _observation(gang.ref, inputs, phase_of(gang), judge(gang, gang.ref), started=0)


def _observation(
    ref: GangRef, inputs: WaitInputs, phase: Phase, verdict: Verdict | None, *, started: int
) -> Observation:
    """Return the observation of a gang in this phase.

    :param started: How many ranks have started, as far as their pods show it.
    """
    workload = inputs.evidence.queue_workload
    began = _times(phase, inputs.job, inputs.pods, replace(inputs.counts, started=started), verdict)
    if phase is Phase.QUEUED and Phase.QUEUED not in began and (evicted := evicted_at(workload)):
        began[Phase.QUEUED] = evicted
    wait = _wait(phase, inputs, verdict)
    return Observation(ref, phase, began, inputs.counts, wait, verdict, earlier_assembly_s(inputs.job, workload))


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
            began[Phase.QUEUED] = began[Phase.QUEUED] or (gang.created_at if gang.was_never_admitted else None)
        else:
            began[Phase.ASSEMBLING] = gang.started_at
            began[Phase.FINISHING] = gang.interim_condition.last_transition_time if gang.interim_condition else None
    if counts.ranks and counts.started >= counts.ranks and phase is not Phase.QUEUED:
        began[Phase.RUNNING] = pods.all_started_at(counts.ranks)
    if verdict is not None:
        began[Phase.FINISHING] = began.get(Phase.FINISHING) or verdict.at
        began[PHASE_OF_VERDICT[verdict.kind]] = verdict.at
    elif gang is not None and phase is Phase.FAILED:
        ended = gang.suspended_condition or gang.interim_condition
        began[Phase.FAILED] = ended.last_transition_time if ended else None
    return {reached: at for reached, at in began.items() if at is not None}


def _wait(phase: Phase, inputs: WaitInputs, verdict: Verdict | None) -> Wait:
    if inputs.job is not None and inputs.job.is_end_caused_by_stop:
        return explain_suspension(inputs.job)
    match phase:
        case Phase.SUBMITTED | Phase.QUEUED:
            assert inputs.job is not None, "a gang without a Job is in none of these phases"
            if not inputs.job.is_suspended and phase is not Phase.QUEUED:
                return _NOT_PROCESSED
            return explain_suspension(inputs.job, inputs.evidence)
        case Phase.ASSEMBLING:
            return explain_assembly(inputs)
        case Phase.RUNNING:
            return explain_run(inputs.pods)
        case Phase.FINISHING:
            return _finishing(inputs, verdict)
        case _:
            return Wait(WaitCause.NOTHING, _reason_and_message(verdict))


_NOT_PROCESSED: Final = Wait(WaitCause.CONTROLLER, "Waits for the Job controller to process the Job")


def _finishing(inputs: WaitInputs, verdict: Verdict | None) -> Wait:
    if verdict is not None:
        return Wait(WaitCause.HARVEST, _reason_and_message(verdict))
    condition = inputs.job.interim_condition if inputs.job else None
    return Wait(WaitCause.ENDING, condition.reason if condition else "")


def _reason_and_message(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    return ": ".join(filter(None, (verdict.reason, verdict.message)))


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
