"""The event of a trigger, what it tells of a gang after its Job is gone, and which events count as disruptions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import Claim, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.outcome.end_reason import reason_of_end
from airflow_provider_gangjobs.gang.outcome.event import (
    RANKS_MAX,
    Disruption,
    GangEvent,
    RankEnd,
    UnreadableEventError,
    build_event,
    disruption_of,
    history_of,
)
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.outcome.restarts import (
    SupervisorReport,
    TimeUse,
    add_uses,
    describe_use,
    time_use_of,
)
from airflow_provider_gangjobs.gang.render.job_manifest import render_job
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase, Status, Verdict
from airflow_provider_gangjobs.gang.state.pods import Counts
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from tests.unit.builders import REF, at

# -- The event of a trigger: it loads in each version of its format, and its size is limited -------------------------

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


# -- What the event tells of a gang after its Job is gone ------------------------------------------------------------

ATTEMPT = build_attempt(TaskKey("dag", "run", "train"), Claim("c"), namespace="ns", number=0)
BEGAN = {Phase.SUBMITTED: at(0), Phase.ASSEMBLING: at(30), Phase.RUNNING: at(40), Phase.FINISHING: at(50)}


def job_of(**parameters):
    return read_job(render_job(GangSpec(image="i", **parameters), ATTEMPT, PlacementDecision(Placement.OFF)))


def test_event_has_times_and_size_of_the_gang():
    job = job_of(workers=4, resources={"cpu": "1500m", "memory": "2Gi"})
    event = build_event(REF, Status.SUCCEEDED, Phase.SUCCEEDED, **history_of(job, BEGAN, ended=at(55)))

    assert event.times == {"submitted": at(0), "admitted": at(30), "running": at(40), "ended": at(55)}
    assert (event.placement, event.queue, event.requests) == ("off", "", {"cpu": "6", "memory": "8Gi"})
    assert GangEvent.from_payload(json.loads(json.dumps(event.to_payload()))) == event


def test_times_that_are_not_known_are_left_out():
    assert history_of(None, {Phase.SUBMITTED: at(0)}, ended=None) == {"times": {"submitted": at(0)}}


def test_requests_of_all_roles_are_added():
    roles = {
        "leader": {"workers": 1, "resources": {"cpu": "2"}},
        "worker": {"workers": 3, "resources": {"cpu": "500m"}},
    }
    assert job_of(roles=roles).record.requests == {"cpu": "3500m"}


# -- What the time of a gang was used for ----------------------------------------------------------------------------

HOUR = 3600.0
TIMES = {"submitted": at(0), "admitted": at(60), "running": at(60 + 0.5 * HOUR), "ended": at(60 + 4.5 * HOUR)}
UNKNOWN = SupervisorReport()
TOLD = SupervisorReport(total=2, stopped_s=0.1 * HOUR, ran_s=3.4 * HOUR, lost_s=0.4 * HOUR, is_final=True)


def use_of(times: Any = None, **given: Any) -> TimeUse:
    wanted: dict[str, Any] = {"succeeded": True, "restarts_max": None, "report": UNKNOWN, **given}
    use = time_use_of(TIMES if times is None else times, **wanted)
    assert use is not None
    return use


def seconds(use: TimeUse) -> tuple[float | None, ...]:
    return use.useful_s, use.lost_s, use.waiting_s


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (4 * HOUR, 0, 0.5 * HOUR)),
        ({"succeeded": False}, (0, 4 * HOUR, 0.5 * HOUR)),
        ({"restarts_max": 3, "report": TOLD}, (3.5 * HOUR, 0.4 * HOUR, 0.6 * HOUR)),
        ({"restarts_max": 3, "succeeded": False, "report": TOLD}, (3 * HOUR, 0.9 * HOUR, 0.6 * HOUR)),
        ({"restarts_max": 3}, (None, None, None)),
        ({"restarts_max": 3, "succeeded": False}, (None, None, None)),
        ({"restarts_max": 0}, (4 * HOUR, 0, 0.5 * HOUR)),
    ],
    ids=[
        "success",
        "failure is lost",
        "restarts",
        "checkpoints before a failure",
        "unknown restarts",
        "unknown failure",
        "only a progress_timeout",
    ],
)
def test_seconds_are_those_that_the_gang_held_what_it_requests(
    given: dict[str, Any], expected: tuple[float | None, ...]
) -> None:
    assert seconds(use_of(**given)) == pytest.approx(expected)


def test_gang_that_never_ran_has_only_waited() -> None:
    use = use_of({"submitted": at(0), "admitted": at(10), "ended": at(40)}, succeeded=False)

    assert seconds(use) == (0, 0, 30)


def test_gang_that_stayed_in_its_queue_held_nothing() -> None:
    assert seconds(use_of({"submitted": at(0), "ended": at(40)}, succeeded=False)) == (0, 0, 0)


def test_unknown_end_has_no_use() -> None:
    assert time_use_of({"submitted": at(0)}, succeeded=False, restarts_max=None, report=UNKNOWN) is None


def test_losses_are_within_the_time_of_the_gang() -> None:
    told = SupervisorReport(total=1, stopped_s=1e9, lost_s=1e9, is_final=True)

    assert seconds(use_of(restarts_max=1, report=told)) == (0, 0, 4.5 * HOUR)


LINES = {
    "GPUs": (
        {"cpu": "16", "memory": "32Gi", "nvidia.com/gpu": "8"},
        "36.0 GPU h, of which 28.0 useful, 3.2 lost, 4.8 waiting",
    ),
    "cores": ({"cpu": "500m", "nvidia.com/gpu": "0"}, "2.2 CPU h, of which 1.8 useful, 0.2 lost, 0.3 waiting"),
    "ranks": ({"cpu": "many"}, "9.0 rank h, of which 7.0 useful, 0.8 lost, 1.2 waiting"),
}


@pytest.mark.parametrize(("requests", "line"), LINES.values(), ids=LINES)
def test_line_counts_what_the_gang_requested(requests: dict[str, str], line: str) -> None:
    assert describe_use(use_of(restarts_max=2, report=TOLD), requests, 2) == line


def test_line_of_a_short_gang_counts_seconds() -> None:
    use = use_of({"submitted": at(0), "admitted": at(0), "running": at(2), "ended": at(12)})

    assert describe_use(use, {}, 3) == "36.0 rank s, of which 30.0 useful, 0.0 lost, 6.0 waiting"


def test_line_says_what_is_unknown() -> None:
    assert describe_use(use_of(restarts_max=3), {}, 2).startswith("unknown, because")


def test_lost_attempt_counts_with_the_next_one() -> None:
    lost, done = use_of(succeeded=False), use_of()

    both = add_uses(lost, done)

    assert both is not None
    assert seconds(both) == (4 * HOUR, 4 * HOUR, HOUR)
    assert add_uses(None, done) == done
    assert add_uses(use_of(restarts_max=3), done) == TimeUse()


# -- Which ends of a gang count as disruptions, and how many in a row are allowed ------------------------------------

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
