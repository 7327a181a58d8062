"""Each pod of a gang is released or reported with an error, exactly once, whatever the server does."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Self

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.client import Client, PatchType
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import ApiError, ClusterError
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.ending.release import PATCHES_IN_FLIGHT_MAX, release_all
from airflow_provider_gangjobs.kube.views import Meta, PodView
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from tests.timeouts import TIMEOUT_S
from tests.unit.fault_server import config_for, status

if TYPE_CHECKING:
    from collections.abc import Iterable

PODS_OF_A_LARGE_GANG = 128


class ServerAction(Enum):
    """What the server does with one request."""

    OK = auto()
    GONE = auto()
    CONFLICT = auto()
    REFUSED = auto()
    BUSY = auto()
    BROKEN = auto()
    DIES_BEFORE = auto()
    """The connection ends, and the request is not applied."""
    DIES_AFTER = auto()
    """The request is applied, and the connection ends."""
    DIES_MIDWAY = auto()
    """The request is applied, and half of the response is sent."""
    LAST = auto()
    """The request is applied, and the response says that the connection will be closed."""
    CHUNKED = auto()
    """The request is applied, and the response is chunked, byte by byte."""
    TWICE = auto()
    """The request is applied, and two responses are sent."""
    GARBAGE = auto()
    INTERIM = auto()
    """The request is applied, and a 100 is sent before the response."""
    SILENT = auto()


APPLIED = ("OK", "LAST", "CHUNKED", "TWICE", "DIES_AFTER", "DIES_MIDWAY", "INTERIM")
REFUSALS = {"GONE": 404, "CONFLICT": 409, "REFUSED": 401, "BUSY": 429, "BROKEN": 500}
CODES = {ServerAction[name]: code for name, code in (dict.fromkeys(APPLIED, 200) | REFUSALS).items()}


class Server:
    """A server that keeps connections open, and has a scripted action for each of its first requests."""

    def __init__(self, script: Iterable[ServerAction] = ()) -> None:
        self.script = iter(script)
        self.requests: list[tuple[str, bytes]] = []
        self.heads: list[str] = []
        self.applied: Counter[str] = Counter()
        self.connections = 0
        self.in_flight = self.most_in_flight = 0
        self.busy = asyncio.Event()
        """Set when three requests have arrived."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert not [end for end in ends if isinstance(end, Exception)], "the server has raised an error"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        sizes = [int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length")]
        body = await reader.readexactly(sum(sizes))
        method, path, _ = head.split(" ", 2)
        if method == "GET":
            found = json.dumps({"metadata": {"uid": f"uid-{path.rpartition('/p')[2]}"}}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(found), found))
            return True
        self.heads.append(head)
        self.requests.append((path, body))
        if len(self.requests) >= 3:
            self.busy.set()
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        return await self._do(next(self.script, ServerAction.OK), path, writer, reader)

    async def _do(
        self, does: ServerAction, path: str, writer: asyncio.StreamWriter, reader: asyncio.StreamReader
    ) -> bool:
        code = CODES.get(does, 0)
        if code == 200:
            self.applied[path] += 1
        reply = json.dumps({"metadata": {}} if code == 200 else status(code, "Whatever")).encode()
        head = f"HTTP/1.1 {code} Whatever\r\nContent-Type: application/json\r\n"
        whole = f"{head}Content-Length: {len(reply)}\r\n\r\n".encode() + reply
        match does:
            case ServerAction.DIES_BEFORE | ServerAction.DIES_AFTER:
                return False
            case ServerAction.DIES_MIDWAY:
                writer.write(whole[: len(whole) - 4])
                await writer.drain()
                return False
            case ServerAction.LAST:
                writer.write(f"{head}Connection: close\r\nContent-Length: {len(reply)}\r\n\r\n".encode() + reply)
            case ServerAction.CHUNKED:
                chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in reply)
                for byte in f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n":
                    writer.write(bytes([byte]))
            case ServerAction.TWICE:
                writer.write(whole + whole)
            case ServerAction.GARBAGE:
                writer.write(b"220 mail.example ESMTP\r\n")
            case ServerAction.INTERIM:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + whole)
            case ServerAction.SILENT:
                await reader.read()
            case _:
                writer.write(whole)
        return True


def pods(count: int) -> list[PodView]:
    metas = (
        Meta(name=f"p{n}", namespace="team", uid=f"uid-{n}", finalizers=(FINALIZER_HARVEST,)) for n in range(count)
    )
    return [PodView(metadata=meta) for meta in metas]


async def released(server: Server, count: int, **more: Any) -> dict[str, ClusterError | None]:
    reported: dict[str, ClusterError | None] = {}

    def report(pod: PodView, error: ClusterError | None) -> None:
        assert pod.metadata.name not in reported, "a pod is reported twice"
        reported[pod.metadata.name] = error

    clock = Clock(sleep=lambda _: asyncio.sleep(0))
    async with asyncio.timeout(TIMEOUT_S), Client(config_for(server.url), clock=clock, retry_for_s=1) as client:
        await release_all(client, pods(count), report, **more)
        assert client.statistics().requests["patch"] <= len(server.requests)
    return reported


async def test_a_large_gang_is_released_over_a_few_connections() -> None:
    async with Server() as server:
        reported = await released(server, 5 * PODS_OF_A_LARGE_GANG)
    assert set(reported.values()) == {None}
    assert set(server.applied.values()) == {1}
    assert len(server.applied) == len(reported) == 5 * PODS_OF_A_LARGE_GANG
    assert server.connections <= PATCHES_IN_FLIGHT_MAX


@given(st.lists(st.sampled_from([one for one in ServerAction if one is not ServerAction.SILENT]), max_size=30))
def test_each_pod_is_reported_once_and_released_if_the_server_allows(script: list[ServerAction]) -> None:
    async def run() -> None:
        async with Server(script) as server:
            reported = await released(server, PODS_OF_A_LARGE_GANG)
        assert len(reported) == PODS_OF_A_LARGE_GANG
        for name, error in reported.items():
            assert (
                error is not None
                or server.applied[f"/api/v1/namespaces/team/pods/{name}"]
                or ServerAction.GONE in script
            )
            assert error is None or isinstance(error, ClusterError)

    asyncio.run(run())


async def test_busy_server_is_retried() -> None:
    async with Server([ServerAction.OK] * 10 + [ServerAction.BUSY] * 3) as server:
        reported = await released(server, 2 * PODS_OF_A_LARGE_GANG)
    assert set(reported.values()) == {None}
    assert len(server.applied) == 2 * PODS_OF_A_LARGE_GANG


async def test_stopped_release_reports_finished_pods_only() -> None:
    async with Server() as server:
        reported = await released(server, PODS_OF_A_LARGE_GANG, is_stopped=lambda: len(server.requests) >= 40)
    assert 40 <= len(reported) < PODS_OF_A_LARGE_GANG
    assert len(reported) == len(server.requests)


async def test_permanent_refusal_is_reported_for_each_pod() -> None:
    async with Server([ServerAction.REFUSED] * 10_000) as server:
        reported = await released(server, PODS_OF_A_LARGE_GANG)
    assert all(isinstance(error, ApiError) for error in reported.values())
    assert len(reported) == PODS_OF_A_LARGE_GANG
    assert PatchType.STRATEGIC in server.heads[0]
    assert PODS.path("team", "p0") in {path for path, _ in server.requests}
