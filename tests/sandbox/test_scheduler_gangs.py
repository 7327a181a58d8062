"""The scheduler over a registry: gangs of each release, retries, and what users see."""

import itertools

import pytest

from gangjobs_sandbox.clock import VirtualClock
from gangjobs_sandbox.resources import JOBS, NODES, PODGROUPS, PRIORITYCLASSES
from tests.sandbox.builders import NAMESPACE, Bench

GANG_RELEASES = ["1.36", "1.37"]
LACKING = "minCount (6) cannot be satisfied: 4 scheduled, 1 remaining"


@pytest.fixture(params=GANG_RELEASES)
def bench(request):
    return two_nodes(request.param)


def two_nodes(release="1.37"):
    bench = Bench(release)
    for name in ("node-1", "node-2"):
        bench.node(name, cpu="2")
    return bench


def scheduled(pod):
    found = [one for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
    return (found[0]["status"], found[0].get("reason"), found[0].get("message")) if found else None


def test_gang_is_bound_when_another_ends(bench):
    bench.gang("first", workers=4, cpu="1")
    bench.run()
    bench.gang("second", workers=4, cpu="1")
    bench.run(30)
    assert bench.bound("second") == []
    for pod in bench.pods("first"):
        bench.succeed(pod)
    bench.run(15)
    assert len(bench.bound("second")) == 4


def test_terminating_pod_uses_resources(bench):
    bench.gang("first", workers=4, cpu="1")
    bench.run()
    for pod in bench.pods("first"):
        bench.delete(bench.start(pod))
    bench.pod("next")
    bench.run(15)
    assert bench.registry.get("pods", "next", NAMESPACE)["spec"].get("nodeName") is None
    bench.stop_deleted()
    bench.run(15)
    assert bench.registry.get("pods", "next", NAMESPACE)["spec"].get("nodeName")


def test_lowered_min_count_lets_the_gang_start():
    bench = two_nodes()
    bench.gang(workers=6, cpu="1")
    bench.run()
    patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}
    bench.registry.patch(PODGROUPS, "train", NAMESPACE, patch)
    bench.run(15)
    assert len(bench.bound("train")) == 4


def test_basic_group_is_placed_pod_by_pod(bench):
    group = {"metadata": {"name": "loose"}, "spec": {"schedulingPolicy": {"basic": {}}}}
    bench.registry.create(PODGROUPS, group, NAMESPACE)
    bench.job(workers=6, cpu="1", pod_spec={"schedulingGroup": {"podGroupName": "loose"}})
    bench.run()
    assert len(bench.bound("train")) == 4


def test_higher_priority_goes_first(bench):
    bench.registry.create(PRIORITYCLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
    for name in ("node-1", "node-2"):
        bench.registry.patch(NODES, name, None, {"spec": {"unschedulable": True}})
    bench.gang("calm", workers=4, cpu="1")
    bench.run(60)
    bench.gang("hasty", workers=4, cpu="1", pod_spec={"priorityClassName": "urgent"})
    bench.run(60)
    for name in ("node-1", "node-2"):
        bench.registry.patch(NODES, name, None, {"spec": {"unschedulable": None}})
    bench.run(15)
    assert (len(bench.bound("hasty")), bench.bound("calm")) == (4, [])


def test_gated_pod_waits_for_its_gates(bench):
    bench.pod("p", spec={"schedulingGates": [{"name": "example.com/hold"}]})
    bench.run()
    assert bench.bound() == []
    bench.registry.patch("pods", "p", NAMESPACE, {"spec": {"schedulingGates": None}})
    bench.run()
    assert bench.bound() == ["node-1"]


def test_pod_of_another_scheduler_is_ignored(bench):
    bench.pod("p", spec={"schedulerName": "volcano"})
    bench.run()
    assert bench.bound() == []


def test_suspended_gang_releases_its_resources(bench):
    bench.gang("first", workers=4, cpu="1")
    bench.run()
    bench.gang("second", workers=4, cpu="1")
    bench.registry.patch(JOBS, "first", NAMESPACE, {"spec": {"suspend": True}})
    bench.run()
    bench.stop_deleted()
    bench.run(15)
    assert len(bench.bound("second")) == 4


def test_heartbeats_of_nodes_cause_no_attempt(bench):
    bench.pod("p", cpu="3")
    bench.run(30)
    before = bench.events("p")
    bench.registry.patch(NODES, "node-1", None, {"status": {"nodeInfo": {"kubeletVersion": "x"}}}, subresource="status")
    bench.run(30)
    assert bench.events("p") == before
    assert bench.manager.next_due() is None


def test_retries_back_off_to_ten_seconds():
    bench = two_nodes()
    bench.pod("p", cpu="3")
    times = []
    bench.registry.observe(lambda event: times.append(bench.clock.now()) if event.resource.plural == "events" else None)
    for _ in range(60):
        bench.registry.patch(
            NODES, "node-1", None, {"metadata": {"labels": {"tick": str(bench.clock.now().timestamp())}}}
        )
        bench.run(1)
    gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)]
    assert gaps[:5] == [1, 2, 4, 8, 10]
    assert set(gaps[5:]) == {10}


class RunningClock(VirtualClock):
    """A clock that advances with every reading, as real clocks do."""

    def now(self):
        self.advance(0.001)
        return super().now()


def test_pod_is_placed_in_one_step_with_an_advancing_clock():
    bench = Bench(clock=RunningClock())
    bench.node()
    bench.pod("p")
    bench.manager.step()
    assert bench.bound() == ["node-1"]
