"""A kill deletes the gang of a task that was killed, in the worker and in the triggerer, and no other gang."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import yaml
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult

from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST, LABEL_GANG
from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger
from gangjobs_sandbox.resources import JOBS, PODS
from tests.airflow.polling import wait_for
from tests.manifests import SUSPENDED_MANIFEST
from tests.submission_requests import task_request
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_gangjobs.service import GangService
    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.task_runner import Task, TaskMaker


# -- A kill deletes the gang of a task that was killed, and no other gang. A move to another triggerer is not a
#    kill ------------------------------------------------------------------------------------------------------------

CLAIM = "this-try"
FAILED = {"r": {"train": "failed"}}
TI = SimpleNamespace(dag_id="d", run_id="r", task_id="train", map_index=-1, id=CLAIM)


SUSPENDED = GangSpec(image="i", command=["true"], workers=2, manifest=SUSPENDED_MANIFEST)


class Supervisor:
    """Answers a trigger's requests to Airflow for the states of its task."""

    def __init__(self, states: dict[str, Any] | Exception) -> None:
        self.states = states
        self.answer = asyncio.Event()

    def send(self, msg: Any) -> Any:
        assert isinstance(msg, GetTaskStates)
        if isinstance(self.states, Exception):
            raise self.states
        return TaskStatesResult(task_states=self.states)


@pytest.fixture
def set_states(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Set what Airflow answers about the task."""

    def set_answer(states: Any) -> None:
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(states), raising=False)

    return set_answer


class GangOfTry:
    """A gang of this try, in the embedded cluster."""

    def __init__(self, embedded: SandboxThread, connection: str, spec: GangSpec) -> None:
        self._list = lambda resource, **options: embedded.call(lambda it: it.registry.list(resource, **options))
        self.connection = connection
        self.hook = GangJobHook(connection)
        self.ref = self.hook.submit(spec, key=TaskKey("d", uuid4().hex, "train"), claim=CLAIM).ref

    def trigger(self, **fields: Any) -> GangJobTrigger:
        return trigger_of(self.ref, **{"connection": self.connection, **fields})

    async def kill(self, **fields: Any) -> None:
        await self.trigger(**fields).on_kill()

    @property
    def pods(self) -> list[Any]:
        found: list[Any] = self._list(PODS, label_selector=f"{LABEL_GANG}={self.ref.name}")
        return found

    @property
    def is_there(self) -> bool:
        return self.ref.uid in [job["metadata"]["uid"] for job in self._list(JOBS)]

    @property
    def has_succeeded(self) -> bool:
        (job,) = (job for job in self._list(JOBS) if job["metadata"]["uid"] == self.ref.uid)
        return state_of(read_job(job)) is SubmissionState.SUCCEEDED


@pytest.fixture
def submit(embedded: SandboxThread, connection: str) -> Callable[[GangSpec], GangOfTry]:
    return partial(GangOfTry, embedded, connection)


@pytest.fixture
def gang(submit: Any) -> GangOfTry:
    """A gang that stays suspended, so that no pod runs."""
    made: GangOfTry = submit(SUSPENDED)
    return made


def trigger_of(gang: GangRef, connection: str, *, task_instance: Any = TI, **fields: Any) -> GangJobTrigger:
    known = {"namespace": gang.namespace, "name": gang.name, "uid": gang.uid, "claim": CLAIM}
    trigger = GangJobTrigger(kubernetes_conn_id=connection, **{**known, **fields})
    trigger.task_instance = task_instance
    return trigger


@pytest.mark.parametrize(
    "states",
    [
        pytest.param({"r": {"train": "failed"}}, id="marked as failed"),
        pytest.param({"r": {"train": None}}, id="cleared"),
        pytest.param({"r": {}}, id="task instance deleted"),
        pytest.param({}, id="run deleted"),
    ],
)
async def test_kill_deletes_the_gang(gang: GangOfTry, set_states: Any, states: Any) -> None:
    set_states(states)
    await gang.kill()
    assert not gang.is_there


async def test_pods_of_a_killed_gang_are_not_held(submit: Any, set_states: Any) -> None:
    """The trigger has ended, so no process would record the outcomes of the pods."""
    gang = submit(GangSpec(image="i", command=["sleep", "600"], workers=2))
    await asyncio.to_thread(wait_for, "its pods", lambda: len(gang.pods) == 2)
    set_states(FAILED)

    await gang.kill()

    await asyncio.to_thread(wait_for, "the end of its pods", lambda: not gang.pods)


async def test_gang_that_has_ended_is_kept_with_its_outcomes(submit: Any, set_states: Any) -> None:
    """A triggerer that wakes late does not know that another one has written the event (apache/airflow#73454)."""
    gang = submit(GangSpec(image="i", command=["true"], workers=2))
    await asyncio.to_thread(wait_for, "its end", lambda: gang.has_succeeded)
    set_states({"r": {"train": "success"}})

    await gang.kill()

    assert gang.has_succeeded
    outcomes = await asyncio.to_thread(gang.hook.outcomes, gang.ref)
    assert [outcome.rank for outcome in outcomes] == [0, 1]
    assert not [pod for pod in gang.pods if FINALIZER_HARVEST in pod["metadata"].get("finalizers", ())]


LEFT_ALONE: dict[str, Any] = {
    "another triggerer took over": ({"r": {"train": "deferred"}}, {}),
    # A triggerer that was stopped may cancel its trigger after another one has ended the task with success.
    "it outlives its task, which succeeded": ({"r": {"train": "success"}}, {"outlives_task": True}),
    "state unknown": (RuntimeError("no answer"), {}),
    "task unknown": (FAILED, {"task_instance": None}),
    "another try holds the claim": (FAILED, {"claim": "former-try"}),
    "no claim": (FAILED, {"claim": ""}),
    "another Job of this name": (FAILED, {"uid": "other"}),
    "kept on kill": (FAILED, {"delete_on_kill": False}),
    "cluster unknown": (FAILED, {"connection": "nowhere"}),
}


@pytest.mark.parametrize(("states", "changes"), LEFT_ALONE.values(), ids=LEFT_ALONE)
async def test_gang_is_left_alone(gang: GangOfTry, set_states: Any, states: Any, changes: dict[str, Any]) -> None:
    set_states(states)
    await gang.kill(**changes)
    assert gang.is_there


async def test_kill_after_the_event_does_nothing(gang: GangOfTry, set_states: Any) -> None:
    set_states({"r": {"train": "running"}})
    trigger = gang.trigger(deadline=1.0)
    events = [event async for event in trigger.run()]

    await trigger.on_kill()

    assert (len(events), gang.is_there) == (1, True)


async def test_kill_continues_when_it_is_cancelled(gang: GangOfTry, set_states: Any) -> None:
    """Airflow 3.3 repeats its cancellation every second until the trigger has ended."""
    set_states(FAILED)
    killing = asyncio.create_task(gang.kill())
    await asyncio.sleep(0)  # the kill has begun, and its next step is the request to Airflow
    killing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killing

    async with asyncio.timeout(TIMEOUT_S):
        while gang.is_there:  # noqa: ASYNC110 - the cluster is in another thread
            await asyncio.sleep(0.02)


async def test_kill_can_be_repeated(gang: GangOfTry, set_states: Any, caplog: pytest.LogCaptureFixture) -> None:
    set_states(FAILED)
    trigger = gang.trigger()
    await trigger.on_kill()

    await trigger.on_kill()

    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
def plugin_runs(embedded: SandboxThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A connection `by_plugin` whose credentials come from an exec plugin. The file has a line for each of its runs."""
    kubeconfig = yaml.safe_load(embedded.kubeconfig_path.read_text())
    runs, plugin = tmp_path / "runs", tmp_path / "plugin.sh"
    status = {"token": kubeconfig["users"][0]["user"]["token"]}
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    plugin.write_text(f"echo run >> {runs}\necho '{json.dumps(credential)}'\n")
    exec_config = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": [str(plugin)],
        "interactiveMode": "Never",
    }
    kubeconfig["users"][0]["user"] = {"exec": exec_config}
    described = {"conn_type": "kubernetes", "extra": {"kube_config": json.dumps(kubeconfig)}}
    monkeypatch.setenv("AIRFLOW_CONN_BY_PLUGIN", json.dumps(described))
    return runs


def runs_of(plugin_runs: Path) -> int:
    return len(plugin_runs.read_text().splitlines())


async def test_kills_at_once_share_one_client(
    connection: str, embedded: SandboxThread, set_states: Any, plugin_runs: Path
) -> None:
    run = uuid4().hex

    async def submit(gangs: GangService, number: int) -> GangRef:
        return (await gangs.submit(SUSPENDED, task_request(TaskKey("d", run, f"train{number}"), CLAIM))).ref

    async with GangJobHook(connection).connect() as service:
        gangs = [await submit(service, number) for number in range(40)]
    set_states(FAILED)

    await asyncio.gather(*(trigger_of(gang, "by_plugin").on_kill() for gang in gangs))

    left = embedded.call(lambda it: [job["metadata"]["uid"] for job in it.registry.list(JOBS)])
    assert not {gang.uid for gang in gangs} & set(left)
    assert runs_of(plugin_runs) == 1


# -- What `on_kill` of the operator does to the gang of a task that is killed in its worker --------------------------

ENDLESS = "sleep 600"


@pytest.fixture
def train(task: TaskMaker) -> Task:
    return task(ENDLESS, deferrable=True)


def test_kill_in_the_worker_deletes_the_gang(train: Task) -> None:
    train.defer()

    train.last_operator.on_kill()

    wait_for("the end of its Job and of its pods", lambda: not train.pods and not train.jobs)


def test_kill_before_the_submission_does_nothing(train: Task) -> None:
    train.operator().on_kill()

    assert train.jobs == []


def test_kill_leaves_a_gang_that_another_try_has_taken(train: Task) -> None:
    train.defer()
    late = train.last_operator
    train.defer()

    late.on_kill()

    assert len(train.jobs) == 1


@pytest.mark.parametrize("state", ["deferred", "up_for_retry", "failed", "success"])
def test_signal_after_the_report_of_the_try_is_no_kill(train: Task, state: str) -> None:
    """Airflow ends a process whose callbacks take too long, or whose worker is shut down, by the same signal."""
    train.defer()
    train.context["ti"].state = state  # as `task_runner.run` of the Task SDK does after its report

    train.last_operator.on_kill()

    assert len(train.jobs) == 1
    assert "deletionTimestamp" not in train.jobs[0]["metadata"]


def test_kill_keeps_the_gang_if_on_kill_is_keep(train: Task) -> None:
    train.parameters["on_kill"] = "keep"
    left = train.defer()

    train.last_operator.on_kill()

    assert len(train.jobs) == 1
    assert left.trigger.args.delete_on_kill is False
