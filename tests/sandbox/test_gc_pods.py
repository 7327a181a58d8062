"""PodGC, TTL of Jobs, protection of PodGroups, and the end of namespaces."""

import pytest

from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, NAMESPACES, NODES
from tests.sandbox.builders import NAMESPACE, Bench, is_deleting

HARVEST = "gangjobs.airflow/harvest"
UNSEEN = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}


@pytest.fixture
def bench():
    return Bench(schedules=False)


def pod_named(bench, name):
    return bench.registry.find("pods", NAMESPACE, name)


def test_pods_of_a_missing_node_are_deleted_after_quarantine(bench):
    bench.node()
    bench.pod("p", spec={"nodeName": "node-1"}, finalizers=[HARVEST])
    bench.registry.delete(NODES, "node-1")
    bench.run(50)
    assert pod_named(bench, "p")["status"]["phase"] == "Pending"
    bench.run(30)
    pod = pod_named(bench, "p")
    assert pod["status"]["phase"] == "Failed"
    (condition,) = [one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert (condition["reason"], condition["message"]) == ("DeletionByPodGC", "PodGC: node no longer exists")
    assert is_deleting(pod)


def test_terminating_pods_on_out_of_service_nodes_are_removed(bench):
    bench.node(taints=[{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}])
    bench.registry.patch(NODES, "node-1", None, UNSEEN, PatchKind.MERGE, subresource="status")
    bench.pod("p", spec={"nodeName": "node-1", "tolerations": [{"operator": "Exists"}]}, finalizers=[HARVEST])
    bench.run(60)
    assert pod_named(bench, "p")["status"]["phase"] == "Pending"
    bench.delete(pod_named(bench, "p"))
    bench.run(30)
    assert pod_named(bench, "p")["status"]["phase"] == "Failed"


def test_pods_of_a_returning_node_stay(bench):
    bench.node()
    bench.pod("p", spec={"nodeName": "node-1"})
    bench.registry.delete(NODES, "node-1")
    bench.run(30)
    bench.node()
    bench.run(120)
    assert pod_named(bench, "p")["status"]["phase"] == "Pending"


def test_idle_cluster_has_nothing_due(bench):
    bench.node()
    bench.pod("p")
    bench.run(600)
    assert bench.manager.next_due() is None


@pytest.mark.parametrize("end", ["succeed", "fail"])
def test_finished_job_is_deleted_after_its_ttl(bench, end):
    bench.job(workers=1, ttlSecondsAfterFinished=60)
    bench.run()
    getattr(bench, end)(bench.pods()[0])
    bench.run(55)
    assert bench.registry.find(JOBS, NAMESPACE, "train")
    bench.run(10)
    assert bench.registry.find(JOBS, NAMESPACE, "train") is None
    assert bench.pods() == []


def test_ttl_added_later_counts_from_the_end(bench):
    bench.job(workers=1)
    bench.run()
    bench.succeed(bench.pods()[0])
    bench.run(100)
    bench.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"ttlSecondsAfterFinished": 10}})
    bench.run()
    assert bench.registry.find(JOBS, NAMESPACE, "train") is None


def test_deleted_namespace_is_emptied_first(bench):
    bench.registry.create(NAMESPACES, {"metadata": {"name": "old"}})
    held = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
    bench.registry.create(CONFIGMAPS, held, "old")
    bench.registry.create(CONFIGMAPS, {"metadata": {"name": "free"}}, "old")
    bench.registry.delete(NAMESPACES, "old")
    bench.run()
    assert [obj["metadata"]["name"] for obj in bench.registry.list(CONFIGMAPS, "old")] == ["held"]
    assert bench.registry.get(NAMESPACES, "old")["status"]["phase"] == "Terminating"
    bench.registry.patch(CONFIGMAPS, "held", "old", {"metadata": {"finalizers": None}})
    bench.run()
    assert bench.registry.find(NAMESPACES, None, "old") is None
