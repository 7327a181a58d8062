"""A stream is read as it arrives, no byte is lost, and a silent one ends."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from airflow_provider_gangjobs.cluster.auth.credentials import TlsConfig, make_context
from airflow_provider_gangjobs.cluster.http.aiohttp_transport import read_chunks
from gangjobs_sandbox.tls import issue
from tests.provider.virtual_time import elapsed, in_virtual_time
from tests.timeouts import TIMEOUT_S


class Wire:
    """A response whose body arrives in parts at given times."""

    def __init__(self, times: list[float]) -> None:
        self.times = times
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
            await self._news.wait_for(lambda: self._arrived or self._sent)
        chunk, self._arrived = b"".join(self._arrived), []
        return chunk


async def _read(wire: Any) -> list[tuple[float, bytes]]:
    sending = asyncio.create_task(wire.send())
    chunks = [(elapsed(), chunk) async for chunk in read_chunks(wire, idle_timeout_s=TIMEOUT_S)]
    await sending
    return chunks


def _whole(times: list[float]) -> bytes:
    return b"".join(b"%d " % number for number in range(len(times)))


@pytest.mark.parametrize("apart_s", [0.001, 0.021, 1.0])
@in_virtual_time
async def test_reader_yields_the_whole_body_in_order(apart_s: float) -> None:
    wire = Wire([number * apart_s for number in range(1, 101)])
    assert b"".join(chunk for _, chunk in await _read(wire)) == _whole(wire.times)


@in_virtual_time
async def test_reader_reads_each_chunk_of_a_burst_at_once() -> None:
    wire = Wire([number * 0.001 for number in range(1, 101)])
    assert [at for at, _ in await _read(wire)] == pytest.approx(wire.times)


SERVER = issue(["127.0.0.1"])


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_idle_stream_times_out_without_waiting_for_its_peer(tls: bool) -> None:
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
            stream = read_chunks(response, idle_timeout_s=0.1)
            assert await anext(stream) == b"hello"
            with pytest.raises(TimeoutError, match=r"nothing arrived for 0\.1 s"):
                await anext(stream)
    finally:
        heard.set()
        server.close()
        await asyncio.sleep(0)


@in_virtual_time
async def test_slow_reader_does_not_cause_an_idle_timeout() -> None:
    wire: Any = Wire([number * 1.0 for number in range(1, 21)])
    sending = asyncio.create_task(wire.send())
    heard = b""
    async for chunk in read_chunks(wire, idle_timeout_s=2.5):
        heard += chunk
        if len(heard) < 10:
            await asyncio.sleep(7)
    await sending
    assert heard == _whole(wire.times)
