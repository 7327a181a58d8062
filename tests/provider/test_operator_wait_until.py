"""A task that ends when its gang is submitted or runs. The gang continues, and its task does not end it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Unschedulable
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor
from tests.airflow.polling import wait_for
from tests.provider.task_runner import run_trigger

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import OnFinish
    from tests.provider.task_runner import Task, TaskMaker

ENDLESS = "sleep 600"
QUICK = 'echo "[$RANK]" > "$GANG_RESULT_PATH"'


def reference(train: Task) -> dict[str, str]:
    (job,) = train.jobs
    return {key: job["metadata"][key] for key in ("namespace", "name", "uid")}


def stored(train: Task) -> StoredGang:
    (job,) = train.jobs
    return read_job(job)


def on_finish(train: Task) -> OnFinish:
    policies = stored(train).claim.policies
    assert policies is not None
    return policies.on_finish


@pytest.mark.parametrize("deferrable", [True, False])
def test_task_ends_when_its_gang_is_submitted(task: TaskMaker, deferrable: bool) -> None:
    train = task(ENDLESS, wait_until="submitted", deferrable=deferrable)

    value = train.execute()

    assert value == train.xcoms["gang"] == reference(train)
    assert (stored(train).claim.id, on_finish(train)) == ("", "keep")


def test_task_that_waits_in_its_worker_ends_when_its_gang_runs(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="running")

    value = train.execute()

    (job,) = train.jobs
    assert (value, job["status"]["active"]) == (reference(train), 2)


def test_deferred_task_ends_when_its_gang_runs(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="running", deferrable=True)
    left = train.defer()

    value = train.operator().resume_execution(left.method_name, {"event": run_trigger(left)}, train.context)

    assert (value, left.trigger.args.outlives_task) == (reference(train), True)


def test_gang_that_cannot_run_fails_the_task_that_waits_for_it(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="running", node_selector={"no": "node"}, assemble_timeout=1)

    with pytest.raises(Unschedulable):
        train.execute()


def test_kill_after_the_success_does_not_touch_the_gang(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="submitted")
    train.execute()

    train.last_operator.on_kill()

    assert train.jobs[0]["metadata"].get("deletionTimestamp") is None


def test_kill_before_the_success_deletes_the_gang(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="submitted")
    operator = train.operator()
    operator.execute(train.next_try())

    operator.on_kill()

    wait_for("the deletion", lambda: not train.jobs)


def test_gang_stays_with_its_task_until_airflow_has_accepted_the_success(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="submitted")
    train.state = "running"
    train.execute()
    refused = stored(train).claim.id

    train.state = "success"
    train.execute()

    assert (bool(refused), len(train.jobs), stored(train).claim.id) == (True, 1, "")


def test_task_that_is_cleared_while_its_gang_runs_owns_the_gang_again(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="submitted")
    first = train.execute()
    operator, again = train.operator(), train.next_try()

    value = operator.execute(again)

    assert value == first
    assert (stored(train).claim.id, stored(train).is_delivered) == (str(again["ti"].id), False)


def test_task_that_is_cleared_after_the_end_of_its_gang_submits_another_one(task: TaskMaker, connection: str) -> None:
    train = task(QUICK, wait_until="submitted")
    first = train.execute()
    sensor = GangJobSensor(
        task_id="wait", gangs=first, results="all", kubernetes_conn_id=connection, deferrable=False, poke_interval=0.1
    )
    results = sensor.execute(train.next_try())

    second = train.execute()

    assert (results, first["uid"] != second["uid"], len(train.jobs)) == ([[0], [1]], True, 2)


def test_time_limit_of_the_task_is_no_limit_of_the_gang(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="submitted", execution_timeout=timedelta(minutes=5))
    train.execute()

    assert "activeDeadlineSeconds" not in train.jobs[0]["spec"]


def test_next_try_that_waits_for_the_end_owns_the_gang_as_any_other(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="submitted")
    train.execute()
    train.parameters |= {"wait_until": "ended", "deferrable": True}

    train.defer()

    assert not stored(train).claim.outlives_task
    assert on_finish(train) == "delete_succeeded"
    assert len(train.jobs) == 1


def test_gang_of_a_task_that_waits_for_its_end_carries_no_further_annotation(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True)
    train.defer()

    assert not stored(train).claim.outlives_task


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"wait_until": "later"}, "wait_until: is 'later'. Choose one of submitted, running, ended"),
        ({"wait_until": "submitted", "queue_timeout": 9}, 'queue_timeout: is not enforced .* Use wait_until="running"'),
        ({"wait_until": "submitted", "assemble_timeout": 9}, "assemble_timeout: is not enforced .* Give both"),
        ({"wait_until": "submitted", "run_timeout": 9}, "run_timeout: is not enforced .* Give both"),
        ({"wait_until": "running", "run_timeout": 9}, "run_timeout: is not enforced .* Give both"),
        ({"wait_until": "running", "max_disruptions": 1}, "max_disruptions: is not enforced"),
    ],
)
def test_limit_that_nobody_would_enforce_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGangSpec, match=message):
        GangJobOperator(task_id="t", image="i", **parameters)


def test_limits_that_the_api_server_enforces_are_accepted(task: TaskMaker, connection: str) -> None:
    train = task(ENDLESS, wait_until="submitted", assemble_timeout=60, run_timeout=60)
    ref = train.execute()

    (job,) = train.jobs
    assert job["spec"]["activeDeadlineSeconds"] == 60 + 60 + 600
    assert GangJobHook(connection).submissions(selector=f"gangjobs.airflow/gang={ref['name']}").gangs
