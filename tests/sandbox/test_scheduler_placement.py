"""Placement is pure: it never over-commits a node, and places a gang completely or not at all."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.scheduler.nodes import node_state
from gangjobs_sandbox.scheduler.placement import Candidate, place

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


def test_shortfall_is_detected_early():
    placement = place(gang(6), [node("a", cpu="2"), node("b", cpu="2")], needed=6)
    assert placement.shortfall.placed == 4
    assert placement.shortfall.remaining == 1
    assert {refusal.text for refusal in placement.refused.values()} == {"0/2 nodes are available: 2 Insufficient cpu."}


def test_pods_above_the_minimum_may_stay_unplaced():
    placement = place(gang(4), [node("a", cpu="3")], needed=2)
    assert placement.is_feasible
    assert len(placement.nodes) == 3
    assert list(placement.refused) == ["p3"]


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


def test_cluster_without_nodes_has_a_message():
    assert place(gang(1), [], needed=1).refused["p0"].text == "no nodes available to schedule pods"
