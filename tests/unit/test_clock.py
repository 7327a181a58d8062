"""Delays of a back-off, time slices, and the time of the API server."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Backoff, Clock, ServerClock, TimeSlice
from airflow_provider_gangjobs.cluster.errors import UnexpectedReply
from airflow_provider_gangjobs.cluster.http.log_reader import whole_lines
from airflow_provider_gangjobs.kube.resources import JOBS
from gangjobs_sandbox.api.app import create_app
from gangjobs_sandbox.api.server import serving
from gangjobs_sandbox.clock import VirtualClock
from gangjobs_sandbox.registry import Registry
from tests.provider.virtual_control_plane import config_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


# -- Delays of a back-off, time slices, and the split of a stream into lines -----------------------------------------


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
    parts = [part async for part in whole_lines(chunks(*cut), "watch", bytes_max=100)]
    assert b"".join(parts) == stream
    assert all(part.endswith(b"\n") for part in parts)
    assert len(parts) <= len(cut)


async def test_unfinished_last_line_is_yielded() -> None:
    assert [part async for part in whole_lines(chunks(b"a\nb"), "watch", bytes_max=10)] == [b"a\n", b"b"]


async def test_lines_of_one_chunk_are_one_part() -> None:
    parts = whole_lines(chunks(b"a\nb\nc", b"d", b"e\nf\n"), "watch", bytes_max=10)
    assert [part async for part in parts] == [b"a\nb\n", b"cde\nf\n"]


async def test_too_long_line_is_refused() -> None:
    parts = whole_lines(chunks(b"a\n" + b"x" * 9, b"xx"), "watch", bytes_max=10)
    assert await anext(parts) == b"a\n"
    with pytest.raises(UnexpectedReply, match="more than 10 bytes"):
        await anext(parts)


# -- The API server's time, by the `Date` headers of its answers -----------------------------------------------------

START = datetime(2026, 1, 1, tzinfo=UTC)


class Server:
    """A server whose clock is ahead of the local one, and the `ServerClock` that reads its responses."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.local_s = 1000.0
        self.ahead_s = ahead_s
        self.clock = ServerClock(lambda: self.local_s)

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.local_s + self.ahead_s)

    def answers(self, *, after_s: float = 0.01) -> None:
        sent_at = self.local_s
        self.local_s += after_s / 2
        date = format_datetime(self.now, usegmt=True)
        self.local_s += after_s / 2
        self.clock.observe(date, sent_at=sent_at)

    @property
    def late_s(self) -> float:
        return (self.now - self.clock.now()).total_seconds()


@pytest.mark.parametrize("ahead_s", [0.0, 600.3, -600.3, 86400.9])
def test_one_response_gives_the_time_to_a_second_and_never_early(ahead_s: float) -> None:
    server = Server(ahead_s)
    server.answers()
    assert 0 <= server.late_s <= 1.01


def test_more_responses_make_the_estimate_more_precise() -> None:
    server = Server(600.0)
    for _ in range(40):
        server.answers()
        server.local_s += 0.37
    assert 0 <= server.late_s <= 0.05


def test_slow_response_does_not_make_the_estimate_less_precise() -> None:
    server = Server(600.0)
    server.answers()
    before_s = server.late_s
    server.answers(after_s=30)
    assert 0 <= server.late_s <= before_s + 1e-6


@pytest.mark.parametrize("moved_s", [300.0, -300.0])
def test_clock_that_was_set_is_followed(moved_s: float) -> None:
    server = Server()
    server.answers()
    server.ahead_s += moved_s
    server.answers()
    assert 0 <= server.late_s <= 1.01


@pytest.mark.parametrize("difference_s", [0.002, 0.03, 0.09])
def test_api_servers_whose_clocks_differ_slightly_give_a_precise_estimate(difference_s: float) -> None:
    server = Server()
    late_s = []
    for number in range(400):
        server.ahead_s = difference_s * (number % 2)
        server.answers()
        server.local_s += 0.37
        late_s.append(server.late_s)
    assert -difference_s <= min(late_s[100:]) <= max(late_s[100:]) <= 0.1 + 2 * difference_s


@pytest.mark.parametrize("corrected_s", [-0.5, -0.05, 0.05, 0.5])
def test_clock_that_was_corrected_is_followed(corrected_s: float) -> None:
    server = Server()
    for number in range(200):
        server.ahead_s = corrected_s * (number >= 100)
        server.answers()
        server.local_s += 0.37
    assert -0.05 <= server.late_s <= 0.15


@pytest.mark.parametrize("date", [None, "", "yesterday", "Thu, 99 Jan 2026 00:00:00 GMT"])
def test_response_without_a_date_changes_nothing(date: str | None) -> None:
    clock = ServerClock(lambda: 0.0)
    clock.observe(date, sent_at=0.0)
    assert (clock.is_known, clock.ahead_s) == (False, 0.0)
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)


async def test_client_updates_the_clock_with_each_response() -> None:
    registry = Registry(clock=VirtualClock(START), release="1.37")
    async with serving(create_app(registry, token=None)) as address, Client(config_for(address.url)) as client:
        assert await client.list(JOBS, "default") == []
        assert abs(client.server_clock.now() - START) < timedelta(seconds=30)
        assert client.server_clock.ahead_s == pytest.approx((START - datetime.now(UTC)).total_seconds(), abs=30)
