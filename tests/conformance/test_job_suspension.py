"""A suspended Job has no pods, and its clock stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.manifests import indexed
from tests.conformance.space import FOREIGN, conditions_of

if TYPE_CHECKING:
    from tests.conformance.space import Space


def test_job_made_suspended_has_not_started(space: Space) -> None:
    space.create("jobs", indexed(suspend=True))
    job = space.wait_job("Suspended")
    assert conditions_of(job) == [("Suspended", "True", "JobSuspended")]
    assert job["status"]["conditions"][0]["message"] == "Job suspended"
    assert "startTime" not in job["status"]
    assert space.pods() == []


def test_resumed_job_starts(space: Space) -> None:
    space.create("jobs", indexed(suspend=True))
    space.wait_job("Suspended")
    space.patch("jobs", "j", {"spec": {"suspend": False}})
    space.wait_pods(2)
    job = space.wait_job("Suspended", "False")
    assert conditions_of(job) == [("Suspended", "False", "JobResumed")]
    assert job["status"]["startTime"]
    assert [space.wait_event(reason, "Job")["message"] for reason in ("Suspended", "Resumed")] == [
        "Job suspended",
        "Job resumed",
    ]


def test_suspension_ends_pods_that_count_for_nothing(space: Space) -> None:
    space.create("jobs", indexed())
    pods = space.wait_pods(2)
    space.patch("jobs", "j", {"spec": {"suspend": True}})
    job = space.wait_job("Suspended")
    space.until(lambda: not space.pods(), lambda: "no pods")
    space.until(lambda: not space.job()["status"].get("active"), lambda: f"no active: {space.job()['status']}")
    assert "failed" not in job["status"]
    assert space.wait_event("SuccessfulDelete", "Job")["message"].startswith("Deleted pod: j-")
    assert pods


def test_job_without_parallelism_starts_nothing_and_fails_by_its_deadline(space: Space) -> None:
    """What a halted Job comes to if a queue lets it run again."""
    space.create("jobs", indexed())
    space.wait_pods(2)
    space.patch("jobs", "j", {"spec": {"suspend": True, "parallelism": 0, "activeDeadlineSeconds": 1}})
    space.wait_job("Suspended")
    space.until(lambda: not space.pods(), lambda: "no pods")
    space.patch("jobs", "j", {"spec": {"suspend": False}})
    job = space.wait_job("Failed")
    assert ("Failed", "True", "DeadlineExceeded") in conditions_of(job)
    assert space.pods() == []
    created = [event for event in space.listed("events") if event["reason"] == "SuccessfulCreate"]
    assert sum(event.get("count", 1) for event in created) <= 2  # events may be late


def test_start_time_is_taken_back_and_set_anew(space: Space) -> None:
    """1.35 keeps it until the Job is resumed."""
    space.create("jobs", indexed())
    space.wait_pods(2)
    space.patch("jobs", "j", {"spec": {"suspend": True}})
    suspended = space.wait_job("Suspended")
    assert ("startTime" in suspended["status"]) == (space.target.release == "1.35")
    space.patch("jobs", "j", {"spec": {"suspend": False}})
    resumed = space.wait_job("Suspended", "False")
    assert resumed["status"]["startTime"]


def test_held_pods_of_a_suspended_job_stay_until_released(space: Space) -> None:
    space.add_nodes()
    space.create("jobs", indexed(finalizers=(FOREIGN,)))
    pods = space.wait_bound(2)
    space.runs(*pods)
    space.patch("jobs", "j", {"spec": {"suspend": True}})
    space.until(
        lambda: (
            [pod["metadata"].get("finalizers") for pod in space.pods() if "deletionTimestamp" in pod["metadata"]]
            == [[FOREIGN]] * 2
        ),
        lambda: "two pods that are being deleted",
    )
    space.ends(*pods, exit_code=143)
    assert len(space.pods()) == 2
    space.lets_go(*pods)
    space.until(lambda: not space.pods(), lambda: "no pods")
    assert "failed" not in space.job()["status"]
