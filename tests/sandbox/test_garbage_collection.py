"""The garbage collectors: dependents, pods, Jobs that are over, and namespaces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, NAMESPACES, NODES
from tests.examples import examples
from tests.sandbox.builders import NAMESPACE, Bench, is_deleting

# -- The garbage collector: which dependents are deleted, which block, and which stay --------------------------------

HOLD = "example.com/hold"


@pytest.fixture
def bench():
    return Bench(schedules=False)


def ref(owner, *, blocks=False, **changes):
    named = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**named, "blockOwnerDeletion": blocks, **changes}


def config_map(bench, name, *owners, finalizers=(), namespace=NAMESPACE):
    metadata = {"name": name, "ownerReferences": list(owners), "finalizers": list(finalizers)}
    return bench.registry.create(CONFIGMAPS, {"metadata": metadata}, namespace)


def delete(bench, name, propagation="Background"):
    bench.registry.delete(CONFIGMAPS, name, NAMESPACE, propagation=propagation)
    bench.run()


def left(bench):
    names = [obj["metadata"]["name"] for obj in bench.registry.list(CONFIGMAPS, NAMESPACE)]
    return [name for name in names if not name.startswith("kube-")]


def find(bench, name):
    return bench.registry.get(CONFIGMAPS, name, NAMESPACE)


def release(bench, name):
    bench.registry.patch(CONFIGMAPS, name, NAMESPACE, {"metadata": {"finalizers": None}})
    bench.run()


def test_object_stays_with_its_last_owner(bench):
    first, second = config_map(bench, "first"), config_map(bench, "second")
    config_map(bench, "shared", ref(first), ref(second))
    delete(bench, "first")
    assert [owner["name"] for owner in find(bench, "shared")["metadata"]["ownerReferences"]] == ["second"]
    delete(bench, "second")
    assert left(bench) == []


def test_foreground_owner_does_not_wait_for_others(bench):
    top = config_map(bench, "top")
    config_map(bench, "child", ref(top), finalizers=[HOLD])
    delete(bench, "top", "Foreground")
    assert left(bench) == ["child"]
    assert is_deleting(find(bench, "child"))


def _syncs_of_foreground_deletion(count):
    """Return the number of syncs of the collector while `count` dependents with finalizers are removed one by one."""
    bench = Bench(schedules=False)
    top = config_map(bench, "top")
    for number in range(count):
        config_map(bench, f"d{number}", ref(top, blocks=True), finalizers=[HOLD])
    bench.run()
    before = bench.syncs("garbage-collector")
    delete(bench, "top", "Foreground")
    bench.run()
    for number in range(count):
        release(bench, f"d{number}")
    assert bench.registry.find(CONFIGMAPS, NAMESPACE, "top") is None
    return bench.syncs("garbage-collector") - before


def test_foreground_deletion_syncs_per_dependent_are_bounded():
    few, many = _syncs_of_foreground_deletion(10), _syncs_of_foreground_deletion(40)
    assert many <= 5 * few, "the number of syncs grows faster than the number of dependents"


def test_foreground_deletion_includes_all_generations(bench):
    top = config_map(bench, "top")
    middle = config_map(bench, "middle", ref(top, blocks=True))
    config_map(bench, "leaf", ref(middle, blocks=True), finalizers=[HOLD])
    delete(bench, "top", "Foreground")
    assert left(bench) == ["leaf", "middle", "top"]
    release(bench, "leaf")
    assert left(bench) == []


def test_foreground_deletion_keeps_objects_with_another_owner(bench):
    top, other = config_map(bench, "top"), config_map(bench, "other")
    config_map(bench, "shared", ref(top, blocks=True), ref(other))
    delete(bench, "top", "Foreground")
    assert left(bench) == ["other", "shared"]


def test_owner_of_an_unknown_kind_is_assumed_to_exist(bench):
    top = config_map(bench, "top")
    config_map(bench, "child", ref(top, apiVersion="example.com/v1", kind="Widget", uid="u"))
    bench.run()
    assert left(bench) == ["child", "top"]


def test_owner_in_another_namespace_is_ignored(bench):
    bench.registry.create("namespaces", {"metadata": {"name": "elsewhere"}})
    top = config_map(bench, "top", namespace="elsewhere")
    config_map(bench, "child", ref(top))
    bench.run()
    assert left(bench) == []


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.tuples(st.sets(st.integers(0, 5)), st.booleans()), min_size=1, max_size=6),
    st.sampled_from(["Background", "Foreground"]),
)
def test_objects_without_owners_are_deleted(shape, propagation):
    """Each object may be owned by earlier ones. The first object is deleted."""
    bench = Bench(schedules=False)
    made, owners_by_name = [], {}
    for position, (wanted, blocks) in enumerate(shape):
        owners = sorted(index for index in wanted if index < position)
        refs = [ref(made[index], blocks=blocks) for index in owners]
        made.append(config_map(bench, f"cm-{position}", *refs))
        owners_by_name[f"cm-{position}"] = {f"cm-{index}" for index in owners}
    delete(bench, "cm-0", propagation)
    alive = set(owners_by_name) - {"cm-0"}
    for name, owners in owners_by_name.items():
        if owners and not owners & alive:
            alive.discard(name)
    assert set(left(bench)) == alive


# -- PodGC, TTL of Jobs, protection of PodGroups, and the end of namespaces ------------------------------------------

HARVEST = "gangjobs.airflow/harvest"
UNSEEN = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}


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
    bench.run_job(workers=1, ttlSecondsAfterFinished=60)
    getattr(bench, end)(bench.pods()[0])
    bench.run(55)
    assert bench.registry.find(JOBS, NAMESPACE, "train")
    bench.run(10)
    assert bench.registry.find(JOBS, NAMESPACE, "train") is None
    assert bench.pods() == []


def test_ttl_added_later_counts_from_the_end(bench):
    bench.run_job(workers=1)
    bench.succeed(bench.pods()[0])
    bench.run(100)
    bench.change_job({"spec": {"ttlSecondsAfterFinished": 10}})
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
