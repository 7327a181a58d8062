"""KEP-2307: a pod is counted exactly once, even if the controller crashes after any write."""

import pytest

from tests.sandbox.builders import Bench, finalizers

TRACKING = "batch.kubernetes.io/job-tracking"
HARVEST = "gangjobs.airflow/harvest"


@pytest.fixture
def bench():
    return Bench(schedules=False)


def tracked(bench):
    return [pod for pod in bench.pods() if TRACKING in finalizers(pod)]


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


def test_pod_of_another_controller_keeps_the_finalizer(bench):
    owner = {"apiVersion": "example.com/v1", "kind": "Other", "name": "x", "uid": "u", "controller": True}
    bench.pod("foreign", finalizers=[TRACKING], ownerReferences=[owner])
    bench.run()
    assert len(tracked(bench)) == 1
