"""The view of a gang: phases, summaries, deadlines, counts and rows, from snapshots of the cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.gang.capacity import Capacity, ResourceUse
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.event import Status, build_event
from airflow_provider_gangjobs.gang.outcome.outcomes import outcome_of
from airflow_provider_gangjobs.gang.outcome.rank_rows import Tone
from airflow_provider_gangjobs.gang.outcome.restarts import Progress, Restart, SupervisorReport
from airflow_provider_gangjobs.gang.outcome.time_use import TimeUse
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.gang.state.diagnosis import stopped_by_deadline
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.pod_index import Counts
from airflow_provider_gangjobs.gang.state.stopped import BY_EXECUTION_TIMEOUT, Stopped, Stopper
from airflow_provider_gangjobs.gang.state.waiting import Evidence, WaitCause
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_PROGRESS,
    ANNOTATION_RESTARTS,
    LABEL_ATTEMPT,
)
from airflow_provider_gangjobs.plugins.locator import GangLocator
from airflow_provider_gangjobs.plugins.tab_view import (
    FROM_END_EVENT,
    JOB_DELETED,
    ROWS_MAX,
    SPAN_WIDTH_MIN,
    DeadlineView,
    build_view,
    describe_end,
    view_without_cluster,
)
from airflow_provider_gangjobs.tracking.explanation import GangSnapshot
from tests.unit.builders import CREATED, REF, JobBuilder, at, event, job, pod, podgroup, ranks

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.plugins.tab_view import GangView

LOCATOR = GangLocator(TaskKey("dag", "run", "task"), REF, "kubernetes_default")
WITH_DEADLINES = replace(LOCATOR, deadlines=Deadlines(queue_s=600, assemble_s=300, run_s=3600))
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."


def snapshot_of(built: JobBuilder, pods: list[PodView] | None = None, **more: Any) -> GangSnapshot:
    return GangSnapshot(jobs=[built.obj], job=built.obj, pods=pods or [], **more)


def with_requests(built: JobBuilder, **resources: str) -> JobBuilder:
    containers = [{"name": "main", "resources": {"requests": resources}}]
    return built.spec(template={"spec": {"containers": containers}})


def ranks_and_states(view: GangView) -> list[tuple[int | None, str]]:
    return [(row.rank, row.state) for row in view.rows]


def test_unschedulable_gang_shows_its_requests_and_the_missing_resource() -> None:
    built = with_requests(job(8).started(3), **{"nvidia.com/gpu": "1", "cpu": "4", "memory": "16Gi"})

    view = build_view(LOCATOR, snapshot_of(built, ranks(8, lambda it: it.unschedulable(NO_GPU))), at(120))

    assert (view.phase, view.since, view.tone) == ("assembling", at(3), Tone.WAIT)
    assert (view.category, view.remedy[:21]) == ("InsufficientResources", "Ask for fewer workers")
    assert view.summary == (
        "Needs 8 x (1 nvidia.com/gpu, 4 cpu, 16Gi memory) at once. Insufficient nvidia.com/gpu on 3 of 3 nodes"
    )
    assert view.state_counts == (("waiting for a node", 8),)
    assert {row.message for row in view.rows} == {"Insufficient nvidia.com/gpu on 3 of 3 nodes"}


def test_free_capacity_takes_the_place_of_the_requests() -> None:
    built = with_requests(job(8).started(3), **{"nvidia.com/gpu": "1"})
    use = ResourceUse("nvidia.com/gpu", needed=8, free=3, total=12, largest_free=2)
    known = Capacity(text="Needs 8 x 1 nvidia.com/gpu; 3 of 12 are free", room=3, ranks=8, resources=(use,))
    pods = ranks(8, lambda it: it.unschedulable(NO_GPU))

    view = build_view(LOCATOR, snapshot_of(built, pods, evidence=Evidence(capacity=known)), at(120))

    assert view.summary == f"Insufficient nvidia.com/gpu on 3 of 3 nodes. {known.text}"


def test_pod_with_the_cause_comes_before_pods_that_wait_for_it() -> None:
    generic = "pod group is unschedulable, minCount (3) cannot be satisfied: 2 scheduled"
    pods = [pod(f"p{rank}").rank(rank).unschedulable(NO_GPU if rank == 2 else generic).view() for rank in range(3)]

    view = build_view(LOCATOR, snapshot_of(job(3).started(3), pods), at(30))

    assert [(row.rank, row.message[:12]) for row in view.rows] == [
        (2, "Insufficient"),
        (0, generic[:12]),
        (1, generic[:12]),
    ]


def test_requests_of_a_rank_are_shown_once() -> None:
    built = with_requests(job(2).started(3), cpu="2")

    waiting = build_view(LOCATOR, snapshot_of(built, ranks(2)), at(30))
    running = build_view(LOCATOR, snapshot_of(built, ranks(2, lambda it: it.on("n").running())), at(30))

    assert "Requests of each rank" not in dict(waiting.details)
    assert dict(running.details)["Requests of each rank"] == "2 cpu"


def test_gang_with_a_podgroup_waits_until_all_pods_can_be_placed() -> None:
    view = build_view(LOCATOR, snapshot_of(job(4).started(3), ranks(4), podgroup=podgroup(4)), at(10))

    assert view.summary == "The scheduler waits until 4 pods can be placed at once"


def test_refused_pods_are_explained_by_the_jobs_events() -> None:
    refused = event("FailedCreate", "exceeded quota: team, used: pods=10")

    view = build_view(LOCATOR, snapshot_of(job(4).started(3), ranks(1), evidence=Evidence((refused,))), at(30))

    assert view.summary == "3 pods could not be created: exceeded quota: team, used: pods=10"
    assert view.state_counts == (("waiting for a node", 1), ("without a pod", 3))


@pytest.mark.parametrize(
    ("built", "deadline"),
    [
        pytest.param(job().suspended(0), DeadlineView("queue_timeout", at(600)), id="queued"),
        pytest.param(job().started(10), DeadlineView("assemble_timeout", at(310)), id="assembling"),
        pytest.param(job().failed(20), None, id="over"),
    ],
)
def test_next_deadline_is_the_deadline_of_the_phase(built: JobBuilder, deadline: DeadlineView | None) -> None:
    assert build_view(WITH_DEADLINES, snapshot_of(built), at(60)).deadline == deadline


def test_running_gang_shows_its_deadline_and_how_long_ranks_have_run() -> None:
    pods = ranks(4, lambda it: it.on("node-a").running(since=20))

    view = build_view(WITH_DEADLINES, snapshot_of(job().started(3), pods), at(80))

    assert (view.phase, view.since, view.deadline) == ("running", at(20), DeadlineView("run_timeout", at(3620)))
    assert {(row.state, row.seconds, row.node, row.tone) for row in view.rows} == {
        ("running", 60.0, "node-a", Tone.BUSY)
    }
    assert [(span.phase, span.began, span.seconds) for span in view.spans] == [
        ("submitted", at(0), 3.0),
        ("assembling", at(3), 17.0),
        ("running", at(20), 60.0),
    ]


def test_execution_timeout_is_shown_when_it_comes_first() -> None:
    locator = replace(WITH_DEADLINES, deadline=at(200).timestamp())

    assert build_view(locator, snapshot_of(job().started(10)), at(60)).deadline == DeadlineView(
        "execution_timeout", at(200)
    )


def test_ranks_that_have_started_have_a_log() -> None:
    pods = [pod("a").rank(0).running(), pod("b").rank(1).unschedulable(NO_GPU), pod("c").rank(2).failed(1)]
    view = build_view(LOCATOR, snapshot_of(job(4).started(3), [one.view() for one in pods]), at(120))
    assert view.ranks_with_log == {0, 2}


def test_failed_gang_shows_the_cause_first() -> None:
    pods = [
        pod("a").rank(0).on("n").failed(143, when=62).view(),
        pod("b").rank(1).on("n").succeeded(when=50, message='{"secret": 1}').view(),
        pod("c").rank(2).on("n").failed(137, when=60, reason="OOMKilled", message="killed").view(),
    ]

    view = build_view(LOCATOR, snapshot_of(job(3).started(3).failed(63), pods), at(90))

    assert (view.phase, view.tone, view.deadline) == ("failed", Tone.BAD, None)
    assert view.summary.startswith("rank 2 ran out of memory")
    assert "resources.memory" in view.remedy
    assert ranks_and_states(view) == [(2, "failed"), (0, "failed"), (1, "succeeded")]
    assert (view.rows[0].exit_code, view.rows[0].message) == (137, "OOMKilled: killed")
    assert [row.tone for row in view.rows] == [Tone.BAD, Tone.QUIET, Tone.GOOD], "only the cause is red"
    assert view.rows[2].message == "", "only readers of XComs may see results"


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
    assert view.rows[0].message == "ErrImagePull: no such image"
    assert view.summary == 'ErrImagePull of image "x:1" at rank 2: no such image'


def test_stopped_gang_shows_the_reason_of_the_stop() -> None:
    late = stopped_by_deadline(Phase.ASSEMBLING, WaitCause.UNSCHEDULABLE, "4 pods, none placed")
    built = job().suspended(30).stopped(late)

    view = build_view(WITH_DEADLINES, snapshot_of(built), at(60))

    assert (view.phase, view.deadline) == ("failed", None)
    assert view.summary == "The gang was assembling when assemble_timeout passed: 4 pods, none placed"
    assert "raise assemble_timeout" in view.remedy


def test_gang_past_the_execution_timeout_says_so() -> None:
    built = job().suspended(30).stopped(BY_EXECUTION_TIMEOUT)

    assert build_view(LOCATOR, snapshot_of(built), at(60)).summary == "The execution_timeout of the task passed"


def test_no_rank_is_the_cause_of_a_stop() -> None:
    late = stopped_by_deadline(Phase.RUNNING, WaitCause.RANKS, "2/2 ranks")
    pods = ranks(2, lambda it: it.on("n").failed(143, when=31))

    view = build_view(LOCATOR, snapshot_of(job(2).suspended(30).stopped(late), pods), at(60))

    assert {row.tone for row in view.rows} == {Tone.QUIET}


def test_gang_that_its_queue_has_given_up_shows_what_to_do() -> None:
    data = {"reason": "DeactivatedDueToRequeuingLimitExceeded"}
    built = job().suspended(30).stopped(Stopped(Stopper.QUEUE, "too many re-queuing retries", data=data))

    view = build_view(LOCATOR, snapshot_of(built), at(60))

    assert view.summary.startswith("too many re-queuing retries")
    assert view.remedy.startswith("Ask for fewer workers")


def test_number_of_rows_is_limited_and_counts_are_complete() -> None:
    pods = ranks(ROWS_MAX + 50, lambda it: it.on("n").running())

    view = build_view(LOCATOR, snapshot_of(job(ROWS_MAX + 50).started(3), pods), at(30))

    assert (len(view.rows), view.rows_omitted) == (ROWS_MAX, 50)
    assert view.state_counts == (("running", ROWS_MAX + 50),)


def test_large_gang_shows_the_jobs_counters() -> None:
    built = with_requests(
        job(100_000).started(3).counts(active=99_990, ready=60_000, failed=2, succeeded=8), cpu="500m"
    )
    sample = [pod("x").rank(7).on("n").failed(9).view(), *ranks(2, lambda it: it.unschedulable(NO_GPU))]

    view = build_view(WITH_DEADLINES, snapshot_of(built, sample, is_whole=False), at(60))

    assert (view.phase, view.since) == ("assembling", at(3))
    assert view.state_counts == (("failed", 2), ("waiting or starting", 39_990), ("running", 60_000), ("succeeded", 8))
    assert view.summary == "Needs 100000 x (500m cpu) at once. Insufficient nvidia.com/gpu on 3 of 3 nodes"
    assert ranks_and_states(view)[0] == (7, "failed")
    assert view.rows_omitted == 100_000 - 3
    assert view.deadline == DeadlineView("assemble_timeout", at(303))


def test_large_queued_gang_shows_its_time_limit() -> None:
    view = build_view(WITH_DEADLINES, snapshot_of(job(5000).suspended(2), is_whole=False), at(60))

    assert (view.phase, view.deadline) == ("queued", DeadlineView("queue_timeout", at(602)))


def test_large_failed_gang_shows_the_cause() -> None:
    sample = [pod("x").rank(7).on("n").failed(9).view()]

    view = build_view(LOCATOR, snapshot_of(job(5000).started(3).failed(50), sample, is_whole=False), at(60))

    assert (view.phase, view.since) == ("failed", at(50))
    assert view.summary.startswith("rank 7 exited with code 9")


def test_other_attempts_have_one_row_each() -> None:
    current, earlier = job(), job(uid="earlier").failed(30, message="Job has reached the specified backoff limit")
    current.label(LABEL_ATTEMPT, "1")

    view = build_view(LOCATOR, GangSnapshot(jobs=[current.obj, earlier.obj], job=current.obj), at(60))

    assert view.attempt == 1
    assert [(row.attempt, row.phase) for row in view.other_attempts] == [(0, "failed")]
    assert view.other_attempts[0].reason == "BackoffLimitExceeded: Job has reached the specified backoff limit"


def test_outcomes_of_another_attempt_say_why_it_failed() -> None:
    current, earlier = job(), job(uid="earlier").failed(30, message="Job has reached the specified backoff limit")
    evicted = pod("a").rank(1).on("node-1").failed(137, when=29).disrupted("EvictionByEvictionAPI", 29)
    why = describe_end(earlier.read(), [outcome_of(evicted.view())])

    snapshot = GangSnapshot(jobs=[current.obj, earlier.obj], job=current.obj)
    view = build_view(LOCATOR, snapshot, at(60), {"earlier": why})

    assert view.other_attempts[0].reason.startswith("rank 1 was evicted")
    assert view.other_attempts[0].reason.endswith("on node-1")


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

    assert [span.phase for span in view.spans] == ["submitted", "assembling"]
    assert view.spans[0].width > SPAN_WIDTH_MIN * 0.9
    assert sum(span.width for span in view.spans) == pytest.approx(100, abs=0.1)


def test_phases_of_a_deleted_gang_come_from_its_end_event() -> None:
    times = {"submitted": at(0), "admitted": at(30), "running": at(40), "ended": at(100)}
    end = build_event(REF, Status.SUCCEEDED, Phase.SUCCEEDED, queue="gpu", times=times)

    view = build_view(replace(LOCATOR, end=end), GangSnapshot(), at(200))

    assert [(span.phase, span.seconds) for span in view.spans] == [
        ("queued", 30.0),
        ("assembling", 10.0),
        ("running", 60.0),
    ]
    assert view.since == at(100)


def test_end_event_of_a_timeout_names_the_parameter_and_its_limit() -> None:
    end = build_event(REF, Status.TIMEOUT, Phase.QUEUED, message="the quota is used up", seconds=600.0)

    view = build_view(replace(LOCATOR, end=end), GangSnapshot(), at(700))

    assert view.phase == "failed"
    assert view.summary == "The gang was queued when queue_timeout (10 min 00 s) passed: the quota is used up"
    assert view.remedy == "Raise queue_timeout."


def test_column_without_a_value_is_left_out() -> None:
    waiting = build_view(LOCATOR, snapshot_of(job(2).started(3), ranks(2)), at(30))
    running = build_view(LOCATOR, snapshot_of(job(2).started(3), ranks(2, lambda it: it.on("n").running())), at(30))

    assert waiting.columns == frozenset()
    assert running.columns == {"node", "seconds"}


def test_deleted_gang_is_shown_from_its_end_event() -> None:
    ended = outcome_of(pod("a").rank(0).on("n").succeeded(when=65).view())
    end = build_event(
        REF, Status.SUCCEEDED, Phase.SUCCEEDED, attempt=2, counts=Counts(ranks=30, succeeded=30), outcomes=[ended]
    )

    view = build_view(replace(LOCATOR, end=end, is_finished=True), GangSnapshot(), at(90))

    assert (view.phase, view.tone, view.attempt, view.is_final) == ("succeeded", Tone.GOOD, 2, True)
    assert view.summary == "All 30 ranks succeeded."
    assert [(row.rank, row.seconds, row.node) for row in view.rows] == [(0, 60.0, "n")]
    assert (view.rows_omitted, view.state_counts, view.notes) == (
        29,
        (("succeeded", 30),),
        (JOB_DELETED,),
    )


def test_gang_of_an_unreachable_cluster_is_shown_from_its_end_event() -> None:
    end = build_event(
        REF, Status.FAILED, Phase.FAILED, message="rank 1 ran out of memory", counts=Counts(ranks=4, failed=1)
    )

    view = view_without_cluster(replace(LOCATOR, end=end), "The cluster does not answer.")

    assert view is not None
    assert (view.phase, view.summary, view.is_final) == ("failed", "rank 1 ran out of memory", False)
    assert view.notes == (f"The cluster does not answer. {FROM_END_EVENT}",)
    assert view_without_cluster(LOCATOR, "The cluster does not answer.") is None


def test_missing_job_without_an_end_event_is_not_final_while_the_task_runs() -> None:
    view = build_view(LOCATOR, GangSnapshot(), at(90))

    assert (view.phase, view.is_final) == ("deleted", False)


def test_missing_permissions_are_noted() -> None:
    view = build_view(LOCATOR, snapshot_of(job().started(3), is_whole=False, unread=("pods",)), at(60))

    assert view.notes == ("The connection may not list pods in this namespace.",)


@pytest.mark.parametrize(
    ("is_finished", "built", "is_final"),
    [
        pytest.param(True, job().complete(60), True, id="task and gang are over"),
        pytest.param(False, job().complete(60), False, id="the task is not finished"),
        pytest.param(True, job().started(3), False, id="the gang is not over"),
    ],
)
def test_page_is_refreshed_until_task_and_gang_are_over(is_finished: bool, built: JobBuilder, is_final: bool) -> None:
    assert build_view(replace(LOCATOR, is_finished=is_finished), snapshot_of(built), at(90)).is_final is is_final


def test_row_of_a_failed_rank_shows_the_end_of_its_output_and_the_summary_its_exception() -> None:
    lines = "\n".join(f"line {number} of rank 1" for number in range(80))
    output = (
        f'{lines}\nTraceback (most recent call last):\n  File "t.py", line 3, in f\n    x["a"]\nKeyError: \'missing\'\n'
    )
    failed = pod("p1").rank(1).on("n").failed(1, message=output).view()

    view = build_view(LOCATOR, snapshot_of(job(2).started(1).failed(9), [failed]), at(20))

    assert "exited with code 1 on n: KeyError: 'missing'" in view.summary
    assert view.rows[0].message.endswith("x[\"a\"] KeyError: 'missing'")
    assert view.rows[0].message.startswith("...")


def test_restarts_and_progress_of_a_running_gang_are_those_of_its_job() -> None:
    report = SupervisorReport(
        restarts=(Restart(number=1, rank=1, kind="exit", code=3, at=CREATED.timestamp(), took_s=1.5),),
        total=1,
        progress=Progress(step=3, total=12, eta_s=7200),
    )
    built = job(2).started(3)
    built.obj["metadata"]["annotations"] = {ANNOTATION_RESTARTS: "together:3", ANNOTATION_PROGRESS: report.to_json()}

    view = build_view(LOCATOR, snapshot_of(built, ranks(2, lambda it: it.running())), at(60))

    assert view.restarts == report.restarts
    assert ("Progress", "step 3 of 12 (25 %)") in view.details
    assert ("Estimated time left", "2.0 h") in view.details
    assert ("Restarts in place", "1 of 3") in view.details


def test_end_without_the_job_tells_what_the_time_was_used_for() -> None:
    use = TimeUse(useful_s=10.0, lost_s=0.0, waiting_s=0.0)
    end = build_event(REF, Status.SUCCEEDED, Phase.SUCCEEDED, counts=Counts(ranks=2), restarts_total=1, restarts_max=3)

    view = build_view(replace(LOCATOR, end=with_fields(end, time_use=use)), GangSnapshot(), at(60))

    assert ("Restarts in place", "1 of 3") in view.details
    assert (
        "Time used",
        "20.0 rank s, of which 20.0 useful, 0.0 lost, 0.0 waiting",
    ) in view.details
