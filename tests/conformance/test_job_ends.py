"""How a Job ends: the interim condition comes first, and the final one when every pod is terminal and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.manifests import indexed
from tests.conformance.namespace import FOREIGN, TRACKING, conditions_of

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace, Obj

SUCCESS = [("SuccessCriteriaMet", "True", "CompletionsReached"), ("Complete", "True", "CompletionsReached")]


def failure(reason: str) -> list[tuple[str, str, str]]:
    return [("FailureTarget", "True", reason), ("Failed", "True", reason)]


def seen(states: list[Obj]) -> list[list[tuple[str, str, str]]]:
    """Return the different lists of conditions of an object, in their order."""
    lists: list[list[tuple[str, str, str]]] = []
    for state in states:
        if not lists or lists[-1] != conditions_of(state):
            lists.append(conditions_of(state))
    return lists


def counted(job: Obj) -> dict[str, Any]:
    """Return the numbers of a status that are neither zero nor empty nor absent."""
    fields = ("active", "ready", "terminating", "succeeded", "failed", "completedIndexes", "failedIndexes")
    return {name: value for name in fields if (value := job["status"].get(name))}


def test_success_criteria_are_met_before_the_job_is_complete(namespace: Namespace) -> None:
    created = namespace.create("jobs", indexed())
    namespace.set_terminated(*namespace.wait_pods(2))
    job = namespace.wait_job("Complete")
    assert seen(namespace.history("jobs", created)) == [[], SUCCESS[:1], SUCCESS]
    assert counted(job) == {"succeeded": 2, "completedIndexes": "0,1"}
    assert job["status"]["uncountedTerminatedPods"] == {}
    assert job["status"]["completionTime"] >= job["status"]["startTime"]
    assert namespace.wait_event("Completed", "Job")["message"] == "Job completed"


def test_counted_pods_are_released(namespace: Namespace) -> None:
    namespace.create("jobs", indexed())
    namespace.set_terminated(*namespace.wait_pods(2))
    namespace.wait_job("Complete")
    namespace.wait_finalizers()


def test_pods_run_and_end_one_by_one(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(size=3))
    pods = namespace.wait_pods(3)
    namespace.set_running(*pods)
    namespace.wait_status(ready=3)
    namespace.set_terminated(pods[2])
    namespace.wait_status(succeeded=...)
    assert counted(namespace.job()) == {"active": 2, "ready": 2, "succeeded": 1, "completedIndexes": "2"}
    namespace.set_terminated(pods[0])
    namespace.wait_status(succeeded=2)
    assert counted(namespace.job()) == {"active": 1, "ready": 1, "succeeded": 2, "completedIndexes": "0,2"}


def test_one_failure_ends_the_other_pods(namespace: Namespace) -> None:
    """Pods without a node are removed at once."""
    created = namespace.create("jobs", indexed())
    pods = namespace.wait_pods(2)
    namespace.set_terminated(pods[0], exit_code=1)
    job = namespace.wait_job("Failed")
    assert seen(namespace.history("jobs", created)) == [
        [],
        failure("BackoffLimitExceeded")[:1],
        failure("BackoffLimitExceeded"),
    ]
    assert job["status"]["conditions"][-1]["message"] == "Job has reached the specified backoff limit"
    assert counted(job) == {"failed": 2}
    assert "completionTime" not in job["status"]
    namespace.wait_gone("pods", pods[1]["metadata"]["name"])


def test_failure_waits_for_pods_that_still_run(namespace: Namespace) -> None:
    pods = namespace.run_job(indexed(podReplacementPolicy="Failed"))
    namespace.set_terminated(pods[0], exit_code=1)
    job = namespace.wait_job("FailureTarget")
    namespace.wait_status(terminating=1)
    assert conditions_of(namespace.job()) == conditions_of(job) == failure("BackoffLimitExceeded")[:1]
    namespace.set_terminated(pods[1], exit_code=143)
    assert counted(namespace.wait_job("Failed")) == {"failed": 2}


@pytest.mark.long_wait
def test_failed_pod_is_replaced_after_a_while(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(size=1, backoffLimit=1))
    (first,) = namespace.wait_pods(1)
    namespace.set_terminated(first, exit_code=1)
    namespace.wait_status(failed=...)
    assert counted(namespace.job()) == {"failed": 1}
    assert len(namespace.pods()) == 1
    second = namespace.wait_pods(2)[1]
    assert second["metadata"]["annotations"] == first["metadata"]["annotations"]
    namespace.set_terminated(second)
    assert counted(namespace.wait_job("Complete")) == {"succeeded": 1, "failed": 1, "completedIndexes": "0"}


def test_index_that_failed_for_good_is_listed(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(size=3, backoffLimit=None, backoffLimitPerIndex=0))
    pods = namespace.wait_pods(3)
    namespace.set_terminated(pods[1], exit_code=1)
    namespace.wait_status(failedIndexes=...)
    namespace.set_terminated(pods[0], pods[2])
    job = namespace.wait_job("Failed")
    assert conditions_of(job) == failure("FailedIndexes")
    assert job["status"]["conditions"][-1]["message"] == "Job has failed indexes"
    assert counted(job) == {"succeeded": 2, "failed": 1, "completedIndexes": "0,2", "failedIndexes": "1"}


def test_deadline_counts_from_the_start(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(activeDeadlineSeconds=2))
    job = namespace.wait_job("Failed")
    assert conditions_of(job) == failure("DeadlineExceeded")
    assert job["status"]["conditions"][-1]["message"] == "Job was active longer than specified deadline"
    namespace.wait_no_pods()


FAIL_JOB = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def test_rule_about_an_exit_code_fails_the_job(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(backoffLimit=6, podFailurePolicy={"rules": [FAIL_JOB]}))
    pods = namespace.wait_pods(2)
    namespace.set_terminated(pods[0], exit_code=42)
    job = namespace.wait_job("Failed")
    assert conditions_of(job) == failure("PodFailurePolicy")
    name = f"{namespace.name}/{pods[0]['metadata']['name']}"
    assert job["status"]["conditions"][-1]["message"] == (
        f"Container main for pod {name} failed with exit code 42 matching FailJob rule at index 0"
    )


@pytest.mark.long_wait
def test_ignored_disruption_is_no_failure(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(size=1, podFailurePolicy={"rules": [IGNORE]}))
    (pod,) = namespace.wait_pods(1)
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    namespace.set_terminated(pod, exit_code=143, conditions=[disrupted])
    namespace.wait_pods(2)
    # The controller writes the status after it has created the pod.
    namespace.wait_until(
        lambda: counted(namespace.job()) == {"active": 1}, lambda: f"one active pod: {namespace.job()['status']}"
    )


@pytest.mark.parametrize(
    ("policy", "counts"),
    [("TerminatingOrFailed", {"failed": 1, "terminating": 1}), ("Failed", {"terminating": 1})],
)
def test_pod_that_is_being_deleted_is_a_failure_at_once_or_at_its_end(
    namespace: Namespace, policy: str, counts: dict[str, int]
) -> None:
    namespace.add_nodes()
    namespace.create("jobs", indexed(size=1, backoffLimit=3, podReplacementPolicy=policy))
    (pod,) = namespace.wait_bound(1)
    namespace.set_running(pod)
    namespace.delete("pods", pod["metadata"]["name"])
    namespace.wait_until(lambda: counted(namespace.job()) == counts, lambda: f"{counts}: {namespace.job()['status']}")
    namespace.set_terminated(pod, exit_code=143)
    namespace.wait_status(failed=1)


def test_job_is_complete_while_its_pods_are_held(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(finalizers=(FOREIGN,)))
    namespace.set_terminated(*namespace.wait_pods(2), message="a result")
    namespace.wait_job("Complete")
    namespace.wait_until(
        lambda: [pod["metadata"]["finalizers"] for pod in namespace.pods()] == [[FOREIGN]] * 2,
        lambda: f"not {TRACKING}",
    )


def test_job_fails_while_its_pods_are_held(namespace: Namespace) -> None:
    namespace.add_nodes()
    namespace.create("jobs", indexed(finalizers=(FOREIGN,), podReplacementPolicy="Failed"))
    pods = namespace.wait_bound(2)
    namespace.set_terminated(pods[0], exit_code=3, message="boom")
    namespace.wait_job("FailureTarget")
    namespace.wait_status(terminating=1)
    namespace.set_terminated(pods[1], exit_code=143)
    assert conditions_of(namespace.wait_job("Failed")) == failure("BackoffLimitExceeded")
    ends = [pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for pod in namespace.pods()]
    assert ends == [3, 143]
