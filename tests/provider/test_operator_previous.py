"""A task waits, without a worker if it can, until the pods of its earlier attempt have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred
from airflow_provider_gangjobs.exceptions import DeadlineExceeded
from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger, PreviousGangTrigger
from tests.airflow.polling import wait_for
from tests.provider.task_runner import OperatorWithTime, run_trigger

if TYPE_CHECKING:
    from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
    from tests.provider.task_runner import Task, TaskMaker

SLOW_TO_END = "trap 'sleep 4; exit 0' TERM; while true; do sleep 0.1; done"


class OperatorWithShortWait(OperatorWithTime):
    """An operator that waits only half a second in its worker for the pods of an earlier attempt."""

    def _open_gangs(self, context: Any, **options: Any) -> TaskGangs:
        gangs: TaskGangs = super()._open_gangs(context, **options)
        gangs.wait_for_previous_s = 0.5
        return gangs


@pytest.fixture
def killed(task: TaskMaker) -> Task:
    """A task whose first try was killed, and whose pods take some seconds to end."""
    made: Task = task(SLOW_TO_END, deferrable=True, termination_grace=60)
    made.kind = OperatorWithShortWait
    operator, context = made.operator(), made.next_try()
    with pytest.raises(TaskDeferred):
        operator.execute(context)
    wait_for("running ranks", lambda: [pod["status"].get("phase") for pod in made.pods] == ["Running"] * 2)
    operator.on_kill()
    return made


def test_task_defers_until_the_pods_have_ended(killed: Task) -> None:
    context = killed.next_try()

    left = killed.defer(context)
    event = run_trigger(left)

    assert (type(left.trigger), left.method_name) == (PreviousGangTrigger, "execute_after_previous")
    assert (event["status"], event["pods"]) == ("gone", 0)
    with pytest.raises(TaskDeferred) as again:
        killed.operator().execute_after_previous(context, event)
    assert isinstance(again.value.trigger, GangJobTrigger)


def test_wait_ends_with_the_time_limit(killed: Task) -> None:
    killed.parameters["assemble_timeout"] = 0.5
    context = killed.next_try()

    event = run_trigger(killed.defer(context))

    assert (event["status"], event["reason"], event["pods"]) == ("timeout", "assemble_timeout", 2)
    with pytest.raises(DeadlineExceeded, match="2 of its pods had not ended"):
        killed.operator().execute_after_previous(context, event)


def test_worker_waits_after_a_trigger_that_could_not_count_the_pods(killed: Task) -> None:
    killed.parameters["assemble_timeout"] = 1
    context = killed.next_try()
    left = killed.defer(context)
    event = {"v": 1, "status": "error", "reason": "ClusterRefused", "gang": str(left.trigger.args.ref), "pods": None}

    with pytest.raises(DeadlineExceeded, match="2 of its pods had not ended"):
        killed.operator().execute_after_previous(context, event)


@pytest.fixture
def edited(task: TaskMaker) -> Task:
    """A task whose gang runs while the command in its DAG is edited."""
    made: Task = task("sleep 3000", deferrable=True)
    made.defer()
    made.parameters["command"] = ["sh", "-c", "sleep 4000"]
    return made


def names(task: Task) -> list[str]:
    return [job["metadata"]["name"] for job in task.jobs if "deletionTimestamp" not in job["metadata"]]


def test_cleared_task_replaces_its_gang_of_other_parameters(edited: Task, caplog: pytest.LogCaptureFixture) -> None:
    (first,) = edited.jobs
    edited.clear()

    left = edited.defer()

    assert isinstance(left.trigger, GangJobTrigger)
    (second,) = names(edited)
    assert (first["metadata"]["name"][-2:], second[-2:]) == ("-0", "-1")
    assert (
        f"{first['metadata']['name']} was submitted with other parameters (command). The gang is deleted" in caplog.text
    )


def test_new_gang_waits_until_the_pods_of_the_replaced_one_have_ended(task: TaskMaker) -> None:
    made: Task = task(SLOW_TO_END, deferrable=True, termination_grace=60)
    made.kind = OperatorWithShortWait
    made.defer()
    wait_for("running ranks", lambda: [pod["status"].get("phase") for pod in made.pods] == ["Running"] * 2)
    (first,) = made.jobs
    made.parameters["command"] = ["sh", "-c", "sleep 4000"]
    made.clear()
    context = made.next_try()

    left = made.defer(context)

    assert (type(left.trigger), names(made)) == (PreviousGangTrigger, [])
    with pytest.raises(TaskDeferred):
        made.operator().execute_after_previous(context, run_trigger(left))
    (job,) = made.jobs
    assert job["metadata"]["uid"] != first["metadata"]["uid"]
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][-1] == "sleep 4000"


def test_retry_continues_its_gang_of_other_parameters(edited: Task, caplog: pytest.LogCaptureFixture) -> None:
    before = names(edited)

    left = edited.defer()

    assert (isinstance(left.trigger, GangJobTrigger), names(edited)) == (True, before)
    assert "was submitted with other parameters (command). The task continues with this gang" in caplog.text
    assert "To replace the gang, clear the task" in caplog.text


def test_clear_after_a_retry_that_continued_replaces_the_gang(edited: Task) -> None:
    before = names(edited)
    edited.defer()
    edited.clear()

    edited.defer()

    assert len(names(edited)) == 1
    assert names(edited) != before


def test_worker_waits_where_the_task_does_not_defer(killed: Task) -> None:
    killed.parameters |= {"deferrable": False, "assemble_timeout": 1}

    with pytest.raises(DeadlineExceeded, match="previous attempt"):
        killed.execute()
