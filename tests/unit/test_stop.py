"""The rules of a Job that was stopped: what remains to be done until it has failed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.state.phase import (
    REASON_DELETED,
    REASON_DELETED_ON_PURPOSE,
    REASON_REPLACED,
    Phase,
    Status,
    judge_stopped,
)
from airflow_provider_gangjobs.gang.state.reason import because, stopped_by_deadline
from airflow_provider_gangjobs.gang.state.stopped import (
    BY_CLEANUP,
    BY_DELETION,
    BY_SUCCESS,
    Stopped,
    Stopper,
    format_stopped,
    parse_stopped,
    stopped_by_user,
)
from airflow_provider_gangjobs.gang.state.stored_gang import (
    before_deletion,
    finish_patch,
    is_kept_from_failing,
    is_to_fail,
    stop_patch,
)
from airflow_provider_gangjobs.kube import well_known
from tests.unit.builders import JobBuilder, job


def stopped(made: JobBuilder) -> JobBuilder:
    return made.stopped()


MARKS: dict[str, Stopped] = {
    "a user": stopped_by_user("not needed: done by hand"),
    "a deadline": stopped_by_deadline(Phase.ASSEMBLING, because("ImagePullFailed", image="x:1"), "2 pods"),
    "the cleanup": BY_CLEANUP,
    "the main containers": BY_SUCCESS,
}


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_mark_on_the_job_says_who_has_stopped_the_gang(mark: Stopped) -> None:
    assert parse_stopped(format_stopped(mark)) == mark


UNREADABLE = {
    "no JSON": ("by hand", "cannot be read"),
    "JSON that is no mark": ("[]", "cannot be read"),
    "a mark without a version": ('{"by": "user"}', "cannot be read"),
    "a later version": ('{"version": 2, "by": "user"}', "version 2"),
    "somebody unknown": ('{"version": 1, "by": "nobody"}', "cannot be read"),
    "nested too deeply": ("[" * 100_000, "cannot be read"),
}


@pytest.mark.parametrize(("value", "says"), UNREADABLE.values(), ids=UNREADABLE)
def test_gang_with_a_mark_that_cannot_be_read_is_stopped_and_says_so(value: str, says: str) -> None:
    gang = job().annotation(well_known.ANNOTATION_STOPPED, value).read()
    assert gang.is_stopped
    assert gang.stopped is not None
    assert (gang.stopped.by, says in gang.stopped.text) == (Stopper.UNKNOWN, True)


def test_first_mark_of_a_stop_stays() -> None:
    first = job().started(1).read()
    second = job().started(1).stopped(BY_SUCCESS).read()
    ended = {"activeDeadlineSeconds": 0}
    assert stop_patch(BY_CLEANUP, first)["metadata"]["annotations"].keys() == {well_known.ANNOTATION_STOPPED}
    assert stop_patch(BY_CLEANUP, second) == {"spec": ended}


def test_gang_that_a_deletion_has_begun_to_stop_is_judged_as_before() -> None:
    live, by_user = job().started(1), job().started(1).stopped()
    assert before_deletion(job().started(1).stopped(BY_DELETION).read()) == live.read()
    assert before_deletion(by_user.read()) == by_user.read()


STEPS: dict[str, tuple[JobBuilder, tuple[bool, bool]]] = {
    "suspended": (stopped(job().suspended(1)), (True, True)),
    "suspended, and the Job controller has not seen it": (stopped(job().spec(suspend=True)), (True, True)),
    "suspended again before its failure": (stopped(job().suspended(1).decided("FailureTarget", 2)), (True, True)),
    "started": (stopped(job()), (True, False)),
    "about to fail": (stopped(job().started(1).decided("FailureTarget", 2)), (True, False)),
    "failed": (stopped(job().failed(2, reason="DeadlineExceeded")), (False, False)),
    "failed, and suspended by Kueue": (stopped(job().suspended(1).failed(2)), (False, False)),
    "complete": (stopped(job().complete(2)), (False, False)),
    "being deleted": (stopped(job().suspended(1).deleted(2)), (False, False)),
    "not stopped": (job().suspended(1), (False, False)),
    "no time left, and suspended again": (job().suspended(1).spec(activeDeadlineSeconds=0), (True, True)),
    "no time left, and started": (job().spec(activeDeadlineSeconds=0), (True, False)),
    "no time left, and failed": (job().spec(activeDeadlineSeconds=0).failed(2), (False, False)),
}


@pytest.mark.parametrize(("built", "expected"), STEPS.values(), ids=STEPS)
def test_job_that_is_to_end_is_ended_while_it_is_suspended(built: JobBuilder, expected: tuple[bool, bool]) -> None:
    gang = built.read()
    assert (is_to_fail(gang), is_kept_from_failing(gang)) == expected


ENDED: dict[str, Any] = {"suspend": False, "activeDeadlineSeconds": 0}
PATCHES: dict[str, tuple[JobBuilder, bool, dict[str, Any]]] = {
    "no queue": (job(), False, ENDED),
    "the Workload is inactive": (job().label(well_known.LABEL_KUEUE_QUEUE, "team"), True, ENDED),
    "the Workload may be admitted": (job().label(well_known.LABEL_KUEUE_QUEUE, "team"), False, {"parallelism": 0}),
}


@pytest.mark.parametrize(("built", "is_deactivated", "spec"), PATCHES.values(), ids=PATCHES)
def test_stopped_job_is_started_unless_its_queue_may_start_it(
    built: JobBuilder, is_deactivated: bool, spec: dict[str, Any]
) -> None:
    assert finish_patch(built.suspended(1).read(), is_deactivated=is_deactivated) == {"spec": spec}


def to_be_deleted(made: JobBuilder) -> JobBuilder:
    return made.annotation(well_known.ANNOTATION_DELETED_BY, "gangjobs doctor").stopped(BY_DELETION)


def timed_out(made: JobBuilder) -> JobBuilder:
    return to_be_deleted(made).stopped(stopped_by_deadline(Phase.QUEUED, because("QueueWaits", queue="q"), "too late"))


STOP: None = None
STOPPED_VERDICTS: dict[str, tuple[JobBuilder | None, tuple[Status, str] | None]] = {
    "still ending": (stopped(job().started(1)), STOP),
    "failed by the stop": (stopped(job().failed(2, reason="DeadlineExceeded")), STOP),
    "succeeded at the last moment": (stopped(job().complete(2)), (Status.SUCCEEDED, "CompletionsReached")),
    "failed at the last moment": (stopped(job().failed(2, reason="Other")), (Status.FAILED, "Other")),
    "failed by a deadline of its own": (
        job().failed(2, reason="DeadlineExceeded"),
        (Status.FAILED, "DeadlineExceeded"),
    ),
    "deleted by somebody": (stopped(job().deleted(2)), (Status.DELETED, REASON_DELETED)),
    "gone": (None, (Status.DELETED, REASON_DELETED)),
    "replaced": (stopped(job(uid="other")), (Status.REPLACED, REASON_REPLACED)),
    "about to be deleted": (to_be_deleted(job().started(1)), (Status.DELETED, REASON_DELETED_ON_PURPOSE)),
    "failed before its deletion": (
        to_be_deleted(job().failed(2, reason="DeadlineExceeded")),
        (Status.DELETED, REASON_DELETED_ON_PURPOSE),
    ),
    "succeeded before its deletion": (to_be_deleted(job().complete(2)), (Status.SUCCEEDED, "CompletionsReached")),
    "stopped by a deadline, and then to be deleted": (timed_out(job().started(1)), STOP),
}


@pytest.mark.parametrize(("built", "expected"), STOPPED_VERDICTS.values(), ids=STOPPED_VERDICTS)
def test_stop_decides_the_end_unless_the_gang_ended_or_is_deleted(
    built: JobBuilder | None, expected: tuple[Status, str] | None
) -> None:
    verdict = judge_stopped(built.read() if built else None, job().read().ref)
    assert (verdict and (verdict.status, verdict.reason)) == expected


def test_objects_of_a_gang_exist_until_its_job_is_deleted() -> None:
    begun = judge_stopped(to_be_deleted(job().started(1)).read(), job().read().ref)
    requested = judge_stopped(to_be_deleted(job().started(1)).deleted(2).read(), job().read().ref)
    assert begun is not None
    assert requested is not None
    assert (begun.deletion_has_only_begun, requested.deletion_has_only_begun) == (True, False)
