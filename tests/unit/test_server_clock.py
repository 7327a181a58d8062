"""The API server's time, by the `Date` headers of its answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.clock import ServerClock
from airflow_provider_gangjobs.cluster.resources import JOBS
from gangjobs_sandbox.api.app import create_app
from gangjobs_sandbox.api.server import serving
from gangjobs_sandbox.clock import VirtualClock
from gangjobs_sandbox.registry import Registry
from tests.provider.virtual_control_plane import config_for

if TYPE_CHECKING:
    from tests.unit.conftest import Connect

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


async def test_client_updates_the_clock_with_each_response(connect: Connect) -> None:
    registry = Registry(clock=VirtualClock(START), release="1.37")
    async with serving(create_app(registry, token=None)) as address, connect(config_for(address.url)) as client:
        assert await client.list(JOBS, "default") == []
        assert abs(client.server_clock.now() - START) < timedelta(seconds=30)
        assert client.server_clock.ahead_s == pytest.approx((START - datetime.now(UTC)).total_seconds(), abs=30)
