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
