"""Where a gang is looked for: by what Airflow wrote down, whatever an XCom says."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import Status, gang_event
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.plugins.locator import Record, lead_of, ref_of
from airflow_provider_gangjobs.triggers.args import Watch

KEY = TaskKey("dag", "run", "task")
REF = GangRef("team", "train-0", "0c5e7f3a-1111-2222-3333-444455556666")
OTHER = GangRef("secret", "other-0", "ffffffff-1111-2222-3333-444455556666")
WATCH = Watch(**asdict(REF), kubernetes_conn_id="gpu", must_exist=True, assemble_timeout_s=60, deadline=5.0)


def test_deferred_task_is_told_by_its_trigger_and_not_by_its_xcom() -> None:
    lead = lead_of(Record(KEY, "deferred", WATCH.to_kwargs(), {"kubernetes_conn_id": "x"}, asdict(OTHER)))

    assert lead is not None
    assert (lead.ref, lead.kubernetes_conn_id, lead.must_exist) == (REF, "gpu", True)
    assert (lead.deadlines, lead.deadline, lead.is_finished) == (Deadlines(assemble_s=60), 5.0, False)


def test_trigger_of_a_later_release_can_be_read() -> None:
    lead = lead_of(Record(KEY, "deferred", {**WATCH.to_kwargs(), "from_the_future": 1}))

    assert lead is not None
    assert lead.ref == REF


def test_connection_of_a_resumed_task_is_the_rendered_one() -> None:
    xcom = {**asdict(REF), "kubernetes_conn_id": "stolen"}

    lead = lead_of(Record(KEY, "running", None, {"kubernetes_conn_id": "gpu"}, xcom))

    assert lead is not None
    assert (lead.ref, lead.kubernetes_conn_id) == (REF, "gpu")


def test_connection_is_not_guessed() -> None:
    lead = lead_of(Record(KEY, "success", None, None, asdict(REF)))

    assert lead is not None
    assert lead.kubernetes_conn_id is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="nothing"),
        pytest.param("s3://bucket/xcom", id="the reference of another XCom backend"),
        pytest.param({"namespace": "team"}, id="not all of it"),
        pytest.param({**asdict(REF), "namespace": "../../secrets"}, id="a path"),
        pytest.param({**asdict(REF), "namespace": "a/pods?labelSelector=x"}, id="a query"),
        pytest.param({**asdict(REF), "name": "x,gangjobs.airflow/task=other"}, id="a selector"),
        pytest.param({**asdict(REF), "uid": "x' or 1"}, id="no uid"),
        pytest.param({**asdict(REF), "uid": ["a"]}, id="a list"),
        pytest.param([REF.namespace, REF.name, REF.uid], id="another form"),
    ],
)
def test_xcom_that_names_no_gang_leads_nowhere(value: Any) -> None:
    assert ref_of(value) is None
    assert lead_of(Record(KEY, "running", None, {"kubernetes_conn_id": "gpu"}, value)) is None


@pytest.mark.parametrize(
    ("ref", "is_told"), [pytest.param(REF, True, id="of this gang"), pytest.param(OTHER, False, id="of another one")]
)
def test_end_counts_for_its_own_gang(ref: GangRef, is_told: bool) -> None:
    end = gang_event(ref, Status.FAILED, Phase.FAILED).to_payload()

    lead = lead_of(Record(KEY, "failed", None, {"kubernetes_conn_id": "gpu"}, asdict(REF), end))

    assert lead is not None
    assert (lead.end is not None, lead.is_finished) == (is_told, True)


def test_unreadable_end_is_none() -> None:
    lead = lead_of(Record(KEY, "failed", None, {}, asdict(REF), {"v": 99}))

    assert lead is not None
    assert lead.end is None
