"""Each pod is counted exactly once, in any order of pod ends, deletions, failed writes, and writes in between."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangjobs_sandbox.resources import JOBS, PODS
from tests.examples import examples
from tests.sandbox.builders import NAMESPACE, Bench, finalizers, index_of, is_deleting, is_terminal

# -- Each pod is counted exactly once, in any order of pod ends, deletions, finalizer removals and failed writes -----

TRACKING = "batch.kubernetes.io/job-tracking"
HARVEST = "gangjobs.airflow/harvest"
POLICIES = ("TerminatingOrFailed", "Failed")


class CountedOnce(RuleBasedStateMachine):
    """Draws the events for the pods of one Job on one node."""

    @initialize(
        workers=st.integers(1, 4),
        indexed=st.booleans(),
        limit=st.sampled_from([0, 2, 100]),
        policy=st.sampled_from(POLICIES),
        with_finalizer=st.booleans(),
    )
    def submit(self, workers, indexed, limit, policy, with_finalizer):
        self.bench = Bench(schedules=False)
        self.bench.node()
        self.indexed, self.policy = indexed, policy
        sized = {"workers": workers} if indexed else {"workers": None, "completions": workers, "parallelism": workers}
        metadata = {"finalizers": [HARVEST]} if with_finalizer else {}
        spec = {"backoffLimit": limit, "podReplacementPolicy": policy, "pod_metadata": metadata}
        self.bench.job(**sized, **spec, pod_spec={"nodeName": "node-1"})
        self.ended: dict[str, str] = {}
        self.listed: dict[str, set[str]] = {"succeeded": set(), "failed": set()}
        self.untracked: set[str] = set()
        self.indexes: dict[str, int] = {}
        self.budget = 0
        self.bench.controllers_registry.refuses = self._refuses
        self.turns_left, self.disturbance = 0, None
        self.bench.between = self._between
        self.bench.registry.observe(self._watch)
        self.bench.run(0)

    def _refuses(self, call):
        if self.budget == 0:
            return None
        self.budget -= 1
        return ("before", "after", None)[self.budget % 3]

    def _between(self):
        """Another writer acts in the middle of a sync."""
        if self.disturbance is None:
            return
        self.turns_left -= 1
        if self.turns_left < 0:
            act, self.disturbance = self.disturbance, None
            act()

    def _watch(self, event):
        """Record what a client of the API could have seen."""
        if event.resource is JOBS:
            uncounted = event.obj["status"].get("uncountedTerminatedPods", {})
            for outcome, uids in self.listed.items():
                uids.update(uncounted.get(outcome, ()))
        elif event.resource.plural == "pods":
            uid = event.obj["metadata"]["uid"]
            self.indexes[uid] = index_of(event.obj)
            if is_terminal(event.obj):
                self.ended[uid] = event.obj["status"]["phase"]
            # The removal of the last finalizer of a terminating pod removes the pod. The event has its last state.
            if event.type == "DELETED" or TRACKING not in finalizers(event.obj):
                self.untracked.add(uid)

    def _pick(self, pods, data):
        return data.draw(st.sampled_from(pods)) if pods else None

    @rule(data=st.data(), succeeds=st.booleans())
    def a_pod_ends(self, data, succeeds):
        running = [pod for pod in self.bench.pods() if not is_terminal(pod)]
        if pod := self._pick(running, data):
            (self.bench.succeed if succeeds else self.bench.fail)(pod)

    @rule(data=st.data())
    def a_pod_is_deleted(self, data):
        if pod := self._pick([pod for pod in self.bench.pods() if not is_deleting(pod)], data):
            self.bench.delete(pod)

    @rule()
    def the_node_ends_deleted_pods(self):
        self.bench.stop_deleted()

    @rule(data=st.data())
    def a_harvest_is_done(self, data):
        if pod := self._pick([pod for pod in self.bench.pods() if HARVEST in finalizers(pod)], data):
            self.bench.release(pod, HARVEST)

    @rule(suspend=st.booleans())
    def the_job_is_suspended_or_resumed(self, suspend):
        self.bench.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"suspend": suspend}})

    @rule(budget=st.integers(1, 9))
    def writes_begin_to_fail(self, budget):
        self.budget = budget

    @rule()
    def the_controllers_die(self):
        self.bench.restart_controllers()

    @rule(
        after=st.integers(0, 20), what=st.sampled_from(["ends", "is deleted", "job", "suspend"]), succeeds=st.booleans()
    )
    def a_sync_will_be_disturbed(self, after, what, succeeds):
        def act():
            live = self.bench.live_pods()
            if what == "ends" and live:
                (self.bench.succeed if succeeds else self.bench.fail)(live[-1])
            elif what == "is deleted" and live:
                self.bench.delete(live[0])
            elif what == "job":
                self.bench.registry.patch(JOBS, "train", NAMESPACE, {"metadata": {"labels": {"touched": str(after)}}})
            elif what == "suspend":
                self.bench.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"suspend": succeeds}})

        self.turns_left, self.disturbance = after, act

    @rule(seconds=st.sampled_from([0, 1, 2, 15]))
    def time_passes(self, seconds):
        self.bench.run(seconds)

    @precondition(lambda self: hasattr(self, "bench"))
    @invariant()
    def counters_never_exceed_what_ended(self):
        status = self.bench.status()
        uncounted = status.get("uncountedTerminatedPods", {})
        failed = status.get("failed", 0) + len(uncounted.get("failed", ()))
        assert failed <= len(self.listed["failed"])
        assert not self.listed["succeeded"] & self.listed["failed"], "counted twice"
        if not self.indexed:
            succeeded = status.get("succeeded", 0) + len(uncounted.get("succeeded", ()))
            assert succeeded <= len(self.listed["succeeded"])

    @precondition(lambda self: hasattr(self, "bench"))
    @invariant()
    def a_finished_job_has_nothing_open(self):
        status = self.bench.status()
        if {"Complete", "Failed"} & set(self.bench.conditions()):
            assert status.get("active", 0) == status.get("terminating", 0) == 0
            assert status["uncountedTerminatedPods"] == {}

    def teardown(self):
        if hasattr(self, "bench"):
            self._stop_faults()
            self._check_end()

    def _stop_faults(self):
        """The faults stop: pods succeed, nodes respond, and the Job is not suspended."""
        self.budget, self.disturbance = 0, None
        self.bench.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"suspend": False}})
        for _ in range(20):
            self.bench.run(700)
            if {"Complete", "Failed"} & set(self.bench.conditions()):
                break
            for pod in self.bench.live_pods():
                self.bench.succeed(pod)
            self.bench.stop_deleted()
        self.bench.stop_deleted()
        self.bench.run(30)

    def _check_end(self):
        status = self.bench.status()
        assert {"Complete", "Failed"} & set(self.bench.conditions()), status
        assert not [pod for pod in self.bench.pods() if TRACKING in finalizers(pod)]
        assert status.get("failed", 0) == len(self.listed["failed"])
        if self.indexed:
            counted = {self.indexes[uid] for uid in self.untracked if self.ended.get(uid) == "Succeeded"}
            completed = status.get("succeeded", 0)
            assert completed <= len(counted)
            if "Complete" in self.bench.conditions():
                assert status["completedIndexes"].split("-")[0].split(",")[0] == "0"
        else:
            assert status.get("succeeded", 0) == len(self.listed["succeeded"])


TestCountedOnce = CountedOnce.TestCase
TestCountedOnce.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


# -- Other writers act in the middle of a sync, at each point where the sync yields ----------------------------------

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
    bench.run_job(workers=None, completions=1, parallelism=1)
    labels = bench.pods()[0]["metadata"]["labels"]
    stray = bench.pod("stray", labels=labels)
    hold = {"metadata": {"finalizers": ["example.org/hold"]}}
    bench.registry.patch(JOBS, "train", NAMESPACE, hold)
    Once(bench, 0, delete_job)
    bench.run()
    found = bench.registry.get(PODS, stray["metadata"]["name"], NAMESPACE)
    assert "ownerReferences" not in found["metadata"]
    assert is_deleting(bench.registry.get(JOBS, "train", NAMESPACE))
