"""Gangs that are ended on purpose: by a task that deletes them, by a user, and by other processes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_provider_gangjobs.airflow_api.configuration import installation_id
from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.exceptions import GangDeleted, InvalidGangSpec, SubmissionFailed
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.operators.delete_gang import GangJobDeleteOperator
from airflow_provider_gangjobs.service import GangService
from gangjobs_sandbox.resources import PODS
from tests.airflow.polling import wait_for
from tests.provider.recorded_callbacks import CALLS, Recorder
from tests.provider.task_runner import run_trigger
from tests.provider.virtual_control_plane import Follower, VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time
from tests.submission_requests import id_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.provider.task_runner import TaskMaker

pytestmark = in_virtual_time


# -- A task that deletes gangs, and ends when their pods have ended --------------------------------------------------

SLEEP = GangSpec(image="i", command=["sleep", "600"], workers=2, resources={"cpu": "100m"})
STUBBORN = GangSpec(
    image="i", command=["sh", "-c", "trap '' TERM; sleep 600"], termination_grace_s=600, resources={"cpu": "100m"}
)


@pytest.fixture
def hook(connection: str) -> GangJobHook:
    return GangJobHook(connection)


def delete(hook: GangJobHook, *, run: str = "r", try_number: int = 1, **parameters: Any) -> list[dict[str, str]]:
    operator = GangJobDeleteOperator(task_id="delete", kubernetes_conn_id=hook.kubernetes_conn_id, **parameters)
    return execute(operator, run, try_number)


def execute(operator: GangJobDeleteOperator, run: str = "r", try_number: int = 1) -> list[dict[str, str]]:
    ti: Any = SimpleNamespace(dag_id="d", run_id=run, task_id="delete", map_index=-1, try_number=try_number)
    return operator.execute({"ti": ti})


def reference(ref: GangRef) -> dict[str, str]:
    return {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}


@pytest.mark.parametrize("by", ["name", "reference", "task", "submission"])
def test_gang_is_deleted_with_its_pods_by(by: str, hook: GangJobHook, embedded: Any) -> None:
    run = uuid4().hex
    key = TaskKey("d", run, "train", -1, installation_id())
    ref = (hook.submit(SLEEP, submission_id=run) if by == "submission" else hook.submit(SLEEP, key=key, claim="c")).ref
    wait_for("pods", lambda: pods_of(embedded, ref))
    selection: dict[str, Any] = {
        "name": {"gangs": ref.name, "namespace": ref.namespace},
        "reference": {"gangs": [reference(ref)]},
        "task": {"external_task_id": "train"},
        "submission": {"submission_ids": run},
    }[by]

    deleted = delete(hook, run=run, **selection)

    running = [pod for pod in pods_of(embedded, ref) if pod["status"].get("phase") == "Running"]
    assert (deleted, hook.call(lambda service: service.is_live(ref)), running) == ([reference(ref)], False, [])


def test_gangs_of_thousands_of_map_indexes_are_deleted(hook: GangJobHook) -> None:
    run = uuid4().hex
    keys = [TaskKey("d", run, "train", index, installation_id()) for index in (0, 19_999)]
    refs = [hook.submit(SLEEP, key=key, claim="c").ref for key in keys]

    deleted = delete(hook, run=run, external_task_id="train", external_map_index=range(20_000))

    assert sorted(gang["name"] for gang in deleted) == sorted(ref.name for ref in refs)


def test_gang_that_does_not_exist_fails_the_task(hook: GangJobHook) -> None:
    with pytest.raises(AirflowFailException, match=r"Gang nowhere does not exist in namespace default. Set ignore"):
        delete(hook, gangs="nowhere")


@pytest.mark.parametrize("parameters", [{"ignore_missing": True}, {"try_number": 2}], ids=["by option", "on a retry"])
def test_gang_that_does_not_exist_is_no_error(hook: GangJobHook, parameters: dict[str, Any]) -> None:
    assert delete(hook, gangs=["nowhere"], **parameters) == []


def test_later_gang_of_the_same_name_is_not_deleted(hook: GangJobHook) -> None:
    ref = hook.submit(SLEEP, submission_id=uuid4().hex).ref
    earlier = {"name": ref.name, "namespace": ref.namespace, "uid": str(uuid4())}

    deleted = delete(hook, gangs=earlier, ignore_missing=True)

    assert (deleted, hook.call(lambda service: service.is_live(ref))) == ([], True)
    hook.delete(ref)


def test_pods_that_do_not_end_fail_the_task(hook: GangJobHook, embedded: Any) -> None:
    ref = hook.submit(STUBBORN, submission_id=uuid4().hex).ref
    wait_for("the pod", lambda: [pod["status"].get("phase") for pod in pods_of(embedded, ref)] == ["Running"])

    with pytest.raises(SubmissionFailed, match=r"The deletion of .* 1 pod still runs after 0.5 s"):
        delete(hook, gangs=reference(ref), pods_gone_within=0.5)
    for pod in pods_of(embedded, ref):
        name = pod["metadata"]["name"]
        embedded.call(lambda it, name=name: it.registry.delete(PODS, name, "default", grace_period_s=0))


@pytest.mark.parametrize("deferrable", [True, False])
def test_task_whose_gang_is_deleted_says_who_deleted_it_and_is_not_retried(
    task: TaskMaker, hook: GangJobHook, deferrable: bool
) -> None:
    CALLS.clear()
    train = task("sleep 600", deferrable=deferrable, callbacks=Recorder)
    context = train.next_try()

    def wait_for_the_gang() -> None:
        if deferrable:
            left = train.defer(context)
            train.operator().resume_execution(left.method_name, {"event": run_trigger(left)}, context)
        else:
            train.execute(context)

    with ThreadPoolExecutor(1) as worker:
        waiting = worker.submit(wait_for_the_gang)
        wait_for("the follower to see that the gang runs", lambda: "running" in [call["phase"] for call in CALLS])
        delete(hook, run=train.run_id, external_task_id="train")
        with pytest.raises(AirflowFailException) as failed:
            waiting.result()

    assert isinstance(failed.value.__cause__, GangDeleted)
    assert f"was deleted by task d.delete of run {train.run_id}" in str(failed.value)
    assert "was deleted on purpose while it was running" in str(failed.value)


def test_template_that_rendered_to_no_gang_is_not_retried(connection: str) -> None:
    operator = GangJobDeleteOperator(task_id="delete", gangs="{{ name }}", kubernetes_conn_id=connection)
    operator.gangs = "None"
    with pytest.raises(AirflowFailException, match="the text of None"):
        execute(operator)


@pytest.mark.parametrize("name", ["external_task_id", "external_dag_id", "external_run_id"])
@pytest.mark.parametrize(("rendered", "problem"), [("None", "the text of None"), (5, "is 5. Give the id")])
def test_id_that_a_template_has_made_of_another_value_is_not_retried(
    connection: str, name: str, rendered: Any, problem: str
) -> None:
    operator = GangJobDeleteOperator(
        task_id="delete", external_task_id="a", ignore_missing=True, kubernetes_conn_id=connection
    )
    setattr(operator, name, rendered)
    with pytest.raises(AirflowFailException, match=f"{name}: .*{problem}"):
        execute(operator)


def test_end_of_the_pods_is_awaited_without_a_limit(hook: GangJobHook) -> None:
    ref = hook.submit(SLEEP, submission_id=uuid4().hex).ref

    assert delete(hook, gangs=reference(ref), pods_gone_within=None) == [reference(ref)]


def pods_of(embedded: Any, ref: GangRef) -> list[Any]:
    found: list[Any] = embedded.call(
        lambda it: it.registry.list(PODS, label_selector=f"gangjobs.airflow/gang={ref.name}")
    )
    return found


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "gangs: are all missing. Give exactly one of gangs, submission_ids, external_task_id"),
        ({"gangs": 3}, r"gangs\[0\]: is 3. Give the name of a Job"),
        *(
            ({"external_task_id": "a", "external_map_index": index}, "external_map_index: is .*, not a whole number")
            for index in ("x", 1.7, True, -2, [0, 1.5], "9" * 5000)
        ),
        ({"gangs": "a", "external_dag_id": "b"}, "external_dag_id: is given without external_task_id.* Leave it out"),
        ({"submission_ids": "a", "external_run_id": "{{ run_id }}"}, "external_run_id: is given without external_task"),
        ({"gangs": "a", "external_map_index": 0}, "external_map_index: is given without external_task_id"),
        ({"gangs": {"name": "a", "namespace": "../x"}}, r"gangs\[0\].namespace: '../x' may only have"),
        ({"gangs": [{"name": "a", "namespace": 5}]}, r"gangs\[0\].namespace: is 5, which is not text"),
        ({"gangs": "a", "pods_gone_within": 0}, "pods_gone_within: is 0, not a positive duration"),
        ({"gangs": "a", "ignore_missing": "no"}, "ignore_missing: is 'no'. Give True or False"),
    ],
)
def test_parameter_that_is_wrong_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGangSpec, match=message):
        GangJobDeleteOperator(task_id="delete", **parameters)


# -- A trigger has one event if another process or a user ends the gang in any way -----------------------------------

LABEL_UID = "batch.kubernetes.io/controller-uid"
KEY = TaskKey("etl", "manual__1", "train")
WITHIN_S = 120.0

ENDS: dict[str, tuple[Callable[[GangService, Submission], Awaitable[object]], set[Status], str]] = {
    "stopped": (lambda gangs, gang: gangs.stop(gang.ref, reason="by hand"), {Status.FAILED}, "by hand"),
    "deleted": (lambda gangs, gang: gangs.delete(gang.ref), {Status.DELETED}, ""),
    "its submission deleted": (
        lambda gangs, gang: gangs.delete_submission(gang.submission_id),
        {Status.FAILED, Status.DELETED},
        "",
    ),
    "its submission deleted with its Job": (
        lambda gangs, gang: gangs.delete_submission(gang.submission_id, job=True),
        {Status.FAILED, Status.DELETED},
        "",
    ),
}


@pytest.mark.parametrize("ran", [True, False], ids=["running", "just submitted"])
@pytest.mark.parametrize(("end", "statuses", "reason"), ENDS.values(), ids=ENDS)
async def test_follower_of_a_gang_that_somebody_ends_returns(
    plane: VirtualControlPlane, end: Any, statuses: set[Status], reason: str, ran: bool
):
    gangs = GangService(plane.client)
    gang = await gangs.submit(GangSpec(image="i", command=["train"], workers=3), key=KEY, claim="ti-1")
    following = Follower(plane, gang.ref)
    if ran:
        await plane.until(lambda: plane.running_ranks(gang.ref.name) == 3)

    await end(gangs, gang)
    event = await following.event(within_s=WITHIN_S)

    assert event.status in statuses
    assert event.status is not Status.FAILED or event.reason == "Stopped"
    assert reason in event.message
    await plane.until(lambda: not plane.held(gang.ref.name), within_s=WITHIN_S)


async def test_submission_is_deleted_although_a_deleted_job_of_its_name_has_left_held_pods(plane):
    gangs, spec = GangService(plane.client), GangSpec(image="i", command=["train"], workers=2)
    first = await gangs.submit(spec, submission_id="nightly")
    await plane.until(lambda: plane.running_ranks(first.ref.name) == 2)
    plane.delete_job(first.ref.name)
    await asyncio.sleep(60)  # its pods end
    second = await gangs.submit(spec, id_request("nightly"))
    assert second.ref.name == first.ref.name

    await gangs.delete_submission("nightly", job=True)

    assert plane.job(second.ref.name) is None
    assert {pod["metadata"]["labels"][LABEL_UID] for pod in plane.held(first.ref.name)} == {first.ref.uid}
