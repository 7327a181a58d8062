"""The scheduler: placement as a pure function, gangs over a registry, retries, and preemption."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.clock import VirtualClock
from gangjobs_sandbox.cooperative import run_to_completion
from gangjobs_sandbox.resources import JOBS, NODES, PODGROUPS, PRIORITYCLASSES
from gangjobs_sandbox.scheduler.nodes import node_state, request_of
from gangjobs_sandbox.scheduler.placement import Candidate, place
from gangjobs_sandbox.scheduler.preemption import Occupant, select_victims
from tests.sandbox.builders import NAMESPACE, Bench, container, is_deleting

# -- The scheduler over a registry: gangs of each release, retries, and what users see -------------------------------

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
    bench.run_gang("first", workers=4, cpu="1")
    bench.gang("second", workers=4, cpu="1")
    bench.run(30)
    assert bench.bound("second") == []
    for pod in bench.pods("first"):
        bench.succeed(pod)
    bench.run(15)
    assert len(bench.bound("second")) == 4


def test_terminating_pod_uses_resources(bench):
    bench.run_gang("first", workers=4, cpu="1")
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
    bench.run_gang(workers=6, cpu="1")
    patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}
    bench.registry.patch(PODGROUPS, "train", NAMESPACE, patch)
    bench.run(15)
    assert len(bench.bound("train")) == 4


def test_basic_group_is_placed_pod_by_pod(bench):
    group = {"metadata": {"name": "loose"}, "spec": {"schedulingPolicy": {"basic": {}}}}
    bench.registry.create(PODGROUPS, group, NAMESPACE)
    bench.run_job(workers=6, cpu="1", pod_spec={"schedulingGroup": {"podGroupName": "loose"}})
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
    bench.run_gang("first", workers=4, cpu="1")
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


# -- Preemption: evicts the least important pods, as few as possible, and only if that helps -------------------------

URGENT = {"priorityClassName": "urgent"}


@pytest.fixture(params=["1.36", "1.37"])
def urgent_bench(request):
    bench = Bench(request.param)
    bench.registry.create(PRIORITYCLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
    for name in ("node-1", "node-2"):
        bench.node(name, cpu="2")
    return bench


def start_all(bench, job):
    for pod in bench.pods(job):
        bench.start(pod)


def leaving(bench, job=None):
    return [pod for pod in bench.pods(job) if is_deleting(pod)]


def test_class_with_policy_never_does_not_preempt(urgent_bench):
    polite = {"metadata": {"name": "polite"}, "value": 1000, "preemptionPolicy": "Never"}
    urgent_bench.registry.create(PRIORITYCLASSES, polite)
    urgent_bench.run_gang("calm", workers=4, cpu="1")
    urgent_bench.pod("hasty", spec={"priorityClassName": "polite"})
    urgent_bench.run(30)
    assert leaving(urgent_bench) == []


def test_group_with_mode_all_is_evicted_as_a_whole(urgent_bench):
    mode = {"1.36": "PodGroup", "1.37": {"all": {}}}[urgent_bench.registry.release.name]
    spec = {"schedulingPolicy": {"gang": {"minCount": 4}}, "disruptionMode": mode}
    urgent_bench.registry.create(PODGROUPS, {"metadata": {"name": "calm"}, "spec": spec}, NAMESPACE)
    urgent_bench.run_job(
        "calm", workers=4, cpu="1", pod_spec={"schedulingGroup": {"podGroupName": "calm"}}, backoffLimit=6
    )
    start_all(urgent_bench, "calm")
    urgent_bench.pod("hasty", spec=URGENT)
    urgent_bench.run(0)
    assert len(leaving(urgent_bench, "calm")) == 4


def test_no_second_eviction_while_the_first_victim_terminates(urgent_bench):
    for number in range(4):
        urgent_bench.start(urgent_bench.pod(f"calm-{number}", spec={"terminationGracePeriodSeconds": 600}))
    urgent_bench.run()
    urgent_bench.pod("hasty", spec=URGENT)
    for tick in range(20):
        urgent_bench.registry.patch(NODES, "node-1", None, {"metadata": {"labels": {"tick": str(tick)}}})
        urgent_bench.run(5)
    assert len(leaving(urgent_bench)) == 1


def node_of(name, cpu):
    return node_state({"metadata": {"name": name}, "status": {"allocatable": {"cpu": str(cpu)}}})


def pod_of(name, cpu):
    return {"metadata": {"name": name, "uid": name}, "spec": {"containers": [container(str(cpu))]}}


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=6),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_victims_are_sufficient_and_minimal(sizes, running, wanted):
    nodes = [node_of(f"n{number}", cpu) for number, cpu in enumerate(sizes)]
    occupants = []
    for number, (cpu, priority, place_number, is_leaving) in enumerate(running):
        target, body = nodes[place_number % len(nodes)], pod_of(f"r{number}", cpu)
        request = request_of(body)
        if all(target.free.get(name, 0) >= amount for name, amount in request.items()):
            target.reserve(request)
            occupants.append(Occupant(body, target.name, request, priority, f"u{number}", is_leaving))
    candidates = [Candidate.of(pod_of(f"c{number}", cpu)) for number, cpu in enumerate(wanted)]
    needed = len(candidates)
    victims = run_to_completion(select_victims(candidates, nodes, occupants, needed=needed, priority=2))

    def fits_without(evicted):
        rest = {one.name: one.copy() for one in nodes}
        for occupant in evicted:
            rest[occupant.node].release(occupant.request)
        return place(candidates, list(rest.values()), needed=needed).is_feasible

    evicted = [occupant for victim in victims for occupant in victim.occupants]
    already = [occupant for occupant in occupants if occupant.is_leaving]
    assert all(occupant.priority < 2 and not occupant.is_leaving for occupant in evicted)
    if victims:
        assert fits_without([*already, *evicted])
        for spared in evicted:
            assert not fits_without([*already, *(one for one in evicted if one is not spared)])


# -- Nodes and pods are removed while a gang is being placed. A plan is never carried out in part --------------------

WORKERS = 4


class InScheduling:
    """Acts at the given yield point of a scheduling cycle."""

    def __init__(self, bench, place, act):
        self.left, self.act, self.bench = place, act, bench
        self.bound_before = None
        bench.between = self._between

    def _between(self):
        if len(self.bench.pods()) < WORKERS:  # syncs of the Job controller
            return
        self.left -= 1
        if self.left == -1:
            self.bound_before = len(self.bench.bound())
            self.act(self.bench)


def lose_a_node(bench):
    bench.registry.delete(NODES, "node-2")


def lose_a_pod(bench):
    bench.delete(bench.live_pods()[-1])


def disturbed(release, position, act):
    bench = Bench(release)
    for name in ("node-1", "node-2"):
        bench.node(name, cpu="2")
    moment = InScheduling(bench, position, act)
    bench.gang(workers=WORKERS, cpu="1", podReplacementPolicy="Failed", backoffLimit=0)
    return bench, moment


@pytest.mark.parametrize("release", ["1.36", "1.37"])
def test_gang_is_not_bound_to_a_removed_node(release):
    places_before_binding = 0
    for position in range(100):
        bench, moment = disturbed(release, position, lose_a_node)
        bench.run(0.5)
        if moment.bound_before is None:
            break
        if moment.bound_before == 0 and not bench.bound():
            places_before_binding += 1
        elif moment.bound_before == 0:
            # The node was removed before the first pod was bound, but after the last check of the node.
            assert len(bench.bound()) == WORKERS
    assert places_before_binding >= 2 * WORKERS, "the cycle has fewer than two yield points for each pod"


@pytest.mark.parametrize("release", ["1.36", "1.37"])
def test_gang_that_lost_a_member_is_not_bound_without_it(release):
    for position in range(2 * WORKERS):
        bench, moment = disturbed(release, position, lose_a_pod)
        bench.run(0.5)
        assert moment.bound_before == 0
        assert bench.bound() == []


def test_refused_write_keeps_all_units_active():
    bench = Bench()
    bench.node(cpu="4")
    refusals = iter(["before"])
    bench.controllers_registry.refuses = lambda call: next(refusals, None) if call == "bind" else None
    for name in ("a", "b", "c"):
        bench.pod(name)
    bench.run(30)
    assert len(bench.bound()) == 3


# -- Placement is pure: it never over-commits a node, and places a gang completely or not at all ---------------------

GPU = "nvidia.com/gpu"


def node(name, *, cpu="4", gpu=0, pods="110", labels=None, **spec):
    resources = {"cpu": cpu, "memory": "8Gi", "pods": pods} | ({GPU: str(gpu)} if gpu else {})
    metadata = {"name": name, "labels": labels or {}}
    return node_state({"metadata": metadata, "spec": spec, "status": {"allocatable": resources}})


def candidate(name, *, cpu="1", gpu=0, **spec):
    requests = {"cpu": cpu} | ({GPU: str(gpu)} if gpu else {})
    container = {"name": "main", "resources": {"requests": requests}}
    return Candidate.of({"metadata": {"name": name, "uid": name}, "spec": {"containers": [container], **spec}})


def gang(count, **shape):
    return [candidate(f"p{number}", **shape) for number in range(count)]


cpus = st.integers(1, 6).map(lambda halves: f"{halves * 500}m")
node_lists = st.lists(st.tuples(cpus, st.integers(0, 2), st.integers(1, 4)), max_size=4).map(
    lambda shapes: [node(f"n{i}", cpu=cpu, gpu=gpu, pods=str(pods)) for i, (cpu, gpu, pods) in enumerate(shapes)]
)
pod_lists = st.lists(st.tuples(cpus, st.integers(0, 1)), max_size=8).map(
    lambda shapes: [candidate(f"p{i}", cpu=cpu, gpu=gpu) for i, (cpu, gpu) in enumerate(shapes)]
)


@given(node_lists, pod_lists, st.integers(0, 8))
def test_no_node_is_ever_overcommitted(nodes, pods, needed):
    placement = place(pods, nodes, needed=needed)
    for target in nodes:
        placed = [pod for pod in pods if placement.nodes.get(pod.uid) == target.name]
        for resource, room in target.allocatable.items():
            assert sum((pod.request.get(resource, Decimal(0)) for pod in placed), Decimal(0)) <= room
        assert all(pod.request.get(GPU, 0) == 0 for pod in placed) or GPU in target.allocatable


@given(node_lists, pod_lists, st.integers(0, 8))
def test_gang_is_placed_completely_or_refused(nodes, pods, needed):
    placement = place(pods, nodes, needed=needed)
    assert placement.is_feasible == (len(placement.nodes) >= needed)
    assert set(placement.nodes) | set(placement.refused) == {pod.uid for pod in pods}
    assert not set(placement.nodes) & set(placement.refused)


@given(node_lists, pod_lists)
def test_refused_pod_fits_on_no_node(nodes, pods):
    placement = place(pods, nodes, needed=0)
    rest = [target.copy() for target in nodes]
    for target in rest:
        for pod in pods:
            if placement.nodes.get(pod.uid) == target.name:
                target.reserve(pod.request)
    for pod in pods:
        if pod.uid in placement.refused:
            assert place([pod], rest, needed=1).nodes == {}


@given(node_lists, pod_lists)
def test_placement_is_pure_and_deterministic(nodes, pods):
    before = [dict(target.free) for target in nodes]
    first = place(pods, nodes, needed=0)
    assert [dict(target.free) for target in nodes] == before
    assert place(pods, list(reversed(nodes)), needed=0) == first


def test_equal_pods_are_spread():
    placement = place(gang(4), [node("a"), node("b")], needed=4)
    assert sorted(placement.nodes.values()) == ["a", "a", "b", "b"]


def test_pods_without_requests_are_spread():
    placement = place(gang(4, cpu="0"), [node("a"), node("b")], needed=4)
    assert sorted(placement.nodes.values()) == ["a", "a", "b", "b"]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity(*terms):
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def zone_in(*values):
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "target", "message"),
    [
        ({"cpu": "8"}, {}, "1 Insufficient cpu"),
        ({"gpu": 1}, {}, "1 Insufficient nvidia.com/gpu"),
        ({"cpu": "8", "gpu": 1}, {}, "1 Insufficient cpu, 1 Insufficient nvidia.com/gpu"),
        ({}, {"pods": "0"}, "1 Too many pods"),
        ({}, {"unschedulable": True}, "1 node(s) were unschedulable"),
        ({}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "1 node(s) had untolerated taint(s)"),
        ({"nodeSelector": {"zone": "b"}}, {}, "1 node(s) didn't match Pod's node affinity/selector"),
        (affinity(zone_in("b")), {}, "1 node(s) didn't match Pod's node affinity/selector"),
        (affinity({}), {}, "1 node(s) didn't match Pod's node affinity/selector"),
    ],
    ids=["cpu", "gpu", "both", "pods", "unschedulable", "taint", "selector", "affinity", "empty term"],
)
def test_refusal_has_the_message_of_kube_scheduler(spec, target, message):
    placement = place([candidate("p", **spec)], [node("a", labels={"zone": "a"}, **target)], needed=1)
    assert placement.refused["p"].text == f"0/1 nodes are available: {message}."


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        ({"tolerations": [{"key": "k", "operator": "Exists"}]}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}),
        ({}, {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}),
        ({"tolerations": [{"operator": "Exists"}]}, {"unschedulable": True}),
        ({"nodeSelector": {"zone": "a"}}, {}),
        (affinity(zone_in("b"), zone_in("a")), {}),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}), {}),
        ({"cpu": "0", "gpu": 0}, {"cpu": "0"}),
    ],
    ids=["tolerated", "preferred only", "tolerates all", "selector", "second term", "by name", "asks for nothing"],
)
def test_suitable_node_is_selected(spec, target):
    placement = place([candidate("p", **spec)], [node("a", labels={"zone": "a"}, **target)], needed=1)
    assert placement.nodes == {"p": "a"}


def test_reasons_are_counted_over_nodes():
    nodes = [node("a", cpu="1"), node("b", cpu="1"), node("c", unschedulable=True)]
    placement = place([candidate("p", cpu="2")], nodes, needed=1)
    refusal = placement.refused["p"]
    assert refusal.text == "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
    assert (refusal.nodes, refusal.hopeless) == (3, 3)
