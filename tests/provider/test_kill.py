"""A kill deletes the gang of a task that was killed, in the worker and in the triggerer, and no other gang."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import yaml
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred
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
    from tests.provider.task_runner import TaskMaker


# -- A kill deletes the gang of a task that was killed, and no other gang. A move to another triggerer is not a
#    kill ------------------------------------------------------------------------------------------------------------

CLAIM = "this-try"
TI = SimpleNamespace(dag_id="d", run_id="r", task_id="train", map_index=-1, id=CLAIM)


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


@pytest.fixture
def gang(connection: str) -> GangRef:
    """A gang of this try. The gang stays suspended, so no pod runs."""
    spec = GangSpec(image="i", command=["true"], workers=2, manifest=SUSPENDED_MANIFEST)
    return GangJobHook(connection).submit(spec, key=TaskKey("d", uuid4().hex, "train"), claim=CLAIM).ref


def trigger_of(gang: GangRef, connection: str, *, task_instance: Any = TI, **fields: Any) -> GangJobTrigger:
    known = {"namespace": gang.namespace, "name": gang.name, "uid": gang.uid, "claim": CLAIM}
    trigger = GangJobTrigger(kubernetes_conn_id=connection, **{**known, **fields})
    trigger.task_instance = task_instance
    return trigger


def pods_of(embedded: SandboxThread, gang: GangRef) -> list[Any]:
    listed: list[Any] = embedded.call(lambda it: it.registry.list(PODS, label_selector=f"{LABEL_GANG}={gang.name}"))
    return listed


def job_of(embedded: SandboxThread, gang: GangRef) -> Any:
    jobs = embedded.call(lambda it: it.registry.list(JOBS))
    return next(job for job in jobs if job["metadata"]["uid"] == gang.uid)


def is_there(embedded: SandboxThread, gang: GangRef) -> bool:
    uids = embedded.call(lambda it: [job["metadata"]["uid"] for job in it.registry.list(JOBS)])
    return gang.uid in uids


@pytest.mark.parametrize(
    "states",
    [
        pytest.param({"r": {"train": "failed"}}, id="marked as failed"),
        pytest.param({"r": {"train": None}}, id="cleared"),
        pytest.param({"r": {}}, id="task instance deleted"),
        pytest.param({}, id="run deleted"),
    ],
)
async def test_kill_deletes_the_gang(
    gang: GangRef, connection: str, embedded: SandboxThread, set_states: Any, states: Any
) -> None:
    set_states(states)

    await trigger_of(gang, connection).on_kill()

    assert not is_there(embedded, gang)


async def test_gang_that_outlives_its_task_is_kept_after_the_success_of_the_task(
    gang: GangRef, connection: str, embedded: SandboxThread, set_states: Any
) -> None:
    """A triggerer that was stopped may cancel its trigger after the task has succeeded by another triggerer."""
    set_states({"r": {"train": "success"}})

    await trigger_of(gang, connection, outlives_task=True).on_kill()

    assert is_there(embedded, gang)


async def test_pods_of_a_killed_gang_are_not_held(connection: str, embedded: SandboxThread, set_states: Any) -> None:
    """The trigger has ended, so no process would record the outcomes of the pods."""
    spec = GangSpec(image="i", command=["sleep", "600"], workers=2)
    key = TaskKey("d", uuid4().hex, "train")
    gang = GangJobHook(connection).submit(spec, key=key, claim=CLAIM).ref
    await asyncio.to_thread(wait_for, "its pods", lambda: len(pods_of(embedded, gang)) == 2)
    set_states({"r": {"train": "failed"}})

    await trigger_of(gang, connection).on_kill()

    await asyncio.to_thread(wait_for, "the end of its pods", lambda: not pods_of(embedded, gang))


async def test_gang_that_has_ended_is_kept_with_its_outcomes(
    connection: str, embedded: SandboxThread, set_states: Any
) -> None:
    """A triggerer that wakes late does not know that another one has written the event (apache/airflow#73454)."""
    hook, key = GangJobHook(connection), TaskKey("d", uuid4().hex, "train")
    gang = hook.submit(GangSpec(image="i", command=["true"], workers=2), key=key, claim=CLAIM).ref
    await asyncio.to_thread(
        wait_for, "its end", lambda: state_of(read_job(job_of(embedded, gang))) is SubmissionState.SUCCEEDED
    )
    set_states({"r": {"train": "success"}})

    await trigger_of(gang, connection).on_kill()

    assert state_of(read_job(job_of(embedded, gang))) is SubmissionState.SUCCEEDED
    outcomes = await asyncio.to_thread(hook.outcomes, gang)
    assert [outcome.rank for outcome in outcomes] == [0, 1]
    assert not [pod for pod in pods_of(embedded, gang) if FINALIZER_HARVEST in pod["metadata"].get("finalizers", ())]


@pytest.mark.parametrize(
    ("states", "changes"),
    [
        pytest.param({"r": {"train": "deferred"}}, {}, id="another triggerer took over"),
        pytest.param(RuntimeError("no answer"), {}, id="state unknown"),
        pytest.param({"r": {"train": "failed"}}, {"task_instance": None}, id="task unknown"),
        pytest.param({"r": {"train": "failed"}}, {"claim": "former-try"}, id="another try holds the claim"),
        pytest.param({"r": {"train": "failed"}}, {"claim": ""}, id="no claim"),
        pytest.param({"r": {"train": "failed"}}, {"uid": "other"}, id="another Job of this name"),
        pytest.param({"r": {"train": "failed"}}, {"delete_on_kill": False}, id="kept on kill"),
        pytest.param({"r": {"train": "failed"}}, {"kubernetes_conn_id": "nowhere"}, id="cluster unknown"),
    ],
)
async def test_gang_is_left_alone(
    gang: GangRef, connection: str, embedded: SandboxThread, set_states: Any, states: Any, changes: dict[str, Any]
) -> None:
    set_states(states)

    await trigger_of(gang, **{"connection": changes.pop("kubernetes_conn_id", connection), **changes}).on_kill()

    assert is_there(embedded, gang)


async def test_kill_after_the_event_does_nothing(
    gang: GangRef, connection: str, embedded: SandboxThread, set_states: Any
) -> None:
    set_states({"r": {"train": "running"}})
    trigger = trigger_of(gang, connection, deadline=1.0)
    events = [event async for event in trigger.run()]

    await trigger.on_kill()

    assert (len(events), is_there(embedded, gang)) == (1, True)


async def test_kill_continues_when_it_is_cancelled(
    gang: GangRef, connection: str, embedded: SandboxThread, set_states: Any
) -> None:
    """Airflow 3.3 repeats its cancellation every second until the trigger has ended."""
    set_states({"r": {"train": "failed"}})
    killing = asyncio.create_task(trigger_of(gang, connection).on_kill())
    await asyncio.sleep(0)  # the kill has begun, and its next step is the request to Airflow
    killing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killing

    async with asyncio.timeout(TIMEOUT_S):
        while is_there(embedded, gang):  # noqa: ASYNC110 - the cluster is in another thread
            await asyncio.sleep(0.02)


async def test_kill_can_be_repeated(
    gang: GangRef, connection: str, set_states: Any, caplog: pytest.LogCaptureFixture
) -> None:
    set_states({"r": {"train": "failed"}})
    trigger = trigger_of(gang, connection)
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
    spec = GangSpec(image="i", command=["true"], workers=2, manifest=SUSPENDED_MANIFEST)
    run = uuid4().hex

    async def submit(gangs: GangService, number: int) -> GangRef:
        return (await gangs.submit(spec, task_request(TaskKey("d", run, f"train{number}"), CLAIM))).ref

    async with GangJobHook(connection).connect() as service:
        gangs = [await submit(service, number) for number in range(40)]
    set_states({"r": {"train": "failed"}})

    await asyncio.gather(*(trigger_of(gang, "by_plugin").on_kill() for gang in gangs))

    assert [gang for gang in gangs if is_there(embedded, gang)] == []
    assert runs_of(plugin_runs) == 1


# -- What `on_kill` of the operator does to the gang of a task that is killed in its worker --------------------------

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


def test_kill_keeps_the_gang_if_on_kill_is_keep(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True, on_kill="keep")
    operator = train.operator()
    with pytest.raises(TaskDeferred) as left:
        operator.execute(train.next_try())

    operator.on_kill()

    assert len(train.jobs) == 1
    assert left.value.trigger.args.delete_on_kill is False
