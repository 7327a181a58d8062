"""`callbacks` are called for each phase, and cannot change the result of the task."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer import gang_wait
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import (
    CALL_S,
    CALLS_AT_ONCE,
    STUCK_CALLS_MAX,
    StuckCalls,
    wait_for_event,
)
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.state.phase import Status
from tests.provider import recorded_callbacks
from tests.provider.recorded_callbacks import CALLS, MAY_END
from tests.provider.task_runner import run_trigger
from tests.provider.virtual_time import elapsed, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.provider.task_runner import TaskMaker

pytestmark = in_virtual_time

MODULE = recorded_callbacks.__name__
WRITE = 'sleep 2; printf 1 > "$GANG_RESULT_PATH"'


@pytest.fixture(autouse=True)
def no_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gang_wait, "stuck_calls", StuckCalls())
    CALLS.clear()
    MAY_END.clear()
    yield
    MAY_END.set()


def phases() -> list[str]:
    return [call["phase"] for call in CALLS]


@pytest.mark.parametrize("kind", [recorded_callbacks.Recorder, f"{MODULE}.AsyncRecorder"], ids=["class", "path"])
def test_worker_calls_a_callback_for_each_phase(task: TaskMaker, kind: Any) -> None:
    train = task(WRITE, callbacks=kind)

    assert train.execute() == 1

    assert ("running" in phases(), phases()[-1]) == (True, "succeeded")
    assert [call["previous"] for call in CALLS] == [None, *phases()[:-1]]
    assert {call["task"]["run_id"] for call in CALLS} == {train.run_id}
    assert CALLS[-1]["message"].startswith("succeeded: 2 ranks succeeded, 0 failed")
    assert (CALLS[-1]["category"], {call["category"] for call in CALLS} >= {"Running"}) == ("Succeeded", True)


def test_time_of_a_phase_is_a_pendulum_time_in_utc(task: TaskMaker) -> None:
    from pendulum import DateTime

    task(WRITE, callbacks=[recorded_callbacks.Recorder]).execute()

    since = CALLS[-1]["since"]
    assert (type(since), since.timezone_name) == (DateTime, "UTC")


def test_trigger_calls_the_callbacks_that_the_deferral_stores(task: TaskMaker) -> None:
    left = task(WRITE, callbacks=recorded_callbacks.Recorder, deferrable=True).defer()
    _, stored = left.trigger.serialize()

    assert run_trigger(left)["status"] == "succeeded"

    assert stored["callbacks"] == [f"{MODULE}.Recorder"]
    assert ("running" in phases(), phases()[-1]) == (True, "succeeded")


def test_errors_of_callbacks_are_logged_and_the_others_are_called(
    task: TaskMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("Faulty", "Exiting", "Recorder")

    assert task(WRITE, callbacks=[f"{MODULE}.{name}" for name in names]).execute() == 1

    log = capsys.readouterr().out
    assert phases()[-1] == "succeeded"
    assert f"Callback {MODULE}.Faulty failed in phase running" in log
    assert f"Callback {MODULE}.Exiting failed in phase succeeded" in log


async def test_callback_that_hangs_delays_no_event_and_is_not_called_again(plane, caplog):
    ref = plane.submit(workers=2)
    args = TriggerArgs(
        kubernetes_conn_id="c", namespace="default", name=ref.name, uid=ref.uid, callbacks=[f"{MODULE}.Hanging"]
    )
    waiting = asyncio.create_task(wait_for_event(args, "ended", logging.getLogger("task"), config=plane.config))
    await plane.until(lambda: plane.running_ranks() == 2)
    await asyncio.sleep(CALL_S + 5)
    ended = elapsed()
    plane.finish_all()
    event = await waiting
    assert (event.status, len(CALLS)) == (Status.SUCCEEDED, 1)
    assert elapsed() - ended < 2
    assert "Callback tests.provider.recorded_callbacks.Hanging takes longer than 60 s" in caplog.text


def hanging_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"callback {MODULE}.Hanging"]


async def wait_with_callbacks(plane: Any, name: str, *callbacks: str) -> asyncio.Task[Any]:
    """Begin to wait for a gang as a triggerer does."""
    ref = plane.submit(name, workers=1, cpu="10m")
    paths = [f"{MODULE}.{callback}" for callback in callbacks]
    args = TriggerArgs(kubernetes_conn_id="c", namespace="default", name=ref.name, uid=ref.uid, callbacks=paths)
    waiting = wait_for_event(args, "ended", logging.getLogger(name), config=plane.config)
    return asyncio.create_task(waiting, name=name)


async def test_callback_whose_calls_hang_is_switched_off_for_the_process_and_the_others_are_called(plane, caplog):
    waiting = [await wait_with_callbacks(plane, f"early-{number}", "Hanging") for number in range(40)]
    await asyncio.sleep(5 * CALL_S)
    threads = len(hanging_threads())
    waiting.append(await wait_with_callbacks(plane, "late", "Hanging", "Recorder"))
    await asyncio.sleep(CALL_S)
    for task in waiting:
        plane.finish_all(task.get_name())
    events = await asyncio.gather(*waiting)

    assert {event.status for event in events} == {Status.SUCCEEDED}
    assert STUCK_CALLS_MAX <= threads <= CALLS_AT_ONCE + STUCK_CALLS_MAX - 1
    assert len(hanging_threads()) == threads
    assert [call["phase"] for call in CALLS if call["gang"].name == "late"][-1] == "succeeded"
    off = [record for record in caplog.records if "is switched off in this process" in record.message]
    assert [record.name for record in off] == [gang_wait.__name__]
    skipped = [record.name for record in caplog.records if "Hanging is not called" in record.message]
    assert skipped.count("late") == 1


async def test_calls_that_are_slow_and_end_do_not_switch_a_callback_off(plane):
    waiting = []
    for number in range(2 * STUCK_CALLS_MAX):
        waiting.append(await wait_with_callbacks(plane, f"gang-{number}", "Hanging"))
        await asyncio.sleep(2 * CALL_S)
        assert len(CALLS) == number + 1
        MAY_END.set()
        for thread in hanging_threads():
            thread.join()
        MAY_END.clear()
    for task in waiting:
        plane.finish_all(task.get_name())
    await asyncio.gather(*waiting)


WRONG: dict[str, tuple[Any, str]] = {
    "no class": (7, "neither a class nor a dotted path"),
    "no module": ("Recorder", "not the dotted path"),
    "a class of the DAG file": (type("Mine", (), {"__module__": "unusual_prefix_0a_dag"}), "Mine of the DAG file"),
}


@pytest.mark.parametrize(("given", "problem"), WRONG.values(), ids=WRONG)
def test_callback_that_no_other_process_can_import_is_refused_when_the_dag_is_parsed(
    task: TaskMaker, given: Any, problem: str
) -> None:
    with pytest.raises(InvalidGangSpec, match=problem):
        task(WRITE, callbacks=given).operator()


@pytest.mark.parametrize("name", ["Missing", "NoCallback"])
def test_callback_that_cannot_be_imported_is_found_before_the_gang_is_submitted(task: TaskMaker, name: str) -> None:
    train = task(WRITE, callbacks=f"{MODULE}.{name}")

    with pytest.raises(AirflowFailException, match=f"{name} cannot be used: AttributeError"):
        train.execute()
    assert train.jobs == []
    assert f"{name} cannot be used" in train.xcoms["gang_refused"]["message"], "the tab shows why"
