"""The value that a task returns, from the outcomes of its ranks, and when the value is unknown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.exceptions import ResultsTooLarge, ResultTooLarge
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import COMPLETED_INDEXES_CHARACTERS_MAX, GangEvent, build_event
from airflow_provider_gangjobs.gang.outcome.outcomes import ADDRESS, MARK, Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.outcome.task_result import (
    Ranks,
    completed_ranks_in_event,
    completed_ranks_in_job,
    completed_ranks_without_job,
    find_missing_outcomes,
    partial_results,
    task_result,
)
from airflow_provider_gangjobs.gang.spec import Results
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.pods import Counts
from airflow_provider_gangjobs.kube.views import JobView, parse_indexes, view

REF = GangRef("team", "train-0", "job-uid")
LONG = ",".join(str(rank) for rank in range(1, 800, 2))
"""Every second rank of 800: 1,500 characters."""


def outcome(rank: int | None, message: str, *, at: int = 0, **fields: Any) -> Outcome:
    base = {"uid": f"uid-{rank}-{at}", "pod": "p", "outcome": OutcomeKind.SUCCEEDED, "rank": rank}
    finished = datetime(2026, 1, 1, 0, 0, at % 60, tzinfo=UTC)
    return Outcome(**{**base, "message": message, "finished": finished, **fields})


def event_with(completed: str = "", **fields: Any) -> GangEvent:
    event = build_event(REF, Status.SUCCEEDED, Phase.SUCCEEDED, completed_indexes=completed, **fields)
    return GangEvent.from_payload(event.to_payload())


JSON_OF_RANK_0 = [outcome(1, '{"a": 2}'), outcome(0, '{"a": 1}')]
RESULTS: dict[str, tuple[list[Outcome], Ranks, Results, Any]] = {
    "json of rank 0": (JSON_OF_RANK_0, parse_indexes("0-1"), Results.RANK0, {"a": 1}),
    "text": ([outcome(0, "done, accuracy 0.9")], parse_indexes("0"), Results.RANK0, "done, accuracy 0.9"),
    "list by rank": (
        [outcome(2, "20"), outcome(0, "0"), outcome(1, "1")],
        parse_indexes("0-2"),
        Results.ALL,
        [0, 1, 20],
    ),
    "rank that wrote nothing": ([outcome(0, "0"), outcome(1, "")], parse_indexes("0-1"), Results.ALL, [0, None]),
    "no indexes": (
        [outcome(None, "2", at=9), outcome(None, "1", at=3)],
        2,
        Results.ALL,
        [1, 2],
    ),
    "replaced pod": (
        [outcome(0, "1", outcome=OutcomeKind.FAILED), outcome(0, "2", at=5)],
        parse_indexes("0"),
        Results.RANK0,
        2,
    ),
    "rank 0 not needed by the success policy": ([outcome(2, "2")], parse_indexes("2"), Results.RANK0, None),
    "ranks not needed by the success policy": ([outcome(2, "2")], parse_indexes("2"), Results.ALL, [None, None, 2]),
    "no rank ran": ([], 0, Results.ALL, []),
    "nothing wanted": ([outcome(0, "1")], parse_indexes("0"), Results.NONE, None),
    "cut result of another rank": (
        [outcome(0, "1"), outcome(1, "x" * 4096, message_cut=True)],
        parse_indexes("0-1"),
        Results.RANK0,
        1,
    ),
}


FOLDER = "s3://a@b/d/r/t"
SMALL: Any = st.sampled_from([1, "x", FOLDER, "file:///etc", f"{FOLDER}/attempt-0/rank-00000.json", "s3://c@b/x"])
KEYS = st.sampled_from(["gang_result", "bytes", "gang_result_folder", "other"])
WRITTEN = st.recursive(SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner))


@given(WRITTEN)
def test_only_addresses_in_the_folder_of_the_task_are_marked_whatever_a_rank_writes(written: Any) -> None:
    value = task_result([outcome(0, json.dumps(written))], parse_indexes("0"), Results.RANK0, REF, folder=FOLDER)
    if isinstance(value, dict) and value.get(MARK) is not None:
        assert value == {ADDRESS: f"{FOLDER}/attempt-0/rank-00000.json", "bytes": written["bytes"], MARK: FOLDER}
        value.pop(MARK)
    assert MARK not in json.dumps(value)


def test_partial_results_have_marks_too() -> None:
    address = {ADDRESS: f"{FOLDER}/attempt-1/rank-00003.json", "bytes": 5000}
    assert partial_results([outcome(3, json.dumps(address))], FOLDER) == {3: {**address, MARK: FOLDER}}


@pytest.mark.parametrize(("outcomes", "completed", "wanted", "value"), RESULTS.values(), ids=RESULTS)
def test_results_are_the_values_of_the_completed_ranks(
    outcomes: list[Outcome], completed: Ranks, wanted: Results, value: Any
) -> None:
    assert not find_missing_outcomes(outcomes, completed)
    assert task_result(outcomes, completed, wanted, REF) == value


def test_result_that_was_cut_is_refused() -> None:
    with pytest.raises(ResultTooLarge, match="Rank 0"):
        task_result([outcome(0, "x" * 4096, message_cut=True)], parse_indexes("0"), Results.RANK0, REF)


@pytest.mark.parametrize(("size", "limit"), [(4096, 4095), (4094, 4095), (3072, 3071), (2457, 2456)])
def test_limit_of_a_result_that_was_cut_is_that_of_its_pod(size: int, limit: int) -> None:
    """The kubelet keeps 12 KiB of a pod, and replaces a character that it has cut, which may become shorter."""
    cut = [outcome(0, "x" * size, message_cut=True)]
    with pytest.raises(ResultTooLarge, match=f"the limit is {limit} bytes"):
        task_result(cut, parse_indexes("0"), Results.RANK0, REF)


def test_cut_result_of_a_pod_without_index_is_refused_by_its_place() -> None:
    outcomes = [outcome(None, "1", at=1), outcome(None, "x" * 4096, at=2, message_cut=True)]
    with pytest.raises(ResultTooLarge, match="Rank 1 of gang"):
        task_result(outcomes, 2, Results.ALL, REF)


MISSING: dict[str, tuple[list[Outcome], Ranks, Ranks]] = {
    "no outcome at all": ([], parse_indexes("0-1"), frozenset({0, 1})),
    "one of three": ([outcome(0, "1"), outcome(2, "3")], parse_indexes("0-2"), frozenset({1})),
    "pod that was seen to be deleted only": (
        [outcome(0, "", outcome=OutcomeKind.DELETED)],
        parse_indexes("0"),
        frozenset({0}),
    ),
    "pod that was given up": ([outcome(0, "", outcome=OutcomeKind.UNKNOWN)], parse_indexes("0"), frozenset({0})),
    "rank that did not complete": ([outcome(1, "1")], parse_indexes("1"), frozenset()),
    "rank without a result": ([outcome(0, "")], parse_indexes("0"), frozenset()),
    "no indexes": ([outcome(None, "1")], 3, 2),
}


@pytest.mark.parametrize(("outcomes", "completed", "expected"), MISSING.values(), ids=MISSING)
def test_completed_rank_without_a_succeeded_pod_is_missing(
    outcomes: list[Outcome], completed: Ranks, expected: Ranks
) -> None:
    assert find_missing_outcomes(outcomes, completed) == expected


def test_list_of_indexes_that_is_too_long_for_an_event_is_marked() -> None:
    assert len(LONG) > COMPLETED_INDEXES_CHARACTERS_MAX
    event = event_with(LONG)

    assert (event.completed_indexes, event.completed_indexes_cut) == ("", True)
    assert completed_ranks_in_event(event) is None


def test_list_of_indexes_that_fits_needs_no_job() -> None:
    event = event_with("0-3")

    assert (event.completed_indexes_cut, completed_ranks_in_event(event)) == (
        False,
        frozenset(range(4)),
    )


def test_long_list_of_indexes_is_read_from_the_job_and_orders_the_results() -> None:
    """Rank 799 ended first; without the list its value was returned as that of rank 0."""
    job = view(JobView, {"status": {"completedIndexes": LONG, "succeeded": 400}})
    outcomes = [outcome(rank, str(rank), at=800 - rank) for rank in range(800)]
    completed = completed_ranks_in_job(job)

    assert task_result(outcomes, completed, Results.RANK0, REF) is None
    assert task_result(outcomes, completed, Results.ALL, REF) == [rank if rank % 2 else None for rank in range(800)]


def test_job_without_indexes_counts_its_pods() -> None:
    assert completed_ranks_in_job(view(JobView, {"status": {"succeeded": 3}})) == 3


WITHOUT_JOB: dict[str, tuple[GangEvent, Ranks | None]] = {
    "pods without indexes": (event_with(counts=Counts(succeeded=2)), 2),
    "list was cut": (event_with(LONG, counts=Counts(succeeded=400)), None),
    "no counts": (event_with(), None),
}


@pytest.mark.parametrize(("event", "completed"), WITHOUT_JOB.values(), ids=WITHOUT_JOB)
def test_indexes_are_never_guessed_when_the_job_is_gone(event: GangEvent, completed: Ranks | None) -> None:
    assert completed_ranks_without_job(event) == completed


@pytest.mark.parametrize("limit", [4, 3])
def test_results_of_all_ranks_together_have_a_limit(limit: int) -> None:
    outcomes = [outcome(0, '"é"')]
    if limit == 4:
        assert task_result(outcomes, parse_indexes("0"), Results.ALL, REF, limit=limit) == ["é"]
    else:
        with pytest.raises(ResultsTooLarge, match="1 ranks of gang team/train-0 have 4 bytes"):
            task_result(outcomes, parse_indexes("0"), Results.ALL, REF, limit=limit)
        assert task_result(outcomes, parse_indexes("0"), Results.RANK0, REF, limit=limit) == "é"


def test_partial_results_are_those_of_ranks_that_succeeded_and_wrote_one() -> None:
    failed = outcome(2, '{"error": "no rows"}', outcome=OutcomeKind.FAILED)
    again = outcome(3, "4", at=9)
    assert partial_results([again, outcome(3, "3", at=1), outcome(1, ""), failed, outcome(0, "0")]) == {0: 0, 3: 4}
