"""Each write of a batch either succeeds or is unfinished, exactly once, whatever the server does."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from enum import Enum, auto
from typing import TYPE_CHECKING, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.auth.credentials import Access
from airflow_provider_gangjobs.cluster.http.bulk_patch import BulkPatch, Endpoint
from airflow_provider_gangjobs.cluster.http.request import USER_AGENT, Request
from tests.timeouts import TIMEOUT_S
from tests.unit.fault_server import status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUCCESS_STATUSES = frozenset({200, 404})
PATCH = Request("PATCH", "", body=b"")


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
STOPS_BATCH = {ServerAction.REFUSED, ServerAction.BUSY, ServerAction.BROKEN}


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


def requests(count: int) -> Iterator[tuple[int, str, bytes]]:
    return ((number, f"/pods/{number}", b"%d" % number) for number in range(count))


async def bulk_patch(
    server: Server, count: int, *, connections: int = 3, timeout_s: float = TIMEOUT_S
) -> BulkPatch[int]:
    succeeded: list[int] = []
    access = Access(server.url, "Bearer sesame", None, None, None)
    endpoint = Endpoint.from_access(access, PATCH)
    assert endpoint is not None
    batch = BulkPatch(endpoint, "PATCH", requests(count), succeeded.append, SUCCESS_STATUSES, timeout_s)
    await batch.run(connections)
    assert len(succeeded) == batch.succeeded
    assert sorted({*succeeded, *batch.unfinished}) == sorted([*succeeded, *batch.unfinished]), (
        "a request is missing or reported twice"
    )
    assert len(succeeded) + len(batch.unfinished) == batch.sent
    assert all(server.applied[f"/pods/{number}"] for number in succeeded if f"/pods/{number}" in server.applied)
    return batch


async def test_each_request_is_sent_once_over_the_allowed_connections() -> None:
    async with Server() as server:
        batch = await bulk_patch(server, 200, connections=3)
    assert sorted(server.requests) == sorted((path, body) for _, path, body in requests(200))
    assert (batch.succeeded, batch.unfinished) == (200, [])
    assert server.connections == 3
    assert server.most_in_flight <= 3


async def test_request_has_credentials_and_user_agent() -> None:
    async with Server() as server:
        await bulk_patch(server, 1)
    first, *headers = server.heads[0].strip().split("\r\n")
    assert first == "PATCH /pods/0 HTTP/1.1"
    assert dict(line.split(": ") for line in headers) == {
        "Host": server.url.removeprefix("http://"),
        "Accept": "application/json",
        "User-Agent": USER_AGENT,
        "Content-Type": "application/json",
        "Authorization": "Bearer sesame",
        "Content-Length": "1",
    }


@pytest.mark.parametrize(
    "does", [one for one in ServerAction if one not in {ServerAction.OK, ServerAction.GONE, ServerAction.SILENT}]
)
async def test_request_without_a_plain_response_is_unfinished(does: ServerAction) -> None:
    async with Server([ServerAction.OK, does]) as server:
        batch = await bulk_patch(server, 20, connections=1)
    if does in {ServerAction.LAST, ServerAction.CHUNKED, ServerAction.TWICE}:
        assert batch.unfinished == ([2] if does is ServerAction.TWICE and batch.unfinished else [])
    else:
        assert batch.unfinished == [1]
    assert 0 in {number for number in range(20) if number not in batch.unfinished}


@pytest.mark.parametrize("does", sorted(STOPS_BATCH, key=str))
async def test_refusal_of_all_requests_stops_the_batch(does: ServerAction) -> None:
    async with Server([does] * 2) as server:
        batch = await bulk_patch(server, 1000, connections=2)
    assert len(batch.unfinished) >= 1
    assert batch.sent <= 4, "the batch sent requests after the refusal"


async def test_conflict_does_not_stop_the_batch() -> None:
    async with Server([ServerAction.CONFLICT] * 5) as server:
        batch = await bulk_patch(server, 50)
    assert (batch.succeeded, len(batch.unfinished)) == (45, 5)


async def test_missing_object_counts_as_success_if_expected() -> None:
    async with Server([ServerAction.GONE] * 5) as server:
        batch = await bulk_patch(server, 10)
    assert (batch.succeeded, batch.unfinished) == (10, [])


async def test_silent_server_times_out() -> None:
    async with Server([ServerAction.SILENT] * 3) as server:
        batch = await bulk_patch(server, 50, connections=3, timeout_s=0.05)
    assert (batch.succeeded, len(batch.unfinished), batch.sent) == (0, 3, 3)


async def test_unreachable_server_consumes_no_request() -> None:
    async with Server() as server:
        pass
    batch = await bulk_patch(server, 10)
    assert (batch.sent, batch.succeeded, batch.unfinished) == (0, 0, [])


async def test_cancelled_batch_leaves_no_connection() -> None:
    async with Server([ServerAction.SILENT] * 3) as server:
        running = asyncio.create_task(bulk_patch(server, 50, connections=3))
        async with asyncio.timeout(TIMEOUT_S):
            await server.busy.wait()
            running.cancel()
            await asyncio.wait([running])
            await asyncio.gather(*server._tasks)  # each task has read the end of its connection
    assert running.cancelled()


@given(
    st.lists(st.sampled_from([one for one in ServerAction if one is not ServerAction.SILENT]), max_size=12),
    st.integers(1, 4),
)
def test_each_request_succeeds_or_is_unfinished_whatever_the_server_does(
    script: list[ServerAction], connections: int
) -> None:
    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S), Server(script) as server:
            await bulk_patch(server, 20, connections=connections)

    asyncio.run(run())


@pytest.mark.parametrize(
    "access",
    [
        Access("https://proxied.example", None, None, "http://proxy.example:3128", None),
        Access("http://proxied.example", None, None, "http://proxy.example:3128", None),
        Access("https://no-context.example", None, None, None, None),
        Access("http://here", "Bearer two\r\nlines: yes", None, None, None),
        Access("http://here", "Bearer \N{SNOWMAN}", None, None, None),
    ],
    ids=["proxy of https", "proxy of http", "https without a context", "two lines", "no latin"],
)
def test_connection_that_is_not_plain_has_no_endpoint(access: Access) -> None:
    assert Endpoint.from_access(access, PATCH) is None


def test_credentials_are_not_shown() -> None:
    endpoint = Endpoint.from_access(Access("http://here", "Bearer sesame", None, None, None), PATCH)
    assert endpoint is not None
    assert b"sesame" in endpoint.headers
    assert "sesame" not in repr(endpoint)


def test_path_prefix_of_the_server_is_kept() -> None:
    endpoint = Endpoint.from_access(Access("http://rancher.example/k8s/clusters/c-1/", None, None, None, None), PATCH)
    assert endpoint is not None
    address = endpoint.address
    assert (address.host, address.port, address.path_prefix) == ("rancher.example", 80, "/k8s/clusters/c-1")
