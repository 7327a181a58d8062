"""What the page shows of a gang: phases, sentences, deadlines, numbers and rows, out of what the server said."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.labels import ANNOTATION_HALTED, LABEL_ATTEMPT
from airflow_provider_gangjobs.gang.outcome.event import Status, gang_event
from airflow_provider_gangjobs.gang.outcome.outcomes import outcome_of
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.progress import Counts
from airflow_provider_gangjobs.plugins.locator import Lead
from airflow_provider_gangjobs.plugins.rank_rows import Tone
from airflow_provider_gangjobs.plugins.view_model import GONE, ROWS_MAX, TOLD, Due, board, told
from airflow_provider_gangjobs.tracking.read.snapshot import GangSnapshot
from tests.unit.builders import REF, JobBuilder, at, event, job, pod, podgroup, ranks

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.plugins.view_model import Board

LEAD = Lead(TaskKey("dag", "run", "task"), REF, "kubernetes_default")
LIMITED = replace(LEAD, deadlines=Deadlines(queue_s=600, assemble_s=300, run_s=3600))
FULL = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."


def seen_of(built: JobBuilder, pods: list[PodView] | None = None, **more: Any) -> GangSnapshot:
    return GangSnapshot(jobs=[built.obj], job=built.obj, pods=pods or [], **more)


def asking(built: JobBuilder, **resources: str) -> JobBuilder:
    containers = [{"name": "main", "resources": {"requests": resources}}]
    return built.spec(template={"spec": {"containers": containers}})


def rank_rows(shown: Board) -> list[tuple[int | None, str]]:
    return [(row.rank, row.state) for row in shown.rows]


def test_gang_without_room_says_what_it_needs_and_what_lacks() -> None:
    built = asking(job(8).started(3), **{"nvidia.com/gpu": "1", "cpu": "4", "memory": "16Gi"})

    shown = board(LEAD, seen_of(built, ranks(8, lambda it: it.unschedulable(FULL))), at(120))

    assert (shown.phase, shown.since, shown.tone) == ("assembling", at(3), Tone.WAIT)
    assert shown.says == (
        "Needs 8 x (1 nvidia.com/gpu, 4 cpu, 16Gi memory) at once. Insufficient nvidia.com/gpu on 3 of 3 nodes"
    )
    assert shown.tally == (("waiting for a node", 8),)
    assert {row.message for row in shown.rows} == {"Insufficient nvidia.com/gpu on 3 of 3 nodes"}


def test_pod_that_found_no_node_comes_before_those_that_lack_it() -> None:
    lacking = "pod group is unschedulable, minCount (3) cannot be satisfied: 2 scheduled"
    pods = [pod(f"p{rank}").rank(rank).unschedulable(FULL if rank == 2 else lacking).view() for rank in range(3)]

    shown = board(LEAD, seen_of(job(3).started(3), pods), at(30))

    assert [(row.rank, row.message[:12]) for row in shown.rows] == [
        (2, "Insufficient"),
        (0, lacking[:12]),
        (1, lacking[:12]),
    ]


def test_what_each_rank_asks_for_is_said_once() -> None:
    built = asking(job(2).started(3), cpu="2")

    waiting = board(LEAD, seen_of(built, ranks(2)), at(30))
    running = board(LEAD, seen_of(built, ranks(2, lambda it: it.on("n").running())), at(30))

    assert "Each asks for" not in dict(waiting.facts)
    assert dict(running.facts)["Each asks for"] == "2 cpu"


def test_pods_that_the_scheduler_holds_back_are_said_to_wait_for_each_other() -> None:
    shown = board(LEAD, seen_of(job(4).started(3), ranks(4), podgroup=podgroup(4)), at(10))

    assert shown.says == "The scheduler waits until 4 pods can be placed at once"


def test_pods_that_were_refused_are_told_by_the_jobs_events() -> None:
    refused = event("FailedCreate", "exceeded quota: team, used: pods=10")

    shown = board(LEAD, seen_of(job(4).started(3), ranks(1), events=(refused,)), at(30))

    assert shown.says == "3 pods could not be created: exceeded quota: team, used: pods=10"
    assert shown.tally == (("waiting for a node", 1), ("without a pod", 3))


@pytest.mark.parametrize(
    ("built", "due"),
    [
        pytest.param(job().suspended(0), Due("queue_timeout", at(600)), id="queued"),
        pytest.param(job().started(10), Due("assemble_timeout", at(310)), id="assembling"),
        pytest.param(job().failed(20), None, id="over"),
    ],
)
def test_next_deadline_is_that_of_the_phase(built: JobBuilder, due: Due | None) -> None:
    assert board(LIMITED, seen_of(built), at(60)).due == due


def test_running_gang_shows_its_deadline_and_how_long_ranks_have_run() -> None:
    pods = ranks(4, lambda it: it.on("node-a").running(since=20))

    shown = board(LIMITED, seen_of(job().started(3), pods), at(80))

    assert (shown.phase, shown.since, shown.due) == ("running", at(20), Due("run_timeout", at(3620)))
    assert {(row.state, row.seconds, row.node, row.tone) for row in shown.rows} == {
        ("running", 60.0, "node-a", Tone.BUSY)
    }
    assert shown.times == (("submitted", at(0)), ("assembling", at(3)), ("running", at(20)))


def test_execution_timeout_is_shown_when_it_comes_first() -> None:
    lead = replace(LIMITED, deadline=at(200).timestamp())

    assert board(lead, seen_of(job().started(10)), at(60)).due == Due("execution_timeout", at(200))


def test_failed_gang_says_why_and_shows_the_cause_first() -> None:
    pods = [
        pod("a").rank(0).on("n").failed(143, when=62).view(),
        pod("b").rank(1).on("n").succeeded(when=50, message='{"secret": 1}').view(),
        pod("c").rank(2).on("n").failed(137, when=60, reason="OOMKilled", message="killed").view(),
    ]

    shown = board(LEAD, seen_of(job(3).started(3).failed(63), pods), at(90))

    assert (shown.phase, shown.tone, shown.due) == ("failed", Tone.BAD, None)
    assert shown.says.startswith("rank 2 ran out of memory")
    assert "resources.memory" in shown.remedy
    assert rank_rows(shown) == [(2, "failed"), (0, "failed"), (1, "succeeded")]
    assert (shown.rows[0].exit_code, shown.rows[0].message) == (137, "OOMKilled: killed")
    assert shown.rows[2].message == "", "a result is for those who may read XComs"


def test_outcomes_of_pods_that_are_gone_come_from_the_ledger() -> None:
    recorded = outcome_of(pod("a").rank(0).failed(3).view())
    still_there = pod("b").rank(1).failed(143, when=61).view()

    shown = board(LEAD, seen_of(job(2).started(3).failed(62), [still_there], outcomes=[recorded]), at(90))

    assert rank_rows(shown) == [(0, "failed"), (1, "failed")]


def test_recorded_pod_that_is_still_there_is_shown_once() -> None:
    ended = pod("a").rank(0).failed(3).view()

    shown = board(LEAD, seen_of(job(1).started(3), [ended], outcomes=[outcome_of(ended)]), at(90))

    assert rank_rows(shown) == [(0, "failed")]


def test_live_rows_begin_with_what_has_something_to_say() -> None:
    pods = [
        pod("a").rank(0).on("n").running().view(),
        pod("b").rank(1).on("n").waiting("ContainerCreating").view(),
        pod("c").rank(2).on("n").waiting("ErrImagePull", "no such image").view(),
        pod("d").rank(3).on("n").running().deleted(asked=20).view(),
    ]

    shown = board(LEAD, seen_of(job().started(3), pods), at(30))

    assert rank_rows(shown) == [(2, "starting"), (1, "starting"), (3, "terminating"), (0, "running")]
    assert shown.rows[0].message == "ErrImagePull: no such image"
    assert shown.says == 'ErrImagePull of image "x:1" at rank 2: no such image'


def test_halted_gang_says_why_it_was_halted() -> None:
    built = job().suspended(30).annotation(ANNOTATION_HALTED, "Deadline.assembling.unschedulable: 4 pods, none placed")

    shown = board(LIMITED, seen_of(built), at(60))

    assert (shown.phase, shown.says, shown.due) == ("failed", "4 pods, none placed", None)


def test_rows_are_bounded_and_the_numbers_are_not() -> None:
    pods = ranks(ROWS_MAX + 50, lambda it: it.on("n").running())

    shown = board(LEAD, seen_of(job(ROWS_MAX + 50).started(3), pods), at(30))

    assert (len(shown.rows), shown.rows_left_out) == (ROWS_MAX, 50)
    assert shown.tally == (("running", ROWS_MAX + 50),)


def test_large_gang_is_told_by_its_jobs_counters() -> None:
    built = asking(job(100_000).started(3).counts(active=99_990, ready=60_000, failed=2, succeeded=8), cpu="500m")
    sample = [pod("x").rank(7).on("n").failed(9).view(), *ranks(2, lambda it: it.unschedulable(FULL))]

    shown = board(LIMITED, seen_of(built, sample, is_whole=False), at(60))

    assert (shown.phase, shown.since) == ("assembling", at(3))
    assert shown.tally == (("failed", 2), ("waiting or starting", 39_990), ("running", 60_000), ("succeeded", 8))
    assert shown.says == "Needs 100000 x (500m cpu) at once. Insufficient nvidia.com/gpu on 3 of 3 nodes"
    assert rank_rows(shown)[0] == (7, "failed")
    assert shown.rows_left_out == 100_000 - 3
    assert shown.due == Due("assemble_timeout", at(303))


def test_large_gang_that_failed_says_so() -> None:
    sample = [pod("x").rank(7).on("n").failed(9).view()]

    shown = board(LEAD, seen_of(job(5000).started(3).failed(50), sample, is_whole=False), at(60))

    assert (shown.phase, shown.since) == ("failed", at(50))
    assert shown.says.startswith("rank 7 exited with code 9")


def test_other_attempts_are_listed_in_short() -> None:
    now, before = job(), job(uid="earlier").failed(30, message="Job has reached the specified backoff limit")
    now.label(LABEL_ATTEMPT, "1")

    shown = board(LEAD, GangSnapshot(jobs=[now.obj, before.obj], job=now.obj), at(60))

    assert shown.attempt == 1
    assert [(one.number, one.phase, one.tone) for one in shown.attempts] == [(0, "failed", Tone.BAD)]
    assert shown.attempts[0].said == "BackoffLimitExceeded: Job has reached the specified backoff limit"


def test_gang_that_was_cleaned_up_is_told_by_its_event() -> None:
    ended = outcome_of(pod("a").rank(0).on("n").succeeded(when=65).view())
    end = gang_event(
        REF, Status.SUCCEEDED, Phase.SUCCEEDED, attempt=2, counts=Counts(ranks=30, succeeded=30), outcomes=[ended]
    )

    shown = board(replace(LEAD, end=end, is_finished=True), GangSnapshot(), at(90))

    assert (shown.phase, shown.tone, shown.attempt, shown.is_over) == ("succeeded", Tone.GOOD, 2, True)
    assert [(row.rank, row.seconds, row.node) for row in shown.rows] == [(0, 60.0, "n")]
    assert (shown.rows_left_out, shown.tally, shown.notes) == (29, (("succeeded", 30),), (f"{GONE} {TOLD}",))


def test_gang_out_of_sight_is_told_by_what_airflow_knows() -> None:
    end = gang_event(
        REF, Status.FAILED, Phase.FAILED, message="rank 1 ran out of memory", counts=Counts(ranks=4, failed=1)
    )

    shown = told(replace(LEAD, end=end), "The cluster does not answer.")

    assert shown is not None
    assert (shown.phase, shown.says, shown.is_over) == ("failed", "rank 1 ran out of memory", False)
    assert shown.notes == (f"The cluster does not answer. {TOLD}",)
    assert told(LEAD, "The cluster does not answer.") is None


def test_job_that_is_gone_without_a_word_is_no_end_while_the_task_lives() -> None:
    shown = board(LEAD, GangSnapshot(), at(90))

    assert (shown.phase, shown.is_over) == ("deleted", False)


def test_what_may_not_be_read_is_said() -> None:
    shown = board(LEAD, seen_of(job().started(3), is_whole=False, unread=("pods",)), at(60))

    assert shown.notes == ("The connection may not list pods in this namespace.",)


@pytest.mark.parametrize(
    ("is_finished", "built", "is_over"),
    [
        pytest.param(True, job().complete(60), True, id="both are over"),
        pytest.param(False, job().complete(60), False, id="the task goes on"),
        pytest.param(True, job().started(3), False, id="the gang goes on"),
    ],
)
def test_page_is_refreshed_until_task_and_gang_are_over(is_finished: bool, built: JobBuilder, is_over: bool) -> None:
    assert board(replace(LEAD, is_finished=is_finished), seen_of(built), at(90)).is_over is is_over
