"""A stream in a burst is read at intervals, and at once when it speaks now and then; nothing of it is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_gangjobs.cluster.transport import GULP_S, GULPS_AFTER_CHUNKS, _in_gulps
from tests.provider.virtual_time import elapsed, in_virtual_time


class Wire:
    """A response whose body comes in parts at given times, and whose transport keeps them back while it is paused."""

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


async def _read(wire: Any) -> list[tuple[float, bytes]]:
    sending = asyncio.create_task(wire.send())
    chunks = [(elapsed(), chunk) async for chunk in _in_gulps(wire)]
    await sending
    return chunks


def _whole(times: list[float]) -> bytes:
    return b"".join(b"%d " % number for number in range(len(times)))


@in_virtual_time
async def test_burst_is_read_in_few_chunks_and_whole():
    wire = Wire([number * 0.001 for number in range(1, 201)])
    chunks = await _read(wire)
    assert b"".join(chunk for _, chunk in chunks) == _whole(wire.times)
    assert len(chunks) <= GULPS_AFTER_CHUNKS + 0.2 / GULP_S + 2
    assert not wire.is_paused


@in_virtual_time
async def test_nothing_of_a_burst_is_heard_later_than_an_interval():
    wire = Wire([number * 0.001 for number in range(1, 201)])
    for at, chunk in await _read(wire):
        first = int(chunk.split()[0])
        assert at - wire.times[first] <= GULP_S + 1e-6


@pytest.mark.parametrize("apart_s", [0.021, 1.0])
@in_virtual_time
async def test_stream_that_speaks_now_and_then_is_heard_at_once(apart_s):
    wire = Wire([number * apart_s for number in range(1, 21)])
    chunks = await _read(wire)
    assert [at for at, _ in chunks] == pytest.approx(wire.times)
    assert wire.pauses == 0


@in_virtual_time
async def test_reading_goes_on_if_the_reader_leaves_in_the_pause():
    wire = Wire([number * 0.001 for number in range(1, 201)])
    reading = asyncio.create_task(_read(wire))
    while not wire.is_paused:  # noqa: ASYNC110 - a wire tells nobody
        await asyncio.sleep(0.001)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert not wire.is_paused
