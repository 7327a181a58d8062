"""The Job controller: pods, status, suspension, deadlines and scaling of a Job."""

import pytest

from gangjobs_sandbox.resources import JOBS
from tests.sandbox.builders import NAMESPACE, Bench, index_of

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


def test_pods_are_created_when_refusals_end(bench):
    bench.controllers_registry.refuses = lambda call: "before" if call == "create" else None
    bench.job(workers=4)
    bench.run()
    assert bench.pods("train") == []
    bench.controllers_registry.refuses = lambda call: None
    bench.run(120)
    assert len(bench.pods("train")) == 4
