"""Rank rows: one row for each pod of a gang, the most informative first, for the page and the command line. Pure.

A row has the state of a pod that lives or the recorded outcome of a pod that has ended, and why it waits or failed. It
has no result of a rank, which only readers of XComs may see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.outcome.outcomes import (
    Outcome,
    OutcomeKind,
    failures_first,
    outcome_of,
    root_cause,
)
from airflow_provider_gangjobs.gang.state import pods as podutil
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.pods import refusal
from airflow_provider_gangjobs.gang.state.waiting import TEXT_CHARACTERS_MAX, summarize_refusal, to_line
from airflow_provider_gangjobs.kube.text import keep_end, to_printable_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.kube.views import PodView


_NORMAL_WAITS: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons for which a container waits during a normal start."""


class Tone(StrEnum):
    """How good a state is, which a reader shows by a colour and never by the colour alone."""

    BAD = "bad"
    WAIT = "wait"
    BUSY = "busy"
    GOOD = "good"
    QUIET = "quiet"
    """Of a rank that ended because another one had failed."""


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
    has_log: bool = False
    """The pod exists and may have a log."""
    pod: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    """Addresses in other systems, by the name of the link."""

    @property
    def name(self) -> str:
        """The rank in a sentence."""
        return podutil.name_rank(self.rank, self.role, self.role_rank, pod=self.pod)

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
    pods = list(pods)
    ended_uids = {outcome.uid for outcome in outcomes}
    logged = {pod.metadata.uid for pod in pods if podutil.may_have_log(pod)}
    live = sorted((pod for pod in pods if pod.metadata.uid not in ended_uids), key=_live_order)
    ordered = failures_first(outcomes, len(outcomes))
    cause = root_cause(outcomes)
    failed = (outcome for outcome in ordered if outcome.outcome is not OutcomeKind.SUCCEEDED)
    bad = [
        (outcome, outcome_row(outcome, follows=cause is not None and outcome.uid != cause.uid)) for outcome in failed
    ]
    good = [(one, outcome_row(one)) for one in ordered if one.outcome is OutcomeKind.SUCCEEDED]
    before, after = ([replace(row, has_log=one.uid in logged) for one, row in rows] for rows in (bad, good))
    return [*before, *(_live_row(pod, now) for pod in live), *after]


def count_by_state(rows: Sequence[RankRow], *, ranks: int, is_over: bool) -> tuple[tuple[str, int], ...]:
    """Return pairs of a state and its number of pods, in the order of the rows.

    While the gang is not over, the last pair is the number of ranks without a pod, if there are any.
    """
    counts = Counter(row.state for row in rows)
    missing = 0 if is_over else ranks - len({row.rank if row.rank is not None else id(row) for row in rows})
    return (*counts.items(), (WITHOUT_POD, missing)) if missing > 0 else tuple(counts.items())


def outcome_row(outcome: Outcome, *, follows: bool = False) -> RankRow:
    """Return the row of a pod that has ended. The row omits the rank's result, which only readers of XComs may see.

    :param follows: The pod is not the one that failed first.
    """
    succeeded = outcome.outcome is OutcomeKind.SUCCEEDED
    # The reason "Error" says no more than the exit code.
    reason = "" if outcome.reason == "Error" else outcome.reason
    kept = to_line(outcome.error) or _end_of(outcome.message)
    message = () if succeeded else (outcome.disruption, reason, kept)
    return RankRow(
        rank=outcome.rank,
        state=str(outcome.outcome),
        tone=Tone.GOOD if succeeded else Tone.QUIET if follows else Tone.BAD,
        exit_code=outcome.exit_code,
        seconds=outcome.seconds,
        node=outcome.node,
        restarts=outcome.restarts,
        message=": ".join(filter(None, message)),
        role=outcome.role,
        role_rank=outcome.role_rank,
        pod=outcome.pod,
    )


def _end_of(output: str) -> str:
    """Return the end of what was kept of the output of a rank, on one line: the end says why the program failed."""
    return keep_end(to_printable_line(output), TEXT_CHARACTERS_MAX)


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
        has_log=podutil.may_have_log(pod),
        pod=pod.metadata.name,
    )


def _live_state(pod: PodView) -> str:
    if pod.metadata.deletion_timestamp is not None:
        return "terminating"
    if podutil.started_at(pod) is not None:
        return _RUNNING
    return "starting" if pod.spec.node_name else _UNSCHEDULED


def _wait_message(pod: PodView) -> str:
    if refused := refusal(pod):
        return summarize_refusal(refused)
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


_TONES: Final = {
    Phase.RUNNING: Tone.BUSY,
    Phase.FINISHING: Tone.BUSY,
    Phase.SUCCEEDED: Tone.GOOD,
    Phase.FAILED: Tone.BAD,
    Phase.DELETED: Tone.BAD,
}


def tone_of(phase: Phase) -> Tone:
    """Return how good a phase is."""
    return _TONES.get(phase, Tone.WAIT)
