"""The value that a task returns for a gang that succeeded, and the outcomes that are missing for this value. Pure.

The rule (issue 14): a success requires that the outcome of every rank that the Job counts as completed was read. What a
rank returned therefore has three answers: a value, `None` because the rank wrote nothing, and *unknown* because nobody
could read how its pod ended. `find_missing_outcomes` returns the ranks of the third kind. A task that has such a rank
must not succeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs import exceptions
from airflow_provider_gangjobs.gang.outcome.outcomes import (
    POD_MESSAGE_BYTES_MAX,
    Outcome,
    OutcomeKind,
    end_order,
    result_outcomes,
    with_mark,
)
from airflow_provider_gangjobs.gang.spec import RESULTS_LIMIT_BYTES, Results
from airflow_provider_gangjobs.kube.views import parse_indexes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.kube.views import JobView


Ranks = frozenset[int] | int
"""Ranks by their completion indexes; or of a Job without indexes, how many of its pods."""


def completed_ranks_in_job(job: JobView) -> Ranks:
    """Return the ranks that a Job which has ended counts as completed."""
    return parse_indexes(job.status.completed_indexes) if job.status.completed_indexes else job.status.succeeded


def completed_ranks_in_event(event: GangEvent) -> Ranks | None:
    """Return the completed ranks that an event names.

    `None` if the list was too long, or if the Job has no indexes.
    """
    return parse_indexes(event.completed_indexes) if event.completed_indexes else None


def completed_ranks_without_job(event: GangEvent) -> Ranks | None:
    """Return the number of completed pods of a Job without indexes that is gone.

    `None` for an Indexed Job, because a pod that succeeded does not prove that the Job counted its rank.
    """
    return None if event.completed_indexes_cut else event.counts.get("succeeded")


def find_missing_outcomes(outcomes: Sequence[Outcome], completed: Ranks) -> Ranks:
    """Return the completed ranks that have no outcome of a succeeded pod."""
    if isinstance(completed, int):
        return max(completed - len(_counted(outcomes)), 0)
    return completed.difference(result_outcomes(outcomes, completed))


def task_result(
    outcomes: Sequence[Outcome],
    completed: Ranks,
    wanted: Results,
    ref: GangRef,
    *,
    limit: int = RESULTS_LIMIT_BYTES,
    folder: str | None = None,
) -> Any:
    """Return the value that the task returns: the result of rank 0, or the results of all ranks in order, by role.

    The value of a rank is `None` if it wrote no result, or if the success policy did not need it. Call the function
    only if `find_missing_outcomes` returns nothing.

    :param limit: How many bytes the results of all ranks may have together.
    :param folder: Where the ranks store large results. Addresses there are marked, so that `read_result` follows them.

    Raises:
        ResultRefused: Airflow cannot store a result that the task returns.
        ResultTooLarge: The kubelet cut a result that the task returns.
        ResultsTooLarge: The results of all ranks exceed the limit.
    """
    if wanted is Results.NONE:
        return None
    ranks = _by_rank(outcomes, completed)
    if wanted is Results.RANK0:
        return with_mark(_value(0, ranks.get(0), ref), folder)
    size = sum(len(outcome.message.encode()) for outcome in ranks.values())
    if size > limit:
        raise exceptions.ResultsTooLarge(ref=str(ref), ranks=len(ranks), size=size, limit=limit)
    values = [with_mark(_value(rank, ranks.get(rank), ref), folder) for rank in range(max(ranks, default=-1) + 1)]
    if not any(outcome.role for outcome in ranks.values()):
        return values
    by_role: dict[str, list[Any]] = {}
    for rank, outcome in sorted(ranks.items()):
        by_role.setdefault(outcome.role, []).append(values[rank])
    return by_role


def partial_results(outcomes: Sequence[Outcome], folder: str | None = None) -> dict[int, Any]:
    """Return the result of each rank that succeeded and wrote one, of a gang that failed as a whole."""
    succeeded = [outcome for outcome in outcomes if outcome.outcome is OutcomeKind.SUCCEEDED]
    found = {outcome.rank: outcome.result for outcome in sorted(succeeded, key=end_order)}
    ranks = sorted(rank for rank in found if rank is not None and found[rank] is not None)
    return {rank: with_mark(found[rank], folder) for rank in ranks}


def _by_rank(outcomes: Sequence[Outcome], completed: Ranks) -> dict[int, Outcome]:
    if not isinstance(completed, int):
        return result_outcomes(outcomes, completed)
    # Pods of a Job without indexes get ranks in the order in which they ended.
    return dict(enumerate(sorted(_counted(outcomes), key=end_order)))


def _counted(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.is_counted]


def _value(rank: int, outcome: Outcome | None, ref: GangRef) -> Any:
    if outcome is None:
        return None
    if outcome.message_cut:
        size = len(outcome.message.encode())
        containers = POD_MESSAGE_BYTES_MAX // size
        raise exceptions.ResultTooLarge(ref=str(ref), rank=rank, size=size, limit=POD_MESSAGE_BYTES_MAX // containers)
    if problem := outcome.result_problem:
        raise exceptions.ResultRefused(ref=str(ref), rank=rank, problem=problem)
    return outcome.result
