"""What supervisors tell in the streamed log of rank 0 is shown, and kept with the position of the stream."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorReport
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_PROGRESS, ANNOTATION_RESTARTS
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.provider.recorded_callbacks import PROGRESS
from tests.provider.test_log_streaming import Lines, running, wait
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from tests.provider.virtual_control_plane import VirtualControlPlane

STREAMED_S = 30
RESTARTS = {"annotations": {ANNOTATION_RESTARTS: "together:3"}}


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
    return SupervisorReport.parse(job["metadata"]["annotations"].get(ANNOTATION_PROGRESS))


@in_virtual_time
async def test_messages_are_shown_and_kept_with_the_position(plane: VirtualControlPlane) -> None:
    ref, pod = await running(plane, **RESTARTS)
    lines = Lines()
    waiting = wait(plane, ref, lines)
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


@in_virtual_time
async def test_next_triggerer_knows_the_restarts_before_it(plane: VirtualControlPlane) -> None:
    ref, pod = await running(plane, **RESTARTS)
    first = wait(plane, ref, Lines())
    plane.write(pod, RESTART + RESTARTED)
    await asyncio.sleep(STREAMED_S)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    second = wait(plane, ref, Lines())
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    event = await second
    assert [(one.number, one.rank) for one in event.restarts] == [(1, 1)]


@in_virtual_time
async def test_summary_is_read_at_the_end_if_nothing_is_streamed(plane: VirtualControlPlane) -> None:
    ref, pod = await running(plane, **RESTARTS)
    waiting = wait(plane, ref, Lines(), stream_ranks=[])
    plane.write(pod, f"begins\n{SUMMARY}")
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    event = await waiting
    assert (event.restarts_total, event.restarts_max) == (1, 3)
    assert event.time_use is not None
    assert event.time_use.lost_s == 2


@in_virtual_time
async def test_gang_that_its_queue_has_stopped_has_the_restarts_since_it_runs_again(plane: VirtualControlPlane) -> None:
    ref, pod = await running(plane, **RESTARTS)
    waiting = wait(plane, ref, Lines())
    plane.write(pod, RESTART + RESTARTED)
    await asyncio.sleep(STREAMED_S)
    plane.write(pod, SUMMARY)
    for is_suspended, ranks in ((True, 0), (False, 2)):
        plane.registry.patch(JOBS, "train", "default", {"spec": {"suspend": is_suspended}}, PatchKind.MERGE)
        await plane.until(lambda ranks=ranks: plane.running_ranks() == ranks)
    pod = plane.pod("train", 0)["metadata"]["name"]
    restarts = [{"number": 1, "rank": 0, "kind": "hung", "took_s": 4}]
    plane.write(pod, line("summary", "Once.", restarts=restarts, restarts_total=1, stopped_s=4, lost_s=5))
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    event = await waiting
    assert [(one.number, one.rank, one.kind) for one in event.restarts] == [(1, 0, "hung")]
    assert event.time_use is not None
    assert event.time_use.lost_s == 5


@in_virtual_time
async def test_lines_of_another_rank_count_nothing(plane: VirtualControlPlane) -> None:
    ref, _ = await running(plane, **RESTARTS)
    waiting = wait(plane, ref, Lines(), stream_ranks=[1])
    plane.write(plane.pod("train", 1)["metadata"]["name"], RESTART)
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    assert (await waiting).restarts == ()


@in_virtual_time
async def test_line_in_the_log_of_a_gang_without_supervisors_counts_nothing(plane: VirtualControlPlane) -> None:
    ref, pod = await running(plane)
    waiting = wait(plane, ref, Lines())
    plane.write(pod, RESTART)
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()

    event = await waiting
    assert (event.restarts_total, event.restarts_max) == (None, None)
    assert event.time_use is not None
    assert event.time_use.lost_s == 0


@in_virtual_time
async def test_failed_rank_shows_the_lines_before_its_restart(plane: VirtualControlPlane) -> None:
    ref, pod = await running(plane, **RESTARTS)
    lines = Lines()
    waiting = wait(plane, ref, lines)
    plane.write(plane.pod("train", 1)["metadata"]["name"], "".join(f"step {number}\n" for number in range(30)))
    await asyncio.sleep(STREAMED_S)
    plane.write(pod, RESTART + RESTART)
    await asyncio.sleep(STREAMED_S)

    of_failed = [text for text in lines.all if text.startswith("[rank 1]")]
    assert of_failed == ["[rank 1] (last lines before restart 1)"] + [f"[rank 1] step {n}" for n in range(20, 30)]
    plane.finish_all()
    await waiting


@in_virtual_time
async def test_callback_is_told_of_progress_and_restarts(plane: VirtualControlPlane) -> None:
    ref, pod = await running(plane, **RESTARTS)
    PROGRESS.clear()
    waiting = wait(
        plane, ref, Lines(), callbacks=["tests.provider.recorded_callbacks.ProgressRecorder"], task={"dag_id": "d"}
    )
    plane.write(pod, RESTART + PROGRESS_LINE)
    await asyncio.sleep(STREAMED_S)
    plane.finish_all()
    await waiting

    assert [call["event"] for call in PROGRESS] == ["restart", "progress"]
    assert PROGRESS[1]["progress"] == {"step": 5, "total": 10, "eta_s": 60}
    assert PROGRESS[1]["restarts"] == 1
