"""A suspended Job has no pods, and its deadline does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import indexed
from tests.conformance.namespace import FOREIGN, conditions_of

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace


def test_job_that_is_created_suspended_has_not_started(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(suspend=True))
    job = namespace.wait_job("Suspended")
    assert conditions_of(job) == [("Suspended", "True", "JobSuspended")]
    assert job["status"]["conditions"][0]["message"] == "Job suspended"
    assert "startTime" not in job["status"]
    assert namespace.pods() == []


def test_resumed_job_starts(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(suspend=True))
    namespace.wait_job("Suspended")
    namespace.patch("jobs", "j", {"spec": {"suspend": False}})
    namespace.wait_pods(2)
    job = namespace.wait_job("Suspended", "False")
    assert conditions_of(job) == [("Suspended", "False", "JobResumed")]
    assert job["status"]["startTime"]
    assert [namespace.wait_event(reason, "Job")["message"] for reason in ("Suspended", "Resumed")] == [
        "Job suspended",
        "Job resumed",
    ]


def test_suspension_deletes_pods_without_counting_them(namespace: Namespace) -> None:
    namespace.create("jobs", indexed())
    pods = namespace.wait_pods(2)
    namespace.patch("jobs", "j", {"spec": {"suspend": True}})
    job = namespace.wait_job("Suspended")
    namespace.wait_no_pods()
    namespace.wait_until(
        lambda: not namespace.job()["status"].get("active"), lambda: f"no active: {namespace.job()['status']}"
    )
    assert "failed" not in job["status"]
    assert namespace.wait_event("SuccessfulDelete", "Job")["message"].startswith("Deleted pod: j-")
    assert pods


@pytest.mark.parametrize(
    ("has_run", "suspension", "start"),
    [
        (False, {}, {"activeDeadlineSeconds": 0}),
        (True, {}, {"activeDeadlineSeconds": 0}),
        (True, {"activeDeadlineSeconds": 1, "parallelism": 0}, {}),
    ],
    ids=["never ran", "has run", "a queue lets a stopped Job run again"],
)
def test_job_that_starts_without_time_or_parallelism_fails_without_a_pod(
    namespace: Namespace, has_run: bool, suspension: dict[str, int], start: dict[str, int]
) -> None:
    """The provider stops a suspended gang in this way."""
    namespace.create("jobs", indexed(suspend=not has_run))
    if has_run:
        namespace.wait_pods(2)
        namespace.patch("jobs", "j", {"spec": {"suspend": True, **suspension}})
    namespace.wait_job("Suspended")
    namespace.wait_no_pods()
    namespace.patch("jobs", "j", {"spec": {"suspend": False, **start}})
    job = namespace.wait_job("Failed")
    assert ("Failed", "True", "DeadlineExceeded") in conditions_of(job)
    assert namespace.pods() == []
    created = [event for event in namespace.list_objects("events") if event["reason"] == "SuccessfulCreate"]
    assert sum(event.get("count", 1) for event in created) <= (2 if has_run else 0)  # events may be late


def test_start_time_is_cleared_and_set_again(namespace: Namespace) -> None:
    namespace.create("jobs", indexed())
    namespace.wait_until(
        lambda: "startTime" in namespace.job().get("status", {}), lambda: f"a start time: {namespace.job()}"
    )
    namespace.patch("jobs", "j", {"spec": {"suspend": True}})
    suspended = namespace.wait_job("Suspended")
    assert "startTime" not in suspended["status"]
    namespace.patch("jobs", "j", {"spec": {"suspend": False}})
    resumed = namespace.wait_job("Suspended", "False")
    assert resumed["status"]["startTime"]


def test_held_pods_of_a_suspended_job_stay_until_released(namespace: Namespace) -> None:
    pods = namespace.run_job(indexed(finalizers=(FOREIGN,)))
    namespace.patch("jobs", "j", {"spec": {"suspend": True}})
    namespace.wait_deletion_requested()
    namespace.wait_finalizers(FOREIGN)
    namespace.set_terminated(*pods, exit_code=143)
    assert len(namespace.pods()) == 2
    namespace.remove_finalizer(*pods)
    namespace.wait_no_pods()
    assert "failed" not in namespace.job()["status"]


def test_deadline_that_has_passed_ends_a_job_that_runs(namespace: Namespace) -> None:
    """The provider stops a gang in this way: its pods end, and then the Job fails."""
    pods = namespace.run_job(indexed(finalizers=(FOREIGN,), podReplacementPolicy="Failed"))
    namespace.patch("jobs", "j", {"spec": {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 1}})
    job = namespace.wait_job("FailureTarget")
    assert ("Failed", "True", "DeadlineExceeded") not in conditions_of(job)
    namespace.wait_deletion_requested()
    namespace.set_terminated(*pods, exit_code=143)
    assert ("Failed", "True", "DeadlineExceeded") in conditions_of(namespace.wait_job("Failed"))
    namespace.remove_finalizer(*pods)
    namespace.wait_gone("jobs", "j")
