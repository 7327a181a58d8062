"""KEP-2307: a pod is counted exactly once, even if the controller crashes after any write."""

import pytest

from gangjobs_sandbox.resources import JOBS
from tests.sandbox.builders import NAMESPACE, Bench, finalizers

TRACKING = "batch.kubernetes.io/job-tracking"
HARVEST = "gangjobs.airflow/harvest"


@pytest.fixture
def bench():
    return Bench(schedules=False)


def tracked(bench):
    return [pod for pod in bench.pods() if TRACKING in finalizers(pod)]


def test_uid_is_listed_before_its_finalizer_is_removed(bench):
    bench.job(workers=None, completions=2, parallelism=2)
    bench.run()
    seen = []

    def look(event):
        if event.resource is JOBS:
            uncounted = event.obj["status"].get("uncountedTerminatedPods", {}).get("succeeded", [])
            seen.append((len(uncounted), len(tracked(bench)), event.obj["status"].get("succeeded", 0)))

    bench.registry.observe(look)
    for pod in bench.pods():
        bench.succeed(pod)
    bench.run()
    assert seen == [(2, 2, 0), (0, 0, 2)]


def test_at_most_500_pods_are_listed_at_once(bench):
    bench.job(workers=None, completions=1200, parallelism=1200)
    bench.run(10)
    assert len(bench.pods()) == 1200
    listed = []
    bench.registry.observe(
        lambda event: (
            listed.append(len(event.obj["status"].get("uncountedTerminatedPods", {}).get("succeeded", [])))
            if event.resource is JOBS
            else None
        )
    )
    for pod in bench.pods():
        bench.succeed(pod)
    bench.run(10)
    assert max(listed) == 500
    assert bench.status()["succeeded"] == 1200
    assert bench.conditions() == ["SuccessCriteriaMet", "Complete"]


def test_at_most_500_pods_are_created_at_once(bench):
    bench.job(workers=1200)
    bench.run(0)
    assert len(bench.pods()) == 500


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", range(12), ids=lambda at: f"write {at}")
def test_crash_at_any_write_counts_each_pod_once(bench, at, moment):
    bench.job(workers=None, completions=3, parallelism=3, backoffLimit=6)
    bench.run()
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


def test_one_refused_release_keeps_the_others_counted(bench):
    bench.job(workers=None, completions=3, parallelism=3)
    bench.run()
    for pod in bench.pods():
        bench.succeed(pod)
    refusals = iter([None, None, "before"])
    bench.controllers_registry.refuses = lambda call: next(refusals, None)
    bench.run(1)
    assert bench.status()["succeeded"] == 2
    assert len(tracked(bench)) == 1
    bench.run(5)
    assert bench.status()["succeeded"] == 3


def test_pods_of_a_deleted_job_are_released(bench):
    bench.job(workers=2, pod_metadata={"finalizers": [HARVEST]})
    bench.run()
    for pod in bench.pods():
        bench.start(pod)
    bench.registry.delete(JOBS, "train", NAMESPACE, propagation="Background")
    bench.run()
    assert [finalizers(pod) for pod in bench.pods()] == [[HARVEST], [HARVEST]]


def test_orphaned_pods_run_on_without_finalizer(bench):
    bench.job(workers=2)
    bench.run()
    bench.registry.delete(JOBS, "train", NAMESPACE, propagation="Orphan")
    bench.run()
    assert [finalizers(pod) for pod in bench.live_pods()] == [[], []]
    assert all("ownerReferences" not in pod["metadata"] for pod in bench.pods())


def test_matching_pod_without_owner_is_adopted(bench):
    job = bench.job(workers=None, completions=4, parallelism=1)
    bench.run()
    labels = bench.pods()[0]["metadata"]["labels"]
    bench.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"parallelism": 2}})
    bench.pod("stray", labels=labels)
    bench.run()
    stray = bench.registry.get("pods", "stray", NAMESPACE)
    assert stray["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert finalizers(stray) == [TRACKING]
    assert len(bench.live_pods()) == 2


def test_pod_that_is_no_longer_selected_is_disowned(bench):
    bench.job(workers=1)
    bench.run()
    (pod,) = bench.pods()
    labels = {"batch.kubernetes.io/controller-uid": "other"}
    bench.registry.patch("pods", pod["metadata"]["name"], NAMESPACE, {"metadata": {"labels": labels}})
    bench.run()
    given_up = bench.registry.get("pods", pod["metadata"]["name"], NAMESPACE)
    assert "ownerReferences" not in given_up["metadata"]
    assert finalizers(given_up) == []
    assert len([pod for pod in bench.live_pods() if pod["metadata"].get("ownerReferences")]) == 1


@pytest.mark.parametrize("what", ["the pod is deleted", "the Job changes"])
def test_late_pod_of_a_finished_job_is_released_with_the_next_change(bench, what):
    """Kubernetes 1.36 behaves the same: the pod keeps its finalizer until then."""
    bench.job(workers=1)
    bench.run()
    owner = bench.pods()[0]["metadata"]["ownerReferences"]
    bench.succeed(bench.pods()[0])
    bench.run()
    late = bench.pod("late", finalizers=[TRACKING], ownerReferences=owner)
    bench.run()
    assert len(tracked(bench)) == 1
    if what == "the Job changes":
        bench.registry.patch(JOBS, "train", NAMESPACE, {"metadata": {"labels": {"touched": "yes"}}})
    else:
        bench.delete(late)
    bench.run()
    assert tracked(bench) == []


def test_pod_of_another_controller_keeps_the_finalizer(bench):
    owner = {"apiVersion": "example.com/v1", "kind": "Other", "name": "x", "uid": "u", "controller": True}
    bench.pod("foreign", finalizers=[TRACKING], ownerReferences=[owner])
    bench.run()
    assert len(tracked(bench)) == 1


def test_removed_pod_is_counted_from_the_uncounted_list(bench):
    """The pod's other finalizer is removed first, so the pod is removed together with the tracking finalizer."""
    bench.job(workers=None, completions=1, parallelism=1)
    bench.run()
    bench.succeed(bench.pods()[0])
    bench.delete(bench.pods()[0])
    bench.run()
    assert bench.pods() == []
    assert bench.status()["succeeded"] == 1


def test_pod_without_its_finalizer_is_not_counted(bench):
    """A user who removes the tracking finalizer removes the pod from the count."""
    bench.job(workers=1, backoffLimit=6)
    bench.run()
    bench.release(bench.pods()[0], TRACKING)
    bench.delete(bench.pods()[0])
    bench.run(15)
    assert bench.status().get("failed") is None
    assert len(bench.live_pods()) == 1
