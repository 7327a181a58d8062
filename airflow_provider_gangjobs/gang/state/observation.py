"""Observation: (Job, pods, PodGroup, events) as they are seen now -> phase, counts, times, what is waited for, verdict.

A pure function without memory. Every time is the server's, so a restarted observer says the same.
Phases only move forward, with one exception that is the cluster's own: a queue that suspends a
running gang sends it back to `queued`. What each phase means stands in `gang.state.phase`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.phase import PHASE_OF_VERDICT, Phase, phase_of
from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
from airflow_provider_gangjobs.gang.state.verdict import Verdict, judge
from airflow_provider_gangjobs.gang.state.waiting import (
    Wait,
    WaitCause,
    WaitInputs,
    explain_assembly,
    explain_suspension,
    pluralize,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.gang.state.progress import Counts
    from airflow_provider_gangjobs.kube.views import EventView, PodGroupView, PodView


@dataclass(frozen=True)
class Observation:
    """What is known of a gang at one moment."""

    ref: GangRef
    phase: Phase
    began: Mapping[Phase, datetime]
    """When each phase began that the gang has reached, as far as the cluster tells."""
    counts: Counts
    wait: Wait
    verdict: Verdict | None = None

    @property
    def since(self) -> datetime | None:
        """When the present phase began."""
        return self.began.get(self.phase)

    @property
    def waiting_for(self) -> str:
        """What it waits for, in a sentence; empty if nothing can be said."""
        return self.wait.text

    @property
    def line(self) -> str:
        """One line for a log: `assembling: 8 pods, 3 placed. Insufficient nvidia.com/gpu on 3 of 3 nodes`."""
        numbers = _NUMBERS.get(self.phase, _no_numbers)(self.counts)
        said = ". ".join(filter(None, (numbers, self.wait.text)))
        return f"{self.phase}: {said}" if said else str(self.phase)


def observe(
    job: Job | None,
    pods: Iterable[PodView],
    podgroup: PodGroupView | None,
    ref: GangRef,
    *,
    events: Sequence[EventView] = (),
) -> Observation:
    """Say where a gang stands.

    `job=None` must mean that the server has no such Job. Pods of another Job are left out.
    `events` are those of the Job and its pods, if somebody fetched them; only evidence comes from them.
    """
    return observe_indexed(job, PodIndex(ref, pods), podgroup, ref, events=events)


def observe_indexed(
    job: Job | None,
    pods: PodIndex,
    podgroup: PodGroupView | None,
    ref: GangRef,
    *,
    events: Sequence[EventView] = (),
) -> Observation:
    """The same, of pods that are counted already."""
    ours = job if job is not None and job.ref.uid == ref.uid else None
    verdict = judge(job, ref)
    counts = pods.counts(ours)
    phase = phase_of(ours, counts)
    began = _times(phase, ours, pods, counts, verdict)
    wait = _wait(phase, WaitInputs(ours, pods, podgroup, counts, events), verdict)
    return Observation(ref, phase, began, counts, wait, verdict)


def _times(
    phase: Phase, job: Job | None, pods: PodIndex, counts: Counts, verdict: Verdict | None
) -> dict[Phase, datetime]:
    began: dict[Phase, datetime | None] = {}
    if job is not None:
        began[Phase.SUBMITTED] = job.created_at
        began[Phase.QUEUED] = job.suspended.last_transition_time if job.suspended else None
        if phase is Phase.QUEUED:
            # A Job in a queue is queued from its creation, before the Job controller has looked at it.
            began[Phase.QUEUED] = began[Phase.QUEUED] or (None if job.has_run else job.created_at)
        else:
            began[Phase.ASSEMBLING] = job.started_at
            began[Phase.FINISHING] = job.interim_condition.last_transition_time if job.interim_condition else None
    if counts.ranks and counts.started >= counts.ranks and phase is not Phase.QUEUED:
        began[Phase.RUNNING] = pods.all_started_at(counts.ranks)
    if verdict is not None:
        began[Phase.FINISHING] = began.get(Phase.FINISHING) or verdict.at
        began[PHASE_OF_VERDICT[verdict.kind]] = verdict.at
    elif job is not None and phase is Phase.FAILED:
        began[Phase.FAILED] = job.suspended.last_transition_time if job.suspended else None
    return {step: at for step, at in began.items() if at is not None}


def _wait(phase: Phase, seen: WaitInputs, verdict: Verdict | None) -> Wait:
    if verdict is None and seen.job is not None and seen.job.ends_by_halt:
        return explain_suspension(seen.job)
    match phase:
        case Phase.SUBMITTED | Phase.QUEUED:
            assert seen.job is not None, "a Job that is gone is in none of these phases"
            return explain_suspension(seen.job) if seen.job.is_suspended or phase is Phase.QUEUED else _UNSEEN
        case Phase.ASSEMBLING:
            return explain_assembly(seen)
        case Phase.RUNNING:
            return Wait(WaitCause.RANKS)
        case Phase.FINISHING:
            return _finishing(seen, verdict)
        case _:
            return Wait(WaitCause.NOTHING, _said(verdict))


_UNSEEN: Final = Wait(WaitCause.CONTROLLER, "Waits for the Job controller to look at the Job")


def _finishing(seen: WaitInputs, verdict: Verdict | None) -> Wait:
    if verdict is not None:
        return Wait(WaitCause.HARVEST, _said(verdict))
    decided = seen.job.interim_condition if seen.job else None
    return Wait(WaitCause.ENDING, decided.reason if decided else "")


def _said(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    return ": ".join(filter(None, (verdict.reason, verdict.message)))


def _while_assembling(counts: Counts) -> str:
    ranks = pluralize(counts.ranks, "pod")
    pods = ranks if counts.created >= counts.ranks else f"{counts.created} of {ranks}"
    started = f", {counts.started} started" if counts.started else ""
    return f"{pods}, {counts.placed or 'none'} placed{started}"


def _while_running(counts: Counts) -> str:
    return f"{min(counts.started, counts.ranks)}/{counts.ranks} ranks"


def _at_the_end(counts: Counts) -> str:
    held = f", {pluralize(counts.held, 'pod')} not recorded yet" if counts.held else ""
    return f"{pluralize(counts.succeeded, 'rank')} succeeded, {counts.failed} failed{held}"


def _no_numbers(counts: Counts) -> str:
    return ""


_NUMBERS: Final = {
    Phase.ASSEMBLING: _while_assembling,
    Phase.RUNNING: _while_running,
    Phase.FINISHING: _at_the_end,
    Phase.SUCCEEDED: _at_the_end,
    Phase.FAILED: _at_the_end,
}
