"""What a task returns, from the outcomes of its ranks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_gangjobs.exceptions import ResultTooLarge
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import Status, gang_event
from airflow_provider_gangjobs.gang.outcome.outcomes import Ending, Outcome
from airflow_provider_gangjobs.gang.spec import Results
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.operators.completion import results_of


def succeeded(completed: str) -> Any:
    ref = GangRef("team", "train-0", "job-uid")
    return gang_event(ref, Status.SUCCEEDED, Phase.SUCCEEDED, completed_indexes=completed)


def outcome(rank: int | None, message: str, *, at: int = 0, **fields: Any) -> Outcome:
    base = {"uid": f"uid-{rank}-{at}", "pod": "p", "outcome": Ending.SUCCEEDED, "rank": rank}
    finished = datetime(2026, 1, 1, 0, 0, at, tzinfo=UTC)
    return Outcome(**{**base, "message": message, "finished": finished, **fields})


def test_rank_0_returns_its_json_value() -> None:
    outcomes = [outcome(1, '{"a": 2}'), outcome(0, '{"a": 1}')]

    assert results_of(outcomes, succeeded("0-1"), Results.RANK0) == {"a": 1}


def test_text_that_is_no_json_is_returned_as_text() -> None:
    assert results_of([outcome(0, "done, accuracy 0.9")], succeeded("0"), Results.RANK0) == "done, accuracy 0.9"


def test_all_results_are_a_list_by_rank() -> None:
    outcomes = [outcome(2, "20"), outcome(0, "0"), outcome(1, "")]

    assert results_of(outcomes, succeeded("0-2"), Results.ALL) == [0, None, 20]


def test_pods_without_index_are_ranks_in_order_of_their_ends() -> None:
    outcomes = [outcome(None, "2", at=9), outcome(None, "1", at=3)]

    assert results_of(outcomes, succeeded(""), Results.ALL) == [1, 2]


def test_failed_pod_of_a_rank_is_no_result() -> None:
    outcomes = [outcome(0, "1", outcome=Ending.FAILED), outcome(0, "2", at=5)]

    assert results_of(outcomes, succeeded("0"), Results.RANK0) == 2


def test_missing_outcome_is_no_result() -> None:
    assert results_of([], succeeded("0-1"), Results.RANK0) is None


def test_rank_without_outcome_keeps_its_place() -> None:
    assert results_of([outcome(0, "1")], succeeded("0-2"), Results.ALL) == [1, None, None]


def test_cut_result_is_refused() -> None:
    with pytest.raises(ResultTooLarge, match="Rank 0"):
        results_of([outcome(0, "x" * 4096, message_cut=True)], succeeded("0"), Results.RANK0)


def test_cut_result_that_is_not_wanted_is_no_matter() -> None:
    outcomes = [outcome(0, "1"), outcome(1, "x" * 4096, message_cut=True)]

    assert results_of(outcomes, succeeded("0-1"), Results.RANK0) == 1
