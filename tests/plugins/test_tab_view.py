"""The view of a gang: phases, summaries, deadlines, counts and rows, from snapshots of the cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.event import build_event
from airflow_provider_gangjobs.gang.outcome.outcomes import outcome_of
from airflow_provider_gangjobs.gang.outcome.rank_rows import Tone
from airflow_provider_gangjobs.gang.outcome.restarts import Progress, Progressed, Restart, SupervisorReport, TimeUse
from airflow_provider_gangjobs.gang.record import to_text
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.pods import Counts
from airflow_provider_gangjobs.gang.state.reason import because, stopped_by_deadline
from airflow_provider_gangjobs.gang.state.waiting import Evidence
from airflow_provider_gangjobs.gang.view import GangSnapshot, view_job
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_PROGRESS,
)
from airflow_provider_gangjobs.plugins.app import is_final
from airflow_provider_gangjobs.plugins.caches import FROM_END_EVENT, JOB_DELETED, JOB_NOT_FOUND, SnapshotResult
from airflow_provider_gangjobs.plugins.html import (
    ROWS_MAX,
    SPAN_WIDTH_MIN,
    PageContext,
    bar_of,
    columns_of,
    render,
)
from airflow_provider_gangjobs.plugins.locator import GangLocator
from tests.unit.builders import CREATED, REF, JobBuilder, at, event, job, pod, ranks

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.kube.views import PodView

LOCATOR = GangLocator(TaskKey("dag", "run", "task"), REF, "kubernetes_default")
WITH_DEADLINES = replace(LOCATOR, deadlines=Deadlines(queue_s=600, assemble_s=300, run_s=3600))
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."


def snapshot_of(built: JobBuilder, pods: list[PodView] | None = None, **more: Any) -> GangSnapshot:
    return GangSnapshot(built.read(), pods or [], **{"outcomes": (), "is_whole": True, **more})


def build_view(locator: GangLocator, snapshot: GangSnapshot | None, now: datetime, error: str = "") -> GangView:
    """Return the view that the tab shows."""
    view = SnapshotResult(snapshot, error).view(locator, now)
    assert view is not None
    return view


def with_requests(built: JobBuilder, **resources: str) -> JobBuilder:
    return built.record(requests=resources)


def ranks_and_states(view: GangView) -> list[tuple[int | None, str]]:
    return [(row.rank, row.state) for row in view.pods]


def deadline_of(view: GangView) -> tuple[str, datetime | None]:
    return view.deadline_parameter, view.deadline


def test_unschedulable_gang_shows_its_requests_and_the_missing_resource() -> None:
    built = with_requests(job(8).started(3), **{"nvidia.com/gpu": "1", "cpu": "4", "memory": "16Gi"})

    view = build_view(LOCATOR, snapshot_of(built, ranks(8, lambda it: it.unschedulable(NO_GPU))), at(120))

    assert (view.phase, view.since) == ("assembling", at(3))
    assert view.category == "InsufficientResources"
    assert view.details["Requests"] == "1 nvidia.com/gpu, 4 cpu, 16Gi memory"
    assert list(view.states.items()) == [("waiting for a node", 8)]
    assert {row.message for row in view.pods} == {view.summary}


def test_pod_with_the_cause_comes_before_pods_that_wait_for_it() -> None:
    generic = "pod group is unschedulable, minCount (3) cannot be satisfied: 2 scheduled"
    pods = [pod(f"p{rank}").rank(rank).unschedulable(NO_GPU if rank == 2 else generic).view() for rank in range(3)]

    view = build_view(LOCATOR, snapshot_of(job(3).started(3), pods), at(30))

    assert [(row.rank, row.message[:12]) for row in view.pods] == [
        (2, "Insufficient"),
        (0, generic[:12]),
        (1, generic[:12]),
    ]


def test_refused_pods_are_explained_by_the_jobs_events() -> None:
    refused = event("FailedCreate", "exceeded quota: team, used: pods=10")

    view = build_view(LOCATOR, snapshot_of(job(4).started(3), ranks(1), evidence=Evidence((refused,))), at(30))

    assert view.category == "PodsRefused"
    assert list(view.states.items()) == [("waiting for a node", 1), ("without a pod", 3)]


NEXT_DEADLINES: dict[str, Any] = {
    "queued": (job().suspended(0), ("queue_timeout", at(600))),
    "assembling": (job().started(10), ("assemble_timeout", at(310))),
    "over": (job().failed(20), ("", None)),
}


@pytest.mark.parametrize(("built", "deadline"), NEXT_DEADLINES.values(), ids=NEXT_DEADLINES)
def test_next_deadline_is_the_deadline_of_the_phase(built: JobBuilder, deadline: tuple[str, datetime | None]) -> None:
    assert deadline_of(build_view(WITH_DEADLINES, snapshot_of(built), at(60))) == deadline


def test_running_gang_shows_its_deadline_and_how_long_ranks_have_run() -> None:
    pods = ranks(4, lambda it: it.on("node-a").running(since=20))

    view = build_view(WITH_DEADLINES, snapshot_of(job().started(3), pods), at(80))

    assert (view.phase, view.since, deadline_of(view)) == ("running", at(20), ("run_timeout", at(3620)))
    assert {(row.state, row.seconds, row.node, row.tone) for row in view.pods} == {
        ("running", 60.0, "node-a", Tone.BUSY)
    }
    assert [(part.phase, part.began, part.seconds) for part in bar_of(view, at(80))] == [
        ("submitted", at(0), 3.0),
        ("assembling", at(3), 17.0),
        ("running", at(20), 60.0),
    ]


def test_execution_timeout_is_shown_when_it_comes_first() -> None:
    locator = replace(WITH_DEADLINES, deadline=at(200).timestamp())

    view = build_view(locator, snapshot_of(job().started(10)), at(60))
    assert deadline_of(view) == ("execution_timeout", at(200))


def test_ranks_that_have_started_have_a_log() -> None:
    pods = [pod("a").rank(0).running(), pod("b").rank(1).unschedulable(NO_GPU), pod("c").rank(2).failed(1)]
    view = build_view(LOCATOR, snapshot_of(job(4).started(3), [one.view() for one in pods]), at(120))
    assert {row.rank for row in view.pods if row.has_log} == {0, 2}


def test_failed_gang_shows_the_cause_first() -> None:
    pods = [
        pod("a").rank(0).on("n").failed(143, when=62).view(),
        pod("b").rank(1).on("n").succeeded(when=50, message='{"secret": 1}').view(),
        pod("c").rank(2).on("n").failed(137, when=60, reason="OOMKilled", message="killed").view(),
    ]

    view = build_view(LOCATOR, snapshot_of(job(3).started(3).failed(63), pods), at(90))

    assert (view.phase, view.deadline) == ("failed", None)
    assert view.category == "OutOfMemory"
    assert ranks_and_states(view) == [(2, "failed"), (0, "failed"), (1, "succeeded")]
    assert (view.pods[0].exit_code, view.pods[0].message) == (137, "OOMKilled: killed")
    assert [row.tone for row in view.pods] == [Tone.BAD, Tone.QUIET, Tone.GOOD], "only the cause is red"
    assert view.pods[2].message == "", "only readers of XComs may see results"


def test_outcomes_of_pods_that_are_gone_come_from_the_ledger() -> None:
    recorded = outcome_of(pod("a").rank(0).failed(3).view())
    unrecorded = pod("b").rank(1).failed(143, when=61).view()

    view = build_view(LOCATOR, snapshot_of(job(2).started(3).failed(62), [unrecorded], outcomes=[recorded]), at(90))

    assert ranks_and_states(view) == [(0, "failed"), (1, "failed")]


def test_recorded_pod_that_is_still_there_is_shown_once() -> None:
    ended = pod("a").rank(0).failed(3).view()

    view = build_view(LOCATOR, snapshot_of(job(1).started(3), [ended], outcomes=[outcome_of(ended)]), at(90))

    assert ranks_and_states(view) == [(0, "failed")]


def test_live_pods_with_a_message_come_first() -> None:
    pods = [
        pod("a").rank(0).on("n").running().view(),
        pod("b").rank(1).on("n").waiting("ContainerCreating").view(),
        pod("c").rank(2).on("n").waiting("ErrImagePull", "no such image").view(),
        pod("d").rank(3).on("n").running().deleted(asked=20).view(),
    ]

    view = build_view(LOCATOR, snapshot_of(job().started(3), pods), at(30))

    assert ranks_and_states(view) == [(2, "starting"), (1, "starting"), (3, "terminating"), (0, "running")]
    assert view.pods[0].message == "ErrImagePull: no such image"


def test_stopped_gang_shows_the_reason_of_the_stop() -> None:
    late = stopped_by_deadline(Phase.ASSEMBLING, because("Unschedulable"), "4 pods, none placed")
    built = job().suspended(30).stopped(late)

    view = build_view(WITH_DEADLINES, snapshot_of(built), at(60))

    assert (view.phase, view.deadline) == ("failed", None)
    assert view.summary == "The gang was assembling when assemble_timeout passed: 4 pods, none placed"
    assert "raise assemble_timeout" in view.remedy


def test_no_rank_is_the_cause_of_a_stop() -> None:
    late = stopped_by_deadline(Phase.RUNNING, because("Running"), "2/2 ranks")
    pods = ranks(2, lambda it: it.on("n").failed(143, when=31))

    view = build_view(LOCATOR, snapshot_of(job(2).suspended(30).stopped(late), pods), at(60))

    assert {row.tone for row in view.pods} == {Tone.QUIET}


def test_number_of_rows_is_limited_and_counts_are_complete() -> None:
    pods = ranks(ROWS_MAX + 50, lambda it: it.on("n").running())

    view = build_view(LOCATOR, snapshot_of(job(ROWS_MAX + 50).started(3), pods), at(30))

    html = render(PageContext(LOCATOR.key, view, "", "", "", at(30)), nonce="n", part=True)
    assert html.count('<th scope="row">') == ROWS_MAX
    assert "50 more ranks are not shown" in html
    assert view.states == {"running": ROWS_MAX + 50}


def test_large_gang_shows_the_jobs_counters() -> None:
    built = with_requests(
        job(100_000).started(3).counts(active=99_990, ready=60_000, failed=2, succeeded=8), cpu="500m"
    )
    sample = [pod("x").rank(7).on("n").failed(9).view(), *ranks(2, lambda it: it.unschedulable(NO_GPU))]

    view = build_view(WITH_DEADLINES, snapshot_of(built, sample, is_whole=False), at(60))

    assert (view.phase, view.since) == ("assembling", at(3))
    assert list(view.states.items()) == [
        ("failed", 2),
        ("waiting or starting", 39_990),
        ("running", 60_000),
        ("succeeded", 8),
    ]
    assert view.category == "InsufficientResources"
    assert ranks_and_states(view)[0] == (7, "failed")
    assert view.pods_omitted == 100_000 - 3
    assert deadline_of(view) == ("assemble_timeout", at(303))


def test_large_queued_gang_shows_its_time_limit() -> None:
    view = build_view(WITH_DEADLINES, snapshot_of(job(5000).suspended(2), is_whole=False), at(60))

    assert (view.phase, *deadline_of(view)) == ("queued", "queue_timeout", at(602))


def test_large_failed_gang_shows_the_cause() -> None:
    sample = [pod("x").rank(7).on("n").failed(9).view()]

    view = build_view(LOCATOR, snapshot_of(job(5000).started(3).failed(50), sample, is_whole=False), at(60))

    assert (view.phase, view.since) == ("failed", at(50))
    assert view.category == "ApplicationFailed"


def test_attempt_whose_ranks_were_not_read_has_the_reason_of_its_job() -> None:
    view = view_job(job().failed(30, message="Job has reached the specified backoff limit").read())

    assert (view.attempt, view.phase) == (0, "failed")
    assert view.summary == "BackoffLimitExceeded: Job has reached the specified backoff limit."
    assert view.remedy == "", "its pods may have left outcomes"


@pytest.mark.parametrize(
    ("built", "summary"),
    [
        (job().complete(60).counts(succeeded=4), "All 4 ranks succeeded."),
        (job(1).complete(9), "Its only rank succeeded."),
    ],
)
def test_gang_that_has_succeeded_says_so_first(built: JobBuilder, summary: str) -> None:
    view = build_view(LOCATOR, snapshot_of(built), at(90))

    assert (view.summary, view.remedy, view.is_over) == (summary, "", True)


def test_short_phase_is_visible_in_the_bar() -> None:
    view = build_view(LOCATOR, snapshot_of(job().started(1)), at(100_000))

    bar = bar_of(view, at(100_000))
    assert [part.phase for part in bar] == ["submitted", "assembling"]
    assert bar[0].width > SPAN_WIDTH_MIN * 0.9
    assert sum(part.width for part in bar) == pytest.approx(100, abs=0.1)


def test_phases_of_a_deleted_gang_come_from_its_end_event() -> None:
    times = {"submitted": at(0), "admitted": at(30), "running": at(40), "ended": at(100)}
    end = build_event(REF, Status.SUCCEEDED, Phase.SUCCEEDED, queue="gpu", times=times)

    view = build_view(replace(LOCATOR, end=end), None, at(200))

    assert [(part.phase, part.seconds) for part in bar_of(view, at(200))] == [
        ("queued", 30.0),
        ("assembling", 10.0),
        ("running", 60.0),
    ]
    assert view.since == at(100)


STOPPED = job(2).started(10).failed(60, "DeadlineExceeded")
STOPPED.stopped(stopped_by_deadline(Phase.RUNNING, because("Running"), "2/2 ranks"))
RAN = [outcome_of(pod(f"p{n}").rank(n).failed(143, when=60, started=30).view()) for n in range(2)]
TOLD = build_event(REF, Status.TIMEOUT, Phase.RUNNING, times={"running": at(30)})
BARS = {
    "by the outcomes of its ranks": (snapshot_of(STOPPED, outcomes=RAN), None, ["assembling", "running"]),
    "by what its task was told": (snapshot_of(STOPPED), TOLD, ["assembling", "running"]),
    "by its Job alone": (snapshot_of(STOPPED), None, ["since start"]),
}


@pytest.mark.parametrize(("snapshot", "end", "phases"), BARS.values(), ids=BARS)
def test_bar_of_a_stopped_gang_whose_pods_are_gone_calls_no_running_assembling(
    snapshot: GangSnapshot, end: GangEvent | None, phases: list[str]
) -> None:
    view = build_view(replace(LOCATOR, end=end), snapshot, at(90))

    assert [part.phase for part in bar_of(view, at(90))] == ["submitted", *phases]
    assert view.summary == "The gang was running when run_timeout passed: 2/2 ranks"
    assert view.remedy == "Raise run_timeout."


def test_end_event_of_a_timeout_names_the_parameter() -> None:
    end = build_event(REF, Status.TIMEOUT, Phase.QUEUED, message="the quota is used up", seconds=600.0)

    view = build_view(replace(LOCATOR, end=end), None, at(700))

    assert view.phase == "failed"
    assert view.summary == "The gang was queued when queue_timeout passed: the quota is used up"
    assert view.remedy == "Raise queue_timeout."


def test_column_without_a_value_is_left_out() -> None:
    waiting = build_view(LOCATOR, snapshot_of(job(2).started(3), ranks(2)), at(30))
    running = build_view(LOCATOR, snapshot_of(job(2).started(3), ranks(2, lambda it: it.on("n").running())), at(30))

    assert columns_of(waiting) == frozenset()
    assert columns_of(running) == {"node", "seconds", "has_log"}


def test_deleted_gang_is_shown_from_its_end_event() -> None:
    ended = outcome_of(pod("a").rank(0).on("n").succeeded(when=65).view())
    end = build_event(
        REF, Status.SUCCEEDED, Phase.SUCCEEDED, attempt=2, counts=Counts(ranks=30, succeeded=30), outcomes=[ended]
    )

    view = build_view(replace(LOCATOR, end=end), None, at(90))

    assert (view.phase, view.attempt, view.is_over, view.exists) == ("succeeded", 2, True, False)
    assert view.summary == "All 30 ranks succeeded."
    assert [(row.rank, row.seconds, row.node) for row in view.pods] == [(0, 60.0, "n")]
    assert (view.pods_omitted, view.states, view.notes) == (29, {"succeeded": 30}, (JOB_DELETED,))


def test_gang_of_an_unreachable_cluster_is_shown_from_its_end_event() -> None:
    end = build_event(
        REF, Status.FAILED, Phase.FAILED, message="rank 1 ran out of memory", counts=Counts(ranks=4, failed=1)
    )

    view = build_view(replace(LOCATOR, end=end), None, at(90), "The cluster does not answer.")

    assert (view.phase, view.summary) == ("failed", "rank 1 ran out of memory")
    assert view.notes == (f"The cluster does not answer. {FROM_END_EVENT}",)
    assert SnapshotResult(error="The cluster does not answer.").view(LOCATOR, at(90)) is None


def test_missing_permissions_are_noted() -> None:
    view = build_view(LOCATOR, snapshot_of(job().started(3), is_whole=False, unread=("pods",)), at(60))

    assert view.all_notes == ["The pods could not be read."]


FINAL = {
    "task and gang are over": ("success", job().complete(60), "", True),
    "the task is not finished": ("running", job().complete(60), "", False),
    "the gang is not over": ("success", job().started(3), "", False),
    "the Job does not exist": ("failed", None, JOB_NOT_FOUND, True),
    "the Job does not exist, and the task runs": ("running", None, JOB_NOT_FOUND, False),
    "the cluster cannot be read": ("failed", None, "It does not answer.", False),
}


@pytest.mark.parametrize(("state", "built", "error", "final"), FINAL.values(), ids=FINAL)
def test_page_is_refreshed_until_task_and_gang_are_over(
    state: str, built: JobBuilder | None, error: str, final: bool
) -> None:
    view = build_view(LOCATOR, snapshot_of(built), at(90)) if built is not None else None

    assert is_final(PageContext(LOCATOR.key, view, "", error, state, at(90))) is final


def test_row_of_a_failed_rank_shows_the_end_of_its_output_and_the_summary_its_exception() -> None:
    lines = "\n".join(f"line {number} of rank 1" for number in range(80))
    output = (
        f'{lines}\nTraceback (most recent call last):\n  File "t.py", line 3, in f\n    x["a"]\nKeyError: \'missing\'\n'
    )
    failed = pod("p1").rank(1).on("n").failed(1, message=output).view()

    view = build_view(LOCATOR, snapshot_of(job(2).started(1).failed(9), [failed]), at(20))

    assert "exited with code 1 on n: KeyError: 'missing'" in view.summary
    assert view.pods[0].message.endswith("x[\"a\"] KeyError: 'missing'")
    assert view.pods[0].message.startswith("...")


def test_restarts_and_progress_of_a_running_gang_are_those_of_its_job() -> None:
    report = SupervisorReport(
        restarts=(Restart(number=1, rank=1, kind="exit", code=3, at=CREATED.timestamp(), took_s=1.5),),
        total=1,
        progress=Progress(step=3, total=12, eta_s=7200),
    )
    built = job(2).started(3).record(restarts=3).annotation(ANNOTATION_PROGRESS, to_text(Progressed(report=report)))
    built.claim("ti-1")

    view = build_view(LOCATOR, snapshot_of(built, ranks(2, lambda it: it.running())), at(60))

    assert view.restarts == report.restarts
    details = view.details
    assert details["Progress"] == "step 3 of 12 (25 %)"
    assert details["Estimated time left"] == "2 h 00 min"
    assert details["Restarts in place"] == "1 of 3"
    assert details["Followed by"] == "task instance ti-1"


def test_end_without_the_job_tells_what_the_time_was_used_for() -> None:
    use = TimeUse(useful_s=10.0, lost_s=0.0, waiting_s=0.0)
    end = build_event(REF, Status.SUCCEEDED, Phase.SUCCEEDED, counts=Counts(ranks=2), restarts_total=1, restarts_max=3)

    details = build_view(replace(LOCATOR, end=with_fields(end, time_use=use)), None, at(60)).details

    assert details["Restarts in place"] == "1 of 3"
    assert details["Time used"] == "20.0 rank s, of which 20.0 useful, 0.0 lost, 0.0 waiting"
