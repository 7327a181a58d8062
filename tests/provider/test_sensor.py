"""A sensor waits for gangs of other tasks and clients, and changes none of them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DRCount, ErrorResponse, GetDRCount, GetTaskStates, TaskStatesResult
from kubernetes.client import V1Job

from airflow_provider_gangjobs.airflow_api.configuration import installation_id
from airflow_provider_gangjobs.airflow_api.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow_provider_gangjobs.attempt.triggerer import gang_wait, sensor_wait
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import (
    SelectionArgs,
    selection_payload,
    wait_for_selected,
)
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.exceptions import AppFailed, GangFailed, InvalidGangSpec, JobDeleted, TrackingFailed
from airflow_provider_gangjobs.gang.awaited import Answer
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import Status, build_event
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor
from airflow_provider_gangjobs.sensors.job_set import JobSetSensor
from airflow_provider_gangjobs.triggers.sensor import GangSelectionTrigger
from gangjobs_sandbox.resources import JOBS, PODS
from tests.airflow.polling import wait_for
from tests.provider.task_runner import run_serialized_trigger
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

    def submit(self, command: list[str], *, task: str = "train", map_index: int = -1, **spec: Any) -> GangRef:
        key = TaskKey("d", self.run, task, map_index, installation_id())
        described = GangSpec(image="i", command=command, workers=2, resources={"cpu": "100m"}, **spec)
        self.refs.append(self.hook.submit(described, key=key, claim="somebody").ref)
        return self.refs[-1]


@pytest.fixture
def gangs(connection: str) -> Iterator[Gangs]:
    gangs = Gangs(connection)
    yield gangs
    for ref in gangs.refs:
        gangs.hook.delete(ref)


class Airflow:
    """Answers questions about the state of task `train`.

    Attributes:
        state: the answer; an exception is raised.
        states: the states by the name of the task instance, in place of `state`.
        runs: the number of DAG runs with the id of the sensor's run.
        all_runs: the number of DAG runs; `None` for `runs`.
        at_first_question: called before the first answer.
        questions: how often it was asked for states.
    """

    def __init__(self) -> None:
        self.state: str | Exception | None = None
        self.states: dict[str, str | None] | None = None
        self.runs = 1
        self.all_runs: int | None = None
        self.get_dag: Callable[[str], Any] = lambda dag_id: None
        self.at_first_question: Callable[[], Any] = lambda: None
        self.questions = 0

    def get_task_states(self, *, run_ids: list[str], task_ids: list[str], **_: Any) -> dict[str, Any]:
        self.questions += 1
        call, self.at_first_question = self.at_first_question, lambda: None
        call()
        if isinstance(self.state, Exception):
            raise self.state
        if self.states is not None:
            return {run_ids[0]: self.states} if self.states else {}
        return {run_ids[0]: {task_ids[0]: self.state}}

    def get_dr_count(self, *, run_ids: list[str] | None = None, **_: Any) -> int:
        return self.runs if run_ids or self.all_runs is None else self.all_runs

    def send(self, message: GetTaskStates | GetDRCount) -> TaskStatesResult | DRCount:
        """Answer the request of a trigger, in place of `SUPERVISOR_COMMS`."""
        if isinstance(message, GetDRCount):
            return DRCount(count=self.get_dr_count(run_ids=message.run_ids))
        assert message.run_ids
        assert message.task_ids
        return TaskStatesResult(task_states=self.get_task_states(run_ids=message.run_ids, task_ids=message.task_ids))


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """Replace the connection of the tests to Airflow's API server by these answers."""
    airflow = Airflow()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", airflow, raising=False)
    return airflow


def run_sensor(connection: str, run: str = "r", airflow: Airflow | None = None, **parameters: Any) -> Any:
    """Run a sensor to its end, in the triggerer or by pokes, and return its value.

    :param airflow: Answers questions about the states of tasks. Without it, a trigger has no task instance.
    """
    known: dict[str, Any] = {"kubernetes_conn_id": connection, "poke_interval": 0.2, "timeout": 300, **parameters}
    with DAG("d", schedule=None):
        sensor = GangJobSensor(task_id="wait", **known)
    ti = SimpleNamespace(id="ti", dag_id="d", run_id=run, task_id="wait", map_index=-1)
    answers = airflow or Airflow()
    ti.get_task_states, ti.get_dr_count = answers.get_task_states, answers.get_dr_count
    ti.get_dag = answers.get_dag
    context: Any = {"ti": ti}
    if not sensor.deferrable:
        return sensor.execute(context)
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(context)
    left = raised.value
    assert left.timeout.total_seconds() == 300
    path, kwargs = left.trigger.serialize()
    event = run_serialized_trigger(path, json.loads(json.dumps(kwargs)), task_instance=airflow and ti)
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
@pytest.mark.parametrize("by", ["name", "reference", "task", "selector"])
def test_gang_is_found_by(by: str, gangs: Gangs, connection: str, deferrable: bool) -> None:
    ref = gangs.submit(QUICK, labels={"run": gangs.run[:20]})
    selection: dict[str, Any] = {
        "name": {"gangs": ref.name, "namespace": ref.namespace},
        "reference": {"gangs": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}},
        "task": {"external_task_id": "train"},
        "selector": {"selector": f"run={gangs.run[:20]}"},
    }[by]

    value = run_sensor(connection, gangs.run, deferrable=deferrable, **selection)

    reached = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid, "status": "succeeded"}
    assert value == ([reached] if by == "selector" else reached)


@EACH_WAY
def test_submission_is_found_by_its_id_with_the_results(gangs: Gangs, connection: str, deferrable: bool) -> None:
    spec = GangSpec(image="i", command=QUICK, workers=2, resources={"cpu": "100m"})
    gangs.refs.append(gangs.hook.submit(spec, submission_id=gangs.run).ref)

    value = run_sensor(connection, submission_ids=[gangs.run], results="all", deferrable=deferrable)

    assert value == [[{"rank": 0}, {"rank": 1}]]


async def test_gang_that_is_submitted_later_is_awaited(gangs: Gangs, connection: str) -> None:
    key = TaskKey("d", gangs.run, "train", -1, installation_id())
    trigger = GangSelectionTrigger(kubernetes_conn_id=connection, namespace="default", digests=[list(key.digests)])
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
@pytest.mark.parametrize(
    "selection", [{"external_task_id": "train"}, {"selector": "team=vision"}], ids=["task", "selector"]
)
def test_gang_of_the_newest_try_of_a_task_is_awaited(
    retried: Task, connection: str, selection: dict[str, str], deferrable: bool
) -> None:
    value = run_sensor(connection, retried.run_id, until="running", deferrable=deferrable, **selection)

    (found,) = [value] if isinstance(value, dict) else value
    assert (found["name"], found["status"]) == (name_of_try(retried, 2), "running")


@EACH_WAY_LATER
def test_gang_of_an_earlier_try_is_awaited_by_its_name(retried: Task, connection: str, deferrable: bool) -> None:
    with pytest.raises(AppFailed, match="exited with code 3"):
        run_sensor(connection, gangs=name_of_try(retried, 1), deferrable=deferrable)


RETRIED = f'test "$GANG_ATTEMPT" = 0 && exit 3; {QUICK[-1]}'


@EACH_WAY
@pytest.mark.parametrize(
    ("state", "until"),
    [
        pytest.param("up_for_retry", "succeeded", id="retried"),
        pytest.param("up_for_retry", "ended", id="retried, and each end counts"),
        pytest.param(None, "succeeded", id="cleared", marks=pytest.mark.slow),
        pytest.param(ConnectionError(), "succeeded", id="unknown", marks=pytest.mark.slow),
    ],
)
def test_sensor_awaits_the_next_try_of_a_task_that_has_not_ended(
    task: TaskMaker, connection: str, airflow: Airflow, deferrable: bool, state: str | Exception | None, until: str
) -> None:
    train = task(RETRIED, on_finish="keep")
    with pytest.raises(AppFailed):
        train.execute()
    airflow.state, airflow.at_first_question = state, train.execute

    what = {"external_task_id": "train", "results": "rank0", "until": until}
    value = run_sensor(connection, train.run_id, airflow=airflow, deferrable=deferrable, **what)

    assert value == {"rank": 0}


@EACH_WAY
@pytest.mark.parametrize("state", ["failed", pytest.param("upstream_failed", marks=pytest.mark.slow)])
def test_failure_counts_when_the_task_has_ended(
    gangs: Gangs, connection: str, airflow: Airflow, deferrable: bool, state: str
) -> None:
    gangs.submit(FAILING)
    airflow.state = state
    with pytest.raises(AppFailed, match="exited with code 3"):
        run_sensor(connection, gangs.run, airflow=airflow, external_task_id="train", deferrable=deferrable)


@EACH_WAY
@pytest.mark.parametrize("state", ["failed", "success"])
def test_failed_gang_of_a_task_that_has_ended_has_ended(
    gangs: Gangs, connection: str, airflow: Airflow, deferrable: bool, state: str
) -> None:
    gangs.submit(FAILING)
    airflow.state = state
    value = run_sensor(
        connection, gangs.run, airflow=airflow, external_task_id="train", until="ended", deferrable=deferrable
    )
    assert value["status"] == "failed"


async def test_states_of_the_instances_of_a_task_are_asked_for_together(airflow: Airflow) -> None:
    keys = [TaskKey("d", "r", "train", index) for index in range(60)]
    airflow.states = {f"train_{key.map_index}": "up_for_retry" for key in keys}
    digests, tasks = [list(key.digests) for key in keys], [dict(key.to_mapping()) for key in keys]
    args = SelectionArgs(kubernetes_conn_id="c", namespace="n", digests=digests, tasks=tasks)
    wait = sensor_wait._SelectionWait(args, logging.getLogger(__name__), args.tasks_by_key)
    for digest in args.tasks_by_key:
        ref, ended = GangRef("n", digest, "u"), asyncio.create_task(asyncio.sleep(0))
        wait._followed[digest] = ref, ended  # type: ignore[assignment]
        wait.events[digest] = build_event(ref, Status.FAILED, Phase.FAILED)

    answer, _, _ = await wait._look(SimpleNamespace(find=dict))  # type: ignore[arg-type]

    assert (answer, airflow.questions) == (Answer.WAITING, 1)


def test_failed_gang_of_a_task_that_has_succeeded_does_not_fail_the_sensor(
    gangs: Gangs, connection: str, airflow: Airflow
) -> None:
    gangs.submit(FAILING)
    airflow.state = "success"
    with pytest.raises(TrackingFailed, match=r'has succeeded, and the newest .* Set on_finish="keep"'):
        run_sensor(connection, gangs.run, airflow=airflow, external_task_id="train", deferrable=True)


def test_failure_counts_where_no_triggerer_can_ask_airflow(gangs: Gangs, connection: str) -> None:
    gangs.submit(FAILING)
    with pytest.raises(AppFailed, match="exited with code 3"):
        run_sensor(connection, gangs.run, external_task_id="train", deferrable=True)


@EACH_WAY_LATER
def test_failed_gang_skips_a_sensor_with_soft_fail(gangs: Gangs, connection: str, deferrable: bool) -> None:
    ref = gangs.submit(FAILING)

    with pytest.raises(AirflowSkipException):
        run_sensor(connection, gangs=ref.name, soft_fail=True, deferrable=deferrable)


@EACH_WAY_LATER
def test_any_end_of_the_gang_can_be_awaited(gangs: Gangs, connection: str, deferrable: bool) -> None:
    ref = gangs.submit(FAILING)

    assert run_sensor(connection, gangs=ref.name, until="ended", deferrable=deferrable)["status"] == "failed"


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
    failed = gangs.submit(FAILING, map_index=0)
    wait_for("the failure", lambda: not gangs.hook.call(lambda service: service.is_live(failed)))
    succeeded = gangs.submit(QUICK, map_index=0)
    selection = {"external_task_id": "train", "external_map_index": [0, 1], "deferrable": deferrable}
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run_sensor, connection, gangs.run, **selection)
        wait_for("the first success", lambda: Status.SUCCEEDED in ended)
        gangs.hook.delete(succeeded)
        last = gangs.submit(QUICK, map_index=1)

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
    assert job["metadata"]["annotations"]["gangjobs.airflow/claim"] == "somebody"
    assert not any("gangjobs.airflow/harvest" in pod["metadata"].get("finalizers", ()) for pod in pods)


@EACH_WAY
@pytest.mark.parametrize(
    ("states", "map_index", "message"),
    [
        ({}, None, "external_task_id: is 'train', and run .* of DAG d has no such task"),
        ({"train_0": "running", "train_1": None}, None, "external_map_index: is missing, .* map indexes 0 to 1"),
        ({"train_0": "running", "train_1": None}, [0, 7], "external_map_index: is 7, .* map indexes 0 to 1"),
    ],
    ids=["no such task", "mapped", "no such map index"],
)
def test_task_instance_that_does_not_exist_is_refused(
    connection: str,
    airflow: Airflow,
    deferrable: bool,
    states: dict[str, str | None],
    map_index: list[int] | None,
    message: str,
) -> None:
    airflow.states = states
    with pytest.raises(AirflowFailException, match=message):
        run_sensor(
            connection,
            uuid4().hex,
            airflow=airflow,
            external_task_id="train",
            external_map_index=map_index,
            deferrable=deferrable,
        )


@pytest.mark.parametrize(
    ("states", "runs", "all_runs", "note"),
    [
        ({}, 0, 3, "Airflow has no run r of DAG d, and the sensor waits for it"),
        ({}, 0, 0, "Airflow has no run of a DAG d. Check external_dag_id, unless its first run is to come"),
        ({"train": "upstream_failed"}, 1, 1, "Task d.train has ended (upstream_failed), and has no gang"),
        ({"train": "scheduled"}, 1, 1, ""),
    ],
    ids=["no run", "no DAG", "ended", "not begun"],
)
@in_virtual_time
async def test_sensor_says_within_a_minute_why_a_task_has_no_gang(
    connection: str,
    airflow: Airflow,
    caplog: pytest.LogCaptureFixture,
    states: dict[str, str | None],
    runs: int,
    all_runs: int,
    note: str,
) -> None:
    airflow.states, airflow.runs = {"train": None}, 1
    key = TaskKey("d", "r", "train")
    args = SelectionArgs(
        kubernetes_conn_id=connection,
        namespace="default",
        digests=[list(key.digests)],
        tasks=[dict(key.to_mapping())],
    )
    waiting = asyncio.create_task(wait_for_selected(args, logging.getLogger(__name__)))
    await asyncio.sleep(1)
    airflow.states, airflow.runs, airflow.all_runs = states, runs, all_runs
    await asyncio.sleep(60)
    for _ in range(600):  # virtual time passes while the API server of this test, which is real, answers
        if "submitted" in caplog.text and note in caplog.text:
            break
        await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await informers().aclose()

    said = [
        line.message.partition("are submitted")[2].removeprefix(". ")
        for line in caplog.records
        if "submitted" in line.message
    ]
    assert said[-1].startswith(note)
    assert bool(said[-1]) == bool(note)


class UnknownDag:
    """The answer of Airflow's API server to a question about a DAG."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code

    def __call__(self, dag_id: str) -> None:
        detail = {"status_code": self.status_code, "message": dag_id}
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))


@EACH_WAY
def test_dag_that_does_not_exist_is_refused_at_once(connection: str, airflow: Airflow, deferrable: bool) -> None:
    airflow.get_dag = UnknownDag(404)
    with pytest.raises(AirflowFailException, match="external_dag_id: is 'trian', and Airflow has no such DAG"):
        run_sensor(
            connection, airflow=airflow, external_dag_id="trian", external_task_id="train", deferrable=deferrable
        )


def test_dag_that_cannot_be_asked_for_is_not_refused(connection: str, airflow: Airflow) -> None:
    airflow.get_dag = UnknownDag(500)
    with pytest.raises(AirflowSensorTimeout):
        run_sensor(
            connection,
            airflow=airflow,
            external_dag_id="other",
            external_task_id="train",
            deferrable=False,
            timeout=0.1,
        )


AWAITED = {
    "task": ({"external_task_id": "train", "external_map_index": 3}, "the gang of task d.train in run r, map index 3"),
    "gang": ({"gangs": "train-0"}, "gang 'train-0', until succeeded"),
    "submission": ({"submission_ids": ["a", "b"]}, "submission ['a', 'b'], until succeeded"),
    "selector": ({"selector": "team=a"}, "1 or more gangs with the labels team=a, until succeeded"),
}


@pytest.mark.parametrize(("selection", "named"), AWAITED.values(), ids=AWAITED)
def test_timeout_names_what_the_sensor_has_waited_for(
    connection: str, airflow: Airflow, selection: dict[str, Any], named: str
) -> None:
    airflow.states = {"train_3": "scheduled"}
    with pytest.raises(AirflowSensorTimeout, match=re.escape(f"The sensor has waited for {named}")):
        run_sensor(connection, airflow=airflow, deferrable=False, timeout=0.1, **selection)


def test_timeout_of_a_deferred_sensor_names_what_it_has_waited_for(connection: str) -> None:
    with DAG("d", schedule=None):
        sensor = GangJobSensor(task_id="wait", gangs="train-0", kubernetes_conn_id=connection)
    ti = SimpleNamespace(id="ti", dag_id="d", run_id="r", task_id="wait", map_index=-1)
    with pytest.raises(AirflowSensorTimeout, match="has waited for gang 'train-0', until succeeded"):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": ti})


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
        ({"external_task_id": "None"}, "the text of None. Give the id of a task"),
        ({"external_task_id": "fit", "external_map_index": "[0, 1]"}, "render_template_as_native_obj"),
        ({"selector": "None"}, "selector: is 'None'"),
        ({"gangs": "a", "namespace": "None"}, "namespace: 'None' may only have"),
        ({"gangs": None}, "gangs: has the value None in this run"),
        ({"submission_ids": []}, "submission_ids: is empty"),
        ({"external_task_id": "fit", "external_map_index": []}, "external_map_index: is empty"),
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
    ti = SimpleNamespace(id="ti", dag_id="d", run_id="r", task_id="wait", map_index=-1)

    with pytest.raises(AirflowFailException, match=re.escape(message)):
        sensor.execute({"ti": ti})


@EACH_WAY
def test_wrong_template_is_no_failed_gang_that_soft_fail_skips(connection: str, deferrable: bool) -> None:
    with DAG("d", schedule=None):
        sensor = GangJobSensor(task_id="wait", gangs="{{ value }}", kubernetes_conn_id=connection, soft_fail=True)
    sensor.deferrable, sensor.gangs = deferrable, None
    ti = SimpleNamespace(id="ti", dag_id="d", run_id="r", task_id="wait", map_index=-1)

    with pytest.raises(AirflowFailException):
        sensor.execute({"ti": ti})


async def test_sensor_that_is_killed_leaves_the_gang(gangs: Gangs, connection: str) -> None:
    ref = await asyncio.to_thread(gangs.submit, ENDLESS)
    trigger = GangSelectionTrigger(kubernetes_conn_id=connection, namespace="default", names={ref.name: ""})
    waiting = asyncio.create_task(anext(trigger.run()))
    await is_watching()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
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
    with pytest.raises(TrackingFailed, match="AirflowNotFoundException"):
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
        ({"external_task_id": "fit", "external_map_index": "all"}, "external_map_index: is 'all'"),
    ],
)
def test_parameter_that_is_wrong_is_refused_when_the_dag_is_parsed(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGangSpec, match=message):
        GangJobSensor(task_id="wait", **parameters)


@pytest.mark.parametrize("name", ["start_from_trigger", "end_from_trigger"])
@pytest.mark.parametrize(
    ("kind", "target"), [(GangJobSensor, {"gangs": "train-0"}), (JobSetSensor, {"job_set": "fit"})]
)
def test_sensor_that_wants_no_worker_is_refused_with_the_reason(
    kind: type[Any], target: dict[str, str], name: str
) -> None:
    with pytest.raises(InvalidGangSpec, match=f"{name}: is a parameter of tasks that run a gang, and only a worker"):
        kind(task_id="wait", **target, **{name: True})
