"""An event follows the lines of its trigger, and a stream never fills the channel to Airflow's supervisor."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.attempt.triggerer.log_streaming import (
    UNREAD_BYTES_MAX,
    LogChannel,
    log_channel,
    sleep_until_resumable,
    without_streamed,
)
from airflow_provider_gangjobs.cluster.loop_local import set_loop_local
from tests.provider.test_log_streaming import Lines, copied_after, running, said, wait
from tests.provider.virtual_time import elapsed, in_virtual_time
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE = b"x" * 300 + b"\n"

LOG_AS_A_TRIGGERER = """
import os, socket
from airflow.sdk.execution_time.supervisor import _configure_logs_over_json_channel
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import find_channel
own, supervisor = socket.socketpair()
print(find_channel(), flush=True)
_configure_logs_over_json_channel(own.detach())
channel = find_channel()
os.write(channel, b"a line")
print(supervisor.recv(100).decode())
"""


class Channel:
    """A channel with both of its ends."""

    def __init__(self) -> None:
        self.own, self.supervisor = socket.socketpair()
        self.own.setblocking(False)
        self.log = LogChannel(self.own.fileno)

    def fill(self) -> None:
        """Write lines until a stream has to wait."""
        while (self.log.unread_bytes() or 0) <= UNREAD_BYTES_MAX:
            self.own.send(LINE)

    def read(self) -> None:
        """Read as much as the supervisor does at once."""
        self.supervisor.recv(4096)


@pytest.fixture
def channel() -> Iterator[Channel]:
    both = Channel()
    with closing(both.own), closing(both.supervisor):
        yield both


def unknown() -> int:
    """A file descriptor that is closed, so that nothing is known of it."""
    own, other = socket.socketpair()
    with closing(own), closing(other):
        return own.fileno()


async def test_lines_count_until_the_supervisor_has_read_them(channel: Channel) -> None:
    assert channel.log.unread_bytes() == 0
    channel.own.send(LINE)
    unread = channel.log.unread_bytes()
    assert unread is not None
    assert unread >= len(LINE)
    channel.read()
    assert channel.log.unread_bytes() == 0


@in_virtual_time
async def test_event_waits_until_the_lines_are_read(channel: Channel) -> None:
    channel.fill()
    drained = asyncio.create_task(channel.log.drain())
    while not drained.done():
        assert channel.log.unread_bytes()
        await asyncio.sleep(0.1)
        channel.read()
        await asyncio.sleep(0.02)
    assert drained.result()
    assert channel.log.unread_bytes() == 0


@in_virtual_time
async def test_lines_of_other_gangs_do_not_delay_an_event(channel: Channel) -> None:
    channel.fill()
    before = channel.log.unread_bytes()
    drained = asyncio.create_task(channel.log.drain(within_s=3600))
    rounds = 0
    while not drained.done():
        await asyncio.sleep(0.02)
        channel.read()
        await asyncio.sleep(0.02)
        channel.fill()
        rounds += 1

    assert drained.result()
    assert channel.log.unread_bytes() == before
    assert rounds > 1, "the event has not waited for its own lines"


@in_virtual_time
async def test_lines_that_are_not_read_in_time_may_be_missing(channel: Channel) -> None:
    channel.own.send(LINE)
    assert not await channel.log.drain(within_s=5)
    assert elapsed() == pytest.approx(5, abs=0.1)


@in_virtual_time
async def test_lines_may_be_missing_where_the_system_cannot_count_them() -> None:
    assert not await LogChannel(unknown).drain()


@in_virtual_time
async def test_process_without_a_supervisor_waits_for_nothing() -> None:
    channel = LogChannel(lambda: None)
    assert await channel.drain()
    await channel.wait_until_free()
    assert elapsed() == 0


@in_virtual_time
async def test_streams_wait_while_many_lines_are_unread_and_events_go_first(channel: Channel) -> None:
    channel.fill()
    order: list[str] = []

    async def stream(name: str) -> None:
        await channel.log.wait_until_free()
        order.append(name)

    async def end() -> None:
        assert await channel.log.drain(within_s=3600)
        order.append("event")

    tasks = [asyncio.create_task(each) for each in (stream("first"), stream("second"), end())]
    await asyncio.sleep(60)
    assert order == []
    while channel.log.unread_bytes():
        channel.read()
    await asyncio.gather(*tasks)
    assert order == ["event", "first", "second"]


@in_virtual_time
async def test_logs_are_copied_as_a_whole_if_streamed_lines_may_be_missing(plane, channel: Channel) -> None:
    ref, pod = await running(plane)
    lines = Lines()
    waiting = wait(plane, ref, lines)
    plane.write(pod, "step\n")
    await asyncio.sleep(60)
    set_loop_local(LogChannel, channel.log)
    channel.own.send(LINE)
    plane.finish_all()
    event = await waiting
    assert lines.of_rank == ["step"]
    assert not await sleep_until_resumable(asyncio.get_running_loop().time() - 60)
    event = without_streamed(event, lines.log)
    assert said(await copied_after(plane, event)) == ["step"]
    assert "may not have read all streamed lines" in lines.all[-1]


@in_virtual_time
async def test_last_lines_of_a_trigger_are_read_before_its_event(channel: Channel) -> None:
    set_loop_local(LogChannel, channel.log)
    assert log_channel() is channel.log
    channel.own.send(LINE)
    resumed = asyncio.create_task(sleep_until_resumable(asyncio.get_running_loop().time() - 60))
    await asyncio.sleep(1)
    assert not resumed.done()
    channel.read()
    assert await resumed


def test_channel_is_the_socket_that_airflow_gives_to_structlog() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOG_AS_A_TRIGGERER], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout.split("\n")[:2] == ["None", "a line"]
