"""Node lifecycle: nodes that stop reporting, their taints, and the eviction of their pods."""

import pytest

from gangjobs_sandbox.clock import micro_time, timestamp
from gangjobs_sandbox.controllers import meta
from gangjobs_sandbox.resources import LEASES, NODES, PODS
from tests.sandbox.builders import NAMESPACE, Bench, is_deleting

UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"


@pytest.fixture
def bench():
    bench = Bench(schedules=False, watches_nodes=True)
    bench.node()
    report(bench)
    return bench


def report(bench, status="True"):
    now = timestamp(bench.clock.now())
    ready = {"type": "Ready", "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now}
    bench.registry.patch(NODES, "node-1", None, {"status": {"conditions": [ready]}}, subresource="status")


def renew(bench):
    spec = {"holderIdentity": "node-1", "renewTime": micro_time(bench.clock.now())}
    if bench.registry.find(LEASES, "kube-node-lease", "node-1"):
        bench.registry.patch(LEASES, "node-1", "kube-node-lease", {"spec": spec})
    else:
        bench.registry.create(LEASES, {"metadata": {"name": "node-1"}, "spec": spec}, "kube-node-lease")


def node(bench):
    return bench.registry.get(NODES, "node-1")


def ready_status(bench):
    (ready,) = [one for one in node(bench)["status"]["conditions"] if one["type"] == "Ready"]
    return ready["status"]


def taint_pairs(bench):
    return [(taint["key"], taint["effect"]) for taint in node(bench)["spec"].get("taints", ())]


def test_node_without_reports_becomes_unreachable(bench):
    bench.run(49)
    assert ready_status(bench) == "True"
    bench.run(2)
    assert ready_status(bench) == "Unknown"
    assert taint_pairs(bench) == [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]
    assert bench.events("node-1") == [("NodeNotReady", "Node node-1 status is now: NodeNotReady")]


def test_renewed_lease_keeps_the_node(bench):
    for _ in range(20):
        renew(bench)
        bench.run(10)
    assert ready_status(bench) == "True"
    assert taint_pairs(bench) == []


def test_node_that_reports_again_loses_its_taints(bench):
    bench.run(60)
    report(bench)
    bench.run()
    assert taint_pairs(bench) == []


def test_unready_node_is_tainted(bench):
    report(bench, "False")
    bench.run()
    assert taint_pairs(bench) == [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]


def test_pods_of_a_lost_node_are_not_ready(bench):
    bench.start(bench.pod("p", spec={"nodeName": "node-1"}))
    bench.run(60)
    (ready,) = [one for one in bench.pods()[0]["status"]["conditions"] if one["type"] == "Ready"]
    assert ready["status"] == "False"


def test_pods_are_evicted_after_their_toleration(bench):
    bench.start(bench.pod("p", spec={"nodeName": "node-1"}))
    bench.run(345)
    assert not is_deleting(bench.pods()[0])
    bench.run(10)
    (pod,) = bench.pods()
    assert is_deleting(pod)
    (condition,) = [one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert condition["reason"] == "DeletionByTaintManager"
    assert bench.events("p")[-1] == ("TaintManagerEviction", "Marking for deletion Pod default/p")


def test_node_that_returns_in_time_keeps_its_pods(bench):
    bench.start(bench.pod("p", spec={"nodeName": "node-1"}))
    bench.run(200)
    for _ in range(40):
        report(bench)
        bench.run(10)
    assert not is_deleting(bench.pods()[0])


def test_tolerating_pod_is_never_evicted(bench):
    forever = [{"operator": "Exists"}]
    bench.pod("p", spec={"nodeName": "node-1", "tolerations": forever})
    bench.run(10_000)
    assert not is_deleting(bench.pods()[0])


def test_finished_pod_is_not_evicted(bench):
    bench.succeed(bench.pod("p", spec={"nodeName": "node-1"}))
    bench.run(1000)
    assert not is_deleting(bench.pods()[0])


def test_removed_pod_needs_no_eviction(bench):
    bench.pod("p", spec={"nodeName": "node-1"})
    bench.run(60)
    bench.registry.delete(PODS, "p", NAMESPACE, grace_period_s=0)
    bench.run(1000)
    assert bench.pods() == []


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "other"}, False),
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "v"}, False),
    ],
    ids=["equal", "other value", "any value", "everything", "other effect", "other key", "no key"],
)
def test_toleration_matches_taint(toleration, tolerates):
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert meta.tolerates(toleration, taint) is tolerates
