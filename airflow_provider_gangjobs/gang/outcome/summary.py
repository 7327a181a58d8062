"""Several outcomes of one gang: which one caused the others, which ones hold results, and how they are listed. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.state.pods import REASON_EVICTED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

# Controllers set these reasons minutes after a node stopped responding. The peers of the rank have failed by then.
_DETECTED_LATE: Final = frozenset({"DeletionByPodGC", "DeletionByTaintManager"})


def _was_lost_with_node(outcome: Outcome) -> bool:
    """The node was lost, and the end of the program was not observed, so its time is earlier than the recorded time.

    An end that the node itself reported, for example while it was drained, has a reliable time.
    """
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
_CausalOrder = tuple[bool, bool, float, int, float, int]


def root_cause(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the outcome that caused the other outcomes: the earliest one that is not a success.

    A pod that was deleted after its main container had succeeded counts, too: the Job does not count the pod.

    Outcomes of pods that were replaced are ignored. Peers of a failed rank end later: the Job controller sends them
    SIGTERM, or they lose their connection to the failed rank. A rank that was lost with its node comes before all other
    outcomes, because its peers fail before the loss of the node is detected.
    """
    last = _last_pods(list(outcomes))
    ends = (outcome for outcome in last if outcome.outcome in _ORDER or outcome.is_deleted_success)
    return min(ends, key=_causal_order, default=None)


def _last_pods(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Yield the outcomes of pods that were not replaced. A queue may run the gang again, and a plain Job replaces
    pods."""
    newest: dict[int | None, str] = {}
    for outcome in outcomes:
        newest[outcome.rank] = max(newest.get(outcome.rank, ""), _created(outcome))
    return (o for o in outcomes if o.rank is None or _created(o) == newest[o.rank])


class FailedRanks:
    """Counts the ranks whose last pod did not succeed, without the outcomes of all ranks in memory.

    Outcomes may be added in any order and several times. An outcome that is unknown is no failure.
    """

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._last: dict[int | str, tuple[str, bool]] = {}
        for outcome in outcomes:
            self.add(outcome)

    def __len__(self) -> int:
        return sum(has_failed for _, has_failed in self._last.values())

    def add(self, outcome: Outcome) -> None:
        """Count the outcome of a pod, unless a later pod of the same rank is counted."""
        key = outcome.uid if outcome.rank is None else outcome.rank
        end = (_created(outcome), outcome.outcome in _ORDER)
        self._last[key] = max(self._last.get(key, end), end)


def _created(outcome: Outcome) -> str:
    return outcome.created.isoformat() if outcome.created else ""


def _causal_order(outcome: Outcome) -> _CausalOrder:
    second, fraction = divmod(outcome.caused.timestamp(), 1) if outcome.caused else (0.0, 0.0)
    rank = -1 if outcome.rank is None else outcome.rank
    order = 0 if outcome.reason == REASON_EVICTED else _ORDER.get(outcome.outcome, _ORDER[OutcomeKind.DELETED])
    return not _was_lost_with_node(outcome), outcome.caused is None, second, order, fraction, rank


def failures_first(outcomes: Iterable[Outcome], limit: int) -> list[Outcome]:
    """Return at most `limit` outcomes: failures in the order in which they happened, then successes by rank.

    Failures of pods that were replaced come after the other failures.
    """
    found = list(outcomes)
    last = {outcome.uid for outcome in _last_pods(found)}
    return sorted(found, key=lambda outcome: _failure_order(outcome, replaced=outcome.uid not in last))[:limit]


def _failure_order(outcome: Outcome, *, replaced: bool) -> tuple[int, bool, _CausalOrder, int]:
    if outcome.outcome in _ORDER:
        return 0, replaced, _causal_order(outcome), 0
    rank = -1 if outcome.rank is None else outcome.rank
    return 1 + (outcome.outcome is OutcomeKind.SUCCEEDED), replaced, (False, False, 0.0, 0, 0.0, 0), rank


def result_outcomes(outcomes: Iterable[Outcome], completed: Collection[int]) -> dict[int, Outcome]:
    """Return the outcome that holds the result of each completed rank: rank -> outcome of a succeeded pod.

    If several pods of a rank succeeded, the function returns the outcome of the pod that finished first. If only the
    main containers of pods succeeded, it is that of the newest pod: a queue may have suspended the gang before the
    others counted.

    :param completed: The ranks that the Job counts as completed. Other ranks are ignored.
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
    return min(counted, key=lambda o: (o.finished is None, o.finished, o.uid))


def format_table(outcomes: Iterable[Outcome]) -> str:
    """Format outcomes as a text table: rank, outcome, exit code, seconds, node. Rows are ordered by rank and
    creation."""
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


__all__ = ["FailedRanks", "failures_first", "format_table", "result_outcomes", "root_cause"]
