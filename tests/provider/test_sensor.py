"""A sensor waits for gangs of other tasks and clients, and changes none of them."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse
from kubernetes.client import V1Job

from airflow_provider_gangjobs.airflow_api.configuration import installation_id
from airflow_provider_gangjobs.airflow_api.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow_provider_gangjobs.attempt.triggerer import gang_wait
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import (
    selection_payload,
)
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.exceptions import AppFailed, GangFailed, InvalidGangSpec, JobDeleted, TrackingFailed
from airflow_provider_gangjobs.gang.awaited import Answer
from airflow_provider_gangjobs.gang.identity import GangRef, OperationKey, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import build_event
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor
from airflow_provider_gangjobs.triggers.sensor import GangSelectionTrigger
from gangjobs_sandbox.resources import JOBS, PODS
from tests.airflow.polling import wait_for
from tests.provider.task_runner import run_serialized_trigger
from tests.provider.virtual_time import cancel, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.task_runner import Task, TaskMaker

QUICK = ["sh", "-c", 'echo "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"']
FAILING = ["sh", "-c", "exit 3"]
ENDLESS = ["sleep", "600"]
EACH_WAY = pytest.mark.parametrize("deferrable", [pytest.param(True, id="deferred"), pytest.param(False, id="poke")])
EACH_WAY_LATER = pytest.mark.parametrize(
    "deferrable", [pytest.param(True, id="deferred"), pytest.param(False, id="poke", marks=pytest.mark.slow)]
)
"""For tests of behaviour that both ways share. `make test` runs them deferred."""


class Gangs:
    """Submits gangs that no task of the test has submitted, and deletes them at the end."""

    def __init__(self, connection: str) -> None:
        self.hook = GangJobHook(connection)
        self.run = uuid4().hex
        self.refs: list[GangRef] = []

    def submit(self, command: list[str], *, task: str = "train", submission: str = "", **spec: Any) -> GangRef:
        key = OperationKey(submission) if submission else TaskKey("d", self.run, task, -1, installation_id())
        described = GangSpec(image="i", command=command, workers=2, resources={"cpu": "100m"}, **spec)
        self.refs.append(self.hook.submit(described, key=key, claim="somebody").ref)
        return self.refs[-1]


@pytest.fixture
def gangs(connection: str) -> Iterator[Gangs]:
    gangs = Gangs(connection)
    yield gangs
    for ref in gangs.refs:
        gangs.hook.delete(ref)


def context_of_sensor() -> Any:
    return {"ti": SimpleNamespace(id="ti", dag_id="d", run_id="r", task_id="wait", map_index=-1)}


def run_sensor(connection: str, *, of_triggerer: str | None = None, **parameters: Any) -> Any:
    """Run a sensor to its end, in the triggerer or by pokes, and return its value.

    :param of_triggerer: The id of the connection that the trigger uses, if it is another one.
    """
    known: dict[str, Any] = {"kubernetes_conn_id": connection, "poke_interval": 0.2, "timeout": 300, **parameters}
    with DAG("d", schedule=None):
        sensor = GangJobSensor(task_id="wait", **known)
    context = context_of_sensor()
    if not sensor.deferrable:
        return sensor.execute(context)
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(context)
    left = raised.value
    assert left.timeout.total_seconds() == 300
    path, kwargs = left.trigger.serialize()
    kwargs |= {"kubernetes_conn_id": of_triggerer} if of_triggerer else {}
    event = run_serialized_trigger(path, json.loads(json.dumps(kwargs)))
    return sensor.resume_execution(left.method_name, {"event": event}, context)


def name_of_try(train: Task, number: int) -> str:
    """Return the name of the Job that a try of a task has submitted."""
    (name,) = (name for job in train.jobs if (name := job["metadata"]["name"]).endswith(f"-{number - 1}"))
    return str(name)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Status]:
    """The status of each gang that the sensors of the test have followed to its end."""
    seen: list[Status] = []
    run = gang_wait._GangWait.run_with_logs

    async def run_and_report(wait: Any, limit_s: float | None) -> GangEvent:
        event = await run(wait, limit_s)
        seen.append(event.status)
        return event

    monkeypatch.setattr(gang_wait._GangWait, "run_with_logs", run_and_report)
    return seen


async def is_watching() -> None:
    """Wait until the trigger has opened its watch."""
    while not informers().statistics():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.01)


@EACH_WAY_LATER
@pytest.mark.parametrize("by", ["name", "reference", "selector"])
def test_gang_is_found_by(by: str, gangs: Gangs, connection: str, deferrable: bool) -> None:
    ref = gangs.submit(QUICK, labels={"run": gangs.run[:20]})
    selection: dict[str, Any] = {
        "name": {"gangs": ref.name, "namespace": ref.namespace},
        "reference": {"gangs": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}},
        "selector": {"selector": f"run={gangs.run[:20]}"},
    }[by]

    value = run_sensor(connection, deferrable=deferrable, **selection)

    reached = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid, "status": "succeeded"}
    assert value == ([reached] if by == "selector" else reached)


@EACH_WAY
def test_submission_is_found_by_its_id_with_the_results(gangs: Gangs, connection: str, deferrable: bool) -> None:
    spec = GangSpec(image="i", command=QUICK, workers=2, resources={"cpu": "100m"})
    gangs.refs.append(gangs.hook.submit(spec, submission_id=gangs.run).ref)

    value = run_sensor(connection, submission_ids=[gangs.run], results="all", deferrable=deferrable)

    assert value == [[{"rank": 0}, {"rank": 1}]]


def test_worker_waits_if_triggerers_do_not_have_the_connection(
    gangs: Gangs, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = gangs.submit(QUICK)
    comms = SimpleNamespace(send=lambda _: ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND))
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)

    value = run_sensor(connection, deferrable=True, of_triggerer="only_workers", gangs=ref.name)

    assert (value["name"], value["status"]) == (ref.name, "succeeded")


async def test_gang_that_is_submitted_later_is_awaited(gangs: Gangs, connection: str) -> None:
    key = TaskKey("d", gangs.run, "train", -1, installation_id())
    trigger = GangSelectionTrigger(kubernetes_conn_id=connection, namespace="default", digests=[key.digest])
    waiting = asyncio.create_task(anext(trigger.run()))
    await is_watching()

    ref = await asyncio.to_thread(gangs.submit, QUICK)
    event = await waiting
    await informers().aclose()

    assert [gang["uid"] for gang in event.payload["gangs"]] == [ref.uid]


@EACH_WAY_LATER
def test_one_gang_that_runs_is_enough_for_any(gangs: Gangs, connection: str, deferrable: bool) -> None:
    refs = [gangs.submit(command, task=f"t{i}") for i, command in enumerate((ENDLESS, QUICK))]
    names = [ref.name for ref in refs]

    value = run_sensor(connection, gangs=names, wait_for="any", deferrable=deferrable)

    assert [gang["name"] for gang in value] == [refs[1].name]


@EACH_WAY
def test_gang_that_runs_is_awaited_until_it_runs(gangs: Gangs, connection: str, deferrable: bool) -> None:
    ref = gangs.submit(ENDLESS)

    value = run_sensor(connection, gangs=ref.name, until="running", deferrable=deferrable)

    assert (value["status"], gangs.hook.call(lambda service: service.is_live(ref))) == ("running", True)


@EACH_WAY
def test_failed_gang_fails_the_sensor_with_its_reason(gangs: Gangs, connection: str, deferrable: bool) -> None:
    ref = gangs.submit(FAILING)

    with pytest.raises(AppFailed, match="exited with code 3"):
        run_sensor(connection, gangs=ref.name, deferrable=deferrable)


FIRST_TRY_FAILS = 'test "$GANG_ATTEMPT" = 0 && exit 3; sleep 600'


@pytest.fixture
def retried(task: TaskMaker) -> Task:
    """A task whose gang of try 1 has failed, and whose gang of try 2 is submitted."""
    train = task(FIRST_TRY_FAILS, labels={"team": "vision"})
    with pytest.raises(AppFailed):
        train.execute()
    train.parameters["deferrable"] = True
    train.defer()
    return train


@EACH_WAY_LATER
def test_gang_of_the_newest_try_of_a_task_is_awaited(retried: Task, connection: str, deferrable: bool) -> None:
    value = run_sensor(connection, until="running", deferrable=deferrable, selector="team=vision")

    (found,) = value
    assert (found["name"], found["status"]) == (name_of_try(retried, 2), "running")


@EACH_WAY_LATER
def test_failed_gang_skips_a_sensor_with_soft_fail(gangs: Gangs, connection: str, deferrable: bool) -> None:
    ref = gangs.submit(FAILING)

    with pytest.raises(AirflowSkipException):
        run_sensor(connection, gangs=ref.name, soft_fail=True, deferrable=deferrable)


@EACH_WAY
def test_gang_that_was_deleted_fails_the_sensor(gangs: Gangs, connection: str, deferrable: bool) -> None:
    ref = gangs.submit(ENDLESS)
    gangs.hook.delete(ref)

    with pytest.raises(JobDeleted):
        run_sensor(connection, gangs={"name": ref.name, "uid": ref.uid}, deferrable=deferrable)


@EACH_WAY_LATER
def test_success_counts_after_its_job_is_deleted_where_the_job_of_an_earlier_failure_stays(
    gangs: Gangs, connection: str, deferrable: bool, ended: list[Status]
) -> None:
    ids = [f"{gangs.run}-{number}" for number in range(2)]
    failed = gangs.submit(FAILING, submission=ids[0])
    wait_for("the failure", lambda: not gangs.hook.call(lambda service: service.is_live(failed)))
    succeeded = gangs.submit(QUICK, submission=ids[0])
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run_sensor, connection, submission_ids=ids, deferrable=deferrable)
        wait_for("the first success", lambda: Status.SUCCEEDED in ended)
        gangs.hook.delete(succeeded)
        last = gangs.submit(QUICK, submission=ids[1])

        assert [found["uid"] for found in waiting.result()] == [succeeded.uid, last.uid]


@EACH_WAY
def test_outcomes_are_recorded_and_the_claim_stays(
    gangs: Gangs, connection: str, embedded: SandboxThread, deferrable: bool
) -> None:
    """The task of the gang may have ended on purpose, so that no other process records the outcomes."""
    ref = gangs.submit(QUICK)

    run_sensor(connection, gangs=ref.name, deferrable=deferrable)

    job = embedded.call(lambda it: it.registry.get(JOBS, ref.name, ref.namespace))
    pods = embedded.call(lambda it: it.registry.list(PODS, label_selector=f"gangjobs.airflow/gang={ref.name}"))
    assert [outcome.exit_code for outcome in gangs.hook.outcomes(ref)] == [0, 0]
    assert read_job(job).claim.id == "somebody"
    assert not any("gangjobs.airflow/harvest" in pod["metadata"].get("finalizers", ()) for pod in pods)


AWAITED = {
    "gang": ({"gangs": "train-0"}, "gang 'train-0', until succeeded"),
    "submission": ({"submission_ids": ["a", "b"]}, "submission ['a', 'b'], until succeeded"),
    "selector": ({"selector": "team=a"}, "1 or more gangs with the labels team=a, until succeeded"),
}


@pytest.mark.parametrize(("selection", "named"), AWAITED.values(), ids=AWAITED)
def test_timeout_names_what_the_sensor_has_waited_for(connection: str, selection: dict[str, Any], named: str) -> None:
    with pytest.raises(AirflowSensorTimeout, match=re.escape(f"The sensor has waited for {named}")):
        run_sensor(connection, deferrable=False, timeout=0.1, **selection)


def test_timeout_of_a_deferred_sensor_names_what_it_has_waited_for(connection: str) -> None:
    with DAG("d", schedule=None):
        sensor = GangJobSensor(task_id="wait", gangs="train-0", kubernetes_conn_id=connection)
    with pytest.raises(AirflowSensorTimeout, match="has waited for gang 'train-0', until succeeded"):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, context_of_sensor())


RENDERED = {
    "{'namespace': 'n', 'name': 'a', 'uid': 'u'}": "the text of a dict. Give the XCom itself",
    "['a', 'b']": "the text of a list. Give the XCom itself",
    "None": "the text of None. Give the XCom itself",
    "No_Name": "may only have lower-case letters",
}


@EACH_WAY
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        *(({"gangs": text}, message) for text, message in RENDERED.items()),
        ({"submission_ids": "None"}, "the text of None. Give the XCom itself"),
        ({"selector": "None"}, "selector: is 'None'"),
        ({"gangs": "a", "namespace": "None"}, "namespace: 'None' may only have"),
        ({"gangs": None}, "gangs: has the value None in this run"),
        ({"submission_ids": []}, "submission_ids: is empty"),
    ],
)
def test_template_that_rendered_to_no_gang_is_refused(
    connection: str, deferrable: bool, parameters: dict[str, Any], message: str
) -> None:
    templates = dict.fromkeys(parameters, "{{ value }}")
    with DAG("d", schedule=None):
        sensor = GangJobSensor(task_id="wait", kubernetes_conn_id=connection, deferrable=deferrable, **templates)
    for name, value in parameters.items():
        setattr(sensor, name, value)

    with pytest.raises(AirflowFailException, match=re.escape(message)):
        sensor.execute(context_of_sensor())


@EACH_WAY
def test_wrong_template_is_no_failed_gang_that_soft_fail_skips(connection: str, deferrable: bool) -> None:
    with DAG("d", schedule=None):
        sensor = GangJobSensor(task_id="wait", gangs="{{ value }}", kubernetes_conn_id=connection, soft_fail=True)
    sensor.deferrable, sensor.gangs = deferrable, None

    with pytest.raises(AirflowFailException):
        sensor.execute(context_of_sensor())


async def test_sensor_that_is_killed_leaves_the_gang(gangs: Gangs, connection: str) -> None:
    ref = await asyncio.to_thread(gangs.submit, ENDLESS)
    trigger = GangSelectionTrigger(kubernetes_conn_id=connection, namespace="default", names={ref.name: ""})
    waiting = asyncio.create_task(anext(trigger.run()))
    await is_watching()
    await cancel(waiting)
    if hasattr(trigger, "on_kill"):
        await trigger.on_kill()
    await informers().aclose()

    assert await asyncio.to_thread(gangs.hook.call, lambda service: service.is_live(ref))


@in_virtual_time
async def test_cluster_that_cannot_be_read_is_neither_success_nor_failure() -> None:
    trigger = GangSelectionTrigger(kubernetes_conn_id="nowhere", namespace="n", names={"a": ""})

    event = await anext(trigger.run())
    sensor = GangJobSensor(task_id="wait", gangs="a", soft_fail=True, kubernetes_conn_id="kubernetes_default")

    assert event.payload["status"] == "unknown"
    with pytest.raises(TrackingFailed, match="`nowhere` isn't defined"):
        sensor.execute_complete({"ti": None}, event.payload)


def test_error_is_that_of_the_gang_that_failed_where_another_one_is_unknown() -> None:
    ends = [(Status.ERROR, "NotReadable"), (Status.FAILED, "BackoffLimitExceeded")]
    events = [
        build_event(GangRef("n", status.value, "u"), status, Phase.RUNNING, reason=reason) for status, reason in ends
    ]
    sensor = GangJobSensor(task_id="wait", gangs=["error", "failed"], kubernetes_conn_id="kubernetes_default")

    with pytest.raises(GangFailed, match=r"n/failed failed \(BackoffLimitExceeded\)"):
        sensor.execute_complete({"ti": None}, selection_payload(Answer.FAILED, events))


def test_sensor_that_never_fails_is_skipped_when_it_is_resumed() -> None:
    unknown = selection_payload(Answer.UNKNOWN, [], message="403")
    sensor = GangJobSensor(task_id="wait", gangs="a", never_fail=True, kubernetes_conn_id="kubernetes_default")
    with pytest.raises(AirflowSkipException, match="never_fail is set"):
        sensor.resume_execution("execute_complete", {"event": unknown}, {"ti": None})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "gangs: are all missing"),
        ({"gangs": "a", "selector": "b"}, "gangs: are given together: gangs, selector"),
        ({"gangs": "a", "until": "done"}, "until: is 'done'. Give one of running, succeeded, ended"),
        ({"gangs": "a", "wait_for": "some"}, "wait_for: is 'some'. Give one of all, any"),
        ({"selector": "a=b,,"}, "selector: "),
        ({"selector": {"team": "vision", "a": 1}}, "selector: is a dict and no text. Write 'team=vision,a=1'"),
        ({"selector": ["a=b"]}, "selector: is a list and no text. Give a label selector, such as team=vision"),
        ({"selector": 3}, "selector: is 3 and no text"),
        ({"gangs": "a", "results": "rank1"}, "results: "),
        ({"gangs": "a", "until": "running", "results": "all"}, "results: is 'all', and a gang that runs has none"),
        ({"selector": "a", "at_least": 0}, "at_least: is 0"),
        ({"selector": "a", "at_least": 1.5}, "at_least: is 1.5"),
        ({"selector": "a", "at_least": "2"}, "at_least: is '2'"),
        ({"gangs": "a", "at_least": 2}, "at_least: is 2 without selector"),
        ({"gangs": ["a", 3]}, r"gangs\[1\]: is 3. Give the name of a Job"),
        ({"gangs": [V1Job()]}, r"gangs\[0\]: is a V1Job. Give the name of a Job"),
        ({"gangs": []}, "gangs: is empty"),
        ({"submission_ids": ["a", ""]}, r"submission_ids\[1\]: is ''"),
        ({"gangs": "a", "deferrable": "False"}, "deferrable: is 'False'. Give True or False"),
        ({"gangs": "a", "kubernetes_conn_id": None}, "kubernetes_conn_id: is None"),
    ],
)
def test_parameter_that_is_wrong_is_refused_when_the_dag_is_parsed(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGangSpec, match=message):
        GangJobSensor(task_id="wait", **parameters)


@pytest.mark.parametrize("name", ["start_from_trigger", "end_from_trigger"])
def test_sensor_that_wants_no_worker_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InvalidGangSpec, match=f"{name}: is a parameter of tasks that run a gang, and only a worker"):
        GangJobSensor(task_id="wait", gangs="train-0", **{name: True})


@pytest.mark.parametrize("name", ["external_task_id", "external_dag_id", "external_run_id", "external_map_index"])
def test_parameter_of_the_sensor_for_tasks_is_answered(name: str) -> None:
    with pytest.raises(InvalidGangSpec, match=f"{name}: is not a parameter of GangJobSensor. Give gangs the XCom gang"):
        GangJobSensor(task_id="wait", gangs="train-0", **{name: "train"})
