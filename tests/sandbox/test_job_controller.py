"""The Job controller: pods, status, policies and groups of a Job, each of whose pods is counted once."""

from __future__ import annotations

import pytest

from gangjobs_sandbox.controllers import ControllerSettings
from gangjobs_sandbox.controllers.job import failure_policy
from gangjobs_sandbox.controllers.job.workload import pod_group_name
from gangjobs_sandbox.resources import PODGROUPS, WORKLOADS
from tests.sandbox.builders import NAMESPACE, Bench, finalizers, index_of

# -- The Job controller: pods, status, suspension, deadlines and scaling of a Job ------------------------------------


@pytest.fixture
def bench():
    return Bench(schedules=False)


def test_environment_of_the_user_is_not_replaced(bench):
    own = {"name": "main", "image": "x", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "mine"}]}
    bench.run_job(workers=1, pod_spec={"containers": [own]})
    assert bench.pods("train")[0]["spec"]["containers"][0]["env"] == own["env"]


def test_long_job_name_leaves_room_for_index(bench):
    name = "a" * 60
    bench.run_job(name, workers=1)
    assert bench.pods()[0]["metadata"]["name"].startswith("a" * 55 + "-0-")


def test_work_queue_ends_with_its_last_pod(bench):
    bench.run_job(workers=None, parallelism=3)
    first, second, third = bench.pods("train")
    bench.succeed(first)
    bench.run()
    assert bench.conditions() == []
    bench.succeed(second)
    bench.succeed(third)
    bench.run()
    assert bench.status()["succeeded"] == 3
    assert bench.conditions() == ["SuccessCriteriaMet", "Complete"]


def test_deadline_does_not_run_while_suspended(bench):
    bench.job(activeDeadlineSeconds=30, suspend=True)
    bench.run(60)
    assert bench.conditions() == ["Suspended"]
    bench.change_job({"spec": {"suspend": False}})
    bench.run(20)
    assert bench.conditions() == []


def test_scaled_down_job_deletes_pending_pods_first(bench):
    bench.run_job(workers=None, completions=10, parallelism=3)
    running = bench.pods("train")[0]
    bench.start(running)
    bench.change_job({"spec": {"parallelism": 1}})
    assert [pod["metadata"]["uid"] for pod in bench.live_pods("train")] == [running["metadata"]["uid"]]


def test_second_pod_of_an_index_is_removed(bench):
    bench.run_job(workers=2)
    twin = bench.pods("train")[1]
    bench.pod("twin", labels=twin["metadata"]["labels"], annotations=twin["metadata"]["annotations"])
    bench.run()
    assert [index_of(pod) for pod in bench.live_pods()] == [0, 1]


def test_elastic_job_deletes_indexes_above_its_size(bench):
    bench.run_job(workers=4)
    bench.change_job({"spec": {"parallelism": 2, "completions": 2}})
    assert [index_of(pod) for pod in bench.live_pods("train")] == [0, 1]


def test_job_managed_by_another_controller_is_ignored(bench):
    bench.run_job(managedBy="kueue.x-k8s.io/multikueue")
    assert bench.pods("train") == []
    assert bench.status() == {}


def test_pods_are_created_when_refusals_end(bench):
    bench.controllers_registry.refuses = lambda call: "before" if call == "create" else None
    bench.run_job(workers=4)
    assert bench.pods("train") == []
    bench.controllers_registry.refuses = lambda call: None
    bench.run(120)
    assert len(bench.pods("train")) == 4


# -- Back-off, back-off per index, pod failure policy, success policy and pod replacement policy of Jobs -------------

FAILURES = "batch.kubernetes.io/job-index-failure-count"


def seconds_until_next_pod(bench, *, limit=1000):
    start = bench.clock.now()
    while not bench.live_pods("train"):
        bench.run(1)
        assert (bench.clock.now() - start).total_seconds() < limit, "no pod was created"
    return (bench.clock.now() - start).total_seconds()


def test_each_failure_doubles_the_wait(bench):
    bench.run_job(workers=1, backoffLimit=6)
    delays_s = []
    for _ in range(4):
        bench.fail(bench.live_pods("train")[0])
        delays_s.append(seconds_until_next_pod(bench))
    assert delays_s == [10, 20, 40, 80]


def test_success_resets_the_failure_count(bench):
    bench.run_job(workers=None, completions=3, parallelism=1, backoffLimit=6)
    bench.fail(bench.live_pods("train")[0])
    assert seconds_until_next_pod(bench) == 10
    bench.succeed(bench.live_pods("train")[0])
    assert seconds_until_next_pod(bench) <= 2
    bench.fail(bench.live_pods("train")[0])
    assert seconds_until_next_pod(bench) == 10


def test_restarts_count_with_policy_on_failure(bench):
    bench.run_job(workers=1, backoffLimit=2, pod_spec={"restartPolicy": "OnFailure"})
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
    bench.run_job(workers=workers, backoffLimit=100, backoffLimitPerIndex=limit, **spec)


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
    bench.run_job(workers=4, successPolicy={"rules": [policy_rule]})
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


# -- KEP-2307: a pod is counted exactly once, even if the controller crashes after any write -------------------------

TRACKING = "batch.kubernetes.io/job-tracking"


def tracked(bench):
    return [pod for pod in bench.pods() if TRACKING in finalizers(pod)]


def test_at_most_500_pods_are_created_at_once(bench):
    bench.job(workers=1200)
    bench.run(0)
    assert len(bench.pods()) == 500


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", range(12), ids=lambda at: f"write {at}")
def test_crash_at_any_write_counts_each_pod_once(bench, at, moment):
    bench.run_job(workers=None, completions=3, parallelism=3, backoffLimit=6)
    first, second, third = bench.pods()
    bench.succeed(first)
    bench.succeed(second)
    bench.fail(third)
    writes = iter([None] * at + [moment])
    bench.controllers_registry.refuses = lambda call: next(writes, None)
    bench.run(0.5)
    bench.restart_controllers()
    bench.run(30)
    for pod in bench.live_pods():
        bench.succeed(pod)
    bench.run(5)
    assert (bench.status()["succeeded"], bench.status()["failed"]) == (3, 1)
    assert bench.conditions() == ["SuccessCriteriaMet", "Complete"]
    assert tracked(bench) == []


def test_pod_of_another_controller_keeps_the_finalizer(bench):
    owner = {"apiVersion": "example.com/v1", "kind": "Other", "name": "x", "uid": "u", "controller": True}
    bench.pod("foreign", finalizers=[TRACKING], ownerReferences=[owner])
    bench.run()
    assert len(tracked(bench)) == 1


# -- KEP-5547 in 1.36 and 1.37: the Job controller creates Workload and PodGroup itself ------------------------------

GANG = {"schedulingPolicy": {"gang": {}}}


def bench_of(release):
    bench = Bench(release, settings=ControllerSettings(workload_with_job=True))
    bench.node(cpu="4")
    return bench


@pytest.fixture
def old():
    return bench_of("1.36")


@pytest.fixture
def new():
    return bench_of("1.37")


def objects(bench):
    return bench.registry.list(WORKLOADS, NAMESPACE), bench.registry.list(PODGROUPS, NAMESPACE)


def groups_of_pods(bench):
    return {(pod["spec"].get("schedulingGroup") or {}).get("podGroupName") for pod in bench.pods("train")}


@pytest.mark.parametrize(
    "shape",
    [
        {"workers": 1},
        {"workers": None, "completions": 2, "parallelism": 2},
        {"workers": 4, "parallelism": 2},
        {"workers": 2, "pod_spec": {"schedulingGroup": {"podGroupName": "mine"}}},
    ],
    ids=["one worker", "not indexed", "less parallel", "own group"],
)
def test_other_shapes_get_no_gang_in_136(old, shape):
    old.run_job(**shape)
    assert objects(old) == ([], [])


def test_foreign_workload_of_the_name_disables_the_gang(old):
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    spec = {
        "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "train"},
        "podGroupTemplates": [{"name": "mine", **policy}],
    }
    old.registry.create(WORKLOADS, {"metadata": {"name": "mine"}, "spec": spec}, NAMESPACE)
    old.run_job(workers=2)
    assert groups_of_pods(old) == {None}


def test_job_name_that_is_too_long_for_a_template_gets_no_pods(old):
    """The template is named <job>-pgt-0, which must be a DNS label: a longer job name than 57 is always refused."""
    old.job("a" * 58, workers=2)
    old.run(120)
    assert old.pods() == []


def test_controlled_job_is_ignored_in_137(new):
    parent = {"apiVersion": "example.com/v1", "kind": "Set", "name": "p", "uid": "u", "controller": True}
    new.run_job(workers=2, metadata={"ownerReferences": [parent]}, scheduling=GANG)
    assert objects(new) == ([], [])
    assert len(new.bound("train")) == 2


def test_size_of_an_elastic_gang_follows_the_job(new):
    new.run_job(workers=2, scheduling=GANG)
    new.change_job({"spec": {"parallelism": 3, "completions": 3}})
    (workload,), (group,) = objects(new)
    assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3
    assert workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] == 3


@pytest.mark.parametrize(("workload", "template"), [(10, 300), (300, 10), (300, 300)], ids=str)
def test_long_names_are_cut_to_fit(workload, template):
    name = pod_group_name("w" * workload, "t" * template)
    assert len(name) == 253
    assert name.count("w") >= min(workload, 100)
    assert name.count("t") >= min(template, 100)
