"""The view of a gang by its Job alone, what the gangs of a DAG use, the schema of views, and leaks."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_gangjobs.exceptions import JobDeleted
from airflow_provider_gangjobs.gang.gang_lists import DagUse, LeakKind, ListedJob, find_leak, use_by_dag
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import RoleRanks
from airflow_provider_gangjobs.gang.state.phase import Phase, SubmissionState
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_error, stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import read_gang, read_job
from airflow_provider_gangjobs.gang.view import GangView, kept_until, view_job
from airflow_provider_gangjobs.kube import well_known
from airflow_provider_gangjobs.kube.quantity import format_amount, parse
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_RECORD,
    LABEL_KUEUE_QUEUE,
)
from tests.unit.builders import JobBuilder, at, job

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang

SCHEMA = Path(__file__).parents[2] / "docs" / "gang.schema.json"


def listed(made: JobBuilder) -> StoredGang:
    """Read a Job as a list of gangs does, from JSON."""
    return read_gang(msgspec.json.decode(json.dumps(made.obj), type=ListedJob), ())


def of_task(dag_id: str = "etl", map_index: int = -1, ranks: int = 4, **requests: str) -> JobBuilder:
    total = {name: format_amount(name, parse(amount) * ranks) for name, amount in requests.items()}
    return job(ranks).record(task=TaskKey(dag_id, "run", "train", map_index), requests=total)


JOB_DELETED = JobDeleted("g", "x", "It is gone")
STATES: dict[str, tuple[JobBuilder, dict[str, Any]]] = {
    "in a queue": (
        of_task().suspended().label(LABEL_KUEUE_QUEUE, "gpus"),
        {"phase": Phase.QUEUED, "queue": "gpus", "is_waiting": True},
    ),
    "assembling": (of_task().resumed(3), {"phase": Phase.ASSEMBLING, "started_at": at(3), "is_waiting": True}),
    "running": (of_task().resumed(3).counts(active=4, ready=4), {"phase": Phase.RUNNING, "is_running": True}),
    "succeeded": (of_task().resumed(3).complete(9), {"succeeded": 4, "ended_at": at(9), "has_failed": False}),
    "failed": (
        of_task().resumed(3).failed(9, message="why"),
        {"has_failed": True, "summary": "BackoffLimitExceeded: why.", "code": "BackoffLimitExceeded"},
    ),
    "stopped": (
        of_task().suspended().stopped(stopped_by_user("ana has cancelled it")),
        {"has_failed": True, "summary": "ana has cancelled it", "code": "Stopped"},
    ),
    "stopped by an error": (
        of_task().stopped(stopped_by_error(JOB_DELETED)),
        {"summary": str(JOB_DELETED), "code": "JobDeleted"},
    ),
    "mapped": (of_task(map_index=7), {"task": "train[7]", "dag_id": "etl", "run_id": "run"}),
    "of a submission id": (
        job().record(submission_id="nightly"),
        {"submission_id": "nightly", "dag_id": "", "task": ""},
    ),
    "kept for a time": (of_task().spec(ttlSecondsAfterFinished=60).complete(9), {"kept_until": at(69)}),
    "kept for ever": (of_task().complete(9), {"kept_until": None}),
    "kept for longer than dates last": (
        of_task().record(ttl_s=10**18).complete(9),
        {"kept_until": None},
    ),
}


@pytest.mark.parametrize(("made", "expected"), STATES.values(), ids=STATES)
def test_view_says_what_the_job_shows(made: JobBuilder, expected: dict[str, Any]) -> None:
    view = view_job(listed(made))

    assert {name: getattr(view, name) for name in expected} == expected


IN_PROGRESS, SUCCEEDED, FAILED = SubmissionState.IN_PROGRESS, SubmissionState.SUCCEEDED, SubmissionState.FAILED
PHASES: dict[str, tuple[JobBuilder, Phase, SubmissionState]] = {
    "just created": (job().submitted_suspended(), Phase.SUBMITTED, IN_PROGRESS),
    "let run, not looked at": (job(), Phase.SUBMITTED, IN_PROGRESS),
    "in a queue": (job().submitted_suspended().label(LABEL_KUEUE_QUEUE, "q"), Phase.QUEUED, IN_PROGRESS),
    "kept suspended": (
        job().submitted_suspended().record(fields={"manifest.spec.suspend": "x"}),
        Phase.QUEUED,
        IN_PROGRESS,
    ),
    "suspended after it ran": (job().started(60).submitted_suspended(), Phase.QUEUED, IN_PROGRESS),
    "pods wait": (job().started(60).counts(active=4), Phase.ASSEMBLING, IN_PROGRESS),
    "some run": (job().started(60).counts(active=4, ready=3), Phase.ASSEMBLING, IN_PROGRESS),
    "all run": (job().started(60).counts(active=4, ready=4), Phase.RUNNING, IN_PROGRESS),
    "some have ended": (job().started(60).counts(ready=1, succeeded=3), Phase.RUNNING, IN_PROGRESS),
    "fate decided": (job().started(60).decided("FailureTarget", 61), Phase.FINISHING, IN_PROGRESS),
    "succeeded": (job().started(60).complete(90), Phase.SUCCEEDED, SUCCEEDED),
    "failed": (job().started(60).failed(90), Phase.FAILED, FAILED),
    "stopped, pods end": (
        job().started(60).counts(terminating=2).submitted_suspended().stopped(),
        Phase.FINISHING,
        FAILED,
    ),
    "stopped": (job().submitted_suspended().stopped(), Phase.FAILED, FAILED),
    "succeeded before it was stopped": (job().started(60).complete(90).stopped(), Phase.SUCCEEDED, SUCCEEDED),
    "being deleted": (job().deleted(60), Phase.DELETED, SubmissionState.DELETING),
    "no record that can be read": (
        job().submitted_suspended().annotation(ANNOTATION_RECORD, "{"),
        Phase.SUBMITTED,
        SubmissionState.FOREIGN,
    ),
}


@pytest.mark.parametrize(("made", "phase", "state"), PHASES.values(), ids=PHASES)
def test_phase_and_state_are_read_off_the_job(made: JobBuilder, phase: Phase, state: SubmissionState) -> None:
    view = view_job(listed(made))
    assert (view.phase, view.state) == (phase, state)


def test_time_to_live_of_a_gang_with_roles_is_that_of_its_end() -> None:
    roles = job().record(roles=(RoleRanks("all", 4, 0),), ttl_s=60).complete(9)

    assert kept_until(listed(roles)) == at(69)


def test_view_counts_the_wait_until_the_start_of_the_job() -> None:
    waits, runs = (view_job(listed(made)) for made in (of_task().suspended(), of_task().resumed(30)))

    assert (waits.waited(at(90)), waits.ran(at(90))) == (timedelta(seconds=90), None)
    assert (runs.waited(at(90)), runs.ran(at(90))) == (timedelta(seconds=30), timedelta(seconds=60))


def test_use_of_a_dag_is_that_of_all_ranks_of_its_live_gangs() -> None:
    gangs = [
        of_task("etl", ranks=4, cpu="500m", memory="1Gi").resumed(3).counts(active=4, ready=4),
        of_task("etl", ranks=2, cpu="4", **{"nvidia.com/gpu": "1"}).resumed(3),
        of_task("etl", ranks=9, cpu="9").complete(9),
        of_task("report", ranks=1, cpu="1").resumed(3),
    ]

    assert use_by_dag(map(listed, gangs)) == [
        DagUse(
            dag_id="etl",
            running=1,
            waiting=1,
            held={"cpu": "2", "memory": "4Gi"},
            wanted={"cpu": "8", "nvidia.com/gpu": "2"},
        ),
        DagUse(dag_id="report", running=0, waiting=1, held={}, wanted={"cpu": "1"}),
    ]


def test_what_can_never_run_is_told_from_what_waits() -> None:
    stuck = listed(of_task(cpu="2").suspended())
    (waits,), (never,) = use_by_dag([stuck]), use_by_dag([stuck], never={stuck.ref})
    assert (waits.waiting, waits.wanted, waits.never) == (1, {"cpu": "8"}, {})
    assert (never.waiting, never.wanted, never.never) == (1, {}, {"cpu": "8"})


def test_requests_that_cannot_be_read_are_left_out() -> None:
    (use,) = use_by_dag([listed(of_task().record(requests={"cpu": "many"}).resumed(3))])

    assert (use.waiting, use.wanted) == (1, {})


def any_order(schema: Any) -> Any:
    """The schema with its alternatives in one order. Releases of msgspec write them in different ones."""
    if isinstance(schema, dict):
        return {name: any_order(value) for name, value in schema.items()}
    return sorted(map(any_order, schema), key=json.dumps) if isinstance(schema, list) else schema


def test_documented_schema_is_that_of_the_views() -> None:
    found = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(GangView)))
    assert any_order(json.loads(SCHEMA.read_text())) == any_order(found)


# -- What stays of a gang, and what of it is a leak ------------------------------------------------------------------

DELIVERED = (well_known.ANNOTATION_DELIVERED, "2026-08-01T12:01:00+00:00")


def gang() -> JobBuilder:
    return job().resumed(3).record(task=TaskKey("etl", "run", "train"))


CASES: dict[str, tuple[JobBuilder, dict[str, Any], LeakKind | None]] = {
    "live, and its pods are held": (gang(), {"held_pods": 4}, None),
    "half submitted": (gang(), {"is_half_submitted": True}, LeakKind.INCOMPLETE),
    "over, and its pods are held": (gang().complete(9).annotation(*DELIVERED), {"held_pods": 1}, LeakKind.HELD_PODS),
    "succeeded and not delivered": (gang().complete(9), {}, LeakKind.UNDELIVERED),
    "failed, without a time to live": (gang().failed(9), {}, LeakKind.KEPT_FOR_EVER),
    "of a submission id, ended": (job().complete(9), {}, LeakKind.KEPT_FOR_EVER),
    "delivered, without a time to live": (gang().complete(9).annotation(*DELIVERED), {}, LeakKind.KEPT_FOR_EVER),
    "stopped, and its pods end": (
        gang().suspended(5).stopped(),
        {},
        None,
    ),
}


@pytest.mark.parametrize(("made", "facts", "kind"), CASES.values(), ids=CASES)
def test_gang_leaves(made: JobBuilder, facts: dict[str, Any], kind: LeakKind | None) -> None:
    leak = find_leak(made.read(), now=at(3600), grace=timedelta(minutes=15), **facts)

    assert (leak.kind if leak else None) == kind
    assert leak is None or (leak.is_leak and leak.command)


def test_what_happens_within_the_grace_is_no_leak() -> None:
    for made, facts, kind in CASES.values():
        leak = find_leak(made.read(), now=at(60), grace=timedelta(minutes=15), **facts)
        assert leak is None or kind is LeakKind.INCOMPLETE  # the caller judges the age of a half-submitted gang


@pytest.mark.parametrize("made", [job().complete(9), gang().failed(9)], ids=["ended", "of a task that has failed"])
def test_job_that_is_deleted_later_is_kept_and_no_leak(made: JobBuilder) -> None:
    kept = made.record(ttl_s=7200)

    leak = find_leak(read_job(kept.obj), now=at(3600), grace=timedelta(minutes=15))

    assert leak is not None
    assert (leak.kind, leak.until, leak.is_leak) == (LeakKind.KEPT, at(7209), False)
