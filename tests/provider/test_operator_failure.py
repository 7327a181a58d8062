"""The error of a task whose gang did not succeed: its class, its fields, and its message."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs import exceptions
from airflow_provider_gangjobs.attempt.completion import error_from_event
from airflow_provider_gangjobs.exceptions import AppFailed
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, RankEnd, build_event
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.pods import Counts

REF = GangRef("team", "train-0", "job-uid")


def event(status: Status, *ranks: RankEnd, phase: Phase = Phase.FAILED, **fields: Any) -> Any:
    made = build_event(REF, status, phase, **fields)
    return type(made)(**{**{name: getattr(made, name) for name in made.__struct_fields__}, "ranks": ranks})


def rank(number: int, outcome: OutcomeKind, **fields: Any) -> RankEnd:
    return RankEnd(pod=f"train-0-{number}", rank=number, outcome=outcome, **fields)


OOM = rank(3, OutcomeKind.FAILED, exit_code=137, reason="OOMKilled", node="node-b")
SIBLING = rank(0, OutcomeKind.DELETED)


def timeout(phase: Phase, category: Category, **counts: int) -> GangEvent:
    made: GangEvent = event(
        Status.TIMEOUT, phase=phase, reason=f"Deadline.{phase}", category=category, counts=Counts(**counts)
    )
    return made


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (event(Status.FAILED, OOM, SIBLING), "AppFailed"),
        (event(Status.FAILED, OOM, SIBLING, category="OutOfMemory"), "OutOfMemory"),
        (event(Status.FAILED, rank(0, OutcomeKind.FAILED, exit_code=127), category="StartFailed"), "StartFailed"),
        (event(Status.FAILED, OOM, SIBLING, category="FromTheFuture"), "AppFailed"),
        (event(Status.FAILED, rank(1, OutcomeKind.PREEMPTED, node="a"), SIBLING), "Preempted"),
        (event(Status.FAILED, rank(1, OutcomeKind.EVICTED)), "Disrupted"),
        (event(Status.FAILED, rank(1, OutcomeKind.LOST)), "Disrupted"),
        (event(Status.FAILED, rank(1, OutcomeKind.DELETED)), "GangFailed"),
        (event(Status.FAILED, rank(1, OutcomeKind.FAILED)), "GangFailed"),
        (event(Status.FAILED), "GangFailed"),
        (event(Status.DELETED), "JobDeleted"),
        (event(Status.REPLACED), "JobReplaced"),
        (timeout(Phase.QUEUED, Category.WAITING_FOR_QUOTA), "DeadlineExceeded"),
        (timeout(Phase.QUEUED, Category.EXCEEDS_MAX_QUOTA), "QueueRefused"),
        (timeout(Phase.ASSEMBLING, Category.PODS_READY_TIMEOUT), "DeadlineExceeded"),
        (timeout(Phase.ASSEMBLING, Category.NEVER_FITS), "Unschedulable"),
        (timeout(Phase.ASSEMBLING, Category.VOLUME_UNAVAILABLE, ranks=2, placed=1), "Unschedulable"),
        (timeout(Phase.ASSEMBLING, Category.VOLUME_UNAVAILABLE, ranks=2, placed=2), "DeadlineExceeded"),
        (timeout(Phase.ASSEMBLING, Category.IMAGE_PULL_FAILED), "ImagePullFailed"),
        (event(Status.TIMEOUT, phase=Phase.RUNNING, reason="Deadline.execution"), "DeadlineExceeded"),
        (event(Status.ERROR, reason="Forbidden"), "TrackingFailed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_event_has_an_error_class(failed: Any, kind: str) -> None:
    assert type(error_from_event(failed)) is getattr(exceptions, kind)


def test_disruption_before_a_crash_is_the_cause() -> None:
    failed = event(Status.FAILED, rank(1, OutcomeKind.PREEMPTED), OOM, SIBLING)

    assert isinstance(error_from_event(failed), exceptions.Preempted)


def test_last_disruption_has_the_number_of_disruptions() -> None:
    failed = event(Status.FAILED, rank(1, OutcomeKind.LOST, node="a"), reason="NodeLost")
    error = error_from_event(replace(failed, disruptions=3), max_disruptions=3)

    assert isinstance(error, exceptions.Disrupted)
    assert (error.disruptions, error.max_disruptions, error.node) == (4, 3, "a")


def test_deadline_of_the_job_is_not_the_disruption_that_came_before_it() -> None:
    failed = event(Status.FAILED, rank(1, OutcomeKind.PREEMPTED), reason="DeadlineExceeded")

    assert type(error_from_event(failed)) is exceptions.GangFailed


def test_app_failure_carries_what_a_policy_matches() -> None:
    failed = event(Status.FAILED, OOM, SIBLING, reason="OOMKilled", message="rank 3 ran out of memory")
    error = error_from_event(failed, "loss 0.3\nloss 0.2")

    assert isinstance(error, AppFailed)
    assert (error.ref, error.rank, error.exit_code, error.ranks) == ("team/train-0", 3, 137, (3, 0))
    assert error.retryable
    assert error_from_event(replace(failed, category="OutOfMemory")).category == "OutOfMemory"


def test_rank_with_several_pods_has_failed_once_or_has_succeeded() -> None:
    """A queue had stopped the gang, which deleted a pod of each rank, and let the gang run again."""
    stopped = (rank(number, OutcomeKind.DELETED) for number in (0, 1, 3))
    error = error_from_event(event(Status.FAILED, OOM, SIBLING, *stopped, rank(1, OutcomeKind.SUCCEEDED)))

    assert isinstance(error, AppFailed)
    assert error.ranks == (3, 0)


OVER_LIMIT = {
    "reason": "OverLimit",
    "message": "rank 1 was evicted: it used more storage than its own limit (v is full)",
}


OWN_LIMITS: dict[str, Any] = {
    "container removed": (None, "v is full. ", ""),
    "no message of the program": (137, "v is full. ", ""),
    "message of the program": (137, "step 3", "Termination message of rank 1:\nstep 3"),
    "end of the log as the message": (137, "step 3\n", "Termination message of rank 1:\nstep 3"),
}


@pytest.mark.parametrize(("exit_code", "message", "evidence"), OWN_LIMITS.values(), ids=OWN_LIMITS)
def test_eviction_above_a_limit_of_its_own_is_a_failure_of_the_program(
    exit_code: int | None, message: str, evidence: str
) -> None:
    evicted = rank(1, OutcomeKind.FAILED, exit_code=exit_code, reason="Evicted", message=message)
    error = error_from_event(event(Status.FAILED, evicted, SIBLING, **OVER_LIMIT))

    assert isinstance(error, AppFailed)
    assert (error.rank, error.exit_code, error.log_tail) == (1, exit_code, evidence)


def test_message_has_evidence_remedy_and_last_lines_once() -> None:
    failed = event(
        Status.FAILED, OOM, reason="OOMKilled", message="rank 3 ran out of memory", remedy="Raise resources.memory."
    )

    assert str(error_from_event(failed, "loss 0.3\nloss 0.2")) == (
        "Gang team/train-0 failed (OOMKilled). Rank 3 ran out of memory. Raise resources.memory.\n"
        "Last lines of rank 3:\nloss 0.3\nloss 0.2"
    )


def test_execution_timeout_is_not_taken_for_a_limit_of_the_phase() -> None:
    failed = event(
        Status.TIMEOUT,
        phase=Phase.RUNNING,
        reason="Deadline.execution",
        remedy="Raise execution_timeout.",
        seconds=60.0,
    )

    error = error_from_event(failed)
    assert isinstance(error, exceptions.DeadlineExceeded)
    assert (error.limited_by, error.seconds, error.advice) == ("execution_timeout", 60.0, "Raise execution_timeout.")
