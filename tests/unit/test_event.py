"""The event of a trigger: it loads in each version of its format, and its size is limited."""

import json

import pytest

from airflow_provider_gangjobs.gang.outcome.event import (
    RANKS_MAX,
    GangEvent,
    RankEnd,
    Status,
    UnreadableEventError,
    build_event,
)
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.pod_index import Counts
from tests.unit.builders import REF, at

GOLDEN_V1 = {
    "v": 1,
    "status": "failed",
    "name": "train-0",
    "namespace": "team",
    "uid": "job-uid",
    "phase": "failed",
    "attempt": 2,
    "reason": "OOMKilled",
    "message": "rank 3 ran out of memory",
    "remedy": "Raise resources.memory.",
    "since": "2026-08-01T12:01:00Z",
    "counts": {"ranks": 4, "failed": 4},
    "ranks": [
        {
            "pod": "p3",
            "outcome": "failed",
            "rank": 3,
            "exit_code": 137,
            "signal": 9,
            "reason": "OOMKilled",
            "node": "node-b",
            "seconds": 55.0,
        }
    ],
    "completed_indexes": "0-1",
    "notes": ["1 pod is still held"],
}


def _event(**fields) -> GangEvent:
    return build_event(REF, Status.FAILED, Phase.FAILED, **fields)


def test_event_of_the_first_version_still_loads():
    event = GangEvent.from_payload(GOLDEN_V1)
    assert event.ref == REF
    assert event.status is Status.FAILED
    assert event.phase is Phase.FAILED
    assert event.since == at(60)
    assert event.counts == {"ranks": 4, "failed": 4}
    assert event.ranks == (
        RankEnd(
            pod="p3",
            outcome=OutcomeKind.FAILED,
            rank=3,
            exit_code=137,
            signal=9,
            reason="OOMKilled",
            node="node-b",
            seconds=55.0,
        ),
    )


def test_payload_is_plain_json_and_comes_back_equal():
    outcomes = [
        Outcome(uid="u", pod="p", outcome=OutcomeKind.FAILED, rank=1, exit_code=3, message="boom", started=at(0))
    ]
    event = _event(since=at(9), counts=Counts(ranks=4), outcomes=outcomes, notes=["a"], seconds=1.5)
    payload = json.loads(json.dumps(event.to_payload()))
    assert GangEvent.from_payload(payload) == event


def test_fields_of_a_later_minor_version_are_ignored():
    assert GangEvent.from_payload(GOLDEN_V1 | {"later": 1}) == GangEvent.from_payload(GOLDEN_V1)


UNREADABLE = {
    "another version": (GOLDEN_V1 | {"v": 2}, "version 2, known is 1"),
    "no version": ({}, "version None"),
    "an unknown status": (GOLDEN_V1 | {"status": "splendid"}, "unknown status 'splendid'"),
    "a status that is none": (GOLDEN_V1 | {"status": ["failed"]}, "unknown status"),
    "no mapping": (None, "NoneType, not a mapping"),
    "a field of another type": (GOLDEN_V1 | {"name": 3}, "cannot be read: Expected `str`"),
}


@pytest.mark.parametrize(("payload", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_error_of_an_unreadable_event_has_a_remedy(payload, words):
    with pytest.raises(UnreadableEventError, match=words) as caught:
        GangEvent.from_payload(payload)
    assert "clear the task" in str(caught.value)


def test_event_has_a_maximum_size():
    outcomes = [
        Outcome(uid=f"{n}", pod="p" * 60, outcome=OutcomeKind.FAILED, rank=n, message="m" * 4096, caused=at(n))
        for n in range(500)
    ]
    indexes = ",".join(str(2 * n) for n in range(1000))
    event = _event(message="x" * 9999, outcomes=outcomes, completed_indexes=indexes, notes=["n" * 9999] * 99)
    assert len(event.ranks) == RANKS_MAX
    assert [rank.rank for rank in event.ranks] == list(range(RANKS_MAX))
    assert (event.completed_indexes, event.completed_indexes_cut) == ("", True)
    assert len(json.dumps(event.to_payload())) < 20_000


def test_result_of_a_rank_is_not_in_the_event():
    event = _event(outcomes=[Outcome(uid="u", pod="p", outcome=OutcomeKind.SUCCEEDED, message="secret result")])
    assert event.ranks[0].message == ""
