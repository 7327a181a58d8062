"""A triggerer that has a gang in a namespace ends the gangs there whose tasks ended while no triggerer had them."""

from __future__ import annotations

import asyncio
import json
import os
from configparser import ConfigParser
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult

from airflow_provider_gangjobs.attempt.metrics import collect_sample
from airflow_provider_gangjobs.attempt.triggerer.endings import sweep_grace
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import CONNECTION_READ_FOR_S
from airflow_provider_gangjobs.cluster.informer import Notification, informers
from airflow_provider_gangjobs.ending.sweep import (
    ANSWER_LOOKS,
    LINGER_S,
    LOOK_EVERY_S,
    LOOKS_PER_CONNECTION,
    sweep_once,
)
from airflow_provider_gangjobs.gang.awaited import GangSelection
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.state.ownership import ASK_AFTER, CONFIRM_AFTER, GRACE, SweepAction
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.well_known import (
    LABEL_INSTALLATION,
)
from airflow_provider_gangjobs.service import follow
from airflow_provider_gangjobs.tracking.gang_watch import SelectionWatch
from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger
from airflow_provider_gangjobs.triggers.sensor import GangSelectionTrigger
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.annotations import claimed, policies, recorded
from tests.guarantees.checkers import GRACE_S, SWEEP_GRACE_S
from tests.provider.virtual_control_plane import NAMESPACE
from tests.provider.virtual_time import cancel, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.provider.virtual_control_plane import VirtualControlPlane

pytestmark = in_virtual_time
ENDED_GANGS = 30
OBJECTS_OF_A_GANG = 4
"""A Job, two pods, and a PodGroup."""
WITHIN_S = GRACE.total_seconds() + 4 * LOOK_EVERY_S
LIVE_WITHIN_S = ASK_AFTER.total_seconds() + CONFIRM_AFTER.total_seconds() + 2 * LOOK_EVERY_S
"""How long a sweep takes to end a live gang whose task has ended."""
LOST_WITHIN_S = (ANSWER_LOOKS + 2) * LOOK_EVERY_S + CONFIRM_AFTER.total_seconds()
"""How long it takes if the task ends after Airflow was asked about it."""


class Airflow:
    """Answers for the states of tasks, by task id."""

    def __init__(self, **states: str) -> None:
        self.states = states
        self.asked = 0

    def send(self, msg: Any) -> Any:
        assert isinstance(msg, GetTaskStates)
        self.asked += 1
        (run,) = msg.run_ids or []
        return TaskStatesResult(task_states={run: {task: self.states[task] for task in msg.task_ids or []}})


@pytest.fixture
def airflow(plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    answers = Airflow(followed="deferred", orphan="failed", waiting="deferred")
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", answers, raising=False)
    described = {"conn_type": "kubernetes", "extra": {"kube_config": dict(plane.config.kube_config or {})}}
    monkeypatch.setenv("AIRFLOW_CONN_PLANE", json.dumps(described))
    return answers


def submit(plane: VirtualControlPlane, name: str, installation: str = "prod") -> GangRef:
    ref = plane.submit(name, workers=2)
    annotations = recorded(task=TaskKey("d", "r", name)) | claimed(name, policies=policies(on_finish="keep"))
    metadata = {"annotations": annotations, "labels": {LABEL_INSTALLATION: installation}}
    plane.registry.patch(JOBS, name, NAMESPACE, {"metadata": metadata}, PatchKind.MERGE)
    return ref


@asynccontextmanager
async def triggerer(*refs: GangRef) -> AsyncIterator[None]:
    """A triggerer with a trigger for each gang."""
    tasks = [asyncio.create_task(run(ref)) for ref in refs]
    try:
        yield
    finally:
        await cancel(*tasks)


async def run(ref: GangRef) -> None:
    await first_event(ref)


async def first_event(ref: GangRef) -> Any:
    known = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid, "claim": ref.name}
    trigger = GangJobTrigger(kubernetes_conn_id="plane", installation="prod", **known)
    trigger.task_instance = SimpleNamespace(id="ti", dag_id="d", run_id="r", task_id=ref.name, map_index=-1)
    async for event in trigger.run():
        return event.payload
    raise AssertionError("the trigger has ended without an event")


async def test_gang_whose_task_ended_without_a_triggerer_is_swept_within_the_grace(plane, airflow):
    followed, _ = submit(plane, "followed"), submit(plane, "orphan")
    async with triggerer(followed):
        await plane.until(lambda: plane.job("orphan") is None, within_s=LIVE_WITHIN_S)
        await plane.until(lambda: plane.pods("orphan") == [])
        assert (sweep_counters()["sweep.ended"], sweep_counters()["sweep.failures"]) == (1, 0)
    assert plane.running_ranks("followed") == 2


@pytest.mark.parametrize(
    ("look_every_s", "grace_s", "within_s"),
    [(LOOK_EVERY_S, GRACE.total_seconds(), LOST_WITHIN_S), (SWEEP_GRACE_S, SWEEP_GRACE_S, GRACE_S)],
    ids=["default", "short grace"],
)
async def test_gang_of_a_triggerer_that_was_lost_is_swept_after_its_task_has_ended(
    plane, airflow, monkeypatch: pytest.MonkeyPatch, look_every_s: float, grace_s: float, within_s: float
):
    monkeypatch.setenv("AIRFLOW__GANGJOBS__SWEEP_GRACE", f"{grace_s:g}")
    airflow.states["orphan"] = "deferred"
    followed, _ = submit(plane, "followed"), submit(plane, "orphan")
    async with triggerer(followed):
        await asyncio.sleep(3 * ANSWER_LOOKS * look_every_s)
        assert airflow.asked > 1
        assert plane.job("orphan") is not None
        airflow.states["orphan"] = "failed"
        await plane.until(lambda: plane.job("orphan") is None, within_s=within_s)


async def test_gang_that_is_submitted_after_the_last_followed_gang_is_swept(plane, airflow):
    """A worker that was stopped wakes up and submits the gang of a task that has ended."""
    async with triggerer(submit(plane, "followed")):
        await asyncio.sleep(2 * LOOK_EVERY_S)
    await asyncio.sleep(LINGER_S - GRACE.total_seconds())

    submit(plane, "orphan")

    await plane.until(lambda: plane.job("orphan") is None, within_s=WITHIN_S)
    await plane.until(lambda: plane.pods("orphan") == [])


async def test_sweeper_of_a_namespace_without_gangs_ends(plane, airflow):
    async with triggerer(submit(plane, "followed")):
        await asyncio.sleep(2 * LOOK_EVERY_S)
    plane.registry.delete(JOBS, "followed", NAMESPACE)

    await asyncio.sleep(LINGER_S + 2 * WITHIN_S)

    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("sweeper of ")]


@pytest.mark.parametrize(
    "other", [("waiting", "prod"), ("orphan", "staging")], ids=["still deferred", "of another installation"]
)
async def test_gang_that_is_deferred_or_of_another_installation_runs_on(plane, airflow, other: tuple[str, str]):
    followed, _ = submit(plane, "followed"), submit(plane, *other)
    async with triggerer(followed):
        await asyncio.sleep(WITHIN_S)
    assert [plane.running_ranks(name) for name in ("followed", other[0])] == [2, 2]


async def test_pods_of_a_gang_that_ended_without_a_triggerer_are_recorded_and_released(plane, airflow):
    followed, _ = submit(plane, "followed"), submit(plane, "orphan")
    await plane.until(lambda: plane.running_ranks("orphan") == 2)
    async with triggerer(followed):
        plane.finish_all("orphan")
        await plane.until(lambda: not plane.held("orphan"), within_s=WITHIN_S)
        await asyncio.sleep(LOOK_EVERY_S)
        assert sweep_counters()["sweep.released"] == 1
    assert len(plane.ledger("orphan")) == 2
    assert plane.job("orphan") is not None


async def test_triggerer_forgets_gangs_that_have_ended_and_follows_them_correctly_later(plane, airflow):
    followed, ended = submit(plane, "followed"), [submit(plane, f"ended-{number}") for number in range(ENDED_GANGS)]
    airflow.states |= {ref.name: "failed" for ref in ended}
    async with triggerer(followed, *ended):
        await plane.until(lambda: all(plane.running_ranks(ref.name) == 2 for ref in ended))
        for ref in ended:
            plane.finish_all(ref.name)
        await plane.until(lambda: not any(plane.held(ref.name) for ref in ended))
        assert objects() >= 3 * ENDED_GANGS

        await asyncio.sleep(WITHIN_S)
        assert objects() <= OBJECTS_OF_A_GANG
        assert sweep_counters()["sweep.forgotten"] == ENDED_GANGS

        event = await first_event(ended[0])
        assert (event["status"], event["counts"]["succeeded"]) == ("succeeded", 2)


async def test_sensor_finds_a_gang_by_its_name_that_the_triggerer_has_forgotten(plane, airflow):
    followed, ended = submit(plane, "followed"), submit(plane, "ended")
    airflow.states["ended"] = "failed"
    async with triggerer(followed, ended):
        await plane.until(lambda: plane.running_ranks("ended") == 2)
        plane.finish_all("ended")
        await plane.until(lambda: not plane.held("ended"))
        await asyncio.sleep(WITHIN_S)
        assert sweep_counters()["sweep.forgotten"] == 1

        sensor = GangSelectionTrigger(kubernetes_conn_id="plane", namespace=NAMESPACE, names={"ended": ""})
        async with asyncio.timeout(WITHIN_S):
            payload = (await anext(sensor.run())).payload
        assert (payload["status"], [gang["uid"] for gang in payload["gangs"]]) == ("met", [ended.uid])


async def test_sensor_awaits_the_next_gang_of_a_name_if_the_forgotten_one_was_deleted(plane, airflow):
    followed, ended = submit(plane, "followed"), submit(plane, "ended")
    async with triggerer(followed, ended):
        await plane.until(lambda: plane.running_ranks("ended") == 2)
        plane.finish("ended", 0, exit_code=3)
        await plane.until(lambda: not plane.held("ended"))
        await asyncio.sleep(WITHIN_S)
        selection = GangSelection(namespace=NAMESPACE, names={"ended": "", "absent": ""})
        async with informers().client(plane.config) as client:
            watch = SelectionWatch(client, selection, Notification())
            await watch.sync()
            assert {name: gang.ref for name, gang in watch.find().items()} == {"ended": ended, "absent": None}

            plane.registry.delete(JOBS, "ended", NAMESPACE)
            await asyncio.sleep(1)
            assert watch.find()["ended"].ref is None

            again = plane.submit("ended", workers=2, gang=False)
            await plane.until(lambda: watch.find()["ended"].ref == again)
            watch.close()


async def test_mark_of_a_delivery_that_a_worker_did_not_write_is_written_and_the_gang_is_forgotten(plane, airflow):
    airflow.states |= {"accepted": "success", "completing": "running"}
    followed, *ended = (submit(plane, name) for name in ("followed", "accepted", "completing"))
    async with triggerer(followed, *ended):
        await plane.until(lambda: all(plane.running_ranks(ref.name) == 2 for ref in ended))
        for ref in ended:
            plane.finish_all(ref.name)
        await plane.until(lambda: not any(plane.held(ref.name) for ref in ended))

        await plane.until(lambda: read_job(plane.job("accepted")).is_delivered, within_s=WITHIN_S)
        await asyncio.sleep(2 * LOOK_EVERY_S)
        assert not read_job(plane.job("completing")).is_delivered
        assert (sweep_counters()["sweep.delivered"], sweep_counters()["sweep.forgotten"]) == (1, 1)

        airflow.states["completing"] = "success"
        await plane.until(
            lambda: read_job(plane.job("completing")).is_delivered, within_s=(ANSWER_LOOKS + 2) * LOOK_EVERY_S
        )


def sweep_counters() -> dict[str, float]:
    """The metrics of sweeps."""
    return {key.name: count for key, count in collect_sample(1).counters.items() if key.name.startswith("sweep.")}


def objects() -> int:
    """How many objects the informers of the triggerer store."""
    return sum(one.objects for one in informers().statistics().values())


@pytest.mark.parametrize("gangs", [1, 20])
async def test_gangs_that_wait_cost_no_request(plane, airflow, gangs: int):
    refs = [submit(plane, f"gang-{number}") for number in range(gangs)]
    async with triggerer(*refs):
        await asyncio.sleep(LOOKS_PER_CONNECTION * LOOK_EVERY_S / 2)
        before = requests()
        await asyncio.sleep(2 * LOOKS_PER_CONNECTION * LOOK_EVERY_S)
        assert (requests() - before, airflow.asked) == (0, 0)


async def test_log_says_that_nothing_is_swept_with_an_invalid_configuration(plane, airflow, monkeypatch, caplog):
    monkeypatch.setenv("AIRFLOW__GANGJOBS__SWEEP_GRACE", "15m")
    async with triggerer(submit(plane, "followed")):
        await asyncio.sleep(2 * LOOK_EVERY_S)

    assert f"Namespace {NAMESPACE} is not swept any more until its next gang: AirflowConfigException" in caplog.text


async def test_namespace_is_swept_on_after_the_connection_could_not_be_read(plane, airflow, monkeypatch):
    followed, connection = submit(plane, "followed"), os.environ["AIRFLOW_CONN_PLANE"]
    async with triggerer(followed):
        await asyncio.sleep(LOOK_EVERY_S)
        monkeypatch.delenv("AIRFLOW_CONN_PLANE")
        await asyncio.sleep(LOOKS_PER_CONNECTION * LOOK_EVERY_S + 2 * CONNECTION_READ_FOR_S)
        monkeypatch.setenv("AIRFLOW_CONN_PLANE", connection)
        submit(plane, "orphan")
        await plane.until(lambda: plane.job("orphan") is None, within_s=CONNECTION_READ_FOR_S + LIVE_WITHIN_S)


def requests() -> int:
    """Requests of the triggerer, without watches, which the server ends after some minutes."""
    statistics = informers().client_statistics().values()
    return sum(count for client in statistics for verb, count in client.requests.items() if verb != "watch")


@pytest.mark.parametrize(("options", "grace"), [({}, GRACE), ({"sweep_grace": "60"}, timedelta(minutes=1))])
async def test_grace_is_that_of_the_configuration(options: dict[str, str], grace: timedelta):
    config = ConfigParser()
    config.read_dict({"gangjobs": options})
    assert sweep_grace(config) == grace


# -- `gangjobs tidy` without Airflow releases pods without a follower, and ends no live gang -------------------------

HOUR = timedelta(hours=1)
HOUR_S = HOUR.total_seconds() + 60


async def sweep(plane: VirtualControlPlane, **options: Any) -> dict[str, SweepAction]:
    swept = await sweep_once(
        plane.client,
        NAMESPACE,
        follow=lambda ref: follow(plane.config, ref),
        **{"older_than": HOUR, **options},
    )
    assert [gang.error for gang in swept if gang.error] == []
    assert all(gang.decision.reason for gang in swept)
    return {gang.ref.name: gang.decision.action for gang in swept}


async def vanish(plane: VirtualControlPlane, name: str) -> None:
    submit(plane, name)
    await plane.until(lambda: plane.running_ranks(name) == 2)
    plane.delete_job(name)


async def test_pods_of_a_job_that_is_gone_are_released_after_the_age(plane):
    await vanish(plane, "gone")
    await asyncio.sleep(HOUR_S / 2)
    assert await sweep(plane) == {}
    await asyncio.sleep(HOUR_S / 2)
    assert await sweep(plane) == {"gone": SweepAction.RELEASE}
    assert plane.pods("gone") == []


@pytest.mark.parametrize("submits", [submit, lambda plane, name: plane.submit(name, workers=2)], ids=["task", "Python"])
async def test_pods_of_a_gang_that_is_over_are_recorded_and_released(plane, submits):
    submits(plane, "over")
    await plane.until(lambda: plane.running_ranks("over") == 2)
    plane.finish_all("over")
    await asyncio.sleep(HOUR_S)
    assert await sweep(plane) == {"over": SweepAction.RELEASE}
    assert (plane.held("over"), len(plane.ledger("over"))) == ([], 2)


async def test_live_gang_stays_however_old_it_is(plane):
    submit(plane, "live")
    await asyncio.sleep(24 * HOUR_S)
    assert await sweep(plane) == {}
    assert plane.running_ranks("live") == 2


async def test_dry_run_decides_about_each_gang_and_changes_nothing(plane):
    for name in ("live", "over"):
        submit(plane, name)
    await vanish(plane, "gone")
    plane.finish_all("over")
    await asyncio.sleep(HOUR_S)
    changes = len(plane.history.changes)
    assert await sweep(plane, dry_run=True) == {
        "live": SweepAction.LEAVE,
        "over": SweepAction.RELEASE,
        "gone": SweepAction.RELEASE,
    }
    assert len(plane.history.changes) == changes
