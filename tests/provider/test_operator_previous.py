"""Pods of two attempts of one task never run at the same time: the next attempt waits for those of the earlier one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred
from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.previous_attempt_wait import wait_for_previous_pods
from airflow_provider_gangjobs.ending.deliver import hand_over
from airflow_provider_gangjobs.exceptions import DeadlineExceeded, PreviousAttemptRunning
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec, OnFinish, OnKill, Policies, WaitUntil
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submission import PreviousGangs
from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger, PreviousGangTrigger
from gangjobs_sandbox.resources import JOBS, PODS
from tests import ends
from tests.airflow.polling import wait_for
from tests.guarantees.checkers import one_gang
from tests.provider.submission_cluster import InterleavingClient
from tests.provider.task_runner import OperatorWithTime, run_trigger
from tests.provider.test_trigger_process import connection_json
from tests.provider.virtual_control_plane import NAMESPACE, STOP_S, VirtualControlPlane
from tests.provider.virtual_time import elapsed, in_virtual_time
from tests.submission_requests import task_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.provider.task_runner import Task, TaskMaker

pytestmark = in_virtual_time


# -- Pods of two attempts of one task never run at the same time: the next attempt waits for those of the first ------

KEY = TaskKey("etl", "manual__1", "train")
SPEC = GangSpec(image="i", command=["train"], workers=2)
HANDED_OVER = Policies(OnKill.DELETE, OnFinish.KEEP, WaitUntil.RUNNING)
NO_GANG = GangSpec(image="i", command=["train"], workers=2, gang="off")


class Attempts:
    """The attempts of one task on a control plane."""

    def __init__(self, plane: VirtualControlPlane) -> None:
        self.plane = plane
        self.gangs = GangService(plane.client)

    async def submit(self, claim: str, spec: GangSpec = SPEC, **options: Any) -> Submission:
        return await self.gangs.submit(spec, key=KEY, claim=claim, **options)

    async def run(self, claim: str, spec: GangSpec = SPEC, **options: Any) -> Submission:
        """Submit an attempt, and wait until its ranks run."""
        submission = await self.submit(claim, spec, **options)
        await self.plane.until(lambda: self.plane.running_ranks(submission.ref.name) == 2)
        return submission


async def kill(attempts: Attempts, first: Submission) -> None:
    await ends.kill(attempts.gangs.client, first.ref, "ti-1")


async def killed_on_a_dead_node(attempts: Attempts) -> Submission:
    """Run a first attempt, and kill it. Its pods do not end, because their node is dead."""
    first = await attempts.run("ti-1")
    attempts.plane.dead_nodes.add("node-0")
    await kill(attempts, first)
    return first


async def stop(attempts: Attempts, first: Submission) -> None:
    await attempts.gangs.stop(first.ref, reason="a test")


async def hand_over_and_stop(attempts: Attempts, first: Submission) -> None:
    """Its task succeeds when the ranks run, and a user stops the gang later."""
    await hand_over(attempts.gangs.client, first.ref, "ti-1")
    await stop(attempts, first)


async def delete_in_background(attempts: Attempts, first: Submission) -> None:
    attempts.plane.delete_job(first.ref.name, propagation="Background")


async def nothing(attempts: Attempts, first: Submission) -> None:
    """The next submission replaces the gang itself."""


ENDS: dict[str, tuple[Callable[[Attempts, Submission], Awaitable[None]], dict[str, Any]]] = {
    "killed": (kill, {}),
    "killed, without a gang": (kill, {"spec": NO_GANG}),
    "stopped": (stop, {}),
    "stopped after its task has succeeded": (hand_over_and_stop, {"policies": HANDED_OVER}),
    "deleted by hand in the background": (delete_in_background, {}),
    "replaced": (nothing, {"durable": False}),
}


@pytest.mark.parametrize(("end", "options"), ENDS.values(), ids=ENDS)
async def test_next_attempt_starts_when_the_pods_have_ended(plane, end, options):
    attempts = Attempts(plane)
    first = await attempts.run("ti-1", **options)

    await end(attempts, first)
    second = await attempts.run("ti-2", **options)

    assert (second.ref.uid != first.ref.uid, one_gang(plane.history, 0.0)) == (True, [])
    if end not in (stop, hand_over_and_stop):  # these pods wait for the follower that records their outcomes
        await plane.until(lambda: all(pod["status"]["phase"] == "Running" for pod in plane.registry.list(PODS)))


@pytest.mark.parametrize(("end", "options"), ENDS.values(), ids=ENDS)
async def test_pods_that_do_not_end_are_reported(plane, end, options):
    attempts = Attempts(plane)
    first = await attempts.run("ti-1", **options)
    plane.dead_nodes.add("node-0")
    await end(attempts, first)

    with pytest.raises(PreviousAttemptRunning, match=r"2 pods of gang .* have not ended\. .*node-0") as raised:
        await attempts.submit("ti-2", **options, wait_for_previous_s=20)

    assert (raised.value.ref, raised.value.retryable) == (str(first.ref), True)
    assert [job["metadata"]["uid"] for job in plane.registry.list(JOBS, NAMESPACE)] in ([first.ref.uid], [])


async def test_first_attempt_does_not_look_for_pods(plane):
    request = task_request(KEY, "ti-1", previous=PreviousGangs(is_retry=False))
    submission = await GangService(plane.client).submit(SPEC, request)

    lists = plane.client.statistics().requests["list"]
    assert (submission.attempt, lists) == (0, 1)


async def test_attempt_that_another_submitter_creates_meanwhile_is_adopted(plane):
    attempts = Attempts(plane)
    await killed_on_a_dead_node(attempts)
    waiting = [asyncio.create_task(attempts.submit("ti-2")) for _ in range(2)]
    await asyncio.sleep(30)
    plane.dead_nodes.clear()
    plane.node("node-1")

    one, other = await asyncio.gather(*waiting)

    assert (one.ref, one.attempt) == (other.ref, 1)


async def test_pods_of_a_gang_that_another_submitter_starts_meanwhile_stay_held(plane):
    """The first submitter was stopped after it had listed the Jobs, so the list does not have the gang."""
    attempts = Attempts(plane)
    late = InterleavingClient(plane.client, "list pods", lambda: attempts.run("ti-2"))

    submission = await GangService(late).submit(SPEC, key=KEY, claim="ti-1")  # type: ignore[arg-type]

    assert (late.happened, submission.adopted) == (1, True)
    held = [FINALIZER_HARVEST in pod["metadata"]["finalizers"] for pod in plane.registry.list(PODS)]
    assert held == [True, True]


async def test_gang_of_an_id_waits_for_the_pods_of_the_job_that_was_deleted_by_hand(plane):
    gangs = GangService(plane.client)
    first = await gangs.submit(SPEC, submission_id="nightly")
    await plane.until(lambda: plane.running_ranks(first.ref.name) == 2)

    plane.delete_job(first.ref.name, propagation="Background")
    second = await gangs.submit(SPEC, submission_id="nightly")
    await plane.until(lambda: plane.running_ranks(second.ref.name) == 2)

    assert (second.ref.uid != first.ref.uid, one_gang(plane.history, 0.0)) == (True, [])


async def test_pods_that_end_shortly_before_the_limit_do_not_fail_the_task(
    plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s = 90.0
    monkeypatch.setenv("AIRFLOW_CONN_PREVIOUS", connection_json(plane.config.kube_config))
    first = await killed_on_a_dead_node(Attempts(plane))

    def revive() -> None:
        plane.dead_nodes.clear()
        plane.node("node-1")  # each change lets the nodes look at their pods

    asyncio.get_running_loop().call_later(limit_s - 2 * STOP_S, revive)
    gang = {"namespace": first.ref.namespace, "name": first.ref.name, "uid": first.ref.uid}
    args = TriggerArgs(kubernetes_conn_id="previous", time_limits={"assemble_timeout": limit_s}, **gang)

    event = await wait_for_previous_pods(args, logging.getLogger(__name__))

    assert (event["status"], event["pods"]) == ("succeeded", 0)


@pytest.mark.parametrize(
    ("limits", "reason", "after_s"),
    [
        ({"deadline": 600.0}, "execution_timeout", 600),
        ({"deadline": 600.0, "time_limits": {"assemble_timeout": 90.0}}, "assemble_timeout", 90),
    ],
    ids=["execution", "assembly"],
)
async def test_wait_in_the_triggerer_ends_at_a_limit_by_the_clock_of_the_api_server(
    plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float], reason: str, after_s: int
) -> None:
    """The local clock is months ahead here, so that by the local clock the deadline has passed."""
    monkeypatch.setenv("AIRFLOW_CONN_PREVIOUS", connection_json(plane.config.kube_config))
    first = await killed_on_a_dead_node(Attempts(plane))
    began = elapsed()
    limits = limits | {"deadline": plane.clock.now().timestamp() + limits["deadline"]}
    gang = {"namespace": first.ref.namespace, "name": first.ref.name, "uid": first.ref.uid}
    args = TriggerArgs(kubernetes_conn_id="previous", **gang, **limits)

    event = await wait_for_previous_pods(args, logging.getLogger(__name__))

    assert (event["status"], event["reason"], event["pods"]) == ("timeout", reason, 2)
    assert after_s <= elapsed() - began <= after_s + 2


# -- A task waits, without a worker if it can, until the pods of its earlier attempt have ended ----------------------

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
    assert (event["status"], event["pods"]) == ("succeeded", 0)
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
    left = killed.defer()
    event = {"v": 1, "status": "error", "reason": "ClusterRefused", "gang": str(left.trigger.args.ref), "pods": None}

    with pytest.raises(DeadlineExceeded, match="2 of its pods had not ended"):
        killed.operator().execute_after_previous(killed.context, event)


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
