"""With Airflow before 3.3, a task that wants no worker starts and ends in a worker, and its log says why, once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.bases.xcom import BaseXCom
from airflow.serialization import serialized_objects
from airflow.triggers.base import BaseTrigger

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

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


def test_worker_says_once_why_it_starts_and_ends_the_task(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    left = task("true", deferrable=True, start_from_trigger=True, end_from_trigger=True).defer()

    log = capsys.readouterr().out
    assert left.trigger.args.end is None
    assert log.count("This worker starts the gang, and not the triggerer: this Airflow is older than 3.3") == 1
    assert log.count("a trigger can end a task only with Airflow 3.3 or later") == 1
