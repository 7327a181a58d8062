"""The Job controller: pods, status, suspension, deadlines and scaling of a Job."""

import pytest

from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.resources import JOBS, NAMESPACES
from tests.sandbox.builders import NAMESPACE, Bench, finalizers, index_of, is_deleting

TRACKING = "batch.kubernetes.io/job-tracking"
HARVEST = "gangjobs.airflow/harvest"


@pytest.fixture
def bench():
    return Bench(schedules=False)


def resume(bench, job="train", *, suspend=False):
    bench.registry.patch(JOBS, job, NAMESPACE, {"spec": {"suspend": suspend}})
    bench.run()


def test_environment_of_the_user_is_not_replaced(bench):
    own = {"name": "main", "image": "x", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "mine"}]}
    bench.job(workers=1, pod_spec={"containers": [own]})
    bench.run()
    assert bench.pods("train")[0]["spec"]["containers"][0]["env"] == own["env"]


def test_long_job_name_leaves_room_for_index(bench):
    name = "a" * 60
    bench.job(name, workers=1)
    bench.run()
    assert bench.pods()[0]["metadata"]["name"].startswith("a" * 55 + "-0-")


def test_status_has_active_count_and_start_time(bench):
    bench.job(workers=2)
    bench.run()
    assert bench.status() == {
        "active": 2,
        "ready": 0,
        "terminating": 0,
        "startTime": "2026-01-01T00:00:00Z",
        "uncountedTerminatedPods": {},
    }


def test_job_completes_when_each_index_succeeded(bench):
    bench.job(workers=3)
    bench.run()
    for pod in bench.pods("train"):
        bench.succeed(pod)
    bench.run()
    status = bench.status()
    assert (status["succeeded"], status["completedIndexes"], status.get("active")) == (3, "0-2", None)
    assert bench.conditions() == ["SuccessCriteriaMet", "Complete"]
    assert bench.condition("train", "Complete") == (
        "CompletionsReached",
        "Reached expected number of succeeded pods",
    )
    assert status["completionTime"] == "2026-01-01T00:00:03Z"
    assert bench.events("train")[-1] == ("Completed", "Job completed")


def test_nonindexed_job_counts_uids(bench):
    bench.job(workers=None, completions=3, parallelism=2, backoffLimit=6)
    for _ in range(2):
        bench.run()
        for pod in bench.live_pods("train"):
            bench.succeed(pod)
    bench.run()
    assert bench.status()["succeeded"] == 3
    assert bench.conditions() == ["SuccessCriteriaMet", "Complete"]
    assert len(bench.pods("train")) == 3


def test_work_queue_ends_with_its_last_pod(bench):
    bench.job(workers=None, parallelism=3)
    bench.run()
    first, second, third = bench.pods("train")
    bench.succeed(first)
    bench.run()
    assert bench.conditions() == []
    bench.succeed(second)
    bench.succeed(third)
    bench.run()
    assert bench.status()["succeeded"] == 3
    assert bench.conditions() == ["SuccessCriteriaMet", "Complete"]


def test_first_failure_ends_gang_job(bench):
    bench.job(workers=2)
    bench.run()
    bench.fail(bench.pods("train")[0])
    bench.run()
    assert bench.conditions() == ["FailureTarget", "Failed"]
    assert bench.condition("train", "Failed") == (
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )
    assert bench.events("train", kind="Warning") == [
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
    ]


def test_resumed_job_resets_its_start_time(bench):
    bench.job(suspend=True)
    bench.run(60)
    resume(bench)
    assert bench.status()["startTime"] == "2026-01-01T00:01:00Z"
    assert bench.conditions() == []
    assert [reason for reason, _ in bench.events("train")] == [
        "Suspended",
        "SuccessfulCreate",
        "SuccessfulCreate",
        "Resumed",
    ]


def test_deadline_fails_the_job_on_time(bench):
    bench.job(activeDeadlineSeconds=30)
    bench.run(29)
    assert bench.conditions() == []
    bench.run(3)
    assert bench.condition("train", "Failed") == (
        "DeadlineExceeded",
        "Job was active longer than specified deadline",
    )
    assert bench.status()["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:30Z"


def test_deadline_does_not_run_while_suspended(bench):
    bench.job(activeDeadlineSeconds=30, suspend=True)
    bench.run(60)
    assert bench.conditions() == ["Suspended"]
    resume(bench)
    bench.run(20)
    assert bench.conditions() == []


def test_scaled_down_job_deletes_pending_pods_first(bench):
    bench.job(workers=None, completions=10, parallelism=3)
    bench.run()
    running = bench.pods("train")[0]
    bench.start(running)
    bench.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"parallelism": 1}})
    bench.run()
    assert [pod["metadata"]["uid"] for pod in bench.live_pods("train")] == [running["metadata"]["uid"]]


def test_second_pod_of_an_index_is_removed(bench):
    bench.job(workers=2)
    bench.run()
    twin = bench.pods("train")[1]
    bench.pod("twin", labels=twin["metadata"]["labels"], annotations=twin["metadata"]["annotations"])
    bench.run()
    assert [index_of(pod) for pod in bench.live_pods()] == [0, 1]


def test_elastic_job_deletes_indexes_above_its_size(bench):
    bench.job(workers=4)
    bench.run()
    bench.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"parallelism": 2, "completions": 2}})
    bench.run()
    assert [index_of(pod) for pod in bench.live_pods("train")] == [0, 1]


def test_job_managed_by_another_controller_is_ignored(bench):
    bench.job(managedBy="kueue.x-k8s.io/multikueue")
    bench.run()
    assert bench.pods("train") == []
    assert bench.status() == {}


def test_refused_pod_is_reported_once_per_sync(bench):
    bench.job(workers=4, pod_metadata={"finalizers": ["not a name"]})
    bench.run(0)
    (reason, message), *_ = bench.events("train")
    assert reason == "FailedCreate"
    assert message.startswith("Error creating: Pod ")
    assert len(bench.events("train")) == 1, "slow start has tried to create more than one pod"


def test_pods_are_created_when_refusals_end(bench):
    bench.controllers_registry.refuses = lambda call: "before" if call == "create" else None
    bench.job(workers=4)
    bench.run()
    assert bench.pods("train") == []
    bench.controllers_registry.refuses = lambda call: None
    bench.run(120)
    assert len(bench.pods("train")) == 4


def test_terminating_namespace_gets_no_pods(bench):
    bench.registry.create(NAMESPACES, {"metadata": {"name": "old"}})
    bench.registry.create(
        JOBS,
        {
            "metadata": {"name": "late", "finalizers": ["example.com/hold"]},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x"}]}}},
        },
        "old",
    )
    bench.registry.delete(NAMESPACES, "old")
    bench.run()
    with pytest.raises(StatusError, match="being terminated"):
        bench.registry.create("pods", {"metadata": {"name": "p"}, "spec": {"containers": []}}, "old")
    assert bench.registry.list("pods", "old") == []


def test_foreground_deleted_job_counts_no_running_pod(bench):
    bench.node()
    bench.job(workers=2, pod_spec={"nodeName": "node-1"})
    bench.run()
    bench.registry.delete(JOBS, "train", NAMESPACE, propagation="Foreground")
    bench.run()
    assert bench.status().get("failed") is None
    assert all(is_deleting(pod) and TRACKING not in finalizers(pod) for pod in bench.pods("train"))
    bench.stop_deleted()
    bench.run()
    assert bench.registry.find(JOBS, NAMESPACE, "train") is None
