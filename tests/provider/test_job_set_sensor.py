"""A sensor of JobSets in a cluster that serves none, and with parameters that name none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException, AirflowSkipException
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, JobSetUnavailable
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import Status, build_event
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.sensors.job_set import JobSetSensor
from tests.provider.task_runner import run_serialized_trigger

CONTEXT: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="wait", map_index=-1)}


def sensor_of(connection: str, **parameters: Any) -> JobSetSensor:
    with DAG("d", schedule=None):
        return JobSetSensor(task_id="wait", kubernetes_conn_id=connection, **{"job_set": "fit", **parameters})


@pytest.mark.parametrize("deferrable", [True, False])
def test_cluster_without_job_sets_is_named_at_once(connection: str, deferrable: bool) -> None:
    with pytest.raises(AirflowFailException, match=r"default/fit.*does not serve jobset\.x-k8s\.io") as raised:
        sensor_of(connection, deferrable=deferrable).execute(CONTEXT)

    assert isinstance(raised.value.__cause__, JobSetUnavailable)


def test_cluster_that_stops_to_serve_job_sets_is_named_by_the_trigger(connection: str) -> None:
    args = {"kubernetes_conn_id": connection, "namespace": "default", "name": "fit"}
    event = run_serialized_trigger("airflow_provider_gangjobs.triggers.job_set.JobSetTrigger", args)

    with pytest.raises(JobSetUnavailable, match=r"does not serve jobset\.x-k8s\.io") as raised:
        sensor_of(connection).execute_complete(CONTEXT, event)
    assert not raised.value.is_served


@pytest.mark.parametrize("parameters", [{"until": "ended"}, {"soft_fail": True}], ids=str)
def test_unknown_state_is_neither_an_end_nor_a_failure_to_skip(parameters: dict[str, Any]) -> None:
    event = build_event(GangRef("team", "fit", ""), Status.ERROR, Phase.SUBMITTED, reason="Refused", message="403")

    with pytest.raises(JobSetUnavailable, match="403"):
        sensor_of("c", **parameters).execute_complete(CONTEXT, event.to_payload())


def test_sensor_that_never_fails_is_skipped_when_it_is_resumed() -> None:
    event = build_event(GangRef("team", "fit", ""), Status.ERROR, Phase.SUBMITTED, reason="Refused", message="403")

    with pytest.raises(AirflowSkipException, match="never_fail is set"):
        sensor_of("c", never_fail=True).resume_execution("execute_complete", {"event": event.to_payload()}, CONTEXT)


@pytest.mark.parametrize("job_set", ["", {}, {"name": ""}, 3, ["a", "b"], "None", "{'name': 'fit', 'uid': 'u'}"])
def test_value_that_names_no_job_set(connection: str, job_set: Any) -> None:
    with pytest.raises(AirflowFailException, match="job_set"):
        sensor_of(connection, job_set=job_set).execute(CONTEXT)


def test_template_that_rendered_to_no_namespace(connection: str) -> None:
    with pytest.raises(AirflowFailException, match="namespace: 'None' may only have"):
        sensor_of(connection, namespace="None").execute(CONTEXT)


def test_state_that_is_not_known() -> None:
    with pytest.raises(InvalidGangSpec, match="Give one of succeeded, ended"):
        sensor_of("c", until="running")
