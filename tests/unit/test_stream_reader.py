"""A burst is read in batches, a slow stream is read at once, and no byte is lost."""

from __future__ import annotations

import asyncio
import select
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from airflow_provider_gangjobs.cluster.auth.tls import TlsConfig, make_context
from airflow_provider_gangjobs.cluster.http.stream_reader import (
    BURST_AFTER_CHUNKS,
    PAUSE_MAX_S,
    PAUSE_S,
    StreamReader,
    pause_s,
    read_batches,
    read_chunks,
    reading_paused,
)
from gangjobs_sandbox.tls import issue
from tests.provider.virtual_time import elapsed, in_virtual_time
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


READERS = pytest.mark.parametrize("read", [read_chunks, read_batches])


class Wire:
    """A response whose body arrives in parts at given times. A paused transport keeps the parts back."""

    def __init__(self, times: list[float]) -> None:
        self.times = times
        self.pauses = 0
        self.is_paused = False
        self._arrived: list[bytes] = []
        self._news = asyncio.Condition()
        self._sent = False
        self.content = self.connection = self.transport = self

    async def send(self) -> None:
        for number, at in enumerate(self.times):
            await asyncio.sleep(at - elapsed())
            async with self._news:
                self._arrived.append(b"%d " % number)
                self._news.notify_all()
        async with self._news:
            self._sent = True
            self._news.notify_all()

    async def readany(self) -> bytes:
        async with self._news:
            await self._news.wait_for(lambda: not self.is_paused and (self._arrived or self._sent))
        chunk, self._arrived = b"".join(self._arrived), []
        return chunk

    def pause_reading(self) -> None:
        self.is_paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        self.is_paused = False


async def _read(wire: Any, read: StreamReader = read_batches) -> list[tuple[float, bytes]]:
    sending = asyncio.create_task(wire.send())
    chunks = [(elapsed(), chunk) async for chunk in read(wire, idle_timeout_s=TIMEOUT_S)]
    await sending
    return chunks


def _whole(times: list[float]) -> bytes:
    return b"".join(b"%d " % number for number in range(len(times)))


@READERS
@pytest.mark.parametrize("apart_s", [0.001, 0.021, 1.0])
@in_virtual_time
async def test_every_reader_yields_the_whole_body_in_order(read: StreamReader, apart_s: float) -> None:
    wire = Wire([number * apart_s for number in range(1, 101)])
    assert b"".join(chunk for _, chunk in await _read(wire, read)) == _whole(wire.times)


@in_virtual_time
async def test_plain_reader_reads_each_chunk_of_a_burst_at_once() -> None:
    wire = Wire([number * 0.001 for number in range(1, 101)])
    assert [at for at, _ in await _read(wire, read_chunks)] == pytest.approx(wire.times)


@in_virtual_time
async def test_burst_is_read_in_few_chunks_and_whole():
    wire = Wire([number * 0.001 for number in range(1, 201)])
    chunks = await _read(wire)
    assert b"".join(chunk for _, chunk in chunks) == _whole(wire.times)
    assert len(chunks) <= BURST_AFTER_CHUNKS + 0.2 / PAUSE_S + 2
    assert not wire.is_paused


@in_virtual_time
async def test_chunk_of_a_burst_is_read_within_the_pause():
    wire = Wire([number * 0.001 for number in range(1, 201)])
    for at, chunk in await _read(wire):
        first = int(chunk.split()[0])
        assert at - wire.times[first] <= PAUSE_S + 1e-6


@pytest.mark.parametrize(
    ("lasted_s", "expected"),
    [(0.0, PAUSE_S), (4.0, PAUSE_S), (8.0, 0.04), (10.0, PAUSE_MAX_S), (3600.0, PAUSE_MAX_S)],
)
def test_pause_grows_with_the_burst_up_to_a_limit(lasted_s: float, expected: float) -> None:
    assert pause_s(lasted_s) == pytest.approx(expected)


@in_virtual_time
async def test_long_burst_is_read_in_larger_batches_and_whole():
    wire = Wire([number * 0.01 for number in range(1, 3001)])
    chunks = await _read(wire)
    assert b"".join(chunk for _, chunk in chunks) == _whole(wire.times)
    late = [(at, chunk) for at, chunk in chunks if at > 12 and at < wire.times[-1]]
    assert len(late) <= (wire.times[-1] - 12) / PAUSE_MAX_S + 1
    assert all(at - wire.times[int(chunk.split()[0])] <= PAUSE_MAX_S + 1e-6 for at, chunk in late)


@in_virtual_time
async def test_burst_after_a_gap_starts_with_the_shortest_pause():
    first = [number * 0.01 for number in range(1, 1501)]
    wire = Wire([*first, *(first[-1] + 1 + number * 0.01 for number in range(1, 101))])
    for at, chunk in await _read(wire):
        number = int(chunk.split()[0])
        if number >= len(first):
            assert at - wire.times[number] <= PAUSE_S + 1e-6


@pytest.mark.parametrize("apart_s", [0.021, 1.0])
@in_virtual_time
async def test_slow_stream_is_read_at_once(apart_s):
    wire = Wire([number * apart_s for number in range(1, 21)])
    chunks = await _read(wire)
    assert [at for at, _ in chunks] == pytest.approx(wire.times)
    assert wire.pauses == 0


@in_virtual_time
async def test_reading_resumes_if_the_reader_is_cancelled_in_the_pause():
    wire = Wire([number * 0.001 for number in range(1, 201)])
    reading = asyncio.create_task(_read(wire))
    while not wire.is_paused:  # noqa: ASYNC110 - a wire has no event for it
        await asyncio.sleep(0.001)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert not wire.is_paused


# -- data that stays in the kernel -----------------------------------------------------------------------------

SERVER = issue(["127.0.0.1"])


@asynccontextmanager
async def connected(*, tls: bool) -> AsyncIterator[tuple[asyncio.StreamReader, Any, asyncio.StreamWriter]]:
    """Yield a reader, its connection as aiohttp describes it, and the writer at the other end."""
    arrived: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda _, writer: arrived.put_nowait(writer), "127.0.0.1", 0, ssl=SERVER.server_context() if tls else None
    )
    context = make_context(TlsConfig(ca=SERVER.certificate)) if tls else None
    reader, ours = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=context)
    theirs = await arrived.get()
    try:
        yield reader, SimpleNamespace(transport=ours.transport), theirs
    finally:
        server.close()
        for writer in (ours, theirs):
            writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_nothing_is_read_in_the_pause_and_nothing_is_lost(tls: bool) -> None:
    data = b"x" * 300_000
    async with asyncio.timeout(TIMEOUT_S), connected(tls=tls) as (reader, connection, theirs):
        theirs.write(b"before")
        assert await reader.readexactly(6) == b"before"
        with reading_paused(connection):
            theirs.write(data)
            for _ in range(50):
                await asyncio.sleep(0)
            assert select.select([connection.transport.get_extra_info("socket").fileno()], [], [], TIMEOUT_S)[0]
            if tls:
                assert connection.transport.get_read_buffer_size() == 0
        assert await reader.readexactly(len(data)) == data


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_connection_may_close_in_the_pause(tls: bool) -> None:
    async with connected(tls=tls) as (reader, connection, _):
        with reading_paused(connection):
            connection.transport.abort()
            connection.transport = None
            await reader.read()


@READERS
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_idle_stream_times_out_without_waiting_for_its_peer(tls: bool, read: StreamReader) -> None:
    heard = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await heard.wait()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=SERVER.server_context() if tls else None)
    host, port = server.sockets[0].getsockname()
    context = make_context(TlsConfig(ca=SERVER.certificate)) if tls else True
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            aiohttp.ClientSession() as session,
            session.get(f"http{'s' if tls else ''}://{host}:{port}/", ssl=context) as response,
        ):
            stream = read(response, idle_timeout_s=0.1)
            assert await anext(stream) == b"hello"
            with pytest.raises(TimeoutError, match=r"nothing arrived for 0\.1 s"):
                await anext(stream)
    finally:
        heard.set()
        server.close()
        await asyncio.sleep(0)


@READERS
@in_virtual_time
async def test_slow_reader_does_not_cause_an_idle_timeout(read: StreamReader) -> None:
    wire: Any = Wire([number * 1.0 for number in range(1, 21)])
    sending = asyncio.create_task(wire.send())
    heard = b""
    async for chunk in read(wire, idle_timeout_s=2.5):
        heard += chunk
        if len(heard) < 10:
            await asyncio.sleep(7)
    await sending
    assert heard == _whole(wire.times)
