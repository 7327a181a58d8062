"""The positions of Jobs in their Kueue queues, over HTTP against a server with scripted responses, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.informer import Notification, informers
from airflow_provider_gangjobs.cluster.kueue import (
    FIRST_READ_AFTER_S,
    NOT_SERVED_READ_EVERY_S,
    READ_EVERY_S,
    RECENT_READ_TIMEOUT_S,
    PendingPositions,
    Position,
    recent_position,
)
from tests.provider.virtual_time import in_virtual_time
from tests.unit.fault_server import Connection, FaultServer, Request, status

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.config import ClusterConfig

PATH = "/apis/visibility.kueue.x-k8s.io/{}/namespaces/ns/localqueues/team/pendingworkloads"
Answer = Callable[[Connection], Awaitable[None]]


def summary(*job_uids: str) -> Answer:
    """The jobs in this order, after one Job of another LocalQueue of the ClusterQueue."""
    items = [
        {"metadata": {"name": uid, "ownerReferences": [{"uid": uid}]}, "positionInClusterQueue": number}
        for number, uid in enumerate(job_uids, 1)
    ]
    return answer(200, {"kind": "PendingWorkloadsSummary", "items": items})


def answer(code: int, body: Any = None) -> Answer:
    async def reply(connection: Connection) -> None:
        await connection.reply(code, body if body is not None else status(code, "Whatever"))

    return reply


async def reset(connection: Connection) -> None:
    connection.reset()


class Visibility:
    """A server that uses each response once, and the last one for all further requests."""

    def __init__(self, *answers: Answer, version: str = "v1beta2") -> None:
        self.answers = list(answers)
        self.path = PATH.format(version)
        self.server = FaultServer(self.handle)

    async def handle(self, request: Request, connection: Connection) -> None:
        if request.path != self.path:
            await connection.reply(404, b"404 page not found")
        else:
            await (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(connection)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.server.requests]


def wait_for(known: PendingPositions, config: ClusterConfig, uid: str) -> tuple[Position, Notification]:
    notification = Notification()
    return known.acquire(config, "ns", "team", uid, notification), notification


@in_virtual_time
async def test_all_gangs_of_a_queue_share_one_read() -> None:
    api = Visibility(summary("b", "a"))
    async with api.server as server:
        known = PendingPositions()
        positions = [wait_for(known, server.config, uid)[0] for uid in "abc"]
        await asyncio.sleep(FIRST_READ_AFTER_S + 1)
        assert [position.number for position in positions] == [3, 2, None]
        late, _ = wait_for(known, server.config, "b")
        assert (late.number, api.paths) == (2, [api.path])
        await informers().aclose()


@in_virtual_time
async def test_gangs_that_are_admitted_at_once_cost_no_request() -> None:
    api = Visibility(summary())
    async with api.server as server:
        known = PendingPositions()
        for uid in "abc":
            wait_for(known, server.config, uid)[0].close()
            await asyncio.sleep(1)
        await asyncio.sleep(READ_EVERY_S)
        assert api.paths == []
        assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_gang_is_notified_when_its_position_is_halved() -> None:
    others = [f"o{number}" for number in range(6)]
    api = Visibility(summary(*others, "a"), summary(*others[1:], "a"), summary(*others[3:], "a"))
    async with api.server as server:
        position, notification = wait_for(PendingPositions(), server.config, "a")
        assert await notification.wait(FIRST_READ_AFTER_S + 1)
        assert position.number == 8
        assert await notification.wait(READ_EVERY_S + 1)
        assert position.number == 7
        assert not await notification.wait(READ_EVERY_S + 1)
        assert position.number == 5
        await informers().aclose()


UNKNOWN = {
    "no right": ([answer(403)], NOT_SERVED_READ_EVERY_S),
    "not served, or no such queue": ([answer(404)], NOT_SERVED_READ_EVERY_S),
    "Kueue is away": ([answer(503)], READ_EVERY_S),
    "connection is lost": ([reset], READ_EVERY_S),
    "something else answers": ([answer(200, {"items": [{"metadata": {}}]})], READ_EVERY_S),
    "login page": ([answer(200, b"<html>")], READ_EVERY_S),
}


@pytest.mark.parametrize(("answers", "pause_s"), UNKNOWN.values(), ids=UNKNOWN)
@in_virtual_time
async def test_position_is_unknown_until_it_can_be_read(
    answers: list[Answer], pause_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    api = Visibility(*answers, summary("a"))
    async with api.server as server:
        position, _ = wait_for(PendingPositions(), server.config, "a")
        await asyncio.sleep(FIRST_READ_AFTER_S + pause_s - 1)
        assert position.number is None
        await asyncio.sleep(2)
        assert position.number == 2
        await informers().aclose()
    assert caplog.records == []


@in_virtual_time
async def test_position_that_cannot_be_read_any_more_is_unknown() -> None:
    api = Visibility(summary("a"), answer(503))
    async with api.server as server:
        position, _ = wait_for(PendingPositions(), server.config, "a")
        await asyncio.sleep(FIRST_READ_AFTER_S + 1)
        assert position.number == 2
        await asyncio.sleep(READ_EVERY_S)
        assert position.number is None
        await informers().aclose()


@in_virtual_time
async def test_older_version_of_the_api_is_read() -> None:
    api = Visibility(summary("a"), version="v1beta1")
    async with api.server as server:
        position, _ = wait_for(PendingPositions(), server.config, "a")
        await asyncio.sleep(FIRST_READ_AFTER_S + 1)
        assert (position.number, api.paths) == (2, [PATH.format("v1beta2"), PATH.format("v1beta1")])
        await informers().aclose()


@in_virtual_time
async def test_gang_that_comes_after_the_last_one_is_read_anew() -> None:
    api = Visibility(summary("a"))
    async with api.server as server:
        known = PendingPositions()
        wait_for(known, server.config, "a")[0].close()
        await asyncio.sleep(2 * READ_EVERY_S)
        position, _ = wait_for(known, server.config, "a")
        await asyncio.sleep(FIRST_READ_AFTER_S + 1)
        assert position.number == 2
        await informers().aclose()


def connect(config: ClusterConfig) -> Client:
    """A client by the clock of the loop."""
    return Client(config, clock=Clock(monotonic=asyncio.get_running_loop().time))


async def silent(connection: Connection) -> None:
    await connection.silence()


@in_virtual_time
async def test_readers_that_look_often_share_one_read_a_minute() -> None:
    api = Visibility(summary("b", "a"), summary("a"))
    async with api.server as server, connect(server.config) as client:
        together = [recent_position(client, "ns", "team", uid) for uid in "abc"]
        assert await asyncio.gather(*together) == [3, 2, None]
        await asyncio.sleep(READ_EVERY_S - 1)
        assert await recent_position(client, "ns", "team", "a") == 3
        assert api.paths == [api.path]
        await asyncio.sleep(1)
        assert await recent_position(client, "ns", "team", "a") == 2
        assert api.paths == [api.path] * 2


@pytest.mark.parametrize(("answers", "pause_s"), UNKNOWN.values(), ids=UNKNOWN)
@in_virtual_time
async def test_reader_that_looks_often_repeats_no_failure(answers: list[Answer], pause_s: float) -> None:
    api = Visibility(*answers, summary("a"))
    async with api.server as server, connect(server.config) as client:
        for _ in range(3):
            assert await recent_position(client, "ns", "team", "a") is None
        assert api.paths.count(api.path) == 1
        await asyncio.sleep(pause_s)
        assert await recent_position(client, "ns", "team", "a") == 2


@in_virtual_time
async def test_silent_server_delays_a_page_once_a_minute_for_two_seconds() -> None:
    api = Visibility(silent, summary("a"))
    async with api.server as server, connect(server.config) as client:
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await asyncio.gather(*(recent_position(client, "ns", "team", "a") for _ in range(3))) == [None] * 3
        assert await recent_position(client, "ns", "team", "a") is None
        assert loop.time() - started == pytest.approx(RECENT_READ_TIMEOUT_S)
        await asyncio.sleep(READ_EVERY_S)
        assert await recent_position(client, "ns", "team", "a") == 2
