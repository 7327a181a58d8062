"""Back-off, back-off per index, pod failure policy, success policy and pod replacement policy of Jobs."""

import pytest

from gangjobs_sandbox.controllers.job import failure_policy
from tests.sandbox.builders import Bench, index_of

FAILURES = "batch.kubernetes.io/job-index-failure-count"


@pytest.fixture
def bench():
    return Bench(schedules=False)


def seconds_until_next_pod(bench, *, limit=1000):
    start = bench.clock.now()
    while not bench.live_pods("train"):
        bench.run(1)
        assert (bench.clock.now() - start).total_seconds() < limit, "no pod was created"
    return (bench.clock.now() - start).total_seconds()


def test_each_failure_doubles_the_wait(bench):
    bench.job(workers=1, backoffLimit=6)
    bench.run()
    delays_s = []
    for _ in range(4):
        bench.fail(bench.live_pods("train")[0])
        delays_s.append(seconds_until_next_pod(bench))
    assert delays_s == [10, 20, 40, 80]


def test_success_resets_the_failure_count(bench):
    bench.job(workers=None, completions=3, parallelism=1, backoffLimit=6)
    bench.run()
    bench.fail(bench.live_pods("train")[0])
    assert seconds_until_next_pod(bench) == 10
    bench.succeed(bench.live_pods("train")[0])
    assert seconds_until_next_pod(bench) <= 2
    bench.fail(bench.live_pods("train")[0])
    assert seconds_until_next_pod(bench) == 10


def test_restarts_count_with_policy_on_failure(bench):
    bench.job(workers=1, backoffLimit=2, pod_spec={"restartPolicy": "OnFailure"})
    bench.run()
    (pod,) = bench.pods("train")
    statuses = [{"name": "main", "restartCount": 2, "state": {"running": {}}}]
    bench.registry.patch(
        "pods",
        pod["metadata"]["name"],
        "default",
        {"status": {"phase": "Running", "containerStatuses": statuses}},
        subresource="status",
    )
    bench.run()
    assert bench.condition("train", "FailureTarget")[0] == "BackoffLimitExceeded"


def per_index(bench, *, workers=2, limit=1, **spec):
    bench.job(workers=workers, backoffLimit=100, backoffLimitPerIndex=limit, **spec)
    bench.run()


def fail_index(bench, index, exit_code=1, **status):
    (pod,) = [pod for pod in bench.live_pods("train") if index_of(pod) == index]
    bench.fail(pod, exit_code, **status)
    bench.run(700)


def test_index_fails_when_its_own_limit_is_used_up(bench):
    per_index(bench)
    fail_index(bench, 0)
    assert bench.status()["failedIndexes"] == ""
    fail_index(bench, 0)
    assert bench.status()["failedIndexes"] == "0"
    assert [index_of(pod) for pod in bench.live_pods("train")] == [1]


def test_replacement_inherits_the_failure_count(bench):
    per_index(bench, limit=5)
    for expected in ("1", "2"):
        fail_index(bench, 1)
        (pod,) = [pod for pod in bench.live_pods("train") if index_of(pod) == 1]
        assert pod["metadata"]["annotations"][FAILURES] == expected


def test_backoff_is_separate_for_each_index(bench):
    per_index(bench, limit=5)
    fail_index(bench, 0)
    (first,) = [pod for pod in bench.live_pods("train") if index_of(pod) == 1]
    bench.fail(first)
    bench.run(9)
    assert [index_of(pod) for pod in bench.live_pods("train")] == [0]
    bench.run(3)
    assert [index_of(pod) for pod in bench.live_pods("train")] == [0, 1]


def test_too_many_failed_indexes_end_the_job(bench):
    per_index(bench, workers=4, limit=0, maxFailedIndexes=1)
    fail_index(bench, 0)
    fail_index(bench, 1)
    assert bench.condition("train", "Failed")[0] == "MaxFailedIndexesExceeded"
    assert bench.live_pods("train") == []


def rule(action, **match):
    return {"rules": [{"action": action, **match}]}


ON_42 = {"onExitCodes": {"operator": "In", "values": [42]}}


def test_fail_index_rule_uses_up_the_limit(bench):
    per_index(bench, limit=5, podFailurePolicy=rule("FailIndex", **ON_42))
    fail_index(bench, 0, 42)
    assert bench.status()["failedIndexes"] == "0"


def exited(code, name="main"):
    return {"name": name, "state": {"terminated": {"exitCode": code}}}


@pytest.mark.parametrize(
    ("requirement", "statuses", "matches"),
    [
        ({"operator": "In", "values": [1, 42]}, [exited(42)], True),
        ({"operator": "In", "values": [1]}, [exited(42)], False),
        ({"operator": "NotIn", "values": [1]}, [exited(42)], True),
        ({"operator": "NotIn", "values": [1]}, [exited(0)], False),
        ({"operator": "In", "values": [42], "containerName": "other"}, [exited(42)], False),
        ({"operator": "In", "values": [42], "containerName": "other"}, [exited(1), exited(42, "other")], True),
        ({"operator": "In", "values": [42]}, [{"name": "main", "state": {"running": {}}}], False),
    ],
    ids=["listed", "not listed", "excluded", "success never", "other container", "named container", "running"],
)
def test_exit_code_rule_matches_terminated_containers(requirement, statuses, matches):
    pod = {"metadata": {"name": "p", "namespace": "n"}, "status": {"containerStatuses": statuses}}
    found = failure_policy.match(rule("Count", onExitCodes=requirement), pod)
    assert (found.action == "Count") is matches


def test_first_matching_rule_decides():
    policy = {"rules": [{"action": "Ignore", **ON_42}, {"action": "FailJob", **ON_42}]}
    pod = {"metadata": {"name": "p", "namespace": "n"}, "status": {"containerStatuses": [exited(42)]}}
    assert failure_policy.match(policy, pod).action == "Ignore"


@pytest.mark.parametrize(
    ("policy_rule", "succeeded"),
    [
        ({"succeededIndexes": "1"}, [1]),
        ({"succeededCount": 2}, [0, 2]),
        ({"succeededIndexes": "0-2", "succeededCount": 2}, [0, 2]),
    ],
    ids=["leader", "any two", "two of some"],
)
def test_success_policy_ends_the_job_early(bench, policy_rule, succeeded):
    bench.job(workers=4, successPolicy={"rules": [policy_rule]})
    bench.run()
    pods = bench.pods("train")
    for index in succeeded[:-1]:
        bench.succeed(pods[index])
    bench.run()
    assert bench.conditions() == []
    bench.succeed(pods[succeeded[-1]])
    bench.run()
    assert bench.condition("train", "Complete") == ("SuccessPolicy", "Matched rules at index 0")
    assert bench.status().get("failed") is None
    assert bench.live_pods("train") == []
