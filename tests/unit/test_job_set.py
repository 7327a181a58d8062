"""What a JobSet, its Jobs and their pods say about how far the JobSet is, and how it has ended."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.awaited import (
    PODS_SHOWN_MAX,
    describe_failure,
    describe_progress,
    jobs_of,
    read_job_set,
)
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.state.phase import VerdictKind, judge
from airflow_provider_gangjobs.kube.views import JobSetView, JobView, PodView, view

REF = GangRef("team", "fit", "u-set")
T0, T1, T2 = (f"2026-01-01T00:0{minute}:00Z" for minute in range(3))


def job_set(*conditions: dict[str, Any], uid: str = "u-set", deleted: str | None = None, **more: Any) -> JobSetView:
    """A JobSet with a leader and two Jobs of workers."""
    metadata = {"name": "fit", "namespace": "team", "uid": uid, "deletionTimestamp": deleted}
    roles = [{"name": "leader", "replicas": 1}, {"name": "worker", "replicas": 2}]
    spec = {"replicatedJobs": roles, "suspend": more.pop("suspend", False)}
    return view(JobSetView, {"metadata": metadata, "spec": spec, "status": {"conditions": list(conditions), **more}})


def condition(kind: str, at: str = T1, status: str = "True", reason: str = "R", message: str = "M") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def ready(**counts: int) -> list[dict[str, Any]]:
    return [{"name": name, "ready": count} for name, count in counts.items()]


def child(name: str, *conditions: dict[str, Any], owner: str = "u-set") -> JobView:
    metadata = {"name": name, "uid": f"u-{name}", "ownerReferences": [{"kind": "JobSet", "name": "fit", "uid": owner}]}
    return view(JobView, {"metadata": metadata, "status": {"conditions": list(conditions)}})


def pod(name: str, job: str, *, code: int | None = 0, at: str = T1) -> PodView:
    """A pod that has ended with an exit code, or still runs if there is none."""
    state: dict[str, Any] = {"running": {"startedAt": T0}}
    if code is not None:
        state = {"terminated": {"exitCode": code, "startedAt": T0, "finishedAt": at}}
    phase = "Running" if code is None else "Failed" if code else "Succeeded"
    metadata = {
        "name": name,
        "uid": f"u-{name}",
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        "ownerReferences": [{"kind": "Job", "name": job, "uid": f"u-{job}"}],
    }
    spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "i"}]}
    status = {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}
    return view(PodView, {"metadata": metadata, "spec": spec, "status": status})


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        pytest.param(job_set(condition("Completed")), VerdictKind.SUCCEEDED, id="completed"),
        pytest.param(job_set(condition("Failed")), VerdictKind.FAILED, id="failed"),
        pytest.param(job_set(condition("Completed"), deleted=T2), VerdictKind.SUCCEEDED, id="completed, then deleted"),
        pytest.param(job_set(deleted=T2), VerdictKind.DELETED, id="being deleted"),
        pytest.param(None, VerdictKind.DELETED, id="gone"),
        pytest.param(job_set(condition("Completed"), uid="u-2"), VerdictKind.REPLACED, id="another one of the name"),
    ],
)
def test_end_of_a_job_set_is_judged_as_that_of_a_job(seen: JobSetView | None, kind: VerdictKind) -> None:
    verdict = judge(None if seen is None else read_job_set(seen), REF)
    assert verdict is not None
    assert verdict.kind is kind


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(job_set(), id="new"),
        pytest.param(job_set(condition("Suspended"), suspend=True), id="suspended"),
        pytest.param(job_set(condition("Completed", status="False")), id="a condition that is false"),
        pytest.param(job_set(condition("StartupPolicyCompleted")), id="another condition"),
        pytest.param(job_set(condition("Complete"), condition("FailureTarget")), id="a condition of a Job"),
    ],
)
def test_job_set_that_has_not_ended_has_no_verdict(seen: JobSetView) -> None:
    assert judge(read_job_set(seen), REF) is None


def test_reason_and_time_of_the_condition_are_kept() -> None:
    verdict = judge(read_job_set(job_set(condition("Failed", T2, reason="FailedJobs", message="one failed"))), REF)
    assert verdict is not None
    assert (verdict.reason, verdict.message) == ("FailedJobs", "one failed")
    assert verdict.at is not None
    assert verdict.at.minute == 2


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (None, "JobSet team/fit does not exist yet"),
        (job_set(suspend=True), "JobSet team/fit is suspended"),
        (job_set(), "JobSet team/fit is under way: leader 0 of 1 Job ready, worker 0 of 2 Jobs ready"),
        (
            job_set(replicatedJobsStatus=ready(leader=1, worker=1), restarts=1),
            "JobSet team/fit is under way, after 1 restart: leader 1 of 1 Job ready, worker 1 of 2 Jobs ready",
        ),
        (
            job_set(replicatedJobsStatus=[{"name": "worker", "ready": 1, "succeeded": 1}]),
            "JobSet team/fit is under way: leader 0 of 1 Job ready, worker 2 of 2 Jobs ready, 1 complete",
        ),
    ],
)
def test_line_says_how_far_a_job_set_is(seen: JobSetView | None, line: str) -> None:
    assert describe_progress(seen, "team/fit") == line


def test_failure_names_the_job_that_failed_first_and_its_pods() -> None:
    jobs = [
        child("fit-leader-0", condition("Failed", T2)),
        child("fit-worker-1", condition("Failed", T1, reason="BackoffLimitExceeded", message="it has a limit")),
        child("fit-worker-0"),
    ]
    pods = [pod("w1-0", "fit-worker-1", code=3), pod("l-0", "fit-leader-0", code=9), pod("w1-1", "fit-worker-1")]

    assert describe_failure(jobs, pods) == (
        (
            "Job fit-worker-1 failed first (BackoffLimitExceeded: it has a limit). 1 more failed after it. "
            "Pod w1-0 exited with code 3 on n1"
        ),
        "Look at the log of this pod.",
    )


def test_pods_are_named_in_the_order_of_their_ends_up_to_a_limit() -> None:
    pods = [pod(f"p{number}", "a", code=1, at=f"2026-01-01T00:1{9 - number}:00Z") for number in range(5)]
    pods.append(pod("runs", "a", code=None))
    text, _ = describe_failure([child("a", condition("Failed"))], pods)

    named = [text.index(f"od p{number} exited") for number in (4, 3, 2)]
    assert named == sorted(named)
    assert text.endswith(f"; {len(pods) - 1 - PODS_SHOWN_MAX} more pods failed")


@pytest.mark.parametrize("jobs", [[], [child("a"), child("b", condition("Complete"))]], ids=["none", "none has failed"])
def test_without_a_failed_job_nothing_is_said(jobs: list[JobView]) -> None:
    assert describe_failure(jobs, [pod("p", "a", code=1)]) == ("", "")


def test_jobs_of_an_earlier_job_set_of_the_name_do_not_count() -> None:
    ours, earlier = child("fit-a-0"), child("fit-a-0", owner="u-before")
    assert jobs_of("u-set", [earlier, ours]) == [ours]
