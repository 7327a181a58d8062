"""While a gang runs, each line of its logs is streamed once and in order, and delays no event."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections import Counter
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import FINISH_S, HOLD_S, STREAM_AFTER_S
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.spec import LogOptions, Logs
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.views import PodView, view
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_PROGRESS, ANNOTATION_STOPPED
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking.logs.copy import TaskLog, copy_logs
from airflow_provider_gangjobs.tracking.logs.gang_streams import (
    UNNOTED_AFTER_S,
    GangStreams,
    PositionStore,
    WantedLogs,
)
from airflow_provider_gangjobs.tracking.logs.last_lines import RANKS_MAX
from airflow_provider_gangjobs.tracking.logs.rank_stream import (
    BURST,
    PARTS_PER_TURN,
    RATE,
    SAVE_EVERY_MIN_S,
    StreamLimits,
    StreamSlots,
)
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS, PODS
from tests.provider.role_gangs import CLAIM, end_all, pod_of, submit_roles
from tests.provider.virtual_time import cancel, elapsed, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from tests.provider.virtual_control_plane import VirtualControlPlane

pytestmark = in_virtual_time


class Lines(logging.Handler):
    """A logger that keeps the lines of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []
        self.log = logging.Logger("task")
        self.log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.all += record.getMessage().split("\n")

    @property
    def of_rank(self) -> list[str]:
        """Return the lines of rank 0, without the notes of the provider."""
        return said(self.all)


RANK_0 = WantedLogs(ranks=[0], bytes_max=2**20)


class ListOutput:
    """An output that has each line at once."""

    def __init__(self, lines: list[str]) -> None:
        self.write = lines.extend

    async def wait_until_free(self) -> None: ...

    async def drain(self, within_s: float) -> bool:
        return True


class SlowOutput(ListOutput):
    """An output that takes two hundred lines a second, as Airflow does under load."""

    async def wait_until_free(self) -> None:
        await asyncio.sleep(PARTS_PER_TURN / 200)


def said(lines: list[str]) -> list[str]:
    return [line.removeprefix("[rank 0] ") for line in lines if line.startswith("[rank 0] ") and "] (" not in line]


def wait(plane: VirtualControlPlane, ref: GangRef, lines: Lines, **args: Any) -> asyncio.Task[GangEvent]:
    arguments = TriggerArgs(
        kubernetes_conn_id="c",
        namespace=ref.namespace,
        name=ref.name,
        uid=ref.uid,
        **{"claim": "try-1", "stream_ranks": [0], "stream_bytes_max": 2**20, **args},
    )
    return asyncio.create_task(wait_for_event(arguments, "ended", lines.log, config=plane.config))


async def running(plane: VirtualControlPlane, **options: Any) -> tuple[GangRef, str]:
    ref = await plane.run_gang(workers=2, **options)
    pod = plane.pod("train", 0)["metadata"]["name"]
    plane.logs |= {one["metadata"]["name"]: "" for one in plane.pods()}
    return ref, pod


class Streaming(NamedTuple):
    """A running gang of two ranks, the pod of rank 0, and a trigger that streams its log."""

    ref: GangRef
    pod: str
    lines: Lines
    waiting: asyncio.Task[GangEvent]


async def streaming(
    plane: VirtualControlPlane, *, spec: Mapping[str, Any] = MappingProxyType({}), **args: Any
) -> Streaming:
    ref, pod = await running(plane, **spec)
    lines = Lines()
    return Streaming(ref, pod, lines, wait(plane, ref, lines, **args))


async def copied_after(plane: VirtualControlPlane, event: GangEvent, policy: Logs = Logs.RANK0_AND_FAILED) -> list[str]:
    lines: list[str] = []
    async with informers().client(plane.config) as client:
        outcomes = await GangService(client).outcomes(event.ref)
    await copy_logs(
        plane.client,
        event.ref,
        LogOptions(policy),
        TaskLog(lines.extend, positions=event.streamed, whole=event.whole_logs),
        outcomes=outcomes,
    )
    return lines


# -- while the gang runs -----------------------------------------------------------------------------------


async def test_lines_appear_while_the_gang_runs_and_the_end_continues_after_them(plane):
    _, pod, lines, waiting = await streaming(plane)
    for number in range(20):
        plane.write(pod, f"step {number}\n")
        await asyncio.sleep(1)
    assert lines.of_rank[:15] == [f"step {number}" for number in range(15)]
    plane.write(pod, "the end\n")
    plane.finish_all()
    event = await waiting
    rest = await copied_after(plane, event)
    assert lines.of_rank + said(rest) == [*(f"step {number}" for number in range(20)), "the end"]
    assert "after what was streamed" in rest[0]


async def test_lines_of_the_new_pod_appear_after_a_queue_has_preempted_the_gang(plane):
    _, first, lines, waiting = await streaming(plane)
    plane.write(first, "step 0\n")
    await plane.until(lambda: "step 0" in lines.of_rank)

    await plane.suspend_and_resume()
    second = plane.pod("train", 0)["metadata"]["name"]
    assert second != first
    plane.write(second, "step 1\n")
    await plane.until(lambda: "step 1" in lines.of_rank)

    plane.write(second, "the end\n")
    plane.finish_all()
    rest = await copied_after(plane, await waiting)
    assert lines.of_rank + said(rest) == ["step 0", "step 1", "the end"]


async def test_log_of_a_gang_that_ends_within_seconds_is_read_once_after_its_end(plane):
    _, pod, lines, waiting = await streaming(plane)
    plane.write(pod, "step\n")
    await asyncio.sleep(STREAM_AFTER_S - 2)
    plane.finish_all()
    event = await waiting
    assert (lines.of_rank, event.streamed, event.whole_logs) == ([], {}, ())
    assert said(await copied_after(plane, event)) == ["step"]


async def test_log_that_was_streamed_to_its_end_is_not_read_again(plane):
    _, pod, lines, waiting = await streaming(plane)
    plane.write(pod, "step\nlast words")
    plane.finish("train", 0)
    await asyncio.sleep(10)
    plane.finish("train", 1)
    event = await waiting
    assert lines.of_rank == ["step", "last words"]
    assert lines.all.count("[rank 0] (end of the log)") == 1
    assert event.whole_logs == (f"{pod}/main",)
    plane.arm("status", method="GET", path=f"/{pod}/log", code=503, times=None)
    assert [line[:8] for line in await copied_after(plane, event, Logs.ALL)] == ["[rank 1]"] * 2


async def test_end_of_a_log_that_exceeds_the_limit_of_its_stream_is_copied(plane):
    _, pod, lines, waiting = await streaming(plane, stream_bytes_max=1000)
    plane.write(pod, "begins\n" + "y" * 5000)
    plane.finish("train", 0)
    await asyncio.sleep(60)
    plane.finish("train", 1)
    event = await waiting
    assert event.whole_logs == ()
    written = [*lines.all, *await copied_after(plane, event)]
    assert sum(line.count("y") for line in written if "] (" not in line) == 5000


@pytest.mark.parametrize("args", [{"stream_ranks": ()}, {"stream_ranks": [1]}], ids=["none", "another rank"])
async def test_only_the_wanted_ranks_are_streamed(plane, args):
    _, pod, lines, waiting = await streaming(plane, **args)
    plane.write(pod, "step\n")
    await asyncio.sleep(60)
    plane.finish_all()
    event = await waiting
    assert lines.of_rank == []
    assert said(await copied_after(plane, event)) == ["step"]


async def test_ranks_of_a_gang_with_roles_are_those_of_the_gang(plane):
    """Each role counts its indexes from 0: rank 2 of the gang is worker 1, and the leader is rank 0."""
    ref = await submit_roles(plane)
    await plane.until(lambda: plane.running_ranks(ref.name) == 4)
    lines = Lines()
    for pod in plane.pods(ref.name):
        plane.logs[pod["metadata"]["name"]] = f"I am {pod['metadata']['name']}\n"
    waiting = wait(plane, ref, lines, claim=CLAIM, stream_ranks=[0, 2])
    await asyncio.sleep(60)
    end_all(plane, ref)
    await waiting
    leader, worker = (pod_of(plane, ref, *which)["metadata"]["name"] for which in (("leader", 0), ("worker", 1)))
    said_by = sorted(line for line in lines.all if "I am" in line)
    assert [line.partition("I am ")[2] for line in said_by] == [leader, worker]


async def test_gang_that_waits_for_its_ranks_opens_no_log(plane):
    ref = plane.submit(workers=100)
    lines = Lines()
    waiting = wait(plane, ref, lines)
    await asyncio.sleep(600)
    assert plane.client.statistics().requests.get("log", 0) == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("logs of")]
    await cancel(waiting)


FAULTS = {
    "a broken stream": [{"kind": "drop-after", "chunks": chunks} for chunks in (0, 1, 3, 2)],
    "a refusal": [{"kind": "status", "code": code} for code in (503, 500, 429)],
    "a kubelet that does not know its pods yet": [{"kind": "drop-after", "chunks": 1}, {"kind": "status", "code": 404}],
    "a stream that is silent": [{"kind": "half-open", "chunks": chunks} for chunks in (0, 2)],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
async def test_stream_that_breaks_neither_loses_nor_repeats_a_line(plane, faults):
    for fault in faults:
        plane.arm(method="GET", path="/log", query="follow", **fault)
    _, pod, lines, waiting = await streaming(plane)
    expected = []
    for number in range(60):
        expected += [f"step {number}"] * (number % 3 + 1)  # equal lines
        plane.write(pod, f"step {number}\n" * (number % 3 + 1))
        await asyncio.sleep(15 if number % 10 else 60)
    assert len(lines.of_rank) > 100
    plane.finish_all()
    event = await waiting
    assert lines.of_rank + said(await copied_after(plane, event)) == expected


async def test_long_line_that_was_cut_continues_after_the_break(plane):
    plane.arm("drop-after", method="GET", path="/log", query="follow", chunks=2)
    _, pod, lines, waiting = await streaming(plane)
    plane.write(pod, f"first\n{'x' * 200_000}\nlast\n")
    await asyncio.sleep(60)
    await cancel(waiting)
    written = [line for line in lines.all if line.startswith("[rank 0") and "] (" not in line]
    assert [line.partition("] ")[0] for line in written[1:-1]] == ["[rank 0", *["[rank 0, continued"] * 3]
    assert "".join(line.partition("] ")[2] for line in written[1:-1]) == "x" * 200_000
    assert [line for line in written if "x" not in line] == ["[rank 0] first", "[rank 0] last"]


# -- pods that are deleted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_after_s", [STREAM_AFTER_S - 2, STREAM_AFTER_S + 2])
@pytest.mark.parametrize("args", [{}, {"stream_ranks": (), "kept_logs": "rank0+failed"}], ids=["streamed", "selected"])
async def test_log_of_rank_0_is_whole_if_another_rank_fails(plane, args, fails_after_s):
    """The Job controller deletes the other pods of a gang, and their logs with them, when a rank fails."""
    _, pod, lines, waiting = await streaming(plane, **args)
    await asyncio.sleep(fails_after_s)
    plane.write(pod, "".join(f"line {number}\n" for number in range(20_000)))
    plane.finish("train", 1, exit_code=1)
    event = await waiting
    assert pod not in [one["metadata"]["name"] for one in plane.pods()]
    rest = await copied_after(plane, event)
    assert lines.of_rank + said(rest) == [f"line {number}" for number in range(20_000)]
    assert not any("left out" in line or "no log" in line for line in (*lines.all, *rest))


@pytest.mark.parametrize(("bytes_max", "kept"), [(2**20, "rank0+failed"), (1000, "none")], ids=["fast", "at its limit"])
async def test_stream_reads_the_rest_of_a_deleted_pod_at_once(plane, bytes_max, kept):
    """The kubelet removes the log with the containers, so the rest is read while the pod still ends."""
    ref, pod = await running(plane)
    plane.stop_s = 5.0
    lines = Lines()
    waiting = wait(plane, ref, lines, stream_bytes_max=bytes_max, kept_logs=kept, kept_bytes_max=2**20)
    await asyncio.sleep(5)
    plane.write(pod, "".join(f"line {number}\n" for number in range(4000)))
    await asyncio.sleep(5)
    plane.finish("train", 1, exit_code=1)
    await asyncio.sleep(1)
    plane.write(pod, "last words\n")
    event = await waiting
    expected = [*(f"line {number}" for number in range(4000)), "last words"]
    assert lines.of_rank == expected
    assert event.whole_logs == (f"{pod}/main",)
    assert (await copied_after(plane, event))[0].startswith("[rank 1]")


async def test_last_line_of_a_deleted_pod_is_written_once_if_it_has_no_line_end(plane):
    _, pod, lines, waiting = await streaming(plane)
    plane.write(pod, "step\nlast words")
    await asyncio.sleep(5)
    plane.finish("train", 1, exit_code=1)
    event = await waiting
    assert lines.of_rank == ["step", "last words"]
    assert event.whole_logs == (f"{pod}/main",)


async def test_logs_of_all_deleted_ranks_are_read_if_the_task_wants_all(plane):
    ref = await plane.run_gang(workers=4)
    for rank in range(4):
        plane.logs[plane.pod("train", rank)["metadata"]["name"]] = f"I am rank {rank}\n"
    lines = Lines()
    waiting = wait(plane, ref, lines, kept_logs="all", kept_bytes_max=2**20)
    await asyncio.sleep(5)
    plane.finish("train", 1, exit_code=1)
    rest = await copied_after(plane, await waiting, Logs.ALL)
    said_lines = sorted(line for line in (*lines.all, *rest) if "I am" in line)
    assert said_lines == [f"[rank {rank}] I am rank {rank}" for rank in range(4)]


async def test_log_of_rank_0_is_read_also_if_the_pods_of_many_other_ranks_are_deleted_first(plane):
    ref = await plane.run_gang(workers=RANKS_MAX + 2)
    plane.logs |= {pod["metadata"]["name"]: "step\n" for pod in plane.pods()}
    plane.finish("train", 1, exit_code=1)
    await plane.until(lambda: sum("deletionTimestamp" in pod["metadata"] for pod in plane.pods()) > RANKS_MAX)
    wanted = WantedLogs(ranks=[], bytes_max=0, kept=Logs.ALL)
    lines = await lines_within(FINISH_S, plane, ref, wanted=wanted, pods=plane.pods()[::-1])
    assert said(lines) == ["step"]


@pytest.mark.parametrize("streams", [[0], []], ids=["streamed", "selected"])
async def test_log_that_cannot_be_read_before_its_pod_is_gone_has_a_note(plane, streams):
    _, pod, _, waiting = await streaming(plane, stream_ranks=streams, kept_logs="rank0+failed")
    plane.write(pod, "step\n")
    await asyncio.sleep(5)
    plane.arm("half-open", method="GET", path="/log", chunks=0, times=None)
    plane.arm("status", method="GET", path="/log", code=503, times=None)
    del plane.logs[pod]
    plane.finish("train", 1, exit_code=1)
    ended_at = plane.clock.now()
    event = await waiting
    assert event.status is Status.FAILED
    assert (plane.clock.now() - ended_at).total_seconds() < 120
    plane.faults.remove()
    (note,) = [line for line in await copied_after(plane, event) if line.startswith("[rank 0]")]
    what = "left out here: what was not streamed could not be read" if streams else "no log"
    assert note == f"[rank 0] ({what}: pod {pod} was deleted, and its log with it)"


async def test_pod_whose_log_is_not_answered_is_recorded_at_once_and_released_soon(plane):
    plane.arm("half-open", method="GET", path="/log", chunks=0, times=None)
    _, pod, _, waiting = await streaming(plane)
    await asyncio.sleep(5)
    plane.finish("train", 1, exit_code=1)
    uid = plane.pod("train", 0)["metadata"]["uid"]
    failed_at = elapsed()
    await plane.until(lambda: uid in plane.ledger())
    assert elapsed() - failed_at < plane.stop_s + 2
    await plane.until(lambda: pod not in [one["metadata"]["name"] for one in plane.pods()])
    assert elapsed() - failed_at < plane.stop_s + HOLD_S + 2
    await waiting


async def lines_within(seconds: float, plane: VirtualControlPlane, ref: GangRef, **options: Any) -> list[str]:
    """Return the lines that streams write if they have to finish within so many seconds."""
    lines: list[str] = []
    made = streams(plane, ref, lines, "c", **options)
    running = asyncio.create_task(made.run())
    await made.finish(seconds)
    running.cancel()
    return lines


async def lines_after_the_deletion(
    plane: VirtualControlPlane, ref: GangRef, output: type[ListOutput], within_s: float
) -> list[str]:
    """Return the lines that this output takes in so many seconds, if a failure has deleted the pod of rank 0 before."""
    plane.finish("train", 1, exit_code=1)
    await asyncio.sleep(plane.stop_s + 5)
    return await lines_within(within_s, plane, ref, output=output)


async def test_lines_of_a_deleted_pod_are_written_also_if_airflow_takes_them_slowly(plane):
    ref, pod = await running(plane)
    plane.write(pod, "".join(f"line {number}\n" for number in range(20_000)))
    lines = await lines_after_the_deletion(plane, ref, SlowOutput, FINISH_S)
    assert said(lines) == [f"line {number}" for number in range(20_000)]


async def test_log_that_exceeds_the_memory_has_its_end_and_the_counts_of_what_is_left_out(plane):
    _, pod, lines, waiting = await streaming(
        plane, stream_ranks=(), kept_logs="all", kept_bytes_max=2**17, stream_bytes_max=0
    )
    plane.write(pod, "".join(f"line {number:<94}\n" for number in range(20_000)))
    await asyncio.sleep(5)
    plane.finish("train", 1, exit_code=1)
    await waiting
    (note,) = [line for line in lines.all if "left out here" in line]
    left_out = int(note.partition("left out here: ")[2].partition(" lines")[0].replace(",", ""))
    assert left_out + len(lines.of_rank) == 20_000
    assert lines.of_rank[-1].split() == ["line", "19999"]
    assert 2**16 < sum(map(len, lines.of_rank)) < 2**18


class StuckOutput(ListOutput):
    """An output that takes no line for some seconds."""

    async def wait_until_free(self) -> None:
        await asyncio.sleep(7)


async def test_long_lines_that_are_written_too_late_have_their_end_and_the_counts_of_what_is_left_out(plane):
    ref, pod = await running(plane)
    plane.write(pod, "".join(f"{number} {'x' * 40_000}\n" for number in range(4)))
    lines = await lines_after_the_deletion(plane, ref, StuckOutput, 5.0)
    (note,) = [line for line in lines if "left out here" in line]
    left_out = int(note.partition("left out here: ")[2].partition(" lines")[0])
    assert left_out + len(said(lines)) == 4
    assert said(lines)[-1].startswith("3 ")


async def test_log_that_was_read_to_its_end_is_not_read_again_when_its_pod_is_deleted(plane):
    ref, pod = await running(plane)
    lines = Lines()
    plane.arm("status", method="PATCH", path=f"/{pod}", code=503, times=None)  # the pod stays held
    waiting = wait(plane, ref, lines)
    plane.write(pod, "step\n")
    plane.finish("train", 0)
    await asyncio.sleep(10)
    plane.registry.delete(PODS, pod, ref.namespace)
    del plane.logs[pod]
    await asyncio.sleep(10)
    plane.faults.remove()
    plane.finish("train", 1)
    event = await waiting
    assert lines.of_rank == ["step"]
    assert [line for line in lines.all if "not streamed" in line] == []
    assert event.whole_logs == (f"{pod}/main",)


async def test_deletion_that_is_seen_twice_at_once_ends_the_wait_for_a_slot(plane):
    ref, pod = await running(plane)
    loop_local(StreamLimits).slots = StreamSlots(0)
    lines: list[str] = []
    made = streams(plane, ref, lines, "c")
    streaming = asyncio.create_task(made.run())
    plane.write(pod, "step\n")
    await asyncio.sleep(1)
    deleted = copy.deepcopy(plane.pod(ref.name, 0))
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for _ in range(2):
        made.observe([view(PodView, deleted)])
        await asyncio.sleep(0)
    await asyncio.sleep(1)
    streaming.cancel()
    assert said(lines) == ["step"]


class FailingLines(Lines):
    """A logger that fails at the lines of ranks."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("[rank"):
            raise OSError("broken pipe")
        super().emit(record)


async def test_streams_that_have_failed_do_not_end_the_wait_when_a_rank_has_a_new_pod(plane):
    ref, pod = await running(plane)
    lines = FailingLines()
    waiting = wait(plane, ref, lines)
    plane.write(pod, "step\n")
    await asyncio.sleep(5)
    assert any("are not streamed any more" in line for line in lines.all)
    await plane.suspend_and_resume()
    plane.finish_all()
    assert (await waiting).status is Status.SUCCEEDED


# -- other processes ---------------------------------------------------------------------------------------


def stored_positions(plane: VirtualControlPlane, ref: GangRef, log: str = "try", process: str = "c") -> PositionStore:
    job = plane.job(ref.name) or {"metadata": {}}
    stored = job["metadata"].get("annotations", {}).get(ANNOTATION_PROGRESS, "")
    return PositionStore(plane.client, ref, stored, log, process)


def streams(
    plane: VirtualControlPlane,
    ref: GangRef,
    lines: list[str],
    process: str,
    log: str = "try",
    *,
    wanted: WantedLogs = RANK_0,
    output: type[ListOutput] = ListOutput,
    pods: list[Any] | None = None,
) -> GangStreams:
    """Return the streams of a process that sees these pods of the gang, by default the pods as they are now."""
    made = GangStreams(stored_positions(plane, ref, log, process), wanted, output=output(lines), mask=str)
    made.observe([view(PodView, pod) for pod in pods or plane.pods(ref.name)])
    return made


async def stream_for(stream: GangStreams, plane: VirtualControlPlane, pod: str, steps: range, *, save: bool) -> None:
    task = asyncio.create_task(stream.run())
    for number in steps:
        plane.write(pod, f"step {number}\n")
        await asyncio.sleep(1)
    await asyncio.sleep(2)
    await cancel(task)
    if save:
        await stream.save()


async def test_rank_whose_container_is_not_reported_does_not_end_the_streams_of_other_ranks(plane):
    ref, pod = await running(plane)
    unreported = copy.deepcopy(plane.pod(ref.name, 1))
    unreported["status"] |= {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": []}
    lines: list[str] = []
    pods = [unreported, plane.pod(ref.name, 0)]
    made = streams(plane, ref, lines, "c", wanted=RANK_0._replace(ranks=(0, 1)), pods=pods)
    await stream_for(made, plane, pod, range(3), save=False)
    assert said(lines) == [f"step {number}" for number in range(3)]


async def test_next_triggerer_continues_exactly_where_one_has_stopped(plane):
    ref, pod = await running(plane)
    lines: list[str] = []
    await stream_for(streams(plane, ref, lines, "a"), plane, pod, range(10), save=True)
    await stream_for(streams(plane, ref, lines, "b"), plane, pod, range(10, 20), save=True)
    assert said(lines) == [f"step {number}" for number in range(20)]
    assert not any("may appear" in line for line in lines)


async def test_next_triggerer_of_a_killed_one_loses_no_line_and_notes_a_short_repetition(plane):
    ref, pod = await running(plane)
    lines: list[str] = []
    await stream_for(streams(plane, ref, lines, "a"), plane, pod, range(70), save=False)
    before = len(lines)
    await stream_for(streams(plane, ref, lines, "b"), plane, pod, range(70, 80), save=False)
    after = said(lines[before:])
    assert after[-1] == "step 79"
    assert said(lines[:before]) == [f"step {number}" for number in range(70)]
    assert after == [f"step {number}" for number in range(int(after[0].split()[1]), 80)]
    assert 70 - SAVE_EVERY_MIN_S - 2 < int(after[0].split()[1]) <= 70
    assert "of about 5 seconds, may appear a second time" in lines[before]


async def test_repetition_is_noted_also_if_the_earlier_triggerer_was_killed_at_once(plane):
    ref, pod = await running(plane)
    lines: list[str] = []
    await stream_for(streams(plane, ref, lines, "a"), plane, pod, range(10), save=True)
    plane.arm("status", method="PATCH", path="/jobs/train$", skip=1, times=None)  # the save at the start succeeds
    await stream_for(streams(plane, ref, lines, "b"), plane, pod, range(10, 11), save=False)
    plane.faults.remove()
    await stream_for(streams(plane, ref, lines, "c"), plane, pod, range(11, 12), save=False)
    assert said(lines) == [*(f"step {number}" for number in range(11)), "step 10", "step 11"]
    assert sum("may appear a second time" in line for line in lines) == 1


async def test_gangs_that_began_together_save_their_positions_at_different_times(plane):
    loop_local(StreamLimits).gangs = 200
    refs = [plane.submit(f"gang-{number}", workers=1) for number in range(20)]
    await plane.until(lambda: all(plane.running_ranks(ref.name) == 1 for ref in refs))
    for ref in refs:
        plane.write(plane.pod(ref.name, 0)["metadata"]["name"], "step\n")
    tasks = [asyncio.create_task(streams(plane, ref, [], "a").run()) for ref in refs]
    await asyncio.sleep(70)
    saved_at: dict[str, float] = {}
    for change in plane.history.changes:
        if ANNOTATION_PROGRESS in change.obj["metadata"].get("annotations", {}):
            saved_at.setdefault(change.obj["metadata"]["name"], change.at)
    assert len(saved_at) == len(refs)
    assert max(Counter(int(at) for at in saved_at.values()).values()) <= 6
    await cancel(*tasks)


@pytest.mark.parametrize(("gangs", "seconds"), [(1, 5), (10, 5), (60, 30), (200, 60)])
def test_positions_are_saved_less_often_if_many_gangs_are_streamed(gangs: int, seconds: int) -> None:
    limits = StreamLimits()
    limits.gangs = gangs
    assert limits.save_every_s == seconds


@pytest.mark.parametrize(
    ("process", "log"),
    [
        pytest.param("a", "try", id="Airflow empties the log of a triggerer that gets its trigger again"),
        pytest.param("b", "next try", id="another try has another log"),
    ],
)
async def test_log_of_the_task_that_has_no_lines_gets_all_lines(plane, process, log):
    ref, pod = await running(plane)
    lines: list[str] = []
    await stream_for(streams(plane, ref, [], "a"), plane, pod, range(10), save=True)
    await stream_for(streams(plane, ref, lines, process, log), plane, pod, range(10, 12), save=False)
    assert said(lines) == [f"step {number}" for number in range(12)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"log": "try"}', '{"log": "try", "process": "x", "positions": 3}'])
async def test_unreadable_annotation_means_the_beginning(plane, text):
    ref, _ = await running(plane)
    annotations = {ANNOTATION_PROGRESS: text}
    plane.registry.patch(JOBS, ref.name, ref.namespace, {"metadata": {"annotations": annotations}}, PatchKind.MERGE)
    assert stored_positions(plane, ref).positions == {}


async def test_cancelled_trigger_saves_the_position_of_its_stream(plane):
    ref, pod, _, waiting = await streaming(plane)
    plane.write(pod, "step\n")
    await asyncio.sleep(5)
    await cancel(waiting)
    store = stored_positions(plane, ref, "try-1/0")
    assert list(store.positions) == [f"{pod}/main"]
    assert store.repeated_s == 0


@pytest.mark.parametrize(("runs_s", "saves"), [(1, 0), (30, 100)], ids=["killed at once", "killed later"])
async def test_lines_that_a_killed_triggerer_may_have_streamed_have_a_note_if_the_gang_ends_meanwhile(
    plane, runs_s, saves
):
    ref, pod = await running(plane)
    lines: list[str] = []
    plane.arm("status", method="PATCH", path="/jobs/train$", skip=saves, times=None)
    killed = streams(plane, ref, lines, "killed triggerer", "try-1/0")
    await stream_for(killed, plane, pod, range(runs_s), save=False)
    plane.faults.remove()
    await asyncio.sleep(UNNOTED_AFTER_S)
    plane.write(pod, "the end\n")
    plane.finish_all()
    await plane.until(lambda: (plane.job() or {}).get("status", {}).get("conditions"))
    later = Lines()
    event = await wait(plane, ref, later)
    rest = said(await copied_after(plane, event))
    assert rest == [*(f"step {number}" for number in range(runs_s)), "the end"][-len(rest) :]
    assert len(rest) <= SAVE_EVERY_MIN_S + 3
    (note,) = [line for line in later.all if "may appear a second time" in line]
    assert note.startswith(f"[{pod}/main] (" if saves else "[train] (")


async def test_gang_that_ends_while_its_triggerer_restarts_has_each_line_once(plane):
    ref, pod = await running(plane)
    lines: list[str] = []
    stopped = streams(plane, ref, lines, "stopped triggerer", "try-1/0")
    await stream_for(stopped, plane, pod, range(30), save=True)
    plane.write(pod, "the end\n")
    plane.finish_all()
    later = Lines()
    event = await wait(plane, ref, later)
    assert said(lines) + later.of_rank + said(await copied_after(plane, event)) == [
        *(f"step {number}" for number in range(30)),
        "the end",
    ]
    assert not any("a second time" in line for line in later.all)


# -- limits ------------------------------------------------------------------------------------------------


async def test_flood_is_written_at_the_rate_limit_and_delays_no_event(plane):
    _, pod, lines, waiting = await streaming(plane)
    plane.write(pod, "x\n" * 20_000)
    await asyncio.sleep(60)
    assert BURST < len(lines.of_rank) < BURST + 70 * RATE
    assert sum("the lines appear here later" in line for line in lines.all) == 1
    ended_at = plane.clock.now()
    plane.finish_all()
    event = await waiting
    assert (event.status, (plane.clock.now() - ended_at).total_seconds() < 5) == (Status.SUCCEEDED, True)
    assert len(lines.of_rank) + len(said(await copied_after(plane, event))) == 20_000


async def test_requests_for_streams_that_the_server_does_not_answer_delay_no_deadline(plane):
    """A client has 100 connections for requests, and the followers of all gangs share them with the streams."""
    ref, _ = await running(plane)
    plane.arm("delay", method="PATCH", path="/jobs/other-", delay_s=1000, times=None)
    stored = json.dumps({"log": "try", "process": "a", "exact": True, "positions": {"pod/main": ""}})
    async with informers().client(plane.config) as client:
        others = [GangRef(ref.namespace, f"other-{number}", "uid") for number in range(120)]
        stores = [PositionStore(client, other, stored, "try") for other in others]
        stuck = [
            asyncio.create_task(GangStreams(store, RANK_0, output=ListOutput([]), mask=str).run()) for store in stores
        ]
        await asyncio.sleep(1)
        waiting = wait(plane, ref, Lines(), time_limits={"run_timeout": 30})
        await plane.until(lambda: ANNOTATION_STOPPED in plane.job()["metadata"].get("annotations", {}), within_s=31)
        await cancel(*stuck, waiting)


async def test_streams_open_one_after_the_other(plane):
    slots = StreamSlots(size=64, slice_s=10, opens_per_s=20)
    opened: list[float] = []

    async def stream() -> None:
        while True:
            async with slots.slot():
                opened.append(elapsed())
                await asyncio.sleep(10_000)

    tasks = [asyncio.create_task(stream()) for _ in range(200)]
    await asyncio.sleep(60)
    assert len(opened) > 350
    assert min(later - earlier for earlier, later in pairwise(opened)) == pytest.approx(1 / 20)
    await cancel(*tasks)


async def test_streams_take_turns_when_there_are_more_than_slots(plane):
    slots = StreamSlots(size=2, slice_s=10)
    held: dict[int, int] = {}

    async def stream(number: int) -> None:
        while True:
            async with slots.slot():
                held[number] = held.get(number, 0) + 1
                await asyncio.sleep(10_000)

    tasks = [asyncio.create_task(stream(number)) for number in range(6)]
    await asyncio.sleep(301)
    assert sorted(held) == list(range(6))
    assert max(held.values()) - min(held.values()) <= 1
    await cancel(*tasks)
