"""The lines that a triggerer writes: they are read before events, and what supervisors tell is among them."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.attempt.triggerer.log_streaming import (
    UNREAD_BYTES_MAX,
    LogChannel,
    log_channel,
    sleep_until_resumable,
    without_streamed,
)
from airflow_provider_gangjobs.cluster.loop_local import set_loop_local
from airflow_provider_gangjobs.gang.outcome.restarts import Progressed, SupervisorReport
from airflow_provider_gangjobs.gang.record import read_mark
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_PROGRESS
from tests.annotations import recorded
from tests.provider.recorded_callbacks import PROGRESS
from tests.provider.test_log_streaming import Lines, copied_after, said, streaming, wait
from tests.provider.virtual_time import cancel, elapsed, in_virtual_time
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.provider.virtual_control_plane import VirtualControlPlane

pytestmark = in_virtual_time


# -- An event follows the lines of its trigger, and a stream never fills the channel to Airflow's supervisor ---------

LINE = b"x" * 1000 + b"\n"

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


async def test_lines_that_are_not_read_in_time_may_be_missing(channel: Channel) -> None:
    channel.own.send(LINE)
    assert not await channel.log.drain(within_s=5)
    assert elapsed() == pytest.approx(5, abs=0.1)


async def test_lines_may_be_missing_where_the_system_cannot_count_them() -> None:
    assert not await LogChannel(unknown).drain()


async def test_process_without_a_supervisor_waits_for_nothing() -> None:
    channel = LogChannel(lambda: None)
    assert await channel.drain()
    await channel.wait_until_free()
    assert elapsed() == 0


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


async def test_logs_are_copied_as_a_whole_if_streamed_lines_may_be_missing(plane, channel: Channel) -> None:
    _, pod, lines, waiting = await streaming(plane)
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


# -- What supervisors tell in the streamed log of rank 0 is shown, and kept with the position of the stream ----------

STREAMED_S = 30
RESTARTS = {"annotations": recorded(restarts=3)}


def line(event: str, message: str, **fields: Any) -> str:
    return f"gangjobs-supervisor {json.dumps({'event': event, 'message': message, **fields})}\n"


RESTART = line("restart", "Rank 1 has failed.", number=1, rank=1, kind="exit", code=3)
RESTARTED = line("restarted", "All 2 ranks run again.", number=1, took_s=1.25)
PROGRESS_LINE = line("progress", "Step 5 of 10.", step=5, total=10, eta_s=60)
SUMMARY = line(
    "summary",
    "The programs have been restarted once.",
    restarts=[{"number": 1, "rank": 1, "kind": "exit", "code": 3, "took_s": 1.25, "lost_s": 2}],
    restarts_total=1,
    stopped_s=1.25,
    lost_s=2,
)


def report_on_job(plane: VirtualControlPlane) -> SupervisorReport:
    job = plane.job()
    assert job is not None
    return read_mark(Progressed, job["metadata"]["annotations"].get(ANNOTATION_PROGRESS)).report


async def test_messages_are_shown_and_kept_with_the_position(plane: VirtualControlPlane) -> None:
    _, pod, lines, waiting = await streaming(plane, spec=RESTARTS)
    plane.write(pod, f"begins\n{RESTART}{RESTARTED}{PROGRESS_LINE}")
    await asyncio.sleep(STREAMED_S)

    assert lines.of_rank == ["begins", "Rank 1 has failed.", "All 2 ranks run again.", "Step 5 of 10."]
    report = report_on_job(plane)
    assert (report.total, report.restarts[0].took_s) == (1, 1.25)
    assert report.progress is not None
    assert report.progress.percent == 50
    plane.finish_all()
    event = await waiting
    assert event.restarts_total == 1
    assert event.time_use is not None
    assert event.time_use.useful_s is None, "nobody has told how much was lost"


async def test_next_triggerer_knows_the_restarts_before_it(plane: VirtualControlPlane) -> None:
    ref, pod, _, first = await streaming(plane, spec=RESTARTS)
    plane.write(pod, RESTART + RESTARTED)
    await asyncio.sleep(STREAMED_S)
    await cancel(first)

    second = wait(plane, ref, Lines())
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    event = await second
    assert [(one.number, one.rank) for one in event.restarts] == [(1, 1)]


async def test_summary_is_read_at_the_end_if_nothing_is_streamed(plane: VirtualControlPlane) -> None:
    _, pod, _, waiting = await streaming(plane, spec=RESTARTS, stream_ranks=[])
    plane.write(pod, f"begins\n{SUMMARY}")
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    event = await waiting
    assert (event.restarts_total, event.restarts_max) == (1, 3)
    assert event.time_use is not None
    assert event.time_use.lost_s == 2


async def test_gang_that_its_queue_has_stopped_has_the_restarts_since_it_runs_again(plane: VirtualControlPlane) -> None:
    _, pod, _, waiting = await streaming(plane, spec=RESTARTS)
    plane.write(pod, RESTART + RESTARTED)
    await asyncio.sleep(STREAMED_S)
    plane.write(pod, SUMMARY)
    await plane.suspend_and_resume()
    pod = plane.pod("train", 0)["metadata"]["name"]
    restarts = [{"number": 1, "rank": 0, "kind": "hung", "took_s": 4}]
    plane.write(pod, line("summary", "Once.", restarts=restarts, restarts_total=1, stopped_s=4, lost_s=5))
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    event = await waiting
    assert [(one.number, one.rank, one.kind) for one in event.restarts] == [(1, 0, "hung")]
    assert event.time_use is not None
    assert event.time_use.lost_s == 5


async def test_lines_of_another_rank_count_nothing(plane: VirtualControlPlane) -> None:
    *_, waiting = await streaming(plane, spec=RESTARTS, stream_ranks=[1])
    plane.write(plane.pod("train", 1)["metadata"]["name"], RESTART)
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    assert (await waiting).restarts == ()


async def test_line_in_the_log_of_a_gang_without_supervisors_counts_nothing(plane: VirtualControlPlane) -> None:
    _, pod, _, waiting = await streaming(plane)
    plane.write(pod, RESTART)
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    event = await waiting
    assert (event.restarts_total, event.restarts_max) == (None, None)
    assert event.time_use is not None
    assert event.time_use.lost_s == 0


async def test_failed_rank_shows_the_lines_before_its_restart(plane: VirtualControlPlane) -> None:
    _, pod, lines, waiting = await streaming(plane, spec=RESTARTS)
    plane.write(plane.pod("train", 1)["metadata"]["name"], "".join(f"step {number}\n" for number in range(30)))
    await asyncio.sleep(STREAMED_S)
    plane.write(pod, RESTART + RESTART)
    await asyncio.sleep(STREAMED_S)

    of_failed = [text for text in lines.all if text.startswith("[rank 1]")]
    assert of_failed == ["[rank 1] (last lines before restart 1)"] + [f"[rank 1] step {n}" for n in range(20, 30)]
    plane.finish_all()
    await waiting


async def test_callback_is_told_of_progress_and_restarts(plane: VirtualControlPlane) -> None:
    PROGRESS.clear()
    recorder = "tests.provider.recorded_callbacks.ProgressRecorder"
    _, pod, _, waiting = await streaming(plane, spec=RESTARTS, callbacks=[recorder], task={"dag_id": "d"})
    plane.write(pod, RESTART + PROGRESS_LINE)
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()
    await waiting

    assert [call["event"] for call in PROGRESS] == ["restart", "progress"]
    assert PROGRESS[1]["progress"] == {"step": 5, "total": 10, "eta_s": 60}
    assert PROGRESS[1]["restarts"] == 1
