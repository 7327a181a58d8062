"""The view of a gang by its Job alone, what the gangs of a DAG use, and the schema of views."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_gangjobs.gang.gang_lists import DagUse, ListedJob, format_amount, use_by_dag
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.roles import RoleRanks
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
from airflow_provider_gangjobs.gang.view import GangView, kept_until, view_job
from airflow_provider_gangjobs.kube.quantity import parse
from airflow_provider_gangjobs.kube.well_known import (
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
        {"has_failed": True, "summary": "BackoffLimitExceeded: why."},
    ),
    "stopped": (
        of_task().suspended().stopped(stopped_by_user("ana has cancelled it")),
        {"has_failed": True, "summary": "ana has cancelled it", "code": "Stopped"},
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
