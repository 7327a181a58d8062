"""A trigger retries after faults of its own process, because the gang may still run."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_gangjobs.airflow_api.connection import READ_PAUSE_CAP_S
from airflow_provider_gangjobs.attempt.deferral import CONNECTION_MISSING, TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import (
    CLOCK_WITHIN_S,
    CONNECTION_READ_FOR_S,
    ERROR_PAUSE_BASE_S,
    ERROR_PAUSE_CAP_S,
    PROGRESS_S,
    RESTARTS_MAX,
    pause_after_errors_s,
    wait_for_event,
)
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import ERRORS_MAX, SelectionArgs, wait_for_selected
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.jobs.requests import REFUSED_FOR_S
from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger
from tests.provider.virtual_control_plane import VirtualControlPlane
from tests.provider.virtual_time import elapsed, in_virtual_time

CONNECTION = "AIRFLOW_CONN_RETRIES"


class BrokenLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose `info` raises an unexpected exception the given number of times."""

    def __init__(self, times: int) -> None:
        super().__init__(logging.getLogger("broken"))
        self.failures_left = times

    def info(self, *args: Any, **kwargs: Any) -> None:
        if self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("s3cr3t")


def connection_json(kube_config: Any) -> str:
    return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": kube_config}})


def args_of(ref: GangRef, **fields: Any) -> TriggerArgs:
    return TriggerArgs(kubernetes_conn_id="retries", namespace=ref.namespace, name=ref.name, uid=ref.uid, **fields)


async def wait_until_ended(args: TriggerArgs, log: Any = None) -> GangEvent:
    return await wait_for_event(args, "ended", log or logging.getLogger("test"))


@in_virtual_time
async def test_reading_the_connection_is_retried(plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connection_json(plane.config.kube_config)
    asyncio.get_running_loop().call_later(120, monkeypatch.setenv, CONNECTION, connection)
    waiting = asyncio.create_task(wait_until_ended(args_of(plane.submit(workers=2), must_exist=True)))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish_all()
    event = await waiting
    assert event.status is Status.SUCCEEDED
    assert 120 <= elapsed() <= 200


def answer(monkeypatch: pytest.MonkeyPatch, error: ErrorType) -> None:
    """Let the supervisor of the process answer each request by this error."""
    comms = SimpleNamespace(send=lambda _: ErrorResponse(error=error))
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)


@in_virtual_time
async def test_connection_that_the_triggerer_does_not_have_is_left_to_a_worker_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(monkeypatch, ErrorType.CONNECTION_NOT_FOUND)
    event = await wait_until_ended(args_of(GangRef("n", "j", "u"), must_exist=True))
    assert (event.status, event.reason, elapsed()) == (Status.ERROR, CONNECTION_MISSING, 0)
    assert f"triggerer on {socket.gethostname()} has no connection 'retries', although a worker has it" in event.message


@pytest.mark.parametrize("error", [ErrorType.API_SERVER_ERROR, ErrorType.GENERIC_ERROR])
@in_virtual_time
async def test_connection_that_cannot_be_read_is_not_a_missing_one(
    monkeypatch: pytest.MonkeyPatch, error: ErrorType
) -> None:
    answer(monkeypatch, error)
    event = await wait_until_ended(args_of(GangRef("n", "j", "u"), must_exist=True))
    assert (event.status, event.reason) == (Status.ERROR, "AirflowNotFoundException")
    assert elapsed() > CONNECTION_READ_FOR_S - READ_PAUSE_CAP_S


@in_virtual_time
async def test_deadline_of_the_task_applies_while_the_connection_cannot_be_read() -> None:
    args = args_of(GangRef("n", "j", "u"), deadline=time.time() - 1.0, execution_timeout_s=200.0)
    event = await wait_until_ended(args)
    assert (event.status, event.reason, event.seconds) == (Status.TIMEOUT, "Deadline.execution", 200.0)
    assert elapsed() == CLOCK_WITHIN_S


@in_virtual_time
async def test_rotated_token_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with VirtualControlPlane.running(token="new-token") as plane:
        fresh = connection_json(plane.config.kube_config)
        monkeypatch.setenv(CONNECTION, fresh.replace("new-token", "old-token"))
        asyncio.get_running_loop().call_later(60, monkeypatch.setenv, CONNECTION, fresh)
        waiting = asyncio.create_task(wait_until_ended(args_of(plane.submit(workers=2))))
        await plane.until(lambda: plane.running_ranks() == 2)
        plane.finish_all()

        assert (await waiting).status is Status.SUCCEEDED
        assert REFUSED_FOR_S <= elapsed() <= REFUSED_FOR_S + 100


@in_virtual_time
async def test_unchanged_connection_ends_in_an_error(
    plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONNECTION, connection_json({"clusters": []}))
    event = await wait_until_ended(args_of(plane.submit()))
    assert (event.status, event.reason) == (Status.ERROR, "InvalidConnection")


@in_virtual_time
async def test_gang_is_followed_again_after_an_unexpected_exception(
    plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONNECTION, connection_json(plane.config.kube_config))
    waiting = asyncio.create_task(wait_until_ended(args_of(plane.submit(workers=2)), BrokenLog(RESTARTS_MAX)))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish_all()
    assert (await waiting).status is Status.SUCCEEDED


@in_virtual_time
async def test_repeated_exception_is_an_error_without_its_text(
    plane: VirtualControlPlane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CONNECTION, connection_json(plane.config.kube_config))
    event = await wait_until_ended(args_of(plane.submit(workers=2), tracking_errors=2), BrokenLog(1000))
    assert (event.status, event.reason, event.tracking_errors) == (Status.ERROR, "RuntimeError", 2)
    assert "s3cr3t" not in json.dumps(event.to_payload())


@in_virtual_time
async def test_progress_resets_the_count_of_errors(plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION, connection_json(plane.config.kube_config))
    waiting = asyncio.create_task(wait_until_ended(args_of(plane.submit(workers=2), tracking_errors=1)))
    await plane.until(lambda: plane.running_ranks() == 2)
    await asyncio.sleep(PROGRESS_S + 100)
    plane.finish_all()
    event = await waiting
    assert (event.status, event.tracking_errors) == (Status.SUCCEEDED, 0)


@in_virtual_time
async def test_errors_of_a_sensor_that_are_far_apart_do_not_add_up(
    plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(CONNECTION, connection_json(plane.config.kube_config))
    ref = plane.submit(workers=2)
    args = SelectionArgs(kubernetes_conn_id="retries", namespace=ref.namespace, names={ref.name: ""})
    waiting = asyncio.create_task(wait_for_selected(args, logging.getLogger(__name__)))
    for number in range(ERRORS_MAX + 1):
        await asyncio.sleep(PROGRESS_S + 200)
        plane.arm("status", method="GET", path="/pods", times=None, code=403)
        while caplog.text.count("It is followed again") == number and not waiting.done():  # noqa: ASYNC110
            await asyncio.sleep(60)
        plane.faults.remove()
    plane.finish_all()
    assert (await waiting)["status"] == "met"


@in_virtual_time
async def test_deadline_counts_by_the_clock_of_the_api_server(
    plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local clock is months ahead here, so that by the local clock the deadline has passed."""
    monkeypatch.setenv(CONNECTION, connection_json(plane.config.kube_config))
    deadline = plane.clock.now().timestamp() + 600
    event = await wait_until_ended(args_of(plane.submit(workers=2), deadline=deadline))
    assert (event.status, event.phase) == (Status.TIMEOUT, Phase.RUNNING)
    assert 600 <= elapsed() <= 602


@pytest.mark.parametrize(
    ("errors", "pause_s"), [(0, 0), (1, ERROR_PAUSE_BASE_S), (3, 4 * ERROR_PAUSE_BASE_S), (99, ERROR_PAUSE_CAP_S)]
)
def test_pause_grows_with_the_errors(errors: int, pause_s: float) -> None:
    assert pause_after_errors_s(errors) == pause_s


def test_kwargs_of_an_earlier_release_still_load() -> None:
    earlier = {"kubernetes_conn_id": "c", "namespace": "n", "name": "j", "uid": "u"}
    assert GangJobTrigger(**earlier).args.tracking_errors == 0
    assert GangJobTrigger(**earlier).serialize()[1] == earlier
