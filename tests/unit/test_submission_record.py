"""The view of a submission of which only the Job was read."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.exceptions import JobDeleted
from airflow_provider_gangjobs.gang.state.phase import Phase, SubmissionState
from airflow_provider_gangjobs.gang.state.stopped import format_stopped, stopped_by_error, stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.gang.view import view_job
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_RECORD, ANNOTATION_STOPPED, LABEL_KUEUE_QUEUE
from tests.annotations import recorded

STARTED = {"startTime": "2026-01-01T00:01:00Z"}

RECORD = recorded()


def job(
    *,
    status: dict[str, Any] | None = None,
    suspend: bool = False,
    annotations: dict[str, str] = RECORD,
    **metadata: Any,
) -> dict[str, Any]:
    common = {"name": "a", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"completions": 4, "parallelism": 4, "suspend": suspend}
    metadata = {**common, "annotations": {**RECORD, **annotations}, **metadata}
    return {"metadata": metadata, "spec": spec, "status": status or {}}


def ended(kind: str, **more: Any) -> dict[str, Any]:
    return {**STARTED, "conditions": [{"type": kind, "status": "True", **more}]}


IN_PROGRESS, SUCCEEDED, FAILED = SubmissionState.IN_PROGRESS, SubmissionState.SUCCEEDED, SubmissionState.FAILED
STOPPED = {"annotations": {ANNOTATION_STOPPED: format_stopped(stopped_by_user("enough"))}}
CASES = {
    "just created": (job(suspend=True), Phase.SUBMITTED, IN_PROGRESS),
    "let run, not looked at": (job(), Phase.SUBMITTED, IN_PROGRESS),
    "in a queue": (job(suspend=True, labels={LABEL_KUEUE_QUEUE: "q"}), Phase.QUEUED, IN_PROGRESS),
    "kept suspended": (
        job(suspend=True, annotations=recorded(fields={"manifest.spec.suspend": "x"})),
        Phase.QUEUED,
        IN_PROGRESS,
    ),
    "suspended after it ran": (job(suspend=True, status=STARTED), Phase.QUEUED, IN_PROGRESS),
    "pods wait": (job(status={**STARTED, "active": 4}), Phase.ASSEMBLING, IN_PROGRESS),
    "some run": (job(status={**STARTED, "active": 4, "ready": 3}), Phase.ASSEMBLING, IN_PROGRESS),
    "all run": (job(status={**STARTED, "active": 4, "ready": 4}), Phase.RUNNING, IN_PROGRESS),
    "some have ended": (job(status={**STARTED, "ready": 1, "succeeded": 3}), Phase.RUNNING, IN_PROGRESS),
    "fate decided": (job(status=ended("FailureTarget")), Phase.FINISHING, IN_PROGRESS),
    "succeeded": (job(status=ended("Complete")), Phase.SUCCEEDED, SUCCEEDED),
    "failed": (job(status=ended("Failed")), Phase.FAILED, FAILED),
    "stopped, pods end": (job(status={**STARTED, "terminating": 2}, suspend=True, **STOPPED), Phase.FINISHING, FAILED),
    "stopped": (job(suspend=True, **STOPPED), Phase.FAILED, FAILED),
    "succeeded before it was stopped": (job(status=ended("Complete"), **STOPPED), Phase.SUCCEEDED, SUCCEEDED),
    "being deleted": (job(deletionTimestamp="2026-01-01T00:00:00Z"), Phase.DELETED, SubmissionState.DELETING),
}


@pytest.mark.parametrize(("stored", "phase", "state"), CASES.values(), ids=CASES)
def test_phase_and_state_are_read_off_the_job(stored, phase, state):
    record = view_job(read_job(stored))
    assert (record.phase, record.state) == (phase, state)


CAUSES = {
    "a failed gang": (
        job(status=ended("Failed", reason="BackoffLimitExceeded", message="too many")),
        ("BackoffLimitExceeded", "BackoffLimitExceeded: too many."),
    ),
    "stopped by a user": (job(**STOPPED), ("Stopped", "enough")),
    "stopped by an error": (
        job(annotations={ANNOTATION_STOPPED: format_stopped(stopped_by_error(JobDeleted("g", "x", "It is gone")))}),
        ("JobDeleted", str(JobDeleted("g", "x", "It is gone"))),
    ),
}


@pytest.mark.parametrize(("stored", "cause"), CAUSES.values(), ids=CAUSES)
def test_the_cause_of_a_failure_is_kept(stored, cause):
    view = view_job(read_job(stored))
    assert (view.code, view.summary) == cause


def test_broken_annotations_do_not_hide_the_record():
    record = view_job(read_job(job(annotations={ANNOTATION_RECORD: "{"}, suspend=True)))
    assert (record.submission_id, record.phase, record.state) == ("", Phase.SUBMITTED, SubmissionState.FOREIGN)
