"""The verdict of a Job follows from its final condition."""

import pytest

from airflow_provider_gangjobs.gang.state.phase import VerdictKind, judge
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_DELETED_BY
from tests.unit.builders import REF, at, job

VERDICTS = {
    "complete": (job().complete(60), VerdictKind.SUCCEEDED, "CompletionsReached", at(60)),
    "failed": (job().failed(60), VerdictKind.FAILED, "BackoffLimitExceeded", at(60)),
    "complete, then removed by TTL": (
        job().complete(60).deleted(90),
        VerdictKind.SUCCEEDED,
        "CompletionsReached",
        at(60),
    ),
    "complete in the second of its deletion": (
        job().complete(60).deleted(60),
        VerdictKind.SUCCEEDED,
        "CompletionsReached",
        at(60),
    ),
    "failed, then deleted": (job().failed(60).deleted(90), VerdictKind.FAILED, "BackoffLimitExceeded", at(60)),
    "failed because it was deleted": (job().failed(60).deleted(50), VerdictKind.DELETED, "JobDeleted", at(50)),
    "being deleted": (job().deleted(50), VerdictKind.DELETED, "JobDeleted", at(50)),
    "replaced": (job(uid="other").complete(60), VerdictKind.REPLACED, "JobReplaced", None),
}


@pytest.mark.parametrize(("seen", "ended", "reason", "when"), VERDICTS.values(), ids=VERDICTS)
def test_verdict_is_the_final_condition_of_the_job(seen, ended, reason, when):
    verdict = judge(seen.read(), REF)
    assert verdict is not None
    assert (verdict.kind, verdict.reason, verdict.at) == (ended, reason, when)


def test_missing_job_was_deleted():
    verdict = judge(None, REF)
    assert verdict is not None
    assert verdict.kind is VerdictKind.DELETED
    assert not verdict.job_is_there


BY = "task etl.cleanup of run r"


@pytest.mark.parametrize(
    "last_seen", [None, job().read(), job(uid="other").annotation(ANNOTATION_DELETED_BY, BY).read()]
)
def test_missing_job_of_which_nobody_is_known_to_have_deleted_it_was_deleted_by_somebody(last_seen):
    verdict = judge(None, REF, last_seen=last_seen)
    assert verdict is not None
    assert verdict.reason == "JobDeleted"


@pytest.mark.parametrize("is_gone", [True, False])
def test_deletion_on_purpose_is_told_as_that_with_who_deleted_the_gang(is_gone):
    seen = job().annotation(ANNOTATION_DELETED_BY, BY).deleted(50).read()
    verdict = judge(None, REF, last_seen=seen) if is_gone else judge(seen, REF)
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (VerdictKind.DELETED, "GangDeleted")
    assert verdict.message == f"Job {REF} was deleted by {BY}"


def test_gang_that_ended_before_it_was_deleted_on_purpose_has_its_own_end():
    seen = job().annotation(ANNOTATION_DELETED_BY, BY).complete(60).deleted(90).read()
    verdict = judge(seen, REF)
    assert verdict is not None
    assert verdict.kind is VerdictKind.SUCCEEDED


OPEN = {
    "new": job(),
    "running": job().resumed(3).counts(active=4),
    "success is only decided": job().decided("SuccessCriteriaMet", 60),
    "failure is only decided": job().decided("FailureTarget", 60),
    "counters say all": job().counts(succeeded=4, completedIndexes="0-3"),
}


@pytest.mark.parametrize("seen", OPEN.values(), ids=OPEN)
def test_job_without_a_final_condition_has_no_verdict(seen):
    assert judge(seen.read(), REF) is None


def test_false_condition_is_no_verdict():
    seen = job().failed(60)
    for condition in seen.obj["status"]["conditions"]:
        condition["status"] = "False"
    assert judge(seen.read(), REF) is None


def test_verdict_carries_the_completed_indexes():
    verdict = judge(job(4).complete(60).read(), REF)
    assert verdict is not None
    assert verdict.completed_indexes == "0-3"


def test_interim_condition_comes_before_the_verdict():
    decided = job().decided("FailureTarget", 60, "DeadlineExceeded").read().interim_condition
    assert decided is not None
    assert decided.reason == "DeadlineExceeded"
    assert job().read().interim_condition is None
