"""The XCom `gang_end` tells the history of a gang whose Job is gone."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import GangJobError
from tests.airflow.polling import wait_for
from tests.provider.task_runner import run_trigger

if TYPE_CHECKING:
    from tests.provider.task_runner import Task, TaskMaker


def times_of(task: Task) -> dict[str, datetime]:
    return {name: datetime.fromisoformat(at) for name, at in task.xcoms["gang_end"]["times"].items()}


def is_over(task: Task) -> bool:
    return any(one.get("status", {}).get("completionTime") for one in task.jobs)


@pytest.mark.parametrize("way", ["in the worker", "deferred", "followed after its end"])
def test_times_and_size_are_kept_of_a_gang_that_is_deleted(task: TaskMaker, way: str) -> None:
    it = task("exit 0", deferrable=way != "in the worker", on_finish="delete")
    if way == "in the worker":
        it.execute()
    else:
        context = it.next_try()
        left = it.defer(context)
        if way == "followed after its end":
            wait_for("the end of the gang", lambda: is_over(it))
        operator = it.operator()
        it.note_success(operator, context, operator.execute_complete(context, run_trigger(left)))

    end: dict[str, Any] = it.xcoms["gang_end"]
    times = times_of(it)
    assert list(times) == ["submitted", "admitted", "running", "ended"]
    assert sorted(times.values()) == list(times.values())
    assert (end["counts"]["ranks"], end["requests"]) == (2, {"cpu": "200m"})
    assert end["placement"].startswith("gang:")


@pytest.mark.parametrize(
    ("script", "parameters", "known"),
    [
        pytest.param("exit 3", {}, {"submitted", "admitted", "ended"}, id="failed"),
        pytest.param("sleep 300", {"run_timeout": 1}, {"submitted", "admitted", "running", "ended"}, id="run_timeout"),
        pytest.param(
            "exit 0",
            {"resources": {"cpu": "1000"}, "assemble_timeout": 1},
            {"submitted", "admitted", "ended"},
            id="assemble_timeout",
        ),
    ],
)
def test_times_are_kept_of_a_gang_without_success(
    task: TaskMaker, script: str, parameters: Any, known: set[str]
) -> None:
    it = task(script, **parameters)
    with suppress(GangJobError):
        it.execute()

    assert known <= set(times_of(it))
    assert times_of(it)["ended"] == max(times_of(it).values())
