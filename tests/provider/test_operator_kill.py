"""What `on_kill` of the operator does to the gang of a task that is killed in its worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred
from tests.airflow.polling import wait_for
from tests.provider.task_runner import run_trigger

if TYPE_CHECKING:
    from tests.provider.task_runner import TaskMaker

WRITE_RANK = 'printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'
ENDLESS = "sleep 600"


def test_kill_in_the_worker_deletes_the_gang(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True)
    operator = train.operator()
    with pytest.raises(TaskDeferred):
        operator.execute(train.next_try())

    operator.on_kill()

    wait_for("the end of its Job and of its pods", lambda: not train.pods and not train.jobs)


def test_kill_before_the_submission_does_nothing(task: TaskMaker) -> None:
    train = task(ENDLESS)

    train.operator().on_kill()

    assert train.jobs == []


def test_kill_leaves_a_gang_that_another_try_has_taken(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True)
    operator = train.operator()
    with pytest.raises(TaskDeferred):
        operator.execute(train.next_try())
    train.defer()

    operator.on_kill()

    assert len(train.jobs) == 1


@pytest.mark.parametrize("state", ["deferred", "up_for_retry", "failed", "success"])
def test_signal_after_the_report_of_the_try_is_no_kill(task: TaskMaker, state: str) -> None:
    """Airflow ends a process whose callbacks take too long, or whose worker is shut down, by the same signal."""
    train = task(ENDLESS, deferrable=True)
    operator, context = train.operator(), train.next_try()
    with pytest.raises(TaskDeferred):
        operator.execute(context)
    context["ti"].state = state  # as `task_runner.run` of the Task SDK does after its report

    operator.on_kill()

    assert len(train.jobs) == 1
    assert "deletionTimestamp" not in train.jobs[0]["metadata"]


def test_kill_leaves_a_gang_that_has_succeeded(task: TaskMaker) -> None:
    """The next try delivers its results."""
    train = task(WRITE_RANK, deferrable=True)
    operator = train.operator()
    with pytest.raises(TaskDeferred) as left:
        operator.execute(train.next_try())
    run_trigger(left.value)

    operator.on_kill()

    assert len(train.jobs) == 1


def test_kill_keeps_the_gang_if_on_kill_is_keep(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True, on_kill="keep")
    operator = train.operator()
    with pytest.raises(TaskDeferred) as left:
        operator.execute(train.next_try())

    operator.on_kill()

    assert len(train.jobs) == 1
    assert left.value.trigger.args.delete_on_kill is False
