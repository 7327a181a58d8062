"""Ranks: one row for each pod of a gang, those that tell most first, and how many ranks are in which state. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.outcome.outcomes import Ending, Outcome, most_telling, outcome_of
from airflow_provider_gangjobs.gang.state import pods as pod_facts
from airflow_provider_gangjobs.gang.state.pods import refusal
from airflow_provider_gangjobs.gang.state.waiting import node_reasons, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.kube.views import PodView

_IN_ORDER: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons for which a container waits when all is well."""


class Tone(StrEnum):
    """How a state is to be taken. Never told by its colour alone."""

    BAD = "bad"
    WAIT = "wait"
    BUSY = "busy"
    GOOD = "good"


@dataclass(frozen=True)
class Row:
    """One pod. A rank has one, unless the Job was allowed to replace it."""

    rank: int | None
    state: str
    tone: Tone
    exit_code: int | None = None
    seconds: float | None = None
    """How long its program has run."""
    node: str = ""
    restarts: int = 0
    message: str = ""


WITHOUT_POD: Final = "without a pod"
_UNPLACED: Final = "waiting for a node"
_RUNNING: Final = "running"
_LIVE: Final = {_UNPLACED: 0, "starting": 1, "terminating": 2, _RUNNING: 3}
"""The states of pods that have not ended, in the order in which they are shown."""


def ended_of(pods: Iterable[PodView], recorded: Iterable[Outcome]) -> list[Outcome]:
    """How pods have ended: as it is recorded, and of pods that are not recorded yet, as they show."""
    ended = {outcome.uid: outcome for outcome in recorded}
    for pod in pods:
        if pod.metadata.uid not in ended and pod_facts.has_ended(pod):
            ended[pod.metadata.uid] = outcome_of(pod)
    return list(ended.values())


def rows_of(pods: Iterable[PodView], ended: Sequence[Outcome], now: datetime) -> list[Row]:
    """What did not succeed, in the order in which it ended; then what waits, what runs, and what succeeded."""
    over = {outcome.uid for outcome in ended}
    live = sorted((pod for pod in pods if pod.metadata.uid not in over), key=_live_order)
    told = most_telling(ended, len(ended))
    bad = [ended_row(outcome) for outcome in told if outcome.outcome is not Ending.SUCCEEDED]
    good = [ended_row(outcome) for outcome in told if outcome.outcome is Ending.SUCCEEDED]
    return [*bad, *(_live_row(pod, now) for pod in live), *good]


def tally_of(rows: Sequence[Row], *, ranks: int, is_over: bool) -> tuple[tuple[str, int], ...]:
    """How many ranks are in which state, in the order of the rows."""
    counted = Counter(row.state for row in rows)
    missing = 0 if is_over else ranks - len({row.rank if row.rank is not None else id(row) for row in rows})
    return (*counted.items(), (WITHOUT_POD, missing)) if missing > 0 else tuple(counted.items())


def ended_row(outcome: Outcome) -> Row:
    """How a pod ended. What a rank returned is for those who may read XComs, and not shown."""
    succeeded = outcome.outcome is Ending.SUCCEEDED
    reason = "" if outcome.reason == "Error" else outcome.reason  # which says no more than the exit code
    said = () if succeeded else (outcome.disruption, reason, outcome.message)
    return Row(
        rank=outcome.rank,
        state=str(outcome.outcome),
        tone=Tone.GOOD if succeeded else Tone.BAD,
        exit_code=outcome.exit_code,
        seconds=outcome.seconds,
        node=outcome.node,
        restarts=outcome.restarts,
        message=shorten(": ".join(filter(None, said))),
    )


def _live_row(pod: PodView, now: datetime) -> Row:
    state = _state(pod)
    started = pod_facts.started_at(pod)
    return Row(
        rank=pod_facts.rank_of(pod),
        state=state,
        tone=Tone.BUSY if state == _RUNNING else Tone.WAIT,
        seconds=max(0.0, (now - started).total_seconds()) if started else None,
        node=pod.spec.node_name,
        restarts=max((status.restart_count for status in pod.status.container_statuses), default=0),
        message=_waits_for(pod),
    )


def _state(pod: PodView) -> str:
    if pod.metadata.deletion_timestamp is not None:
        return "terminating"
    if pod_facts.started_at(pod) is not None:
        return _RUNNING
    return "starting" if pod.spec.node_name else _UNPLACED


def _waits_for(pod: PodView) -> str:
    if refused := refusal(pod):
        return node_reasons(refused)
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    waits = (status.state.waiting for status in statuses)
    found = next((waiting for waiting in waits if waiting and waiting.reason not in _IN_ORDER), None)
    return shorten(": ".join(filter(None, (found.reason, found.message)))) if found else ""


def _live_order(pod: PodView) -> tuple[int, int, int]:
    rank = pod_facts.rank_of(pod)
    return _silence(pod), _LIVE[_state(pod)], -1 if rank is None else rank


def _silence(pod: PodView) -> int:
    """How little a pod says of why the gang waits. Since 1.36 most pods only say that the gang lacks others."""
    said = _waits_for(pod)
    if not said:
        return 2
    refused = refusal(pod)
    return int(bool(refused) and said == shorten(refused))
