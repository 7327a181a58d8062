"""The rules of a Job that was stopped: what remains to be done until it has failed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.state.phase import (
    REASON_DELETED,
    REASON_DELETED_ON_PURPOSE,
    REASON_REPLACED,
    VerdictKind,
)
from airflow_provider_gangjobs.gang.state.stop import (
    DELETION_MARK,
    FinishStep,
    finish_patch,
    judge_stopped,
    next_finish_step,
)
from airflow_provider_gangjobs.kube import well_known
from tests.unit.builders import JobBuilder, job


def stopped(made: JobBuilder) -> JobBuilder:
    return made.annotation(well_known.ANNOTATION_STOPPED, "Stopped: by hand")


STEPS: dict[str, tuple[JobBuilder, FinishStep]] = {
    "suspended": (stopped(job().suspended(1)), FinishStep.END),
    "suspended, and the Job controller has not seen it": (stopped(job().spec(suspend=True)), FinishStep.END),
    "suspended again before its failure": (stopped(job().suspended(1).decided("FailureTarget", 2)), FinishStep.END),
    "started": (stopped(job()), FinishStep.WAIT),
    "about to fail": (stopped(job().started(1).decided("FailureTarget", 2)), FinishStep.WAIT),
    "failed": (stopped(job().failed(2, reason="DeadlineExceeded")), FinishStep.NOTHING),
    "failed, and suspended by Kueue": (stopped(job().suspended(1).failed(2)), FinishStep.NOTHING),
    "complete": (stopped(job().complete(2)), FinishStep.NOTHING),
    "being deleted": (stopped(job().suspended(1).deleted(2)), FinishStep.NOTHING),
    "not stopped": (job().suspended(1), FinishStep.NOTHING),
    "no time left, and suspended again": (job().suspended(1).spec(activeDeadlineSeconds=0), FinishStep.END),
    "no time left, and started": (job().spec(activeDeadlineSeconds=0), FinishStep.WAIT),
    "no time left, and failed": (job().spec(activeDeadlineSeconds=0).failed(2), FinishStep.NOTHING),
}


@pytest.mark.parametrize(("built", "step"), STEPS.values(), ids=STEPS)
def test_job_that_is_to_end_is_ended_while_it_is_suspended(built: JobBuilder, step: FinishStep) -> None:
    assert next_finish_step(built.read()) is step


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
    by_whom = made.annotation(well_known.ANNOTATION_DELETED_BY, "gangjobs doctor")
    return by_whom.annotation(well_known.ANNOTATION_STOPPED, DELETION_MARK[well_known.ANNOTATION_STOPPED])


def timed_out(made: JobBuilder) -> JobBuilder:
    return to_be_deleted(made).annotation(well_known.ANNOTATION_STOPPED, "DeadlineExceeded.queued.queue: too late")


STOP: None = None
STOPPED_VERDICTS: dict[str, tuple[JobBuilder | None, tuple[VerdictKind, str] | None]] = {
    "still ending": (stopped(job().started(1)), STOP),
    "failed by the stop": (stopped(job().failed(2, reason="DeadlineExceeded")), STOP),
    "succeeded at the last moment": (stopped(job().complete(2)), (VerdictKind.SUCCEEDED, "CompletionsReached")),
    "failed at the last moment": (stopped(job().failed(2, reason="Other")), (VerdictKind.FAILED, "Other")),
    "failed by a deadline of its own": (
        job().failed(2, reason="DeadlineExceeded"),
        (VerdictKind.FAILED, "DeadlineExceeded"),
    ),
    "deleted by somebody": (stopped(job().deleted(2)), (VerdictKind.DELETED, REASON_DELETED)),
    "gone": (None, (VerdictKind.DELETED, REASON_DELETED)),
    "replaced": (stopped(job(uid="other")), (VerdictKind.REPLACED, REASON_REPLACED)),
    "about to be deleted": (to_be_deleted(job().started(1)), (VerdictKind.DELETED, REASON_DELETED_ON_PURPOSE)),
    "failed before its deletion": (
        to_be_deleted(job().failed(2, reason="DeadlineExceeded")),
        (VerdictKind.DELETED, REASON_DELETED_ON_PURPOSE),
    ),
    "succeeded before its deletion": (to_be_deleted(job().complete(2)), (VerdictKind.SUCCEEDED, "CompletionsReached")),
    "stopped by a deadline, and then to be deleted": (timed_out(job().started(1)), STOP),
}


@pytest.mark.parametrize(("built", "expected"), STOPPED_VERDICTS.values(), ids=STOPPED_VERDICTS)
def test_stop_decides_the_end_unless_the_gang_ended_or_is_deleted(
    built: JobBuilder | None, expected: tuple[VerdictKind, str] | None
) -> None:
    verdict = judge_stopped(built.read() if built else None, job().read().ref)
    assert (verdict and (verdict.kind, verdict.reason)) == expected


def test_objects_of_a_gang_exist_until_its_job_is_deleted() -> None:
    begun = judge_stopped(to_be_deleted(job().started(1)).read(), job().read().ref)
    requested = judge_stopped(to_be_deleted(job().started(1)).deleted(2).read(), job().read().ref)
    assert begun is not None
    assert requested is not None
    assert (begun.deletion_has_only_begun, requested.deletion_has_only_begun) == (True, False)
