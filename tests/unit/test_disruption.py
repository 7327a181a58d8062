"""Which ends of a gang count as disruptions, and how many in a row are allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.outcome.end_reason import reason_of_end
from airflow_provider_gangjobs.gang.outcome.event import Disruption, GangEvent, build_event, disruption_of
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.state.phase import Phase, Status, Verdict
from tests.unit.builders import REF, at

BACKOFF = "BackoffLimitExceeded"


def end(rank: int, ending: OutcomeKind, caused: float = 60, **fields: object) -> Outcome:
    uid = f"{rank}-{fields.get('created')}"
    return Outcome(uid=uid, pod=f"p{rank}", rank=rank, outcome=ending, node="node-b", caused=at(caused), **fields)  # type: ignore[arg-type]


def event_of(*ends: Outcome, reason: str = BACKOFF, disruptions: int = 0) -> GangEvent:
    """Return the event of a gang that failed for this reason."""
    why = reason_of_end(Verdict(Status.FAILED, reason), ends)
    event = build_event(REF, Status.FAILED, Phase.FAILED, reason=why.code, message=why.summary, outcomes=ends)
    return replace(event, disruptions=disruptions)


CRASH = {"exit_code": 1}
GONE = {"disruption": "DeletionByPodGC"}
PEERS = (end(0, OutcomeKind.DELETED, 61), end(1, OutcomeKind.DELETED, 61))

COUNTS = {
    "a preemption": event_of(end(3, OutcomeKind.PREEMPTED), *PEERS),
    "an eviction": event_of(end(3, OutcomeKind.EVICTED, disruption="EvictionByEvictionAPI"), *PEERS),
    "a lost node": event_of(end(3, OutcomeKind.LOST, **GONE), *PEERS),
    "two at once": event_of(end(3, OutcomeKind.PREEMPTED), end(2, OutcomeKind.EVICTED)),
    "a preemption, and crashes that it brings": event_of(
        end(3, OutcomeKind.PREEMPTED), end(0, OutcomeKind.FAILED, 62, **CRASH)
    ),
    "crashes of the peers of a node that was found lost later": event_of(
        end(0, OutcomeKind.FAILED, 60, **CRASH), end(3, OutcomeKind.LOST, 400, **GONE)
    ),
    "a preemption after a queue let the gang run anew": event_of(
        end(3, OutcomeKind.DELETED, 10, created=at(0)), end(3, OutcomeKind.PREEMPTED, 60, created=at(30))
    ),
}
DOES_NOT = {
    "a crash": event_of(end(3, OutcomeKind.FAILED, **CRASH), *PEERS),
    "out of memory": event_of(end(3, OutcomeKind.FAILED, exit_code=137, reason="OOMKilled"), *PEERS),
    "its own limit": event_of(end(3, OutcomeKind.FAILED, exit_code=137, reason="Evicted"), *PEERS),
    "a crash, and a preemption while its peers end": event_of(
        end(3, OutcomeKind.FAILED, 60, **CRASH), end(0, OutcomeKind.PREEMPTED, 61, exit_code=143)
    ),
    "a pod that a person deleted": event_of(end(3, OutcomeKind.DELETED, 50), *PEERS),
    "a pod that a person deleted, and a preemption after it": event_of(
        end(3, OutcomeKind.DELETED, 50), end(0, OutcomeKind.PREEMPTED, 55, exit_code=143)
    ),
    "the Job's own deadline": event_of(end(3, OutcomeKind.PREEMPTED), reason="DeadlineExceeded"),
    "nothing that is known of its pods": event_of(),
    "a disruption that Kubernetes made good, and a crash": event_of(
        end(3, OutcomeKind.EVICTED, 50, created=at(0)),
        end(3, OutcomeKind.SUCCEEDED, 90, created=at(60)),
        end(0, OutcomeKind.FAILED, 70, **CRASH),
    ),
}


@pytest.mark.parametrize("event", COUNTS.values(), ids=COUNTS)
def test_end_that_counts_as_a_disruption(event: GangEvent) -> None:
    assert disruption_of(event, allowed=3) == Disruption(1, 3, event.message)


@pytest.mark.parametrize("event", DOES_NOT.values(), ids=DOES_NOT)
def test_end_that_does_not_count_as_a_disruption(event: GangEvent) -> None:
    assert disruption_of(event, allowed=3) is None


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.FAILED}))
def test_only_a_gang_that_failed_was_lost(status: Status) -> None:
    """A deadline or a deleted Job is no disruption, whatever the outcomes of the ranks are."""
    assert disruption_of(replace(COUNTS["a preemption"], status=status), allowed=3) is None


def test_log_has_the_lost_rank_and_the_number_of_disruptions_left() -> None:
    lost = disruption_of(event_of(end(3, OutcomeKind.PREEMPTED), *PEERS, disruptions=1), allowed=3)

    assert str(lost) == (
        "rank 3 was preempted by a pod of higher priority on node-b; 2 other ranks ended after it "
        "(disruption 2, 3 allowed)"
    )


@given(st.integers(0, 20), st.integers(0, 20))
def test_attempts_of_a_try_are_one_more_than_allowed(allowed: int, behind: int) -> None:
    """The disruptions that came before count too."""
    attempts = 1
    lost = disruption_of(event_of(end(0, OutcomeKind.LOST), disruptions=behind), allowed=allowed)
    while lost is not None and lost.is_allowed:
        assert lost.carried_over == behind + attempts
        attempts += 1
        lost = disruption_of(event_of(end(0, OutcomeKind.LOST), disruptions=lost.carried_over), allowed=allowed)

    assert attempts == max(allowed - behind, 0) + 1
    assert lost is not None
    assert lost.carried_over == 0
