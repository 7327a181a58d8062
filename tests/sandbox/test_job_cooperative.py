"""Other writers act in the middle of a sync, at each point where the sync yields."""

from __future__ import annotations

import pytest

from gangjobs_sandbox.resources import JOBS, PODS
from tests.sandbox.builders import NAMESPACE, Bench, finalizers, is_deleting

TRACKING = "batch.kubernetes.io/job-tracking"
WORKERS = 3


def touch(bench):
    """Write to the Job, so that the status write of the sync conflicts."""
    bench.registry.patch(JOBS, "train", NAMESPACE, {"metadata": {"labels": {"touched": "yes"}}})


def suspend(bench):
    bench.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"suspend": True}})


def lose_a_pod(bench):
    for pod in bench.live_pods()[:1]:
        bench.delete(pod)
        bench.stop_deleted()


def end_a_pod(bench):
    for pod in bench.live_pods()[:1]:
        bench.succeed(pod)


def delete_job(bench):
    bench.registry.delete(JOBS, "train", NAMESPACE, propagation="Background")


def replace_job(bench):
    delete_job(bench)
    bench.job(workers=WORKERS, backoffLimit=6)


DISTURBANCES = [touch, suspend, lose_a_pod, end_a_pod, delete_job, replace_job]


class Once:
    """Acts once, at the given yield point of a sync, and records whether the point was reached."""

    def __init__(self, bench, place, act):
        self.left, self.act, self.bench = place, act, bench
        self.has_acted = False
        bench.between = self._between

    def _between(self):
        self.left -= 1
        if self.left == -1:
            self.has_acted = True
            self.act(self.bench)


def drive_to_the_end(bench):
    if bench.registry.find(JOBS, NAMESPACE, "train"):
        bench.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"suspend": False}})
    for _ in range(10):
        bench.run(700)
        for pod in bench.live_pods():
            bench.succeed(pod)
        bench.stop_deleted()


def check_end(bench):
    """Every pod was counted once or has no owner, and an existing Job is complete."""
    assert not [pod for pod in bench.pods() if TRACKING in finalizers(pod)]
    if bench.registry.find(JOBS, NAMESPACE, "train"):
        assert bench.conditions()[-1] == "Complete"
        assert (bench.status()["succeeded"], bench.status()["completedIndexes"]) == (WORKERS, f"0-{WORKERS - 1}")
        owner = bench.registry.get(JOBS, "train", NAMESPACE)["metadata"]["uid"]
        assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in bench.pods()} == {owner}
    else:
        assert bench.pods() == []


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda act: act.__name__)
def test_write_during_a_sync_neither_loses_nor_duplicates_counts(disturb):
    place = 0
    while True:
        bench = Bench(schedules=False)
        bench.node()
        bench.job(workers=WORKERS, backoffLimit=6, pod_spec={"nodeName": "node-1"})
        once = Once(bench, place, disturb)
        bench.run(2)
        for pod in bench.live_pods():
            bench.succeed(pod)
        bench.run(5)
        drive_to_the_end(bench)
        check_end(bench)
        if not once.has_acted:
            break
        place += 1
    assert place > WORKERS, "the sync has fewer yield points than pods"


def test_conflict_is_retried_and_not_logged(caplog):
    bench = Bench(schedules=False)
    bench.job(workers=WORKERS)
    Once(bench, 0, touch)
    bench.run(0.5)
    assert bench.status() == {}, "the status of an older version of the Job was written"
    assert len(bench.pods()) == WORKERS
    bench.run(2)
    assert bench.status()["active"] == WORKERS
    assert len(bench.pods()) == WORKERS, "the next sync has created the pods again"
    assert caplog.records == []


def test_job_deleted_in_a_sync_adopts_nothing():
    bench = Bench(schedules=False)
    bench.job(workers=None, completions=1, parallelism=1)
    bench.run()
    labels = bench.pods()[0]["metadata"]["labels"]
    stray = bench.pod("stray", labels=labels)
    hold = {"metadata": {"finalizers": ["example.org/hold"]}}
    bench.registry.patch(JOBS, "train", NAMESPACE, hold)
    Once(bench, 0, delete_job)
    bench.run()
    found = bench.registry.get(PODS, stray["metadata"]["name"], NAMESPACE)
    assert "ownerReferences" not in found["metadata"]
    assert is_deleting(bench.registry.get(JOBS, "train", NAMESPACE))
