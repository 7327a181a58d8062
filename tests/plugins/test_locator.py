"""A gang is found by the values that Airflow stored; an XCom cannot redirect the search."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import asdict

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import build_event
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.plugins.locator import (
    TaskRecord,
    locate,
    mapped_rows,
    parse_end,
    parse_gang_ref,
    parse_refusal,
)
from tests.unit.builders import at

KEY = TaskKey("dag", "run", "task")
REF = GangRef("team", "train-0", "0c5e7f3a-1111-2222-3333-444455556666")
OTHER = GangRef("secret", "other-0", "ffffffff-1111-2222-3333-444455556666")
TRIGGER_ARGS = TriggerArgs(
    **asdict(REF), kubernetes_conn_id="gpu", must_exist=True, time_limits={"assemble_timeout": 60}, deadline=5.0
)


def test_trigger_of_a_deferred_task_outranks_its_xcom() -> None:
    locator = locate(TaskRecord(KEY, "deferred", TRIGGER_ARGS.to_kwargs(), {"kubernetes_conn_id": "x"}, asdict(OTHER)))

    assert locator is not None
    assert (locator.ref, locator.kubernetes_conn_id, locator.must_exist) == (REF, "gpu", True)
    assert (locator.deadlines, locator.deadline) == (Deadlines(assemble_s=60), 5.0)


def test_unknown_trigger_arguments_are_ignored() -> None:
    locator = locate(TaskRecord(KEY, "deferred", {**TRIGGER_ARGS.to_kwargs(), "from_the_future": 1}))

    assert locator is not None
    assert locator.ref == REF


def test_connection_of_a_resumed_task_is_the_rendered_one() -> None:
    xcom = {**asdict(REF), "kubernetes_conn_id": "stolen"}

    locator = locate(TaskRecord(KEY, "running", None, {"kubernetes_conn_id": "gpu"}, xcom))

    assert locator is not None
    assert (locator.ref, locator.kubernetes_conn_id) == (REF, "gpu")


def test_connection_without_rendered_fields_is_unknown() -> None:
    locator = locate(TaskRecord(KEY, "success", None, None, asdict(REF)))

    assert locator is not None
    assert locator.kubernetes_conn_id is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="nothing"),
        pytest.param("s3://bucket/xcom", id="the reference of another XCom backend"),
        pytest.param({"namespace": "team"}, id="without name and uid"),
        pytest.param({**asdict(REF), "namespace": "../../secrets"}, id="a path"),
        pytest.param({**asdict(REF), "namespace": "a/pods?labelSelector=x"}, id="a query"),
        pytest.param({**asdict(REF), "name": "x,gangjobs.airflow/task=other"}, id="a selector"),
        pytest.param({**asdict(REF), "uid": "x' or 1"}, id="a uid of another form"),
        pytest.param({**asdict(REF), "uid": ["a"]}, id="a list"),
        pytest.param([REF.namespace, REF.name, REF.uid], id="another form"),
    ],
)
def test_xcom_without_a_gang_yields_no_locator(value: Any) -> None:
    assert parse_gang_ref(value) is None
    assert locate(TaskRecord(KEY, "running", None, {"kubernetes_conn_id": "gpu"}, value)) is None


@pytest.mark.parametrize(
    ("ref", "is_used"), [pytest.param(REF, True, id="of this gang"), pytest.param(OTHER, False, id="of another one")]
)
def test_end_event_of_another_gang_is_ignored(ref: GangRef, is_used: bool) -> None:
    end = build_event(ref, Status.FAILED, Phase.FAILED).to_payload()

    locator = locate(TaskRecord(KEY, "failed", None, {"kubernetes_conn_id": "gpu"}, asdict(REF), end))

    assert locator is not None
    assert (locator.end is not None) == is_used


def test_unreadable_end_event_is_ignored() -> None:
    locator = locate(TaskRecord(KEY, "failed", None, {}, asdict(REF), {"v": 99}))

    assert locator is not None
    assert locator.end is None


@pytest.mark.parametrize("zone", [None, timezone(timedelta(hours=5))])
def test_time_of_a_forged_end_event_that_is_not_in_utc_is_ignored(zone: timezone | None) -> None:
    end = build_event(REF, Status.FAILED, Phase.FAILED, times={"running": at(3), "ended": at(9).replace(tzinfo=zone)})
    payload = end.to_payload()

    (row,) = mapped_rows([4], {4: "failed"}, {4: payload})

    assert row.ended is None
    read = parse_end(payload)
    assert read is not None
    assert read.times == {"running": at(3)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"error": "InvalidGangSpec", "message": "workers: must be 1 or more."}, "workers: must be 1 or more."),
        ({"message": "2 problems\n  * a\x00b\n  * c"}, "2 problems\n* a\\x00b\n* c"),
        ({"message": 7}, ""),
        ("a text", ""),
        (None, ""),
    ],
)
def test_refusal_of_a_task_is_the_message_of_its_error(value: object, text: str) -> None:
    assert parse_refusal(value) == text
