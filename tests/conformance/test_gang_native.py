"""Workload and PodGroup that the Job controller creates with the feature gate WorkloadWithJob (KEP-5547)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.manifests import group, indexed, link
from tests.conformance.namespace import Namespace
from tests.conformance.targets import started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.namespace import Obj

NATIVE_RELEASES = ("1.36", "1.37")


@pytest.fixture(scope="module")
def native(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A separate control plane with the feature gate."""
    if target_name.partition("-")[2] not in NATIVE_RELEASES:
        pytest.skip("its Job controller makes no groups")
    with (
        started(target_name, tmp_path_factory.mktemp(f"native-{target_name}-"), workload_with_job=True) as target,
        target.client() as api,
    ):
        yield target, api


@pytest.fixture
def namespace(native: Any) -> Iterator[Namespace]:
    """Two nodes of two CPUs."""
    with Namespace.opened(*native) as namespace:
        namespace.add_nodes(2, cpu=2)
        yield namespace


def gang_asked_for(namespace: Namespace, name: str = "g", size: int = 3, **spec: Any) -> Obj:
    """Create a Job that is a gang. In 1.36 the shape of the Job makes it a gang."""
    if namespace.target.release == "1.37":
        spec["scheduling"] = {"schedulingPolicy": {"gang": {"minCount": size}}}
    return namespace.create("jobs", indexed(name, size, **spec))


def made(namespace: Namespace) -> tuple[Obj, Obj]:
    """Return the only Workload and the only PodGroup."""
    (pod_group,) = namespace.wait_until(lambda: namespace.list_objects("podgroups"), lambda: "a PodGroup")
    (workload,) = namespace.list_objects("workloads")
    return workload, pod_group


def owners(obj: Obj) -> list[tuple[str, str, bool]]:
    return [(ref["kind"], ref["name"], ref.get("controller", False)) for ref in obj["metadata"]["ownerReferences"]]


def test_gang_is_made_and_placed(namespace: Namespace) -> None:
    gang_asked_for(namespace)
    pods = namespace.wait_bound(3, "g")
    workload, pod_group = made(namespace)
    name = pod_group["metadata"]["name"]
    assert [pod["spec"]["schedulingGroup"] for pod in pods] == [{"podGroupName": name}] * 3
    assert workload["metadata"]["name"].startswith("g-")
    assert name.startswith(f"{workload['metadata']['name']}-g-pgt-0-")


def test_created_objects_have_the_job_as_their_owner(namespace: Namespace) -> None:
    gang_asked_for(namespace)
    workload, pod_group = made(namespace)
    assert owners(workload) == [("Job", "g", True)]
    assert owners(pod_group) == [("Job", "g", True), ("Workload", workload["metadata"]["name"], False)]
    assert workload["spec"]["controllerRef"] == {"apiGroup": "batch", "kind": "Job", "name": "g"}
    (template,) = workload["spec"]["podGroupTemplates"]
    assert (template["name"], template["schedulingPolicy"]) == ("g-pgt-0", {"gang": {"minCount": 3}})
    assert pod_group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}


def test_creation_is_reported_by_events(namespace: Namespace) -> None:
    gang_asked_for(namespace)
    workload, pod_group = made(namespace)
    name = workload["metadata"]["name"]
    assert namespace.wait_event("WorkloadCreated", "Job")["message"] == f"Created Workload {name} for Job g"
    if namespace.target.release == "1.37":
        group_name = pod_group["metadata"]["name"]
        assert namespace.wait_event("PodGroupCreated", "Job")["message"] == f"Created PodGroup {group_name} for Job g"


def test_gang_that_cannot_fit_places_nothing(namespace: Namespace) -> None:
    gang_asked_for(namespace, size=6)
    _, pod_group = made(namespace)
    namespace.wait_condition(
        "podgroups", pod_group["metadata"]["name"], namespace.release.pod_group_condition or "", "False"
    )
    assert not any("nodeName" in pod["spec"] for pod in namespace.pods("g"))


def test_job_without_scheduling_has_no_group(namespace: Namespace) -> None:
    """1.36 creates nothing. 1.37 creates a group whose pods need not start together."""
    namespace.create("jobs", indexed("g", 6, completionMode="NonIndexed"))
    namespace.wait_bound(4, "g")
    if namespace.target.release == "1.36":
        assert namespace.list_objects("workloads") == []
        return
    _, pod_group = made(namespace)
    assert pod_group["spec"]["schedulingPolicy"] == {"basic": {}}


def test_job_whose_pods_name_a_group_gets_no_other_group(namespace: Namespace) -> None:
    group(namespace, "own", 2)
    namespace.create("jobs", indexed("g", 2, pod_spec=link(namespace, "own")))
    namespace.wait_bound(2, "g")
    assert [workload["metadata"]["name"] for workload in namespace.list_objects("workloads")] == ["own"]


def test_suspended_job_has_its_group_before_it_runs(namespace: Namespace) -> None:
    gang_asked_for(namespace, suspend=True)
    workload, _ = made(namespace)
    namespace.patch("jobs", "g", {"spec": {"suspend": False}})
    namespace.wait_bound(3, "g")
    assert [workload["metadata"]["uid"]] == [one["metadata"]["uid"] for one in namespace.list_objects("workloads")]


def test_created_objects_are_deleted_with_the_job(namespace: Namespace) -> None:
    gang_asked_for(namespace)
    workload, pod_group = made(namespace)
    pods = namespace.wait_bound(3, "g")
    namespace.delete("jobs", "g", propagationPolicy="Background")
    namespace.wait_deletion_requested("g")
    namespace.set_terminated(*pods, exit_code=143)
    namespace.wait_gone("workloads", workload["metadata"]["name"])
    namespace.wait_gone("podgroups", pod_group["metadata"]["name"])
