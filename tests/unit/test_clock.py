"""Delays of a back-off, time slices, and the split of a stream into lines."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.clock import Backoff, Clock, TimeSlice
from airflow_provider_gangjobs.cluster.http.log_reader import LineTooLongError, whole_lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def backoff(seed: int = 1) -> Backoff:
    return Backoff(Clock(random=random.Random(seed)), base_s=0.5, cap_s=30.0)


@given(seed=st.integers(0, 10_000))
def test_delays_stay_between_base_and_cap(seed: int) -> None:
    delays = [d for b in [backoff(seed)] for d in [b.next() for _ in range(50)]]
    assert all(0.5 <= delay <= 30.0 for delay in delays)
    assert all(later <= max(0.5, earlier) * 3 for earlier, later in itertools.pairwise(delays))


def test_retry_after_is_a_lower_bound() -> None:
    assert backoff().next(at_least_s=77.0) == 77.0


def test_reset_restarts_with_a_short_delay() -> None:
    tried = backoff()
    for _ in range(50):
        tried.next()
    tried.reset()
    assert tried.next() <= 1.5


async def test_time_slice_yields_only_when_used_up() -> None:
    now = 0.0
    time_slice = TimeSlice(slice_s=1.0, monotonic=lambda: now)
    turns = []

    async def other() -> None:
        turns.append(now)

    import asyncio

    task = asyncio.create_task(other())
    now = 0.5
    await time_slice.yield_if_due()
    assert turns == []
    now = 1.5
    await time_slice.yield_if_due()
    assert turns == [1.5]
    await task


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@given(st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"-")), max_size=20), st.data())
async def test_parts_are_whole_lines_for_any_chunk_boundaries(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    cut = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    parts = [part async for part in whole_lines(chunks(*cut), bytes_max=100)]
    assert b"".join(parts) == stream
    assert all(part.endswith(b"\n") for part in parts)
    assert len(parts) <= len(cut)


async def test_unfinished_last_line_is_yielded() -> None:
    assert [part async for part in whole_lines(chunks(b"a\nb"), bytes_max=10)] == [b"a\n", b"b"]


async def test_lines_of_one_chunk_are_one_part() -> None:
    parts = whole_lines(chunks(b"a\nb\nc", b"d", b"e\nf\n"), bytes_max=10)
    assert [part async for part in parts] == [b"a\nb\n", b"cde\nf\n"]


async def test_too_long_line_is_refused() -> None:
    parts = whole_lines(chunks(b"a\n" + b"x" * 9, b"xx"), bytes_max=10)
    assert await anext(parts) == b"a\n"
    with pytest.raises(LineTooLongError):
        await anext(parts)
