"""How a Job ends: its fate is told first, and the last word comes when every pod is terminal and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.manifests import indexed
from tests.conformance.space import FOREIGN, TRACKING, conditions_of

if TYPE_CHECKING:
    from tests.conformance.space import Obj, Space

SUCCESS = [("SuccessCriteriaMet", "True", "CompletionsReached"), ("Complete", "True", "CompletionsReached")]


def failure(reason: str) -> list[tuple[str, str, str]]:
    return [("FailureTarget", "True", reason), ("Failed", "True", reason)]


def seen(states: list[Obj]) -> list[list[tuple[str, str, str]]]:
    """The different lists of conditions that an object had, one after the other."""
    lists: list[list[tuple[str, str, str]]] = []
    for state in states:
        if not lists or lists[-1] != conditions_of(state):
            lists.append(conditions_of(state))
    return lists


def counted(job: Obj) -> dict[str, Any]:
    """The numbers of a status; zero, empty and absent are the same."""
    fields = ("active", "ready", "terminating", "succeeded", "failed", "completedIndexes", "failedIndexes")
    return {name: value for name in fields if (value := job["status"].get(name))}


def test_success_is_told_before_it_is_complete(space: Space) -> None:
    created = space.create("jobs", indexed())
    space.ends(*space.wait_pods(2))
    job = space.wait_job("Complete")
    assert seen(space.history("jobs", created)) == [[], SUCCESS[:1], SUCCESS]
    assert counted(job) == {"succeeded": 2, "completedIndexes": "0,1"}
    assert job["status"]["uncountedTerminatedPods"] == {}
    assert job["status"]["completionTime"] >= job["status"]["startTime"]
    assert space.wait_event("Completed", "Job")["message"] == "Job completed"


def test_counted_pods_are_let_go(space: Space) -> None:
    space.create("jobs", indexed())
    space.ends(*space.wait_pods(2))
    space.wait_job("Complete")
    space.until(lambda: not any(pod["metadata"].get("finalizers") for pod in space.pods()), lambda: "no finalizers")


def test_pods_run_and_end_one_by_one(space: Space) -> None:
    space.create("jobs", indexed(size=3))
    pods = space.wait_pods(3)
    space.runs(*pods)
    space.until(lambda: space.job()["status"].get("ready") == 3, lambda: f"3 ready: {space.job()['status']}")
    space.ends(pods[2])
    space.until(lambda: space.job()["status"].get("succeeded"), lambda: f"one success: {space.job()['status']}")
    assert counted(space.job()) == {"active": 2, "ready": 2, "succeeded": 1, "completedIndexes": "2"}
    space.ends(pods[0])
    space.until(lambda: space.job()["status"].get("succeeded") == 2, lambda: f"two: {space.job()['status']}")
    assert counted(space.job()) == {"active": 1, "ready": 1, "succeeded": 2, "completedIndexes": "0,2"}


def test_one_failure_takes_the_others_down(space: Space) -> None:
    """Those without a node are gone at once."""
    created = space.create("jobs", indexed())
    pods = space.wait_pods(2)
    space.ends(pods[0], exit_code=1)
    job = space.wait_job("Failed")
    assert seen(space.history("jobs", created)) == [
        [],
        failure("BackoffLimitExceeded")[:1],
        failure("BackoffLimitExceeded"),
    ]
    assert job["status"]["conditions"][-1]["message"] == "Job has reached the specified backoff limit"
    assert counted(job) == {"failed": 2}
    assert "completionTime" not in job["status"]
    space.wait_gone("pods", pods[1]["metadata"]["name"])


def test_failure_waits_for_pods_that_still_run(space: Space) -> None:
    space.add_nodes()
    space.create("jobs", indexed(podReplacementPolicy="Failed"))
    pods = space.wait_bound(2)
    space.runs(*pods)
    space.ends(pods[0], exit_code=1)
    job = space.wait_job("FailureTarget")
    space.until(lambda: space.job()["status"].get("terminating") == 1, lambda: f"terminating: {space.job()['status']}")
    assert conditions_of(space.job()) == conditions_of(job) == failure("BackoffLimitExceeded")[:1]
    space.ends(pods[1], exit_code=143)
    assert counted(space.wait_job("Failed")) == {"failed": 2}


def test_failed_pod_is_replaced_after_a_while(space: Space) -> None:
    space.create("jobs", indexed(size=1, backoffLimit=1))
    (first,) = space.wait_pods(1)
    space.ends(first, exit_code=1)
    space.until(lambda: space.job()["status"].get("failed"), lambda: f"one failure: {space.job()['status']}")
    assert counted(space.job()) == {"failed": 1}
    assert len(space.pods()) == 1
    second = space.wait_pods(2)[1]
    assert second["metadata"]["annotations"] == first["metadata"]["annotations"]
    space.ends(second)
    assert counted(space.wait_job("Complete")) == {"succeeded": 1, "failed": 1, "completedIndexes": "0"}


def test_index_that_failed_for_good_is_listed(space: Space) -> None:
    space.create("jobs", indexed(size=3, backoffLimit=None, backoffLimitPerIndex=0))
    pods = space.wait_pods(3)
    space.ends(pods[1], exit_code=1)
    space.until(lambda: space.job()["status"].get("failedIndexes"), lambda: f"an index: {space.job()['status']}")
    space.ends(pods[0], pods[2])
    job = space.wait_job("Failed")
    assert conditions_of(job) == failure("FailedIndexes")
    assert job["status"]["conditions"][-1]["message"] == "Job has failed indexes"
    assert counted(job) == {"succeeded": 2, "failed": 1, "completedIndexes": "0,2", "failedIndexes": "1"}


def test_deadline_counts_from_the_start(space: Space) -> None:
    space.create("jobs", indexed(activeDeadlineSeconds=2))
    job = space.wait_job("Failed")
    assert conditions_of(job) == failure("DeadlineExceeded")
    assert job["status"]["conditions"][-1]["message"] == "Job was active longer than specified deadline"
    space.until(lambda: not space.pods(), lambda: "no pods")


FAIL_JOB = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def test_rule_about_an_exit_code_fails_the_job(space: Space) -> None:
    space.create("jobs", indexed(backoffLimit=6, podFailurePolicy={"rules": [FAIL_JOB]}))
    pods = space.wait_pods(2)
    space.ends(pods[0], exit_code=42)
    job = space.wait_job("Failed")
    assert conditions_of(job) == failure("PodFailurePolicy")
    name = f"{space.name}/{pods[0]['metadata']['name']}"
    assert job["status"]["conditions"][-1]["message"] == (
        f"Container main for pod {name} failed with exit code 42 matching FailJob rule at index 0"
    )


def test_ignored_disruption_is_no_failure(space: Space) -> None:
    space.create("jobs", indexed(size=1, podFailurePolicy={"rules": [IGNORE]}))
    (pod,) = space.wait_pods(1)
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    space.ends(pod, exit_code=143, conditions=[disrupted])
    space.wait_pods(2)
    assert counted(space.job()) == {"active": 1}


@pytest.mark.parametrize(
    ("policy", "counts"),
    [("TerminatingOrFailed", {"failed": 1, "terminating": 1}), ("Failed", {"terminating": 1})],
)
def test_pod_that_is_being_deleted_is_a_failure_at_once_or_at_its_end(
    space: Space, policy: str, counts: dict[str, int]
) -> None:
    space.add_nodes()
    space.create("jobs", indexed(size=1, backoffLimit=3, podReplacementPolicy=policy))
    (pod,) = space.wait_bound(1)
    space.runs(pod)
    space.delete("pods", pod["metadata"]["name"])
    space.until(lambda: counted(space.job()) == counts, lambda: f"{counts}: {space.job()['status']}")
    space.ends(pod, exit_code=143)
    space.until(lambda: space.job()["status"].get("failed") == 1, lambda: f"a failure: {space.job()['status']}")


def test_job_is_complete_while_its_pods_are_held(space: Space) -> None:
    space.create("jobs", indexed(finalizers=(FOREIGN,)))
    space.ends(*space.wait_pods(2), message="a result")
    space.wait_job("Complete")
    space.until(
        lambda: [pod["metadata"]["finalizers"] for pod in space.pods()] == [[FOREIGN]] * 2, lambda: f"not {TRACKING}"
    )


def test_job_fails_while_its_pods_are_held(space: Space) -> None:
    space.add_nodes()
    space.create("jobs", indexed(finalizers=(FOREIGN,), podReplacementPolicy="Failed"))
    pods = space.wait_bound(2)
    space.ends(pods[0], exit_code=3, message="boom")
    space.wait_job("FailureTarget")
    space.until(lambda: space.job()["status"].get("terminating") == 1, lambda: f"terminating: {space.job()['status']}")
    space.ends(pods[1], exit_code=143)
    assert conditions_of(space.wait_job("Failed")) == failure("BackoffLimitExceeded")
    ends = [pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for pod in space.pods()]
    assert ends == [3, 143]
