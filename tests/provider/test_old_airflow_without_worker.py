"""With Airflow before 3.3, a task starts and ends in a worker. Its log says once why, at the level that fits."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.bases.xcom import BaseXCom
from airflow.serialization import serialized_objects
from airflow.triggers.base import BaseTrigger

from airflow_provider_gangjobs.attempt.deferral import trigger_end
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.parameters.task_parameters import TaskParameters

if TYPE_CHECKING:
    from tests.provider.task_runner import TaskMaker

# The name since Airflow 3.2.
DagSerialization = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG


@pytest.fixture(autouse=True)
def old_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what Airflow has since 3.3, if this Airflow has it."""
    monkeypatch.delattr(BaseTrigger, "on_kill", raising=False)
    monkeypatch.delattr(BaseXCom, "aset", raising=False)


def test_scheduler_defers_no_task() -> None:
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="one", image="i", start_from_trigger=True)
        GangJobOperator.partial(task_id="many", image="i", start_from_trigger=True).expand(env=[{"A": "1"}])

        @task.gang_job(image="i", start_from_trigger=True)
        def train(number: int) -> int:
            return number

        train(1)
        train.override(task_id="each").expand(number=[1, 2])
    stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))

    tasks: dict[str, Any] = DagSerialization.from_dict(stored).task_dict

    assert [tasks[name].start_from_trigger for name in ("one", "many", "train", "each")] == [False] * 4


def test_worker_says_once_why_it_starts_the_task(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    left = task("true", deferrable=True, start_from_trigger=True).defer()

    assert left.trigger.args.end is None
    told = [line for line in capsys.readouterr().out.splitlines() if "and not the triggerer" in line]
    assert len(told) == 1
    assert "This worker starts the gang, and not the triggerer: this Airflow is older than 3.3" in told[0]


def test_only_the_level_debug_tells_that_a_worker_ends_the_task(
    task: TaskMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    one = task("true", deferrable=True)

    assert trigger_end(TaskParameters.of(one.operator()), one.next_try()["ti"], None, logging.getLogger("task")) is None  # type: ignore[arg-type]

    (told,) = [record for record in caplog.records if record.name == "task"]
    assert told.levelname == "DEBUG"
    assert "a trigger can end a task only with Airflow 3.3 or later" in told.message
