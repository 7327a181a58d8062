"""A try that Airflow resumes with the event of an earlier try begins anew: a user has cleared the task in between."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred
from airflow_provider_gangjobs.airflow_api.task_state import with_task_instance
from airflow_provider_gangjobs.attempt.triggerer.previous_attempt_wait import WaitEnd
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import Status, build_event
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM
from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor
from airflow_provider_gangjobs.triggers import gang_job, sensor
from tests.provider.task_runner import run_trigger

if TYPE_CHECKING:
    from tests.provider.task_runner import Task, TaskMaker

SUCCEEDED = 'printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'


def resume(train: Task, context: Any, event: dict[str, Any]) -> Any:
    """Resume the task in a process of its own, as Airflow's task runner does."""
    operator = train.operator()
    value = operator.execute_complete(context, event)
    train.note_success(operator, context, value)
    return value


def cleared_while_it_completes(train: Task) -> tuple[Any, TaskDeferred]:
    """Clear the task between the event and its completion. Return the context and the deferral of the second try."""
    first = train.next_try()
    event = with_task_instance(run_trigger(train.defer(first)), first["ti"])
    second = train.next_try()
    with pytest.raises(TaskDeferred) as left:
        train.operator().execute_complete(second, event)
    return second, left.value


def test_the_second_try_claims_the_gang_of_the_first_one_and_delivers_its_results(task: TaskMaker) -> None:
    train = task(SUCCEEDED, deferrable=True, results="all")
    second, left = cleared_while_it_completes(train)
    (job,) = train.jobs
    assert job["metadata"]["annotations"][ANNOTATION_CLAIM] == str(second["ti"].id)

    event = with_task_instance(run_trigger(left), second["ti"])
    assert resume(train, second, event) == [{"rank": 0}, {"rank": 1}]
    assert train.jobs == [], "delivered, and deleted as on_finish says"


def test_the_second_try_submits_another_gang_if_it_may_not_adopt_one(task: TaskMaker) -> None:
    train = task(SUCCEEDED, deferrable=True, results="all", durable=False, on_finish="keep")
    second, left = cleared_while_it_completes(train)
    event = with_task_instance(run_trigger(left), second["ti"])

    assert resume(train, second, event) == [{"rank": 0}, {"rank": 1}]
    attempts = {job["metadata"]["name"][-2:] for job in train.jobs}
    assert attempts == {"-0", "-1"}


def test_an_earlier_wait_that_was_too_long_does_not_fail_the_second_try(task: TaskMaker) -> None:
    train = task(SUCCEEDED, deferrable=True)
    first, second = train.next_try(), train.next_try()
    event = with_task_instance({"v": 1, "status": WaitEnd.TIMEOUT.value}, first["ti"])
    with pytest.raises(TaskDeferred):
        train.operator().execute_after_previous(second, event)
    assert len(train.jobs) == 1


def test_a_sensor_looks_again(connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with DAG("d", schedule=None):
        waiting = GangJobSensor(task_id="wait", gangs="a", kubernetes_conn_id=connection)
    looks: list[Any] = []
    monkeypatch.setattr(type(waiting), "execute", lambda self, context: looks.append(context))
    gang = build_event(GangRef("default", "a", "u"), Status.SUCCEEDED, Phase.SUCCEEDED).to_payload()
    payload = {"v": 1, "status": "met", "message": "", "gangs": [gang]}
    first, second = (SimpleNamespace(id=uuid4()) for _ in range(2))

    waiting.execute_complete({"ti": second}, with_task_instance(payload, first))
    assert [context["ti"] for context in looks] == [second]


TRIGGERS: dict[str, tuple[str, str, Any]] = {
    "gang": ("attempt.triggerer.gang_wait.wait_for_event", "gang", gang_job.GangJobTrigger),
    "earlier gang": (
        "attempt.triggerer.previous_attempt_wait.wait_for_previous_pods",
        "previous",
        gang_job.PreviousGangTrigger,
    ),
    "selected gangs": ("triggers.sensor.wait_for_selected", "selection", sensor.GangSelectionTrigger),
}


@pytest.mark.parametrize(("wait", "payload", "kind"), TRIGGERS.values(), ids=TRIGGERS)
def test_every_event_names_the_task_instance_that_waited(
    monkeypatch: pytest.MonkeyPatch, wait: str, payload: str, kind: Any
) -> None:
    gang = build_event(GangRef("default", "a", "u"), Status.SUCCEEDED, Phase.SUCCEEDED)
    results: dict[str, Any] = {"gang": gang, "previous": {"status": "ended"}, "selection": {"status": "met"}}

    async def waited(*args: Any, **kwargs: Any) -> Any:
        return results[payload]

    monkeypatch.setattr(f"airflow_provider_gangjobs.{wait}", waited)
    target = {} if payload == "selection" else {"name": "a", "uid": "u"}
    trigger = kind(kubernetes_conn_id="c", namespace="default", **target)
    trigger.task_instance = SimpleNamespace(id=uuid4(), dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)

    async def run() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    (event,) = asyncio.run(run())
    assert event["task_instance"] == str(trigger.task_instance.id)
